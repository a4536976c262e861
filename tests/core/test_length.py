"""Length control: where thinking is cut, and what too long a completion costs."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from scalerl.length import draw_limit, overlong_penalty, shaped_reward, thinking_limits
from scalerl.recipe import Interruption, NoLengthControl, OverlongPenalty

K14, K2 = 14_000, 2_000


# ---- overlong penalty ----


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, 0.0),
        (12_000, 0.0),
        (12_001, -0.0005),  # 1 / 2,000
        (13_000, -0.5),
        (13_999, -0.9995),
        (14_000, -1.0),
        (30_000, -1.0),
    ],
)
def test_penalty_by_hand(length: int, expected: float) -> None:
    penalty = overlong_penalty(length, max_tokens=K14, cache_tokens=K2)
    assert penalty == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 20_000), st.integers(1, 500))
def test_penalty_falls_by_at_most_one_part_in_cache_per_token(length: int, more: int) -> None:
    here = overlong_penalty(length, max_tokens=K14, cache_tokens=K2)
    there = overlong_penalty(length + more, max_tokens=K14, cache_tokens=K2)
    assert -1.0 <= there <= here <= 0.0
    assert here - there <= more / K2 + 1e-12


def test_reward_is_one_or_minus_one() -> None:
    for length in (Interruption(), NoLengthControl()):
        for tokens in (1, 10**6):
            assert shaped_reward(True, tokens, length, 100) == 1.0
            assert shaped_reward(False, tokens, length, 100) == -1.0


def test_only_correct_completions_are_penalised() -> None:
    # L_max = 14, L_cache = 14 / 7 = 2: free up to 12, -0.5 at 13, -1 from 14 on
    rewards = [shaped_reward(True, n, OverlongPenalty(), 14) for n in (12, 13, 14, 99)]
    assert rewards == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-12)
    assert {shaped_reward(False, n, OverlongPenalty(), 14) for n in (1, 13, 99)} == {-1.0}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0.01, 1), st.integers(1, 50_000))
def test_right_never_scores_below_wrong(right: int, wrong: int, cache: float, budget: int) -> None:
    penalty = OverlongPenalty(cache=cache)
    assert shaped_reward(True, right, penalty, budget) > shaped_reward(
        False, wrong, penalty, budget
    )


# ---- interruption ----


def test_limits_are_fractions_of_the_thinking_budget() -> None:
    # 0.8333 * 12,288 = 10,239.6, rounded to 10,240 = 10 k; 0.8333 * 36 = 29.9988
    assert thinking_limits(Interruption(), 12_288) == (10_240, 12_288)
    assert thinking_limits(Interruption(), 36) == (30, 36)
    assert thinking_limits(Interruption(low=0.5, high=0.75), 8) == (4, 6)
    assert thinking_limits(Interruption(low=0.1, high=0.2), 1) == (1, 1)  # never before a token
    assert thinking_limits(OverlongPenalty(), 12_288) is None
    assert thinking_limits(NoLengthControl(), 12_288) is None


def test_limit_is_uniform_ends_included() -> None:
    # 20 limits, 20,000 draws: 1,000 each. The draw is deterministic, so this cannot flake.
    draws = [
        draw_limit((10_240, 10_259), 0, group, row) for group in range(1250) for row in range(16)
    ]
    counts = [draws.count(limit) for limit in range(10_240, 10_260)]
    assert sum(counts) == 20_000 and min(counts) > 0
    assert chisquare(counts).pvalue > 1e-4


def test_limit_is_uniform_over_a_long_range_too() -> None:
    low, high = 10_240, 12_288  # 2,049 values: bins of 102 or 103
    draws = [draw_limit((low, high), 1, group, row) for group in range(1250) for row in range(16)]
    assert low <= min(draws) < low + 5 and high - 5 < max(draws) <= high
    edges = [low + (high + 1 - low) * i // 20 for i in range(21)]
    counts = [sum(a <= d < b for d in draws) for a, b in pairwise(edges)]
    expected = [20_000 * (b - a) / 2049 for a, b in pairwise(edges)]
    assert chisquare(counts, expected).pvalue > 1e-4


def test_limit_depends_on_seed_request_and_row_only() -> None:
    limits = (0, 10**6)
    base = draw_limit(limits, 1, 2, 3)
    assert base == draw_limit(limits, 1, 2, 3)
    assert (
        len({base, *(draw_limit(limits, *key) for key in ((2, 2, 3), (1, 3, 3), (1, 2, 4)))}) == 4
    )
    assert draw_limit(limits, 1, 21, 3) != draw_limit(limits, 12, 1, 3)  # no two keys run together
    assert draw_limit((7, 7), 1, 2, 3) == 7
