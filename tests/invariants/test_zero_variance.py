"""Groups all right or all wrong: found by correctness, out of every denominator, and counted all the same."""

from dataclasses import fields
from itertools import product
from random import Random

import pytest
import torch
from bigram import LOSSES, Bigram, Params, V, assert_same, doubled, recipe, still
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.compute import Ledger
from scalerl.curriculum import Curriculum, rejected
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.site import Optimizer
from scalerl.state import LoopState
from scalerl.update import (
    LossPair,
    make_optimizer,
    mixed_groups,
    policy_update,
    prepare,
    update_stats,
)

NORMS = ["batch", "prompt", "none"]
HOWS = ["prompt_mean", "sample_mean", "token_mean"]
quarter = settings(max_examples=settings().max_examples // 4)


pytestmark = pytest.mark.usefixtures("exact_throughout")


Row = tuple[bool, float, list[bool]]  # right?, length penalty if so, trained tokens
TOKENS = st.lists(st.booleans(), min_size=1, max_size=5)
ROW = st.tuples(st.booleans(), st.sampled_from([0.0, 0.3, 1.0]), TOKENS)
GROUPS = st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4)


@st.composite
def constant_groups(draw: st.DrawFn, penalties: bool = True) -> list[list[Row]]:
    """Groups without both outcomes; the all-right may differ in reward, by length penalties."""
    made: list[list[Row]] = []
    for _ in range(draw(st.integers(1, 3))):
        right, size = draw(st.booleans()), draw(st.integers(1, 4))
        penalty = draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=size, max_size=size))
        made.append([(right, p if penalties else 0.0, draw(TOKENS)) for p in penalty])
    return made


def groups_of(parts: list[list[Row]], seed: int, first: int = 0) -> list[Group]:
    made: list[Group] = []
    for number, rows in enumerate(parts, start=first):
        random = Random(f"{seed}:{number}")
        completions = [
            Completion(
                token_ids=[random.randrange(V) for _ in sampled],
                logp=[-3 * random.random() for _ in sampled],
                version=[0] * len(sampled),
                sampled=sampled,
                reward=1.0 - penalty if right else -1.0,
                correct=right,
            )
            for right, penalty, sampled in rows
        ]
        made.append(Group(number, number, [0] * random.randint(1, 3), completions))
    return made


def mixed(group: Group) -> bool:
    return len({c.correct for c in group.completions}) == 2


def update(policy: Bigram, train: TrainBatch, spec: Recipe) -> tuple[float, Params]:
    """Loss and gradient, zeros where there was nothing to train on."""
    found = policy_update(
        policy, still(policy), train, spec, LossPair.of(spec.loss), micro_batch_tokens=30
    )
    gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
    return float(found["loss"].value or 0.0) if train.rows else 0.0, gradient


def equal(left: TrainBatch, right: TrainBatch) -> bool:
    return all(
        torch.equal(getattr(left, f.name), getattr(right, f.name)) for f in fields(TrainBatch)
    )


# ---- what they may not do ----


@pytest.mark.invariant(
    "G02",
    "Adding any zero-variance prompts changes neither loss nor gradient: they leave before std and denominators.",
    "L(B + Z) = L(B), grad L(B + Z) = grad L(B),  for every normalisation, aggregation and loss",
    "TRL #6365: the flag is of the whole batch, so that constant groups stay in mean and std",
)
@pytest.mark.parametrize(("norm", "how", "kind"), list(product(NORMS, HOWS, LOSSES)))
@quarter
@given(GROUPS, constant_groups(), st.data())
def test_constant_prompts_change_nothing(
    norm: str,
    how: str,
    kind: str,
    parts: list[list[Row]],
    constant: list[list[Row]],
    data: st.DataObject,
) -> None:
    mode = data.draw(st.sampled_from(["drop", "resample"]))
    spec = recipe(advantage=norm, aggregation=how, loss=LOSSES[kind], zero_variance=mode)
    seed = data.draw(st.integers(0, 99))
    alone = groups_of(parts, seed)
    both = RolloutBatch.from_groups(alone + groups_of(constant, seed, first=len(alone)))
    # the rows of all groups in any order
    order = data.draw(st.permutations(range(len(both.group_B))))
    with_them = prepare(both.select(torch.tensor(order)), spec)
    kept = [row for row in order if both.group_B[row] < len(alone)]
    without = prepare(both.select(torch.tensor(kept)), spec)
    assert equal(with_them, without)
    policy = Bigram(seed % 3)
    loss, gradient = update(policy, doubled(with_them), spec)
    expected_loss, expected = update(policy, doubled(without), spec)
    assert loss == expected_loss
    assert_same(gradient, expected, rel=0, abs=0)


