"""The profile region of a fit: every curve that passes through the points about as well.

It holds every curve whose sum of squares is at most

    SSE_min + t^2 v s^2,   s^2 = SSE_min / (n - p v),   v = (1 + rho) / (1 - rho)

with t the quantile of Student's t for (n - p) / v degrees of freedom (at least 1), rho the lag-1
autocorrelation of the residuals, and n - p v never taken below 0.3 n: v points that err together are
worth one that errs alone.

A cell is a pair (ln C_mid, ln B). Inside a cell the sum of squares is a parabola in A (and R0), so
its slice of the region is known in closed form and only two numbers need a grid.

Axis letters: N points, K cells, J values of ln B; 2 stands for (ln C_mid, ln B).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from scalerl.curves.search import TINY, Line, limits, log_compute, shape
from scalerl.fit import Floats, Points, SigmoidFit

LEVEL = 0.90
MOST_AUTOCORRELATION = 0.9
DOUBT = 8  # points
CELLS = 48  # along each side of the region's box
MOST_ZOOMS = 12
REACH = 50.0  # C_mid this far beyond the search's own limit: by then A <= 1 has ended the ridge
EXACT = 1e-15  # least mean square told apart from 0
ROUNDING = 1e-14  # of a variance from moments


@dataclass(frozen=True)
class Noise:
    """Scatter of the points about a fit.

    sd: standard deviation of a point of mean weight. weight: that weight.
    rho: lag-1 autocorrelation, 0 .. 0.9.
    inflation: (1 + rho) / (1 - rho), how many such points are worth one independent one.
    dof: degrees of freedom left, in independent points; at least 1.
    """

    sd: float
    weight: float
    rho: float
    inflation: float
    dof: float

    def t(self, level: float = LEVEL) -> float:
        """Student's t at the two-sided level."""
        return float(stdtrit(self.dof, 0.5 + level / 2.0))


def noise_of(points: Points, fit: SigmoidFit) -> Noise:
    """The scatter of points about their fit."""
    n, p = len(points.C_N), fit.parameters
    w_N = points.w_N / points.w_N.mean()
    e_N = np.sqrt(w_N) * (points.R_N - fit.predict(points.C_N))
    sse = float(e_N @ e_N)
    rho = autocorrelation(e_N, p)
    inflation = (1.0 + rho) / (1.0 - rho)
    sd = np.sqrt(sse / max(n - p * inflation, 0.3 * n))
    weight = float(points.w_N.mean())
    return Noise(float(sd), weight, rho, inflation, max((n - p) / inflation, 1.0))


def autocorrelation(e_N: Floats, p: int) -> float:
    """Lag-1 autocorrelation of the noise behind residuals in order, 0 .. 0.9.

    A fit of p parameters leaves residuals that alternate more than the noise did: their expected
    autocorrelation is rho - (1 + p + 3 rho) / n, near enough, and is corrected for. Few points say
    little of rho, so what they say is taken by the share n^2 / (n^2 + 8^2).
    """
    n = len(e_N)
    raw = float(e_N[1:] @ e_N[:-1]) / (n - 1) * n / max(float(e_N @ e_N), TINY)
    corrected = (raw + (1 + p + 3 * raw) / n) * n**2 / (n**2 + DOUBT**2)
    return float(np.clip(corrected, 0.0, MOST_AUTOCORRELATION))


def noise_within(parts: Sequence[tuple[Points, SigmoidFit]]) -> Noise:
    """The scatter of several runs, each about its own fit: how runs differ is no part of it.

    For their points pooled, all alike or all with standard errors.
    """
    noises = [noise_of(points, fit) for points, fit in parts]
    weight = float(np.mean([noise.weight for noise in noises]))
    variances = [noise.sd**2 * noise.weight / weight for noise in noises]
    rho = float(np.mean([noise.rho for noise in noises]))
    dof = sum(noise.dof for noise in noises)
    return Noise(float(np.sqrt(np.mean(variances))), weight, rho, (1.0 + rho) / (1.0 - rho), dof)


@dataclass(frozen=True)
class Region:
    """Cells of the profile region, and in each the line R = a + g s at its best and how far it may move.

    a_K, g_K: the best line, free of the limits on A and R0. room_K: sum of squares left over.
    form_K3: variance of a, of g, and their covariance, per unit of sum of squares.
    unit: what one standard error in one direction adds to the sum of squares.
    low, high: limits of the search in (ln C_mid, ln B).
    """

    u_K: Floats
    lnB_K: Floats
    a_K: Floats
    g_K: Floats
    room_K: Floats
    form_K3: Floats
    unit: float
    low: Floats
    high: Floats

    def rate(self, s_K: Floats) -> tuple[float, float]:
        """Least and greatest a + g s over the region, s one share of the gain for each cell."""
        Vaa, Vgg, Vag = self.form_K3.T
        half_K = np.sqrt(self.room_K * (Vaa + s_K * s_K * Vgg + 2.0 * s_K * Vag))
        mid_K = self.a_K + self.g_K * s_K
        lo, hi = (mid_K - half_K).min(), (mid_K + half_K).max()
        return float(np.clip(lo, 0.0, 1.0)), float(np.clip(hi, 0.0, 1.0))

    def share(self, C: float) -> Floats:
        """s(C) of each cell."""
        return shape(log_compute(C)[None], self.u_K[:, None], self.lnB_K[:, None])[0][:, 0]


