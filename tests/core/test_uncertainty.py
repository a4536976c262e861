"""How well a fit is known: the profile region against a profile made otherwise, draws, bootstrap."""

import time
from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, least_squares
from scipy.stats import t as student

from scalerl.curves.bootstrap import block_bootstrap
from scalerl.curves.region import noise_of
from scalerl.curves.search import fit_many, log_compute
from scalerl.curves.uncertainty import Interval, Uncertainty
from scalerl.fit import Points, SigmoidFit, fit_points, fit_sigmoid, sigmoid, usable_points

LAW = {"R0": 0.4, "A": 0.6, "B": 2.0, "C_mid": 2_500.0}
COMPUTE = np.linspace(400.0, 10_000.0, 24)
NAMES = ("A", "R0", "B", "C_mid")


def ar1(n, rho, seed):
    """n steps of variance 1, each rho times the one before plus something new."""
    z_N = np.random.default_rng(seed).standard_normal(n)
    for i in range(1, n):
        z_N[i] = rho * z_N[i - 1] + np.sqrt(1 - rho**2) * z_N[i]
    return z_N


def known(seed=2, *, free=False, sd=0.005, rho=0.0, C_N=COMPUTE, scale=1.0, R0_se=0.0, se=None):
    R_N = np.clip(sigmoid(C_N, **LAW) + sd * ar1(len(C_N), rho, seed), 0.0, 1.0)
    points = usable_points(C_N * scale, R_N, R0=None if free else 0.4, se=se)
    return Uncertainty(points, fit_points(points), R0_se)


def width(found: Interval) -> float:
    assert found.lo is not None and found.hi is not None
    return found.hi - found.lo


# ---- the region against a profile made otherwise -------------------------------------------------


class Profile:
    """The least sum of squares with one number held, by scipy's optimiser over all the others."""

    def __init__(self, it: Uncertainty) -> None:
        self.C_N, self.R_N, self.fit = it.points.C_N, it.points.R_N, it.fit
        self.R0, n = it.points.R0, len(it.points.C_N)
        p = 3 if it.fit.R0_fixed else 4
        assert it.noise.rho == 0.0, "choose a seed whose residuals are uncorrelated: v = 1"
        # SSE_min + t^2 s^2 with s^2 = SSE_min / (n - p)
        self.top = it.fit.rmse**2 * n * (1 + student.ppf(0.95, n - p) ** 2 / (n - p))
        self.low = [np.log(self.C_N[0] / 4), np.log(0.2)]
        self.high = [np.log(2 * self.C_N[-1]), np.log(10.0)]

    def _least(self, curve, held=None):
        """curve(a, share) -> rates at C_N; held fixes (u, ln B) by index."""
        start = [np.log(self.fit.C_mid), np.log(self.fit.B), self.fit.R0]
        low, high = [*self.low, 0.0], [*self.high, 0.99]
        free = [i for i in range(2 if self.R0 is not None else 3) if i not in (held or {})]

        def residuals(theta):
            full = np.array([*start[:2], self.R0 if self.R0 is not None else start[2]])
            full[free] = theta
            for i, value in (held or {}).items():
                full[i] = value
            u, lnB, a = full
            return curve(a, lambda C: 1 / (1 + np.exp(-np.exp(lnB) * (np.log(C) - u)))) - self.R_N

        at, ends = np.array(start)[free], (np.array(low)[free], np.array(high)[free])
        best = least_squares(residuals, at, bounds=ends, xtol=1e-11, ftol=1e-13, gtol=1e-13)
        return 2 * best.cost

    def of_A(self, A):
        return self._least(lambda a, share: a + (A - a) * share(self.C_N))

    def of_rate(self, C):
        """With R(C) held at r the ceiling follows: A = a + (r - a) / s(C)."""
        return lambda r: self._least(lambda a, share: a + (r - a) / share(C) * share(self.C_N))

    def of_R0(self, R0):
        best = least_squares(
            lambda v: (
                sigmoid(self.C_N, R0=R0, A=v[2], B=np.exp(v[1]), C_mid=np.exp(v[0])) - self.R_N
            ),
            [np.log(self.fit.C_mid), np.log(self.fit.B), self.fit.A],
            bounds=([*self.low, 0.5], [*self.high, 1.0]),
            xtol=1e-11,
            ftol=1e-13,
        )
        return 2 * best.cost

    def ends(self, sse, value, step):
        found = []
        for sign in (-1, 1):
            x = value + sign * step
            while sse(x) < self.top:
                x += sign * step
            found.append(brentq(lambda v: sse(v) - self.top, x - sign * step, x, xtol=1e-7))
        return sorted(found)


