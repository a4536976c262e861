"""Metric types: how they merge, what an empty one says, and the statistics of the ratio."""

import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.metrics import EffectiveSampleSize, Max, Mean, Sum, merge_all, ratio_stats

log_ratios = st.lists(st.floats(-8, 8), max_size=20)


def values(log_ratio: list[float]) -> dict[str, float | int | None]:
    return {k: m.value for k, m in ratio_stats(np.array(log_ratio, dtype=np.float64)).items()}


def test_mean_merges_by_weight_not_by_shard():
    # (3 tokens of mean 1) and (1 token of 5): (3 + 5) / 4 = 2, not (1 + 5) / 2 = 3
    assert Mean(3.0, 3).merge(Mean(5.0, 1)).value == 2.0


def test_an_empty_mean_is_none_and_neutral():
    assert Mean(0.0, 0).value is None
    assert Mean(0.0, 0).merge(Mean(6.0, 4)) == Mean(6.0, 4)
    assert json.dumps(Mean(0, 0).value) == "null"


@pytest.mark.parametrize("weight", [-1, math.nan])
def test_a_weight_below_zero_is_refused(weight):
    with pytest.raises(ValueError, match="weight"):
        Mean(1.0, weight)


def test_max():
    assert Max(3).merge(Max(7)).value == 7
    assert Max(-7).merge(Max(-3)).value == -3
    assert Max(None).merge(Max(-2)) == Max(-2) == Max(-2).merge(Max(None))
    assert Max(None).merge(Max(None)).value is None


@pytest.mark.parametrize("pair", [(math.nan, 1.0), (1.0, math.nan)])
def test_max_keeps_a_nan_from_either_side(pair):
    merged = Max(pair[0]).merge(Max(pair[1])).value
    assert merged is not None and math.isnan(merged)


def test_sum_keeps_integers():
    merged = Sum(2).merge(Sum(3)).value
    assert merged == 5 and isinstance(merged, int)


def test_merge_all_by_name_and_type():
    shards = [
        {"loss": Mean(1.0, 2), "tokens": Sum(10), "longest": Max(4)},
        {"loss": Mean(5.0, 1), "tokens": Sum(7), "longest": Max(9), "rare": Sum(1)},
    ]
    assert merge_all(shards) == {
        "loss": Mean(6.0, 3),
        "tokens": Sum(17),
        "longest": Max(9),
        "rare": Sum(1),
    }
    assert merge_all([]) == {}
    assert shards[0] == {"loss": Mean(1.0, 2), "tokens": Sum(10), "longest": Max(4)}


def test_one_name_with_two_types_is_refused():
    # Max and Sum have the same field: duck typing would merge them
    with pytest.raises(TypeError, match="tokens: Sum cannot merge with Max"):
        merge_all([{"tokens": Sum(1)}, {"tokens": Max(2)}])


@pytest.mark.parametrize("metric", [Mean(1.0, 2), Max(3), Sum(4), EffectiveSampleSize(1.0, 1.0, 1)])
def test_metrics_are_frozen_and_travel(metric):
    assert pickle.loads(pickle.dumps(metric)) == metric
    with pytest.raises(AttributeError):
        setattr(metric, next(iter(vars(metric))), 0)


def test_ratio_stats_by_hand():
    # rho = 1, 2: kl terms 0 and 2 ln 2 - 2 + 1 = 0.386294, mean 0.193147
    # ess = (1 + 2)^2 / (2 * (1 + 4)) = 0.9
    stats = values([0.0, math.log(2)])
    assert stats["kl"] == pytest.approx((2 * math.log(2) - 1) / 2, rel=1e-12)
    assert stats["ess"] == pytest.approx(0.9, rel=1e-12)


def test_kl_is_of_the_trainer_against_the_generator():
    # mu = (3/4, 1/4), pi = (1/4, 3/4), sampled from mu in its proportions: rho = 1/3 thrice, 3 once
    # sum over mu of rho log rho = 1/4 ln(1/3) + 3/4 ln 3 = (ln 3) / 2; the rho - 1 add up to 0
    third = -math.log(3)
    assert values([third, third, third, -third])["kl"] == pytest.approx(math.log(3) / 2, rel=1e-12)


def test_kl_of_close_weights_keeps_its_digits():
    # (1e-7)^2 / 2 = 5e-15, which rho * log rho - rho + 1 computed plainly loses
    assert values([1e-7, -1e-7])["kl"] == pytest.approx(5e-15, rel=1e-6, abs=0)


def test_ess_limits():
    # equal ratios waste nothing, whatever their size; one dominant token out of 4 leaves 1/4
    assert values([1.5] * 7)["ess"] == pytest.approx(1.0, rel=1e-12)
    for n in range(1, 40):  # 5, 6 and 7 times 0.3 come out 2e-16 above 1 unless held
        assert 1 - 1e-12 < (values([0.3] * n)["ess"] or 0.0) <= 1.0
    assert values([60.0, 0.0, 0.0, 0.0])["ess"] == pytest.approx(0.25, rel=1e-12)


def test_extreme_ratios_stay_finite():
    for shift in (1e3, -1e3):
        stats = values([shift, 0.0])
        assert all(v is not None and math.isfinite(v) for v in stats.values())
    assert values([-1e3])["ess"] == 0.0
    assert values([-1e3])["kl"] == pytest.approx(1.0)  # 0 - 0 + 1


def test_no_tokens_and_nan():
    assert values([]) == {"kl": None, "ess": None}
    assert all(v is not None and math.isnan(v) for v in values([math.nan, 0.0]).values())


@settings(max_examples=40, deadline=None)
@given(log_ratios, st.integers(0, 20))
def test_shards_of_ratio_stats_add_up(log_ratio, cut):
    whole = values(log_ratio)
    shards = [
        ratio_stats(np.array(part, dtype=np.float64)) for part in (log_ratio[:cut], log_ratio[cut:])
    ]
    for name, metric in merge_all(shards).items():
        assert metric.value == (
            None if whole[name] is None else pytest.approx(whole[name], rel=1e-9)
        )
    if log_ratio:
        assert whole["kl"] is not None and whole["kl"] >= 0
        assert whole["ess"] is not None and 1 / len(log_ratio) * (1 - 1e-9) <= whole["ess"] <= 1


def test_float32_is_summed_in_float64():
    # in float32 the terms near 0.005 would carry errors of 1e-7 / 0.005
    log_ratio_N = np.full(1000, 0.1, dtype=np.float32)
    kl = ratio_stats(log_ratio_N)["kl"].value
    d = float(np.float32(0.1))
    assert kl == pytest.approx(math.exp(d) * d - math.expm1(d), rel=1e-12)


def test_importing_metrics_does_not_import_torch():
    code = "import sys, scalerl.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
