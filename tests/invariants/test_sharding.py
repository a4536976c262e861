"""Splits: micro-batches and ranks, of any rows, add up to the gradient of the whole batch, by plain autograd."""

from dataclasses import fields, replace
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch
from bigram import LOSSES, Bigram, Params, V, WithOthers, assert_same, doubled, f64, recipe, still
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl import metrics
from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.recipe import Recipe
from scalerl.reduction import Aggregation, token_weights
from scalerl.rollout import Completion, Group
from scalerl.update import LossPair, policy_update, prepare

HOWS: list[Aggregation] = ["prompt_mean", "sample_mean", "token_mean"]
MICRO_BATCH_TOKENS = st.sampled_from([1, 9, 20, 10_000])
half = settings(max_examples=settings().max_examples // 2)
every_loss = pytest.mark.parametrize("kind", list(LOSSES))


pytestmark = pytest.mark.usefixtures("exact_throughout")


# Groups of unequal size as rows (right?, which tokens are trained), and a seed for the rest.
Shape = tuple[list[list[tuple[bool, list[bool]]]], int]
ROW = st.tuples(st.booleans(), st.lists(st.booleans(), min_size=1, max_size=6))
SHAPES = st.tuples(
    st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 999)
)


def rollouts(shape: Shape) -> RolloutBatch:
    """Groups with their rows in any order, holes in masks, and rows without a trained token."""
    parts, seed = shape
    random, made = Random(seed), []
    for number, rows in enumerate(parts):
        completions = [
            Completion(
                token_ids=[random.randrange(V) for _ in sampled],
                logp=[-3 * random.random() for _ in sampled],
                version=[0] * len(sampled),
                sampled=sampled,
                reward=random.choice([1.0, 0.7]) if correct else -1.0,
                correct=correct,
            )
            for correct, sampled in rows
        ]
        made.append(Group(9 - number, number, [0] * random.randint(1, 3), completions))
    whole = RolloutBatch.from_groups(made)
    order = list(range(len(whole.group_B)))
    random.shuffle(order)
    return whole.select(torch.tensor(order))


@st.composite
def specs(draw: st.DrawFn, kind: str) -> Recipe:
    return recipe(
        loss=LOSSES[kind],
        aggregation=draw(st.sampled_from(HOWS)),
        advantage=draw(st.sampled_from(["batch", "prompt", "none"])),
        zero_variance=draw(st.sampled_from(["keep", "drop"])),
    )


@st.composite
def splits(draw: st.DrawFn, rows: int) -> list[torch.Tensor]:
    """Rows of each of 1, 2, 3 or 8 ranks: some may have none, and a group may be cut apart."""
    W = draw(st.sampled_from([1, 2, 3, 8]))
    rank_B = draw(st.lists(st.integers(0, W - 1), min_size=rows, max_size=rows))
    return [torch.tensor([r == w for r in rank_B], dtype=torch.bool) for w in range(W)]


def whole_gradient(policy: Bigram, train: TrainBatch, loss: LossPair) -> tuple[float, Params]:
    """Loss and gradient of the batch in one piece: sum of w f, differentiated."""
    term_BT = loss.term(
        policy.logp_BT(train.token_BT), train.behavior_logp_BT, train.adv_B, train.mask_BT
    )
    value = (train.weight_BT * term_BT).sum()
    return value.item(), list(torch.autograd.grad(value, policy.parameters()))


def part_gradient(
    policy: Bigram, train: TrainBatch, spec: Recipe, micro_batch_tokens: int, **options: Any
) -> tuple[dict[str, metrics.Metric], Params]:
    """Metrics and gradient that one rank's update leaves behind, zeros where it had no rows."""
    loss = options.pop("loss", None) or LossPair.of(spec.loss)
    found = policy_update(
        policy, still(policy), train, spec, loss, micro_batch_tokens=micro_batch_tokens, **options
    )
    return found, [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters()
    ]


def total(parts: list[Params]) -> Params:
    return [torch.stack(of_one).sum(0) for of_one in zip(*parts, strict=True)]


# ---- what a shard holds ----


@pytest.mark.invariant("E07")
@given(SHAPES, st.integers(1, 60))
def test_shards_hold_each_row_once(shape: Shape, max_tokens: int) -> None:
    batch = rollouts(shape)
    train = prepare(batch, recipe(zero_variance="keep"))
    train = replace(train, adv_B=torch.arange(train.rows).float())  # a mark on each row
    seen: list[int] = []
    for shard in train.shards(max_tokens):
        assert shard.rows == 1 or shard.token_BT.numel() <= max_tokens
        width = shard.token_BT.shape[1]
        rows = shard.adv_B.long()
        seen += rows.tolist()
        assert not train.mask_BT[rows, width:].any()
        for f in fields(TrainBatch):
            mine, whole = getattr(shard, f.name), getattr(train, f.name)[rows]
            assert torch.equal(mine, whole[:, :width] if whole.dim() == 2 else whole)
    assert sorted(seen) == list(range(train.rows))


# ---- any split ----


