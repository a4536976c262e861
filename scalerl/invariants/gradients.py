"""Laws of the policy gradient that every loss obeys, whatever its clip."""

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Twin, Violation, compare, needs
from scalerl.invariants.strategies import batches, cases
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits


def zero_advantage(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """G01."""
    found = loss.evaluate(case)
    silent_BT = (case.adv_B == 0)[:, None].expand(case.shape)
    if not bool(found.grad_BT[silent_BT].ne(0).any()):
        return None
    return Violation(
        case,
        "rows whose advantage is 0 have a gradient of exactly 0",
        found.grad_BT.masked_fill(silent_BT, 0.0),
        found.grad_BT,
        assertions=(
            "(grad,) = torch.autograd.grad(loss, logp)",
            "assert not grad[adv == 0].any()",
        ),
    )


def decoupled(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, int, float, float]
) -> Violation | None:
    """A18."""
    case, row, shift, drift = drawn
    row %= len(case.adv_B)
    before = loss.evaluate(case).grad_BT
    here_BT = case.mask_BT & (torch.arange(len(case.adv_B)) == row)[:, None]
    moved = case.but(
        logp_BT=torch.where(here_BT, case.logp_BT - shift, case.logp_BT),
        behavior_logp_BT=torch.where(
            here_BT, case.behavior_logp_BT - shift - drift, case.behavior_logp_BT
        ),
        old_logp_BT=torch.where(here_BT, case.old_logp_BT - shift - drift / 2, case.old_logp_BT),
    )
    after = loss.evaluate(moved).grad_BT
    expected_BT = torch.where(here_BT, after, before)
    return compare(
        loss,
        traits,
        moved,
        expected_BT,
        f"the other call has other log-probs in row {row}, which the rows beside it do not see",
        twin=Twin(
            case, f"torch.where(torch.arange(len(grad))[:, None] == {row}, grad, other_grad)"
        ),
    )


def _moved_rows(traits: Traits) -> st.SearchStrategy[tuple[Case, int, float, float]]:
    shifts, drifts = st.sampled_from((0.5, 2.0)), st.sampled_from((0.0, -0.01, 0.5, -1.0))
    return st.tuples(batches(traits.takes_old, rows=(2, 4)), st.integers(0, 3), shifts, drifts)


