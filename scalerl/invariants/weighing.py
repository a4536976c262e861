"""Aggregation and shards: what each token, completion and prompt weighs."""

import torch
from hypothesis import strategies as st

from scalerl.invariants import strategies
from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Twin, Violation, both, compare, needs
from scalerl.invariants.strategies import batches, cases
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits, relative_weights

MEANS = ("prompt_mean", "sample_mean", "token_mean")


def _measured_weights(loss: LossUnderTest, case: Case) -> torch.Tensor | None:
    """Token weights where pi = mu; None unless they are positive, which A14 and A03 are about."""
    weight_BT = -loss.evaluate(case).grad_BT / case.adv_B[:, None]
    good = weight_BT.isfinite().all() and (weight_BT[case.mask_BT] > 0).all()
    return weight_BT if bool(good) else None


def proportions(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """E06."""
    weight_BT = _measured_weights(loss, case)
    if weight_BT is None:
        return None
    wanted_BT = relative_weights(case, traits.weights)
    expected_BT = wanted_BT * weight_BT.sum() / wanted_BT.sum()
    return compare(
        loss,
        traits,
        case,
        -expected_BT * case.adv_B[:, None],
        f"with pi = mu the tokens weigh as in {traits.weights}: {_short(expected_BT)}, not {_short(weight_BT)}",
    )


def _short(weight_BT: torch.Tensor) -> list[list[float]]:
    return [[float(f"{w:.4g}") for w in row] for row in weight_BT.tolist()]


def sum_to_one(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """E01."""
    weight_BT = _measured_weights(loss, case)
    if weight_BT is None:
        return None
    total = weight_BT.sum().item()
    return compare(
        loss,
        traits,
        case,
        -weight_BT / total * case.adv_B[:, None],
        f"the token weights of a mean add up to 1; these add up to {total:.6g}",
    )


def constant(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """E16."""
    one = loss.evaluate(Case.of([[-1.0]])).grad_BT.item()
    expected_BT = torch.where(case.mask_BT, one / len(case.adv_B) * case.adv_B[:, None], 0.0)
    return compare(
        loss,
        traits,
        case,
        expected_BT,
        f"a single token alone weighs {-one:.4g}, so each of {len(case.adv_B)} completions' tokens weighs "
        f"{-one / len(case.adv_B):.4g}, however long they are",
        fix="the divisor is the longest completion of the batch, or its padded width: take a constant of the run",
    )


def replication(loss: LossUnderTest, traits: Traits, drawn: tuple[Case, int]) -> Violation | None:
    """E14."""
    case, k = drawn
    whole = case
    for copy in range(1, k):
        whole = whole.beside(case.but(group_B=case.group_B + 10_000_019 * copy))
    before, after = loss.evaluate(case), loss.evaluate(whole)
    if traits.weights == "other" and torch.allclose(
        after.grad_BT, before.grad_BT.repeat(k, 1), rtol=traits.rtol, atol=1e-9
    ):
        return None  # a sum over completions or prompts, for a caller that divides
    return compare(
        loss,
        traits,
        whole,
        before.grad_BT.repeat(k, 1) / k,
        f"the other call has the batch once, this one {k} times under other group ids: each with 1/{k} of the gradient",
        expected=before.value,
        fix=lambda grad_BT, value: _growth(before.value, value),
        twin=Twin(case, f"other_grad.repeat({k}, 1) / {k}", "other_value"),
    )


def _growth(once: float, repeated: float) -> str:
    if abs(repeated) > abs(once):
        return "the loss grows with the batch: it lacks a divisor"
    return "the loss shrinks as the batch grows: it is divided once too often" if repeated else ""


def shards_add_up(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, list[list[int]]]
) -> Violation | None:
    """E07: with the weights of the whole batch, a shard's gradient is that of its rows."""
    case, shards = drawn
    whole = loss.evaluate(case)
    total = 0.0
    for shard in filter(None, shards):
        rows = torch.tensor(shard)
        expected_BT = torch.zeros_like(whole.grad_BT)
        expected_BT[rows] = whole.grad_BT[rows]
        wrong = compare(
            loss,
            traits,
            case,
            expected_BT,
            f"the other call has the whole batch; rows {shard} alone, with its normaliser, have the same gradient",
            rows=rows,
            twin=Twin(case),
            fix="the shard is normalised by its own count: divide its sum by a count of the whole batch",
        )
        if wrong is not None:
            return wrong
        total += loss.evaluate(case, rows).value
    if abs(total - whole.value) <= 10 * traits.rtol * max(1.0, abs(whole.value)):
        return None
    return Violation(
        case,
        f"the losses of the shards {shards} add up to {total:.7g}, that of all to {whole.value:.7g}",
    )


def _sharded(traits: Traits) -> st.SearchStrategy[tuple[Case, list[list[int]]]]:
    return batches(traits.takes_old, rows=(2, 5)).flatmap(
        lambda case: st.tuples(st.just(case), strategies.shardings(len(case.adv_B)))
    )


def empty_shard(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """E08."""
    whole = case.beside(case.blank())
    rows = torch.arange(len(case.adv_B), len(whole.adv_B))
    return compare(
        loss,
        traits,
        whole,
        torch.zeros_like(whole.logp_BT),
        f"rows {rows.tolist()} have nothing to train on, so this shard adds nothing",
        expected=0.0,
        rows=rows,
        exact=True,
    )


SHARDED = needs(
    "for losses with weights or counts of the whole batch", lambda traits: traits.shards
)
OWN = needs("for losses with a normaliser of their own", lambda traits: not traits.weighed)

INVARIANTS = [
    Invariant(
        id="E07",
        name="shards add up",
        statement=(
            "However the rows are dealt to micro-batches and ranks, losses and gradients add up"
            " to those of the whole batch."
        ),
        formula="sum over shards of grad L(shard; normaliser of the whole) = grad L",
        inputs=_sharded,
        check=shards_add_up,
        means="a mean of means: each shard divides by its own count",
        applies=SHARDED,
        fault="TRL #3021, #2995; open-instruct #1161; NeMo-RL #266; verl #906",
    ),
    Invariant(
        id="E08",
        name="an empty shard",
        statement="A shard without trained tokens adds exactly 0.",
        formula="L(shard) = 0, grad L(shard) = 0",
        inputs=lambda traits: cases("near", rows=(1, 2)),
        check=empty_shard,
        means="a division by the shard's own count, which is 0",
        applies=SHARDED,
        fault="NeMo-RL #212; prime-rl #798",
    ),
    Invariant(
        id="E14",
        name="size of the batch",
        statement=(
            "A batch repeated k times has the same loss, and each copy 1/k of the gradient."
        ),
        formula="L(x, ..., x) = L(x)",
        inputs=lambda traits: st.tuples(
            batches(traits.takes_old, rows=(1, 2), tokens=(1, 3)), st.integers(2, 3)
        ),
        check=replication,
        means="a sum where a mean is meant, or a divisor that does not count all",
        applies=needs("for losses that are no sums", lambda traits: traits.weights != "sum"),
    ),
    Invariant(
        id="E06",
        name="aggregation",
        statement=(
            "Tokens weigh as the aggregation says: each prompt alike, each completion alike, or"
            " each token alike."
        ),
        formula="w_it = 1/(P sum of T_j in the prompt), 1/(N T_i), or 1/(sum of T_j)",
        inputs=lambda traits: cases("one", rows=(1, 4)),
        check=proportions,
        means=(
            "a completion's sum or mean is broadcast over its tokens and averaged again, or "
            "another mean is taken than is meant"
        ),
        applies=both(
            OWN,
            needs("for means over prompts, completions or tokens", lambda t: t.weights in MEANS),
        ),
        fault="verl #593: GRPO computed as a mean over tokens; TRL #3823, EasyR1 #596",
    ),
    Invariant(
        id="E01",
        name="weights add up to one",
        statement="The weights of a mean add up to 1.",
        formula="sum over i, t of w_it = 1",
        inputs=lambda traits: cases("one", rows=(1, 3)),
        check=sum_to_one,
        means="the loss is divided twice, or by the wrong count",
        applies=both(
            OWN,
            needs(
                "for means that the author named",
                lambda t: t.weights in MEANS and "weights" in t.told,
            ),
        ),
        fault=(
            "ms-swift #10117, TRL #5890: divided by the window's tokens, then by the "
            "accumulation steps"
        ),
    ),
    Invariant(
        id="E16",
        name="constant divisor",
        statement=(
            "A constant divisor depends neither on the padded width nor on the longest completion."
        ),
        formula="w_it = 1/(N L), L a constant of the run",
        inputs=lambda traits: cases("one", rows=(1, 3)),
        check=constant,
        means="the constant is taken from the batch",
        applies=both(OWN, needs("for a constant divisor", lambda t: t.weights == "constant")),
        fault="verl #3741, TRL #3138",
    ),
]
