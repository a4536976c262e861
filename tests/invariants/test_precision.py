"""Precision: long sums, large offsets, and values that are no number where a token is trained."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from bigram import Bigram, recipe, rollouts
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scalerl.advantages import Normalise, advantages
from scalerl.errors import BatchError
from scalerl.reduction import Aggregation, token_weights
from scalerl.site import Optimizer
from scalerl.update import LossPair, make_optimizer, policy_update, prepare

f64 = torch.float64
NO_NUMBER = st.sampled_from([math.nan, math.inf, -math.inf])
LOSSES = ["cispo", "dapo", "grpo", "gspo", "reinforce"]


def exact_weights(length_B: Tensor, group_B: Tensor, how: Aggregation) -> Tensor:
    """In Python's whole numbers, one division each."""
    length, group = length_B.tolist(), group_B.tolist()
    of_group: dict[int, int] = {}
    for n, g in zip(length, group, strict=True):
        of_group[g] = of_group.get(g, 0) + n
    denominator = {
        "token_mean": [sum(length)] * len(length),
        "sample_mean": [len(length) * n for n in length],
        "prompt_mean": [len(of_group) * of_group[g] for g in group],
    }[how]
    return torch.tensor([1.0 / d for d in denominator], dtype=f64)


@pytest.mark.invariant("H06")
@pytest.mark.parametrize("how", ["prompt_mean", "sample_mean", "token_mean"])
def test_long_sums(how: Aggregation) -> None:
    B, T = 768, 16_384
    generator = torch.Generator().manual_seed(1)
    length_B = torch.randint(T - 4097, T + 1, (B,), generator=generator)
    group_B = torch.arange(B) % 48
    mask_BT = torch.arange(T) < length_B[:, None]
    term_B = torch.rand(B, generator=generator) + 0.5  # one term a row: the sum is 768 products
    found = (token_weights(mask_BT, group_B, how) * term_B[:, None]).sum()
    weight_B = exact_weights(length_B, group_B, how)
    expected = (weight_B * length_B * term_B.double()).sum()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    # the largest weight is that of the fewest tokens, to the last digit of float32
    one = token_weights(mask_BT[:1], group_B[:1], how)[0, 0].item()
    assert one == pytest.approx(1.0 / int(length_B[0]), rel=1e-7)


@pytest.mark.invariant(
    "H11",
    "An offset of a million on float32 rewards leaves every advantage as it is without.",
    "A(1e6 + r; float32) = A(r; float64) within 1e-6,   r in {0, 1}",
    "",
)
@pytest.mark.parametrize("mode", ["batch", "prompt", "none"])
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 1.0])), min_size=1, max_size=14))
def test_a_large_offset(mode: Normalise, rows: list[tuple[int, float]]) -> None:
    group_B = torch.tensor([g for g, _ in rows])
    moved_B = torch.tensor([1e6 + r for _, r in rows], dtype=torch.float32)
    found = advantages(moved_B, group_B, mode)
    by_group = [[s for h, s in rows if h == g] for g, _ in rows]
    centred = [r - sum(of) / len(of) for (_, r), of in zip(rows, by_group, strict=True)]
    for i, (g, _) in enumerate(rows):
        peers = [c for (h, _), c in zip(rows, centred, strict=True) if mode == "batch" or h == g]
        std = math.sqrt(sum(c * c for c in peers) / len(peers)) if mode != "none" else 1.0
        assert found[i].item() == pytest.approx(centred[i] / std if std else 0.0, abs=1e-6)


# ---- no number on a trained token ----


@pytest.mark.invariant(
    "H03",
    "What is no number at a trained place is refused, with the place where the batch holds it; nothing is updated.",
    "x_it in {nan, inf, -inf}, m_it = 1  =>  error naming (i, t);  the same under m_it = 0 is not looked at",
    "TRL #5902: nan in one reward spreads over the batch, or is averaged away",
)
@given(st.integers(0, 20), NO_NUMBER, st.data())
def test_a_behaviour_log_prob(seed: int, bad: float, data: st.DataObject) -> None:
    batch = rollouts(seed)
    trained = batch.mask_BT.nonzero().tolist()
    first = data.draw(st.integers(0, len(trained) - 1))
    second = data.draw(st.integers(first, len(trained) - 1))
    for row, token in (trained[first], trained[second]):
        batch.behavior_logp_BT[row, token] = bad
    row, token = trained[first]
    with pytest.raises(
        BatchError, match=f"row {row}, token {token} was sampled with log-prob {bad}"
    ):
        prepare(batch, recipe())


@pytest.mark.invariant("H03")
@given(st.integers(0, 20), NO_NUMBER, st.data())
def test_a_reward(seed: int, bad: float, data: st.DataObject) -> None:
    batch = rollouts(seed)
    row = data.draw(st.integers(0, len(batch.reward_B) - 1))
    batch.reward_B[row:] = bad
    with pytest.raises(BatchError, match=f"row {row} has reward {bad}"):
        prepare(batch, recipe())


@pytest.mark.invariant("H03")
@given(st.integers(0, 20), NO_NUMBER)
def test_under_the_mask_anything_may_stand(seed: int, bad: float) -> None:
    batch = rollouts(seed)
    batch.behavior_logp_BT.masked_fill_(~batch.mask_BT, bad)
    with_it, without = prepare(batch, recipe()), prepare(rollouts(seed), recipe())
    assert torch.equal(with_it.adv_B, without.adv_B)
    assert torch.equal(with_it.weight_BT, without.weight_BT)


def poisoned(what: str, bad: float, kind: str) -> tuple[Bigram, Any, LossPair]:
    """A policy, a batch and a loss; one of log pi, A and the gradient is no number."""
    policy, spec = Bigram(dtype=torch.float32), recipe(loss={"kind": kind})
    train, loss = prepare(rollouts(0), spec), LossPair.of(spec.loss)
    if what == "advantage":
        train = replace(train, adv_B=train.adv_B.index_fill(0, torch.tensor([1]), bad))
    elif what == "log-prob":
        with torch.no_grad():
            policy.head[0, 0] = bad
    else:  # the value is 0, and its slope is not finite
        loss = LossPair(lambda logp, behavior, adv, mask: (0 * logp).sqrt(), None)
    return policy, train, loss


@pytest.mark.invariant("H03")
@pytest.mark.parametrize("what", ["advantage", "log-prob", "gradient"])
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nothing_is_updated(what: str, kind: str, bad: float) -> None:
    policy, train, loss = poisoned(what, bad, kind)
    optimizer = make_optimizer(policy.parameters(), Optimizer(learning_rate=0.1))
    before = [p.detach().clone() for p in policy.parameters()]
    with pytest.raises(BatchError, match="nothing was updated"):
        policy_update(policy, optimizer, train, recipe(loss={"kind": kind}), loss)
    for p, old in zip(policy.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old, rtol=0, atol=0, equal_nan=True)
    assert not optimizer.state
