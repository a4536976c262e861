"""What a forecast says: its verdicts, its floors, its seeds, and the published curves it is held to."""

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from scalerl.curves.curve import Curve, curve, curve_of_run
from scalerl.fit import FitError, fit_sigmoid, sigmoid
from scalerl.forecast import forecast

LAW = {"R0": 0.4, "A": 0.6, "B": 2.0, "C_mid": 2_500.0}
COMPUTE = np.linspace(500.0, 10_000.0, 20)


def run(C_N=COMPUTE, *, seed=1, sd=0.003, name="run", **changes) -> Curve:
    R_N = sigmoid(C_N, **{**LAW, **changes}) + sd * np.random.default_rng(seed).standard_normal(
        len(C_N)
    )
    return drawn(C_N, R_N, name)


def drawn(C_N, R_N, name="run") -> Curve:
    return curve(np.stack([C_N, R_N], axis=1), name).given(0.4)


def half(found) -> float:
    assert found.lo is not None and found.hi is not None
    return (found.hi - found.lo) / 2


# ---- verdicts ------------------------------------------------------------------------------------


def test_a_healthy_run_is_believed():
    made = forecast([run()])
    assert (made.verdict, made.why, made.alarms, made.seeds) == ("ok", "", [], ())
    A = made.A()
    assert A.lo is not None and A.hi is not None and A.lo <= 0.6 <= A.hi
    assert (made.last_C, made.curve.name, made.fit.n) == (10_000.0, "run", 20)


@pytest.mark.parametrize("n", [5, 6, 7])
def test_below_eight_points_nothing_is_believed(n):
    made = forecast([run(np.linspace(500.0, 10_000.0, n))])
    assert made.verdict == "not_identifiable"
    assert f"{n} points: below 8" in made.why


def test_eight_points_may_be_believed():
    assert forecast([run(np.linspace(500.0, 10_000.0, 8), sd=0.001)]).verdict == "ok"


def test_four_points_are_no_curve():
    with pytest.raises(FitError, match="4 of 4 points are in the window, a fit needs 5"):
        forecast([run(np.linspace(500.0, 10_000.0, 4))])


@pytest.mark.parametrize("last", [1_200.0, 2_400.0, 4_800.0])  # of C_mid 0.48, 0.96 and 1.92
@pytest.mark.parametrize("seed", range(4))
def test_a_knee_outside_the_points_is_not_identifiable(last, seed):
    made = forecast([run(np.linspace(200.0, last, 20), seed=seed, sd=0.001)])
    assert made.verdict == "not_identifiable"
    assert "a limit of the search" in made.why or f"the last C, {last:,.6g} GPU-h, is b" in made.why


def test_an_early_window_of_a_whole_run_is_not_identifiable():
    made = forecast([run(sd=0.001)], window=(0.0, 4_500.0))
    assert (made.verdict, made.last_C, made.whole.last_C) == ("not_identifiable", 4_500.0, 1e4)


def test_a_rise_before_the_first_point_is_not_identifiable():
    made = forecast([run(np.linspace(4_000.0, 16_000.0, 20), sd=0.0)])
    assert made.fit.C_mid == pytest.approx(2_500.0, rel=1e-3)  # B and C_mid exact, but on trust
    assert made.verdict == "not_identifiable"
    assert "the first C, 4,000 GPU-h, is above C_mid: the rise has not been seen" in made.why


@pytest.mark.parametrize("seed", range(6))
def test_a_flat_noisy_curve_is_not_identifiable(seed):
    R_N = 0.5 + 0.01 * np.random.default_rng(seed).standard_normal(20)
    assert forecast([drawn(COMPUTE, R_N)]).verdict == "not_identifiable"


@pytest.mark.parametrize("seed", [0, 1, 3, 5])
def test_a_ceiling_that_lies_anywhere_is_not_identifiable(seed):
    made = forecast([run(np.linspace(500.0, 8_000.0, 12), seed=seed, sd=0.02)])
    A = made.A()
    assert half(A) > 0.05 and made.fit.knee_seen(made.last_C) and made.fit.C_mid > 500.0
    assert (made.verdict, made.why) == (
        "not_identifiable",
        f"A lies anywhere in {A.lo:.3f} .. {A.hi:.3f}",
    )


def test_a_falling_curve_is_unstable():
    made = forecast([drawn(COMPUTE, run().R_N[::-1])])
    assert made.verdict == "unstable"
    assert made.alarms[0].name == "falling" and made.why == made.alarms[0].evidence


def test_a_run_that_breaks_after_its_window_is_unstable():
    broken = run().R_N.copy()
    broken[15:] -= 0.05
    made = forecast([drawn(COMPUTE, broken)], window=(0.0, COMPUTE[14]))
    assert made.verdict == "unstable" and "below what the first 15 evaluations predict" in made.why
    assert made.alarms[0].at == COMPUTE[15]