def assert_close(found: Interval, lo: float, hi: float, share: float = 0.02) -> None:
    assert found.lo is not None and found.hi is not None
    assert found.lo == pytest.approx(lo, abs=share * (hi - lo)), (found, lo, hi)
    assert found.hi == pytest.approx(hi, abs=share * (hi - lo)), (found, lo, hi)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", [2, 3, 9])
def test_the_ceiling_has_its_profile_interval(seed, free):
    it = known(seed, free=free)
    other = Profile(it)
    assert_close(it.A(), *other.ends(other.of_A, it.fit.A, 0.01))


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("C", [1_500.0, 9_000.0, 30_000.0])
def test_a_rate_has_its_profile_interval(C, free):
    it = known(4, free=free)
    other = Profile(it)
    ends = other.ends(other.of_rate(C), float(it.fit.predict(C)), 0.004)
    assert_close(it.rate(C), *ends)


def test_a_free_R0_has_its_profile_interval():
    it = known(3, free=True)
    other = Profile(it)
    assert_close(it.R0(), *other.ends(other.of_R0, it.fit.R0, 0.01))


def test_a_steeper_noise_widens_in_proportion():
    # A line through the middle: twice the noise, twice the width, where the region is small.
    one, two = (width(known(3, sd=sd).A()) for sd in (0.0005, 0.001))
    assert two / one == pytest.approx(2.0, rel=0.03)


@given(
    st.floats(0.05, 0.3),
    st.floats(0.5, 4.0),
    st.floats(1.2, 8.0),
    st.integers(6, 30),
    st.integers(0, 999),
    st.booleans(),
)
def test_an_interval_contains_its_estimate(gain, B, reach, n, seed, free):
    C_N = 100.0 * np.geomspace(0.2, reach, n)
    R_N = sigmoid(C_N, R0=0.4, A=0.4 + gain, B=B, C_mid=100.0)
    R_N += 0.01 * np.random.default_rng(seed).standard_normal(n)
    points = usable_points(C_N, R_N, R0=None if free else 0.4)
    it = Uncertainty(points, fit_points(points), 0.0 if free else 0.01)
    found = [getattr(it, name)() for name in NAMES]
    found += [it.compute_to_share(q) for q in (0.5, 0.9)]
    found += [it.rate(C) for C in (20.0, 100.0, 2_000.0)]
    for each in found:
        assert each.lo is None or each.lo <= each.value
        assert each.hi is None or each.value <= each.hi
    for each in (it.A(), it.R0(), it.rate(2_000.0)):
        assert each.lo is not None and each.hi is not None and 0.0 <= each.lo and each.hi <= 1.0


@pytest.mark.parametrize("free", [False, True])
def test_the_unit_of_compute_moves_C_mid_alone(free):
    one, other = known(5, free=free), known(5, free=free, scale=1e4)
    for name in ("A", "R0", "B"):
        assert astuple(getattr(other, name)()) == pytest.approx(
            astuple(getattr(one, name)()), rel=1e-4
        )
    for q in (0.5, 0.8):
        expected = 1e4 * np.array(astuple(one.compute_to_share(q)))
        assert astuple(other.compute_to_share(q)) == pytest.approx(expected, rel=1e-4)
    assert astuple(other.C_mid()) == pytest.approx(1e4 * np.array(astuple(one.C_mid())), rel=1e-4)
    assert astuple(other.rate(3e8)) == pytest.approx(astuple(one.rate(3e4)), rel=1e-4)


