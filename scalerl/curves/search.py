"""The search behind `fit_sigmoid`: least squares over C_mid and B, the line in between in closed form.

Given (C_mid, B) the curve is a straight line in the share s = 1 / (1 + (C_mid / C)^B), so A (and a
free R0) follow at once. The relative grid therefore searches two numbers only, u = ln C_mid and
ln B, and Newton steps on the same two polish its best cells. Numpy alone: a fit must not cost the
import of an optimiser. Many curves over the same compute are one batch (`fit_many`).

Axis letters: N points, K values of C_mid, J values of B, M values of A or of theta, S starts,
curves or front runners.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Real = float | int  # spelt out: checked at run time, an int is no float
Floats = NDArray[np.float64]

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


class Found(NamedTuple):
    """What a search ends with. at_edge: a limit of the search chose a value, not the points."""

    R0: float
    A: float
    B: float
    C_mid: float
    at_edge: bool


class FoundMany(NamedTuple):
    """S curves, one row each: (0.4, 0.61, 2.0, 2_300.0)."""

    R0_S: Floats
    A_S: Floats
    B_S: Floats
    C_mid_S: Floats

    def rates(self, C: float) -> Floats:
        """R(C) of each, C > 0."""
        return self.rates_along(np.array([C]))[:, 0]

    def rates_along(self, C_M: Floats) -> Floats:
        """R at several C > 0, one row for each curve."""
        u_S1, lnB_S1 = np.log(self.C_mid_S)[:, None], np.log(self.B_S)[:, None]
        s_SM = shape(log_compute(C_M), u_S1, lnB_S1)[0]
        return self.R0_S[:, None] + (self.A_S - self.R0_S)[:, None] * s_SM


def log_compute(C: Any) -> Floats:
    """ln C, with LN_ZERO for C = 0."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(np.asarray(C, dtype=np.float64)), LN_ZERO)


def limits(x_N: Floats) -> tuple[Floats, Floats]:
    """Lowest and highest (ln C_mid, ln B) that a search over points at x = ln C allows.

    They move with the points: no unit of compute enters.
    """
    seen_N = x_N[x_N > LN_ZERO]
    low = np.array([seen_N.min() - np.log(REACH_LEFT), np.log(B_BOUNDS[0])])
    high = np.array([seen_N.max() + np.log(REACH_RIGHT), np.log(B_BOUNDS[1])])
    return low, high


def shape(x_N: Floats, u: Any, lnB: Any) -> tuple[Floats, Floats, Floats]:
    """(s, ds/du, ds/dlnB) at x = ln C; u and lnB broadcast against x_N."""
    z = np.exp(lnB) * (x_N - u)
    with np.errstate(over="ignore"):  # exp(large) gives the right limit, 0
        s = 1.0 / (1.0 + np.exp(-z))
    slope = s * (1.0 - s)
    return s, -np.exp(lnB) * slope, z * slope


@dataclass(frozen=True)
class Line:
    """Least-squares line y = a + g s for many shapes s at once: a >= 0, g >= MIN_GAIN, a + g <= 1.

    R0 given: a = R0. Free: a convex parabola over a triangle, so the minimum is the unconstrained
    one when feasible, else the best of those along the three edges.

    y: [..., N], broadcast against the shapes s[..., N]: one curve, or one per leading axis.
    w_N: weights of the points, summing to 1.
    R0: None, one number, or one per leading axis of y.
    """

    y: Floats
    w_N: Floats
    R0: Real | Floats | None

    def moments(self, s: Floats) -> tuple[Floats, Floats, Floats]:
        """Weighted means of s, s^2 and s y."""
        wy = self.w_N * self.y
        sy = s @ wy if wy.ndim == 1 else np.einsum("...n,...n->...", s, wy)
        return s @ self.w_N, (s * s) @ self.w_N, sy

    def solve(self, s: Floats) -> tuple[Floats, Floats, Floats]:
        """(a, g, sse), one per row of s[..., N]; sse from moments, so to 1e-16 absolute only."""
        s1, ss, sy = self.moments(s)
        y1, yy = self.y @ self.w_N, self.y**2 @ self.w_N

        def sse(a: Floats, g: Floats) -> Floats:
            return yy - 2 * a * y1 - 2 * g * sy + a * a + 2 * a * g * s1 + g * g * ss

        if self.R0 is not None:
            a = np.broadcast_to(np.asarray(self.R0, dtype=np.float64), sy.shape)
            g = np.clip((sy - a * s1) / np.maximum(ss, TINY), MIN_GAIN, 1.0 - a)
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
        a_4 = np.stack([np.where(inside, a, 0.0), np.zeros_like(g), 1.0 - g_top, a_flat])
        g_4 = np.stack([np.where(inside, g, MIN_GAIN), g_low, g_top, g_flat])
        sse_4 = sse(a_4, g_4)
        sse_4[0] = np.where(inside, -np.inf, np.inf)
        best = np.argmin(sse_4, axis=0)[None]
        a, g = np.take_along_axis(a_4, best, 0)[0], np.take_along_axis(g_4, best, 0)[0]
        return a, g, sse(a, g)

    def slope(self, x_N: Floats, theta: Floats) -> tuple[Floats, Floats]:
        """(sse, d sse / d theta) at theta[..., 2] = (ln C_mid, ln B), sse from residuals.

        The gradient is exact: at the best line, moving the line changes nothing to first order.
        """
        s, ds_du, ds_dlnB = shape(x_N, theta[..., :1], theta[..., 1:])
        a, g, _ = self.solve(s)
        r = a[..., None] + g[..., None] * s - self.y
        wr = 2.0 * g[..., None] * self.w_N * r
        grad = np.stack([(wr * ds_du).sum(-1), (wr * ds_dlnB).sum(-1)], axis=-1)
        return (r * r) @ self.w_N, grad


