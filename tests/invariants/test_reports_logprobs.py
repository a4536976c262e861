"""Reported faults of log-probs, alignment, masks and lengths: their smallest inputs, given to ours."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from bigram import Bigram, doubled, recipe, still
from tiny_policies import random_policy
from torch import Tensor

from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.errors import BatchError
from scalerl.length import shaped_reward
from scalerl.logprobs import logits, sampled_logprobs
from scalerl.losses import reinforce
from scalerl.recipe import NoLengthControl, OverlongPenalty
from scalerl.rollout import Completion, Group
from scalerl.update import LossPair, policy_update, prepare, update_stats

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
COOL = -math.log1p(math.exp(-4.0))
"""log p of token 0 at z = (2, 0) and a temperature of 1/2, where z / 0.5 = (4, 0): -0.018150."""


class Table:
    """log p(next | token) as given; where nothing is given after a token, all are alike."""

    def __init__(self, follows: dict[tuple[int, int], float], words: int = 24) -> None:
        table = torch.zeros(words, words, dtype=f64)
        for (token, after), logp in follows.items():
            p = math.exp(logp)
            table[token] = math.log((1 - p) / (words - 1))
            table[token, after] = logp
        self.table = torch.nn.Parameter(table)
        self.head = torch.nn.Parameter(torch.eye(words, dtype=f64))

    @property
    def head_VD(self) -> Tensor:
        return self.head

    def hidden(self, token_BT: Tensor) -> Tensor:
        return self.table[token_BT]

    def parameters(self) -> list[torch.nn.Parameter]:
        return [self.table, self.head]


def completion(tokens: Sequence[int], logp: Sequence[float] = (), **fields: Any) -> Completion:
    n = len(tokens)
    return Completion(
        **{
            "token_ids": list(tokens),
            "logp": list(logp) or [-1.0] * n,
            "version": [0] * n,
            "sampled": [True] * n,
            **fields,
        }
    )


def packed(*rows: tuple[list[int], Completion], pad_id: int = 0) -> RolloutBatch:
    """Rows of (prompt, completion), each the only one of its prompt."""
    groups = [Group(i, i, prompt, [one]) for i, (prompt, one) in enumerate(rows)]
    return RolloutBatch.from_groups(groups, pad_id)


def training(whole: RolloutBatch) -> TrainBatch:
    """In float64, all rows kept, with an advantage of 1."""
    train = doubled(prepare(whole, recipe(zero_variance="keep")))
    return replace(train, adv_B=torch.ones_like(train.adv_B))


def step(policy: Any, train: TrainBatch, optimizer: Any = None, **options: Any) -> dict[str, Any]:
    """What an update with the loss -A log pi says."""
    found = policy_update(
        policy, optimizer or still(policy), train, recipe(), LossPair(reinforce, None), **options
    )
    return {name: metric.value for name, metric in found.items()}


def learnt(policy: Table) -> list[int]:
    """Tokens after which something was learnt, by the last update."""
    grad = policy.table.grad
    assert grad is not None
    return grad.abs().sum(1).nonzero().flatten().tolist()


# ---- alignment ----


@pytest.mark.usefixtures("exact")
@pytest.mark.report(
    "B58",
    "prime-rl #1525 (review)",
    "labels are shifted and logits are not, so the trainer's log-prob i is that of token i + 1",
)
def test_trainer_and_generator_mean_the_same_token() -> None:
    policy = Table({(0, 1): -1.0, (1, 2): -2.0, (2, 3): -3.0})
    found = step(policy, training(packed(([0], completion([1, 2, 3], [-1.0, -2.0, -3.0])))))
    # d = 0 on each token: no divergence, and a loss of (1 + 2 + 3) / 3. One off, d = -1 and kl = 1 - 2/e = 0.26
    assert found["kl"] == pytest.approx(0.0, abs=1e-12)
    assert found["ess"] == pytest.approx(1.0, rel=1e-12)
    assert found["loss"] == pytest.approx(2.0, rel=1e-6)


@pytest.mark.report(
    "B59",
    "prime-rl #605, #606",
    "a sample of L tokens has L - 1 log-probs, so the k-th packed sample is off by k - 1",
)
def test_every_token_has_its_place() -> None:
    whole = packed(([7], completion([1, 2], [-1.0, -2.0])), ([7], completion([3], [-3.0])))
    # sequences of 3 and 2 tokens: 5 places, the first of each 0 and not trained
    assert (whole.token_BT != 0).sum() == 5
    assert whole.behavior_logp_BT.tolist() == [[0.0, -1.0, -2.0], [0.0, -3.0, 0.0]]
    assert whole.mask_BT.tolist() == [[False, True, True], [False, True, False]]
    with pytest.raises(BatchError, match="row 0, of group 0, has 2 tokens and 1 values in 'logp'"):
        packed(([7], completion([1, 2], [-1.0])))


@pytest.mark.usefixtures("exact")
@pytest.mark.report(
    "B60",
    "verl #6475; torchtitan #3347",
    "the last token of a packed sequence is scored against the first of the next",
)
def test_the_last_token_predicts_nothing() -> None:
    policy = Table({})
    train = training(packed(([10], completion([11, 12])), ([20], completion([21]))))
    for micro_batch_tokens in (1, 10_000):
        step(policy, train, micro_batch_tokens=micro_batch_tokens)
        assert learnt(policy) == [
            10,
            11,
            20,
        ]  # the states before a trained token; neither 12 nor 21


@pytest.mark.usefixtures("exact")
@pytest.mark.report(
    "B62",
    "verl #3287; gpt-neox #1285",
    "the mask loses the first token of the answer, or the one before the end",
)
def test_all_three_answer_tokens_are_trained() -> None:
    policy = Table({})
    whole = packed(([4, 5], completion([6, 7, 2])))
    train = training(whole)
    assert whole.mask_BT.tolist() == [[False, False, True, True, True]]
    assert update_stats(whole, train, 0, {}).trained_tokens == 3
    step(policy, train)
    assert learnt(policy) == [5, 6, 7], "the last prompt token predicts the first of the answer"


@torch.no_grad()
@pytest.mark.report(
    "B63", "marin #1731", "the mask lacks an axis, so a token sees those that come after it"
)
def test_a_token_does_not_see_the_next() -> None:
    policy = random_policy()
    first = [
        policy.hidden(torch.tensor([[1, 7, y2]]))[0, :2] for y2 in range(2, policy.head_VD.shape[0])
    ]
    # log p(y1) is read off the state at the prompt, log p(y2) off that at y1: neither depends on y2
    assert all(torch.equal(first[0], other) for other in first[1:])


# ---- temperature and precision ----


def scored(z: list[float], dtype: torch.dtype = f32, **options: Any) -> tuple[float, float]:
    """log p of token 0 and the entropy, from a hidden state of 1 and z as the head."""
    head_VD, hidden_ND = torch.tensor(z)[:, None], torch.ones(1, 1)
    found = sampled_logprobs(hidden_ND, head_VD, torch.tensor([0]), head_dtype=dtype, **options)
    return found[0].item(), found[1].item()


@pytest.mark.report("B64", "prime-rl #697, #679", "the log-prob is divided by T, not the logits")
def test_the_temperature_divides_logits() -> None:
    # log softmax(4, 0) = -0.018150; log softmax(2, 0) / 0.5 = -0.253856
    assert scored([2.0, 0.0], temperature=0.5)[0] == pytest.approx(-0.018150, abs=1e-6)


@pytest.mark.usefixtures("exact")
@pytest.mark.report(
    "B65",
    "TRL #4159, #4163; NeMo-RL #902, #935; marin #1879; ms-swift #8427; vime #64",
    "one side divides by the temperature and the other does not",
)
def test_both_sides_have_the_temperature() -> None:
    z_NV = logits(torch.ones(1, 1), torch.tensor([[2.0], [0.0]]), f32, 0.5)
    recorded = z_NV.log_softmax(-1)[0, 0].item()
    assert recorded == pytest.approx(COOL, abs=1e-6)
    policy = Bigram()
    with (
        torch.no_grad()
    ):  # after token 1, z of token 0 is 2 and every other so low that only token 1 counts
        policy.embedding[1] = torch.tensor([1.0, 0.0, 0.0])
        policy.head[:, 0] = torch.tensor([2.0, 0.0, -400.0, -400.0, -400.0, -400.0])
    train = training(packed(([1], completion([0], [recorded]))))
    # ratio 1 up to the float32 of the record; undivided e^(-0.1269 + 0.0181) = 0.897 and kl = 0.0056
    assert step(policy, train, temperature=0.5)["kl"] == pytest.approx(0.0, abs=1e-12)
    assert step(policy, train)["kl"] == pytest.approx(0.0056, abs=1e-4)


@pytest.mark.report(
    "B66",
    "OpenRLHF #634; xtuner #1108; transformers #31267; TRL #4303; open-instruct #1387; vLLM #48390",
    "the LM head is in bfloat16, and the ratio on-policy is not 1",
)
def test_a_float32_head_on_both_sides_keeps_the_ratio_at_one() -> None:
    hidden_ND, head_VD = torch.ones(1, 1), torch.tensor([[-20.3], [0.0]])
    token_N = torch.tensor([0])

    def ratio(trainer: torch.dtype, generator: torch.dtype) -> float:
        recorded = logits(hidden_ND, head_VD, generator).log_softmax(-1)[0, 0]
        logp_N, _ = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=trainer)
        return (logp_N[0] - recorded).exp().item()

    # log p = -20.3 to a float32's digits
    assert scored([-20.3, 0.0])[0] == pytest.approx(-20.3, rel=1e-6)
    assert ratio(f32, f32) == 1.0
    # bfloat16 has -20.25 for it: e^(-20.3 + 20.25) = e^-0.05 = 0.951, 4.9 % off
    assert ratio(f32, bf16) == pytest.approx(math.exp(-0.05), rel=1e-4)


@pytest.mark.usefixtures("exact")
@pytest.mark.report(
    "B67", "prime-rl #2438 (design note)", "a float32 copy of the head stays at its first weights"
)
def test_new_weights_give_new_log_probs() -> None:
    policy = Bigram(3)
    train = training(packed(([1], completion([2]))))
    optimizer = torch.optim.SGD([policy.head], lr=0.5)
    said: list[float] = []
    for _ in range(3):
        wanted = -policy.logp_BT(train.token_BT)[0, 1].item()  # of the weights as they are now
        said.append(step(policy, train, optimizer)["loss"])
        assert said[-1] == pytest.approx(wanted, rel=1e-12)
    assert said[0] > said[1] > said[2], "each step raised log p"


@pytest.mark.report(
    "B68", "maxtext #5231", "an unfused subtraction leaves a log-prob slightly above 0"
)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_no_log_prob_is_above_zero(dtype: torch.dtype) -> None:
    # -ln(1 + e^-30) = -9.4e-14
    assert -1e-6 < scored([30.0, 0.0], dtype)[0] <= 0.0


@pytest.mark.report(
    "B69",
    "TRL #7221, #7251 (review); SkyRL #2259",
    "the entropy has 0 * -inf, and a mended forward pass leaves NaN in the backward one",
)
def test_an_impossible_token_has_no_part_in_the_entropy() -> None:
    assert scored([0.0, -math.inf]) == (0.0, 0.0)
    # the gradient, with a head that can be a weight: e^-3e38 is 0 as well
    hidden_ND = torch.ones(1, 1, requires_grad=True)
    head_VD = torch.tensor([[0.0], [-3e38]], requires_grad=True)
    logp_N, entropy_N = sampled_logprobs(hidden_ND, head_VD, torch.tensor([0]), head_dtype=f32)
    logp_N.sum().backward()
    assert entropy_N.tolist() == [0.0]
    for grad in (hidden_ND.grad, head_VD.grad):
        assert grad is not None and not grad.any()  # p = (1, 0): there is nothing left to learn


# ---- masks ----


@pytest.mark.report(
    "B74",
    "TRL #4970; MemGen #33; compose-rl #31",
    "the mask is inferred from the padding's id, which is that of the end: the real end is not trained",
)
def test_an_end_that_is_also_the_padding_is_trained() -> None:
    whole = packed(([1], completion([5, 6, 2])), ([1], completion([5, 6, 7, 2])), pad_id=2)
    assert whole.token_BT[0].tolist() == [1, 5, 6, 2, 2]
    # T = 3 and not 2: the end counts, its filler does not
    assert whole.mask_BT[0].tolist() == [False, True, True, True, False]


@pytest.mark.usefixtures("exact")
@pytest.mark.report(
    "B79",
    "prime-rl #393 (review); vLLM #54864",
    "a forced end of thinking has another token's log-prob and is trained as if it were sampled",
)
def test_a_forced_token_is_not_trained() -> None:
    forced = completion([5, 6, 3], [-1.0, -1.0, -7.0], sampled=[True, True, False])
    whole = packed(([1], forced))
    assert whole.mask_BT.tolist() == [[False, True, True, False]]
    assert whole.behavior_logp_BT[0, 3] == 0.0
    policy = Table({})
    step(policy, training(whole))
    assert learnt(policy) == [1, 5], (
        "6, the state that would predict the forced token, learns nothing"
    )


@pytest.mark.report(
    "B80",
    "slime #1440, #1445, #2207",
    "a resumed response grows, and its mask keeps the old length",
)
def test_a_mask_covers_old_and_new_tokens() -> None:
    tokens = [5, 6, 7, 8, 9, 10, 2]
    grown = completion(tokens, version=[0] * 4 + [1] * 3, sampled=[False] * 4 + [True] * 3)
    assert packed(([1], grown)).mask_BT[0, 1:].int().tolist() == [0] * 4 + [1] * 3
    with pytest.raises(BatchError, match="has 7 tokens and 4 values in 'sampled'"):
        packed(([1], completion(tokens, sampled=[False] * 4)))


# ---- truncation and length ----


@pytest.mark.report(
    "B76", "verl #3855, #3856", "the penalty is said to begin at the greatest length, not before it"
)
@pytest.mark.report(
    "B77", "verl #4268", "the reward is computed where the penalty is not: overlong answers keep +1"
)
def test_the_penalty_of_long_answers() -> None:
    # L_max 14k, L_cache 14k / 7 = 2k. At 13k (14 - 13) / 2 - 1 = -1/2; at 14k -1, hence 1 - 1 = 0
    found = [shaped_reward(True, n, OverlongPenalty(), 14_000) for n in (13_000, 14_000)]
    assert found == pytest.approx([1.0 - 0.5, 0.0], abs=1e-12)


@pytest.mark.report(
    "B78", "verl #5858, #6709", "a penalty that is switched off still asks for its settings"
)
def test_without_a_penalty_the_reward_is_plain() -> None:
    for tokens in (13_000, 14_000, 99_000):
        assert shaped_reward(True, tokens, NoLengthControl(), 14_000) == 1.0
        assert shaped_reward(False, tokens, NoLengthControl(), 14_000) == -1.0


@pytest.mark.report(
    "B83", "tinker-cookbook #506", "an answer cut by its length is reported as a failure of format"
)
def test_a_cut_answer_is_reported_as_cut() -> None:
    cut = completion([5, 6], truncated=True, reward=-1.0)
    whole = packed(([1], cut), ([1], completion([5, 2], reward=-1.0)))
    stats = update_stats(whole, training(whole), 0, {})
    assert (stats.truncated, stats.interrupted, stats.pass_rate) == (0.5, 0.0, 0.0)


@pytest.mark.report(
    "B84", "UniRL #19", "every truncated answer scores 0, so rewards collapse as lengths grow"
)
def test_a_truncated_answer_has_the_reward_of_its_verdict() -> None:
    """Our rule: the verifier decides, on the tokens there are; nothing downstream looks at the cut."""
    right = completion([5, 6], truncated=True, correct=True, reward=1.0)
    wrong = completion([5, 2], reward=-1.0)
    train = prepare(RolloutBatch.from_groups([Group(0, 0, [1], [right, wrong])]), recipe())
    assert train.adv_B.tolist() == [1.0, -1.0]
    # 2 + 2 tokens of one prompt, the cut ones among them
    assert train.weight_BT[train.mask_BT].tolist() == [0.25] * 4
