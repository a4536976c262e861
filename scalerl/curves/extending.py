"""What more compute would tell and what it is worth: drift, the budget that pins a ceiling, the price of a gain."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from scalerl.curves.curve import Curve
from scalerl.curves.region import Noise
from scalerl.curves.search import log_compute, shape
from scalerl.curves.uncertainty import Interval, Uncertainty
from scalerl.fit import FitError, Floats, Grid, Points, SigmoidFit, fit_points
from scalerl.forecast import FEWEST_POINTS, Forecast

MARGIN = 0.02
CREEP = 0.002  # a step of A that is more than the last digit's


# ---- how it changes as the window grows ----------------------------------------------------------


@dataclass(frozen=True)
class Drift:
    """Fits on growing windows. One row: end_C 50_000, n 20, A 0.635 [0.620, 0.655], B 1.9, C_mid 10_200, seen True.

    A_lo, A_hi: A's profile interval, before the floor. seen: whether C_mid lay well inside the points.
    """

    end_C: float
    n: int
    A: float
    B: float
    C_mid: float
    A_lo: float
    A_hi: float
    seen: bool

    @property
    def half(self) -> float:
        return (self.A_hi - self.A_lo) / 2.0


def window_drift(
    curve: Curve, ends: Sequence[float] | None = None, *, grid: Grid | None = None
) -> list[Drift]:
    """Refit on the points up to each end; a ceiling that still moves is not known yet.

    Args:
        ends: compute; None takes 0.3, 0.45, 0.6, 0.8 and all of the points, at least 8 of them.
    """
    rows = []
    for end in _ends(curve) if ends is None else ends:
        part = curve.within((0.0, end))
        try:
            points = part.points()
        except FitError:
            continue
        fit = fit_points(points, grid)
        A = Uncertainty(points, fit, curve.R0_se).A()
        assert A.lo is not None and A.hi is not None
        seen = fit.knee_seen(part.last_C)
        row = (float(end), fit.n, fit.A, fit.B, fit.C_mid, A.lo, A.hi, seen)
        rows.append(Drift(*row))
    return rows


def creeping(rows: Sequence[Drift]) -> bool:
    """Whether the ceiling rose by more than CREEP at each of the last three windows that saw the knee."""
    seen = [row.A for row in rows if row.seen][-4:]
    return len(seen) == 4 and bool(np.all(np.diff(seen) > CREEP))


def _ends(curve: Curve) -> list[float]:
    n = len(curve.C_N)
    counts = sorted({max(FEWEST_POINTS, round(n * part)) for part in (0.3, 0.45, 0.6, 0.8, 1.0)})
    return [float(curve.C_N[min(count, n) - 1]) for count in counts if count <= n]


@dataclass(frozen=True)
class Budget:
    """Compute at which A is known to a margin. C None: not within twenty times the points.

    seen: True when the points have reached it, False when it is extrapolated.
    """

    C: float | None
    seen: bool


def smallest_budget(made: Forecast, margin: float = MARGIN) -> Budget:
    """The smallest compute at which A's profile interval is within +-margin, before the floor.

    Behind the points it is read off growing windows; ahead of them the fit is taken for the truth
    and evaluations go on at their present spacing.
    """
    curve, n = made.curve, len(made.curve.C_N)
    ends = curve.C_N[::-1][: max(n - FEWEST_POINTS + 1, 0) : max(1, n // 30)][
        ::-1
    ].tolist()  # and the last
    known = None
    for row in reversed(window_drift(curve, ends)):  # it must stay known to the last point
        if not (row.seen and row.half <= margin):
            break
        known = row.end_C
    if known is not None:
        return Budget(known, True)
    return Budget(_budget_ahead(made, margin), False)


def _budget_ahead(made: Forecast, margin: float) -> float | None:
    C_N, noise = made.curve.C_N, made.uncertainty.noise
    late = C_N[len(C_N) // 2 :]
    spacing = (late[-1] - late[0]) / max(len(late) - 1, 1)
    if spacing <= 0.0:
        return None
    most = int(min(20 * C_N[-1] / spacing, 20_000))
    ahead_M = C_N[-1] + spacing * np.arange(1, most + 1)
    halves = ceiling_half_widths(made.fit, made.uncertainty.points, noise, ahead_M)
    enough = np.flatnonzero((halves <= margin) & (ahead_M >= 2 * made.fit.C_mid))
    return float(ahead_M[enough[0]]) if len(enough) else None


def ceiling_half_widths(fit: SigmoidFit, points: Points, noise: Noise, ahead_M: Floats) -> Floats:
    """Half width of A's interval once the evaluations up to each of `ahead_M` are in: linearised."""
    C_N = np.append(points.C_N, ahead_M)
    w_N = points.w_N / points.w_N.mean()
    w_N = np.append(w_N, np.full(len(ahead_M), w_N[-1]))
    s_N, ds_du, ds_dlnB = shape(log_compute(C_N), np.log(fit.C_mid), np.log(fit.B))
    g = fit.A - fit.R0
    columns = [s_N, g * ds_du, g * ds_dlnB] + ([] if fit.R0_fixed else [1.0 - s_N])
    J_NP = np.stack(columns, axis=1)
    info_NPP = np.cumsum(w_N[:, None, None] * J_NP[:, :, None] * J_NP[:, None, :], axis=0)
    info_MPP = info_NPP[len(points.C_N) :]
    least = 1e-12 * np.trace(info_MPP, axis1=1, axis2=2)[:, None, None] + 1e-30
    variance_M = np.linalg.inv(info_MPP + least * np.eye(J_NP.shape[1]))[:, 0, 0]
    return noise.t() * noise.sd * np.sqrt(noise.inflation * np.maximum(variance_M, 0.0))


