"""A scaling curve: how evaluations become points, what is known of their error, and the choice of held-out prompts.

Long because a curve is made in four ways, and each is worked by hand.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.curves.curve import (
    MOST_POINTS,
    Curve,
    curve,
    curve_of_run,
    differing_settings,
    fit_curve,
    pool,
    thinned,
)
from scalerl.curves.prompts import between_prompts
from scalerl.events import Event
from scalerl.fit import FitError, fit_sigmoid, sigmoid

LAW = {"R0": 0.2, "A": 0.6, "B": 1.5, "C_mid": 60.0}
RATES = st.floats(0.0, 1.0)
PAIRS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0, 8.0]), RATES), min_size=1)


def _noisy(C, sd: float = 0.02, seed: int = 0) -> Curve:
    R = sigmoid(C, **LAW) + sd * np.random.default_rng(seed).standard_normal(len(C))
    return curve(np.stack([C, np.clip(R, 0.0, 1.0)], axis=1))


# ---- pairs ---------------------------------------------------------------------------------------


def test_pairs_come_out_in_order_and_equal_compute_is_one_point():
    # 5.0 twice: (0.5 + 0.7) / 2 = 0.6, not a second point
    made = curve([(9.0, 0.8), (5.0, 0.5), (2.0, 0.3), (5.0, 0.7)], "mine", unit="steps")
    np.testing.assert_allclose(made.C_N, [2.0, 5.0, 9.0])
    np.testing.assert_allclose(made.R_N, [0.3, 0.6, 0.8])
    assert made.name == "mine" and made.unit == "steps" and made.last_C == 9.0
    assert made.R0 is None and made.R0_from == "fitted" and made.se_N is None


def test_errors_of_merged_points_by_hand():
    # two looks with errors 0.03 and 0.04: sqrt(0.0009 + 0.0016) / 2 = 0.05 / 2 = 0.025
    pairs = [(5.0, 0.5), (0.0, 0.2), (5.0, 0.7), (0.0, 0.4), (7.0, 0.8)]
    made = curve(pairs, se=[0.03, 0.04, 0.04, 0.03, 0.01])
    np.testing.assert_allclose(made.C_N, [5.0, 7.0])
    assert made.se_N is not None
    np.testing.assert_allclose(made.se_N, [0.025, 0.01])
    assert made.R0 == pytest.approx(0.3) and made.R0_se == pytest.approx(0.025)
    assert made.R0_from == "measured"


def test_R0_without_errors_has_none():
    made = curve([(0.0, 0.25), (1.0, 0.5)])
    assert (made.R0, made.R0_se, made.R0_from) == (0.25, 0.0, "measured")


@pytest.mark.parametrize("unknown", [0.0, -0.01, float("nan")])
def test_an_error_that_is_none_leaves_all_points_alike(unknown):
    assert curve([(1.0, 0.5), (2.0, 0.6)], se=[0.01, unknown]).se_N is None


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_pairs_does_not_matter_and_the_mean_of_all_is_kept(pairs, random):
    made, shuffled = curve(pairs), curve(random.sample(pairs, len(pairs)))
    np.testing.assert_array_equal(made.C_N, shuffled.C_N)
    np.testing.assert_allclose(made.R_N, shuffled.R_N, atol=1e-12)
    assert np.all(np.diff(made.C_N) > 0.0) and np.all(made.C_N > 0.0)
    assert (made.R0 is None) == (0.0 not in [C for C, _ in pairs])
    count = {C: sum(c == C for c, _ in pairs) for C in made.C_N}
    total = sum(R * count[C] for C, R in zip(made.C_N, made.R_N, strict=True))
    assert total == pytest.approx(sum(R for C, R in pairs if C > 0.0))


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ((-1.0, 0.5), r"C\[1\] = -1.0: compute is finite and >= 0"),
        ((np.inf, 0.5), r"C\[1\] = inf"),
        ((np.nan, 0.5), r"C\[1\] = nan"),
        ((2.0, 45.0), r"R\[1\] = 45.0: .*divide per cent by 100"),
        ((2.0, np.nan), r"R\[1\] = nan: .*drop empty evaluations"),
        ((2.0, -0.1), r"R\[1\] = -0.1"),
    ],
)
def test_points_that_are_none_are_named(pair, said):
    with pytest.raises(FitError, match=said):
        curve([(1.0, 0.5), pair])


# ---- events --------------------------------------------------------------------------------------


def _eval(C: float, R: float, **fields: Any) -> Event:
    return {"kind": "eval", "set": "validation", "C": C, "pass_rate": R, **fields}


def test_error_from_passes_by_hand():
    # passes (0, 2) of 2: q = 0.5 / 3 = 1/6 and 2.5 / 3 = 5/6, q (1 - q) = 5/36 each;
    # sqrt((5/36 + 5/36) / 2) / 2 prompts = sqrt(5) / 12 = 0.18634
    found = curve_of_run([_eval(3.0, 0.5, passes=[0, 2], n=2, k=2, se=0.9)], "run")
    assert found.se_N is not None
    assert found.se_N[0] == pytest.approx(5**0.5 / 12)


def test_one_completion_a_prompt_says_no_error_but_the_event_may():
    # k = 1: passes cannot tell a prompt's own scatter, so `se` is taken
    found = curve_of_run([_eval(3.0, 0.5, passes=[0, 1], n=2, k=1, se=0.07)], "run")
    assert found.se_N is not None and found.se_N[0] == 0.07


def test_what_a_run_tells_beside_its_points():
    run = {
        "kind": "run",
        "recipe": {"seed": 3, "loss": {"kind": "cispo", "eps_max": 5.0}},
        "site": {"task": "digit_sum"},
    }
    known = {"n": 2, "k": 4}
    events = [
        run,
        _eval(0.0, 0.25, passes=[1, 1], version=0, **known),
        _eval(8.0, 0.75, passes=[4, 2], version=20, **known),
        _eval(4.0, 0.50, passes=[3, 1], version=10, **known),
        {**_eval(4.0, 0.10), "set": "ood"},
    ]
    found = curve_of_run(events, "run")
    np.testing.assert_allclose(found.C_N, [4.0, 8.0])
    np.testing.assert_allclose(found.R_N, [0.5, 0.75])
    # passes (1, 1) of 4: q = 1.5 / 5 = 0.3 each, sqrt(2 * 0.21 / 4) / 2 = 0.16202
    assert found.R0 == 0.25 and found.R0_se == pytest.approx(0.1620185)
    assert found.passes_NP is not None and found.version_N is not None
    assert found.passes_NP.tolist() == [[3, 1], [4, 2]] and found.k == 4
    assert found.version_N.tolist() == [10, 20]
    assert found.held_out == "digit_sum, validation, 2 prompts"
    assert found.recipe == {
        "seed": 3,
        "loss.kind": "cispo",
        "loss.eps_max": 5.0,
        "site.task": "digit_sum",
    }
    ood = curve_of_run(events, "run", "ood")
    assert ood.R_N.tolist() == [0.1] and ood.held_out is None


def test_evaluations_at_one_compute_are_one_point_with_the_last_ones_passes():
    events = [
        _eval(4.0, 0.5, passes=[2, 2], n=2, k=4, version=10),
        _eval(4.0, 0.7, passes=[4, 2], n=2, k=4, version=11),
        _eval(6.0, 0.8, passes=[4, 3], n=2, k=4, version=12),
    ]
    found = curve_of_run(events, "run")
    np.testing.assert_allclose(found.R_N, [0.6, 0.8])
    assert found.passes_NP is not None and found.version_N is not None
    assert found.passes_NP.tolist() == [[4, 2], [4, 3]]
    assert found.version_N.tolist() == [11, 12]


def test_passes_of_different_prompts_are_no_table():
    events = [_eval(1.0, 0.5, passes=[1, 1], n=2, k=2), _eval(2.0, 0.5, passes=[1], n=1, k=2)]
    found = curve_of_run(events, "run")
    assert found.passes_NP is None and found.k == 0 and found.held_out is None
    assert found.se_N is not None and np.all(found.se_N > 0.0)


def test_events_with_fields_missing():
    no_rate, no_set = _eval(5.0, 0.5), _eval(6.0, 0.5)
    del no_rate["pass_rate"], no_set["set"]
    events = [{"kind": "run"}, _eval(1.0, 0.4), _eval(2.0, 0.5, se=0.01), no_rate, no_set]
    found = curve_of_run([*events, {"kind": "update"}], "run")
    assert found.C_N.tolist() == [1.0, 2.0]
    assert found.se_N is None and found.R0 is None  # one point without an error: all alike
    assert found.passes_NP is None and found.k == 0 and found.held_out is None
    assert found.version_N is None  # unknown, not zero updates
    assert found.recipe is None


def test_a_run_without_evaluations_is_an_empty_curve():
    for events in ([], [_eval(0.0, 0.3, passes=[1, 0, 1], n=3, k=2)]):
        found = curve_of_run(events, "run")
        assert len(found.C_N) == 0 and found.passes_NP is None
        assert found.R0 == (0.3 if events else None)


def test_settings_that_differ_are_named_without_names_and_seeds():
    def told(**changes: Any) -> Curve:
        recipe = {"name": "a", "seed": 0, "loss": {"kind": "cispo", "eps_max": 5.0}, **changes}
        return curve_of_run([{"kind": "run", "recipe": recipe, "site": {"slots": 2}}], "run")

    assert differing_settings([told(), told(name="b", seed=7)]) == {}
    found = differing_settings([told(), told(loss={"kind": "grpo"})])
    assert found == {"loss.kind": ["cispo", "grpo"], "loss.eps_max": [5.0, None]}
    assert differing_settings([told(loss={"kind": "grpo"}), curve([(1.0, 0.5)])]) == {}


# ---- several seeds, fewer points -----------------------------------------------------------------


def test_pool_by_hand():
    a = replace(curve([(1.0, 0.3), (4.0, 0.5)], se=[0.01, 0.02]), R0=0.2, R0_se=0.03)
    b = replace(curve([(4.0, 0.6), (2.0, 0.4)], se=[0.03, 0.04]), R0=0.4, R0_se=0.04)
    a, b = replace(a, R0_from="measured"), replace(b, R0_from="measured")
    both = pool([a, b], "both")
    assert both.C_N.tolist() == [1.0, 2.0, 4.0, 4.0]  # seeds at one C stay two points
    assert both.R_N.tolist() == [0.3, 0.4, 0.5, 0.6]
    assert both.se_N is not None and both.se_N.tolist() == [0.01, 0.04, 0.02, 0.03]
    # R0 = (0.2 + 0.4) / 2; its error sqrt(0.03^2 + 0.04^2) / 2 = 0.025
    assert both.R0 == pytest.approx(0.3) and both.R0_se == pytest.approx(0.025)
    assert both.R0_from == "measured" and both.name == "both"


def test_pool_of_one_is_that_one_and_unknowns_stay_unknown():
    a, b = curve([(1.0, 0.3)], se=[0.01]), curve([(0.0, 0.2), (2.0, 0.4)])
    assert pool([a], "whatever") is a
    both = pool([a, b], "both")
    assert both.se_N is None and both.R0 is None and both.R0_from == "fitted"
    assert both.R0_se == 0.0


def test_pool_of_different_units_is_refused():
    a = curve([(1.0, 0.3)])
    with pytest.raises(FitError, match="x have different units: GPU-h, steps"):
        pool([replace(a, unit="steps"), a], "x")


def test_thinned_by_hand():
    # 5 points, at most 2: blocks of 3, the last one shorter
    full = curve(
        list(zip([1.0, 2.0, 3.0, 4.0, 5.0], [0.1, 0.2, 0.3, 0.4, 0.6], strict=True)),
        se=[0.03, 0.06, 0.06, 0.04, 0.03],
    )
    less = thinned(full, 2)
    np.testing.assert_allclose(less.C_N, [2.0, 4.5])
    np.testing.assert_allclose(less.R_N, [0.2, 0.5])
    # sqrt(0.0009 + 0.0036 + 0.0036) / 3 = 0.09 / 3;  sqrt(0.0016 + 0.0009) / 2 = 0.05 / 2
    assert less.se_N is not None
    np.testing.assert_allclose(less.se_N, [0.03, 0.025])
    assert less.blocks_of == 3 and full.blocks_of == 1
    assert thinned(full, 5) is full and thinned(full) is full


@given(st.integers(1, 60), st.integers(1, 30))
def test_thinned_keeps_the_bound_and_the_mean(n, most):
    less = thinned(_noisy(np.arange(1.0, n + 1.0)), most)
    full = _noisy(np.arange(1.0, n + 1.0))
    assert len(less.C_N) == -(-n // less.blocks_of) <= most
    sizes = np.full(len(less.C_N), less.blocks_of)
    sizes[-1] = n - less.blocks_of * (len(sizes) - 1)
    assert less.R_N @ sizes == pytest.approx(full.R_N.sum())
    assert less.C_N @ sizes == pytest.approx(full.C_N.sum())


def test_thinning_changes_a_fit_by_less_than_noise():
    full = _noisy(np.geomspace(1.0, 1000.0, 20_000))
    fine, coarse = fit_curve(full), fit_curve(thinned(full))
    # the error of A from 20,000 points of sd 0.02 is above 0.02 / sqrt(20,000) = 1.4e-4
    assert coarse.A == pytest.approx(fine.A, abs=1.4e-5)
    assert coarse.R0 == pytest.approx(fine.R0, abs=1.4e-5)
    assert coarse.C_mid == pytest.approx(fine.C_mid, rel=1e-4)


def test_a_million_points_are_fitted_in_a_second():
    full = _noisy(np.geomspace(1.0, 1000.0, 1_000_000))
    started = time.process_time()
    less = thinned(full)
    fit = fit_curve(less)
    assert time.process_time() - started < 1.0
    assert len(less.C_N) <= MOST_POINTS and less.blocks_of == -(-1_000_000 // MOST_POINTS)
    assert fit.A == pytest.approx(0.6, abs=3e-4) and fit.R0 == pytest.approx(0.2, abs=3e-4)
    assert fit.B == pytest.approx(1.5, rel=3e-3) and fit.C_mid == pytest.approx(60.0, rel=2e-3)


def test_a_thousand_evenly_spaced_points_are_fitted_without_a_warning():
    # The usual run: an evaluation every so many updates. Warnings are errors under pytest.
    fit = fit_curve(_noisy(np.arange(1, 1001) * 0.5, sd=0.005))
    assert fit.A == pytest.approx(0.6, abs=0.005)


# ---- parts of a curve ----------------------------------------------------------------------------


def _whole() -> Curve:
    return replace(
        curve([(C, C / 10) for C in (1.0, 2.0, 4.0, 8.0)], se=[0.01, 0.02, 0.03, 0.04]),
        R0=0.05,
        R0_se=0.01,
        R0_from="measured",
        passes_NP=np.array([[1, 0], [1, 1], [2, 1], [4, 4]]),
        k=4,
        version_N=np.array([1, 2, 4, 8]),
    )


def test_a_window_holds_both_its_ends_and_keeps_R0():
    part = _whole().within((2.0, 4.0))
    assert part.se_N is not None and part.passes_NP is not None and part.version_N is not None
    assert part.C_N.tolist() == [2.0, 4.0] and part.R_N.tolist() == [0.2, 0.4]
    assert part.se_N.tolist() == [0.02, 0.03] and part.version_N.tolist() == [2, 4]
    assert part.passes_NP.tolist() == [[1, 1], [2, 1]]
    assert (part.R0, part.R0_se, part.R0_from) == (0.05, 0.01, "measured")
    assert _whole().within(None).C_N.tolist() == [1.0, 2.0, 4.0, 8.0]
    assert len(_whole().within((5.0, 6.0)).C_N) == 0


def test_a_window_that_is_none_is_refused():
    for window in ((4.0, 2.0), (float("nan"), 2.0)):
        with pytest.raises(FitError, match="the start exceeds the end"):
            _whole().within(window)


def test_rows_of_a_curve_without_errors():
    part = curve([(1.0, 0.1), (2.0, 0.2), (3.0, 0.3)]).rows(np.array([0, 2]))
    assert part.C_N.tolist() == [1.0, 3.0] and part.se_N is None and part.passes_NP is None


def test_given_R0_replaces_a_measured_one_and_none_leaves_it():
    whole = _whole()
    told = whole.given(0.1)
    assert (told.R0, told.R0_se, told.R0_from) == (0.1, 0.0, "given")
    assert whole.given(None) is whole


def test_a_fit_takes_the_curves_R0_errors_and_window():
    C = np.geomspace(5.0, 500.0, 20)
    se = np.linspace(0.005, 0.03, 20)
    made = replace(_noisy(C), se_N=se, R0=0.21)
    R = made.R_N
    assert fit_curve(made) == fit_sigmoid(C, R, R0=0.21, se=se)
    assert fit_curve(made, R0=0.15, window=(6.0, 400.0)) == fit_sigmoid(
        C, R, R0=0.15, se=se, window=(6.0, 400.0)
    )
    assert not fit_curve(_noisy(C)).R0_fixed


# ---- the choice of held-out prompts --------------------------------------------------------------


def _passes(*rows: list[int], k: int) -> Curve:
    made = curve([(float(i), 0.5) for i in range(1, len(rows) + 1)])
    return replace(made, passes_NP=np.array(rows), k=k)


def test_between_prompts_by_hand():
    # rates 1, 1, 0, 0: variance (4 * 1/4) / 3 = 1/3, nothing within; sqrt(1/3 / 4) = 0.288675
    assert between_prompts(_passes([4, 4, 0, 0], k=4)) == pytest.approx(0.288675, abs=1e-6)
    # rates 3/4, 1/4: variance 1/8; within (3/16) / (4 - 1) = 1/16; sqrt(1/16 / 2) = 0.176777
    assert between_prompts(_passes([3, 1], k=4)) == pytest.approx(0.176777, abs=1e-6)
    # alike: completions alone would have made more of a difference
    assert between_prompts(_passes([2, 2], k=4)) == 0.0


def test_only_the_last_third_of_the_evaluations_counts():
    # six evaluations: the last two, 8 completions: rates 6/8, 2/8; variance 1/8, within (3/16) / 7
    curve_6 = _passes([0, 4], [0, 4], [0, 4], [4, 0], [3, 1], [3, 1], k=4)
    assert between_prompts(curve_6) == pytest.approx(np.sqrt((1 / 8 - 3 / 112) / 2))


def test_unknown_passes_make_no_error_that_one_could_state():
    known = _passes([3, 1], k=4)
    assert between_prompts(curve([(1.0, 0.5)])) == 0.0
    assert between_prompts(_passes([1, 0], k=1)) == 0.0
    assert between_prompts(known, curve([(1.0, 0.5)])) == 0.0
    assert between_prompts(known, _passes([3, 1, 1], k=4)) == 0.0


def _simulated(rate_P, seed: int, k: int = 4, evaluations: int = 3) -> Curve:
    passes_NP = np.random.default_rng(seed).binomial(k, rate_P, size=(evaluations, len(rate_P)))
    return _passes(*passes_NP.tolist(), k=k)


def test_between_prompts_matches_the_truth_from_few_completions():
    # 400 prompts, 4 completions each. Without the correction for completions it would be 18 % off:
    # Beta(0.8, 0.8) has variance 0.096 and (0.25 - 0.096) / 4 = 0.038 comes on top.
    found = []
    for seed in range(20):
        rate_P = np.random.default_rng([seed, 1]).beta(0.8, 0.8, 400)
        truth = rate_P.std(ddof=1) / np.sqrt(400)
        found.append(between_prompts(_simulated(rate_P, seed)) / truth)
    assert np.mean(found) == pytest.approx(1.0, abs=0.02)
    assert np.all(np.abs(np.array(found) - 1.0) < 0.1)


def test_what_two_runs_share_cancels():
    rate_P = np.random.default_rng(0).beta(0.8, 0.8, 400)
    one, same = _simulated(rate_P, 1, k=16), _simulated(rate_P, 2, k=16)
    assert between_prompts(one) > 0.013
    assert between_prompts(one, same) < 0.003
    # one prompt in two gains 0.2: the true differences vary by sd 0.1, an error of 0.1 / 20
    gain_P = np.where(np.arange(400) % 2 == 0, 0.2, 0.0)
    found = [
        between_prompts(
            _simulated(0.1 + 0.6 * rate_P, seed, k=16),
            _simulated(0.1 + 0.6 * rate_P + gain_P, seed + 100, k=16),
        )
        for seed in range(20)
    ]
    assert np.mean(found) == pytest.approx(0.005, rel=0.1)


def test_no_point_at_all_is_too_few_and_no_more():
    none = curve(np.empty((0, 2)), se=[])
    with pytest.raises(FitError, match="0 of 0 points"):
        none.points()
