"""Losses that take the trainer's old log-probs: a ratio to them, and a correction for the generator's."""

import itertools

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Violation, both, compare, needs
from scalerl.invariants.strategies import cases
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits


def _held(
    loss: LossUnderTest, traits: Traits, case: Case, log_factor_BT: torch.Tensor, because: str
) -> Violation | None:
    """Gradient = that with logp = old = behavior, times exp(log_factor), while every ratio is inside all bounds."""
    logps = (case.logp_BT, case.old_logp_BT, case.behavior_logp_BT)
    furthest = max(
        (a - b)[case.mask_BT].abs().max().item() for a, b in itertools.combinations(logps, 2)
    )
    if any(furthest > abs(bound) - 1e-4 for bound in traits.bounds()):
        return None
    plain = loss.evaluate(case.but(behavior_logp_BT=case.logp_BT)).grad_BT
    return compare(loss, traits, case, plain * log_factor_BT.exp(), because, rtol=1e-5)


def current_policy(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """C01."""
    same = case.but(old_logp_BT=case.behavior_logp_BT)
    return _held(
        loss,
        traits,
        same,
        same.log_ratio_BT,
        "old_logp = behavior_logp, so the correction is 1 and the ratio to old_logp alone remains",
    )


def correction(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """C02."""
    start = case.but(logp_BT=case.old_logp_BT)
    return _held(
        loss,
        traits,
        start,
        start.log_ratio_BT,
        "logp = old_logp, so the ratio is 1 and the correction exp(old_logp - behavior_logp) alone remains",
    )


def telescoping(loss: LossUnderTest, traits: Traits, case: Case) -> Violation | None:
    """C03."""
    return _held(
        loss,
        traits,
        case,
        case.log_ratio_BT,
        "exp(logp - old_logp) exp(old_logp - behavior_logp) = exp(logp - behavior_logp), whatever old_logp is",
    )


def _corrects(traits: Traits) -> str | None:
    if not traits.takes_old:
        return "for losses that take old_logp"
    return None if traits.level == "token" else "for token ratios"


def _stale(traits: Traits) -> st.SearchStrategy[Case]:
    return cases("near", rows=(1, 3), tokens=(1, 3), stale_trainer=True)


INVARIANTS = [
    Invariant(
        id="C01",
        name="the correction is of the old policy",
        statement=(
            "Truncated importance sampling weighs by the trainer's old policy, and does not "
            "move with the current one."
        ),
        formula="old_logp = behavior_logp  =>  dL/dlogp = -w A exp(logp - old_logp)",
        inputs=_stale,
        check=current_policy,
        means=(
            "the correction is taken from the current log-probs: it must be exp(old_logp - "
            "behavior_logp), detached"
        ),
        applies=_corrects,
        fault="slime #179: the weight of the current policy",
    ),
    Invariant(
        id="C02",
        name="the correction",
        statement=(
            "Before the first step of a batch the weight is the trainer's over the generator's "
            "probability, once."
        ),
        formula="logp = old_logp  =>  dL/dlogp = -w A exp(old_logp - behavior_logp)",
        inputs=_stale,
        check=correction,
        means=(
            "the correction is inverted, applied twice, or stands beside a ratio that has the "
            "generator in it already"
        ),
        applies=both(_corrects),
    ),
    Invariant(
        id="C03",
        name="no double count",
        statement="Ratio times correction is the ratio of the current policy to the generator.",
        formula="dL/dlogp = -w A exp(logp - behavior_logp) inside all bounds",
        inputs=_stale,
        check=telescoping,
        means="the generator's log-probs are in the ratio and in the correction",
        applies=both(_corrects, needs("for losses that use both", lambda traits: True)),
    ),
]