@pytest.mark.invariant("E07")
@pytest.mark.invariant(
    "E09",
    "A split may cut through groups: a prompt's weights and advantages are those of the whole group.",
    "w_it = 1 / (P sum over all j in g(i) of T_j), wherever j is",
    "",
)
@pytest.mark.invariant(
    "E18",
    "The reported loss, merged over micro-batches and ranks, is the one that was differentiated.",
    "merge of reported L_s = sum of w f over the whole batch",
    "NeMo-RL #3791: the reported loss is a multiple, by the number of ranks, of the optimised one",
)
@every_loss
@given(st.data())
def test_any_split_adds_up(kind: str, data: st.DataObject) -> None:
    spec = data.draw(specs(kind))
    train = doubled(prepare(rollouts(data.draw(SHAPES)), spec))
    policy = Bigram(data.draw(st.integers(0, 3)))
    value, expected = whole_gradient(policy, train, LossPair.of(spec.loss))
    found: list[dict[str, metrics.Metric]] = []
    gradients: list[Params] = []
    for rows_B in data.draw(splits(train.rows)):
        part = part_gradient(policy, train.select(rows_B), spec, data.draw(MICRO_BATCH_TOKENS))
        found.append(part[0])
        gradients.append(part[1])
    assert_same(total(gradients), expected)
    merged = metrics.merge_all(found)
    loss = merged["loss"].value if train.rows else 0.0
    assert loss == pytest.approx(value, rel=1e-10, abs=1e-13)


@pytest.mark.invariant("E08")
@every_loss
@half
@given(st.data())
def test_shards_without_trained_tokens_add_nothing(kind: str, data: st.DataObject) -> None:
    spec = data.draw(specs(kind))
    batch = rollouts(data.draw(SHAPES))
    train = doubled(prepare(batch, spec))
    k = data.draw(st.integers(1, 3))
    rows = torch.tensor([0] * k)
    empty = replace(
        doubled(prepare(batch, recipe(zero_variance="keep"))).select(rows),
        mask_BT=torch.zeros(k, batch.mask_BT.shape[1], dtype=torch.bool),
        weight_BT=torch.zeros(k, batch.mask_BT.shape[1], dtype=f64),
    )
    policy = Bigram(1)
    nothing = part_gradient(policy, empty, spec, 1)
    assert nothing[0]["loss"].value == 0.0 and not any(g.any() for g in nothing[1])
    more = TrainBatch(
        **{
            f.name: torch.cat([getattr(empty, f.name), getattr(train, f.name)])
            for f in fields(train)
        }
    )
    _, expected = whole_gradient(policy, train, LossPair.of(spec.loss))
    assert_same(part_gradient(policy, more, spec, data.draw(MICRO_BATCH_TOKENS))[1], expected)


@pytest.mark.invariant(
    "E10",
    "Ranks sum their gradients: whatever their number, each takes the step of a single one and reports its norm.",
    "step(W ranks) = step(1 rank),  W in {1, 2, 3, 8};  norm = |sum of gradients|",
    "verl #5625: a denominator multiplied by the number of ranks where the loss should be: W^2 too small",
)
@every_loss
@half
@given(st.data())
def test_every_rank_takes_the_same_step(kind: str, data: st.DataObject) -> None:
    spec = data.draw(specs(kind))
    train, seed = doubled(prepare(rollouts(data.draw(SHAPES)), spec)), data.draw(st.integers(0, 3))
    _, expected = whole_gradient(Bigram(seed), train, LossPair.of(spec.loss))
    norm = torch.stack([g.square().sum() for g in expected]).sum().sqrt().item()
    parts = [train.select(rows_B) for rows_B in data.draw(splits(train.rows))]
    tokens = data.draw(MICRO_BATCH_TOKENS)
    local = [part_gradient(Bigram(seed), part, spec, tokens)[1] for part in parts]
    for rank, part in enumerate(parts):
        policy = Bigram(seed)
        others = total(
            [g for r, g in enumerate(local) if r != rank]
            or [[torch.zeros_like(p) for p in expected]]
        )

        optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
        found = policy_update(
            policy,
            optimizer,
            part,
            spec,
            LossPair.of(spec.loss),
            micro_batch_tokens=tokens,
            ranks=WithOthers(policy, others),
        )
        assert found["grad_norm"].value == pytest.approx(norm, rel=1e-10, abs=1e-13)
        stepped = [p - 0.5 * g for p, g in zip(Bigram(seed).parameters(), expected, strict=True)]
        assert_same([p.detach() for p in policy.parameters()], stepped)


