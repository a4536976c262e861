"""How well a fitted curve is known: joint intervals of its numbers, and draws of what else it might be.

The range of A, B, C_mid, C_q or R(C) over the profile region is its interval. All come from the same
curves, so they are joint: A, B and C_mid lie on a ridge. Measured coverage: `docs/forecasting.md`.

Axis letters: K cells, D draws.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from scalerl.curves.region import LEVEL, Noise, Region, noise_of, region
from scalerl.curves.search import MIN_GAIN, TINY, FoundMany
from scalerl.fit import Floats, Points, SigmoidFit, fit_points

LEAST_SD = 1e-9
DRAW_LEVEL = 0.999  # draws come from this much of the region
OVERDRAWN = 4  # times as many, for those that pass 0 or 1 are no curves


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

    @staticmethod
    def of_draws(value: float, values_D: Floats) -> "Interval":
        """The middle 90 % of draws, and the value at least."""
        lo, hi = np.quantile(values_D, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
        return Interval(value, min(float(lo), value), max(float(hi), value))

    def at_least(self, half: float, low: float = -np.inf, high: float = np.inf) -> "Interval":
        """Never narrower than value +- half."""
        lo, hi = self.lo, self.hi
        lo = None if lo is None else max(min(lo, self.value - half), low)
        hi = None if hi is None else min(max(hi, self.value + half), high)
        return Interval(self.value, lo, hi)


class Uncertainty:
    """Joint profile intervals of one fit: what else would have fitted these points as well.

    A measured R0 is one more point, at C = 0 and with an error of its own: then R0 too may move.

    Args:
        points, fit: the fit and what it was fitted to.
        R0_se: standard error of a measured R0; 0 where it is given, or fitted.
        noise: scatter of the points, where more is known of it than this fit shows.
    """

    def __init__(
        self, points: Points, fit: SigmoidFit, R0_se: float = 0.0, noise: Noise | None = None
    ) -> None:
        self.points, self.fit = points, fit
        self.noise = noise or noise_of(points, fit)
        self._loose, self._loosest = points, fit
        if R0_se > 0.0 and points.R0 is not None:
            self._loose = _with_start(points, points.R0, R0_se, self.noise)
            self._loosest = fit_points(self._loose)

    @cached_property
    def region(self) -> Region:
        return region(self._loose, self._loosest, self.noise)

    def A(self) -> Interval:
        """The ceiling."""
        return self._rate(np.ones_like(self.region.u_K), self.fit.A)

    def R0(self) -> Interval:
        if self._loose.R0 is not None:
            return Interval(self.fit.R0, self.fit.R0, self.fit.R0)
        return self._rate(np.zeros_like(self.region.u_K), self.fit.R0)

    def B(self) -> Interval:
        return self._log(self.region.lnB_K, self.fit.B, (1,))

    def C_mid(self) -> Interval:
        return self._log(self.region.u_K, self.fit.C_mid, (0,))

    def compute_to_share(self, q: float) -> Interval:
        """C_q, the compute to the share q of the gain."""
        odds_K = np.log(q / (1.0 - q)) / np.exp(self.region.lnB_K)
        return self._log(self.region.u_K + odds_K, self.fit.compute_to_share(q), (0, 1))

    def rate(self, C: float) -> Interval:
        """R(C): where the curve lies, not where an evaluation would fall."""
        return self._rate(self.region.share(C), float(self.fit.predict(C)))

    def ridge(self) -> list[tuple[float, float, float]]:
        """(A, B, C_mid) in order of C_mid, the best of the region at each: the ridge."""
        cells, rows = self.region, []
        A_K = np.clip(cells.a_K + cells.g_K, 0.0, 1.0)
        for C_mid in np.unique(cells.u_K):
            here = np.flatnonzero(cells.u_K == C_mid)
            best = here[np.argmax(cells.room_K[here])]
            rows.append((float(A_K[best]), float(np.exp(cells.lnB_K[best])), float(np.exp(C_mid))))
        return rows

    def _rate(self, s_K: Floats, value: float) -> Interval:
        """An interval of a + g s; no curve falls below a given R0."""
        lo, hi = self.region.rate(s_K)
        return Interval(value, min(max(lo, self._loose.R0 or 0.0), value), max(hi, value))

    def _log(self, values_K: Floats, value: float, axes: tuple[int, ...]) -> Interval:
        """An interval of exp(values), open where the region runs into a limit of the search."""
        lo: float | None = min(float(np.exp(values_K.min())), value)
        hi: float | None = max(float(np.exp(values_K.max())), value)
        cells = self.region
        for axis in axes:
            limit_K = (cells.u_K, cells.lnB_K)[axis]
            lo = None if limit_K.min() <= cells.low[axis] + 1e-9 else lo
            hi = None if limit_K.max() >= cells.high[axis] - 1e-9 else hi
        return Interval(value, lo, hi)

    def draws(self, D: int, seed: int) -> FoundMany:
        """D curves in proportion to their likelihood: flat in A, R0, ln C_mid and ln B.

        For what no interval tells: the chance that one run beats another, where two curves cross.
        """
        rng = np.random.default_rng(seed)
        cells = region(self._loose, self._loosest, self.noise, DRAW_LEVEL)
        a_M, g_M, k_M = _likely(cells, self.noise, OVERDRAWN * D, rng)
        fair = np.flatnonzero((a_M >= 0.0) & (g_M >= MIN_GAIN) & (a_M + g_M <= 1.0))[:D]
        if not len(fair):  # the points ask for more than the limits allow: the fit is all there is
            return copies(self.fit, D)
        if len(fair) < D:
            fair = rng.choice(fair, D)
        a_D, g_D, k_D = a_M[fair], g_M[fair], k_M[fair]
        return FoundMany(a_D, a_D + g_D, np.exp(cells.lnB_K[k_D]), np.exp(cells.u_K[k_D]))


def copies(fit: SigmoidFit, D: int) -> FoundMany:
    """The same curve D times."""
    return FoundMany(*(np.full(D, value) for value in (fit.R0, fit.A, fit.B, fit.C_mid)))


def _with_start(points: Points, R0: float, R0_se: float, noise: Noise) -> Points:
    """The points with that at C = 0 among them, and R0 free.

    Its weight makes its error R0_se, alone and whole: the autocorrelation of the others is none of its.
    """
    w = noise.weight * noise.inflation * max(noise.sd, LEAST_SD) ** 2 / R0_se**2
    return replace(
        points,
        C_N=np.append(0.0, points.C_N),
        R_N=np.append(R0, points.R_N),
        w_N=np.append(w, points.w_N),
        R0=None,
    )


def _likely(
    cells: Region, noise: Noise, D: int, rng: np.random.Generator
) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """(a, g, cell) of D lines, with the scatter integrated out: Student's t in every direction.

    A cell counts by what it leaves of the sum of squares, by the volume of its slice, and by the part
    of that with a gain of 0 .. 1: where the points say nothing of A, only that limit does.
    """
    worse_K = np.maximum(noise.t(DRAW_LEVEL) ** 2 * cells.unit - cells.room_K, 0.0)  # than the best
    left_K, dof = noise.dof * cells.unit + worse_K, noise.dof + 2.0
    Vaa, Vgg, Vag = cells.form_K3.T
    volume_K = np.where(Vaa > 0.0, Vaa * Vgg - Vag**2, Vgg)  # squared; R0 given: a line
    sd_K = np.sqrt(left_K / dof * Vgg)  # of the gain
    low_K, high_K = (stdtr(dof, (end - cells.g_K) / sd_K) for end in (0.0, 1.0))
    fair_K = np.maximum(high_K - low_K, 0.0)
    log_K = 0.5 * np.log(np.maximum(volume_K, TINY)) - 0.5 * dof * np.log(left_K)
    weight_K = np.exp(log_K - log_K.max()) * fair_K
    if not weight_K.sum() > 0.0:
        weight_K = np.ones_like(weight_K)
    k_D = rng.choice(len(weight_K), size=D, p=weight_K / weight_K.sum())
    first_D = stdtrit(dof, low_K[k_D] + rng.random(D) * fair_K[k_D])
    g_D = cells.g_K[k_D] + sd_K[k_D] * first_D
    # Given the gain, a is Student's t with one degree of freedom more.
    spread_D = np.sqrt(np.maximum(Vaa - Vag**2 / np.maximum(Vgg, TINY), 0.0) * left_K / dof)[k_D]
    second_D = rng.standard_t(dof + 1.0, D) * np.sqrt((dof + first_D**2) / (dof + 1.0))
    a_D = cells.a_K[k_D] + (Vag / np.maximum(Vgg, TINY))[k_D] * sd_K[k_D] * first_D
    return a_D + spread_D * second_D, g_D, k_D