@pytest.mark.parametrize("free", [False, True])
def test_points_without_noise_are_known_and_crash_nothing(free):
    it = known(free=free, sd=0.0)
    for found in (it.A(), it.rate(30_000.0), it.R0()):
        assert width(found) < 1e-5
    assert it.draws(100, 0).A_S == pytest.approx(np.full(100, 0.6), abs=1e-4)
    assert block_bootstrap(it.points, it.fit, 20, 0).A_S == pytest.approx(0.6, abs=1e-4)


def test_an_end_that_the_search_does_not_find_is_open():
    early = known(C_N=np.linspace(20.0, 500.0, 24), sd=0.004)  # a fifth of the way to C_mid
    assert early.C_mid().hi is None
    assert early.compute_to_share(0.9).hi is None
    full = known(C_N=COMPUTE)
    assert None not in astuple(full.C_mid()) + astuple(full.B())


def test_an_interval_by_hand():
    # hypot(3, 4) = 5 on either side
    assert astuple(Interval(10.0, 7.0, 14.0).widened(4.0)) == pytest.approx(
        (10.0, 5.0, 10.0 + np.hypot(4.0, 4.0))
    )
    assert astuple(Interval(0.5, 0.49, 0.55).at_least(0.02)) == pytest.approx((0.5, 0.48, 0.55))
    assert astuple(Interval(0.99, 0.98, 0.995).at_least(0.02, 0.0, 1.0)) == (0.99, 0.97, 1.0)
    open_above = Interval(2.0, 1.0, None)
    assert open_above.widened(1.0).hi is None and open_above.at_least(5.0).hi is None
    assert open_above.at_least(5.0, low=0.0).lo == 0.0


# ---- the noise -----------------------------------------------------------------------------------


def scattered(e_N, *, se_N=None, R0_fixed=True):
    """Points that lie e_N off a curve, and that curve."""
    fit = SigmoidFit(**LAW, rmse=0.0, n=len(e_N), R0_fixed=R0_fixed, grid="relative", at_edge=False)
    C_N = np.linspace(400.0, 10_000.0, len(e_N))
    w_N = np.ones(len(e_N)) if se_N is None else 1.0 / se_N**2
    return noise_of(Points(C_N, fit.predict(C_N) + e_N, w_N, 0.4 if R0_fixed else None), fit)


def test_autocorrelation_and_its_correction_by_hand():
    # n = 24 residuals of 0.01 (1, 1, -1, -1, ...): of 23 neighbours 12 agree and 11 do not.
    # raw = (12 - 11) / 24 * 24 / 23 = 1 / 23
    # p = 3: (1/23 + (1 + 3 + 3/23) / 24) * 24^2 / (24^2 + 8^2) = 0.215580 * 0.9 = 0.194022
    found = scattered(0.01 * np.tile([1.0, 1.0, -1.0, -1.0], 6))
    assert found.rho == pytest.approx(0.194022, abs=1e-6)
    # v = 1.194022 / 0.805978 = 1.481456; s^2 = 24e-4 / (24 - 3 v), sd = 0.01 * sqrt(1.227267)
    assert found.inflation == pytest.approx(1.481456, abs=1e-6)
    assert found.sd == pytest.approx(0.0110782, abs=1e-7)
    # free R0: p = 4: (1/23 + (5 + 3/23) / 24) * 0.9 = 0.231522
    free = scattered(0.01 * np.tile([1.0, 1.0, -1.0, -1.0], 6), R0_fixed=False)
    assert free.rho == pytest.approx(0.231522, abs=1e-6)