def test_points_without_a_start_give_no_warning():
    """Warnings are errors here: the rivals are fitted with R0 free, too."""
    points = np.stack([COMPUTE, run().R_N], axis=1)
    made = forecast([curve(points)])
    assert not made.fit.R0_fixed and half(made.R0()) > 0.0


# ---- floors and seeds ----------------------------------------------------------------------------


def seeds_of(n: int, offsets=(0.0, 0.004, -0.004, 0.002)) -> list[Curve]:
    return [
        run(seed=i, sd=0.0005, name=f"seed {i}", A=0.6 + offsets[i], C_mid=2_500.0 * (1 + 0.02 * i))
        for i in range(n)
    ]


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_seeds_know_nothing_better_than_two_hundredths(n):
    made = forecast([run(seed=i, sd=0.0005) for i in range(n)], name="recipe")
    assert half(made.uncertainty.A()) < 0.01  # the points alone claim more
    A = made.A()
    assert (A.lo, A.hi) == pytest.approx((A.value - 0.02, A.value + 0.02), abs=1e-9)
    assert len(made.seeds) == (0 if n == 1 else n)


def test_three_seeds_speak_for_themselves():
    curves = seeds_of(3)
    made = forecast(curves, name="recipe")
    # t = 2.92 for 2 degrees of freedom at 90 %: half = 2.92 sd / sqrt(3)
    A_3 = [fit_sigmoid(each.C_N, each.R_N, R0=0.4).A for each in curves]
    assert [fit.A for fit in made.seeds] == pytest.approx(A_3)
    expected = 2.92 * np.std(A_3, ddof=1) / np.sqrt(3)
    A = made.A()
    assert A.value == made.fit.A
    assert half(A) == pytest.approx(expected, rel=1e-3) and half(A) < 0.015
    rates = [float(fit.predict(30_000.0)) for fit in made.seeds]
    expected = 2.92 * np.std(rates, ddof=1) / np.sqrt(3)
    assert half(made.rate(30_000.0)) == pytest.approx(expected, rel=1e-3)
    # a positive number scatters by factors, and is known no better than by its own points
    by = np.exp(2.92 * np.std([np.log(fit.C_mid) for fit in made.seeds], ddof=1) / np.sqrt(3))
    C_mid, alone = made.C_mid(), made.uncertainty.C_mid()
    assert alone.lo is not None and alone.hi is not None
    ends = min(C_mid.value / by, alone.lo), max(C_mid.value * by, alone.hi)
    assert (C_mid.lo, C_mid.hi) == pytest.approx(ends, rel=1e-3)


def test_three_seeds_that_happen_to_agree_are_no_surer_than_their_points():
    agreeing = [run(seed=i, sd=0.01, name=f"seed {i}") for i in range(3)]
    made = forecast(agreeing)
    assert half(made.A()) >= half(made.uncertainty.A()) - 1e-12


def test_one_run_twice_is_no_second_seed():
    with pytest.raises(FitError, match=r"a and b hold the same points: one run twice\?"):
        forecast([run(name="a"), run(name="b")])


def test_draws_of_seeds_spread_as_the_reported_interval():
    made = forecast(seeds_of(4, (0.0, 0.02, -0.02, 0.01)), name="recipe")
    lo, hi = np.quantile(made.draws(20_000, 0).A_S, [0.05, 0.95])
    assert (hi - lo) / 2 == pytest.approx(half(made.A()), rel=0.15)


def test_seeds_keep_their_recipe_their_prompts_and_their_updates():
    passes = np.random.default_rng(0).integers(0, 9, (2, len(COMPUTE), 50))
    version_N = np.arange(1, len(COMPUTE) + 1)
    many = [
        replace(run(seed=i, name=f"seed {i}"), passes_NP=passes[i], k=8, held_out="digits, 50",
                version_N=version_N, recipe={"loss.kind": "cispo"})
        for i in range(2)
    ]  # fmt: skip
    whole = forecast(many).whole
    assert whole.recipe == {"loss.kind": "cispo"} and whole.held_out == "digits, 50"
    assert whole.passes_NP is not None and whole.passes_NP.shape == (2 * len(COMPUTE), 50)
    assert whole.version_N is not None and whole.version_N[:2].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("C_N", "said"),
    [
        (np.arange(10_001.0, 10_031.0), "does it begin at an offset"),
        (np.geomspace(1e-300, 1e-290, 20), "choose another unit"),
    ],
)
def test_compute_that_cannot_be_meant_is_refused(C_N, said):
    R_N = np.linspace(0.45, 0.6, len(C_N))
    with pytest.raises(FitError, match=said):
        forecast([drawn(C_N, R_N)])


