"""The scaling law of one run: a sigmoid of held-out pass rate against compute, and its fit.

    R(C) = R0 + (A - R0) s(C),   s(C) = 1 / (1 + (C_mid / C)^B)

A, B and C_mid lie on a ridge: many triples draw almost the same curve through the points one has.
`rmse` says how well the curve meets the points, never how well the parameters are known.

Given (C_mid, B) the curve is a straight line in s, so A (and R0) follow in closed form. The
relative grid therefore searches two numbers only, u = ln C_mid and ln B, and Newton steps on the
same two polish its best cells. Numpy alone: a fit must not cost the import of an optimiser.

Axis letters: N points, K values of C_mid, J values of B, M values of A, S starts or front runners.
Longer than most files here: the search serves `fit_sigmoid` alone, and both grids share its parts.
Source of the law and of the paper's grid: arXiv 2510.13786 (ScaleRL).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError

Grid = Literal["relative", "paper", "paper-drawn"]
Real = float | int  # spelt out: checked at run time, an int is no float
Numbers = Real | Sequence[Real] | NDArray[Any]
Floats = NDArray[np.float64]
_Found = tuple[float, float, float, float, bool]  # R0, A, B, C_mid, at_edge

MIN_POINTS = 4
MIN_GAIN = 1e-6  # A - R0 is at least this: below it the curve is flat and B, C_mid mean nothing
B_BOUNDS = (0.2, 10.0)  # published exponents lie in 1.2 .. 5.0
# C_mid may lie this far outside the positive compute of the points. A knee to the right has not
# been seen and is a guess. On simulated early windows (15 to 40 points, sd 0.01, last C half of
# C_mid) a reach of 2 gave the smallest error of A: a longer one sends A to 1 more often, a shorter
# one holds the forecast down.
REACH_LEFT, REACH_RIGHT = 4.0, 2.0
PAPER_A_M = np.linspace(0.450, 0.800, 71)
PAPER_C_MID_K = np.linspace(100.0, 40_000.0, 100)
# The published C_mid lie on these two lines, not on the one that the paper's text states.
DRAWN_C_MID_K = np.unique(
    np.concatenate([np.linspace(100.0, 4_000.0, 100), np.linspace(0.0, 12_000.0, 100)[1:]])
)
# Stands for ln 0: s underflows to exactly 0 for every B allowed, and 0 * LN_ZERO is 0, not NaN.
LN_ZERO = -1e6
TINY = np.finfo(np.float64).tiny  # keeps 0 / 0 at 0


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
            point then weighs by its binomial precision n k / (R (1 - R)); None weighs all alike.

    Raises:
        FitError: on input that no curve can be fitted to.
    """
    C_N, R_N = _points(C, R)
    w_N, keep_N = _weights(R_N, n, k), _inside(C_N, window)
    C_N, R_N, w_N = C_N[keep_N], R_N[keep_N], w_N[keep_N]
    _check_enough(C_N, R_N, R0, len(keep_N))
    with np.errstate(divide="ignore"):
        x_N = np.maximum(np.log(C_N), LN_ZERO)
    if grid is None or grid == "relative":
        R0_hat, A, B, C_mid, at_edge = _fit_relative(x_N, R_N, w_N, R0)
    elif grid not in ("paper", "paper-drawn"):
        raise FitError(f"grid={grid!r} is none of None, 'relative', 'paper', 'paper-drawn'")
    elif R0 is None:
        raise FitError(f"grid={grid!r} searches A, B and C_mid only: give R0, or leave grid out")
    else:
        C_mid_K = PAPER_C_MID_K if grid == "paper" else DRAWN_C_MID_K
        R0_hat, A, B, C_mid, at_edge = _fit_paper(x_N, R_N, w_N, R0, C_mid_K)
    residual_N = sigmoid(C_N, R0=R0_hat, A=A, B=B, C_mid=C_mid) - R_N
    return SigmoidFit(
        R0=R0_hat,
        A=A,
        B=B,
        C_mid=C_mid,
        rmse=float(np.sqrt(np.mean(residual_N**2))),
        n=len(C_N),
        R0_fixed=R0 is not None,
        grid=grid or "relative",
        at_edge=at_edge,
    )


def fit_curve(
    points: Sequence[tuple[float, float]],
    *,
    R0: Real | None = None,
    window: tuple[Real, Real] | None = None,
    grid: Grid | None = None,
) -> SigmoidFit:
    """`fit_sigmoid` on points (C, R), with R0 read off the evaluation before any compute, if there is one.

    The window does not apply to it: that chooses the points to fit. Measured, R0 is not free to trade off
    against B; left free it bends a forecast from an early window.
    """
    measured = [R for C, R in points if C == 0.0]
    if R0 is None and measured:
        R0 = sum(measured) / len(measured)
    kept = [(C, R) for C, R in points if C > 0.0]
    return fit_sigmoid([C for C, _ in kept], [R for _, R in kept], R0=R0, window=window, grid=grid)


