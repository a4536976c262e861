"""What makes a curve worth looking at, and how well its first half predicts its end."""

from dataclasses import dataclass

from scalerl.curves.curve import curve_of_run, fit_curve
from scalerl.events import Event, evaluations


@dataclass(frozen=True)
class Score:
    """What one run's curve shows. Shares are of the fitted gain A - R0; errors are forecast less truth."""

    seed: int
    A: float
    B: float
    C_mid: float
    rmse: float
    evaluations: int
    below_quarter: int
    above_85: int
    share_at_half: float  # of the last evaluation in the first half of the compute
    worst_se: float
    epochs: float
    forecast_error: float  # the fit on the first half of the compute, at the last evaluation
    carry_error: float  # the last value of that half, carried forward
    first_evaluation_s: float
    total_s: float
    worst_lag: int

    def meets_the_bars(self) -> bool:
        return (
            self.evaluations >= 20
            and self.below_quarter >= 3
            and self.above_85 >= 3
            and self.share_at_half <= 0.9
            and self.A <= 0.95
            and self.worst_se <= 0.01
            and self.rmse <= 0.02
            and self.epochs >= 4
            and abs(self.forecast_error) <= 0.04
            and self.worst_lag <= 8
        )


def score(seed: int, events: list[Event]) -> Score:
    """Score the surviving events of one run."""
    evals = evaluations(events)
    points = [(event["C"], event["pass_rate"]) for event in evals]
    run = curve_of_run(events, str(seed))
    fit = fit_curve(run)
    half = [point for point in points if point[0] <= points[-1][0] / 2]
    shares = [(rate - fit.R0) / (fit.A - fit.R0) for _, rate in points]
    updates = [event for event in events if event["kind"] == "update"]
    return Score(
        seed=seed,
        A=fit.A,
        B=fit.B,
        C_mid=fit.C_mid,
        rmse=fit.rmse,
        evaluations=len(points),
        below_quarter=sum(share < 0.25 for share in shares),
        above_85=sum(share > 0.85 for share in shares),
        share_at_half=shares[len(half) - 1],
        worst_se=max(event["se"] for event in evals),
        epochs=updates[-1]["epoch"],
        forecast_error=float(fit_curve(run, window=(0, points[-1][0] / 2)).predict(points[-1][0]))
        - points[-1][1],
        carry_error=half[-1][1] - points[-1][1],
        first_evaluation_s=evals[0]["t"],
        total_s=events[-1]["t"],
        worst_lag=max(len(event["lag_tokens"]) - 1 for event in updates),
    )