def fit_relative(x_N: Floats, R_N: Floats, w_N: Floats, R0: Real | None) -> Found:
    """Best cells of a grid over (ln C_mid, ln B), then Newton from them."""
    low, high = limits(x_N)
    line = Line(R_N, w_N / w_N.sum(), R0)
    u_K, lnB_J = np.linspace(low[0], high[0], 40), np.linspace(low[1], high[1], 24)
    with np.errstate(over="ignore"):
        sse_JK = np.stack([line.solve(shape(x_N, u_K[:, None], lnB)[0])[2] for lnB in lnB_J])
        # One start in each third of the exponents: gentle, middling and steep are the basins.
        starts = []
        for rows in np.split(np.arange(len(lnB_J)), 3):
            j, k = np.unravel_index(np.argmin(sse_JK[rows]), (len(rows), len(u_K)))
            starts.append((u_K[k], lnB_J[rows[j]]))
        theta_S2 = _newton(line, x_N, np.array(starts), low, high)
        theta = theta_S2[np.argmin(line.slope(x_N, theta_S2)[0])]
        a, g, _ = line.solve(shape(x_N, theta[:1], theta[1:])[0][None])
    R0_hat, A = float(a[0]), min(float(a[0] + g[0]), 1.0)
    at_edge = bool(_at_edge(a, g, theta[None], low, high)[0])
    return Found(R0_hat, A, float(np.exp(theta[1])), float(np.exp(theta[0])), at_edge)


def fit_many(x_N: Floats, R_SN: Floats, w_N: Floats, R0_S: Floats | None) -> FoundMany:
    """S curves measured at the same compute, in one batch: each from its best cell of the grid.

    To 1e-6 in ln C_mid and ln B: for draws around a fit, not for the fit itself.
    """
    low, high = limits(x_N)
    w_N = w_N / w_N.sum()
    u_K, lnB_J = np.linspace(low[0], high[0], 40), np.linspace(low[1], high[1], 24)
    best_S, theta_S2 = np.full(len(R_SN), np.inf), np.empty((len(R_SN), 2))
    over_cells = Line(R_SN[:, None], w_N, None if R0_S is None else R0_S[:, None])
    with np.errstate(over="ignore"):
        for lnB in lnB_J:
            sse_SK = over_cells.solve(shape(x_N, u_K[:, None], lnB)[0])[2]
            k_S = np.argmin(sse_SK, axis=1)
            sse_S = np.take_along_axis(sse_SK, k_S[:, None], 1)[:, 0]
            theta_S2[sse_S < best_S] = np.stack([u_K[k_S], np.full(len(k_S), lnB)], 1)[
                sse_S < best_S
            ]
            best_S = np.minimum(best_S, sse_S)
        line = Line(R_SN, w_N, R0_S)
        theta_S2 = _newton(line, x_N, theta_S2, low, high, tolerance=1e-6)
        a_S, g_S, _ = line.solve(shape(x_N, theta_S2[:, :1], theta_S2[:, 1:])[0])
    A_S, (u_S, lnB_S) = np.minimum(a_S + g_S, 1.0), theta_S2.T
    return FoundMany(a_S, A_S, np.exp(lnB_S), np.exp(u_S))


def _at_edge(
    a_S: Floats, g_S: Floats, theta_S2: Floats, low: Floats, high: Floats
) -> NDArray[np.bool_]:
    A_S = np.minimum(a_S + g_S, 1.0)
    at_limit_S = np.any((theta_S2 - low < 1e-6) | (high - theta_S2 < 1e-6), axis=1)
    return at_limit_S | (A_S > 1.0 - 1e-9) | (A_S - a_S < 2 * MIN_GAIN)


