"""Floating point: extreme ratios, half precision, long completions."""

import math

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Twin, Violation, compare, needs
from scalerl.invariants.strategies import cases
from scalerl.invariants.subject import LossRaised, LossUnderTest
from scalerl.invariants.traits import Traits

FAR = 10.0
"""Log ratio beyond which a weight may be held, up or down, as the usual clamps at 10 or 20 do."""


def extreme_ratio(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, torch.dtype]
) -> Violation | None:
    """H01: where the weight is bounded it is at its bound; where it is not, it may be held anywhere beyond e^10."""
    case = drawn[0].to(drawn[1])
    found = loss.evaluate(case)
    finite = math.isfinite(found.value) and bool(found.grad_BT.isfinite().all())
    plain = loss.evaluate(case.but(behavior_logp_BT=case.logp_BT)).grad_BT
    limit_BT, known_BT = _limits(traits, case, plain)
    against_BT = (found.grad_BT * plain < 0) & case.mask_BT & (traits.shape != "other")
    tiny_BT = math.exp(-FAR) * 1.01 * plain.abs()
    off_BT = (found.grad_BT - limit_BT).abs() > 1e-3 * limit_BT.abs() + tiny_BT
    if finite and not bool((against_BT | off_BT & known_BT).any()):
        return None
    largest = case.log_ratio_BT.abs().max().item()
    return Violation(
        case,
        f"at a log ratio of {largest:g} the loss stays finite, at the limit of its clip or cap"
        + (
            ""
            if bool(known_BT[case.mask_BT].all())
            else " (0 stands for any number of the right sign)"
        ),
        limit_BT,
        found.grad_BT,
        None if math.isfinite(found.value) else 0.0,
        None if math.isfinite(found.value) else found.value,
        fix="" if finite else OVERFLOW,
        assertions=(
            "(grad,) = torch.autograd.grad(loss, logp)",
            "assert loss.isfinite() and grad.isfinite().all()",
        )
        if not finite
        else (),
    )


OVERFLOW = (
    "exp overflows, and inf * 0 in the backward pass is nan: clamp the log ratio before exp, "
    "torch.exp((logp - behavior_logp).clamp(max=20))"
)


