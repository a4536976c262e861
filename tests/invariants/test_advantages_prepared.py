"""Advantages as the update gets them: of whole groups, by draw, once, and only of finite rewards."""

import math
from statistics import fmean, pstdev

import pytest
import torch
from bigram import recipe
from hypothesis import given
from hypothesis import strategies as st

from scalerl.advantages import Normalise, advantages
from scalerl.batch import RolloutBatch
from scalerl.errors import BatchError
from scalerl.rollout import Completion, Group
from scalerl.update import prepare, update_stats

MODES: list[Normalise] = ["batch", "prompt", "none"]
every_mode = pytest.mark.parametrize("mode", MODES)


def graded(number: int, *rows: tuple[float, int], prompt: int | None = None) -> Group:
    """A group of completions (reward, trained tokens), each of three more forced tokens; right if reward > 0."""
    made = [
        Completion(
            [5] * (n + 3),
            [-1.0] * (n + 3),
            [0] * (n + 3),
            [True] * n + [False] * 3,
            truncated=n > 3,
            reward=r,
            correct=r > 0,
        )
        for r, n in rows
    ]
    prompt = number if prompt is None else prompt
    return Group(number, prompt, [1 + prompt % 4], made)


def prepared(made: list[Group], mode: Normalise, zero_variance: str = "keep") -> list[float]:
    spec = recipe(advantage=mode, zero_variance=zero_variance)
    return prepare(RolloutBatch.from_groups(made), spec).adv_B.tolist()


graded_rows = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.5, 1.0]), st.integers(0, 5)), min_size=1, max_size=5
)
graded_groups = st.lists(graded_rows, min_size=1, max_size=4)


def expected(made: list[Group], mode: Normalise) -> list[float]:
    centred = [
        [c.reward - fmean(d.reward for d in g.completions) for c in g.completions] for g in made
    ]
    whole = [c for part in centred for c in part]
    found: list[float] = []
    for part in centred:
        std = {"batch": pstdev(whole), "prompt": pstdev(part), "none": 1.0}[mode]
        found += [c / std if std else 0.0 for c in part]
    return found


@pytest.mark.invariant(
    "F16",
    "A reward that is not a finite number is refused with the row it stands on; it never becomes 0.",
    "r_i in {nan, inf, -inf, None}  =>  error naming i",
    "TRL #5902, ms-swift #8123: a missing reward becomes 0 and shifts its siblings, or nan spreads",
)
@every_mode
@given(st.lists(st.sampled_from([-1.0, 0.1, 0.7]), min_size=1, max_size=9), st.data())
def test_a_reward_that_is_no_number(
    mode: Normalise, reward_B: list[float], data: st.DataObject
) -> None:
    bad = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    where = data.draw(st.integers(0, len(reward_B) - 1))
    reward_B[where] = bad
    with pytest.raises(ValueError, match=rf"reward_B\[{where}\] = {bad}"):
        advantages(torch.tensor(reward_B), torch.zeros(len(reward_B), dtype=torch.int64), mode)
    groups = [graded(i, (r, 1)) for i, r in enumerate(reward_B)]
    with pytest.raises(BatchError, match=f"row {where} has reward {bad}"):
        prepare(RolloutBatch.from_groups(groups), recipe(advantage=mode))


@pytest.mark.invariant("F16")
def test_a_missing_reward_is_not_zero() -> None:
    group = graded(0, (1.0, 1), (0.0, 1))
    group.completions[1].reward = None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises((TypeError, BatchError)):
        RolloutBatch.from_groups([group]).check()


@pytest.mark.invariant("F08")
@pytest.mark.parametrize("mode", ["batch", "prompt"])
def test_the_updates_std_is_the_populations(mode: Normalise) -> None:
    assert prepared([graded(0, (1.0, 1), (-1.0, 3))], mode) == [1, -1]


