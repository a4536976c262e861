"""Two curves side by side: who is ahead, where they cross, and what makes one faster."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from scalerl.curves.comparison import (
    Comparison,
    Speed,
    efficiency,
    exponent_at,
    share_prompts,
    speed,
)
from scalerl.curves.curve import Curve, curve, differing_settings
from scalerl.curves.prompts import between_prompts
from scalerl.fit import FitError, sigmoid
from scalerl.forecast import Forecast, forecast

LOW = {"R0": 0.2, "A": 0.6, "B": 1.0, "C_mid": 100.0}
HIGH = {"R0": 0.2, "A": 0.8, "B": 2.0, "C_mid": 300.0}
COMPUTE = np.linspace(20.0, 1_000.0, 40)


def run(law, name="run", *, sd=0.0, seed=0, C_N=COMPUTE, **more) -> Curve:
    R_N = sigmoid(C_N, **law) + sd * np.random.default_rng(seed).standard_normal(len(C_N))
    made = curve(np.stack([C_N, np.clip(R_N, 0.0, 1.0)], axis=1), name).given(law["R0"])
    return replace(made, **more)


def made(law, name="run", **more) -> Forecast:
    return forecast([run(law, name, **more)])


def width(found) -> float:
    assert found.lo is not None and found.hi is not None
    return found.hi - found.lo


# ---- crossings -----------------------------------------------------------------------------------


def test_a_crossing_by_hand():
    # At C = 300: 0.2 + 0.4 / (1 + 1/3) = 0.5 and 0.2 + 0.6 / (1 + 1) = 0.5. It is the only one:
    # 0.4 C / (C + 100) = 0.6 C^2 / (C^2 + 90,000)  =>  C^2 + 300 C - 180,000 = 0  =>  C = 300
    both = Comparison([made(LOW, "low"), made(HIGH, "high")])
    found = both.crossing(0, 1, 5_000.0)
    assert (found.a, found.b, found.reach) == ("low", "high", 5_000.0)
    assert found.C is not None and found.C.value == pytest.approx(300.0, rel=1e-3)
    assert found.C.lo is not None and found.C.hi is not None
    assert found.C.lo < 300.0 < found.C.hi  # what another run would do is in it
    assert 0.9 < found.chance <= 1.0
    back = both.crossing(1, 0, 5_000.0)
    assert back.C is not None and back.C.value == pytest.approx(found.C.value)
    # it lies beyond a reach of 250
    assert both.crossing(0, 1, 250.0).C is None


def test_curves_that_do_not_cross():
    both = Comparison([made(LOW), made({**LOW, "A": 0.9})])
    found = both.crossing(0, 1, 5_000.0)
    assert found.C is None and found.chance < 0.05


def test_of_two_crossings_the_last_one_counts():
    # s = C / (C + 100) against s^2 / (1/4 + s^2)-like curves cross twice when the steeper one is
    # ahead in between only: R0 + 0.5 C / (C + 100) and R0 + 0.4 / (1 + (80 / C)^3)
    gentle = {"R0": 0.2, "A": 0.7, "B": 1.0, "C_mid": 100.0}
    steep = {"R0": 0.2, "A": 0.6, "B": 3.0, "C_mid": 80.0}
    C_M = np.geomspace(20.0, 5_000.0, 200_001)
    gap_M = sigmoid(C_M, **gentle) - sigmoid(C_M, **steep)
    turns = np.flatnonzero(np.sign(gap_M[1:]) != np.sign(gap_M[:-1]))
    assert len(turns) == 2
    found = Comparison([made(gentle), made(steep)]).crossing(0, 1, 5_000.0).C
    assert found is not None and found.value == pytest.approx(C_M[turns[1]], rel=1e-3)


# ---- duels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [100.0, 1_000.0, 10_000.0])
def test_a_curve_against_an_independent_copy_is_a_toss_up(C):
    one = made(LOW, "one", sd=0.01, seed=4)
    duel = Comparison([one, replace(one, curve=replace(one.curve, name="copy"))]).duel(0, 1, C)
    assert (duel.a, duel.b, duel.C, duel.paired) == ("one", "copy", C, False)
    assert duel.ahead == pytest.approx(0.5, abs=0.04)
    assert duel.difference.value == 0.0 and width(duel.difference) > 0.005
    assert duel.difference.lo == pytest.approx(-(duel.difference.hi or 0.0), rel=0.15)


def test_a_difference_by_hand():
    # At 900: 0.2 + 0.4 * 0.9 = 0.56 and 0.2 + 0.6 * 0.9 = 0.74: 0.18 apart, far beyond +-0.02
    both = Comparison([made(LOW, "low"), made(HIGH, "high")])
    duel = both.duel(1, 0, 900.0)
    assert duel.difference.value == pytest.approx(0.18, abs=1e-5)
    assert duel.ahead == 1.0 and both.duel(0, 1, 900.0).ahead == 0.0
    # Left of the crossing the other is ahead: at 100 0.4 against 0.2 + 0.6 / 10 = 0.26
    assert both.duel(0, 1, 100.0).difference.value == pytest.approx(0.14, abs=1e-5)
    assert both.duel(0, 1, 100.0).ahead > 0.999


def test_what_other_runs_would_do_is_part_of_a_duel():
    # At 1e9 both stand at A, without noise; each another run's 0.01216 apart: the difference has
    # sd 0.01216 sqrt(2) = 0.0172, its 90 % interval +-0.0283, and 0.01 is 0.581 sd: chance 0.719
    both = Comparison([made({**LOW, "A": 0.61}), made(LOW)])
    duel = both.duel(0, 1, 1e9)
    assert width(duel.difference) / 2 == pytest.approx(0.0283, rel=0.06)
    assert duel.ahead == pytest.approx(0.719, abs=0.03)


def test_best_at_shares_out_one():
    all_three = Comparison([made(LOW, "low"), made(HIGH, "high"), made({**LOW, "A": 0.62}, "mid")])
    for C in (50.0, 300.0, 1_000.0, 1e5):
        assert sum(all_three.best_at(C)) == pytest.approx(1.0)
    assert all_three.best_at(1e5) == [0.0, 1.0, 0.0]  # in the order they were given
    early = all_three.best_at(50.0)  # 0.333, 0.216 and 0.34 by the fits
    assert early[2] > early[0] > early[1] == 0.0


def test_chances_are_those_of_the_seed():
    pair = [made(LOW, "low", sd=0.01), made({**LOW, "A": 0.61}, "other", sd=0.01, seed=9)]
    one, again, another = (Comparison(pair, seed).duel(0, 1, 900.0) for seed in (3, 3, 4))
    assert one == again and one != another
    assert another.ahead == pytest.approx(one.ahead, abs=0.05)


def test_units_must_be_the_same():
    with pytest.raises(FitError, match=r"2 curves in units \['GPU-h', 'steps'\]"):
        Comparison([made(LOW), made(LOW, unit="steps")])
    with pytest.raises(FitError, match="0 curves in units"):
        Comparison([])


def test_ceilings_within_two_hundredths_are_the_same():
    both = Comparison([made(LOW), made({**LOW, "A": 0.615}), made({**LOW, "A": 0.625})])
    assert both.same_ceiling(0, 1) and both.same_ceiling(1, 2) and not both.same_ceiling(0, 2)


# ---- shared prompts ------------------------------------------------------------------------------


def on_prompts(law, name, seed, held_out="set") -> Curve:
    """16 completions of each of 200 prompts, hard or easy, at each evaluation."""
    rng = np.random.default_rng(seed)
    hard_P = np.random.default_rng(77).standard_normal(200)  # of the prompts, the same for all
    rate_N = sigmoid(COMPUTE, **law)
    odds_NP = np.log(rate_N / (1 - rate_N))[:, None] * 1.5 + 2.0 * hard_P
    passes_NP = rng.binomial(16, 1 / (1 + np.exp(-odds_NP)))
    R_N = passes_NP.mean(axis=1) / 16
    found = curve(np.stack([COMPUTE, R_N], axis=1), name).given(law["R0"])
    return replace(found, passes_NP=passes_NP, k=16, held_out=held_out)


def test_shared_prompts_make_a_comparison_sharper():
    a, b = on_prompts(LOW, "a", 1), on_prompts(HIGH, "b", 2)
    elsewhere = replace(b, held_out="another set")
    paired = Comparison([forecast([a]), forecast([b])]).duel(0, 1, 900.0)
    apart = Comparison([forecast([a]), forecast([elsewhere])]).duel(0, 1, 900.0)
    assert paired.paired and not apart.paired
    assert width(paired.difference) < 0.9 * width(apart.difference)
    assert paired.difference.value == apart.difference.value
    # prompts on which the two differ are left: more than if nothing were known of prompts
    bare = [forecast([replace(each, passes_NP=None)]) for each in (a, b)]
    assert width(paired.difference) > width(Comparison(bare).duel(0, 1, 900.0).difference)
    assert share_prompts(a, b) and not share_prompts(a, elsewhere)
    assert not share_prompts(a, replace(b, passes_NP=None))
    assert not share_prompts(replace(a, held_out=None), replace(b, held_out=None))


def test_the_error_between_prompts_by_hand():
    # Two evaluations of 10 completions, a third of two is one: the last alone counts. Rates 1, 1,
    # 0, 0: variance 4 * 0.25 / 3 = 1/3, none of it from completions; sqrt(1/3 / 4) = 0.288675
    passes_NP = np.array([[5, 5, 5, 5], [10, 10, 0, 0]])
    one = replace(run(LOW), passes_NP=passes_NP, k=10)
    assert between_prompts(one) == pytest.approx(0.288675, abs=1e-6)
    # Half right on each: var 0, less than completions alone would give: 0, not the root of less
    assert between_prompts(replace(one, passes_NP=np.full((2, 4), 5))) == 0.0
    # Against itself nothing differs but completions
    assert between_prompts(one, one) == 0.0
    # Rates 0.8, 0.6, 0.4, 0.2: variance 0.2 / 3; completions: mean q (1 - q) = 0.2, over 9
    four = replace(one, passes_NP=np.array([[0, 0, 0, 0], [8, 6, 4, 2]]))
    assert between_prompts(four) == pytest.approx(np.sqrt((0.2 / 3 - 0.2 / 9) / 4), rel=1e-9)
    assert between_prompts(run(LOW)) == 0.0


def test_the_error_between_prompts_widens_a_forecast():
    known = forecast([on_prompts(LOW, "a", 1)])
    unknown = forecast([replace(on_prompts(LOW, "a", 1), passes_NP=None)])
    assert known.prompts_se > 0.01 and unknown.prompts_se == 0.0
    A = known.uncertainty.A()
    assert A.hi is not None
    above = known.A().hi
    assert above is not None
    assert above - known.fit.A == pytest.approx(
        np.hypot(A.hi - known.fit.A, 1.6449 * known.prompts_se), rel=1e-4
    )


# ---- efficiency ----------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [LOW, HIGH])
def test_points_without_noise_lie_on_the_line(law):
    found = efficiency(made(law))
    assert found.dropped == 0
    assert found.logit_N == pytest.approx(found.slope * found.lnC_N + found.intercept, abs=1e-4)
    assert found.slope == pytest.approx(law["B"], rel=1e-4)
    assert -found.intercept / found.slope == pytest.approx(np.log(law["C_mid"]), abs=1e-4)
    assert np.max(found.half_N) < 1e-3


def test_points_without_a_logarithm_are_counted():
    saturated = {**LOW, "B": 3.0}
    it = made(saturated, sd=0.01, seed=2)
    found, R_N = efficiency(it), it.curve.R_N
    lost = int(np.sum(R_N >= it.fit.A) + np.sum(R_N <= it.fit.R0))
    assert found.dropped == lost > 5
    assert len(found.lnC_N) == len(found.logit_N) == len(found.half_N) == 40 - lost
    assert np.all(np.isfinite(found.logit_N))


def test_an_error_bar_by_hand():
    it = made(LOW, sd=0.01, seed=2)
    found = efficiency(it)
    i = int(np.argmin(np.abs(found.logit_N)))
    # halfway up d logit / dR = (A - R0) / ((A - R0) / 2)^2 = 4 / (A - R0)
    expected = it.uncertainty.noise.t() * it.uncertainty.noise.sd * 4 / (it.fit.A - it.fit.R0)
    assert found.half_N[i] == pytest.approx(expected, rel=0.02)


def test_the_exponent_at_the_true_ceiling_is_the_true_one():
    it = made(HIGH)
    found = exponent_at(it, 0.8)
    assert found is not None and found == pytest.approx((2.0, 300.0), rel=1e-4)
    higher = exponent_at(it, 0.85)
    assert higher is not None and higher[0] < 2.0 and higher[1] > 300.0  # along the ridge
    assert exponent_at(it, 0.2) is None and exponent_at(it, 0.1) is None  # no rise to it
    assert exponent_at(it, float(np.quantile(it.curve.R_N, 0.5))) is None


def test_at_a_common_ceiling_the_exponent_scatters_less():
    found = []
    for seed in range(12):
        it = made(HIGH, sd=0.01, seed=seed)
        held = exponent_at(it, 0.8)
        assert held is not None
        found.append((it.fit.B, held[0]))
    free, held = np.std(found, axis=0)
    assert held < 0.8 * free


# ---- speed ---------------------------------------------------------------------------------------

A_RUN = {"R0": 0.2, "A": 0.6, "B": 2.0, "C_mid": 100.0}


def test_a_speed_by_hand():
    # 80 % of the gain: C_mid * 4^(1/2): 200 and 300. Ten GPU-hours an update against five:
    # 20 and 60 updates. 300 / 200 = 1.5 = (60 / 20) * (5 / 10)
    a = made(A_RUN, version_N=np.round(COMPUTE / 10).astype(np.int64))
    b = made({**A_RUN, "C_mid": 150.0}, version_N=np.round(COMPUTE / 5).astype(np.int64))
    found = speed(a, b)
    assert found is not None
    assert (found.target, found.C_a, found.C_b) == pytest.approx((0.52, 200.0, 300.0), rel=1e-4)
    assert (found.updates_a, found.updates_b) == pytest.approx((20.0, 60.0), rel=0.02)
    assert found.ratio == pytest.approx(1.5, rel=1e-4)
    assert found.updates_ratio == pytest.approx(3.0, rel=0.03)
    assert found.per_update_ratio == pytest.approx(0.5, rel=0.03)
    back = speed(b, a)
    assert back is not None and back.ratio == pytest.approx(1 / 1.5, rel=1e-4)
    # the published split: 2.0 in compute, 1.2 in learning (updates), 1.7 in throughput
    paper = Speed(0.5, 1_986.0, 4_042.0, 1_370.0, 1_656.0)
    assert paper.ratio == pytest.approx(2.04, abs=0.01)
    assert paper.updates_ratio == pytest.approx(1.21, abs=0.01)
    assert paper.per_update_ratio == pytest.approx(1.68, abs=0.01)


def test_a_speed_to_a_rate_of_ones_own():
    steps = np.round(COMPUTE).astype(np.int64)
    a, b = made(A_RUN, version_N=steps), made({**A_RUN, "C_mid": 150.0}, version_N=steps)
    found = speed(a, b, target=0.4)  # half of the gain: C_mid
    assert found is not None and (found.C_a, found.C_b) == pytest.approx((100.0, 150.0), rel=1e-4)


def test_what_was_not_reached_or_not_recorded_has_no_speed():
    steps = np.round(COMPUTE).astype(np.int64)
    a = made(A_RUN, version_N=steps)
    assert speed(a, made(A_RUN)) is None  # no updates on record
    assert speed(a, a, target=0.7) is None  # above its ceiling
    assert speed(a, a, target=0.2) is None  # where it began
    assert speed(a, a, target=0.599) is None  # beyond its last point: 100 * 399^(1/2) = 1,997


# ---- settings ------------------------------------------------------------------------------------


def test_settings_that_differ_and_no_others():
    a = {"loss.kind": "cispo", "k": 8, "lr": 5e-7, "seed": 1}
    b = {"loss.kind": "dapo", "k": 8, "clip": 0.26, "seed": 2}
    curves = [run(LOW, "a", recipe={**a, "name": "x"}), run(LOW, "b", recipe=b)]
    assert differing_settings(curves) == {
        "loss.kind": ["cispo", "dapo"],
        "lr": [5e-7, None],
        "clip": [None, 0.26],
    }
    assert differing_settings([curves[0], curves[0]]) == {}
    assert differing_settings([curves[0], run(LOW)]) == {}  # one recipe is not known


def test_records_of_a_comparison_compare_by_value():
    both = Comparison([made(LOW, "low"), made(HIGH, "high")])
    assert astuple(both.duel(0, 1, 500.0)) == astuple(both.duel(0, 1, 500.0))
