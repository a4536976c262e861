"""The prompt stream: integer thresholds, each live prompt once an epoch, exclusion for good, exact resume."""

import json
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.curriculum import Curriculum, curriculum_of, rejected
from scalerl.errors import CurriculumExhausted
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group

NINE_TENTHS = Fraction(9, 10)


def draws(curriculum: Curriculum, n: int) -> list[int]:
    return [curriculum.draw() for _ in range(n)]


def group(*correct: bool, reward: float = 1.0) -> Group:
    rows = [Completion([5], [-1.0], [0], [True], reward=reward, correct=c) for c in correct]
    return Group(0, 0, [1], rows)


# ---- exclusion ----


@pytest.mark.parametrize(
    ("passes", "completions", "excluded"),
    [
        (9, 10, True),
        (18, 20, True),
        (144, 160, True),
        (8, 10, False),
        (14, 16, False),  # 0.875
        (15, 16, True),  # 0.9375
        (107, 120, False),
        (108, 120, True),  # a float running mean of these may come out below 0.9
        (0, 0, False),
    ],
)
def test_the_threshold_is_reached_exactly(passes: int, completions: int, excluded: bool) -> None:
    curriculum = Curriculum(1, 0, NINE_TENTHS)
    curriculum.observe(0, passes, completions)
    assert curriculum.excluded(0) is excluded


@settings(max_examples=30, deadline=None)
@given(st.permutations([*[1] * 9, 0]))
def test_order_of_results_does_not_matter(results: list[int]) -> None:
    """Nine passes then a fail, or the fail first: a float running mean gives 0.9 or 0.8999999999999999."""
    curriculum = Curriculum(1, 0, NINE_TENTHS)
    for passed in results:
        curriculum.observe(0, passed, 1)
    assert curriculum.excluded(0)


def test_history_is_of_all_visits() -> None:
    # 0 of 16, then 16 of 16: 0.5 in all, so it stays although the last visit was perfect
    curriculum = Curriculum(1, 0, NINE_TENTHS)
    curriculum.observe(0, 0, 16)
    curriculum.observe(0, 16, 16)
    assert (curriculum.passes, curriculum.completions) == ([16], [32])
    assert not curriculum.excluded(0)


def test_uniform_excludes_nothing() -> None:
    curriculum = Curriculum(2, 0)
    curriculum.observe(0, 16, 16)
    assert not curriculum.excluded(0)
    assert Counter(draws(curriculum, 6)) == {0: 3, 1: 3}


def test_a_recipe_names_its_curriculum() -> None:
    stream = curriculum_of(Recipe(seed=4), 7)
    assert (stream.size, stream.seed, stream.threshold) == (7, 4, NINE_TENTHS)  # 0.9 exactly
    uniform = curriculum_of(Recipe.model_validate({"curriculum": {"kind": "uniform"}}), 7)
    assert uniform.threshold is None


# ---- the order of draws ----


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(0, 3))
def test_each_epoch_has_each_prompt_once(size: int, seed: int) -> None:
    stream = draws(Curriculum(size, seed), 5 * size)
    for start in range(0, 5 * size, size):
        assert sorted(stream[start : start + size]) == list(range(size))


def test_order_is_by_seed_and_epoch() -> None:
    def epochs(seed: int) -> list[list[int]]:
        stream = draws(Curriculum(30, seed), 60)
        return [stream[:30], stream[30:]]

    assert epochs(1) == epochs(1)
    assert len({tuple(order) for order in (*epochs(1), *epochs(2), list(range(30)))}) == 5


def test_exclusion_acts_when_drawn_and_moves_nobody_else() -> None:
    plain = draws(Curriculum(20, 5), 60)
    curriculum = Curriculum(20, 5, NINE_TENTHS)
    stream = draws(curriculum, 7)
    solved = plain[12]  # still to come in this epoch
    curriculum.observe(solved, 16, 16)
    stream += draws(curriculum, 60 - 7 - 3)
    assert stream == [p for place, p in enumerate(plain) if place < 7 or p != solved]


