"""The strategies draw what they promise, and nothing that a loss may not meet."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import find, given
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from scalerl.batch import RolloutBatch
from scalerl.invariants import Case, strategies
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.update import prepare

PROMISED: dict[str, Callable[[Case], bool]] = {
    "ragged": lambda case: len(set(case.tokens_B.tolist())) > 1,
    "padding": lambda case: not bool(case.mask_BT[:, -1].all()),
    "a hole": lambda case: bool((case.mask_BT.int().diff(dim=1) == 1).any()),
    "an empty completion": lambda case: 0 in case.tokens_B.tolist(),
    "a single token": lambda case: 1 in case.tokens_B.tolist(),
    "a group in pieces": lambda case: case.group_B.tolist() in ([0, 7, 0], [7, 0, 7]),
    "an advantage of 0": lambda case: 0.0 in case.adv_B.tolist(),
    "another old policy": lambda case: not torch.equal(case.old_logp_BT, case.behavior_logp_BT),
    "a large ratio": lambda case: case.log_ratio_BT.abs().max().item() >= 8,
}


@pytest.mark.parametrize("what", PROMISED)
def test_cases_of_every_kind_are_drawn(what: str) -> None:
    everything = strategies.cases(empty=True, zero_advantage=True, stale_trainer=True)
    assert find(everything, PROMISED[what])


@given(strategies.cases(empty=True))
def test_a_case_is_what_it_says(case: Case) -> None:
    assert case.mask_BT.dtype == torch.bool and case.logp_BT.dtype == torch.float64
    assert bool((case.logp_BT[case.mask_BT] < 0).all())
    for part_BT in (case.logp_BT, case.behavior_logp_BT, case.old_logp_BT):
        assert not part_BT[~case.mask_BT].any()


@pytest.mark.parametrize(
    ("ratios", "largest"), [("one", 0.0), ("near", 1 / 8), ("any", 8.0), ("extreme", 1000.0)]
)
def test_ratios_reach_their_ends_and_no_further(ratios: strategies.Ratios, largest: float) -> None:
    drawn = strategies.log_ratios(ratios)
    assert find(drawn, lambda x: abs(x) == largest) is not None
    with pytest.raises(NoSuchExample):
        find(drawn, lambda x: abs(x) > largest)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), strategies.shardings(n))))
def test_shards_hold_every_row_once(drawn: tuple[int, list[list[int]]]) -> None:
    rows, shards = drawn
    assert sorted(row for shard in shards for row in shard) == list(range(rows))


def test_some_shards_are_empty_and_some_groups_are_cut() -> None:
    assert find(strategies.shardings(4), lambda shards: [] in shards)
    assert find(strategies.shardings(4), lambda shards: [0, 2] in shards and [1, 3] in shards)


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.7, 1e6, 5.0])
def test_rewards_of_every_coding_are_drawn(value: float) -> None:
    assert value in find(strategies.rewards([0, 0, 7]), lambda r: value in r.tolist()).tolist()


def test_rewards_may_be_constant_in_one_group_and_not_in_another() -> None:
    found = find(strategies.rewards([0, 0, 7, 7]), lambda r: r[0] == r[1] and r[2] != r[3])
    assert found[0] == found[1] and found[2] != found[3]


@given(strategies.garbage())
def test_garbage_is_far_from_any_log_prob(number: float) -> None:
    assert math.isnan(number) or abs(number) >= 1e30


@given(strategies.groups())
def test_groups_can_be_trained_on(groups: list[Group]) -> None:
    batch = RolloutBatch.from_groups(groups)
    batch.check()
    train = prepare(batch, Recipe())
    mixed = any(0 < group.passes < len(group.completions) for group in groups)
    assert (train.rows > 0) == mixed
    assert abs(train.weight_BT.sum().item() - mixed) < 1e-6


@pytest.mark.parametrize("passes", ["none", "some", "all"])
def test_prompts_of_every_outcome_are_drawn(passes: str) -> None:
    def has(groups: list[Group]) -> bool:
        sizes = [(group.passes, len(group.completions)) for group in groups]
        return any({"none": p == 0, "all": p == n, "some": 0 < p < n}[passes] for p, n in sizes)

    assert has(find(strategies.groups(), has))