# ---- what goes in --------------------------------------------------------------------------------


def _points(C: Numbers, R: Numbers) -> tuple[Floats, Floats]:
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


def _weights(R_N: Floats, n: Numbers | None, k: Numbers | None) -> Floats:
    """Binomial precision of each pass rate, up to a constant; ones when n and k are None.

    (R m + 1) / (m + 2), m = n k, stands for R inside the variance: 0 of m passes is weak evidence
    that the rate is near 0, not proof, and must not weigh infinitely.
    """
    if n is None and k is None:
        return np.ones(len(R_N))
    if n is None or k is None:
        raise FitError(f"n = {n}, k = {k}: give prompts and completions per prompt, or neither")
    m_N = np.asarray(n, dtype=np.float64) * np.asarray(k, dtype=np.float64)
    if m_N.shape not in ((), R_N.shape):
        raise FitError(f"n k has shape {m_N.shape}: give one number, or one per point ({len(R_N)})")
    if not np.all((m_N >= 1.0) & np.isfinite(m_N)):
        raise FitError(f"n k = {m_N.min()}: a pass rate needs completions; drop the point")
    p_N = (R_N * m_N + 1.0) / (m_N + 2.0)
    return m_N / (p_N * (1.0 - p_N))


def _inside(C_N: Floats, window: tuple[Real, Real] | None) -> NDArray[np.bool_]:
    lo, hi = window or (0.0, np.inf)
    if not lo <= hi:
        raise FitError(f"window = ({lo}, {hi}): the start exceeds the end; inf means no end")
    return (C_N >= lo) & (C_N <= hi)


def _check_enough(C_N: Floats, R_N: Floats, R0: Real | None, given: int) -> None:
    if R0 is not None and not 0.0 <= R0 < 1.0:
        raise FitError(f"R0 = {R0}: a pass rate before RL lies in 0 <= R0 < 1; None fits it")
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


# ---- the search ----------------------------------------------------------------------------------


def _share(C: Numbers, B: Real, C_mid: Real) -> Floats:
    C_N = np.asarray(C, dtype=np.float64)
    if not np.all(C_N >= 0.0):
        raise FitError(f"C = {C}: compute is >= 0")
    with np.errstate(divide="ignore", over="ignore"):  # ln 0 and exp(large) give the right limits
        return np.asarray(1.0 / (1.0 + np.exp(-B * (np.log(C_N) - np.log(C_mid)))))


def _shape(x_N: Floats, u: Floats, lnB: Floats | np.float64) -> tuple[Floats, Floats, Floats]:
    """(s, ds/du, ds/dlnB) at x = ln C; u and lnB broadcast against x_N."""
    z = np.exp(lnB) * (x_N - u)
    s = 1.0 / (1.0 + np.exp(-z))
    slope = s * (1.0 - s)
    return s, -np.exp(lnB) * slope, z * slope