def frozen_weight(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A02: with a frozen weight the gradient is a constant, the slope of the value along log pi and log mu."""
    if not _bends(loss, case):
        return None
    found, step = loss.evaluate(case), 0.25
    expected_BT = torch.zeros_like(case.logp_BT)
    for i, t in case.mask_BT.nonzero().tolist():
        moved = case.copy()
        for part_BT in (moved.logp_BT, moved.behavior_logp_BT):
            part_BT[i, t] -= step
        moved = moved.but(behavior_logp_BT=moved.behavior_logp_BT)
        expected_BT[i, t] = (found.value - loss.value(moved).item()) / step
    return Violation(
        case,
        "the value changes by it per nat of log pi at a fixed ratio: it is the weight, with nothing flowing through it",
        expected_BT,
        found.grad_BT,
        fix="the importance weight is not detached: ratio.detach()",
    )


def _bends(loss: LossUnderTest, case: Case) -> bool:
    """Whether the gradient itself depends on logp, by the loss's own graph."""
    leaf_BT = case.logp_BT.clone().requires_grad_()
    value = loss.value(case.but(logp_BT=leaf_BT.clone()))
    if not value.requires_grad:
        return False
    (grad_BT,) = torch.autograd.grad(value, leaf_BT, create_graph=True)
    if not grad_BT.requires_grad:
        return False
    (second_BT,) = torch.autograd.grad(
        grad_BT.sum(), leaf_BT, allow_unused=True, materialize_grads=True
    )
    return bool(second_BT.ne(0).any())


def common_shift(
    loss: LossUnderTest, traits: Traits, drawn: tuple[Case, float, int | None]
) -> Violation | None:
    """A10; of one token, or of all."""
    case, shift, place = drawn
    here_BT = case.mask_BT.clone()
    if place is not None:
        trained = case.mask_BT.nonzero().tolist()
        here_BT = torch.zeros_like(case.mask_BT)
        here_BT[tuple(trained[place % len(trained)])] = True
    moved = case.but(
        **{
            name: torch.where(here_BT, getattr(case, name) - shift, getattr(case, name))
            for name in ("logp_BT", "behavior_logp_BT", "old_logp_BT")
        }
    )
    return compare(
        loss,
        traits,
        moved,
        loss.evaluate(case).grad_BT,
        f"the other call has {'every' if place is None else 'one'} token's log-probs higher by {shift}: "
        "the ratios are the same",
        twin=Twin(case),
    )


def _shifts(traits: Traits) -> st.SearchStrategy[tuple[Case, float, int | None]]:
    places = st.one_of(st.none(), st.integers(0, 9))
    return st.tuples(batches(traits.takes_old), st.sampled_from((0.5, 0.25, 2.0)), places)


def homogeneous(loss: LossUnderTest, traits: Traits, drawn: tuple[Case, float]) -> Violation | None:
    """A13."""
    case, c = drawn
    before = loss.evaluate(case)
    return compare(
        loss,
        traits,
        case.but(adv_B=c * case.adv_B),
        c * before.grad_BT,
        f"the other call has the advantages without the factor {c:g}",
        expected=c * before.value,
        twin=Twin(case, f"{c} * other_grad", f"{c} * other_value"),
    )


def sign(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """A14."""
    grad_BT = loss.evaluate(case).grad_BT
    wrong_BT = case.mask_BT & (-grad_BT * case.adv_B[:, None] < 0)
    if not bool(wrong_BT.any()):
        return None
    return Violation(
        case,
        "descent raises log pi where A > 0 and lowers it where A < 0",
        torch.where(wrong_BT, -grad_BT, grad_BT),
        grad_BT,
        fix="the loss is to be minimised: it begins with a minus" if _all_wrong(case, grad_BT) else "",
        assertions=(
            "(grad,) = torch.autograd.grad(loss, logp)",
            "assert (-grad * adv[:, None])[mask].min() >= 0",
        ),
    )  # fmt: skip


def _all_wrong(case: Case, grad_BT: torch.Tensor) -> bool:
    return bool((grad_BT * case.adv_B[:, None] >= 0).all())


INVARIANTS = [
    Invariant(
        id="A02",
        name="stop-gradient",
        statement="No gradient flows through the weight of a loss that is a weight times log pi.",
        formula="d2L / dlogp2 = 0;  dL/dlogp = dL/dc of L(logp + c, behavior_logp + c)",
        inputs=lambda traits: cases(rows=(1, 2), tokens=(1, 3)),
        check=frozen_weight,
        means=(
            "the ratio carries a gradient into the product: (1 + log pi) times what it should be"
        ),
        applies=needs("for losses that are a weight times log pi", lambda traits: traits.score),
    ),
    Invariant(
        id="A18",
        name="completions do not see each other",
        statement=(
            "With advantages and weights given, a completion's gradient does not depend on "
            "another one's log-probs."
        ),
        formula="d2L / dlogp_i dlogp_j = 0 for rows i != j",
        inputs=_moved_rows,
        check=decoupled,
        means=(
            "a mean, maximum or standard deviation of the ratios over the batch is part of the loss"
        ),
        applies=needs(
            "for losses whose denominator does not count rejections",
            lambda traits: traits.shape != "band",
        ),
        fault="Soup #723, #744: GSPO centred per column over the batch",
    ),
    Invariant(
        id="G01",
        name="advantage 0, gradient 0",
        statement=(
            "A completion whose advantage is 0, as every one of a zero-variance prompt has it, "
            "has a gradient of exactly 0."
        ),
        formula="A_i = 0  =>  dL/dlogp_i = 0",
        inputs=lambda traits: cases(zero_advantage=True),
        check=zero_advantage,
        means=(
            "advantages are shifted inside the loss, or a term without them (KL penalty, entropy) is "
            "part of it, so prompts to be dropped still move the policy; test the policy term alone, "
            "and add the others after the filter"
        ),
        fault="TRL #5640: constant groups still move the policy through the KL term",
    ),
    Invariant(
        id="A10",
        name="only the ratio counts",
        statement=(
            "Adding one number to log pi and to log mu of a token leaves its gradient alone."
        ),
        formula="grad L(logp + c, behavior_logp + c) = grad L(logp, behavior_logp)",
        inputs=_shifts,
        check=common_shift,
        means=(
            "log-probs are scaled (divided by the temperature, which belongs on the logits) or "
            "used outside the ratio; or a weight that should be detached is not"
        ),
        fault="prime-rl #697: log-prob / T instead of logits / T",
    ),
    Invariant(
        id="A13",
        name="in proportion to the advantage",
        statement="Advantages twice as large give a loss and a gradient twice as large.",
        formula="L(c A) = c L(A) for c > 0",
        inputs=lambda traits: st.tuples(
            batches(traits.takes_old), st.sampled_from((2.0, 3.0, 0.5))
        ),
        check=homogeneous,
        means=(
            "advantages are normalised, clipped or squared again inside the loss, or a term "
            "without them is part of it"
        ),
        fault=(
            "torchrl #1033: one branch of the minimum has the advantage normalised; gem #113: "
            "normalised twice"
        ),
    ),
    Invariant(
        id="A14",
        name="sign",
        statement=(
            "Descent on the loss raises the log-prob of a token with A > 0 and lowers it with A"
            " < 0, or leaves it."
        ),
        formula="-dL/dlogp_it A_i >= 0",
        inputs=lambda traits: cases("one" if traits.unknown else "any"),
        check=sign,
        means="the minus is missing, or minimum and maximum are exchanged",
    ),
]
