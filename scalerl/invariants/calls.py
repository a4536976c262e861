"""One call and another: arguments, repetition, the order and the names of rows."""

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Violation, compare
from scalerl.invariants.strategies import cases
from scalerl.invariants.subject import NAMES, LossUnderTest
from scalerl.invariants.traits import Traits


def inputs_untouched(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """H12."""
    case = case.but(behavior_logp_BT=case.behavior_logp_BT.masked_fill(~case.mask_BT, -7.0))
    given = case.copy()
    loss.value(given)
    for name, before, after in zip(
        vars(case), vars(case).values(), vars(given).values(), strict=True
    ):
        if not torch.equal(before, after):
            argument = NAMES[name][0]
            return Violation(
                case,
                f"after the call `{argument}` holds {after.tolist()}",
                assertions=(f"assert {argument}.tolist() == {before.tolist()}",),
            )
    return None


def same_bits_twice(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """H10."""
    first, second = loss.evaluate(case), loss.evaluate(case)
    if first.value == second.value and torch.equal(first.grad_BT, second.grad_BT):
        return None
    return Violation(
        case,
        "the first of two equal calls gave it",
        first.grad_BT,
        second.grad_BT,
        first.value,
        second.value,
        assertions=("assert loss.item() == ({call}).item()",),
    )


def _permuted() -> st.SearchStrategy[tuple[Case, list[int]]]:
    return cases(rows=(2, 4)).flatmap(
        lambda case: st.tuples(st.just(case), st.permutations(range(len(case.adv_B))))
    )


def permutation(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, list[int]]
) -> Violation | None:
    """D01."""
    case, order = drawn
    before = loss.evaluate(case)
    return compare(
        loss,
        traits,
        case.rows(order),
        before.grad_BT[order],
        f"the same rows in the order {_inverse(order)} have it",
        expected=before.value,
    )


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def relabelling(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """D02."""
    before = loss.evaluate(case)
    fresh = {g: 10_007 * (k + 1) for k, g in enumerate(sorted(set(case.group_B.tolist())))}
    other = case.but(group_B=torch.tensor([fresh[g] for g in case.group_B.tolist()]))
    return compare(
        loss,
        traits,
        other,
        before.grad_BT,
        f"the same prompts under the ids {case.group_B.tolist()} have it",
        expected=before.value,
    )


INVARIANTS = [
    Invariant(
        id="H12",
        name="inputs untouched",
        statement="A loss does not write to its arguments.",
        formula="args after = args before",
        inputs=lambda traits: cases(holes=True),
        check=inputs_untouched,
        means=(
            "an in-place operation (`masked_fill_`, `-=`, `x[...] = `) on an argument: the "
            "caller's batch is changed for whatever reads it next"
        ),
    ),
    Invariant(
        id="H10",
        name="same input, same bits",
        statement="Two calls on one input give the same bits.",
        formula="L(x) = L(x)",
        inputs=lambda traits: cases(rows=(1, 2)),
        check=same_bits_twice,
        means=(
            "something random (dropout, sampling, shuffling) or a state kept between calls is "
            "part of the loss"
        ),
    ),
    Invariant(
        id="D01",
        name="order of the rows",
        statement=(
            "Putting the completions into another order, with their group ids, changes nothing "
            "but the order."
        ),
        formula="L(P x) = L(x), grad L(P x) = P grad L(x)",
        inputs=lambda traits: _permuted(),
        check=permutation,
        means=(
            "rows are grouped or chunked by their position (`view(-1, G)`, a mean of the "
            "chunks' means) instead of by `group_id`"
        ),
        fault="TRL #3991, R1-V #67: groups by position, of rows that came in another order",
    ),
    Invariant(
        id="D02",
        name="names of the prompts",
        statement="Group ids are names: any other distinct numbers do as well.",
        formula="L(x, f(g)) = L(x, g) for any bijection f",
        inputs=lambda traits: cases(rows=(1, 4)),
        check=relabelling,
        means="ids are used as indices, sizes or in arithmetic",
    ),
]
