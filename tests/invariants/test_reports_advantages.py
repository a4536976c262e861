"""Reported faults of advantages and of the filter on constant groups: their smallest inputs, given to ours."""

import math
from typing import Any, cast

import pytest
import torch
from bigram import recipe
from torch import Tensor

from scalerl.advantages import advantages
from scalerl.batch import RolloutBatch
from scalerl.errors import BatchError
from scalerl.losses import clipped_surrogate
from scalerl.reduction import token_weights
from scalerl.rollout import Completion, Group
from scalerl.update import prepare, update_stats
from scalerl.world import EvalResult

P, Q = 11, 4  # two prompts' ids, in no order


def adv(reward: list[float], group: list[int], normalise: Any = "none") -> list[float]:
    return advantages(
        torch.tensor(reward, dtype=torch.float64), torch.tensor(group), normalise
    ).tolist()


def row(reward: float, n: int = 1, *, correct: bool | None = None, **fields: Any) -> Completion:
    right = reward > 0 if correct is None else correct
    version = fields.pop("version", [0] * n)
    return Completion(
        [5] * n, [-1.0] * n, version, [True] * n, reward=reward, correct=right, **fields
    )


def batch(*groups: list[Completion]) -> RolloutBatch:
    """Groups of one and the same prompt text, each its own draw."""
    return RolloutBatch.from_groups([Group(i, 0, [1, 2], rows) for i, rows in enumerate(groups)])


def keep(**changes: Any) -> Any:
    return recipe(zero_variance="keep", advantage="none", **changes)


# ---- who is compared with whom ----


@pytest.mark.report(
    "B20",
    "open-instruct #1794",
    "rows are dropped before the rewards are cut into groups of G, so that groups shift",
)
def test_rows_are_dropped_after_the_means_are_taken() -> None:
    p, q = [row(r) for r in (1.0, 0.0, 1.0, 0.0)], [row(r) for r in (1.0, 1.0, 0.0, 0.0)]
    whole = prepare(batch(p, q), keep())
    kept = whole.select(torch.tensor([0, 1, 6, 7]))  # without p3, p4, q1, q2
    # both means are 1/2; of the four that remain, as one group, it would be 1/4
    assert kept.adv_B.tolist() == [0.5, -0.5, -0.5, -0.5]


@pytest.mark.report(
    "B21",
    "prime-rl #600; R1-V #67, #146; VLM-R1 #129",
    "prompts come as p, q, p, q and are grouped in blocks",
)
def test_interleaved_prompts_are_grouped_by_their_id() -> None:
    # p is always 1 and q always 0; blocks of two would give +-1/2
    assert adv([1.0, 0.0, 1.0, 0.0], [P, Q, P, Q]) == [0.0] * 4


@pytest.mark.report("B22", "PipelineRL #54", "mean and std of the first rollout only")
def test_the_mean_is_of_the_whole_group() -> None:
    # mean 1/2; with the first reward as the mean: 0, -1, -1, 0
    assert adv([1.0, 0.0, 0.0, 1.0], [P] * 4) == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.report(
    "B23", "TRL #3991", "scaling by the std of the batch is computed for each group apart"
)
def test_the_batch_std_is_of_the_batch() -> None:
    # centred 1/2, -1/2, 5, -5: std = sqrt((2 * 0.25 + 2 * 25) / 4) = sqrt(12.625) = 3.5531676
    # 0.5 / 3.5531676 = 0.1407195, ten times that = 1.4071951; per group all are +-1
    found = adv([1.0, 0.0, 10.0, 0.0], [P, P, Q, Q], "batch")
    assert found == pytest.approx([0.1407195, -0.1407195, 1.4071951, -1.4071951], rel=1e-6)


@pytest.mark.report(
    "B24", "NeMo-RL #3882", "groups are keyed by the prompt's tokens, so two draws of a text merge"
)
def test_equal_prompts_drawn_twice_stay_apart() -> None:
    whole = batch([row(0.0), row(0.0)], [row(1.0), row(1.0)])
    assert torch.equal(whole.token_BT[0, :2], whole.token_BT[2, :2])
    # all-0 and all-1: nothing to learn from either; merged it is +-1/2
    assert prepare(whole, keep()).adv_B.tolist() == [0.0] * 4


