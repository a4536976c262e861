"""What more compute tells and buys: drift, the budget that pins a ceiling, the price of a gain, seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from scalerl.curves.curve import Curve, curve
from scalerl.curves.extending import (
    ceiling_half_widths,
    effort_to_detect,
    smallest_budget,
    window_drift,
    worth_of_extending,
)
from scalerl.curves.uncertainty import Uncertainty
from scalerl.fit import FitError, fit_points, sigmoid, usable_points
from scalerl.forecast import forecast

LAW = {"R0": 0.4, "A": 0.6, "B": 2.0, "C_mid": 2_500.0}
COMPUTE = np.linspace(500.0, 10_000.0, 20)


def run(C_N=COMPUTE, *, seed=3, sd=0.004, law=LAW) -> Curve:
    R_N = sigmoid(C_N, **law) + sd * np.random.default_rng(seed).standard_normal(len(C_N))
    return curve(np.stack([C_N, R_N], axis=1)).given(law["R0"])


def half(found) -> float:
    assert found.lo is not None and found.hi is not None
    return (found.hi - found.lo) / 2


# ---- drift ---------------------------------------------------------------------------------------


def test_a_row_of_the_drift_is_the_fit_of_its_window():
    rows = window_drift(run(), [5_000.0, 7_250.0, 10_000.0])
    assert [(row.end_C, row.n) for row in rows] == [(5e3, 10), (7_250.0, 14), (1e4, 20)]
    for row in rows:
        part = forecast([run()], window=(0.0, row.end_C))
        assert (row.A, row.B, row.C_mid) == (part.fit.A, part.fit.B, part.fit.C_mid)
        assert row.half == pytest.approx(half(part.uncertainty.A()))
        assert row.seen == (part.last_C >= 2 * row.C_mid and not part.fit.at_edge)
    assert rows[0].half > rows[1].half > rows[2].half


def test_a_curve_without_noise_does_not_drift():
    rows = window_drift(run(sd=0.0))
    assert len(rows) >= 3
    assert [row.A for row in rows] == pytest.approx([0.6] * len(rows), abs=1e-6)
    assert max(row.half for row in rows) < 1e-4


@pytest.mark.parametrize("n", [8, 9, 12, 40])
def test_windows_chosen_for_one_grow_from_eight_points_to_all(n):
    rows = window_drift(run(np.linspace(500.0, 10_000.0, n)))
    counts = [row.n for row in rows]
    assert counts[-1] == n and min(counts) >= 8
    assert counts == sorted(set(counts)) and len(counts) <= 5


def test_windows_of_too_few_points_are_left_out():
    rows = window_drift(run(), [1_000.0, 2_000.0, 10_000.0])  # two points, four, and all
    assert [row.end_C for row in rows] == [10_000.0]


def test_the_drift_of_a_knee_that_comes_into_view():
    rows = window_drift(run(sd=0.001), [3_500.0, 10_000.0])
    assert [row.seen for row in rows] == [False, True]


# ---- the budget ----------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_half_widths_ahead_are_about_those_that_come(seed, free):
    rng = np.random.default_rng(seed)
    ahead_M = np.linspace(10_500.0, 30_000.0, 40)
    C_N = np.append(COMPUTE, ahead_M)
    R_N = sigmoid(C_N, **LAW) + 0.003 * rng.standard_normal(len(C_N))

    def known(n):
        points = usable_points(C_N[:n], R_N[:n], R0=None if free else 0.4)
        return Uncertainty(points, fit_points(points))

    now = known(20)
    found_M = ceiling_half_widths(now.fit, now.points, now.noise, ahead_M)
    assert np.all(np.diff(found_M) < 0.0)  # more evaluations never hurt
    for later in (10, 20, 40):
        # the scatter is estimated anew there; what is asked is the shape of the region
        then = known(20 + later)
        scatter = then.noise.sd * np.sqrt(then.noise.inflation) * then.noise.t()
        scatter /= now.noise.sd * np.sqrt(now.noise.inflation) * now.noise.t()
        assert found_M[later - 1] * scatter == pytest.approx(half(then.A()), rel=0.4)


def test_a_half_width_by_hand_where_C_is_beyond_every_knee():
    # Far beyond the knee s = 1, and only the mean counts: t sd / sqrt(n). Evaluations at 1e9 of a
    # curve with C_mid = 2,500 and B = 2: four added to twenty near the knee.
    it = forecast([run(seed=5, sd=0.01)]).uncertainty
    assert it.noise.inflation > 1.2  # points that err together: v of them for an independent one
    found_M = ceiling_half_widths(
        it.fit, it.points, it.noise, np.full(10_000, 1e9, dtype=np.float64)
    )
    expected = it.noise.t() * it.noise.sd * np.sqrt(it.noise.inflation) / np.sqrt(10_000)
    assert found_M[-1] == pytest.approx(expected, rel=0.02)


def test_a_budget_that_the_points_have_reached():
    made = forecast([run()])
    budget = smallest_budget(made)
    assert budget.seen and budget.C is not None and budget.C < 10_000.0
    inside = window_drift(made.curve, [budget.C, *COMPUTE[COMPUTE > budget.C]])
    assert all(row.half <= 0.02 and row.seen for row in inside)
    before = window_drift(made.curve, [COMPUTE[COMPUTE < budget.C][-1]])
    assert not (before[0].half <= 0.02 and before[0].seen)


def test_a_budget_ahead_is_reached_by_going_on():
    made = forecast([run()])
    margin = half(made.uncertainty.A()) / 2
    budget = smallest_budget(made, margin)
    assert not budget.seen and budget.C is not None and budget.C > made.last_C
    # a tighter margin takes longer, a hopeless one has no budget within twenty times the points
    later = smallest_budget(made, margin / 2)
    assert later.C is not None and later.C > budget.C
    assert (smallest_budget(made, 1e-6).C, smallest_budget(made, 1e-6).seen) == (None, False)
    assert (budget.C - 10_000.0) % 500.0 == pytest.approx(0.0, abs=1e-6)  # at the present spacing


def test_a_budget_is_not_before_twice_C_mid():
    early = forecast([run(np.linspace(200.0, 3_000.0, 20), sd=0.0005)])
    budget = smallest_budget(early)
    assert budget.C is not None and budget.C >= 2 * early.fit.C_mid
    assert not budget.seen


# ---- the worth of going on -----------------------------------------------------------------------


def test_the_price_of_a_gain_by_hand():
    # R(200) = 0.2 + 0.4 / 1.25 = 0.52, R(300) = 0.2 + 0.4 * 0.9 = 0.56: a gain of 0.04
    # for 100 hours at 3, 300 in all; 300 / 4 = 75 for each point of 0.01
    law = {"R0": 0.2, "A": 0.6, "B": 2.0, "C_mid": 100.0}
    made = forecast([run(np.linspace(10.0, 200.0, 20), sd=0.0, law=law)])
    worth = worth_of_extending(made, 300.0, 3.0)
    assert (worth.C, worth.hours, worth.cost) == (300.0, 100.0, 300.0)
    assert worth.gain.value == pytest.approx(0.04, abs=1e-6)
    assert worth.per_point == pytest.approx(75.0, rel=1e-4)
    assert half(worth.gain) < 1e-4
    assert worth_of_extending(made, 300.0, 0.0).per_point == 0.0


def test_the_gain_of_a_run_is_uncertain_as_its_rate_is():
    made = forecast([run()])
    worth = worth_of_extending(made, 20_000.0, 1.0)
    gain, rate = worth.gain, made.uncertainty.rate(20_000.0)
    assert gain.lo is not None and gain.hi is not None
    assert 0.0 < gain.lo < gain.value < gain.hi < 0.05
    assert half(gain) < half(rate)  # where the run stands now is shared by both
    assert worth_of_extending(made, 20_000.0, 1.0) == worth
    truth = sigmoid(20_000.0, **LAW) - sigmoid(10_000.0, **LAW)
    assert gain.lo < truth < gain.hi


def test_a_run_without_gain_has_no_price():
    law = {"R0": 0.2, "A": 0.6, "B": 9.0, "C_mid": 100.0}
    made = forecast([run(np.linspace(10.0, 1_000.0, 100), sd=0.0, law=law)])
    assert worth_of_extending(made, 2_000.0, 1.0).per_point is None  # 0.4 (1/10)^9 = 4e-10 to gain


@pytest.mark.parametrize(
    ("C", "price", "message"),
    [
        (10_000.0, 1.0, "C = 10000: the curve already reaches 10000; extend beyond it"),
        (9_000.0, 1.0, "extend beyond"),
        (float("inf"), 1.0, "C = inf"),
        (float("nan"), 1.0, "C = nan"),
        (20_000.0, -1.0, "price = -1.0: a price per unit of compute is 0 or more"),
        (20_000.0, float("nan"), "price = nan"),
    ],
)
def test_what_cannot_be_priced_is_refused(C, price, message):
    with pytest.raises(FitError, match=message):
        worth_of_extending(forecast([run()]), C, price)


# ---- seeds that a difference needs ---------------------------------------------------------------


def test_the_seeds_of_a_comparison_by_hand():
    # n >= 2 (t_0.975 + t_0.8)^2 (0.012 / 0.02)^2 = 0.72 (...)^2
    # n = 6, 10 degrees: 0.72 (2.2281 + 0.8791)^2 = 6.95 > 6
    # n = 7, 12 degrees: 0.72 (2.1788 + 0.8726)^2 = 6.70 <= 7
    effort = effort_to_detect(0.02, 0.012, 5_000.0)
    assert (effort.seeds, effort.C, effort.total) == (7, 5_000.0, 70_000.0)
    # level 0.9: n = 5, 8 degrees: 0.72 (1.8595 + 0.8889)^2 = 5.44; n = 6: (1.8125 + 0.8791) 5.22
    assert effort_to_detect(0.02, 0.012, 1.0, level=0.9).seeds == 6


@pytest.mark.parametrize(("difference", "sd"), [(0.02, 0.012), (0.02, 0.02), (0.03, 0.01)])
def test_so_many_seeds_have_the_power(difference, sd):
    n = effort_to_detect(difference, sd, 1.0).seeds

    def power(n):
        rng = np.random.default_rng(n)
        a, b = rng.standard_normal((2, 20_000, n))
        gap = difference / sd + b.mean(1) - a.mean(1)
        t = gap / np.sqrt((a.var(1, ddof=1) + b.var(1, ddof=1)) / n)
        return np.mean(np.abs(t) > student.ppf(0.975, 2 * (n - 1)))

    assert power(n) >= 0.8 - 0.05
    assert n == 2 or power(n - 1) <= 0.8 + 0.05


@given(st.floats(0.005, 0.05), st.floats(0.003, 0.03), st.floats(0.6, 0.95))
def test_smaller_differences_noisier_runs_and_more_power_cost_more(difference, sd, power):
    seeds = effort_to_detect(difference, sd, 1.0, power=power).seeds
    assert effort_to_detect(difference / 2, sd, 1.0, power=power).seeds >= seeds
    assert effort_to_detect(difference, 2 * sd, 1.0, power=power).seeds >= seeds
    assert effort_to_detect(difference, sd, 1.0, power=(power + 1) / 2).seeds >= seeds
    assert seeds >= 2


def test_no_scatter_takes_two_seeds():
    assert effort_to_detect(0.02, 0.0, 1.0).seeds == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"difference": 0.0}, "difference = 0.0"),
        ({"difference": -0.1}, "difference = -0.1"),
        ({"difference": 1.0}, "difference = 1.0"),
        ({"difference": float("nan")}, "difference = nan"),
        ({"power": 1.0}, "power = 1.0"),
        ({"level": 0.0}, "level = 0.0"),
    ],
)
def test_what_cannot_be_detected_is_refused(values, message):
    with pytest.raises(FitError, match=message):
        effort_to_detect(**{"difference": 0.02, "run_sd": 0.012, "C": 1.0, **values})


def test_more_seeds_than_anybody_has_are_not_promised_to_be_enough():
    """2 (1.96 + 0.84)^2 (0.02 / 0.0001)^2 = 628,000: the answer is that, or a refusal; never less."""
    try:
        effort = effort_to_detect(0.0001, 0.02, 1.0)
    except FitError:
        return
    assert effort.seeds >= 620_000
