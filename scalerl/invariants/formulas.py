"""The gradient of a whole batch against its formula, and against the value's finite differences."""

import math

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
from scalerl.invariants.strategies import cases
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits

TOKEN = needs("for losses of the token ratio", lambda traits: traits.level == "token")


def formula(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A01, A16, A05: the gradient of a batch is that of the same batch with pi = mu, times the factor of its ratios."""
    if traits.near_a_bound(case):
        return None
    plain = case.but(behavior_logp_BT=case.logp_BT)
    factor_BT = traits.factor(traits.ratio_BT(case), case.adv_B[:, None].expand(case.shape))
    factor_BT = torch.where(case.mask_BT, factor_BT, 0.0)
    of = "token's ratio" if traits.level == "token" else "completion's geometric mean of ratios"
    if "weights" in traits.told and traits.level == "sequence":
        because = f"it is -w A times the factor of each {of}, with the weights of {traits.weights}"
        return compare(loss, traits, case, traits.gradient_BT(case), because)
    return compare(
        loss,
        traits,
        case,
        loss.evaluate(plain).grad_BT * factor_BT,
        f"the other call is the same batch at pi = mu; this one is that times the factor of each {of}",
        twin=Twin(plain, f"other_grad * torch.tensor({factor_BT.tolist()}, dtype=torch.float64)"),
    )


def finite_difference(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A11; without any gradient it is A03's."""
    if traits.near_a_bound(case) or not bool(loss.evaluate(case).grad_BT.any()):
        return None
    step = 1e-5
    expected_BT = torch.zeros_like(case.logp_BT)
    for i, t in case.mask_BT.nonzero().tolist():
        ends = []
        for side in (step, -step):
            moved_BT = case.logp_BT.clone()
            moved_BT[i, t] += side
            ends.append(loss.value(case.but(logp_BT=moved_BT)).item())
        expected_BT[i, t] = (ends[0] - ends[1]) / (2 * step)
    return compare(
        loss, traits, case, expected_BT, "the value changes by it, in finite differences", rtol=1e-4
    )


def rejected_tokens(loss: LossUnderTest, traits: Traits, copies: int) -> Violation | None:
    """C05: kept tokens weigh as before, or as if the rejected ones were not there."""
    far = [bound + math.copysign(0.5, bound) for bound in traits.bounds()] * copies
    case = Case.of([[-1.0] * (2 + len(far))], [[0.0, 0.0, *far]])
    plain = loss.evaluate(case.but(behavior_logp_BT=case.logp_BT)).grad_BT
    kept = torch.tensor([[1.0, 1.0, *[0.0] * len(far)]], dtype=plain.dtype)
    leaving = case.shape[1] / 2
    wrong = None
    for share in (1.0, leaving):
        wrong = compare(
            loss,
            traits,
            case,
            share * plain * kept,
            f"{len(far)} of {case.shape[1]} tokens are rejected: the others weigh as with all of them, or as if alone",
        )
        if wrong is None:
            return None
    return wrong


INVARIANTS = [
    Invariant(
        id="A11",
        name="the gradient is that of the value",
        statement=(
            "A loss of the ratio alone has the gradient of its value, away from the clip's kinks."
        ),
        formula="dL/dlogp = lim (L(logp + h) - L(logp - h)) / 2h",
        inputs=lambda traits: cases("near", rows=(1, 2), tokens=(1, 3)),
        check=finite_difference,
        means="a backward pass written by hand, or a detach in the wrong place",
        applies=both(
            needs_shape("clipped", "importance"),
            needs(
                "for losses of the ratio alone, computed in float64",
                lambda t: not t.score and t.rtol <= 1e-6,
            ),
        ),
    ),
    Invariant(
        id="A01",
        name="the gradient on a batch",
        statement="Every token's gradient is its token weight times its capped ratio times the advantage.",
        formula="dL/dlogp_it = -w_it m_it min(rho_it, cap) A_i  (REINFORCE: 1 for the ratio)",
        inputs=lambda traits: cases(),
        check=formula,
        means="the ratio of a token is taken from another one, or averaged",
        applies=both(TOKEN, needs_shape("truncated", "importance", "reinforce")),
    ),
    Invariant(
        id="A16",
        name="the clipped gradient on a batch",
        statement=(
            "The gradient of every token of a batch is its weight times its ratio times the "
            "advantage, or 0 where clipped."
        ),
        formula="dL/dlogp_it = -w_it m_it rho_it A_i, or 0 where clipped",
        inputs=lambda traits: cases(),
        check=formula,
        means="the ratio or the clip of a token is taken from another one",
        applies=both(TOKEN, needs_shape("clipped")),
    ),
    Invariant(
        id="C05",
        name="denominator after a rejection",
        statement="Rejected tokens either leave the denominator or stay in it.",
        formula="weight of a kept token = w or w T / (T - rejected)",
        inputs=lambda traits: st.sampled_from((1, 2)),
        check=rejected_tokens,
        means="the denominator counts something else: rejected tokens twice, or rows",
        applies=both(
            TOKEN,
            needs_shape("band"),
            needs("for known aggregations", lambda t: t.weights != "other"),
        ),
        fault="slime #657, verl #3915",
    ),
]
