"""How well a fitted curve is known: the ridge of A, B and C_mid, and what it does to a forecast.

The *profile region* holds every curve whose sum of squares is at most

    SSE_min + t^2 v s^2,   s^2 = SSE_min / (n - p v),   v = (1 + rho) / (1 - rho)

with t the quantile of Student's t for n' - p degrees of freedom, rho the lag-1 autocorrelation of
the residuals and n' = n / v the number of independent points that n such points are worth. The range
of A, B, C_mid, C_q or R(C) over that one region is its profile interval, so the intervals are joint:
they come from the same curves. Measured coverage: `docs/forecasting.md`.

A cell is a pair (ln C_mid, ln B). Inside a cell the sum of squares is a parabola in A (and R0), so
its slice of the region is known in closed form and only two numbers need a grid.

Axis letters: N points, K cells, D draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from scalerl.curves.search import MIN_GAIN, TINY, FoundMany, Line, limits, log_compute, shape
from scalerl.fit import Floats, Points, SigmoidFit, fit_points

LEVEL = 0.90
MOST_AUTOCORRELATION = 0.9
DOUBT = 8  # points
CELLS = 48  # along each side of the region's box, after two zooms
DRAW_LEVEL = 0.999  # draws come from this much of the region
EXACT = 1e-15  # least mean square told apart from 0


@dataclass(frozen=True)
class Interval:
    """A value with its ends: 0.61, 0.59, 0.63. An end of None: the search found no end there."""

    value: float
    lo: float | None
    hi: float | None

    def widened(self, by: float, low: float = -np.inf, high: float = np.inf) -> "Interval":
        """With a further, independent error `by` at the same level, added in quadrature."""
        lo, hi = self.lo, self.hi
        if lo is not None:
            lo = max(self.value - float(np.hypot(self.value - lo, by)), low)
        if hi is not None:
            hi = min(self.value + float(np.hypot(hi - self.value, by)), high)
        return Interval(self.value, lo, hi)

    def at_least(self, half: float, low: float = -np.inf, high: float = np.inf) -> "Interval":
        """Never narrower than value +- half."""
        lo, hi = self.lo, self.hi
        lo = None if lo is None else max(min(lo, self.value - half), low)
        hi = None if hi is None else min(max(hi, self.value + half), high)
        return Interval(self.value, lo, hi)


@dataclass(frozen=True)
class Noise:
    """Scatter of the points about a fit.

    sd: standard deviation of a point of mean weight. rho: lag-1 autocorrelation, 0 .. 0.9.
    inflation: (1 + rho) / (1 - rho), how many such points are worth one independent one.
    dof: degrees of freedom left, in independent points; at least 1.
    """

    sd: float
    rho: float
    inflation: float
    dof: float

    def t(self, level: float = LEVEL) -> float:
        """Student's t at the two-sided level."""
        return float(stdtrit(self.dof, 0.5 + level / 2.0))


def noise_of(points: Points, fit: SigmoidFit) -> Noise:
    """The scatter of points about their fit.

    A fit of p parameters leaves residuals that alternate more than the noise did: their expected
    autocorrelation is rho - (1 + p + 3 rho) / n, near enough, and is corrected for. Few points say
    little of rho, so what they say is taken by the share n^2 / (n^2 + 8^2).
    """
    n, p = len(points.C_N), 3 if fit.R0_fixed else 4
    w_N = points.w_N / points.w_N.mean()
    e_N = np.sqrt(w_N) * (points.R_N - fit.predict(points.C_N))
    sse = float(e_N @ e_N)
    raw = float(e_N[1:] @ e_N[:-1]) / max(sse, TINY) * n / (n - 1)
    corrected = (raw + (1 + p + 3 * raw) / n) * n**2 / (n**2 + DOUBT**2)
    rho = float(np.clip(corrected, 0.0, MOST_AUTOCORRELATION))
    inflation = (1.0 + rho) / (1.0 - rho)
    sd = np.sqrt(sse / max(n - p * inflation, 0.3 * n))
    return Noise(float(sd), rho, inflation, max((n - p) / inflation, 1.0))


@dataclass(frozen=True)
class Region:
    """Cells of the profile region, and in each the line R = a + g s at its best and how far it may move.

    a_K, g_K: the best line, free of the limits on A and R0. room_K: sum of squares left over.
    form_K3: variance of a, of g, and their covariance, per unit of sum of squares.
    low, high: limits of the search in (ln C_mid, ln B).
    """

    u_K: Floats
    lnB_K: Floats
    a_K: Floats
    g_K: Floats
    room_K: Floats
    form_K3: Floats
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
    """The profile region at a level, on a grid that zooms in on it twice."""
    x_N, w_N = log_compute(points.C_N), points.w_N / points.w_N.sum()
    line = Line(points.R_N, w_N, points.R0)
    best = np.log([fit.C_mid, fit.B])
    with np.errstate(over="ignore"):
        sse = float(line.slope(x_N, best[None])[0][0])
        # w sums to 1 here, so sums of squares are means: n times smaller.
        top = sse + noise.t(level) ** 2 * noise.inflation * noise.sd**2 / len(x_N) + EXACT
        low, high = box_lo, box_hi = limits(x_N)
        for _ in range(2):
            found = _inside(line, x_N, best, box_lo, box_hi, top)
            cell = (box_hi - box_lo) / (CELLS - 1)
            box_lo = np.maximum(low, [found.u_K.min() - cell[0], found.lnB_K.min() - cell[1]])
            box_hi = np.minimum(high, [found.u_K.max() + cell[0], found.lnB_K.max() + cell[1]])
        found = _inside(line, x_N, best, box_lo, box_hi, top)
    a_K, g_K, form_K3, sse_K = _parabolas(line, found.s_KN)
    room_K = np.maximum(top - sse_K, 0.0)
    return Region(found.u_K, found.lnB_K, a_K, g_K, room_K, form_K3, low, high)


