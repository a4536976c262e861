"""The policy update: decided once on the whole batch, the same for any split, with the gradient of the paper."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
import torch
from bigram import (
    NAN,
    Bigram,
    V,
    assert_same,
    doubled,
    f64,
    gradients,
    recipe,
    rollouts,
    step,
    still,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scalerl import metrics
from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.errors import BatchError, InputError
from scalerl.recipe import CustomLoss
from scalerl.rollout import Completion, Group
from scalerl.site import Optimizer
from scalerl.update import (
    LossPair,
    TrainablePolicy,
    learning_rate,
    make_optimizer,
    mixed_groups,
    policy_update,
    prepare,
    update_stats,
)

# ---- which groups are trained on ----


def test_mixed_groups_by_hand() -> None:
    # ids 7: F T (mixed), -2: T T, 5: F, 10^14: T F T (mixed); interleaved
    group_B = torch.tensor([7, -2, 5, 10**14, 7, 10**14, -2, 10**14])
    correct_B = torch.tensor([False, True, False, True, True, False, True, True])
    assert mixed_groups(correct_B, group_B).tolist() == [1, 0, 0, 1, 1, 1, 0, 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([3, -1, 10**12]), st.booleans()), min_size=1, max_size=9))
def test_mixed_groups_are_those_with_both(rows: list[tuple[int, bool]]) -> None:
    keep = mixed_groups(torch.tensor([c for _, c in rows]), torch.tensor([g for g, _ in rows]))
    results: dict[int, set[bool]] = {}
    for g, c in rows:
        results.setdefault(g, set()).add(c)
    assert keep.tolist() == [len(results[g]) == 2 for g, _ in rows]


# ---- prepare ----


def test_prepare_by_hand() -> None:
    """Two mixed groups and an all-right one with different rewards (a length penalty does not disguise it)."""

    def row(n: int, reward: float) -> Completion:
        return Completion(
            [5] * n, [-1.0] * n, [0] * n, [True] * n, reward=reward, correct=reward > -1
        )

    groups = [
        Group(0, 0, [1], [row(1, 1.0), row(2, -1.0)]),
        Group(1, 1, [1], [row(4, 1.0), row(3, 0.5)]),
        Group(2, 2, [1], [row(2, 0.0), row(2, -1.0)]),
    ]
    train = prepare(RolloutBatch.from_groups(groups), recipe())
    # group 1 leaves. Centred: 1, -1, 0.5, -0.5; std = sqrt((1 + 1 + 0.25 + 0.25) / 4) = sqrt(0.625)
    std = math.sqrt(0.625)
    assert train.adv_B.tolist() == pytest.approx(
        [1 / std, -1 / std, 0.5 / std, -0.5 / std], rel=1e-6
    )
    # P = 2 prompts of 3 and 4 tokens: 1/6 and 1/8
    assert train.weight_BT.amax(1).tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 8, 1 / 8], rel=1e-6)
    assert train.weight_BT.sum().item() == pytest.approx(1.0, rel=1e-6)
    assert train.rows == 4 and not train.weight_BT[~train.mask_BT].any()


MODES = list(product(["batch", "prompt", "none"], ["prompt_mean", "sample_mean", "token_mean"]))


@pytest.mark.parametrize(("advantage", "aggregation"), MODES)
@pytest.mark.parametrize("mode", ["drop", "resample"])
def test_constant_groups_change_nothing(advantage: str, aggregation: str, mode: str) -> None:
    """Dropped before the standard deviation and the denominators: bit for bit the batch without them."""
    spec = recipe(advantage=advantage, aggregation=aggregation, zero_variance=mode)
    for seed in range(4):
        whole = rollouts(seed, groups=5, constant=2)
        mixed = whole.select(mixed_groups(whole.correct_B, whole.group_B))
        assert 0 < len(mixed.reward_B) < len(whole.reward_B)
        with_them, without = prepare(whole, spec), prepare(mixed, spec)
        for field in fields(TrainBatch):
            assert torch.equal(getattr(with_them, field.name), getattr(without, field.name))


def test_kept_constant_groups_dilute() -> None:
    # rewards +-1: two mixed groups of 4 rows (2 right), two all-right ones; each completion one token
    def group(number: int, *correct: bool) -> Group:
        rows = [
            Completion([5], [-1.0], [0], [True], reward=2.0 * c - 1, correct=c) for c in correct
        ]
        return Group(number, number, [1], rows)

    groups = [
        group(0, True, False),
        group(1, False, True),
        group(2, True, True),
        group(3, True, True),
    ]
    train = prepare(RolloutBatch.from_groups(groups), recipe(zero_variance="keep"))
    assert train.rows == 8
    # std over all 8: sqrt(4 / 8), so A = +-sqrt 2 instead of +-1; weights 1/8 instead of 1/4
    root = math.sqrt(2)
    assert train.adv_B.tolist() == pytest.approx([root, -root, -root, root, 0, 0, 0, 0], rel=1e-6)
    assert train.weight_BT.amax(1).tolist() == pytest.approx([1 / 8] * 8, rel=1e-6)


def test_an_all_dropped_batch_is_empty_and_said_to_be_skipped() -> None:
    whole = rollouts(0, groups=2, constant=2)
    train = prepare(whole, recipe())
    assert train.rows == 0 and train.shards(100) == []
    stats = update_stats(whole, train, 7, {})
    assert stats.skipped and stats.zero_variance == 1.0 and stats.pass_rate == 1.0
    assert (stats.trained_tokens, stats.lag_tokens, stats.loss) == (0, [], None)


def test_an_all_dropped_batch_moves_nothing() -> None:
    policy = Bigram(dtype=torch.float32)
    optimizer = make_optimizer(policy.parameters(), Optimizer(learning_rate=0.1))
    before = [p.detach().clone() for p in policy.parameters()]
    train = prepare(rollouts(0, groups=1, constant=1), recipe())
    policy_update(policy, optimizer, train, recipe(), LossPair.of(recipe().loss))
    assert all(torch.equal(p, b) for p, b in zip(policy.parameters(), before, strict=True))
    assert not optimizer.state, "no moment was touched, and no weight decayed"


def test_prepare_refuses_what_is_not_a_number() -> None:
    whole = rollouts(0)
    with pytest.raises(BatchError, match="row 2 has reward nan"):
        prepare(
            replace(whole, reward_B=whole.reward_B.index_fill(0, torch.tensor(2), NAN)), recipe()
        )


def test_prepare_does_not_change_the_batch() -> None:
    whole, same = rollouts(1, constant=1), rollouts(1, constant=1)
    prepare(whole, recipe())
    for field in fields(RolloutBatch):
        assert torch.equal(getattr(whole, field.name), getattr(same, field.name))


# ---- what is refused ----


@pytest.mark.parametrize("poison", ["weight", "parameter", "gradient"])
def test_what_is_not_a_number_updates_nothing(poison: str) -> None:
    policy, spec = Bigram(dtype=torch.float32), recipe()
    optimizer = make_optimizer(policy.parameters(), Optimizer(learning_rate=0.1))
    bad = prepare(rollouts(0), spec)
    loss, said = LossPair.of(spec.loss), "the loss is nan, so nothing was updated"
    policy_update(policy, optimizer, bad, spec, loss)
    if poison == "weight":
        bad = replace(bad, adv_B=bad.adv_B.index_fill(0, torch.tensor(0), NAN))
    elif poison == "parameter":
        with torch.no_grad():
            policy.head[0, 0] = NAN
    else:  # sqrt(0) is 0, and its slope is not finite
        loss = LossPair(lambda logp, behavior, adv, mask: (0 * logp).sqrt(), None)
        said = "the gradient norm is nan, so nothing was updated"
    before = [p.detach().clone() for p in policy.parameters()]
    moments = [{k: v.clone() for k, v in s.items()} for s in optimizer.state.values()]
    with pytest.raises(BatchError, match=said):
        policy_update(policy, optimizer, bad, spec, loss)
    for p, b in zip(policy.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), b, rtol=0, atol=0, equal_nan=True)
    for state, old in zip(optimizer.state.values(), moments, strict=True):
        assert all(torch.equal(state[k], old[k]) for k in old)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda logp, behavior, adv, mask: logp.sum(), r"shape \(\)"),
        (lambda logp, behavior, adv, mask: logp.sum(1), r"shape \(12,\)"),
        (lambda logp, behavior, adv, mask: logp[:, 1:], r"shape \(12, \d\)"),
    ],
)
def test_a_loss_that_is_not_per_token_is_refused(
    function: Callable[..., Tensor], shape: str
) -> None:
    policy, spec = Bigram(), recipe()
    train = prepare(rollouts(0), spec)
    with pytest.raises(BatchError, match=rf"the loss returned {shape}: one term per token, \(12, "):
        policy_update(policy, still(policy), train, spec, LossPair(function, None))


# ---- losses by name ----


@pytest.fixture
def custom(tmp_path: Any) -> CustomLoss:
    (tmp_path / "mine.py").write_text(
        "def tilted(logp_BT, behavior_logp_BT, adv_B, mask_BT, *, slope):\n"
        "    return -slope * adv_B[:, None] * logp_BT * mask_BT\n"
    )
    return CustomLoss(function=f"{tmp_path / 'mine.py'}:tilted", keywords={"slope": 3.0})


def test_a_custom_loss_needs_permission(custom: CustomLoss) -> None:
    with pytest.raises(InputError, match="add --allow-code"):
        LossPair.of(custom)


@pytest.mark.usefixtures("exact")
def test_a_custom_loss_is_called_with_its_keywords(custom: CustomLoss) -> None:
    policy, spec = Bigram(), recipe(loss={"kind": "reinforce"})
    train = doubled(prepare(rollouts(0), spec))
    step(policy, train, spec)
    plain = gradients(policy)
    found = policy_update(policy, still(policy), train, spec, LossPair.of(custom, allow_code=True))
    assert_same(gradients(policy), [3.0 * g for g in plain])
    assert "capped" not in found  # what caps a loss of the user's own is not known


def test_the_policy_protocol_is_checkable() -> None:
    assert isinstance(Bigram(), TrainablePolicy) and not isinstance(object(), TrainablePolicy)


# ---- metrics ----


def at_ratio(*rho: float, adv: float = 1.0) -> tuple[Bigram, TrainBatch]:
    """A policy, and a batch of one row whose tokens have these ratios pi / mu."""
    policy, n = Bigram(4), len(rho)
    token_BT = torch.tensor([[0, *(1 + i % (V - 1) for i in range(n))]])
    logp_BT = policy.logp_BT(token_BT).detach()
    mask_BT = torch.tensor([[False, *[True] * n]])
    log_rho_BT = torch.tensor([[0.0, *(math.log(r) for r in rho)]], dtype=f64)
    return policy, TrainBatch(
        token_BT=token_BT,
        mask_BT=mask_BT,
        behavior_logp_BT=(logp_BT - log_rho_BT) * mask_BT,
        version_BT=torch.where(mask_BT, 0, -1),
        adv_B=torch.tensor([adv], dtype=f64),
        weight_BT=mask_BT / n,
    )


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("loss", "adv", "capped"),
    [
        ({"kind": "cispo", "eps_max": 5.0}, 1.0, 1 / 4),  # 6 alone is above 5
        ({"kind": "cispo", "eps_max": 1.2}, -1.0, 2 / 4),  # for either sign of A
        ({"kind": "dapo"}, 1.0, 2 / 4),  # 2 and 6 are above 1.26
        ({"kind": "dapo"}, -1.0, 1 / 4),  # 0.5 is below 0.8
        ({"kind": "reinforce"}, 1.0, 0.0),
    ],
)
def test_capped_is_the_share_of_tokens(loss: dict[str, Any], adv: float, capped: float) -> None:
    policy, train = at_ratio(0.5, 1.1, 2.0, 6.0, adv=adv)
    assert step(policy, train, recipe(loss=loss))["capped"] == capped


@pytest.mark.usefixtures("exact")
def test_metrics_by_hand() -> None:
    policy, train = at_ratio(1.0, 2.0)
    found = step(policy, train, recipe())
    # kl = (0 + 2 ln 2 - 1) / 2; ess = 3^2 / (2 * 5)
    assert found["kl"] == pytest.approx((2 * math.log(2) - 1) / 2, rel=1e-9)
    assert found["ess"] == pytest.approx(0.9, rel=1e-9)
    logp_V = torch.log_softmax(policy.embedding[:2] @ policy.head.T, dim=-1)
    entropy = -(logp_V.exp() * logp_V).sum(1).mean().item()  # of the states that predict: 0 and 1
    assert found["entropy"] == pytest.approx(entropy, rel=1e-9)


@pytest.mark.usefixtures("exact")
def test_ranks_merge_to_the_metrics_of_the_whole() -> None:
    spec = recipe(loss={"kind": "dapo"})
    policy, train = Bigram(6), doubled(prepare(rollouts(6), spec))
    whole = step(policy, train, spec)
    halves = [
        policy_update(policy, still(policy), train.select(rows), spec, LossPair.of(spec.loss))
        for rows in (torch.arange(0, 5), torch.arange(5, train.rows))
    ]
    merged = {name: metric.value for name, metric in metrics.merge_all(halves).items()}
    for name in ("loss", "entropy", "kl", "ess", "capped"):
        assert merged[name] == pytest.approx(whole[name], rel=1e-9), name


def test_update_stats_by_hand() -> None:
    def row(version: list[int], sampled: list[bool], correct: bool, **flags: bool) -> Completion:
        n = len(version)
        reward = 1.0 if correct else -1.0
        return Completion(
            [5] * n, [-1.0] * n, version, sampled, reward=reward, correct=correct, **flags
        )

    T, F = True, False
    mixed = [row([5, 5, 6], [T, F, T], T), row([7], [T], F, truncated=True)]
    solved = [row([3, 7], [T, T], T, interrupted=True), row([7, 7], [T, T], T), row([7], [T], T)]
    old = [row([4, 4], [T, T], F), row([7, 7], [T, T], T)]
    batch = RolloutBatch.from_groups(
        [Group(0, 0, [1, 1], mixed), Group(1, 1, [1], solved), Group(2, 2, [1], old)]
    )
    train = prepare(batch, recipe())  # group 1 leaves
    stats = update_stats(
        batch,
        train,
        7,
        {"loss": metrics.Sum(0.5), "kl": metrics.Mean(1.0, 4), "capped": metrics.Mean(0, 0)},
    )
    # trained: versions 5, 6 (the forced one is not), 7 | 4, 4, 7, 7: lags 2, 1, 0, 3, 3, 0, 0
    assert stats.lag_tokens == [3, 1, 1, 2] and stats.trained_tokens == 7
    # over the whole batch, dropped rows included: 5 of 7 right, reward (5 - 2) / 7
    assert stats.pass_rate == pytest.approx(5 / 7) and stats.reward == pytest.approx(3 / 7)
    assert stats.truncated == pytest.approx(1 / 7) and stats.interrupted == pytest.approx(1 / 7)
    assert stats.zero_variance == pytest.approx(1 / 3)  # of groups: of rows it would be 3 / 7
    # 3 + 1 + 2 + 2 + 1 + 2 + 2 = 13, the forced one included
    assert stats.length_mean_tokens == pytest.approx(13 / 7)
    assert not stats.skipped
    assert (stats.loss, stats.kl, stats.capped, stats.entropy) == (0.5, 0.25, None, None)


# ---- the optimiser ----


def test_learning_rate_warms_up_linearly() -> None:
    spec = Optimizer(learning_rate=0.4, warmup_updates=4)
    # the step that turns version 0 into 1 already has a quarter
    assert [learning_rate(spec, v) for v in range(6)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.4, 0.4]
    )
    assert learning_rate(Optimizer(learning_rate=0.4, warmup_updates=0), 0) == 0.4
    assert learning_rate(Optimizer(learning_rate=0.4, warmup_updates=1), 0) == 0.4


def test_the_optimiser_is_adamw_with_the_sites_numbers() -> None:
    spec = Optimizer(learning_rate=0.25, beta1=0.8, beta2=0.9, eps=1e-12, weight_decay=0.125)
    parameter = torch.nn.Parameter(torch.tensor([2.0], dtype=f64))
    optimizer = make_optimizer([parameter], spec)
    moved, m, v, x = [], 0.0, 0.0, 2.0
    for t, g in enumerate([3.0, -1.0, 0.5], start=1):
        parameter.grad = torch.tensor([g], dtype=f64)
        optimizer.step()
        moved.append(parameter.item())
        # AdamW: decay apart from the gradient, moments without bias
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        x = x * (1 - 0.25 * 0.125) - 0.25 * (m / (1 - 0.8**t)) / (
            math.sqrt(v / (1 - 0.9**t)) + 1e-12
        )
        assert moved[-1] == pytest.approx(x, rel=1e-12)


def test_eps_is_below_any_gradient() -> None:
    """With eps 1e-15 a loss of a hundred-millionth takes the same first step; with torch's own 1e-8 it would not."""
    steps = []
    for scale in (1.0, 1e-8):
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=f64))
        optimizer = make_optimizer([parameter], Optimizer(learning_rate=0.1, weight_decay=0.0))
        parameter.grad = torch.tensor([0.5 * scale], dtype=f64)
        optimizer.step()
        steps.append(parameter.item())
    assert steps == pytest.approx([-0.1, -0.1], rel=1e-6)


def test_the_step_goes_downhill_and_gradients_do_not_pile_up() -> None:
    policy, spec = Bigram(dtype=torch.float32), recipe(loss={"kind": "reinforce"})
    train = prepare(rollouts(0), spec)
    first = step(policy, train, spec)
    assert step(policy, train, spec)["grad_norm"] == first["grad_norm"]
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    for _ in range(3):
        policy_update(policy, optimizer, train, spec, LossPair.of(spec.loss))
    assert step(policy, train, spec)["loss"] < first["loss"]


def test_bfloat16_head_is_the_recipes_choice() -> None:
    policy, whole = Bigram(dtype=torch.float32), rollouts(0)
    exact_norm, rough_norm = (
        step(policy, prepare(whole, spec), spec)["grad_norm"]
        for spec in (recipe(), recipe(head_dtype="bfloat16"))
    )
    assert rough_norm != exact_norm and rough_norm == pytest.approx(exact_norm, rel=0.05)
