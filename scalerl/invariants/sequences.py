"""Losses with one ratio for the whole completion: GSPO."""

from dataclasses import replace

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import (
    Invariant,
    Twin,
    Violation,
    both,
    compare,
    needs,
    needs_shape,
)
from scalerl.invariants.formulas import formula
from scalerl.invariants.strategies import cases
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits


def redistribution(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, float]
) -> Violation | None:
    """A07."""
    case, z = drawn
    shift_BT = torch.zeros_like(case.logp_BT)
    for row, mask_T in enumerate(case.mask_BT):
        where = mask_T.nonzero().flatten().tolist()
        shift_BT[row, where[0]] += z
        shift_BT[row, where[-1]] -= z
    before = loss.evaluate(case)
    return compare(
        loss,
        traits,
        case.but(behavior_logp_BT=case.behavior_logp_BT + shift_BT),
        before.grad_BT,
        f"the other call has {z:g} nats of log ratio on each completion's last token instead of its first",
        expected=before.value,
        twin=Twin(case, value="other_value"),
        fix="tokens are clamped or clipped one by one before the mean is taken: clip the completion's ratio",
    )


def uniform(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A06."""
    grad_BT = loss.evaluate(case).grad_BT
    mean_B = grad_BT.sum(dim=1) / case.tokens_B.clamp(min=1)
    expected_BT = torch.where(case.mask_BT, mean_B[:, None], 0.0)
    wrong = compare(
        loss,
        traits,
        case,
        expected_BT,
        "every token of a completion has the same share of its ratio",
    )
    uneven = "all(row[m].max() - row[m].min() < 1e-9 for row, m in zip(grad, mask, strict=True))"
    return wrong and replace(
        wrong,
        assertions=("(grad,) = torch.autograd.grad(loss, logp)", f"assert {uneven}"),
    )


SEQUENCE = needs(
    "for losses of the sequence ratio, clipped as a whole",
    lambda traits: (
        traits.level in ("sequence", "product")
        and not ("kind" in traits.told and traits.shape == "other")
    ),
)
GEOMETRIC = needs(
    "for ratios that are meant as geometric means: a plain product was measured",
    lambda traits: traits.level == "sequence",
)

INVARIANTS = [
    Invariant(
        id="A07",
        name="only the mean of the log ratio",
        statement="A sequence ratio does not see how log ratio is spread along the completion.",
        formula="sum over t of z_t = 0  =>  L(d + z) = L(d)",
        inputs=lambda traits: st.tuples(
            cases("near", tokens=(2, 4)), st.sampled_from((1.0, -1.0, 0.05, 20.0))
        ),
        check=redistribution,
        means="single tokens are clamped or clipped before the mean (if that is meant, as in GMPO, say --kind gmpo)",
        applies=SEQUENCE,
    ),
    Invariant(
        id="A06",
        name="uniform along the completion",
        statement="Every trained token of a completion has the same gradient.",
        formula="dL/dlogp_it = dL/dlogp_is",
        inputs=lambda traits: cases("near"),
        check=uniform,
        means="the ratio is centred or weighted per column, or a token's own ratio is left in",
        applies=SEQUENCE,
        fault="Soup #723: centred by column",
    ),
    Invariant(
        id="A05",
        name="geometric mean of the token ratios",
        statement=(
            "The ratio of a completion is the T-th root of the product over its T trained tokens."
        ),
        formula=(
            "s = exp(mean over trained t of d_t);  dL/dlogp_it = -w_it A_i s_i where not clipped"
        ),
        inputs=lambda traits: cases("near"),
        check=formula,
        means=(
            "the log ratios are summed, not averaged (1000 tokens at -0.003 give 0.05 instead "
            "of 0.997), or averaged over padding"
        ),
        applies=both(
            SEQUENCE, GEOMETRIC, needs_shape("clipped", "truncated", "importance", "band")
        ),
        fault="NeMo-RL #2269; TRL #5814: a sequence correction that shrinks with length",
    ),
]
