"""Length control as formulas: what a long completion costs, and where thinking is cut."""

from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from scalerl.length import draw_limit, overlong_penalty, shaped_reward, thinking_limits
from scalerl.recipe import Interruption, Length, NoLengthControl, OverlongPenalty, Recipe

ROUNDING = 1e-12

# L_max and L_cache in tokens, L_cache <= L_max, with the published 14k and 2k among them
budgets = st.one_of(
    st.just((14_000, 2_000)),
    st.integers(1, 20_000).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most))),
)
lengths = st.one_of(st.integers(0, 50), st.integers(0, 40_000))


def exact_penalty(length: int, most: int, cache: int) -> Fraction:
    """In parts of the cache used up: none up to L_max - L_cache, all of it from L_max on."""
    used = length - (most - cache)
    return -Fraction(min(max(used, 0), cache), cache)


# ---- the penalty ----


@pytest.mark.invariant(
    "I01",
    "A completion that is too long loses the part of the cache that it has used up.",
    "penalty(y) = clip((L_max - |y|) / L_cache - 1, -1, 0)",
    "verl #3855: documented as starting at the maximum, not at the maximum less the buffer",
)
@given(budgets, lengths)
def test_penalty_is_the_part_of_the_cache_that_is_used(
    budget: tuple[int, int], length: int
) -> None:
    most, cache = budget
    for tokens in (length, most - cache, most - cache + 1, most - 1, most, most + 1):
        found = overlong_penalty(tokens, max_tokens=most, cache_tokens=cache)
        assert found == pytest.approx(float(exact_penalty(tokens, most, cache)), abs=ROUNDING)


@pytest.mark.invariant("I01")
def test_penalty_at_the_published_numbers() -> None:
    expected = {0: 0.0, 12_000: 0.0, 12_001: -0.0005, 13_000: -0.5, 14_000: -1.0, 30_000: -1.0}
    for length, value in expected.items():
        found = overlong_penalty(length, max_tokens=14_000, cache_tokens=2_000)
        assert found == pytest.approx(value, abs=ROUNDING)


@pytest.mark.invariant(
    "I02",
    "A wrong completion has the same reward whatever its length and whatever the length control.",
    "correct = 0  =>  r = -1",
    "",
)
@given(lengths, st.floats(0.01, 1), st.integers(1, 50_000))
def test_wrong_is_minus_one_at_any_length(length: int, cache: float, budget: int) -> None:
    for control in (OverlongPenalty(cache=cache), Interruption(), NoLengthControl()):
        assert shaped_reward(False, length, control, budget) == -1.0


@pytest.mark.invariant("I02")
@given(lengths, st.sampled_from([0.1, 0.3, 1 / 7, 1.0]), st.integers(1, 20_000))
def test_correct_is_one_less_the_penalty(length: int, cache: float, budget: int) -> None:
    """The cache is a fraction of the whole budget, thinking and answer together."""
    used = length - budget * (1 - cache)
    expected = 1.0 - min(max(used, 0.0), cache * budget) / (cache * budget)
    found = shaped_reward(True, length, OverlongPenalty(cache=cache), budget)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.invariant(
    "I03",
    "The penalty never rises with length, stays in [-1, 0], and has no jump: one token costs at most 1 / L_cache.",
    "-1 <= p(y + n) <= p(y) <= 0,  p(y) - p(y + n) <= n / L_cache",
    "",
)
@given(budgets, lengths, st.integers(1, 3000))
def test_penalty_falls_without_a_jump(budget: tuple[int, int], length: int, more: int) -> None:
    most, cache = budget
    for start in (length, most - cache, max(0, most - more)):
        here = overlong_penalty(start, max_tokens=most, cache_tokens=cache)
        there = overlong_penalty(start + more, max_tokens=most, cache_tokens=cache)
        assert -1.0 <= there <= here <= 0.0
        assert here - there <= more / cache + ROUNDING


@pytest.mark.invariant(
    "I04",
    "Without a length penalty the reward is plain correctness, and nothing of a penalty need be configured.",
    "kind != overlong_penalty  =>  r = +1 if correct else -1",
    "verl #4268: the path that computed rewards early skipped the penalty; "
    "#5858: a penalty that is off still asked for its settings",
)
@given(lengths, st.booleans(), st.integers(1, 50_000))
def test_no_penalty_is_plain_correctness(length: int, correct: bool, budget: int) -> None:
    for kind in ("interruption", "none"):
        control: Length = Recipe.model_validate({"length": {"kind": kind}}).length
        assert shaped_reward(correct, length, control, budget) == (1.0 if correct else -1.0)