def region(points: Points, fit: SigmoidFit, noise: Noise, level: float = LEVEL) -> Region:
    """The profile region at a level, on a grid that is fitted to it."""
    x_N, w_N = log_compute(points.C_N), points.w_N / points.w_N.sum()
    line = Line(points.R_N, w_N, points.R0)
    best = np.log([fit.C_mid, fit.B])
    low, high = limits(x_N)
    high = high + np.array([np.log(REACH), 0.0])
    with np.errstate(over="ignore"):
        sse = float(line.slope(x_N, best[None])[0][0])
        # w sums to 1 here: sums of squares are means.
        unit = noise.inflation * noise.sd**2 * noise.weight / float(points.w_N.sum()) + EXACT
        top = sse + noise.t(level) ** 2 * unit
        found = _zoomed(line, x_N, best, np.stack([low, high]), top)
    a_K, g_K, form_K3, sse_K = _parabolas(line, found.s_KN)
    room_K = np.maximum(top - sse_K, 0.0)
    return Region(found.u_K, found.lnB_K, a_K, g_K, room_K, form_K3, unit, low, high)


def _zoomed(line: Line, x_N: Floats, best: Floats, limits_22: Floats, top: float) -> "_Inside":
    """The cells inside, on a grid whose box holds them closely.

    A narrow ridge may pass between the cells of a wide box; so where the cells found touch a side of
    the box, that side is moved out again before the box shrinks further.
    """
    box_22, shrunk = limits_22, 0
    found = _inside(line, x_N, best, box_22, top)
    for _ in range(MOST_ZOOMS):
        theta_K2 = np.stack([found.u_K, found.lnB_K], axis=1)
        size = box_22[1] - box_22[0]
        ends_22 = np.stack([theta_K2.min(axis=0), theta_K2.max(axis=0)])
        touched_22 = (np.abs(ends_22 - box_22) < 1e-9) & (np.abs(box_22 - limits_22) > 1e-9)
        if touched_22.any():
            box_22 = box_22 + np.array([[-1.0], [1.0]]) * size * touched_22
        elif shrunk == 2:
            break
        else:
            box_22 = ends_22 + np.array([[-1.0], [1.0]]) * size / (CELLS - 1)
            shrunk += 1
        box_22 = np.clip(box_22, limits_22[0], limits_22[1])
        found = _inside(line, x_N, best, box_22, top)
    return found


class _Inside(NamedTuple):
    u_K: Floats
    lnB_K: Floats
    s_KN: Floats


def _inside(line: Line, x_N: Floats, best: Floats, box_22: Floats, top: float) -> _Inside:
    """The cells of a box whose best line leaves a sum of squares of at most `top`."""
    # The best cell is always there, however narrow the ridge.
    u_K = np.union1d(np.linspace(box_22[0, 0], box_22[1, 0], CELLS), best[0])
    lnB_J = np.union1d(np.linspace(box_22[0, 1], box_22[1, 1], CELLS), best[1])
    s_JKN = shape(x_N, u_K[:, None], lnB_J[:, None, None])[0]
    j, k = np.nonzero(line.solve(s_JKN)[2] <= top)
    return _Inside(u_K[k], lnB_J[j], s_JKN[j, k])


def _parabolas(line: Line, s_KN: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """(a, g, form, sse) of the best line in each cell, free of the limits on A and R0."""
    s1, ss, sy = line.moments(s_KN)
    y1, yy = float(line.w_N @ line.y), float(line.w_N @ line.y**2)
    if line.R0 is None:
        spread = np.maximum(ss - s1 * s1, ROUNDING)
        g_K = (sy - s1 * y1) / spread
        a_K = y1 - g_K * s1
        form_K3 = np.stack([ss / spread, 1.0 / spread, -s1 / spread], axis=1)
    else:
        a_K = np.full_like(ss, line.R0)
        g_K = (sy - a_K * s1) / np.maximum(ss, TINY)
        form_K3 = np.stack([0 * ss, 1.0 / np.maximum(ss, TINY), 0 * ss], axis=1)
    sse_K = yy - 2 * a_K * y1 - 2 * g_K * sy + a_K**2 + 2 * a_K * g_K * s1 + g_K**2 * ss
    return a_K, g_K, form_K3, sse_K
