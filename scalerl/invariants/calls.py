"""One call and another: arguments, repetition, the order and the names of rows."""

import math

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Twin, Violation, compare
from scalerl.invariants.strategies import batches, cases
from scalerl.invariants.subject import NAMES, LossRaised, LossUnderTest
from scalerl.invariants.traits import Traits


def any_batch(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """D07; a loss that fails because of the ids alone is D02's."""
    try:
        found = loss.evaluate(case)
    except LossRaised as error:
        if fails_for_its_ids(loss, case):
            return None
        return Violation(case, str(error), assertions=("assert loss.isfinite()",))
    if math.isfinite(found.value) and bool(found.grad_BT.isfinite().all()):
        return None
    return Violation(
        case,
        "log-probs, ratios and advantages are ordinary numbers, and so are the loss and its gradient",
        torch.zeros_like(found.grad_BT),
        found.grad_BT,
        0.0,
        found.value,
        assertions=("assert loss.isfinite()",),
    )


def fails_for_its_ids(loss: LossUnderTest, case: Case) -> bool:
    """Whether the loss raises on a case, and not under the group ids 0, 1, 2, ..., which is what D02 is about."""
    return not _runs(loss, case) and _runs(loss, _renamed(case))


def _runs(loss: LossUnderTest, case: Case) -> bool:
    try:
        loss.evaluate(case)
    except LossRaised:
        return False
    return True


def _renamed(case: Case) -> Case:
    """Under the group ids 0, 1, 2, ..."""
    return case.but(group_B=torch.unique(case.group_B, return_inverse=True)[1])


def inputs_untouched(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """H12."""
    case = case.but(
        logp_BT=case.logp_BT.masked_fill(~case.mask_BT, -7.0),
        behavior_logp_BT=case.behavior_logp_BT.masked_fill(~case.mask_BT, -7.0),
    )
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
        assertions=("assert all(({call}).item() == loss.item() for _ in range(20))",),
    )


def _permuted(traits: Traits) -> st.SearchStrategy[tuple[Case, list[int]]]:
    return batches(traits.takes_old, rows=(2, 4)).flatmap(
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
        f"the other call has the same rows in the order {_inverse(order)}",
        expected=before.value,
        twin=Twin(case, f"other_grad[{order}]", "other_value"),
    )


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def relabelling(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, list[int]]
) -> Violation | None:
    """D02."""
    case, names = drawn
    numbers = _renamed(case).group_B.tolist()
    other = case.but(group_B=torch.tensor([names[n] for n in numbers]))
    before = loss.evaluate(other)
    return compare(
        loss,
        traits,
        case,
        before.grad_BT,
        f"the other call has the same prompts under the ids {other.group_B.tolist()}",
        expected=before.value,
        twin=Twin(other, value="other_value"),
    )


def _relabelled(traits: Traits) -> st.SearchStrategy[tuple[Case, list[int]]]:
    return st.tuples(batches(traits.takes_old, rows=(1, 4)), st.permutations(range(5)))


INVARIANTS = [
    Invariant(
        id="D07",
        name="any batch",
        statement="A loss takes any batch: any number of completions and of tokens, prompts of any size.",
        formula="L(x), grad L(x) are finite numbers",
        inputs=lambda traits: cases(rows=(1, 4), tokens=(1, 4)),
        check=any_batch,
        means=(
            "groups of one size are assumed (`view(-1, G)`), a dimension of size 1 is squeezed away, or a "
            "standard deviation is taken of one number"
        ),
        fault="TRL #6804: groups of another size at evaluation",
    ),
    Invariant(
        id="H12",
        name="inputs untouched",
        statement="A loss does not write to its arguments.",
        formula="args after = args before",
        inputs=lambda traits: cases(),
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
        inputs=_permuted,
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
        inputs=_relabelled,
        check=relabelling,
        means="ids are used as indices, sizes or in arithmetic",
    ),
]
