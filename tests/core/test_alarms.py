"""Each alarm on the smallest series that sets it off, and on its neighbour that does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.curves.alarms import (
    Alarm,
    alarms,
    falling,
    jump,
    lost,
    low_ess,
    residual,
    truncation,
    truncation_trend,
    zero_variance,
)
from scalerl.curves.curve import Curve, curve
from scalerl.fit import sigmoid

LAW = {"R0": 0.4, "A": 0.6, "B": 2.0, "C_mid": 2_500.0}
COMPUTE = np.linspace(200.0, 12_000.0, 60)


def updates(**metrics):
    """One update event for each value: updates(truncated=[0.01, 0.02])."""
    columns = zip(*metrics.values(), strict=True)
    return [
        {"kind": "update", "update": i, **dict(zip(metrics, row, strict=True))}
        for i, row in enumerate(columns, 1)
    ]


def drawn(C_N, R_N) -> Curve:
    return curve(np.stack([C_N, R_N], axis=1)).given(0.4)


def noisy(seed, sd=0.005, C_N=COMPUTE):
    return sigmoid(C_N, **LAW) + sd * np.random.default_rng(seed).standard_normal(len(C_N))


def fired(alarm: Alarm | None) -> tuple[str, float] | None:
    return None if alarm is None else (alarm.level, alarm.at)


# ---- a healthy run -------------------------------------------------------------------------------


def healthy(n=200, seed=0):
    rng = np.random.default_rng(seed)

    def about(mean, sd):
        return np.clip(mean + sd * rng.standard_normal(n), 0.0, 1.0).tolist()

    return updates(
        truncated=about(0.02, 0.005),
        entropy=about(0.3, 0.02),
        kl=about(0.001, 0.0001),
        ess=about(0.97, 0.01),
        zero_variance=about(0.3, 0.05),
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_sets_nothing_off(seed):
    assert alarms(drawn(COMPUTE, noisy(seed)), healthy(seed=seed)) == []


def test_without_events_or_metrics_nothing_is_said():
    good = drawn(COMPUTE, noisy(1))
    assert alarms(good) == []
    assert alarms(good, [{"kind": "run"}, *updates(loss=[0.1] * 50)]) == []


def test_the_gravest_comes_first():
    broken = noisy(1)
    broken[40:] -= 0.1
    events = updates(truncated=[0.2] * 8, ess=[0.7] * 8, zero_variance=[0.95] * 8)
    found = alarms(drawn(COMPUTE, broken), events)
    levels = [alarm.level for alarm in found]
    assert levels == sorted(levels, key=["collapse", "danger", "watch"].index)
    assert found[0].name == "truncated" and levels[-1] == "watch"
    assert {"residual", "zero-variance", "ess"} <= {alarm.name for alarm in found}


def test_evaluations_and_other_events_are_no_updates():
    others = [{"kind": "evaluation", "update": i, "truncated": 0.5} for i in range(20)]
    assert alarms(drawn(COMPUTE, noisy(1)), others) == []


# ---- levels --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.049, None),
        (0.051, ("watch", 8.0)),
        (0.099, ("watch", 8.0)),
        (0.101, ("danger", 8.0)),
        (0.149, ("danger", 8.0)),
        (0.151, ("collapse", 8.0)),
    ],
)
def test_truncation_by_its_mean_over_eight_updates(value, expected):
    assert fired(truncation(updates(truncated=[value] * 8))) == expected
    assert truncation(updates(truncated=[value] * 7)) is None


def test_one_bad_update_counts_an_eighth():
    # 0.39 / 8 = 0.04875, 0.41 / 8 = 0.05125
    assert truncation(updates(truncated=[0.0] * 10 + [0.39] + [0.0] * 10)) is None
    found = truncation(updates(truncated=[0.0] * 10 + [0.41] + [0.0] * 10))
    assert found is not None and fired(found) == ("watch", 11.0)
    assert "5.1% at worst, 0.0% now" in found.evidence  # it stays reported, and says so
    assert found.threshold == "above 5%"


def test_the_gravest_level_says_when_it_was_first_reached():
    # From update 9 on truncation is 0.2: the mean passes 0.05, 0.10, 0.15 after 2 1/4, 4.. steps:
    # 0.2 j / 8 > 0.15 first at j = 7, update 15
    found = truncation(updates(truncated=[0.0] * 8 + [0.2] * 8))
    assert fired(found) == ("collapse", 15.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.81, None), (0.79, ("watch", 8.0)), (0.51, ("watch", 8.0)), (0.49, ("danger", 8.0))],
)
def test_effective_sample_size_by_its_mean(value, expected):
    assert fired(low_ess(updates(ess=[value] * 8))) == expected
    assert low_ess(updates(ess=[value] * 7)) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.59, None), (0.61, ("watch", 8.0)), (0.89, ("watch", 8.0)), (0.91, ("danger", 8.0))],
)
def test_groups_without_variance_by_their_mean(value, expected):
    assert fired(zero_variance(updates(zero_variance=[value] * 8))) == expected
    assert zero_variance(updates(zero_variance=[value] * 7)) is None


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), "0.9"])
def test_updates_without_a_number_are_left_out(bad):
    # Of 15 updates 8 have one, the last of them update 15.
    values = [0.06 if i % 2 == 0 else bad for i in range(15)]
    assert fired(truncation(updates(truncated=values))) == ("watch", 15.0)
    assert truncation(updates(truncated=values[:14])) is None  # seven numbers
    without = [{"kind": "update", "update": 99}, {"kind": "update", "truncated": 0.5}]
    assert fired(truncation(updates(truncated=values) + without)) == ("watch", 15.0)
    assert jump(updates(kl=[bad] * 50), "kl") is None
    assert truncation_trend(updates(truncated=[bad] * 50)) is None


# ---- jumps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kl", "entropy"])
def test_a_jump_is_half_as_much_again(name):
    # Before: 0.2 at every update, MAD 0. 0.298 is less than 1.5 times, 0.302 more.
    assert jump(updates(**{name: [0.2] * 32 + [0.298] * 8}), name) is None
    found = jump(updates(**{name: [0.2] * 32 + [0.302] * 8}), name)
    assert found is not None and found.name == f"{name} jump"
    assert fired(found) == ("watch", 40.0)
    assert jump(updates(**{name: [0.2] * 31 + [0.302] * 8}), name) is None  # 31 are too few
    assert jump(updates(**{name: [0.2] * 32 + [0.302] * 7}), name) is None


@pytest.mark.parametrize(("name", "least"), [("kl", 0.01), ("entropy", 0.1)])
def test_a_jump_from_nothing_to_next_to_nothing_is_none(name, least):
    assert jump(updates(**{name: [1e-4] * 32 + [0.99 * least] * 8}), name) is None
    assert jump(updates(**{name: [1e-4] * 32 + [1.01 * least] * 8}), name) is not None


def test_a_jump_is_three_robust_standard_deviations_of_the_logarithm():
    # In turn 1/e^0.2 and e^0.2: median of ln 0, MAD 0.2, spread 0.29652; three of them: e^0.88956 = 2.434
    before = [np.exp(-0.2), np.exp(0.2)] * 16
    assert jump(updates(kl=before + [2.42] * 8), "kl") is None
    assert fired(jump(updates(kl=before + [2.45] * 8), "kl")) == ("watch", 40.0)


def test_kl_that_scatters_by_factors_does_not_jump():
    fires = 0
    for seed in range(20):
        kl = 0.05 * np.exp(0.8 * np.random.default_rng(seed).standard_normal(1_000))
        fires += jump(updates(kl=kl.tolist()), "kl") is not None
    assert fires <= 1


def test_a_jump_is_seen_while_it_happens():
    # tenfold from update 41 on: the mean of eight is 0.01 (8 + 9 j) / 8 after j updates;
    # j = 1: 0.02125, more than 1.5 times and 56 floors away
    assert fired(jump(updates(kl=[0.01] * 40 + [0.1] * 8), "kl")) == ("watch", 41.0)


def test_a_fall_is_no_jump():
    assert jump(updates(entropy=[1.0] * 32 + [0.1] * 20), "entropy") is None
    assert jump(updates(kl=[0.0] * 60), "kl") is None


# ---- trends --------------------------------------------------------------------------------------


def ramp(slope, n=24):
    return updates(truncated=[0.02 + slope * i for i in range(n)])


def test_a_trend_that_would_reach_ten_per_cent():
    # 0.02 + slope * (11.5 + 36) is the value 24 updates on: 0.10 at slope 0.0016842
    assert truncation_trend(ramp(0.00168)) is None
    found = truncation_trend(ramp(0.00169))
    assert fired(found) == ("watch", 24.0)
    assert found is not None and "rises by 0.17 points an update, 10% in 24 more" in found.evidence
    assert truncation_trend(ramp(0.00169, n=23)) is None


def test_a_trend_must_stand_out_of_its_noise():
    # slope 0.0017 against a zigzag of h: the slope's standard error is close to
    # h sqrt(24 / 22 / 1150) = 0.0308 h; t = 4 at h = 0.0138
    def zigzag(h):
        zig = h * np.tile([1.0, -1.0, -1.0, 1.0], 6)  # no slope of its own
        return updates(truncated=(0.025 + 0.0017 * np.arange(24) + zig).tolist())

    assert truncation_trend(zigzag(0.012)) is not None
    assert truncation_trend(zigzag(0.016)) is None


def test_what_is_past_ten_per_cent_is_no_trend_any_more():
    # mean of the first 24: 0.15 + 11.5 * 0.002 = 0.173
    high = updates(truncated=[0.15 + 0.002 * i for i in range(24)])
    assert truncation_trend(high) is None and fired(truncation(high)) == ("collapse", 8.0)


# ---- the curve -----------------------------------------------------------------------------------


def test_evaluations_below_the_prediction_set_it_off():
    R_N = noisy(3)
    R_N[30:] -= 0.05
    found = residual(drawn(COMPUTE, R_N), COMPUTE[29])
    assert found is not None
    assert (found.name, found.level, found.at, found.of) == (
        "residual",
        "danger",
        COMPUTE[30],
        "compute",
    )
    assert "below what the first 30 evaluations predict" in found.evidence
    assert residual(drawn(COMPUTE, noisy(3)), COMPUTE[29]) is None
    higher = noisy(3)
    higher[30:] += 0.05
    assert residual(drawn(COMPUTE, higher), COMPUTE[29]) is None  # good news is no alarm


def test_the_threshold_falls_with_every_evaluation():
    # 0.05 / (j (j + 1)): 0.0083 at the second late evaluation, 0.00045 at the tenth
    for j, share in ((2, "0.008"), (10, "0.0005")):
        R_N = noisy(3)
        R_N[29 + j] -= 0.1
        found = residual(drawn(COMPUTE[:45], R_N[:45]), COMPUTE[29])
        assert found is not None and found.at == COMPUTE[29 + j]
        assert f"< {share} " in found.threshold


@pytest.mark.parametrize("n", range(1, 10))
def test_a_short_curve_is_no_error(n):
    assert residual(drawn(COMPUTE[:n], noisy(3)[:n])) is None
    assert residual(drawn(COMPUTE[:n], noisy(3)[:n]), float(COMPUTE[n - 1])) is None
    assert alarms(drawn(COMPUTE[:n], noisy(3)[:n])) == []


def test_a_baseline_before_the_points_predicts_nothing():
    assert residual(drawn(COMPUTE, noisy(3)), 0.0) is None


def test_a_baseline_that_has_not_seen_the_knee_is_not_used():
    C_N = np.linspace(50.0, 1_600.0, 32)  # ends at 0.64 C_mid
    R_N = noisy(3, C_N=C_N)
    R_N[20:] -= 0.05
    assert residual(drawn(C_N, R_N)) is None


def test_few_healthy_runs_are_called_broken():
    called = [residual(drawn(COMPUTE, noisy(seed))) is not None for seed in range(200)]
    assert np.mean(called) <= 0.10, np.mean(called)


def test_a_loss_of_five_points_is_caught_within_two_evaluations():
    late = []
    for seed in range(60):
        R_N = noisy(1_000 + seed)
        R_N[40:] -= 0.05
        found = residual(drawn(COMPUTE, R_N))
        late.append(np.inf if found is None else np.searchsorted(COMPUTE, found.at) - 40 + 1)
    assert np.mean(np.array(late) <= 2) >= 0.95, late


def test_a_curve_that_ends_lower_than_it_stood():
    # Thirds of six points: means 0.5, 0.6, 0.57; each point 0.002 from its mean: 6 * 4e-6 over 6 - 3 is
    # a variance of 8e-6; t(3 degrees of freedom) at 99.9 % is 10.21: 10.21 sqrt(8e-6 / 2 * 2) = 0.0289
    C_N = np.arange(1.0, 7.0)
    assert falling(drawn(C_N, np.array([0.498, 0.502, 0.598, 0.602, 0.570, 0.574]))) is None
    found = falling(drawn(C_N, np.array([0.498, 0.502, 0.598, 0.602, 0.568, 0.572])))
    assert found is not None and (found.level, found.at) == ("danger", 5.0)
    assert "mean 0.570, an earlier one 0.600" in found.evidence
    assert "0.030 > 0.029" in found.threshold
    assert falling(drawn(C_N[:5], np.array([0.5, 0.6, 0.6, 0.5, 0.4]))) is None  # five are too few
    assert falling(drawn(C_N, np.array([0.498, 0.502, 0.598, 0.602, 0.648, 0.652]))) is None
    # 0.0095 lower is less than 0.01, however quiet: 0.5905 against 0.6
    assert falling(drawn(C_N, np.array([0.5, 0.5, 0.6, 0.6, 0.5905, 0.5905]))) is None
    # 0.03 lower, but pairs 0.04 apart: 3 sqrt(4e-4 + 4e-4) = 0.085
    assert falling(drawn(C_N, np.array([0.5, 0.5, 0.58, 0.62, 0.55, 0.59]))) is None


@given(st.integers(0, 10_000), st.integers(9, 60), st.floats(0.001, 0.02))
def test_a_rising_curve_does_not_fall(seed, n, sd):
    C_N = np.geomspace(500.0, 5_000.0, n)
    assert falling(drawn(C_N, np.clip(noisy(seed, sd, C_N), 0.0, 1.0))) is None


def test_a_short_baseline_knows_little_of_what_comes():
    """Twelve points to 2.2 C_mid leave the ceiling open; that is no reason to call a run broken."""
    fired_of = 0
    C_N = np.append(np.linspace(500.0, 5_500.0, 12), np.linspace(6_000.0, 15_000.0, 12))
    for seed in range(60):
        e_N = 0.004 * np.random.default_rng(seed).standard_normal(24)
        fired_of += residual(drawn(C_N, sigmoid(C_N, **LAW) + e_N), 5_500.0) is not None
    assert fired_of <= 6


# ---- evaluations that are none -------------------------------------------------------------------


def test_evaluations_without_a_number_are_told():
    def evaluation(C, rate):
        return {"kind": "eval", "set": "validation", "C": C, "pass_rate": rate}

    fine = [evaluation(float(C), 0.5) for C in range(1, 15)]
    made = drawn(np.arange(1.0, 15.0), np.full(14, 0.5))
    assert lost(made, fine) is None
    found = lost(made, [*fine, evaluation(15.0, float("nan")), evaluation(None, 0.5)])
    assert found is not None and found.level == "danger"
    assert found.evidence == "2 evaluations have no number for C or pass_rate, 14 have"
    other = {**evaluation(15.0, None), "set": "ood"}
    assert lost(made, [*fine, other]) is None