@pytest.mark.invariant(
    "E11",
    "The trained tokens of a row may be divided among ranks that hold its context: counts are of the whole row.",
    "sum over parts p of grad L(m_p) = grad L(m),  sum of m_p = m  (losses of single tokens)",
    "verl #6049: the token count of a context-parallel part in the denominator, a loss twice too large",
)
@pytest.mark.parametrize("kind", ["cispo", "dapo", "grpo", "reinforce"])
@half
@given(st.data())
def test_tokens_of_a_row_on_several_ranks(kind: str, data: st.DataObject) -> None:
    spec = data.draw(specs(kind))
    train, policy = doubled(prepare(rollouts(data.draw(SHAPES)), spec)), Bigram(2)
    _, expected = whole_gradient(policy, train, LossPair.of(spec.loss))
    W = data.draw(st.integers(1, 3))
    random = Random(data.draw(st.integers(0, 99)))
    rank_BT = torch.tensor([random.randrange(W) for _ in range(train.mask_BT.numel())])
    rank_BT = rank_BT.reshape(train.mask_BT.shape)
    parts = [
        replace(
            train,
            mask_BT=train.mask_BT & (rank_BT == w),
            weight_BT=train.weight_BT * (rank_BT == w),
        )
        for w in range(W)
    ]
    assert_same(total([part_gradient(policy, part, spec, 20)[1] for part in parts]), expected)


@pytest.mark.invariant(
    "E12",
    "The number of micro-steps does not divide the loss.",
    "M steps of one token with f = 1: L = 1, not 1 / M",
    "ms-swift #10117: a loss over the window's tokens is divided by the accumulation steps once more",
)
@given(st.integers(1, 8), st.sampled_from(HOWS))
def test_micro_steps_do_not_divide(M: int, how: Aggregation) -> None:
    rows = [Completion([1], [-1.0], [0], [True], reward=float(i == 0)) for i in range(M)]
    whole = RolloutBatch.from_groups([Group(0, 0, [0], rows)])
    train = doubled(prepare(whole, recipe(aggregation=how, zero_variance="keep")))
    assert len(train.shards(2)) == M and len(train.shards(2 * M)) == 1
    loss = LossPair(lambda logp, behavior, adv, mask: mask * (logp - logp.detach() + 1.0), None)
    policy = Bigram(0)
    _, expected = part_gradient(policy, train, recipe(), 2 * M, loss=loss)
    found, gradient = part_gradient(policy, train, recipe(), 2, loss=loss)
    assert found["loss"].value == pytest.approx(1.0, rel=1e-6)
    assert_same(gradient, expected)


@pytest.mark.invariant(
    "E13",
    "Each update is normalised by its own window of groups; times their counts, windows add up to their union.",
    "sum over windows j of D_j grad_j = D grad of the union, at one theta;  D = tokens, completions or prompts",
    "",
)
@pytest.mark.parametrize("how", HOWS)
@given(SHAPES, st.data())
def test_windows(how: Aggregation, shape: Shape, data: st.DataObject) -> None:
    batch = rollouts(shape)
    spec = recipe(aggregation=how, advantage="none", zero_variance="keep")
    ids = batch.group_B.unique().tolist()
    window = {g: data.draw(st.integers(0, 2)) for g in ids}
    window_B = torch.tensor([window[int(g)] for g in batch.group_B])
    policy = Bigram(1)

    def scaled(rows_B: torch.Tensor) -> Params:
        part = batch.select(rows_B)
        trained_B = part.mask_BT.any(1)
        count = {
            "token_mean": int(part.mask_BT.sum()),
            "sample_mean": int(trained_B.sum()),
            "prompt_mean": len(part.group_B[trained_B].unique()),
        }[how]
        gradient = part_gradient(policy, doubled(prepare(part, spec)), spec, 20)[1]
        return [count * g for g in gradient]

    parts = [scaled(window_B == j) for j in range(3) if (window_B == j).any()]
    union = scaled(torch.ones_like(window_B, dtype=torch.bool))
    assert_same(total(parts), union, rel=1e-5, abs=1e-6)  # of float32 weights


# ---- statistics ----


@pytest.mark.invariant(
    "F18",
    "Mean and std put together from the ranks' sums are those that the whole batch's advantages have.",
    "A_i = (r_i - R_g / n_g) / sqrt((sum over ranks of sum C^2) / n),  R_g and n_g summed over ranks",
    "slime #2235: statistics of each part of a batch, another scale on every rank",
)
@given(SHAPES, st.data())
def test_statistics_of_ranks_combine(shape: Shape, data: st.DataObject) -> None:
    batch = rollouts(shape)
    train = prepare(batch, recipe(zero_variance="keep"))
    rows = list(zip(batch.group_B.tolist(), batch.reward_B.tolist(), strict=True))
    ranks = [[rows[i] for i in where.nonzero()[:, 0]] for where in data.draw(splits(len(rows)))]
    summed: dict[int, list[Fraction]] = {}
    for rank in ranks:
        for g, r in rank:
            R, n = summed.setdefault(g, [Fraction(0), Fraction(0)])
            summed[g] = [R + Fraction(r), n + 1]
    mean = {g: R / n for g, (R, n) in summed.items()}
    squares = sum(sum((Fraction(r) - mean[g]) ** 2 for g, r in rank) for rank in ranks)
    std = float(squares / len(rows)) ** 0.5
    expected = [float(Fraction(r) - mean[g]) / std if std else 0.0 for g, r in rows]
    assert train.adv_B.tolist() == pytest.approx(expected, rel=1e-6)
    how: Aggregation = "prompt_mean"
    assert torch.equal(train.weight_BT, token_weights(batch.mask_BT, batch.group_B, how))