class _Inside(NamedTuple):
    u_K: Floats
    lnB_K: Floats
    s_KN: Floats


def _inside(
    line: Line, x_N: Floats, best: Floats, box_lo: Floats, box_hi: Floats, top: float
) -> _Inside:
    """The cells of a box whose best line leaves a sum of squares of at most `top`."""
    # The best cell is always there, however narrow the ridge.
    u_K = np.union1d(np.linspace(box_lo[0], box_hi[0], CELLS), best[0])
    lnB_J = np.union1d(np.linspace(box_lo[1], box_hi[1], CELLS), best[1])
    s_JKN = shape(x_N, u_K[:, None], lnB_J[:, None, None])[0]
    j, k = np.nonzero(line.solve(s_JKN)[2] <= top)
    return _Inside(u_K[k], lnB_J[j], s_JKN[j, k])


def _parabolas(line: Line, s_KN: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """(a, g, form, sse) of the best line in each cell, free of the limits on A and R0."""
    s1, ss, sy = line.moments(s_KN)
    y1, yy = float(line.w_N @ line.y), float(line.w_N @ line.y**2)
    if line.R0 is None:
        spread = np.maximum(ss - s1 * s1, TINY)
        g_K = (sy - s1 * y1) / spread
        a_K = y1 - g_K * s1
        form_K3 = np.stack([ss / spread, 1.0 / spread, -s1 / spread], axis=1)
    else:
        a_K = np.full_like(ss, line.R0)
        g_K = (sy - a_K * s1) / np.maximum(ss, TINY)
        form_K3 = np.stack([0 * ss, 1.0 / np.maximum(ss, TINY), 0 * ss], axis=1)
    sse_K = yy - 2 * a_K * y1 - 2 * g_K * sy + a_K**2 + 2 * a_K * g_K * s1 + g_K**2 * ss
    return a_K, g_K, form_K3, sse_K


class Uncertainty:
    """Joint profile intervals of one fit: what else would have fitted these points as well.

    Args:
        points, fit: the fit and what it was fitted to.
        R0_se: standard error of a measured R0; its effect is added in quadrature.
    """

    def __init__(self, points: Points, fit: SigmoidFit, R0_se: float = 0.0) -> None:
        self.points, self.fit, self.R0_se = points, fit, R0_se
        self.noise = noise_of(points, fit)

    @cached_property
    def region(self) -> Region:
        return region(self.points, self.fit, self.noise)

    def A(self) -> Interval:
        lo, hi = self.region.rate(np.ones_like(self.region.u_K))
        lo, hi = min(lo, self.fit.A), max(hi, self.fit.A)
        return self._tilted(Interval(self.fit.A, lo, hi), lambda f: f.A, 0.0, 1.0)

    def R0(self) -> Interval:
        if self.fit.R0_fixed:
            exact = Interval(self.fit.R0, self.fit.R0, self.fit.R0)
            return self._tilted(exact, lambda f: f.R0, 0.0, 1.0)
        lo, hi = self.region.rate(np.zeros_like(self.region.u_K))
        return Interval(self.fit.R0, min(lo, self.fit.R0), max(hi, self.fit.R0))

    def B(self) -> Interval:
        return self._log(self.region.lnB_K, 1, lambda f: f.B)

    def C_mid(self) -> Interval:
        return self._log(self.region.u_K, 0, lambda f: f.C_mid)

    def compute_to_share(self, q: float) -> Interval:
        """C_q, the compute to the share q of the gain."""
        odds_K = np.log(q / (1.0 - q)) / np.exp(self.region.lnB_K)
        return self._log(self.region.u_K + odds_K, None, lambda f: f.compute_to_share(q))

    def rate(self, C: float) -> Interval:
        """R(C): where the curve lies, not where an evaluation would fall."""
        value = float(self.fit.predict(C))
        lo, hi = self.region.rate(self.region.share(C))
        found = Interval(value, min(lo, value), max(hi, value))
        return self._tilted(found, lambda f: float(f.predict(C)), 0.0, 1.0)

    def ridge(self) -> list[tuple[float, float, float]]:
        """(A, B, C_mid) in order of C_mid, the best of the region at each: the ridge."""
        A_K, cells = self.region.a_K + self.region.g_K, self.region
        rows = []
        for C_mid in np.unique(cells.u_K):
            here = np.flatnonzero(cells.u_K == C_mid)
            best = here[np.argmax(cells.room_K[here])]
            rows.append((min(A_K[best], 1.0), np.exp(cells.lnB_K[best]), np.exp(C_mid)))
        return [(float(A), float(B), float(C)) for A, B, C in rows]

    def _log(
        self, values_K: Floats, axis: int | None, of: Callable[[SigmoidFit], float]
    ) -> Interval:
        """An interval of exp(values), open where the region runs into a limit of the search."""
        lo: float | None = min(float(np.exp(values_K.min())), of(self.fit))
        hi: float | None = max(float(np.exp(values_K.max())), of(self.fit))
        cells = self.region
        for column, limit_K in ((0, cells.u_K), (1, cells.lnB_K)):
            if axis in (None, column):
                lo = None if limit_K.min() <= cells.low[column] + 1e-9 else lo
                hi = None if limit_K.max() >= cells.high[column] - 1e-9 else hi
        return self._tilted(Interval(of(self.fit), lo, hi), of, 0.0, np.inf)

    def _tilted(
        self, found: Interval, of: Callable[[SigmoidFit], float], low: float, high: float
    ) -> Interval:
        if not self.R0_se or not self._tilts:
            return found
        below, above = self._tilts
        return found.widened(self.noise.t() * abs(of(above) - of(below)) / 2.0, low, high)

    @cached_property
    def _tilts(self) -> tuple[SigmoidFit, SigmoidFit] | None:
        """The fit with R0 a standard error lower and higher; None where R0 is not measured."""
        R0 = self.points.R0
        if not self.R0_se or R0 is None:
            return None
        moved = [min(max(R0 + sign * self.R0_se, 0.0), 1.0 - 2 * MIN_GAIN) for sign in (-1, 1)]
        below, above = (
            fit_points(Points(self.points.C_N, self.points.R_N, self.points.w_N, each))
            for each in moved
        )
        return below, above

    def draws(self, D: int, seed: int) -> FoundMany:
        """D curves in proportion to their likelihood: flat in A, R0, ln C_mid and ln B.

        For what no interval tells: the chance that one run beats another, where two curves cross.
        """
        rng = np.random.default_rng(seed)
        cells = region(self.points, self.fit, self.noise, DRAW_LEVEL)
        a_D, g_D, k_D = _likely(cells, self.noise, len(self.points.C_N), D, rng)
        u_D, lnB_D = cells.u_K[k_D], cells.lnB_K[k_D]
        if self._tilts:
            below, above = self._tilts
            z_D = rng.standard_normal(D) / 2.0  # the two are two standard errors apart
            a_D = a_D + z_D * (above.R0 - below.R0)
            g_D = g_D + z_D * ((above.A - above.R0) - (below.A - below.R0))
            u_D = u_D + z_D * np.log(above.C_mid / below.C_mid)
            lnB_D = lnB_D + z_D * np.log(above.B / below.B)
        a_D = np.clip(a_D, 0.0, 1.0 - 2 * MIN_GAIN)
        A_D = np.clip(a_D + g_D, a_D + MIN_GAIN, 1.0)
        return FoundMany(a_D, A_D, np.exp(lnB_D), np.exp(u_D), A_D >= 1.0)


def _likely(
    cells: Region, noise: Noise, n: int, D: int, rng: np.random.Generator
) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """(a, g, cell) of D lines, with the scatter integrated out: Student's t in every direction.

    A cell counts by what it leaves of the sum of squares and by the volume of its slice.
    """
    one = noise.inflation * noise.sd**2 / n + EXACT  # of the mean square, for one standard error
    worse_K = np.maximum(noise.t(DRAW_LEVEL) ** 2 * one - cells.room_K, 0.0)  # than the best
    left_K, dof = noise.dof * one + worse_K, noise.dof + 2.0
    Vaa, Vgg, Vag = cells.form_K3.T
    volume_K = np.where(Vaa > 0.0, Vaa * Vgg - Vag**2, Vgg)  # squared; R0 given: a line
    log_K = 0.5 * np.log(np.maximum(volume_K, TINY)) - 0.5 * dof * np.log(left_K)
    weight_K = np.exp(log_K - log_K.max())
    k_D = rng.choice(len(weight_K), size=D, p=weight_K / weight_K.sum())
    scale_D = np.sqrt(left_K[k_D] / dof)
    first_D, second_D = rng.standard_t(dof, size=(2, D))
    sd_g = np.sqrt(Vgg[k_D])
    along = Vag[k_D] / np.maximum(sd_g, TINY)
    across = np.sqrt(np.maximum(Vaa[k_D] - along**2, 0.0))
    g_D = cells.g_K[k_D] + scale_D * sd_g * first_D
    a_D = cells.a_K[k_D] + scale_D * (along * first_D + across * second_D)
    return a_D, g_D, k_D