@dataclass(frozen=True)
class _Line:
    """Least-squares line y = a + g s for many shapes s at once: a >= 0, g >= MIN_GAIN, a + g <= 1.

    R0 given: a = R0. Free: a convex parabola over a triangle, so the minimum is the unconstrained
    one when feasible, else the best of those along the three edges.
    """

    y_N: Floats
    w_N: Floats  # sums to 1
    R0: Real | None

    def solve(self, s: Floats) -> tuple[Floats, Floats, Floats]:
        """(a, g, sse), one per row of s[..., N]; sse from moments, so to 1e-16 absolute only."""
        s1, ss, sy = s @ self.w_N, (s * s) @ self.w_N, s @ (self.w_N * self.y_N)
        y1, yy = self.w_N @ self.y_N, self.w_N @ self.y_N**2

        def sse(a: Floats, g: Floats) -> Floats:
            return yy - 2 * a * y1 - 2 * g * sy + a * a + 2 * a * g * s1 + g * g * ss

        if self.R0 is not None:
            a = np.full_like(s1, self.R0)
            g = np.clip((sy - a * s1) / np.maximum(ss, TINY), MIN_GAIN, 1.0 - self.R0)
            return a, g, sse(a, g)
        g = (sy - s1 * y1) / np.maximum(ss - s1 * s1, TINY)
        a = y1 - g * s1
        inside = (g >= MIN_GAIN) & (a >= 0.0) & (a + g <= 1.0)
        g_low = np.clip(sy / np.maximum(ss, TINY), MIN_GAIN, 1.0)  # edge a = 0: y = g s
        # Edge a + g = 1: 1 - y = g (1 - s).
        g_top = (1 - y1 - s1 + sy) / np.maximum(1 - 2 * s1 + ss, TINY)
        g_top = np.clip(g_top, MIN_GAIN, 1.0)
        g_flat = np.full_like(g, MIN_GAIN)
        a_flat = np.clip(y1 - MIN_GAIN * s1, 0.0, 1.0 - MIN_GAIN)
        a_4 = np.stack([a, np.zeros_like(g), 1.0 - g_top, a_flat])
        g_4 = np.stack([g, g_low, g_top, g_flat])
        sse_4 = sse(a_4, g_4)
        sse_4[0] = np.where(inside, -np.inf, np.inf)
        best = np.argmin(sse_4, axis=0)[None]
        a, g = np.take_along_axis(a_4, best, 0)[0], np.take_along_axis(g_4, best, 0)[0]
        return a, g, sse(a, g)

    def slope(self, x_N: Floats, theta_S2: Floats) -> tuple[Floats, Floats]:
        """(sse, d sse / d theta) at theta = (ln C_mid, ln B), sse from residuals.

        The gradient is exact: at the best line, moving the line changes nothing to first order.
        """
        s, ds_du, ds_dlnB = _shape(x_N, theta_S2[..., :1], theta_S2[..., 1:])
        a, g, _ = self.solve(s)
        r = a[..., None] + g[..., None] * s - self.y_N
        wr = 2.0 * g[..., None] * self.w_N * r
        grad = np.stack([(wr * ds_du).sum(-1), (wr * ds_dlnB).sum(-1)], axis=-1)
        return (r * r) @ self.w_N, grad


def _fit_relative(x_N: Floats, R_N: Floats, w_N: Floats, R0: Real | None) -> _Found:
    """Best cells of a grid over (ln C_mid, ln B), then Newton from them."""
    seen_N = x_N[x_N > LN_ZERO]  # the limits of C_mid move with the points: no unit enters
    low = np.array([seen_N.min() - np.log(REACH_LEFT), np.log(B_BOUNDS[0])])
    high = np.array([seen_N.max() + np.log(REACH_RIGHT), np.log(B_BOUNDS[1])])
    line = _Line(R_N, w_N / w_N.sum(), R0)
    u_K, lnB_J = np.linspace(low[0], high[0], 40), np.linspace(low[1], high[1], 24)
    with np.errstate(over="ignore"):
        sse_JK = np.stack([line.solve(_shape(x_N, u_K[:, None], lnB)[0])[2] for lnB in lnB_J])
        # One start in each third of the exponents: gentle, middling and steep are the basins.
        starts = []
        for rows in np.split(np.arange(len(lnB_J)), 3):
            j, k = np.unravel_index(np.argmin(sse_JK[rows]), (len(rows), len(u_K)))
            starts.append((u_K[k], lnB_J[rows[j]]))
        theta_S2 = _newton(line, x_N, np.array(starts), low, high)
        theta = theta_S2[np.argmin(line.slope(x_N, theta_S2)[0])]
        a, g, _ = line.solve(_shape(x_N, theta[:1], theta[1:])[0][None])
    R0_hat, A = float(a[0]), min(float(a[0] + g[0]), 1.0)
    at_limit = np.any((theta - low < 1e-6) | (high - theta < 1e-6))
    at_edge = bool(at_limit or A > 1.0 - 1e-9 or A - R0_hat < 2 * MIN_GAIN)
    return R0_hat, A, float(np.exp(theta[1])), float(np.exp(theta[0])), at_edge