def _limits(traits: Traits, case: Case, plain: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient that bounds give, and where they do."""
    if traits.shape == "other" or traits.level != "token":
        return torch.zeros_like(plain), torch.zeros_like(case.mask_BT)
    factor_BT = traits.factor(
        traits.ratio_BT(case).double(), case.adv_B[:, None].expand(case.shape)
    )
    known_BT = case.mask_BT & (factor_BT <= math.exp(FAR))
    if traits.shape == "band":  # kept tokens may weigh more for the rejected ones
        known_BT &= factor_BT == 0
    return torch.where(known_BT, plain * factor_BT.to(plain.dtype), 0.0), known_BT


def _extremes() -> st.SearchStrategy[tuple[Case, torch.dtype]]:
    few = cases("extreme", rows=(1, 2), tokens=(1, 3))
    return st.tuples(few, st.sampled_from((torch.float64, torch.float32)))


def half_precision(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, torch.dtype]
) -> Violation | None:
    """H04: half precision may be refused; a per cent is what rounding one gradient to bf16 may cost."""
    low = drawn[0].to(drawn[1])
    try:
        loss.evaluate(low)
    except LossRaised:
        return None
    high = low.to(torch.float32)
    if traits.near_a_bound(high.to(torch.float64)) or bool((high.log_ratio_BT.abs() > 10).any()):
        return None
    expected = loss.evaluate(high)
    return compare(
        loss,
        traits,
        low,
        expected.grad_BT.to(drawn[1]),
        "the other call has the same numbers, raised to float32",
        rtol=0.008,  # one unit in the last place of bfloat16
        fix=f"log-probs are subtracted, exponentiated or summed in {str(drawn[1])[6:]}: begin with logp = logp.float()",
        twin=Twin(high, f"other_grad.to({drawn[1]})"),
    )


def _halves() -> st.SearchStrategy[tuple[Case, torch.dtype]]:
    def uneven(case: Case) -> Case:  # multiples of 1/8 are subtracted exactly
        return case.but(
            logp_BT=1.037 * case.logp_BT, behavior_logp_BT=1.029 * case.behavior_logp_BT
        )

    many = cases(rows=(1, 4), tokens=(4, 6)).map(uneven)
    return st.tuples(many, st.sampled_from((torch.bfloat16, torch.bfloat16, torch.float16)))


def single_precision(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """H05."""
    low = case.to(torch.float32)
    if (dtype := loss.evaluate(low).dtype) in (torch.bfloat16, torch.float16):
        return Violation(
            low,
            f"log-probs in float32 come out as a loss in {dtype}",
            assertions=("assert loss.dtype == torch.float32",),
        )
    if traits.near_a_bound(low.to(torch.float64)):
        return None
    fine = loss.evaluate(low.to(torch.float64)).grad_BT
    plain = loss.evaluate(low.but(behavior_logp_BT=low.logp_BT)).grad_BT
    if not bool(plain.isfinite().all()):
        return None  # D07's
    return compare(
        loss,
        traits,
        low,
        fine.float(),
        "the other call has the same numbers in float64",
        rtol=1e-3,
        atol=1e-5 * plain.abs().max().item() + 1e-12,
        twin=Twin(low.to(torch.float64), "other_grad.float()"),
    ) or _resolution(loss)


def _resolution(loss: LossUnderTest) -> Violation | None:
    """Where the weight follows the ratio from 1/16 to 1/8, it follows it in steps of a thousandth."""

    def weight(x: float) -> float:
        return loss.evaluate(Case.of([[-0.7]], x)).grad_BT.item()

    if weight(1 / 16) in (weight(1 / 8), 0.0) or weight(1 / 16) != weight(1 / 16 + 1e-3):
        return None
    case = Case.of([[-0.7]], 1 / 16 + 1e-3)
    return Violation(
        case,
        "the other call has a log ratio smaller by a thousandth, and not one bit of the gradient differs",
        fix="the ratio is computed in half precision: subtract and exponentiate in float32",
        twin=Twin(Case.of([[-0.7]], 1 / 16)),
        assertions=("assert not torch.equal(grad, other_grad)",),
    )


def long_completion(
    loss: LossUnderTest, traits: Traits, drawn: tuple[int, torch.dtype]
) -> Violation | None:
    """H06: a count of tokens in half precision stalls or overflows."""
    T, dtype = drawn
    case = Case.of([[-1.0] * T])
    low = case.to(dtype)
    try:
        found = loss.evaluate(low)
    except LossRaised:
        return None
    expected = loss.evaluate(case)
    if math.isfinite(found.value) and math.isclose(found.value, expected.value, rel_tol=0.02):
        return None
    return Violation(
        low,
        f"{T} tokens in {dtype} have the loss that they have in float64",
        expected=expected.value,
        actual=found.value,
        fix="tokens are counted or summed in half precision: count in int64, sum in float32",
    )


HALF = needs("unless log-probs may come in half precision (half)", lambda traits: traits.half)

INVARIANTS = [
    Invariant(
        id="H01",
        name="extreme ratios",
        statement=(
            "At any log ratio value and gradient are finite, at the limit of the clip or cap."
        ),
        formula="|d| up to 1000  =>  |L|, |grad L| < inf",
        inputs=lambda traits: _extremes(),
        check=extreme_ratio,
        means=(
            "exp overflows: at ordinary ratios the gradient may be right, and one extreme token makes "
            "it NaN, which ends a run"
        ),
        fault=(
            "OpenRLHF #525, TRL #3015, prime-rl #2085: exp of a large log ratio, NaN in the "
            "backward pass"
        ),
    ),
    Invariant(
        id="H05",
        name="float32",
        statement=(
            "Log-probs in float32 are worked on in float32 or better, and give what float64 "
            "gives but for rounding."
        ),
        formula="grad L(x in float32) = grad L(x) to 1e-3",
        inputs=lambda traits: cases(),
        check=single_precision,
        means=(
            "half precision inside, a difference of large numbers, or a constant far below "
            "float32's resolution"
        ),
    ),
    Invariant(
        id="H04",
        name="half precision",
        statement="Log-probs in bf16 or fp16 give what the same numbers give in float32.",
        formula="grad L(x in bf16) = grad L(float32(x)) to a per cent",
        inputs=lambda traits: _halves(),
        check=half_precision,
        means="arithmetic in half precision",
        applies=HALF,
        fault="OpenRLHF #634, TRL #4303: ratios off by per cents on-policy",
    ),
    Invariant(
        id="H06",
        name="long completions",
        statement="Tens of thousands of tokens are counted and summed exactly enough.",
        formula="T = 70 001 in fp16, 16 385 in bf16",
        inputs=lambda traits: st.sampled_from(((16_385, torch.bfloat16), (70_001, torch.float16))),
        check=long_completion,
        means="half precision counts to 256 (bf16) or 65 504 (fp16)",
        applies=HALF,
    ),
]
