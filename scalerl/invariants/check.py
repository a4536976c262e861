"""Hold a loss to the catalogue: which laws apply, a search for a counterexample to each, the first one shrunk."""

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import Flaky, NoSuchExample

from scalerl.errors import InputError
from scalerl.invariants import (
    calls,
    corrections,
    curves,
    formulas,
    gradients,
    masking,
    numerics,
    on_policy,
    sequences,
    weighing,
)
from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Violation
from scalerl.invariants.measure import Enough, measure
from scalerl.invariants.subject import LossRaised, LossUnderTest, adapt, mean_of, plain_case
from scalerl.invariants.traits import Traits

_MODULES = (
    calls, masking, weighing, gradients, corrections, curves, formulas, sequences, on_policy, numerics
)  # fmt: skip
_ALL = {invariant.id: invariant for module in _MODULES for invariant in module.INVARIANTS}
ORDER = """
    D07 H12 H10 H05 D01 D02 D04 A18 D10 D03 E08 E07 E14 G01 A02 A10 A13 C01 C02 C03 A21 A14 D05 D06 A07 A06 A05
    CL6 CL1 CL2 A15 C04 C05 A17 A11 A01 A16 E06 E01 E16 A03 A19 H01 H04 H06 D08
"""
CATALOGUE = [_ALL[id] for id in ORDER.split()]
"""In the order of diagnosis: what is violated first names the fault best. Laws about bookkeeping stand before those
that any fault in it breaks too, laws of one factor of the gradient before those of all of it."""

SHRINK_CALLS = 300
"""Inputs looked at after the first failure: a number, so that a slow machine shows the same one."""


@dataclass(frozen=True)
class Finding:
    """A law and the smallest input on which the loss was seen to break it."""

    invariant: Invariant
    violation: Violation


@dataclass(frozen=True)
class Report:
    """What a loss was found to be, and which laws it keeps.

    findings: in the order of diagnosis; only the first is shrunk.
    held: laws to which no counterexample was found.
    left_out: id -> why the law does not apply, or that it was skipped, or that time ran out before it.
    asked: `kind`, `aggregation` and bounds, where the author named them.
    """

    loss: LossUnderTest
    traits: Traits
    findings: list[Finding]
    held: list[Invariant]
    left_out: dict[str, str]
    asked: dict[str, Any]
    examples: int
    seed: int
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        from scalerl.invariants.report import as_text

        return as_text(self)

    def assert_ok(self) -> None:
        """Raise AssertionError with the report, if a law is violated."""
        if self.findings:
            raise AssertionError(str(self))


NO_TIME = "time ran out before it"


def check_loss(
    loss: Callable[..., Any] | LossUnderTest,
    *,
    kind: str | None = None,
    aggregation: str | None = None,
    keywords: Mapping[str, Any] | None = None,
    cap: float | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    dual: float | None = None,
    examples: int = 40,
    budget_s: float | None = None,
    seed: int = 0,
    skip: Collection[str] = (),
    half: bool = False,
    any_mask: bool = False,
    first: bool = False,
) -> Report:
    """Search for a counterexample to every law that applies to a loss.

    Args:
        loss: `loss(logp, behavior_logp, adv, mask, group_id) -> scalar`, a per-token loss, or what `adapt` made.
        kind: "cispo", "grpo", "gspo", ... (`traits.KINDS`): what it is meant to be. None: whatever it measures as.
        aggregation: what it is meant to weigh alike; of a per-token loss, the weights that the suite gives it.
        keywords: further arguments of the loss.
        cap, clip_low, clip_high, dual: bounds on the ratio, as the author means them; a dual clip is absolute too.
        examples: inputs per law.
        budget_s: seconds after which no new input is drawn; laws not reached are named in the report.
        seed: of the inputs; the same seed, examples and loss give the same report, unless time runs out.
        skip: ids of laws to leave out.
        half: log-probs may come in bfloat16 or float16.
        any_mask: the mask may come as integers or floats.
        first: end at the first violation.

    Raises:
        InputError: a loss that fits no adapter or fails on a plain batch; an unknown kind, aggregation or id; a bound
            that none can be; a budget within which nothing can be measured.
    """
    started = time.monotonic()
    meant = {"cap": cap, "clip_low": clip_low, "clip_high": clip_high, "dual": dual}
    bounds = {name: value for name, value in meant.items() if value is not None}
    skip = {skip} if isinstance(skip, str) else set(skip)
    if unknown := sorted(skip - _ALL.keys()):
        raise InputError(f"no invariant has the id {unknown[0]!r}; there are {', '.join(_ALL)}")
    if isinstance(loss, LossUnderTest):
        subject = loss
    else:
        subject = adapt(loss, aggregation=mean_of(aggregation), keywords=keywords)
    told = None if subject.aggregation is not None else aggregation
    deadline = started + budget_s if budget_s is not None else float("inf")
    try:
        traits = measure(subject, kind=kind, weights=told, deadline=deadline, **bounds)
    except Enough:
        raise InputError(f"{budget_s:g} s are too few for one law of {subject.name}") from None
    traits = replace(traits, half=half, any_mask=any_mask)
    findings: list[Finding] = []
    held: list[Invariant] = []
    left_out: dict[str, str] = {}
    for invariant in _in_order(subject):
        reason = "skipped" if invariant.id in skip else invariant.applies(traits)
        if reason is None and time.monotonic() > deadline:
            reason = NO_TIME
        if first and findings:
            reason = "not looked at after the first violation"
        if reason is not None:
            left_out[invariant.id] = reason
            continue
        search = Search(subject, traits, invariant, examples, seed, deadline)
        violation = search.run(shrink=not findings)
        if violation is not None:
            findings.append(Finding(invariant, violation))
        elif search.out_of_time:
            left_out[invariant.id] = NO_TIME
        else:
            held.append(invariant)
    seconds = time.monotonic() - started
    if not held and not findings and NO_TIME in left_out.values():
        raise InputError(f"{seconds:.1f} s were too few for one law of {subject.name}")
    named = {"kind": kind, "aggregation": aggregation, **bounds}
    asked = {name: value for name, value in named.items() if value}
    return Report(subject, traits, findings, held, left_out, asked, examples, seed, seconds)


