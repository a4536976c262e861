"""What `scalerl fit` prints: the curve, then one paragraph for each question a reader has."""

from scalerl.curves.bootstrap import block_bootstrap
from scalerl.curves.comparison import SHARES
from scalerl.curves.curve import VALIDATION, thinned
from scalerl.curves.extending import (
    MARGIN,
    creeping,
    smallest_budget,
    window_drift,
    worth_of_extending,
)
from scalerl.curves.sources import Source
from scalerl.curves.uncertainty import Interval
from scalerl.errors import InputError
from scalerl.fit import FitError
from scalerl.forecast import ENOUGH_SEEDS, RUN_TO_RUN, Forecast
from tui.commands.fitting import BOOTSTRAP, FitRequest
from tui.show.curve import plot_curve
from tui.words import amount, interval

HEIGHT = 18
CLEARLY = 0.7  # of the sigmoid's error on held-out points


def report(source: Source, made: Forecast, asked: FitRequest, width: int) -> list[str]:
    """The whole report as lines of plain text: what is known first, then how it is known."""
    parts = [
        _plot(made, asked, width),
        _verdict(made),
        [*_numbers(source, made), *_rates(made, asked)],
        _worth(made, asked),
        _drift(made, asked),
        _doubts(made, asked),
        _rivals(made),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part).splitlines()


def _plot(made: Forecast, asked: FitRequest, width: int) -> list[str]:
    """The curve with its band, drawn on to the farthest forecast."""
    curve, fit = thinned(made.whole), made.fit

    def band(C: float) -> tuple[float, float]:
        R = made.rate(C)
        return R.lo or 0.0, 1.0 if R.hi is None else R.hi

    points = list(zip(curve.C_N.tolist(), curve.R_N.tolist(), strict=True))
    if curve.R0 is not None:
        points = [(0.0, curve.R0), *points]
    return plot_curve(
        points,
        fit,
        width=width,
        height=HEIGHT,
        unit=curve.unit,
        band=band,
        until=max(asked.at, default=None),
    )


def _verdict(made: Forecast) -> list[str]:
    said = {
        "ok": "verdict: ok. C_mid lies well inside the points: A and its interval may be believed",
        "not_identifiable": f"verdict: NOT IDENTIFIABLE. {made.why}. A is a guess; a rate ahead is"
        " worth no more than its interval",
        "unstable": f"verdict: UNSTABLE. {made.why}. The fit does not say where this run goes",
    }
    lines = [said[made.verdict]]
    for alarm in made.alarms:
        at = (
            f"{amount(alarm.at)} {made.curve.unit}"
            if alarm.of == "compute"
            else f"update {alarm.at:g}"
        )
        lines.append(f"alarm ({alarm.level}) {alarm.name}, first at {at}: {alarm.evidence}")
        lines.append(f"    {alarm.threshold}; try: {alarm.advice}")
    return lines


def _numbers(source: Source, made: Forecast) -> list[str]:
    fit, unit = made.fit, made.curve.unit
    A, B, C_mid = made.A(), made.B(), made.C_mid()
    shares = [f"{q:.0%} {interval(made.compute_to_share(q), 'amount')}" for q in SHARES]
    lines = [
        f"A {interval(A)}   R0 {fit.R0:.3f} ({made.curve.R0_from})   rmse {fit.rmse:.4f}, n {fit.n}",
        f"B {interval(B, '.2f')}   C_mid {interval(C_mid, 'amount')} {unit}"
        "   (90 %; A, B and C_mid move together)",
        f"compute to a share of the gain A - R0, {unit}: {', '.join(shares)}",
    ]
    if None in (B.lo, B.hi, C_mid.lo, C_mid.hi):
        lines.append("?: no end on that side within the limits of the search")
    if source.published is not None:
        lines.append("published: A {:.3f}, B {:.2f}".format(*source.published))
    if made.curve.evaluation_set != VALIDATION:
        lines.append(f"measured on the set {made.curve.evaluation_set}, not on {VALIDATION}")
    if made.curve.blocks_of > 1:
        lines.append(f"each point is the mean of {made.curve.blocks_of} consecutive rows")
    if made.seeds:
        values = ", ".join(f"{each.A:.3f}" for each in made.seeds)
        lines.append(f"{len(made.seeds)} seeds, A of each: {values}")
    return lines


def _rates(made: Forecast, asked: FitRequest) -> list[str]:
    return [f"R({amount(C)} {made.curve.unit}) = {interval(made.rate(C))}" for C in asked.at]