@pytest.mark.invariant("G01")
@pytest.mark.parametrize("kind", list(LOSSES))
@pytest.mark.parametrize("norm", NORMS)
@quarter
@given(constant_groups(penalties=False), GROUPS, st.integers(0, 99))
def test_constant_groups_have_no_gradient(
    norm: str, kind: str, constant: list[list[Row]], others: list[list[Row]], seed: int
) -> None:
    spec = recipe(advantage=norm, loss=LOSSES[kind], zero_variance="keep")
    batch = RolloutBatch.from_groups(groups_of(constant + others, seed))
    train = prepare(batch, spec).select(batch.group_B < len(constant))
    _, gradient = update(Bigram(seed % 3), doubled(train), spec)
    assert not train.adv_B.any() and not any(g.any() for g in gradient)


@pytest.mark.invariant(
    "G03",
    "Kept instead of dropped, constant groups dilute the gradient by a known factor.",
    "grad(keep) / grad(drop) = N_keep/N (sample), P_keep/P (prompt), T_keep/T (token);  over sqrt(n_keep/n) for batch",
    "",
)
@pytest.mark.parametrize(("norm", "how"), list(product(NORMS, HOWS)))
@quarter
@given(GROUPS, constant_groups(penalties=False), st.integers(0, 99))
def test_kept_groups_dilute(
    norm: str, how: str, parts: list[list[Row]], constant: list[list[Row]], seed: int
) -> None:
    # rewards +1 and -1 alone: a group is constant in both senses or in neither
    plain = [[(right, 0.0, sampled) for right, _, sampled in rows] for rows in parts]
    made = groups_of(plain + constant, seed)

    def counts(groups: list[Group]) -> dict[str, int]:
        tokens = [[sum(c.sampled) for c in g.completions] for g in groups]
        return {
            "prompt_mean": sum(any(of) for of in tokens),
            "sample_mean": sum(n > 0 for of in tokens for n in of),
            "token_mean": sum(map(sum, tokens)),
            "rows": sum(map(len, tokens)),
        }

    kept, whole = counts([g for g in made if mixed(g)]), counts(made)
    factor = kept[how] / max(1, whole[how])
    if norm == "batch":
        factor *= (whole["rows"] / max(1, kept["rows"])) ** 0.5
    policy, batch, gradient = Bigram(seed % 3), RolloutBatch.from_groups(made), {}
    for mode in ("keep", "drop"):
        spec = recipe(advantage=norm, aggregation=how, zero_variance=mode)
        gradient[mode] = update(policy, doubled(prepare(batch, spec)), spec)[1]
    expected = [factor * g for g in gradient["drop"]]
    assert_same(gradient["keep"], expected, rel=1e-5, abs=1e-7)  # float32 weights


@pytest.mark.invariant(
    "G04",
    "With all groups dropped there is no step: parameters, moments and their count stay, and the batch is skipped.",
    "P_keep = 0  =>  theta, m, v, t unchanged",
    "prime-rl #798: a batch of padding alone gives nan",
)
@given(constant_groups(), st.integers(0, 99))
def test_nothing_left(constant: list[list[Row]], seed: int) -> None:
    policy, spec = Bigram(seed % 3), recipe()
    optimizer = make_optimizer(policy.parameters(), Optimizer(learning_rate=0.1))
    first = [[(right, 0.0, [True]) for right in (True, False)]]
    real = doubled(prepare(RolloutBatch.from_groups(groups_of(first, seed)), spec))
    policy_update(policy, optimizer, real, spec, LossPair.of(spec.loss))
    before = [p.detach().clone() for p in policy.parameters()]
    moments = [{k: v.clone() for k, v in state.items()} for state in optimizer.state.values()]
    assert len(moments) == 2 and all(state["step"] == 1 for state in moments)
    batch = RolloutBatch.from_groups(groups_of(constant, seed))
    train = prepare(batch, spec)
    policy_update(policy, optimizer, train, spec, LossPair.of(spec.loss))
    assert all(torch.equal(p, old) for p, old in zip(policy.parameters(), before, strict=True))
    for state, old in zip(optimizer.state.values(), moments, strict=True):
        assert all(torch.equal(state[k], old[k]) for k in old)
    stats = update_stats(batch, train, 1, {})
    assert stats.skipped and stats.zero_variance == 1.0 and stats.trained_tokens == 0


# ---- which they are ----