def test_residuals_that_alternate_are_taken_for_independent():
    found = scattered(0.01 * np.tile([1.0, -1.0], 10))
    assert (found.rho, found.inflation, found.dof) == (0.0, 1.0, 17.0)
    assert found.sd == pytest.approx(0.01 * np.sqrt(20 / 17))
    assert found.t() == pytest.approx(1.7396, abs=1e-4)  # tables: t of 17, 90 %
    assert found.t(0.95) == pytest.approx(2.1098, abs=1e-4)


def test_autocorrelation_is_held_below_nine_tenths():
    found = scattered(0.01 * np.repeat([1.0, -1.0], 30))
    assert found.rho == 0.9 and found.inflation == pytest.approx(19.0)
    assert found.dof >= 1.0 and np.isfinite(found.sd)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_the_autocorrelation_of_a_series_is_found(rho):
    assert scattered(0.01 * ar1(3_000, rho, 7)).rho == pytest.approx(rho, abs=0.05)


def test_the_correction_undoes_what_fitting_takes():
    # The fit eats low frequencies: uncorrected, the mean over runs falls to about 0.4.
    rhos = [
        known(seed, C_N=np.linspace(250.0, 10_000.0, 40), rho=0.6).noise.rho for seed in range(60)
    ]
    assert np.mean(rhos) == pytest.approx(0.6, abs=0.1)


def test_the_scatter_is_that_of_a_point_of_mean_weight():
    # Each point lies one of its standard errors off, in turn above and below. Mean weight of
    # se = 0.01 and 0.02: (10,000 + 2,500) / 2 = 6,250 = 1 / 0.0126491^2
    se_N = np.tile([0.01, 0.02], 10)
    found = scattered(se_N * np.tile([1.0, -1.0], 10), se_N=se_N)
    assert found.sd == pytest.approx(0.0126491 * np.sqrt(20 / 17), rel=1e-5)


def test_only_the_ratios_of_standard_errors_count():
    se_N = np.tile([0.004, 0.008], 12)
    one, other = known(se=se_N), known(se=10 * se_N)
    assert astuple(other.A()) == pytest.approx(astuple(one.A()), rel=1e-6)
    assert other.noise.sd == pytest.approx(one.noise.sd, rel=1e-6)


# ---- a measured R0 -------------------------------------------------------------------------------


def test_a_measured_R0_lies_between_a_given_and_a_free_one():
    exact, free = known(3), known(3, free=True)
    widths = [width(known(3, R0_se=se).A()) for se in (1e-6, 0.002, 0.01, 0.05, 10.0)]
    assert widths == sorted(widths)
    assert widths[0] == pytest.approx(width(exact.A()), rel=0.02)
    assert widths[-1] == pytest.approx(width(free.A()), rel=0.1)  # hardly measured: as if fitted
    assert astuple(exact.R0()) == (0.4, 0.4, 0.4)
    # Well measured, R0 is what the evaluation says: 0.4 +- 1.7207 * 0.0005
    sharp = known(3, R0_se=0.0005).R0()
    assert astuple(sharp) == pytest.approx((0.4, 0.399140, 0.400860), abs=1e-4)


def test_intervals_with_a_measured_R0_are_still_of_one_set_of_curves():
    early = known(C_N=np.linspace(20.0, 900.0, 6), R0_se=0.006)
    at = [early.compute_to_share(q) for q in (0.5, 0.8, 0.9)]
    for side in ("lo", "value", "hi"):
        ends = [getattr(each, side) for each in at]
        assert all(a is None or b is None or a <= b for a, b in pairwise(ends))
    reached = early.rate(900.0)
    lo, least = early.A().lo, reached.lo
    assert (
        lo is not None and least is not None and lo >= least - 1e-9
    )  # no ceiling lies below what has been reached


def test_a_fitted_R0_has_no_other_error():
    free, told = known(3, free=True), known(3, free=True, R0_se=0.01)
    assert astuple(told.A()) == astuple(free.A())