def _newton(line: _Line, x_N: Floats, theta_S2: Floats, low: Floats, high: Floats) -> Floats:
    """Damped Newton inside the box low..high, all starts at once; no start ends above itself.

    Second derivatives are differences of the exact gradient. Gauss-Newton would drop the part with
    the residuals, and then crawl along the ridge.
    """
    h = 1e-6
    nudge_32 = np.array([[0.0, 0.0], [h, 0.0], [0.0, h]])
    damping_S = np.zeros(len(theta_S2))
    for _ in range(60):
        sse_S3, grad_S32 = line.slope(x_N, theta_S2[:, None] + nudge_32)
        sse_S, grad_S2 = sse_S3[:, 0], grad_S32[:, 0]
        hess_S22 = (grad_S32[:, 1:] - grad_S32[:, :1]) / h
        hess_S22 = (hess_S22 + hess_S22.transpose(0, 2, 1)) / 2
        held_S2 = ((theta_S2 <= low) & (grad_S2 > 0)) | ((theta_S2 >= high) & (grad_S2 < 0))
        hess_S22 = np.where(held_S2[:, :, None] | held_S2[:, None, :], 0.0, hess_S22)
        grad_S2 = np.where(held_S2, 0.0, grad_S2)
        lam_S2, V_S22 = np.linalg.eigh(hess_S22)
        lam_S2 = np.abs(lam_S2)  # a saddle is left downhill
        top_S1 = lam_S2.max(axis=1, keepdims=True) + TINY
        lam_S2 = np.maximum(lam_S2, 1e-12 * top_S1) + damping_S[:, None] * top_S1
        step_S2 = -np.einsum("sij,sj,skj,sk->si", V_S22, 1.0 / lam_S2, V_S22, grad_S2)
        step_S2 /= np.maximum(1.0, np.abs(step_S2).max(axis=1, keepdims=True))
        next_S2 = np.clip(theta_S2 + step_S2, low, high)
        settled_S = np.abs(next_S2 - theta_S2).max(axis=1) < 1e-12
        # Near the minimum sse is flat to its last bit while the gradient still points: allow that.
        better_S = line.slope(x_N, next_S2)[0] <= sse_S * (1.0 + 1e-12)
        theta_S2 = np.where(better_S[:, None], next_S2, theta_S2)
        eased_S = np.where(damping_S > 1e-6, damping_S / 10, 0.0)
        damping_S = np.where(better_S, eased_S, np.maximum(10 * damping_S, 1e-3))
        if np.all(settled_S | (damping_S > 1e9)):
            break
    return theta_S2


def _fit_paper(x_N: Floats, R_N: Floats, w_N: Floats, R0: Real, C_mid_K: Floats) -> _Found:
    """Least squares over the cells (A, C_mid), B by least squares in each.

    The cells of one C_mid share s, so two moments of s on a fine line of B give sse at every A, and
    a parabola through the best three its minimum over B. Only the front runners need more.
    """
    A_M = PAPER_A_M[PAPER_A_M > R0 + MIN_GAIN]
    if not len(A_M):
        raise FitError(f"R0 = {R0}: the paper's grid ends at A = 0.800; leave grid out")
    low, high = np.log(B_BOUNDS)
    lnB_J, u_K = np.linspace(low, high, 121), np.log(C_mid_K)
    y_N, w_N, gain_M = R_N - R0, w_N / w_N.sum(), A_M - R0
    with np.errstate(over="ignore"):
        sse_MJK = np.empty((len(A_M), len(lnB_J), len(u_K)))  # less the constant sum of w y^2
        for j, lnB in enumerate(lnB_J):
            s_KN = _shape(x_N, u_K[:, None], lnB)[0]
            sy_K, ss_K = s_KN @ (w_N * y_N), (s_KN * s_KN) @ w_N
            sse_MJK[:, j] = gain_M[:, None] * (gain_M[:, None] * ss_K - 2.0 * sy_K)
        j_MK = np.clip(np.argmin(sse_MJK, axis=1), 1, len(lnB_J) - 2)
        left, mid, right = (
            np.take_along_axis(sse_MJK, j_MK[:, None] + d, 1)[:, 0] for d in (-1, 0, 1)
        )
        bend = np.maximum(left - 2.0 * mid + right, TINY)
        shift_MK = np.clip((left - right) / (2.0 * bend), -1.0, 1.0)
        guess_MK = mid + shift_MK * (right - left) / 2.0 + shift_MK**2 * bend / 2.0
        m_S, k_S = np.unravel_index(np.argsort(guess_MK, axis=None)[:64], guess_MK.shape)
        lnB_S = lnB_J[j_MK[m_S, k_S]] + shift_MK[m_S, k_S] * (lnB_J[1] - lnB_J[0])
        gain_S1 = gain_M[m_S, None]
        for _ in range(8):  # Gauss-Newton
            s_SN, _, ds_SN = _shape(x_N, u_K[k_S, None], lnB_S[:, None])
            r_SN, J_SN = gain_S1 * s_SN - y_N, gain_S1 * ds_SN
            step_S = ((r_SN * J_SN) @ w_N) / np.maximum((J_SN * J_SN) @ w_N, TINY)
            lnB_S = np.clip(lnB_S - np.clip(step_S, -0.1, 0.1), low, high)
        r_SN = gain_S1 * _shape(x_N, u_K[k_S, None], lnB_S[:, None])[0] - y_N
    best = np.argmin((r_SN * r_SN) @ w_N)
    m, k, lnB = m_S[best], k_S[best], lnB_S[best]
    B_inside = low + 1e-6 < lnB < high - 1e-6
    at_edge = m in (0, len(A_M) - 1) or k in (0, len(u_K) - 1) or not B_inside
    return float(R0), float(A_M[m]), float(np.exp(lnB)), float(C_mid_K[k]), bool(at_edge)