def _newton(
    line: Line,
    x_N: Floats,
    theta_S2: Floats,
    low: Floats,
    high: Floats,
    tolerance: float = 1e-12,
) -> Floats:
    """Damped Newton inside the box low..high, all starts at once; no start ends above itself.

    Second derivatives are differences of the exact gradient. Gauss-Newton would drop the part with
    the residuals, and then crawl along the ridge. Starts that have settled are left alone.
    """
    h = 1e-6
    nudge_32 = np.array([[0.0, 0.0], [h, 0.0], [0.0, h]])
    theta_S2, damping_S = theta_S2.copy(), np.zeros(len(theta_S2))
    live_L = np.arange(len(theta_S2))
    for _ in range(60):
        here, theta_L2, damping_L = _rows(line, live_L), theta_S2[live_L], damping_S[live_L]
        sse_L3, grad_L32 = _rows_of_three(here).slope(x_N, theta_L2[:, None] + nudge_32)
        sse_L, grad_L2 = sse_L3[:, 0], grad_L32[:, 0]
        hess_L22 = (grad_L32[:, 1:] - grad_L32[:, :1]) / h
        hess_L22 = (hess_L22 + hess_L22.transpose(0, 2, 1)) / 2
        held_L2 = ((theta_L2 <= low) & (grad_L2 > 0)) | ((theta_L2 >= high) & (grad_L2 < 0))
        hess_L22 = np.where(held_L2[:, :, None] | held_L2[:, None, :], 0.0, hess_L22)
        grad_L2 = np.where(held_L2, 0.0, grad_L2)
        lam_L2, V_L22 = np.linalg.eigh(hess_L22)
        lam_L2 = np.abs(lam_L2)  # a saddle is left downhill
        top_L1 = lam_L2.max(axis=1, keepdims=True) + TINY
        lam_L2 = np.maximum(lam_L2, 1e-12 * top_L1) + damping_L[:, None] * top_L1
        step_L2 = -np.einsum("sij,sj,skj,sk->si", V_L22, 1.0 / lam_L2, V_L22, grad_L2)
        step_L2 /= np.maximum(1.0, np.abs(step_L2).max(axis=1, keepdims=True))
        next_L2 = np.clip(theta_L2 + step_L2, low, high)
        settled_L = np.abs(next_L2 - theta_L2).max(axis=1) < tolerance
        # Near the minimum sse is flat to its last bit while the gradient still points: allow that.
        better_L = here.slope(x_N, next_L2)[0] <= sse_L * (1.0 + 1e-12)
        theta_S2[live_L] = np.where(better_L[:, None], next_L2, theta_L2)
        eased_L = np.where(damping_L > 1e-6, damping_L / 10, 0.0)
        damping_S[live_L] = np.where(better_L, eased_L, np.maximum(10 * damping_L, 1e-3))
        live_L = live_L[~(settled_L | (damping_S[live_L] > 1e9))]
        if not len(live_L):
            break
    return theta_S2


def _rows(line: Line, live_L: NDArray[np.intp]) -> Line:
    """The curves of some starts: those of a batch, or the one that all starts share."""
    R0 = line.R0[live_L] if isinstance(line.R0, np.ndarray) else line.R0
    return Line(line.y if line.y.ndim == 1 else line.y[live_L], line.w_N, R0)


def _rows_of_three(line: Line) -> Line:
    R0 = line.R0[:, None] if isinstance(line.R0, np.ndarray) else line.R0
    return Line(line.y if line.y.ndim == 1 else line.y[:, None], line.w_N, R0)


def fit_paper(x_N: Floats, R_N: Floats, w_N: Floats, R0: Real, C_mid_K: Floats) -> Found:
    """Least squares over the cells (A, C_mid), B by least squares in each.

    The cells of one C_mid share s, so two moments of s on a fine line of B give sse at every A, and
    a parabola through the best three its minimum over B. Only the front runners need more. R0 must
    lie below the grid's last A.
    """
    A_M = PAPER_A_M[PAPER_A_M > R0 + MIN_GAIN]
    low, high = np.log(B_BOUNDS)
    lnB_J, u_K = np.linspace(low, high, 121), np.log(C_mid_K)
    y_N, w_N, gain_M = R_N - R0, w_N / w_N.sum(), A_M - R0
    with np.errstate(over="ignore"):
        sse_MJK = np.empty((len(A_M), len(lnB_J), len(u_K)))  # less the constant sum of w y^2
        for j, lnB in enumerate(lnB_J):
            s_KN = shape(x_N, u_K[:, None], lnB)[0]
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
            s_SN, _, ds_SN = shape(x_N, u_K[k_S, None], lnB_S[:, None])
            r_SN, J_SN = gain_S1 * s_SN - y_N, gain_S1 * ds_SN
            step_S = ((r_SN * J_SN) @ w_N) / np.maximum((J_SN * J_SN) @ w_N, TINY)
            lnB_S = np.clip(lnB_S - np.clip(step_S, -0.1, 0.1), low, high)
        r_SN = gain_S1 * shape(x_N, u_K[k_S, None], lnB_S[:, None])[0] - y_N
    best = np.argmin((r_SN * r_SN) @ w_N)
    m, k, lnB = m_S[best], k_S[best], lnB_S[best]
    B_inside = low + 1e-6 < lnB < high - 1e-6
    at_edge = m in (0, len(A_M) - 1) or k in (0, len(u_K) - 1) or not B_inside
    return Found(float(R0), float(A_M[m]), float(np.exp(lnB)), float(C_mid_K[k]), bool(at_edge))