@pytest.mark.report(
    "B25",
    "rllm #776; verl #3635",
    "an id for each trajectory makes groups of one, which keep their raw reward",
)
@pytest.mark.parametrize("normalise", ["none", "prompt", "batch"])
def test_a_group_is_a_draw_and_a_singleton_is_zero(normalise: str) -> None:
    one_draw = batch([row(r) for r in (1.0, 0.0, 1.0, 1.0)])
    assert prepare(one_draw, keep()).adv_B.tolist() == [0.25, -0.75, 0.25, 0.25]
    # true singletons have nothing to be compared with: 0, and not the reward itself
    assert adv([1.0, 0.0, 1.0, 1.0], [0, 1, 2, 3], normalise) == [0.0] * 4


@pytest.mark.report(
    "B26", "open-r1 #67; grpo-flat #2", "the mean is of the batch, not of the group"
)
def test_the_mean_is_of_the_group() -> None:
    # the batch's mean is 1/2, which would give +-1/2
    assert adv([1.0, 1.0, 0.0, 0.0], [P, P, Q, Q]) == [0.0] * 4


@pytest.mark.report(
    "B31", "miles #1325", "a rollout generated in several segments counts once for each of them"
)
def test_a_rollout_across_three_versions_is_one_row() -> None:
    whole = batch([row(1.0, 3, version=[4, 5, 6]), row(0.0, 1, version=[4])])
    # mean (1 + 0) / 2 = 1/2; with three segments of reward 1 it would be 3/4
    assert prepare(whole, keep()).adv_B.tolist() == [0.5, -0.5]


@pytest.mark.report(
    "B37",
    "VLM-R1 #129; TRL #6804",
    "an evaluation has another group size than training, and is cut into groups of the latter",
)
def test_every_group_has_its_own_size() -> None:
    # a group of 4 (mean 3/4) beside one of 2 (mean 1/2)
    found = adv([1.0, 0.0, 1.0, 1.0, 1.0, 0.0], [P] * 4 + [Q] * 2)
    assert found == [0.25, -0.75, 0.25, 0.25, 0.5, -0.5]
    # and an evaluation of 2 prompts with k = 2: passes 1 and 2 are 3 of 4
    assert EvalResult("validation", 0, k=2, passes=[1, 2]).pass_rate == 0.75


# ---- what divides ----


@pytest.mark.report(
    "B27",
    "NeMo-RL #1518, #1519",
    "without itself the odd one out sees a std of 0, and is divided by eps",
)
def test_the_odd_one_out_stays_of_order_one() -> None:
    """Our mean and std include the completion itself: its gain of 1 over the others appears as 1 - 1/4."""
    reward = [1.0, 0.0, 0.0, 0.0]
    assert adv(reward, [P] * 4) == [0.75, -0.25, -0.25, -0.25]
    # std = sqrt((9 + 1 + 1 + 1) / 16 / 4) = sqrt(3) / 4: 0.75 / std = sqrt(3), and not 1 / eps
    assert adv(reward, [P] * 4, "prompt")[0] == pytest.approx(math.sqrt(3), rel=1e-12)


@pytest.mark.report(
    "B28", "SkyRL #1305, #1782", "the mean is over padding, the variance over the mask"
)
def test_a_mean_over_tokens_leaves_padding_out() -> None:
    A_BT = torch.tensor([[1.0, 0.0, 0.0, 0.0], [3.0, 3.0, 0.0, 0.0]])
    mask_BT = torch.tensor([[True, False, False, False], [True, True, False, False]])
    w_BT = token_weights(mask_BT, torch.tensor([0, 1]), "token_mean")
    # (1 + 3 + 3) / 3 = 7/3; over all eight places 7/8
    assert (w_BT * A_BT).sum().item() == pytest.approx(7 / 3, rel=1e-6)


@pytest.mark.report("B30", "gem #113", "a z-score per group, and then another one over all tokens")
@pytest.mark.parametrize("normalise", ["prompt", "batch"])
def test_lengths_do_not_weigh_in_the_advantage(normalise: str) -> None:
    whole = batch([row(1.0, 1), row(-1.0, 3, correct=False)])
    spec = recipe(advantage=normalise)
    # one z-score: +-1. A second one, by tokens, has mean (1 - 3) / 4 = -1/2 and gives 1.732, -0.577
    assert prepare(whole, spec).adv_B.tolist() == pytest.approx([1.0, -1.0], rel=1e-6)


