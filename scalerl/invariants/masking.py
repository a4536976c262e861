"""Padding and masks: what a loss must not notice."""

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from scalerl.invariants import strategies
from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Twin, Violation, compare, needs
from scalerl.invariants.strategies import batches, cases
from scalerl.invariants.subject import LossRaised, LossUnderTest
from scalerl.invariants.traits import Traits


def _spoilt(traits: Traits) -> st.SearchStrategy[tuple[Case, float, tuple[str, ...]]]:
    generator = ("behavior_logp_BT", "old_logp_BT")
    places = [("logp_BT",), generator, ("logp_BT", *generator)]
    padded = batches(traits.takes_old).filter(lambda case: not bool(case.mask_BT.all()))
    return st.tuples(padded, strategies.garbage(), st.sampled_from(places))


def garbage_under_the_mask(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, float, tuple[str, ...]]
) -> Violation | None:
    """D04."""
    clean, number, places = drawn
    before = loss.evaluate(clean)
    case = clean.but(
        **{name: getattr(clean, name).masked_fill(~clean.mask_BT, number) for name in places}
    )
    return compare(
        loss,
        traits,
        case,
        before.grad_BT.masked_fill(~clean.mask_BT, 0.0),
        "the other call has 0.0 where the mask is False; and a masked token has no gradient",
        expected=before.value,
        exact=True,
        fix=lambda grad_BT, value: _mask_fix(clean, grad_BT, value),
        twin=Twin(clean, "other_grad.masked_fill(~mask, 0.0)", "other_value"),
    )


def _mask_fix(case: Case, grad_BT: Tensor, value: float) -> str:
    finite = math.isfinite(value)
    if finite and not bool(grad_BT.isfinite().all()):
        return (
            "the terms are masked after exp or min, and the backward pass meets inf * 0 = nan: mask the inputs, "
            "torch.where(mask, logp - behavior_logp, 0.0), before exp"
        )
    if not finite:
        return "nan * 0 is nan: instead of multiplying by the mask, torch.where(mask, x, 0.0) on the inputs"
    if bool(grad_BT[~case.mask_BT].ne(0).any()):
        return "masked tokens are trained on: the mask is not applied to every factor"
    return "a mean or maximum is taken over masked tokens too: mask its input, and divide by mask.sum()"


def _padded(traits: Traits) -> st.SearchStrategy[tuple[Case, int, int]]:
    few = st.integers(0, 3)
    return st.tuples(batches(traits.takes_old), few, few).filter(
        lambda drawn: drawn[1] + drawn[2] > 0
    )


def padding(loss: LossUnderTest, traits: Traits, drawn: tuple[Case, int, int]) -> Violation | None:
    """D03."""
    narrow, left, right = drawn
    before = loss.evaluate(narrow)
    expected_BT = torch.nn.functional.pad(before.grad_BT, (left, right))
    return compare(
        loss,
        traits,
        narrow.padded(left, right),
        expected_BT,
        f"the other call is without the {left} + {right} columns of padding",
        expected=before.value,
        fix="the padded width takes part, as mean(dim=1), shape[1] or arange(T) put it there: count with mask.sum(), "
        "or divide by a constant of the run",
        twin=Twin(narrow, f"torch.nn.functional.pad(other_grad, ({left}, {right}))", "other_value"),
    )


def deletion(loss: LossUnderTest, traits: Traits, holed: Case) -> Violation | None:
    """D10."""
    dense = holed.compacted()
    before = loss.evaluate(dense)
    expected_BT = torch.zeros_like(holed.logp_BT).masked_scatter(
        holed.mask_BT, before.grad_BT[dense.mask_BT]
    )
    return compare(
        loss,
        traits,
        holed,
        expected_BT,
        "the other call has the masked tokens behind each row's trained ones",
        expected=before.value,
        twin=Twin(
            dense,
            f"torch.zeros_like(grad).masked_scatter(mask, other_grad[torch.tensor({dense.mask_BT.tolist()})])",
            "other_value",
        ),
    )


def _with_an_empty_row() -> st.SearchStrategy[tuple[Case, int]]:
    def insert(drawn: tuple[Case, int]) -> tuple[Case, int]:
        case, at = drawn
        n = len(case.adv_B)
        order = [*range(min(at, n)), n, *range(min(at, n), n)]
        return case.beside(case.rows([0]).blank()).rows(order), order.index(n)

    return st.tuples(cases(rows=(1, 3)), st.integers(0, 3)).map(insert)


def empty_row(loss: LossUnderTest, traits: Traits, drawn: tuple[Case, int]) -> Violation | None:
    """D05: a completion without trained tokens may count in the number of completions, or not."""
    case, at = drawn
    others = [i for i in range(len(case.adv_B)) if i != at]
    alone = loss.evaluate(case.rows(others)).grad_BT
    found = loss.evaluate(case)
    share = found.grad_BT[others] / torch.where(alone == 0, 1.0, alone)
    counted = bool(((share >= 0.5 - traits.rtol) & (share <= 1 + traits.rtol) | (alone == 0)).all())
    if math.isfinite(found.value) and counted and not bool(found.grad_BT[at].any()):
        return None
    expected_BT = torch.zeros_like(found.grad_BT)
    expected_BT[others] = alone
    finite = math.isfinite(found.value) and bool(found.grad_BT.isfinite().all())
    share = "grad[others] / torch.where(other_grad == 0, 1.0, other_grad)"
    return Violation(
        case,
        f"the other call is without row {at}, which has no token to train on (if it is counted, a little less)",
        expected_BT,
        found.grad_BT,
        None if finite else 0.0,
        None if finite else found.value,
        fix="" if finite else "0 / 0: divide by mask.sum(dim=1).clamp(min=1)",
        twin=Twin(case.rows(others)),
        assertions=(
            "assert value == value and grad.isfinite().all()",
            f"others = {others}",
            f"share = ({share})[other_grad != 0]",
            f"assert not grad[{at}].any() and (share > 0.499).all() and (share < 1.001).all()",
        ),
    )


