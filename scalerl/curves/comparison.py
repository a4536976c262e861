"""Two curves or more: who is ahead at a budget, where they cross, and what makes one faster.

Two runs that share their held-out prompts are compared on those prompts: which prompts they are
then cancels, up to prompts on which the two differ. What one run of a recipe says of another run of
the same recipe is known to +-0.02 only, and that is part of every chance given here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.optimize import least_squares

from scalerl.curves.curve import Curve
from scalerl.curves.prompts import between_prompts
from scalerl.curves.search import FoundMany, log_compute, shape
from scalerl.curves.uncertainty import Interval, copies
from scalerl.fit import FitError, Floats
from scalerl.forecast import RUN_TO_RUN, Forecast

DRAWS = 4_000
BAND = RUN_TO_RUN
SHARES = (0.5, 0.8, 0.9)


@dataclass(frozen=True)
class Duel:
    """Run a against run b at C. One row: C 10_000, difference 0.083 .. , ahead 0.99, paired True.

    difference: R_a - R_b, at 90 %. ahead: the chance that a's recipe stands higher.
    """

    a: str
    b: str
    C: float
    difference: Interval
    ahead: float
    paired: bool


@dataclass(frozen=True)
class Crossing:
    """Where two curves cross. C: of the fits, None if they do not between `first` and `reach`.

    chance: share of the draws that cross there; C's ends hold 90 % of those.
    """

    a: str
    b: str
    C: Interval | None
    chance: float
    first: float
    reach: float


class Comparison:
    """Forecasts side by side, in one unit.

    Args:
        forecasts: two or more.
        seed: of the draws behind every chance.

    Raises:
        FitError: no curve, or curves in different units.
    """

    def __init__(self, forecasts: Sequence[Forecast], seed: int = 0) -> None:
        units = {made.curve.unit for made in forecasts}
        if len(units) != 1:
            raise FitError(
                f"{len(forecasts)} curves in units {sorted(units)}: give some in one unit"
            )
        self.forecasts = list(forecasts)
        self.unit = units.pop()
        # a seed for each: a curve compared with itself must not agree with itself by construction
        self.draws = [made.draws(DRAWS, seed + i) for i, made in enumerate(self.forecasts)]
        self._prompt_error_ID = self._prompt_errors(np.random.default_rng([seed, 2]))

    def rates(self, C: float) -> list[Floats]:
        """R(C) of the draws of each, on new prompts of the same kind."""
        errors = self._prompt_error_ID
        return [drawn.rates(C) + error for drawn, error in zip(self.draws, errors, strict=True)]

    def _prompt_errors(self, rng: np.random.Generator) -> Floats:
        """Errors of the choice of prompts, one for each curve and draw, with what two of them share."""
        made = self.forecasts
        se_I = np.array([each.prompts_se for each in made])
        covariance = np.diag(se_I**2)
        for i, j in combinations(range(len(made)), 2):
            if share_prompts(made[i].curve, made[j].curve):
                apart = between_prompts(made[i].curve, made[j].curve)
                covariance[i, j] = covariance[j, i] = (se_I[i] ** 2 + se_I[j] ** 2 - apart**2) / 2.0
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return root @ rng.standard_normal((len(made), DRAWS))

    def duel(self, i: int, j: int, C: float) -> Duel:
        """Who is ahead at C, curve i or curve j."""
        a, b = self.forecasts[i], self.forecasts[j]
        rates = self.rates(C)
        gap_D = rates[i] - rates[j]
        value = float(a.fit.predict(C) - b.fit.predict(C))
        ahead = float(np.mean(gap_D > 0.0) + np.mean(gap_D == 0.0) / 2.0)
        paired = share_prompts(a.curve, b.curve)
        difference = Interval.of_draws(value, gap_D)
        return Duel(a.curve.name, b.curve.name, C, difference, ahead, paired)

    def best_at(self, C: float) -> list[float]:
        """The chance of each, in their order, to stand highest at C."""
        rates_ID = np.stack(self.rates(C))
        highest_ID = rates_ID == rates_ID.max(axis=0)  # several share the first place
        return [float(chance) for chance in (highest_ID / highest_ID.sum(axis=0)).mean(axis=1)]

    def crossing(self, i: int, j: int, reach: float) -> Crossing:
        """Where curve i and curve j cross between half of the earlier C_mid and `reach`.

        Before that neither has moved, and which is ahead is noise. The last crossing counts: beyond
        it the order stays.
        """
        a, b = self.forecasts[i], self.forecasts[j]
        first = min(a.fit.C_mid, b.fit.C_mid) / 2.0
        C_M = np.geomspace(first, max(reach, 2 * first), 200)
        fitted = _last_crossing(copies(a.fit, 1), copies(b.fit, 1), C_M)[0]
        crossed_D = _last_crossing(self.draws[i], self.draws[j], C_M)
        chance = float(np.mean(np.isfinite(crossed_D)))
        at = None
        if np.isfinite(fitted):
            inside = np.append(crossed_D[np.isfinite(crossed_D)], fitted)
            at = Interval.of_draws(float(fitted), inside)
        return Crossing(a.curve.name, b.curve.name, at, chance, first, float(C_M[-1]))

    def same_ceiling(self, i: int, j: int) -> bool:
        """Whether the ceilings lie within +-0.02 of one another: then the faster one is the better."""
        return abs(self.forecasts[i].fit.A - self.forecasts[j].fit.A) <= BAND


def share_prompts(a: Curve, b: Curve) -> bool:
    """Whether two runs were evaluated on the same held-out prompts, and say how each went."""
    known = a.passes_NP is not None and b.passes_NP is not None
    return known and a.held_out is not None and a.held_out == b.held_out


def _last_crossing(a: FoundMany, b: FoundMany, C_M: Floats) -> Floats:
    """C of the last change of sign of a - b along C_M, NaN where there is none; one for each draw."""
    gap_DM = a.rates_along(C_M) - b.rates_along(C_M)
    now_DM, next_DM = gap_DM[:, :-1], gap_DM[:, 1:]
    turns_DM = (now_DM * next_DM < 0.0) | ((now_DM == 0.0) & (next_DM != 0.0))
    D, found_D = np.arange(len(gap_DM)), np.full(len(gap_DM), np.nan)
    D = D[turns_DM.any(axis=1)]
    last_D = turns_DM.shape[1] - 1 - np.argmax(turns_DM[D, ::-1], axis=1)
    before, after = gap_DM[D, last_D], gap_DM[D, last_D + 1]
    found_D[D] = C_M[last_D] * (C_M[last_D + 1] / C_M[last_D]) ** (before / (before - after))
    return found_D


# ---- the efficiency plot -------------------------------------------------------------------------


@dataclass(frozen=True)
class Efficiency:
    """ln((R - R0) / (A - R)) against ln C: the fit is the straight line B (ln C - ln C_mid).

    half_N: half width of each point's 90 % error bar, from the scatter about the fit.
    dropped: points that have no logarithm, R <= R0 or R >= A.
    """

    lnC_N: Floats
    logit_N: Floats
    half_N: Floats
    dropped: int
    slope: float
    intercept: float


def efficiency(made: Forecast) -> Efficiency:
    """The points of one curve on the plot on which its law is a line.

    Drawn with the run's own A and R0, and with nothing else of it: C_mid shows as the zero.
    """
    fit, curve = made.fit, made.curve
    keep_N = (curve.R_N > fit.R0) & (curve.R_N < fit.A)
    R_N = curve.R_N[keep_N]
    # d logit / dR = (A - R0) / ((R - R0) (A - R))
    steep_N = (fit.A - fit.R0) / ((R_N - fit.R0) * (fit.A - R_N))
    w_N = made.uncertainty.points.w_N / made.uncertainty.points.w_N.mean()
    half_N = made.uncertainty.noise.t() * made.uncertainty.noise.sd / np.sqrt(w_N[keep_N])
    return Efficiency(
        np.log(curve.C_N[keep_N]),
        np.log((R_N - fit.R0) / (fit.A - R_N)),
        half_N * steep_N,
        int(np.sum(~keep_N)),
        fit.B,
        -fit.B * float(np.log(fit.C_mid)),
    )


def exponent_at(made: Forecast, A: float) -> tuple[float, float] | None:
    """(B, C_mid) refitted with the ceiling held at A: the only B that two recipes can be compared by.

    None where no curve with that ceiling passes through the points.
    """
    points, fit = made.uncertainty.points, made.fit
    R0 = fit.R0
    if A <= max(R0, float(np.quantile(points.R_N, 0.5))):
        return None
    x_N, root_N = log_compute(points.C_N), np.sqrt(points.w_N / points.w_N.mean())

    def residuals(theta: Floats) -> Floats:
        return root_N * (R0 + (A - R0) * shape(x_N, theta[0], theta[1])[0] - points.R_N)

    found = least_squares(residuals, np.log([fit.C_mid, fit.B]))
    u, lnB = found.x
    return (float(np.exp(lnB)), float(np.exp(u))) if found.success else None


# ---- why one is faster ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """To one pass rate: compute of a and b, split as updates x compute per update.

    ratio = C_b / C_a = updates_ratio x per_update_ratio; all above 1 when a is the faster.
    """

    target: float
    C_a: float
    C_b: float
    updates_a: float
    updates_b: float

    @property
    def ratio(self) -> float:
        return self.C_b / self.C_a

    @property
    def updates_ratio(self) -> float:
        return self.updates_b / self.updates_a

    @property
    def per_update_ratio(self) -> float:
        return self.ratio / self.updates_ratio


def speed(a: Forecast, b: Forecast, target: float | None = None) -> Speed | None:
    """Compute and updates of two runs to the same pass rate.

    Args:
        target: pass rate; None takes the one at 80 % of the smaller gain.

    None where a run has no updates on record, or never reaches the target.
    """
    if a.curve.version_N is None or b.curve.version_N is None:
        return None
    R0 = max(a.fit.R0, b.fit.R0)
    goal = target if target is not None else R0 + 0.8 * (min(a.fit.A, b.fit.A) - R0)
    one, other = _reached(a, goal), _reached(b, goal)
    if one is None or other is None:
        return None
    return Speed(goal, one[0], other[0], one[1], other[1])


def _reached(made: Forecast, target: float) -> tuple[float, float] | None:
    """(C, updates) at which a fit reaches a pass rate, inside its points."""
    fit = made.fit
    if not fit.R0 < target < fit.A or made.curve.version_N is None:
        return None
    C = fit.compute_to_share((target - fit.R0) / (fit.A - fit.R0))
    if C > made.last_C:
        return None
    C_N = np.append(0.0, made.curve.C_N)
    return C, float(np.interp(C, C_N, np.append(0, made.curve.version_N)))