def _worth(made: Forecast, asked: FitRequest) -> list[str]:
    if asked.extend is None:
        return []
    price = 1.0 if asked.price is None else asked.price
    try:
        worth = worth_of_extending(made, asked.extend, price, seed=asked.seed)
    except FitError as error:
        raise InputError(f"--extend: {error}") from None
    unit, gain = made.curve.unit, worth.gain
    costs = [worth.cost / (100 * g) if g and g > 1e-6 else None for g in (gain.hi, gain.lo)]
    per_point = "nothing is gained"
    if worth.per_point is not None:
        ends = ", ".join("?" if cost is None else amount(cost) for cost in costs)
        per_point = f"{amount(worth.per_point)} a percentage point [{ends}]"
    lines = [
        f"going on from {amount(made.last_C)} to {amount(worth.C)} {unit}: {amount(worth.hours)}"
        f" {unit} x {price:g} = {amount(worth.cost)}",
        f"  pass rate {float(made.fit.predict(made.last_C)):.3f} to {float(made.fit.predict(worth.C)):.3f}:"
        f" {interval(gain, '+.2f', 100)} percentage points for this run; {per_point}",
    ]
    return lines if made.verdict == "ok" else [*lines, "  not a forecast: see the verdict"]


def _drift(made: Forecast, asked: FitRequest) -> list[str]:
    unit = made.curve.unit
    rows = window_drift(made.curve, asked.drift or None, grid=made.grid)
    lines = ["the ceiling as the window grows (before the +-0.02):"] if rows else []
    for row in rows:
        guess = "" if row.seen else "   a guess"
        lines.append(
            f"  to {amount(row.end_C):<9} n {row.n:<4d} A {row.A:.3f} [{row.A_lo:.3f}, {row.A_hi:.3f}]"
            f"   B {row.B:.2f}   C_mid {amount(row.C_mid)}{guess}"
        )
    left_out = len(asked.drift) - len(rows)
    if left_out > 0:
        lines.append(f"  {left_out} of the windows asked for hold too few points to fit")
    if creeping(rows):
        lines.append(
            "the ceiling has risen at each of the last three stops: it may well rise again"
        )
    if made.verdict == "unstable":
        return lines
    budget = smallest_budget(made)
    if budget.C is None:
        lines.append(f"A will not be known to +-{MARGIN} within twenty times this compute")
    elif budget.seen:
        lines.append(
            f"A has been known to +-{MARGIN} since {amount(budget.C)} {unit}, run to run apart"
        )
    else:
        lines.append(
            f"A would be known to +-{MARGIN} at about {amount(budget.C)} {unit}, run to run apart"
        )
    return lines


def _doubts(made: Forecast, asked: FitRequest) -> list[str]:
    """How the interval of A came about."""
    known, noise = made.uncertainty, made.uncertainty.noise
    drawn = block_bootstrap(known.points, made.fit, BOOTSTRAP, asked.seed)
    boot = Interval.of_draws(made.fit.A, drawn.A_S)
    profile, ridge = known.A(), known.ridge()
    lines = [
        f"scatter of the points {noise.sd:.4f}, autocorrelation {noise.rho:.2f}:"
        f" {made.fit.n} points are worth {made.fit.n / noise.inflation:.0f} independent ones",
        f"A by profile [{profile.lo:.3f}, {profile.hi:.3f}], by block bootstrap [{boot.lo:.3f}, {boot.hi:.3f}]"
        f" ({BOOTSTRAP} refits, known to be too narrow)",
    ]
    if made.prompts_se:
        lines.append(f"other held-out prompts would move A by {made.prompts_se:.3f} (one sd)")
    if len(made.seeds) < ENOUGH_SEEDS:
        lines.append(
            f"A and rates beyond the points are never given closer than +-{RUN_TO_RUN}: runs of one"
            " recipe differ by as much, and fewer than three seeds cannot say otherwise"
        )
    ends = [ridge[0], ridge[len(ridge) // 2], ridge[-1]] if len(ridge) > 2 else ridge
    told = "; ".join(f"A {A:.3f} B {B:.2f} C_mid {amount(C_mid)}" for A, B, C_mid in ends)
    return [*lines, f"these fit as well as the best (the ridge): {told}"]


def _rivals(made: Forecast) -> list[str]:
    lines = ["laws by their error on the last third of the points, fitted to the rest:"]
    for rival in made.rivals:
        held = "     -" if rival.held_out_rmse is None else f"{rival.held_out_rmse:.4f}"
        rmse = "     -" if rival.rmse is None else f"{rival.rmse:.4f}"
        A = "" if rival.A is None else f"A {rival.A:.3f}"
        lines.append(f"  {rival.name:<21} {held}   rmse of all {rmse}   {A}".rstrip())
    best = made.rivals[0]
    mine = next(rival for rival in made.rivals if rival.name == "sigmoid").held_out_rmse
    if best.held_out_rmse is not None and mine and best.held_out_rmse < CLEARLY * mine:
        lines.append(
            f"the {best.name} predicts the last third clearly better: far beyond the points the ceiling"
            " of a sigmoid is an assumption"
        )
    return lines
