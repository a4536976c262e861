"""Losses that take the trainer's old log-probs: a ratio to them, and a correction for the generator's.

    weight = f(exp(logp - old_logp)) c(exp(old_logp - behavior_logp)),   f(r) = r and c(r) = r near 1

Measured on completions of one token, where every kind of ratio is the token's, and near 1, where no bound acts. A
correction may be capped at 1 or rejected on one side: c may be flat on one side of 1, not on both.
"""

import math

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case, f64
from scalerl.invariants.catalogue import Invariant, Twin, Violation, compare
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits

SMALL, SHOWN, FAR = 1e-4, 1 / 32, 5.0


def _token(x: float, y: float) -> Case:
    """logp - old_logp = x, old_logp - behavior_logp = y."""
    case = Case.of([[-1.0]], x + y)
    return case.but(old_logp_BT=torch.tensor([[-1.0 - x]], dtype=f64))


def _weight(loss: LossUnderTest, x: float, y: float) -> float:
    """In units of that at x = y = 0; NaN if there is none."""
    unit = loss.evaluate(_token(0.0, 0.0)).grad_BT.item()
    return loss.evaluate(_token(x, y)).grad_BT.item() / unit if unit else math.nan


def _exponent(loss: LossUnderTest, x: float, y: float) -> float | None:
    weight = _weight(loss, x, y)
    return math.log(weight) / (x + y) if 0 < weight < math.inf else None


def _against(
    loss: LossUnderTest, traits: Traits, x: float, y: float, because: str, fix: str
) -> Violation | None:
    """The violation at a readable size, or at the small one if a bound lies in between."""
    unit = loss.evaluate(_token(0.0, 0.0)).grad_BT.item()
    for scale in (SHOWN / SMALL, 1.0):
        expected = torch.tensor([[unit * math.exp((x + y) * scale)]], dtype=f64)
        case = _token(x * scale, y * scale)
        twin = Twin(_token(0.0, 0.0), f"{math.exp((x + y) * scale)!r} * other_grad")
        wrong = compare(loss, traits, case, expected, because, rtol=2e-5, fix=fix, twin=twin)
        if wrong is not None:
            return wrong
    return None


def current_policy(loss: LossUnderTest, traits: Traits, sign: float) -> Violation | None:
    """C01."""
    p = _exponent(loss, sign * SMALL, 0.0)
    if p is None or p < 1.05:
        return None
    because = (
        f"old_logp = behavior_logp: the correction is 1, the ratio remains, at the power {p:.3g}; "
        "the other call is at ratio 1"
    )
    fix = "the correction must be exp(old_logp - behavior_logp), detached: it moves with logp here"
    return _against(loss, traits, sign * SMALL, 0.0, because, fix)


def correction(loss: LossUnderTest, traits: Traits, sign: float) -> Violation | None:
    """C02."""
    p, other = _exponent(loss, 0.0, sign * SMALL), _exponent(loss, 0.0, -sign * SMALL)
    flat = p is not None and abs(p) < 0.02
    if (
        p is None
        or min(abs(p - 1), abs(p - 2)) < 0.05
        or (flat and (other is None or abs(other) > 0.02))
    ):
        return None
    if flat and any(_weight(loss, 0.0, far) == 0.0 for far in (FAR, -FAR)):
        return None  # tokens far off are rejected, which is a correction too
    because = (
        f"logp = old_logp: exp(old_logp - behavior_logp) remains, at the power {p:.3g}; "
        "the other call is at ratio 1"
    )
    return _against(loss, traits, 0.0, sign * SMALL, because, _correction_fix(p))


def _correction_fix(p: float) -> str:
    if abs(p) < 0.02:
        return "behavior_logp does not reach the gradient: the correction is not applied"
    if p < 0:
        return "the correction is inverted: exp(old_logp - behavior_logp)"
    return "the correction is raised to a power, or scaled"


def double_count(loss: LossUnderTest, traits: Traits, sign: float) -> Violation | None:
    """C03."""
    p = _exponent(loss, 0.0, sign * SMALL)
    if p is None or abs(p - 2) > 0.05:
        return None
    because = (
        "logp = old_logp: exp(old_logp - behavior_logp) should remain, and its square is there; "
        "the other call is at ratio 1"
    )
    fix = "a ratio to behavior_logp corrects already: take the ratio to old_logp, or leave the correction out"
    return _against(loss, traits, 0.0, sign * SMALL, because, fix)


def _corrects(traits: Traits) -> str | None:
    return None if traits.takes_old else "for losses that take old_logp beside behavior_logp"


SIGNS = (1.0, -1.0)

INVARIANTS = [
    Invariant(
        id="C01",
        name="the correction is of the old policy",
        statement="The correction weighs by the trainer's old policy, and does not move with the current one.",
        formula="old_logp = behavior_logp  =>  d log weight / dlogp <= 1 near 1, that of the ratio alone",
        inputs=lambda traits: st.sampled_from(SIGNS),
        check=current_policy,
        means="the correction, or a second ratio, is taken from the current log-probs",
        applies=_corrects,
        fault="slime #179: the weight of the current policy",
    ),
    Invariant(
        id="C02",
        name="the correction",
        statement="Before the first step the weight is the trainer's over the generator's probability, once.",
        formula="logp = old_logp  =>  dL/dlogp = -w A exp(old_logp - behavior_logp) near 1",
        inputs=lambda traits: st.sampled_from(SIGNS),
        check=correction,
        means="the correction is not applied, or inverted",
        applies=_corrects,
        fault="Liger #1082, TRL #6808: a fused path that drops the importance weights",
    ),
    Invariant(
        id="C03",
        name="no double count",
        statement="The generator is corrected for once: by the ratio, or by a correction beside a ratio to old_logp.",
        formula="exp(logp - old_logp) exp(old_logp - behavior_logp) = exp(logp - behavior_logp)",
        inputs=lambda traits: st.sampled_from(SIGNS),
        check=double_count,
        means="the generator's log-probs are in the ratio and in the correction",
        applies=_corrects,
    ),
]