@pytest.mark.invariant(
    "F14",
    "Two draws of one prompt are two groups: the draw is the identity, not the prompt's text.",
    "group(i) = draw(i)",
    "NeMo-RL #3882: groups keyed by prompt tokens merge two instances",
)
@every_mode
@given(graded_groups)
def test_the_same_prompt_twice(mode: Normalise, rows: list[list[tuple[float, int]]]) -> None:
    same = [graded(number, *part, prompt=3) for number, part in enumerate(rows)]
    assert prepared(same, mode) == pytest.approx(expected(same, mode), rel=1e-6)


@pytest.mark.invariant(
    "F15",
    "Each completion enters mean and std once, whatever its length, its padding and its mask.",
    "A depends on (r, g) alone: not on T_i, not on the width of the batch",
    "SkyRL #1305: mean over the padding, variance over the mask",
)
@pytest.mark.invariant(
    "F17",
    "Statistics are of the complete group: truncated rows and rows without a trained token count in them.",
    "mean_g and std over all rows of g, then rows are selected in all fields alike",
    "open-instruct #1794: rows dropped before the reshape into groups shift all that follow",
)
@pytest.mark.invariant(
    "F19",
    "Rewards are normalised once; a completion counts once, however many tokens it has.",
    "A_i as defined: no second, token-weighted, normalisation",
    "gem #113: a token-weighted z-score after that of the group; miles #1325: segments of one rollout counted apiece",
)
@every_mode
@given(graded_groups, st.booleans())
def test_lengths_do_not_enter(
    mode: Normalise, rows: list[list[tuple[float, int]]], drop: bool
) -> None:
    made = [graded(number, *part) for number, part in enumerate(rows)]
    kept = [g for g in made if not drop or len({c.correct for c in g.completions}) == 2]
    spec = recipe(advantage=mode, zero_variance="drop" if drop else "keep")
    train = prepare(RolloutBatch.from_groups(made), spec)
    assert train.adv_B.tolist() == pytest.approx(expected(kept, mode), rel=1e-6)
    # the same rows in every field
    assert train.mask_BT.sum(1).tolist() == [sum(c.sampled) for g in kept for c in g.completions]
    assert train.token_BT[:, 0].tolist() == [g.prompt_ids[0] for g in kept for _ in g.completions]


@pytest.mark.invariant("F17")
def test_a_dropped_group_shifts_no_other() -> None:
    # four rows each: p keeps its mean of 1/2 although q (all right, before it) leaves
    q = graded(0, *[(1.0, n) for n in (5, 1, 2, 1)])
    p = graded(1, (1.0, 1), (0.0, 5), (1.0, 2), (0.0, 0))
    assert prepared([q, p], "none", "drop") == [0.5, -0.5, 0.5, -0.5]


@pytest.mark.invariant(
    "F20",
    "If every group is constant all advantages are exactly 0, nothing is divided, and the batch is marked skipped.",
    "max_g r = min_g r for all g  =>  A = 0",
    "prime-rl #798: 0/0 is nan",
)
@every_mode
@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.7, -1.0, 1e6 + 0.1]), st.integers(1, 10)),
        min_size=1,
        max_size=4,
    )
)
def test_all_constant(mode: Normalise, parts: list[tuple[float, int]]) -> None:
    # the mean of three times 0.1 is not 0.1 in floating point
    size_P = torch.tensor([size for _, size in parts])
    reward_B = torch.tensor([r for r, _ in parts], dtype=torch.float64).repeat_interleave(size_P)
    group_B = torch.arange(len(parts)).repeat_interleave(size_P)
    for dtype in (torch.float32, torch.float64):
        found = advantages(reward_B.to(dtype), group_B, mode)
        assert found.tolist() == [0.0] * len(reward_B)
    batch = RolloutBatch.from_groups(
        [graded(g, *[(r, 1)] * size) for g, (r, size) in enumerate(parts)]
    )
    train = prepare(batch, recipe(advantage=mode))
    assert train.rows == 0 and update_stats(batch, train, 0, {}).skipped