def test_four_seeds_have_three_degrees_of_freedom():
    made = forecast(seeds_of(4, (0.0, 0.02, -0.02, 0.01)), name="recipe")
    # tables: t of 3, 90 %: 2.3534; sqrt(4) = 2
    sd = np.std([fit.A for fit in made.seeds], ddof=1)
    assert half(made.A()) == pytest.approx(2.3534 * sd / 2, rel=1e-4)


def test_the_floor_of_a_rate_begins_beyond_the_points():
    made = forecast([run(sd=0.0005)])
    at_the_last, beyond = made.rate(10_000.0), made.rate(10_000.1)
    assert half(at_the_last) < 0.002
    assert half(beyond) == pytest.approx(0.02, abs=1e-6)
    assert astuple(at_the_last) == pytest.approx(astuple(made.uncertainty.rate(10_000.0)))
    # of a window, beyond the window
    early = forecast([run(sd=0.0005)], window=(0.0, 7_000.0))
    assert half(early.rate(7_000.0)) < 0.005 < 0.0199 < half(early.rate(7_500.0))


def test_a_floor_stays_inside_zero_and_one():
    high = forecast([run(sd=0.0005, A=0.99)])
    A = high.A()
    assert A.hi == 1.0 and A.lo == pytest.approx(A.value - 0.02)


def test_the_published_run_to_run_scatter_is_in_the_draws():
    made = forecast([run(sd=0.0001)])
    # 0.02 is 1.645 standard deviations: 0.01216
    assert made.between_runs == pytest.approx(0.02 / student.ppf(0.95, 1e9), rel=1e-6)
    drawn = made.draws(4_000, 3)
    assert drawn.A_S.std() == pytest.approx(0.01216, rel=0.05)
    assert np.array_equal(drawn.A_S, made.draws(4_000, 3).A_S)
    assert np.all((drawn.R0_S <= drawn.A_S) & (drawn.A_S <= 1.0))


def test_a_given_R0_outranks_a_measured_one():
    points = [(0.0, 0.4), *zip(COMPUTE, run().R_N, strict=True)]
    measured = curve(points, se=[0.01] + [0.003] * 20)
    assert (measured.R0, measured.R0_se, measured.R0_from) == (0.4, 0.01, "measured")
    with_error, told = forecast([measured]), forecast([measured], R0=0.4)
    assert with_error.fit == told.fit and told.curve.R0_from == "given"
    assert half(with_error.uncertainty.A()) > half(told.uncertainty.A())
    assert half(told.R0()) == 0.0 < half(with_error.R0())


def test_seeds_in_different_units_are_refused_by_name():
    steps = curve(np.stack([COMPUTE, run().R_N], axis=1), unit="steps")
    with pytest.raises(FitError, match="recipe have different units: GPU-h, steps"):
        forecast([run(), steps], name="recipe")


@given(st.integers(0, 10_000), st.floats(0.001, 0.03), st.integers(5, 24))
def test_whatever_the_noise_a_verdict_and_ends_in_order(seed, sd, n):
    C_N = np.geomspace(200.0, 12_000.0, n)
    R_N = sigmoid(C_N, **LAW) + sd * np.random.default_rng(seed).standard_normal(n)
    made = forecast([drawn(C_N, np.clip(R_N, 0.0, 1.0))], window=(0.0, C_N[-1]))
    assert (made.verdict == "ok") == (made.why == "")
    for found in (made.A(), made.rate(20_000.0), made.B(), made.C_mid()):
        assert found.lo is None or found.lo <= found.value
        assert found.hi is None or found.value <= found.hi


def test_a_run_whose_late_evaluations_are_no_numbers_is_unstable():
    rows = zip(COMPUTE.tolist(), run().R_N.tolist(), strict=True)
    events = [{"kind": "eval", "set": "validation", "C": C, "pass_rate": R} for C, R in rows]
    for event in events[-5:]:
        event["pass_rate"] = float("nan")
    made = forecast([curve_of_run(events, "run")], R0=0.4, events=[events])
    assert made.verdict == "unstable"
    assert made.why == "5 evaluations have no number for C or pass_rate, 15 have"


def test_seeds_share_the_chance_of_a_false_alarm():
    """A late point that one run of its own is called broken for is forgiven one of five."""
    healthy = [run(seed=i, name=f"seed {i}") for i in range(1, 5)]
    limits = set()
    for drop in np.linspace(0.005, 0.03, 26):
        low = run(seed=9, name="low")
        low.R_N[-1] -= drop
        window = (0.0, float(COMPUTE[-2]))
        alone = forecast([low], window=window).verdict == "unstable"
        among = forecast([low, *healthy], window=window).verdict == "unstable"
        limits.add((alone, among))
    assert (True, False) in limits and (True, True) in limits and (False, True) not in limits
