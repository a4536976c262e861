"""What an invariant is, and what its violation says."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from scalerl.invariants.case import Case
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits


@dataclass(frozen=True)
class Twin:
    """Another call, with which the one that is blamed must agree.

    case: its input.
    gradient: what the blamed call's gradient must be: Python, of `other_grad`.
    value: likewise of `other_value`; None: nothing is said of the value.
    """

    case: Case
    gradient: str = "other_grad"
    value: str | None = None


@dataclass(frozen=True)
class Violation:
    """One call of the loss that gave what it must not give.

    case, rows: its input (`rows`: those of the case that were passed, the case normalises).
    expected_BT, actual_BT: gradients dL/dlogp; None where the gradient is not what is wrong.
    expected, actual: values, likewise.
    because: where the expectation comes from, or what happened instead, in one sentence.
    fix: what to change, where that is plain from the failure.
    twin: the other side of a law that compares two calls; either of the two may be the wrong one.
    assertions: Python that fails on it, after the call, in place of a comparison with the expected numbers; `{call}` is
        another call.
    """

    case: Case
    because: str
    expected_BT: Tensor | None = None
    actual_BT: Tensor | None = None
    expected: float | None = None
    actual: float | None = None
    rows: Tensor | None = None
    fix: str = ""
    twin: Twin | None = None
    assertions: tuple[str, ...] = ()


Check = Callable[[LossUnderTest, Traits, Any], Violation | None]


@dataclass(frozen=True)
class Invariant:
    """A law that policy losses obey.

    id, name: its row in `docs/invariants.md`.
    statement, formula: the law, in a sentence and in symbols.
    inputs: what is drawn for one check, a case or a tuple that begins with one; may depend on the traits.
    check: None, or how the loss broke it on that input.
    means: what a violation usually means.
    applies: None, or why the law does not hold for this kind of loss.
    """

    id: str
    name: str
    statement: str
    formula: str
    inputs: Callable[[Traits], SearchStrategy[Any]]
    check: Check
    means: str
    applies: Callable[[Traits], str | None] = field(default=lambda traits: None)
    fault: str = ""  # who shipped it


def compare(
    loss: LossUnderTest,
    traits: Traits,
    case: Case,
    expected_BT: Tensor,
    because: str,
    *,
    expected: float | None = None,
    exact: bool = False,
    rows: Tensor | None = None,
    rtol: float | None = None,
    atol: float = 0.0,
    fix: str | Callable[[Tensor, float], str] = "",
    twin: Twin | None = None,
) -> Violation | None:
    """Evaluate, and hold the gradient (and the value, if given) against what is expected."""
    found = loss.evaluate(case, rows)

    def same(actual: Tensor, wanted: Tensor) -> bool:
        if exact:
            return torch.equal(actual, wanted)
        return torch.allclose(
            actual, wanted, rtol=rtol or traits.rtol, atol=atol or 1e-6 * traits.rtol
        )

    same_value = expected is None or same(torch.tensor(found.value), torch.tensor(expected))
    if same_value and same(found.grad_BT, expected_BT):
        return None
    return Violation(
        case,
        because,
        expected_BT,
        found.grad_BT,
        None if same_value else expected,
        None if same_value else found.value,
        rows,
        fix if isinstance(fix, str) else fix(found.grad_BT, found.value),
        twin,
    )


# ---- why a law does not apply ----


def needs_shape(*shapes: str) -> Callable[[Traits], str | None]:
    """It is about losses of these shapes."""

    def reason(traits: Traits) -> str | None:
        return None if traits.shape in shapes else f"for {' and '.join(shapes)} losses"

    return reason


def needs(what: str, holds: Callable[[Traits], bool]) -> Callable[[Traits], str | None]:
    """It is about losses of which `holds` is true; `what` says it in words."""
    return lambda traits: None if holds(traits) else what


def both(*reasons: Callable[[Traits], str | None]) -> Callable[[Traits], str | None]:
    """Applies if all of them do."""
    return lambda traits: next((said for reason in reasons if (said := reason(traits))), None)