# ---- draws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [False, True])
def test_draws_spread_as_the_profile_does(free):
    it = known(3, free=free, C_N=np.linspace(300.0, 12_000.0, 40))
    drawn = it.draws(4_000, 0)
    for found, values_D in (
        (it.A(), drawn.A_S),
        (it.rate(1_500.0), drawn.rates(1_500.0)),
        (it.rate(20_000.0), drawn.rates(20_000.0)),
    ):
        lo, hi = np.quantile(values_D, [0.05, 0.95])
        assert_close(found, lo, hi, share=0.12)


@pytest.mark.parametrize("R0_se", [0.0, 0.02])
@pytest.mark.parametrize("C_N", [COMPUTE, np.linspace(20.0, 500.0, 12)], ids=["seen", "early"])
def test_draws_are_curves_and_one_seed_gives_one_set(C_N, R0_se):
    it = known(C_N=C_N, R0_se=R0_se)
    drawn = it.draws(3_000, 5)
    assert np.all((drawn.R0_S >= 0.0) & (drawn.R0_S < drawn.A_S) & (drawn.A_S <= 1.0))
    assert np.all((drawn.B_S > 0.0) & (drawn.C_mid_S > 0.0))
    again, another = it.draws(3_000, 5), it.draws(3_000, 6)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again, strict=True))
    assert not np.array_equal(drawn.A_S, another.A_S)
    if R0_se:  # the points say something of R0 too
        assert 0.0 < drawn.R0_S.std() < 1.1 * R0_se
    else:
        assert np.all(drawn.R0_S == 0.4)


# ---- many fits at once, and the bootstrap --------------------------------------------------------


@pytest.mark.parametrize("free", [False, True])
def test_a_batch_of_fits_is_the_fits_one_by_one(free):
    noise_SN = 0.005 * np.random.default_rng(1).standard_normal((50, len(COMPUTE)))
    R_SN = sigmoid(COMPUTE, **LAW) + noise_SN
    R0_S = None if free else np.full(50, 0.4)
    many = fit_many(log_compute(COMPUTE), R_SN, np.ones(len(COMPUTE)), R0_S)
    single = [fit_sigmoid(COMPUTE, R_N, R0=None if free else 0.4) for R_N in R_SN]
    for values_S, name in ((many.R0_S, "R0"), (many.A_S, "A")):
        assert values_S == pytest.approx([getattr(fit, name) for fit in single], abs=1e-4)
    for values_S, name in ((many.B_S, "B"), (many.C_mid_S, "C_mid")):
        assert values_S == pytest.approx([getattr(fit, name) for fit in single], rel=1e-3)


def test_the_bootstrap_is_deterministic_and_quick():
    it = known(3)
    start = time.process_time()
    one = block_bootstrap(it.points, it.fit, 1_000, 4)
    assert time.process_time() - start < 1.0
    again, another = (block_bootstrap(it.points, it.fit, 1_000, seed) for seed in (4, 5))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, again, strict=True))
    assert one.A_S.tobytes() != another.A_S.tobytes()
    assert np.mean(one.A_S) == pytest.approx(it.fit.A, abs=0.003)
    assert np.all((one.A_S > one.R0_S) & (one.A_S <= 1.0))


def test_the_bootstrap_is_narrower_than_the_profile_under_autocorrelation():
    ratios = []
    for seed in range(20):
        it = known(seed, rho=0.7, C_N=np.linspace(250.0, 10_000.0, 40))
        lo, hi = np.quantile(block_bootstrap(it.points, it.fit, 200, seed).A_S, [0.05, 0.95])
        ratios.append((hi - lo) / width(it.A()))
    assert np.median(ratios) < 0.8


def test_the_bootstrap_of_independent_noise_is_nearly_as_wide():
    ratios = []
    for seed in range(20):
        it = known(seed, C_N=np.linspace(250.0, 10_000.0, 40))
        lo, hi = np.quantile(block_bootstrap(it.points, it.fit, 200, seed).A_S, [0.05, 0.95])
        ratios.append((hi - lo) / width(it.A()))
    assert 0.65 < np.median(ratios) < 1.05, np.median(ratios)
