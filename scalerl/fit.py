"""The scaling law of one run: a sigmoid of held-out pass rate against compute, and its fit.

    R(C) = R0 + (A - R0) s(C),   s(C) = 1 / (1 + (C_mid / C)^B)

A, B and C_mid lie on a ridge: many triples draw almost the same curve through the points one has.
`rmse` says how well the curve meets the points, never how well the parameters are known.

The search lies in `curves/search.py`, intervals in `curves/uncertainty.py`, and what to make of both in
`forecast.py`.
Needs numpy alone, and imports in no time: the screen that follows a run fits at every evaluation.

Source of the law and of the paper's grid: arXiv 2510.13786 (ScaleRL).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.search import (
    DRAWN_C_MID_K,
    MIN_GAIN,
    PAPER_A_M,
    PAPER_C_MID_K,
    Floats,
    Real,
    fit_paper,
    fit_relative,
    log_compute,
)
from scalerl.errors import InputError

Grid = Literal["relative", "paper", "paper-drawn"]
Numbers = Real | Sequence[Real] | NDArray[Any]

MIN_POINTS = 5
MOST_PRECISE = 30.0


class FitError(InputError, ValueError):
    """Points, window or grid that no curve can be fitted to: names the value and the way out."""


def sigmoid(C: Numbers, *, R0: Real, A: Real, B: Real, C_mid: Real) -> Floats:
    """Pass rate after compute C.

        R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)

    C_mid is the compute at half of the *gain*, R = (R0 + A) / 2, not at half of the ceiling. Exact
    at both ends (R(0) = R0, R(1e300) = A), non-decreasing in between.

    Args:
        C: compute >= 0, in the unit of C_mid (GPU-hours); inf gives A. One number gives an array of
            shape ().
        R0, A: pass rates before RL and as C grows without bound, R0 <= A.
        B: exponent > 0.
        C_mid: compute > 0.
    """
    s = _share(C, B, C_mid)
    return np.where(s == 1.0, A, np.minimum(R0 + (A - R0) * s, A))


@dataclass(frozen=True)
class SigmoidFit:
    """A fitted curve. One row: R0=0.4, A=0.645, B=1.67, C_mid=10_788.0, rmse=0.004, n=31,
    R0_fixed=True, grid="paper-drawn", at_edge=False.

    R0, A: pass rates, 0 <= R0 < A <= 1.
    B: exponent, 1. Left of C_mid a larger B is *lower*: compare `compute_to_share`, not B.
    C_mid: compute at half of the gain, in the unit of the points.
    rmse: root of the plain mean square residual over the points used, weighted fit or not; no
        degrees of freedom are taken off.
    n: points used, those inside the window (not the prompts that `fit_sigmoid` calls n).
    R0_fixed: True when R0 was given.
    grid: the grid searched.
    at_edge: True when A, B or C_mid stopped at a limit of the search: the limit chose the value,
        not the points, and the forecast is not to be believed. (R0 = 0 is a possible truth and
        does not count.) False does not promise a good forecast.
    """

    R0: float
    A: float
    B: float
    C_mid: float
    rmse: float
    n: int
    R0_fixed: bool
    grid: Grid
    at_edge: bool

    @property
    def parameters(self) -> int:
        """How many numbers were fitted."""
        return 3 if self.R0_fixed else 4

    def predict(self, C: Numbers) -> Floats:
        """R(C), a pass rate; C as in `sigmoid`."""
        return sigmoid(C, R0=self.R0, A=self.A, B=self.B, C_mid=self.C_mid)

    def compute_to_share(self, q: Real) -> float:
        """Compute at which the share q of the gain A - R0 is reached, 0 < q < 1.

            C_q = C_mid (q / (1 - q))^(1 / B)

        A share of this curve's own gain: at one q two curves may stand at different pass rates.
        """
        if not 0.0 < q < 1.0:
            raise FitError(
                f"q = {q} must lie strictly in 0..1: the ceiling itself is never reached"
            )
        return self.C_mid * (q / (1.0 - q)) ** (1.0 / self.B)

    def knee_seen(self, last_C: Real) -> bool:
        """Whether the points reach twice C_mid, and no limit of the search chose the numbers.

        Without it the ceiling, and any forecast, is a guess, however small the rmse.
        """
        return not self.at_edge and last_C >= 2.0 * self.C_mid

    def marginal_gain(self, C: Numbers) -> Floats:
        """dR/dC, pass rate per unit of compute.

            dR/dC = B (R - R0) (A - R) / ((A - R0) C)

        At C = 0 it is the limit: 0 for B > 1, (A - R0) / C_mid for B = 1, infinite for B < 1.
        """
        C_N = np.asarray(C, dtype=np.float64)
        s = _share(C_N, self.B, self.C_mid)
        at_zero = 0.0 if self.B > 1.0 else 1.0 / self.C_mid if self.B == 1.0 else np.inf
        start = np.full(C_N.shape, at_zero)
        per_C = np.divide(self.B * s * (1.0 - s), C_N, out=start, where=C_N > 0.0)
        return np.asarray((self.A - self.R0) * per_C)


def fit_sigmoid(
    C: Numbers,
    R: Numbers,
    *,
    R0: Real | None = None,
    window: tuple[Real, Real] | None = None,
    grid: Grid | None = None,
    n: Numbers | None = None,
    k: Numbers | None = None,
    se: Numbers | None = None,
) -> SigmoidFit:
    """Least-squares sigmoid through evaluation points, in any order.

        minimise  sum_i w_i (R(C_i) - R_i)^2   over A, B, C_mid (and R0)

    A good fit is not a forecast: while the largest C is below about 2 C_mid the ceiling is a guess,
    whatever the residuals say.

    Args:
        C: compute of each evaluation, >= 0, any unit. To the model a point at C = 0 is R0 itself:
            it pins a free R0, and says nothing when R0 is given.
        R: pass rate of each evaluation, 0..1.
        R0: pass rate before RL, 0 <= R0 < 1; None fits it too.
        window: (lo, hi) keeps the points with lo <= C <= hi; no other point has any influence.
        grid: None or "relative": C_mid from a quarter of the smallest to twice the largest positive
            C, B in [0.2, 10], A <= 1, refined off the grid; the unit of C does not matter.
            "paper": A in {0.450, ..., 0.800}, C_mid one of 100 values in [100, 40000], B by least
            squares. "paper-drawn": C_mid one of the values at which the paper's published ones lie,
            at most 12,000. Both need R0, and C in GPU-hours.
        n, k: prompts, and completions per prompt, behind each R; one number or one per point. A
            point then weighs by its binomial precision n k / (R (1 - R)), for a log that keeps no
            more; completions of one prompt are not independent, so give `se` where it is known.
        se: standard error of each R > 0, from per-prompt pass counts; a point weighs 1 / se^2, and
            none more than 30^2 times the middling one.

    Without n, k and se all points weigh alike.

    Raises:
        FitError: on input that no curve can be fitted to.
    """
    return fit_points(usable_points(C, R, R0=R0, window=window, n=n, k=k, se=se), grid)


@dataclass(frozen=True)
class Points:
    """Checked evaluations in order of compute, inside the window. One row: 50.0, 0.61, 1.0.

    C_N: compute, >= 0. R_N: pass rates. w_N: weights, up to a constant; all ones when none are known.
    R0: the given pass rate before RL, None to fit it.
    """

    C_N: Floats
    R_N: Floats
    w_N: Floats
    R0: Real | None


def usable_points(
    C: Numbers,
    R: Numbers,
    *,
    R0: Real | None = None,
    window: tuple[Real, Real] | None = None,
    n: Numbers | None = None,
    k: Numbers | None = None,
    se: Numbers | None = None,
) -> Points:
    """The points of a fit; arguments and errors as in `fit_sigmoid`."""
    C_N, R_N = checked(C, R)
    w_N, keep_N = _weights(R_N, n, k, se), inside(C_N, window)
    C_N, R_N, w_N = C_N[keep_N], R_N[keep_N], w_N[keep_N]
    _check_enough(C_N, R_N, R0, len(keep_N))
    order_N = np.argsort(C_N, kind="stable")
    return Points(C_N[order_N], R_N[order_N], w_N[order_N], R0)


def fit_points(points: Points, grid: Grid | None = None) -> SigmoidFit:
    """`fit_sigmoid` on points that have been checked."""
    x_N = log_compute(points.C_N)
    if grid is None or grid == "relative":
        found = fit_relative(x_N, points.R_N, points.w_N, points.R0)
    elif grid not in ("paper", "paper-drawn"):
        raise FitError(f"grid={grid!r} is none of None, 'relative', 'paper', 'paper-drawn'")
    elif points.R0 is None:
        raise FitError(f"grid={grid!r} searches A, B and C_mid only: give R0, or leave grid out")
    elif points.R0 >= PAPER_A_M[-1] - MIN_GAIN:
        raise FitError(f"R0 = {points.R0}: the paper's grid ends at A = 0.800; leave grid out")
    else:
        C_mid_K = PAPER_C_MID_K if grid == "paper" else DRAWN_C_MID_K
        found = fit_paper(x_N, points.R_N, points.w_N, points.R0, C_mid_K)
    curve = {"R0": found.R0, "A": found.A, "B": found.B, "C_mid": found.C_mid}
    residual_N = sigmoid(points.C_N, **curve) - points.R_N
    return SigmoidFit(
        **curve,
        rmse=float(np.sqrt(np.mean(residual_N**2))),
        n=len(points.C_N),
        R0_fixed=points.R0 is not None,
        grid=grid or "relative",
        at_edge=found.at_edge,
    )


# ---- what goes in --------------------------------------------------------------------------------


def checked(C: Numbers, R: Numbers) -> tuple[Floats, Floats]:
    """Compute and pass rates as arrays, every one of them possible.

    Raises:
        FitError: two lengths, or a compute or pass rate that is none.
    """
    C_N, R_N = np.asarray(C, dtype=np.float64), np.asarray(R, dtype=np.float64)
    if C_N.ndim != 1 or C_N.shape != R_N.shape:
        raise FitError(f"C has shape {C_N.shape}, R {R_N.shape}: give two lists of one length")
    for name, values, high, way_out in (
        ("C", C_N, np.finfo(np.float64).max, "compute is finite and >= 0; drop the point"),
        ("R", R_N, 1.0, "a pass rate lies in 0..1; divide per cent by 100, drop empty evaluations"),
    ):
        bad = np.flatnonzero(~((values >= 0.0) & (values <= high)))  # also True for NaN
        if len(bad):
            raise FitError(f"{name}[{bad[0]}] = {values[bad[0]]}: {way_out}")
    return C_N, R_N


def _weights(
    R_N: Floats, n: Numbers | None, k: Numbers | None, se: Numbers | None = None
) -> Floats:
    """Precision of each pass rate, up to a constant: 1 / se^2, else binomial, else ones."""
    if se is not None:
        return _precisions(R_N, n, k, se)
    if n is None and k is None:
        return np.ones(len(R_N))
    if n is None or k is None:
        raise FitError(f"n = {n}, k = {k}: give prompts and completions per prompt, or neither")
    m_N = np.asarray(n, dtype=np.float64) * np.asarray(k, dtype=np.float64)
    if m_N.shape not in ((), R_N.shape):
        raise FitError(f"n k has shape {m_N.shape}: give one number, or one per point ({len(R_N)})")
    if not np.all((m_N >= 1.0) & np.isfinite(m_N)):
        raise FitError(f"n k = {m_N.min()}: a pass rate needs completions; drop the point")
    return binomial_precision(R_N, m_N)


def binomial_precision(R_N: Floats, m_N: Floats) -> Floats:
    """1 / se^2 of a pass rate over m completions.

    (R m + 1) / (m + 2) stands for R inside the variance: 0 of m passes is weak evidence that the
    rate is near 0, not proof, and must not weigh infinitely.
    """
    p_N = (R_N * m_N + 1.0) / (m_N + 2.0)
    return m_N / (p_N * (1.0 - p_N))


def _precisions(R_N: Floats, n: Numbers | None, k: Numbers | None, se: Numbers) -> Floats:
    se_N = np.asarray(se, dtype=np.float64)
    if n is not None or k is not None:
        raise FitError("se and n, k both say how well a point is known: give one of them")
    if se_N.shape not in ((), R_N.shape):
        raise FitError(f"se has shape {se_N.shape}: give one number, or one per point ({len(R_N)})")
    if not np.all((se_N > 0.0) & np.isfinite(se_N)):
        raise FitError(f"se = {se_N.min()}: a standard error is > 0; leave se out if it is unknown")
    # One point may not rule alone: none counts as better known than MOST_PRECISE times the middling one.
    if se_N.size:
        se_N = np.maximum(se_N, np.median(se_N) / MOST_PRECISE)
    return np.broadcast_to(1.0 / se_N**2, R_N.shape)


def inside(C_N: Floats, window: tuple[Real, Real] | None) -> NDArray[np.bool_]:
    """Which points a window keeps, both ends included."""
    lo, hi = window or (0.0, np.inf)
    if not lo <= hi:
        raise FitError(f"window = ({lo}, {hi}): the start exceeds the end; inf means no end")
    return (C_N >= lo) & (C_N <= hi)


def _check_enough(C_N: Floats, R_N: Floats, R0: Real | None, given: int) -> None:
    if R0 is not None and not 0.0 <= R0 < 1.0:
        raise FitError(
            f"R0 = {R0}: a pass rate before RL lies in 0 <= R0 < 1; leave it out to have it fitted"
        )
    if len(C_N) < MIN_POINTS:
        raise FitError(
            f"{len(C_N)} of {given} points are in the window, a fit needs {MIN_POINTS}: "
            "evaluate more or widen the window"
        )
    # With R0 given, a point at C = 0 carries no information on A, B and C_mid.
    useful, needed = (C_N, 4) if R0 is None else (C_N[C_N > 0.0], 3)
    if len(np.unique(useful)) < needed:
        raise FitError(
            f"C has {len(np.unique(useful))} distinct values of use to {needed} parameters: "
            "evaluate at more values of compute"
        )
    if np.all(R_N == R_N[0]):
        raise FitError(f"R = {R_N[0]} at all {len(R_N)} points has no knee: wait until it moves")


def _share(C: Numbers, B: Real, C_mid: Real) -> Floats:
    C_N = np.asarray(C, dtype=np.float64)
    if not np.all(C_N >= 0.0):
        raise FitError(f"C = {C}: compute is >= 0")
    with np.errstate(divide="ignore", over="ignore"):  # ln 0 and exp(large) give the right limits
        return np.asarray(1.0 / (1.0 + np.exp(-B * (np.log(C_N) - np.log(C_mid)))))