def empty_batch(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """D06: a constant in the value moves nothing; a gradient or NaN does."""
    blank = case.but(mask_BT=torch.zeros_like(case.mask_BT))
    found = loss.evaluate(blank)
    if math.isfinite(found.value) and not bool(found.grad_BT.ne(0).any()):
        return None
    return Violation(
        blank,
        "nothing is trained on, so nothing may move",
        torch.zeros_like(found.grad_BT),
        found.grad_BT,
        None if math.isfinite(found.value) else 0.0,
        None if math.isfinite(found.value) else found.value,
        fix="" if math.isfinite(found.value) else "0 / 0: divide by mask.sum().clamp(min=1)",
        assertions=(
            "assert loss.isfinite()",
            "if loss.requires_grad:",
            "    assert not torch.autograd.grad(loss, logp)[0].any()",
        ),
    )


def mask_dtype(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, torch.dtype]
) -> Violation | None:
    """D08: another dtype than bool may be refused, but must not change the result."""
    case, dtype = drawn
    before = loss.evaluate(case)
    other = case.but(mask_BT=case.mask_BT.to(dtype))
    try:
        loss.evaluate(other)
    except LossRaised:
        return None
    return compare(
        loss,
        traits,
        other,
        before.grad_BT,
        "the other call has the same mask as bool",
        expected=before.value,
        twin=Twin(case, value="other_value"),
        fix=f"tokens are counted, or something is inverted, in {dtype}: begin with mask = mask.bool()",
    )


def _other_masks() -> st.SearchStrategy[Any]:
    dtypes = (torch.int64, torch.float32, torch.int8, torch.bfloat16, torch.float16)
    short = st.tuples(cases("near"), st.sampled_from(dtypes))
    long = st.sampled_from(((300, torch.bfloat16), (70_001, torch.float16)))
    return st.one_of(short, long.map(lambda drawn: (Case.of([[-1.0] * drawn[0]]), drawn[1])))


INVARIANTS = [
    Invariant(
        id="D04",
        name="garbage under the mask",
        statement=(
            "What stands where the mask is False, NaN and infinity included, changes no bit, "
            "and gets no gradient."
        ),
        formula="x' = x where m = 1  =>  L(x') = L(x), grad L(x') = m grad L(x)",
        inputs=_spoilt,
        check=garbage_under_the_mask,
        means="terms are multiplied by the mask, or masked only at the end",
        fault=(
            "SkyRL #1633, OpenRLHF #1240, verl #6361: NaN under the mask survives a "
            "multiplication; ROLL #444"
        ),
    ),
    Invariant(
        id="D03",
        name="padding",
        statement="Columns in which everything is masked, before or behind, change nothing.",
        formula="L(pad(x)) = L(x)",
        inputs=_padded,
        check=padding,
        means="the width of the padded batch takes part",
        fault="verl #3741, TRL #3138: the divisor is the padded width of the micro-batch",
    ),
    Invariant(
        id="D06",
        name="nothing to train on",
        statement="A batch without a trained token has gradient 0, and no NaN.",
        formula="m = 0  =>  grad L = 0",
        inputs=lambda traits: cases("near", rows=(1, 2), tokens=(1, 2)),
        check=empty_batch,
        means="a division by the number of trained tokens, which is 0",
        fault="prime-rl #798: 0 / 0 on micro-batches of padding",
    ),
    Invariant(
        id="D05",
        name="a completion without trained tokens",
        statement=(
            "A fully masked completion adds nothing; at most it counts in the number of "
            "completions."
        ),
        formula="T_i = 0  =>  dL/dlogp_i = 0, dL/dlogp_j = c_j dL(without i)/dlogp_j, 1/2 <= c_j <= 1",
        inputs=lambda traits: _with_an_empty_row(),
        check=empty_row,
        means="a division by the completion's number of trained tokens, which is 0",
        fault="NeMo-RL #212: an empty part counts in the divisor",
    ),
    Invariant(
        id="D10",
        name="a hole is a deletion",
        statement="Masking a token inside a completion is the same as taking it out.",
        formula="L(x, hole at t) = L(x without t)",
        inputs=lambda traits: batches(traits.takes_old, tokens=(2, 5)),
        check=deletion,
        means=(
            "a token's position, or its masked neighbour, takes part: a discount by position, a"
            " shift by one, a mask taken as a length"
        ),
        fault="verl #3287: a slice of the mask drops the first answer token",
    ),
    Invariant(
        id="D08",
        name="dtype of the mask",
        statement=(
            "A mask of integers or floats gives what the same mask as bool gives, or is refused."
        ),
        formula="L(m as dtype) = L(m as bool)",
        inputs=lambda traits: _other_masks(),
        check=mask_dtype,
        means=(
            "`~mask` of an integer is not its negation, `x[mask]` with one picks rows, and half"
            " precision cannot count"
        ),
        applies=needs(
            "unless the mask may come as numbers (any_mask)", lambda traits: traits.any_mask
        ),
    ),
]