def test_excluded_for_good() -> None:
    """Never drawn again in later epochs; a late result of a draw in flight is still counted."""
    curriculum = Curriculum(3, 0, NINE_TENTHS)
    curriculum.observe(1, 16, 16)
    assert Counter(draws(curriculum, 10)) == {0: 5, 2: 5}
    curriculum.observe(0, 2, 2)
    assert set(draws(curriculum, 6)) == {2}


def test_exhaustion_is_said_and_ends() -> None:
    curriculum = Curriculum(3, 0, NINE_TENTHS)
    curriculum.draw()
    for prompt in range(3):
        curriculum.observe(prompt, 1, 1)
    with pytest.raises(
        CurriculumExhausted, match=r"all 3 training prompts have reached a pass rate of 9/10"
    ):
        curriculum.draw()


def test_exclusion_is_for_good() -> None:
    """Completions in flight may come back wrong and lower the rate again: the prompt stays out."""
    curriculum = Curriculum(2, 0, NINE_TENTHS)
    curriculum.observe(0, 9, 10)
    curriculum.observe(0, 0, 10)
    assert curriculum.excluded(0) and draws(curriculum, 4) == [1, 1, 1, 1]
    again = Curriculum(2, 0, NINE_TENTHS)
    again.load_json(curriculum.to_json())
    assert again.excluded(0)


def test_the_last_live_prompt_is_found_from_anywhere() -> None:
    for seed in range(10):
        for drawn in range(5):
            curriculum = Curriculum(5, seed, NINE_TENTHS)
            draws(curriculum, drawn)
            for prompt in (0, 1, 2, 4):
                curriculum.observe(prompt, 1, 1)
            assert draws(curriculum, 3) == [3, 3, 3]


def test_epochs_count_in_fractions() -> None:
    curriculum = Curriculum(4, 0)
    assert curriculum.epochs == 0.0
    draws(curriculum, 3)
    assert curriculum.epochs == 0.75
    draws(curriculum, 3)
    assert curriculum.epochs == 1.5


# ---- resume ----


def played(curriculum: Curriculum, outcomes: Iterator[int], n: int) -> list[int]:
    """n draws, each observed at once with so many passes of four."""
    stream: list[int] = []
    for _ in range(n):
        stream.append(curriculum.draw())
        curriculum.observe(stream[-1], next(outcomes), 4)
    return stream


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 4), min_size=30, max_size=30), st.integers(0, 30))
def test_a_resumed_stream_goes_on_where_it_stood(outcomes: list[int], cut: int) -> None:
    whole = Curriculum(11, 3, NINE_TENTHS)
    before = Curriculum(11, 3, NINE_TENTHS)
    try:
        expected = played(whole, iter(outcomes), 30)
    except CurriculumExhausted:
        return
    feed = iter(outcomes)
    stream = played(before, feed, cut)
    after = Curriculum(11, 3, NINE_TENTHS)
    after.load_json(json.loads(json.dumps(before.to_json())))
    stream += played(after, feed, 30 - cut)
    assert stream == expected
    assert after.to_json() == whole.to_json()
    assert after.epochs == whole.epochs


# ---- dynamic sampling ----


def test_constant_groups_are_rejected_only_where_they_are_resampled() -> None:
    resample = Recipe.model_validate({"zero_variance": "resample"})
    assert rejected(group(True, True), resample)
    assert rejected(group(False, False), resample)
    assert not rejected(group(True, False), resample)
    for kept in ("drop", "keep"):
        assert not rejected(group(True, True), Recipe.model_validate({"zero_variance": kept}))


def test_constant_means_correctness_and_not_reward() -> None:
    """All right with different length penalties is still all right; equal rewards of a mixed group are not."""
    penalised = group(True, True)
    penalised.completions[0].reward = 0.25
    assert penalised.zero_variance and penalised.passes == 2
    assert not group(True, False, reward=0.0).zero_variance