def _in_order(loss: LossUnderTest) -> list[Invariant]:
    """The catalogue; where no gradient reaches logp at all, the law that says so first."""
    if bool(loss.evaluate(plain_case()).grad_BT.ne(0).any()):
        return CATALOGUE
    return [_ALL["A03"], *(law for law in CATALOGUE if law.id != "A03")]


class Search:
    """A search for an input on which a loss breaks one law."""

    def __init__(
        self,
        loss: LossUnderTest,
        traits: Traits,
        invariant: Invariant,
        examples: int,
        seed: int,
        deadline: float = float("inf"),
    ) -> None:
        self.loss, self.traits, self.invariant = loss, traits, invariant
        self.examples, self.seed, self.deadline = examples, seed, deadline
        self.best: Violation | None = None
        self.drawn: Any = None
        self.calls_since = 0
        self.out_of_time = False

    def run(self, *, shrink: bool) -> Violation | None:
        """The violation on the smallest input found (or the first, without `shrink`); None if there is none."""
        try:
            find(
                self.invariant.inputs(self.traits),
                self._breaks,
                settings=settings(
                    max_examples=self.examples,
                    database=None,
                    deadline=None,
                    phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
                    suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType]
                ),
                random=random.Random(f"{self.seed}:{self.invariant.id}"),
            )
        except Enough:
            self.out_of_time = True
        except (NoSuchExample, Flaky):  # flaky: a loss that is not a function of its input
            pass
        if shrink and self.best is not None:
            self._one_row()
        return self.best

    def _one_row(self) -> None:
        """Try each row of the input by itself, which takes Hypothesis many steps at once."""
        case, *rest = self.drawn if isinstance(self.drawn, tuple) else (self.drawn,)
        if not isinstance(case, Case) or any(isinstance(part, int | list) for part in rest):
            return  # what else was drawn speaks of rows
        for row in range(len(case.adv_B)):
            alone = case.rows([row])
            violation = self._violation((alone, *rest) if isinstance(self.drawn, tuple) else alone)
            if (
                violation is not None
                and self.best
                and _size(violation.case) < _size(self.best.case)
            ):
                self.best = violation

    def _breaks(self, drawn: Any) -> bool:
        self.calls_since += self.best is not None
        if time.monotonic() > self.deadline or self.calls_since > SHRINK_CALLS:
            raise Enough
        violation = self._violation(drawn)
        if violation is None:
            return False
        if self.best is None or _size(violation.case) < _size(self.best.case):
            self.best, self.drawn = violation, drawn
        return True

    def _violation(self, drawn: Any) -> Violation | None:
        try:
            return self.invariant.check(self.loss, self.traits, drawn)
        except LossRaised as error:
            case = drawn[0] if isinstance(drawn, tuple) else drawn
            if not isinstance(case, Case):
                case = Case.of([[-1.0]])
            if self.invariant.id != "D02" and calls.fails_for_its_ids(self.loss, case):
                return None
            return Violation(case, str(error), assertions=("assert loss.isfinite()",))


def _size(case: Case) -> tuple[int, int, int]:
    """Numbers, trained tokens, and digits: what makes an input hard to read."""
    digits = len(f"{case.logp_BT.tolist()}{case.log_ratio_BT.tolist()}{case.adv_B.tolist()}")
    return case.mask_BT.numel(), int(case.mask_BT.sum()), digits