@pytest.mark.invariant("I04")
def test_a_penalty_that_is_on_acts() -> None:
    # 14,000 tokens of 14,000, correct: the whole of +1 is lost
    control = Recipe.model_validate({"length": {"kind": "overlong_penalty"}}).length
    assert shaped_reward(True, 14_000, control, 14_000) == pytest.approx(0.0, abs=ROUNDING)
    assert thinking_limits(control, 12_000) is thinking_limits(NoLengthControl(), 12_000) is None


@pytest.mark.invariant(
    "I05",
    "A correct completion of any length scores above a wrong one of any length.",
    "min over y of r(correct, y) = 0 > -1 = max over y of r(wrong, y)",
    "",
)
@given(lengths, lengths, st.floats(0.001, 1), st.integers(1, 50_000))
def test_right_stays_above_wrong(right: int, wrong: int, cache: float, budget: int) -> None:
    control = OverlongPenalty(cache=cache)
    worst_right = shaped_reward(True, max(right, 10 * budget), control, budget)
    assert worst_right == pytest.approx(0.0, abs=ROUNDING)
    assert shaped_reward(True, right, control, budget) >= worst_right
    assert worst_right > shaped_reward(False, wrong, control, budget)


# ---- where thinking is cut ----


@pytest.mark.invariant(
    "I06",
    "The cut is uniform on whole token counts, both ends included, and a function of seed, request and row alone.",
    "limit ~ U{low, ..., high},  limit = f(seed, request, row)",
    "",
)
@pytest.mark.parametrize("seed", [0, 1, 2**39])
def test_cut_is_uniform_ends_included(seed: int) -> None:
    """20,000 draws on 10,000..12,000 in 20 bins; nothing here is random from run to run."""
    low, high = 10_000, 12_000
    draws = [
        draw_limit((low, high), seed, group, row) for group in range(1250) for row in range(16)
    ]
    edges = [low + (high + 1 - low) * i // 20 for i in range(21)]
    counts = [sum(a <= draw < b for draw in draws) for a, b in pairwise(edges)]
    expected = [len(draws) * (b - a) / (high + 1 - low) for a, b in pairwise(edges)]
    assert sum(counts) == len(draws)
    assert chisquare(counts, expected).pvalue > 1e-4
    assert (min(draws), max(draws)) == (low, high)  # each is hit about ten times


@pytest.mark.invariant("I06")
@given(st.integers(1, 12_000), st.integers(0, 4), st.integers(0, 2**39))
def test_cut_reaches_every_value_of_a_short_range(low: int, width: int, seed: int) -> None:
    # 240 draws over 5 values: one is missed with probability 5 * 0.8^240 = 3e-23
    draws = {draw_limit((low, low + width), seed, 7, row) for row in range(240)}
    assert draws == set(range(low, low + width + 1))


@pytest.mark.invariant("I06")
@settings(max_examples=settings().max_examples // 4)
@given(st.integers(0, 2**39), st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_cut_does_not_depend_on_company_or_order(seed: int, first: int, random: Random) -> None:
    limits = (10_000, 12_000)
    keys = [(group, row) for group in range(first, first + 6) for row in range(16)]
    in_order = {key: draw_limit(limits, seed, *key) for key in keys}
    shuffled = random.sample(keys, len(keys))
    assert {key: draw_limit(limits, seed, *key) for key in shuffled} == in_order
    # Each part of the key matters: 96 cuts of 2,001 values that are the same 20 times would be one chance in 10^36.
    for other in (
        {(g, r): draw_limit(limits, seed + 1, g, r) for g, r in keys},
        {(g, r): draw_limit(limits, seed, g + 6, r) for g, r in keys},
        {(g, r): draw_limit(limits, seed, g, r + 16) for g, r in keys},
        {(g, r): draw_limit(limits, seed, g + r, 0) for g, r in keys},
    ):
        assert sum(other[key] == in_order[key] for key in keys) < 20


@pytest.mark.invariant("I06")
@given(st.data(), st.integers(1, 14_000))
def test_range_of_the_cut_is_the_fractions_of_the_budget(data: st.DataObject, budget: int) -> None:
    """Whole ends come back whole, though (1 / 49) * 49 = 0.9999999999999999 in floats."""
    low = data.draw(st.integers(1, budget))
    high = data.draw(st.integers(low, budget))
    control = Interruption(low=low / budget, high=high / budget)
    assert thinking_limits(control, budget) == (low, high)