@pytest.mark.invariant(
    "G05",
    "The filter looks at correctness, never at the reward: a length penalty does not make an all-right group mixed.",
    "keep g  <=>  0 < passes_g < G_g",
    "",
)
@pytest.mark.invariant(
    "G06",
    "What is dropped is not refilled: the rows that stay are those of the mixed groups, each once, in their order.",
    "rows after = rows before, less those of constant groups",
    "AReaL #450, open-instruct #1185, verl #953: filter and refill confused: endless generation, or a batch of one",
)
@pytest.mark.invariant(
    "G07",
    "A group is flagged by itself, under every normalisation.",
    "flag(g) depends on the rows of g alone",
    "TRL #6365: under batch scaling the flag is of the whole batch, and nothing is dropped",
)
@pytest.mark.parametrize("norm", NORMS)
@given(GROUPS, st.integers(0, 99), st.sampled_from(["drop", "resample"]))
def test_the_mixed_groups_stay(norm: str, parts: list[list[Row]], seed: int, mode: str) -> None:
    made = groups_of(parts, seed)
    batch = RolloutBatch.from_groups(made)
    spec = recipe(advantage=norm, zero_variance=mode)
    train = prepare(batch, spec)
    stay = torch.tensor([mixed(g) for g in made for _ in g.completions])
    assert mixed_groups(batch.correct_B, batch.group_B).tolist() == stay.tolist()
    assert torch.equal(train.token_BT, batch.token_BT[stay])
    assert torch.equal(train.behavior_logp_BT, batch.behavior_logp_BT[stay])
    share = sum(not mixed(g) for g in made) / len(made)  # of groups, not of rows
    assert update_stats(batch, train, 0, {}).zero_variance == pytest.approx(share)
    # the group's own word for it; only "resample" asks for another prompt
    for group in made:
        assert group.zero_variance is not mixed(group)
        assert rejected(group, spec) is (mode == "resample" and not mixed(group))


@pytest.mark.invariant("G06")
@given(GROUPS, st.integers(0, 99))
def test_kept_groups_all_stay(parts: list[list[Row]], seed: int) -> None:
    made, spec = groups_of(parts, seed), recipe(zero_variance="keep")
    assert prepare(RolloutBatch.from_groups(made), spec).rows == sum(map(len, parts))
    assert not any(rejected(group, spec) for group in made)


@pytest.mark.invariant(
    "G08",
    "Filtering twice is filtering once; it commutes with the order of rows and with a split by groups.",
    "F(F(B)) = F(B),  F(P B) = P F(B),  F(B_1 + B_2) = F(B_1) + F(B_2)",
    "",
)
@given(GROUPS, st.data())
def test_the_filter_is_idempotent_and_free_of_order(
    parts: list[list[Row]], data: st.DataObject
) -> None:
    rows = [(7 - 5 * g, right) for g, of in enumerate(parts) for right, _, _ in of]
    order = data.draw(st.permutations(rows))

    def kept(rows: list[tuple[int, bool]]) -> list[tuple[int, bool]]:
        correct_B = torch.tensor([right for _, right in rows], dtype=torch.bool)
        keep_B = mixed_groups(correct_B, torch.tensor([g for g, _ in rows], dtype=torch.int64))
        return [row for row, keep in zip(rows, keep_B.tolist(), strict=True) if keep]

    once = kept(rows)
    assert once == [(g, right) for g, right in rows if len({r for h, r in rows if h == g}) == 2]
    assert kept(once) == once
    assert kept(order) == [row for row in order if row in once]
    cut = data.draw(st.integers(-13, 8))
    halves = [row for row in rows if row[0] >= cut], [row for row in rows if row[0] < cut]
    assert kept(halves[0]) + kept(halves[1]) == once


@pytest.mark.invariant(
    "G09",
    "Groups that are dropped or replaced still count in their prompt's history, by correctness.",
    "passes_p, n_p: sums over all visits of p, trained on or not",
    "",
)
@given(st.lists(st.lists(ROW, min_size=1, max_size=4), max_size=8), st.data())
def test_history_counts_every_visit(visits: list[list[Row]], data: st.DataObject) -> None:
    spec = recipe(zero_variance=data.draw(st.sampled_from(["drop", "keep", "resample"])))
    state = LoopState(
        Curriculum(size=3, seed=0), Ledger({"generator": 1, "trainer": 1, "evaluator": 1})
    )
    passes, n = [0, 0, 0], [0, 0, 0]
    for rows in visits:
        ticket = state.admit()
        (group,) = groups_of([rows], 0, first=ticket.ordinal)
        state.land(ticket, group, reject=rejected(group, spec))
        passes[ticket.prompt] += sum(right for right, _, _ in rows)
        n[ticket.prompt] += len(rows)
    assert state.curriculum.passes == passes and state.curriculum.completions == n
    constant = sum(not mixed(group) for group in groups_of(visits, 0))
    assert state.rejected == (constant if spec.zero_variance == "resample" else 0)
    assert len(state.finished) == len(visits) - state.rejected
