"""Rollouts as tensors: the worked row, what is refused, and shards that hold each row exactly once."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.errors import BatchError
from scalerl.rollout import Completion, Group

NAN, INF = float("nan"), float("inf")


def two_groups() -> list[Group]:
    """Group 9 has prompt [1, 40] and two completions, the first with a forced token; group 4 one of one token."""
    cut = Completion([41, 5, 2], [-0.75, -9.0, -0.25], [3, 3, 4], [True, False, True])
    cut.reward, cut.correct, cut.interrupted = 1.0, True, True
    long = Completion([42, 43, 44, 45], [-1.0] * 4, [2, 2, 2, 3], [True] * 4)
    long.reward, long.truncated = -1.0, True
    short = Completion([2], [-0.5], [7], [True], reward=0.5, correct=True)
    return [Group(9, 0, [1, 40], [cut, long]), Group(4, 1, [1, 50, 51], [short])]


def batch() -> RolloutBatch:
    return RolloutBatch.from_groups(two_groups())


# ---- packing ----


def test_the_worked_row() -> None:
    packed = batch()
    F, T = False, True
    assert packed.token_BT.tolist() == [
        [1, 40, 41, 5, 2, 0],
        [1, 40, 42, 43, 44, 45],
        [1, 50, 51, 2, 0, 0],
    ]
    assert packed.mask_BT.tolist() == [
        [F, F, T, F, T, F],
        [F, F, T, T, T, T],
        [F, F, F, T, F, F],
    ]
    assert packed.behavior_logp_BT.tolist() == [
        [0, 0, -0.75, 0, -0.25, 0],  # 0 on the forced token, whatever the generator wrote there
        [0, 0, -1, -1, -1, -1],
        [0, 0, 0, -0.5, 0, 0],
    ]
    assert packed.version_BT.tolist() == [
        [-1, -1, 3, 3, 4, -1],
        [-1, -1, 2, 2, 2, 3],
        [-1, -1, -1, 7, -1, -1],
    ]
    assert packed.reward_B.tolist() == [1.0, -1.0, 0.5]
    assert packed.correct_B.tolist() == [T, F, T]
    assert packed.group_B.tolist() == [9, 9, 4]
    assert packed.truncated_B.tolist() == [F, T, F]
    assert packed.interrupted_B.tolist() == [T, F, F]


def test_padding_is_by_the_pad_id_and_stays_untrained() -> None:
    packed = RolloutBatch.from_groups(two_groups(), pad_id=99)
    assert packed.token_BT[2].tolist() == [1, 50, 51, 2, 99, 99]
    assert torch.equal(packed.mask_BT, batch().mask_BT)


def test_an_end_token_that_is_also_the_padding_is_trained() -> None:
    """Masks come from lengths and not from token ids."""
    packed = RolloutBatch.from_groups(two_groups(), pad_id=2)
    assert packed.mask_BT[0].tolist() == [False, False, True, False, True, False]


def test_whole_numbers_as_rewards_are_numbers() -> None:
    """Python takes 1 for a float, and so must the batch: advantages in int64 would be cut to whole numbers."""
    groups = two_groups()
    for group in groups:
        for completion in group.completions:
            completion.reward = 1
    assert RolloutBatch.from_groups(groups).reward_B.dtype == torch.float32


@pytest.mark.parametrize("field", ["logp", "version", "sampled"])
@pytest.mark.parametrize("length", [0, 1, 2, 4])
def test_a_record_of_another_length_is_refused(field: str, length: int) -> None:
    """Three tokens need three log-probs, versions and marks; one alone would be spread over all three."""
    groups = two_groups()
    row = groups[0].completions[0]
    setattr(row, field, (getattr(row, field) * 2)[:length])
    with pytest.raises(BatchError, match=field):
        RolloutBatch.from_groups(groups).check()


def test_select_and_to_keep_every_field() -> None:
    packed = batch()
    picked = packed.select(torch.tensor([2, 0]))
    masked = packed.select(torch.tensor([True, False, True]))
    for field in fields(RolloutBatch):
        whole = getattr(packed, field.name)
        assert torch.equal(getattr(picked, field.name), whole[[2, 0]]), field.name
        assert torch.equal(getattr(masked, field.name), whole[[0, 2]]), field.name
        assert getattr(packed.to("meta"), field.name).device.type == "meta"


# ---- what is refused ----


def test_an_honest_batch_passes() -> None:
    batch().check()


@pytest.mark.parametrize("reward", [NAN, INF, -INF])
def test_rewards_are_finite(reward: float) -> None:
    packed = replace(batch(), reward_B=torch.tensor([1.0, reward, 0.0]))
    with pytest.raises(BatchError, match=rf"row 1 has reward {reward}: a verifier must return"):
        packed.check()


@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.5, 1e-3])
def test_log_probs_of_sampled_tokens_are_finite_and_not_positive(value: float) -> None:
    packed = batch()
    packed.behavior_logp_BT[1, 3] = value
    with pytest.raises(BatchError, match="row 1, token 3 was sampled with log-prob"):
        packed.check()


def test_rounding_of_a_certain_token_is_forgiven() -> None:
    packed = batch()
    packed.behavior_logp_BT[1, 3] = 5e-5  # of a bf16 head, where the token had probability 1
    packed.check()


@pytest.mark.parametrize("value", [NAN, INF, 3.0])
def test_what_stands_on_a_masked_token_does_not_matter(value: float) -> None:
    groups = two_groups()
    groups[0].completions[0].logp[1] = value
    packed = RolloutBatch.from_groups(groups)
    packed.check()
    assert torch.equal(packed.behavior_logp_BT, batch().behavior_logp_BT)


def test_a_sampled_token_without_version_is_refused() -> None:
    groups = two_groups()
    groups[0].completions[0].version[1] = -1  # forced: nobody asks
    RolloutBatch.from_groups(groups).check()
    groups[0].completions[0].version[0] = -1
    with pytest.raises(BatchError, match="no weight version"):
        RolloutBatch.from_groups(groups).check()


def test_a_first_token_that_is_sampled_is_refused() -> None:
    """Nothing predicts it: its weight would be lost, and the weights of the rest no longer sum to 1."""
    packed = RolloutBatch.from_groups([*two_groups(), Group(5, 2, [], two_groups()[0].completions)])
    with pytest.raises(BatchError, match="row 3 has no prompt"):
        packed.check()


# ---- shards ----


def train_batch(lengths: list[int], width: int) -> TrainBatch:
    """Row i has its last trained token at lengths[i] - 1 (none if 0), and its number in every field."""
    rows = len(lengths)
    number_B1 = torch.arange(rows)[:, None] + 1
    column_T = torch.arange(width)
    length_B1 = torch.tensor(lengths)[:, None]
    mask_BT = (column_T < length_B1) & ((column_T % 2 == 0) | (column_T == length_B1 - 1))
    token_BT = torch.where(column_T < length_B1.clamp(min=1), number_B1 * 100 + column_T, 0)
    return TrainBatch(
        token_BT=token_BT,
        mask_BT=mask_BT,
        behavior_logp_BT=torch.where(mask_BT, -number_B1.float(), 0.0),
        version_BT=torch.where(mask_BT, number_B1, -1),
        adv_B=number_B1[:, 0].float(),
        weight_BT=torch.where(mask_BT, 1.0 / number_B1, 0.0),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 3), st.integers(1, 60))
def test_shards_hold_each_row_once_and_nothing_else(
    lengths: list[int], padding: int, max_tokens: int
) -> None:
    whole = train_batch(lengths, 9 + padding)
    shards = whole.shards(max_tokens)
    seen: list[int] = []
    for shard in shards:
        width = shard.token_BT.shape[1]
        rows = [round(adv) - 1 for adv in shard.adv_B.tolist()]
        seen += rows
        # trimmed to its longest row, and within the budget unless it is one row that is longer by itself
        assert width == max(1, max(lengths[row] for row in rows))
        assert len(rows) * width <= max_tokens or len(rows) == 1
        for place, row in enumerate(rows):
            for field in fields(TrainBatch):
                part, full = getattr(shard, field.name)[place], getattr(whole, field.name)[row]
                assert torch.equal(part, full[:width] if full.dim() else full), field.name
            assert not whole.mask_BT[row, width:].any(), "a trained token was cut off"
    assert sorted(seen) == list(range(len(lengths)))


def test_rows_of_like_length_go_together() -> None:
    # 8 padded tokens a shard: (8), (3, 2) as 2 rows of 3, and (1, 1): 8 + 6 + 2 tokens instead of 5 * 8
    shards = train_batch([3, 1, 8, 2, 1], 9).shards(8)
    assert [tuple(shard.token_BT.shape) for shard in shards] == [(1, 8), (2, 3), (2, 1)]


def test_one_budget_for_all_is_one_shard() -> None:
    assert len(train_batch([3, 1, 8], 9).shards(24)) == 1
    assert len(train_batch([3, 1, 8], 9).shards(23)) == 2
    assert train_batch([], 9).shards(10) == []
    assert train_batch([3, 1], 9).rows == 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 60))
def test_packed_shards_count_no_padding(lengths: list[int], max_tokens: int) -> None:
    shards = train_batch(lengths, 10).shards(max_tokens, packed=True)
    rows = [[round(adv) - 1 for adv in shard.adv_B.tolist()] for shard in shards]
    totals = [sum(lengths[row] for row in of_one) for of_one in rows]
    assert sorted(row for of_one in rows for row in of_one) == list(range(len(lengths)))
    for total, of_one in zip(totals, rows, strict=True):
        assert total <= max_tokens or len(of_one) == 1
    for total, of_next in zip(totals, rows[1:], strict=False):  # none could have taken one more
        assert total + max(lengths[row] for row in of_next) > max_tokens


def test_an_idle_shard_has_a_row_and_no_trained_token() -> None:
    for batch in (train_batch([3, 1], 9), train_batch([], 9)):
        idle = batch.idle()
        assert idle.rows == 1 and idle.token_BT.shape == (1, 2)
        assert not idle.mask_BT.any() and not idle.weight_BT.any() and not idle.adv_B.any()