# ---- what is worth doing -------------------------------------------------------------------------


@dataclass(frozen=True)
class Worth:
    """What extending a run to C buys. gain: pass rate; cost: price x hours; per_point: cost of 0.01.

    per_point None: the expected gain is not above 0.
    """

    C: float
    hours: float
    cost: float
    gain: Interval
    per_point: float | None


def worth_of_extending(made: Forecast, C: float, price: float, *, seed: int = 0) -> Worth:
    """The gain of going on to C, with its interval, and its price at so much per unit of compute.

    The gain is a difference along one run, so what another run would do does not enter.

    Raises:
        FitError: C is not beyond the points, or the price is negative.
    """
    if not (np.isfinite(C) and made.last_C < C):
        raise FitError(f"C = {C:g}: the curve already reaches {made.last_C:g}; extend beyond it")
    if not (np.isfinite(price) and price >= 0.0):
        raise FitError(f"price = {price}: a price per unit of compute is 0 or more")
    drawn = made.uncertainty.draws(2_000, seed)
    gain_D = drawn.rates(C) - drawn.rates(made.last_C)
    value = float(made.fit.predict(C) - made.fit.predict(made.last_C))
    gain = Interval.of_draws(value, gain_D)
    cost = (C - made.last_C) * price
    return Worth(C, C - made.last_C, cost, gain, cost / value * 0.01 if value > 1e-6 else None)


@dataclass(frozen=True)
class Effort:
    """What it takes to tell two recipes apart. seeds: of each; C: compute of one run; total of all."""

    seeds: int
    C: float
    total: float


def effort_to_detect(
    difference: float, run_sd: float, C: float, *, power: float = 0.8, level: float = 0.95
) -> Effort:
    """Seeds of each of two recipes, run to C, that show a difference of A with this power.

        n >= 2 (t_level + t_power)^2 sd^2 / difference^2,   t with 2 (n - 1) degrees of freedom

    Raises:
        FitError: a difference, power, level or run_sd out of range.
    """
    if not 0.0 <= run_sd < np.inf:
        raise FitError(f"run_sd = {run_sd}: a standard deviation is 0 or more")
    if not (0.0 < difference < 1.0 and 0.0 < power < 1.0 and 0.0 < level < 1.0):
        raise FitError(
            f"difference = {difference}, power = {power}, level = {level}: each lies in 0 .. 1"
        )

    def asked(dof: float) -> float:
        t = stdtrit(dof, 0.5 + level / 2) + stdtrit(dof, power)
        return 2.0 * (t * run_sd / difference) ** 2

    n = max(2, int(np.ceil(asked(1e9))))  # the least that t ever asks
    while n < asked(2 * (n - 1)):
        n += 1
    return Effort(n, C, 2 * n * C)