@pytest.mark.report(
    "B35",
    "torchrl #1033",
    "the advantage is normalised between the two branches of the minimum, so only one has it",
)
def test_both_branches_have_the_normalised_advantage() -> None:
    reward_B = torch.tensor([5.0, 5.0, 5.0, 5.0, 0.0], dtype=torch.float64)
    adv_B = advantages(reward_B, torch.tensor([P] * 5), "prompt")
    # the failure, centred: 0 - 4 = -4; std = sqrt((4 * 1 + 16) / 5) = 2: A = -2
    assert adv_B[4].item() == pytest.approx(-2.0, rel=1e-12)
    logp_BT = torch.full((1, 1), math.log(1.1), dtype=torch.float64) - 2.0
    behavior_BT, mask_BT = torch.full_like(logp_BT, -2.0), torch.tensor([[True]])
    term_BT = clipped_surrogate(
        logp_BT, behavior_BT, adv_B[4:], mask_BT, clip_low=0.2, clip_high=0.2
    )
    # objective min(1.1 * -2, 1.1 * -2) = -2.2, minimised: 2.2; with -4 in one branch 4.4
    assert term_BT.item() == pytest.approx(2.2, rel=1e-12)


@pytest.mark.report("B36", "verl #2506", "advantages are passed where the mask belongs")
def test_advantages_are_no_mask() -> None:
    A_BT = torch.tensor([[1.0, -1.0]])
    w_BT = token_weights(torch.ones(1, 2, dtype=torch.bool), torch.tensor([0]), "token_mean")
    # (1 - 1) / 2 = 0; with A as the mask 0 / 0
    assert (w_BT * A_BT).sum().item() == 0.0
    with pytest.raises(TypeError):
        token_weights(cast(Tensor, A_BT), torch.tensor([0]), "token_mean")


# ---- rewards that are no number ----


@pytest.mark.report(
    "B29",
    "TRL #5902, #5775, #5773, #6427; ms-swift #8123",
    "a reward of None becomes 0 and moves its siblings, or a NaN spreads",
)
def test_a_reward_that_is_no_number_is_refused() -> None:
    """Neither 1/3, the mean with 0 in its place, nor NaN: an error that names the row."""
    rows = [row(1.0), row(0.5), row(0.0)]
    rows[1].reward = cast(float, None)
    with pytest.raises(TypeError):
        batch(rows)
    rows[1].reward = math.nan
    with pytest.raises(BatchError, match="row 1 has reward nan"):
        prepare(batch(rows), keep())
    with pytest.raises(ValueError, match=r"reward_B\[1\] = nan"):
        adv([1.0, math.nan, 0.0], [P] * 3)


# ---- constant groups ----


@pytest.mark.report(
    "B32",
    "TRL #6365; autonomous-dev #415",
    "the flag of zero variance is of the whole batch, or is std == 0 in floating point",
)
def test_constant_groups_are_found_one_by_one() -> None:
    spec = recipe(advantage="batch")
    whole = batch([row(1.0), row(1.0)], [row(1.0), row(0.0)])
    train = prepare(whole, spec)
    assert train.adv_B.tolist() == [1.0, -1.0], "the first group is out, the second in"
    assert update_stats(whole, train, 0, {}).zero_variance == 0.5
    # 0.1 + 0.2 is not 0.3; our rule counts passes, three of three, and looks at no reward
    nearly = batch([row(0.3), row(0.3), row(0.1 + 0.2)])
    assert prepare(nearly, spec).rows == 0


@pytest.mark.report(
    "B34",
    "AReaL #450; open-instruct #1185; verl #953",
    "dropping and refilling are confused: the batch shrinks unnoticed, or generation never ends",
)
def test_a_batch_of_one_mixed_group_is_trained_on() -> None:
    constant = [row(1.0, 2), row(1.0, 2)]
    whole = batch(constant, [row(1.0, 1), row(-1.0, 3)], constant, constant)
    train = prepare(whole, recipe())
    assert train.rows == 2 and train.adv_B.tolist() == [1.0, -1.0]
    # N = 1 group of 1 + 3 tokens: each weighs 1/4, and not 1/4 of 1/4
    assert train.weight_BT[train.mask_BT].tolist() == [0.25] * 4
    stats = update_stats(whole, train, 0, {})
    assert stats.zero_variance == 0.75 and not stats.skipped, "the shrinking is said"
