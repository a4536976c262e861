"""Reported faults of the normaliser, of accumulation and of parallelism: their smallest inputs, given to our update.

The reports speak of a per-token loss f. Here f stands in the advantage of a row, and the loss returns it on every
trained token, so that what `policy_update` reports is the sum of weight times f over all that it was given.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bigram import Bigram, Params, assert_same, doubled, gradients, recipe, still
from torch import Tensor

from scalerl import metrics
from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.recipe import CustomLoss
from scalerl.reduction import token_weights
from scalerl.rollout import Completion, Group
from scalerl.update import LossPair, policy_update, prepare, update_stats

pytestmark = pytest.mark.usefixtures("exact")


def row(n: int, *, sampled: bool = True, **fields: Any) -> Completion:
    return Completion([1 + t % 5 for t in range(n)], [-1.0] * n, [0] * n, [sampled] * n, **fields)


def rollouts(*rows: Completion) -> RolloutBatch:
    """Each completion is the only one of its prompt of one token."""
    return RolloutBatch.from_groups([Group(i, i, [0], [one]) for i, one in enumerate(rows)])


def training(
    rows: list[Completion], f: list[float], how: str = "token_mean", **changes: Any
) -> TrainBatch:
    spec = recipe(aggregation=how, zero_variance="keep", **changes)
    return replace(prepare(rollouts(*rows), spec), adv_B=torch.tensor(f))


def plain(logp_BT: Tensor, behavior_BT: Tensor, adv_B: Tensor, mask_BT: Tensor) -> Tensor:
    """f itself, with a gradient of 0."""
    return adv_B[:, None] + 0.0 * logp_BT


def linear(logp_BT: Tensor, behavior_BT: Tensor, adv_B: Tensor, mask_BT: Tensor) -> Tensor:
    """f log pi: its gradient is that of the weights times f."""
    return adv_B[:, None] * logp_BT


def found(
    batch: TrainBatch, micro_batch_tokens: int = 10_000, function: Any = plain
) -> tuple[dict[str, metrics.Metric], Params]:
    """What an update on these rows says, and its gradient."""
    policy = Bigram(2)
    said = policy_update(
        policy,
        still(policy),
        doubled(batch),
        recipe(),
        LossPair(function, None),
        micro_batch_tokens=micro_batch_tokens,
    )
    return said, gradients(policy)


def loss(batch: TrainBatch, micro_batch_tokens: int = 10_000) -> float:
    value = found(batch, micro_batch_tokens)[0]["loss"].value
    assert value is not None
    return value


def gradient(batch: TrainBatch, micro_batch_tokens: int = 10_000) -> Params:
    return found(batch, micro_batch_tokens, linear)[1]


def uneven(how: str = "token_mean") -> TrainBatch:
    """Most reports come down to these rows: T = 1 with f = 4, and T = 3 with f = 0."""
    return training([row(1), row(3)], [4.0, 0.0], how)


# ---- micro-batches ----


@pytest.mark.report(
    "B01",
    "TRL #3021, #2995; open-instruct #1161, #1137; NeMo-RL #266; verl #906; SkyRL #925, #1296; "
    "Trinity-RFT #336; twinkle #292",
    "mean of the micro-batches' means instead of the mean over tokens",
)
@pytest.mark.report(
    "B09", "SkyRL #1504", "sum inside and mean outside, so the loss depends on the micro-batch size"
)
@pytest.mark.parametrize("micro_batch_tokens", [1, 10_000])
def test_two_micro_batches_give_the_token_mean(micro_batch_tokens: int) -> None:
    batch = uneven()
    assert len(batch.shards(1)) == 2 and len(batch.shards(10_000)) == 1
    # (4 + 0 + 0 + 0) / 4 = 1; the mean of the two means is (4 + 0) / 2 = 2
    assert loss(batch, micro_batch_tokens) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.report(
    "B04",
    "TRL #5890",
    "the fused path divides by the tokens of its own micro-batch, then by the number of micro-batches",
)
def test_the_chunked_head_divides_by_nothing_of_its_own() -> None:
    policy, batch = Bigram(2), uneven()
    # the loss is (4 / 4) log p(token 1 of row 0): the gradient of that log-prob, and not twice it
    policy.logp_BT(torch.tensor([[0, 1]]))[0, 1].backward()
    for micro_batch_tokens in (1, 10_000):
        assert_same(gradient(batch, micro_batch_tokens), gradients(policy))


@pytest.mark.report(
    "B03",
    "ms-swift #10117, #10116",
    "a loss over the whole window's tokens is divided by the accumulation steps once more",
)
def test_four_micro_steps_of_one_token_add_up() -> None:
    batch = training([row(1)] * 4, [1.0] * 4)
    assert len(batch.shards(1)) == 4
    # 4 * 1 / 4 = 1, not a quarter of it
    assert loss(batch, 1) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.report(
    "B07",
    "NeMo-RL #212",
    "divided by the number of micro-batches, of which one has no trained token",
)
@pytest.mark.parametrize("how", ["token_mean", "sample_mean", "prompt_mean"])
def test_an_empty_micro_batch_dilutes_nothing(how: str) -> None:
    batch = training([row(2), row(2, sampled=False)], [1.0, 1.0], how)
    assert len(batch.shards(1)) == 2
    # 2 tokens of f = 1, and a micro-batch of none: 1, not (1 + 0) / 2
    assert loss(batch, 1) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.report("B11", "prime-rl #798, #808", "a micro-batch of padding only gives 0 / 0")
@pytest.mark.parametrize("how", ["token_mean", "sample_mean", "prompt_mean"])
def test_a_batch_of_padding_gives_zero(how: str) -> None:
    batch = training([row(2, sampled=False)], [1.0], how)
    assert loss(batch) == 0.0
    assert all(not g.any() for g in gradient(batch))


# ---- which mean, and its name ----


@pytest.mark.report(
    "B02",
    "verl #593",
    "a loss called GRPO is the mean over tokens where the mean over samples is meant",
)
def test_the_means_have_their_names() -> None:
    # samples: (4 / 1 + 0 / 3) / 2 = 2; tokens: 4 / 4 = 1; each row is its own prompt, so prompts: 2
    assert loss(uneven("sample_mean")) == pytest.approx(2.0, rel=1e-6)
    assert loss(uneven("token_mean")) == pytest.approx(1.0, rel=1e-6)
    assert loss(uneven("prompt_mean")) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.report(
    "B12",
    "prime-rl #2034, #102",
    "losses of the user's own are divided by sequences, built-in ones by tokens",
)
def test_a_custom_loss_has_the_same_divisor(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def f(logp_BT, behavior_logp_BT, adv_B, mask_BT):\n"
        "    return adv_B[:, None] + 0 * logp_BT\n"
    )
    custom = LossPair.of(CustomLoss(function=f"{tmp_path / 'mine.py'}:f"), allow_code=True)
    value = found(training([row(1), row(3)], [1.0, 1.0]), function=custom.term)[0]["loss"].value
    # 4 tokens of f = 1 over 4 tokens; over 2 sequences it would be 2
    assert value == pytest.approx(1.0, rel=1e-6)


@pytest.mark.report(
    "B06", "verl #3741; TRL #3138", "the constant divisor is the padded width of the micro-batch"
)
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("how", ["token_mean", "sample_mean", "prompt_mean"])
def test_no_divisor_is_the_padded_width(width: int, how: Any) -> None:
    """We have no constant divisor; ours count trained tokens, so that f = 1 everywhere is a loss of 1."""
    mask_BT = torch.arange(width).expand(2, width) < 2
    w_BT = token_weights(mask_BT, torch.tensor([0, 1]), how)
    # two rows of T = 2, f = 1: each token weighs 1 / 4 at any width
    assert w_BT[:, :2].flatten().tolist() == [0.25] * 4 and w_BT.sum().item() == 1.0


# ---- what is masked leaves the denominator ----


@pytest.mark.report("B08", "ROLL #444 (proposal)", "the numerator of the token mean is not masked")
def test_the_numerator_is_masked() -> None:
    f_BT = torch.tensor([[2.0, 9.0], [4.0, -7.0]])
    mask_BT = torch.tensor([[True, False], [True, False]])
    w_BT = token_weights(mask_BT, torch.tensor([0, 1]), "token_mean")
    # (2 + 4) / 2 = 3; with 9 and -7 it is 8 / 2 = 4
    assert (w_BT * f_BT).sum().item() == 3.0


@pytest.mark.report(
    "B10",
    "TRL #6369, #6439",
    "truncated rows are masked in the numerator and counted in the denominator",
)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("how", ["token_mean", "sample_mean", "prompt_mean"])
def test_a_truncated_row_is_in_both_or_in_neither(masked: bool, how: str) -> None:
    """Our rule: a truncated row is trained on as it came. One that has no trained token counts nowhere."""
    batch = training([row(3), row(3, truncated=True, sampled=not masked)], [1.0, 1.0], how)
    # 6 / 6 or 3 / 3, never 3 / 6
    assert loss(batch) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.report(
    "B18",
    "TRL #3476",
    "lengths are logged from the mask of the loss, where truncated rows have none",
)
@pytest.mark.parametrize("sampled", [True, False])
def test_the_length_of_a_truncated_row_is_logged(sampled: bool) -> None:
    whole = rollouts(row(5, truncated=True, sampled=sampled))
    stats = update_stats(whole, prepare(whole, recipe(zero_variance="keep")), 0, {})
    assert stats.length_mean_tokens == 5.0
    assert stats.trained_tokens == (5 if sampled else 0)


# ---- ranks ----


def over_ranks(batch: TrainBatch, ranks: int) -> float:
    """The loss, each rank with its share of the rows, merged as the world does."""
    shares = torch.arange(batch.rows).chunk(ranks)
    value = metrics.merge_all([found(batch.select(rows))[0] for rows in shares])["loss"].value
    assert value is not None
    return value


@pytest.mark.report(
    "B05",
    "verl #5625, #5641, #5798, #5366",
    "ranks are weighed by their samples under a token mean; the divisor, not the loss, is multiplied by W",
)
def test_the_number_of_ranks_does_not_matter() -> None:
    # (a) one row on each of two ranks: 1, by samples it would be (4 + 0) / 2 = 2
    assert over_ranks(uneven(), 2) == pytest.approx(1.0, rel=1e-6)
    # (b) f = 1 on W = 4 ranks: 1, with a divisor of 4 * 4 in place of 4 it would be 1 / 16 of that
    batch = training([row(2)] * 4, [1.0] * 4)
    assert over_ranks(batch, 4) == pytest.approx(1.0, rel=1e-6)
    apart = [gradient(batch.select(torch.tensor([rank]))) for rank in range(4)]
    assert_same(
        [sum(parts, torch.zeros(())) for parts in zip(*apart, strict=True)], gradient(batch)
    )


@pytest.mark.report(
    "B19",
    "NeMo-RL #3791; tinker-cloud #66",
    "the reported loss is a multiple, by the number of ranks, of the optimised one",
)
def test_the_reported_loss_is_the_optimised_one() -> None:
    batch = training([row(2)] * 2, [1.0, 1.0])
    assert [over_ranks(batch, ranks) for ranks in (1, 2)] == pytest.approx([1.0, 1.0], rel=1e-6)


@pytest.mark.report(
    "B14",
    "slime #2235",
    "each rank whitens what it holds: another affine map for each part of the batch",
)
def test_the_standard_deviation_is_of_all_ranks() -> None:
    # centred rewards 1, -1 | 3, -3; mean square (1 + 1 + 9 + 9) / 4 = 5; a std for each rank gives four times +-1
    rows = [row(1, reward=r) for r in (1.0, -1.0, 3.0, -3.0)]
    groups = [Group(0, 0, [0], rows[:2]), Group(1, 1, [0], rows[2:])]
    batch = prepare(RolloutBatch.from_groups(groups), recipe(zero_variance="keep"))
    ranks = [batch.select(torch.tensor(rows)).adv_B for rows in ([0, 1], [2, 3])]
    # 1 / sqrt 5 = 0.4472136, 3 / sqrt 5 = 1.3416408
    expected = [0.4472136, -0.4472136, 1.3416408, -1.3416408]
    assert torch.cat(ranks).tolist() == pytest.approx(expected, rel=1e-6)
