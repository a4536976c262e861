"""The gradient of an update: that of the formula, whatever the split into micro-batches and ranks."""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
import torch
from bigram import (
    Bigram,
    Params,
    WithOthers,
    assert_same,
    doubled,
    f64,
    gradients,
    recipe,
    rollouts,
    step,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.update import (
    prepare,
)

# ---- the gradient ----


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_the_papers(seed: int) -> None:
    """Against plain autograd of J = mean_p 1/|y_p| sum sg(min(rho, 5)) A log pi, written out row by row."""
    policy, whole = Bigram(seed), rollouts(seed, constant=1)
    train = doubled(prepare(whole, recipe()))
    found = step(policy, train, recipe())
    ours = gradients(policy)

    kept = [i for i in range(len(whole.group_B)) if whole.group_B[i] != whole.group_B[-1]]
    groups = sorted({int(whole.group_B[i]) for i in kept})
    centred: dict[int, float] = {}
    for g in groups:
        rows = [i for i in kept if int(whole.group_B[i]) == g]
        mean = sum(whole.reward_B[i].item() for i in rows) / len(rows)
        centred |= {i: whole.reward_B[i].item() - mean for i in rows}
    std = math.sqrt(sum(c * c for c in centred.values()) / len(kept))
    logp_BT = policy.logp_BT(whole.token_BT)
    objective = torch.zeros((), dtype=f64)
    for g in groups:
        rows = [i for i in kept if int(whole.group_B[i]) == g]
        tokens = sum(int(whole.mask_BT[i].sum()) for i in rows)
        for i in rows:
            for t in whole.mask_BT[i].nonzero()[:, 0].tolist():
                mu = whole.behavior_logp_BT[i, t].double()
                rho = (logp_BT[i, t] - mu).exp().detach().clamp(max=5.0)
                objective = objective + rho * (centred[i] / std) * logp_BT[i, t] / tokens / len(
                    groups
                )
    theirs = torch.autograd.grad(-objective, policy.parameters())
    # weights and advantages are float32 in the batch
    assert_same(ours, list(theirs), rel=1e-5, abs=1e-7)
    assert found["loss"] == pytest.approx(-objective.item(), rel=1e-5)
    norm = math.sqrt(sum(g.square().sum().item() for g in ours))
    assert found["grad_norm"] == pytest.approx(norm, rel=1e-12)


LOSSES: dict[str, dict[str, Any]] = {
    "cispo": {"kind": "cispo"},
    "gspo": {"kind": "gspo", "clip_low": 0.3, "clip_high": 0.5},
}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", ["cispo", "gspo"])
def test_any_micro_batches_give_the_same_gradient_and_metrics(kind: str) -> None:
    spec = recipe(loss=LOSSES[kind])
    for seed in range(2):
        policy, train = Bigram(seed), doubled(prepare(rollouts(seed), spec))
        whole = step(policy, train, spec)
        expected = gradients(policy)
        for micro_batch_tokens in (1, 25):
            assert len(train.shards(micro_batch_tokens)) > 1
            found = step(policy, train, spec, micro_batch_tokens=micro_batch_tokens)
            assert_same(gradients(policy), expected)
            assert found == pytest.approx(whole, rel=1e-10, abs=1e-13)


@pytest.mark.usefixtures("exact")
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 100), st.data())
def test_any_split_over_two_ranks_gives_the_same_step(seed: int, data: st.DataObject) -> None:
    """Gradients of ranks are summed, not averaged; a rank may have no row; groups may be cut apart."""
    spec = recipe()
    train = doubled(prepare(rollouts(seed), spec))
    on_first = torch.tensor(
        data.draw(st.lists(st.booleans(), min_size=train.rows, max_size=train.rows))
    )
    policy = Bigram(seed)
    whole = step(policy, train, spec)
    expected = gradients(policy)

    first = step(policy, train.select(on_first), spec) if on_first.any() else {}
    others = gradients(policy) if on_first.any() else [torch.zeros_like(g) for g in expected]

    second = step(policy, train.select(~on_first), spec, ranks=WithOthers(policy, others))
    assert_same(gradients(policy), expected)
    # the norm is of the sum, so that both ranks clip, report and refuse alike
    assert second["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-10)
    assert first.get("loss", 0.0) + second.get("loss", 0.0) == pytest.approx(
        whole["loss"], abs=1e-10
    )


@pytest.mark.usefixtures("exact")
def test_temperature_divides_the_logits() -> None:
    policy, spec = Bigram(1), recipe(loss={"kind": "reinforce"})
    train = doubled(prepare(rollouts(1), spec))
    found = step(policy, train, spec, temperature=0.5)
    weighted = train.weight_BT * train.adv_B[:, None] * policy.logp_BT(train.token_BT, 0.5)
    expected = torch.autograd.grad(-weighted.sum(), policy.parameters())
    assert_same(gradients(policy), list(expected))
    assert found["loss"] == pytest.approx(-weighted.sum().item(), rel=1e-10)


@pytest.mark.usefixtures("exact")
def test_a_row_without_trained_tokens_changes_nothing() -> None:
    policy, spec = Bigram(2), recipe()
    train = doubled(prepare(rollouts(2), spec))
    step(policy, train, spec)
    expected = gradients(policy)
    empty = replace(
        train.select(torch.tensor([0])),
        mask_BT=torch.zeros_like(train.mask_BT[:1]),
        weight_BT=torch.zeros_like(train.weight_BT[:1]),
        behavior_logp_BT=torch.zeros_like(train.behavior_logp_BT[:1]),
    )
    more = TrainBatch(
        **{
            f.name: torch.cat([getattr(train, f.name), getattr(empty, f.name)])
            for f in fields(train)
        }
    )
    for micro_batch_tokens in (1, 10_000):
        found = step(policy, more, spec, micro_batch_tokens=micro_batch_tokens)
        assert_same(gradients(policy), expected)
        assert math.isfinite(found["loss"])


def sequences(policy: Bigram, length: int) -> Iterator[tuple[list[int], list[float]]]:
    """Every completion of V = 3 tokens after prompt [0], with the log-probs of its tokens."""
    for tokens in product(range(3), repeat=length):
        logp_BT = _narrow_logp(policy, torch.tensor([[0, *tokens]]))
        yield list(tokens), logp_BT[0].tolist()


def _narrow_logp(policy: Bigram, token_BT: Tensor) -> Tensor:
    return policy.logp_BT(token_BT)[:, 1:]


def narrow(seed: int) -> Bigram:
    """A policy of three words: the other three have a head that makes them impossible (probability e^-400)."""
    policy = Bigram(seed)
    with torch.no_grad():
        policy.embedding[:, 0] = 1.0
        policy.head[3:] = torch.tensor([-400.0, 0.0, 0.0], dtype=f64)
    return policy


def expected_gradient(
    policy: Bigram, behavior: Bigram, spec: Recipe, size: int, length: int
) -> Params:
    """Sum over all groups of `size` completions of prob(group under the behaviour) * gradient of the update."""
    reward = [0.3, -1.0, 0.9]
    total = [torch.zeros_like(p) for p in policy.parameters()]
    for rows in product(list(sequences(behavior, length)), repeat=size):
        completions = [
            Completion(
                tokens,
                logp,
                [0] * length,
                [True] * length,
                reward=sum(reward[t] * (i + 1) for i, t in enumerate(tokens)),
            )
            for tokens, logp in rows
        ]
        batch = RolloutBatch.from_groups([Group(0, 0, [0], completions)])
        exact_reward = torch.tensor([c.reward for c in completions], dtype=f64)
        train = prepare(replace(batch, reward_B=exact_reward), spec)
        logp_B = torch.tensor([logp for _, logp in rows], dtype=f64)
        behavior_BT = torch.nn.functional.pad(logp_B, (1, 0))
        train = replace(doubled(train), behavior_logp_BT=behavior_BT)
        step(policy, train, spec)
        probability = math.exp(sum(sum(logp) for _, logp in rows))
        for t, g in zip(total, gradients(policy), strict=True):
            t += probability * g
    return total


def objective_gradient(policy: Bigram, length: int) -> Params:
    """grad of J = sum over completions of p(y) r(y), by autograd."""
    reward = [0.3, -1.0, 0.9]
    value = torch.zeros((), dtype=f64)
    for tokens in product(range(3), repeat=length):
        logp = _narrow_logp(policy, torch.tensor([[0, *tokens]])).sum()
        value = value + logp.exp() * sum(reward[t] * (i + 1) for i, t in enumerate(tokens))
    return list(torch.autograd.grad(value, policy.parameters()))


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("size", "length"), [(2, 1), (3, 1), (2, 2)])
def test_the_expected_update_is_the_gradient_of_the_reward(size: int, length: int) -> None:
    """On-policy, over every group that can be sampled: (1 - 1/G) grad J, minimised, over the tokens' number.

    The mean that is subtracted includes the completion itself, hence 1 - 1/G; with equal lengths each token weighs
    1 / (G * length), hence the 1/length.
    """
    spec = recipe(
        loss={"kind": "reinforce"},
        advantage="none",
        zero_variance="keep",
        aggregation="sample_mean",
    )
    policy = narrow(3)
    found = expected_gradient(policy, policy, spec, size, length)
    wanted = [-(1 - 1 / size) / length * g for g in objective_gradient(policy, length)]
    assert max(w.abs().max().item() for w in wanted) > 0.01
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)  # weights of 1/3 in float32


@pytest.mark.usefixtures("exact")
def test_the_expected_update_off_policy_is_unbiased_until_the_cap_acts() -> None:
    """Sampled by another policy: the ratio mends it exactly while no rho is above the cap, and plain REINFORCE not."""
    policy, behavior, size = narrow(3), narrow(5), 2
    common = {"advantage": "none", "zero_variance": "keep", "aggregation": "sample_mean"}
    wanted = [-(1 - 1 / size) * g for g in objective_gradient(policy, 1)]

    def error(loss: dict[str, Any]) -> float:
        found = expected_gradient(policy, behavior, recipe(loss=loss, **common), size, 1)
        return max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))

    assert error({"kind": "cispo", "eps_max": 1e9}) < 1e-7
    assert error({"kind": "cispo", "eps_max": 1.1}) > 1e-2
    assert error({"kind": "reinforce"}) > 1e-2
