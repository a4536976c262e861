"""Laws that policy losses obey, as property tests for our losses and for anybody's.

    from scalerl.invariants import check_loss, strategies

    report = check_loss(my_loss, kind="cispo", aggregation="token_mean")
    report.assert_ok()

`strategies` draws the batches, `CATALOGUE` lists the laws (see `docs/invariants.md`), `adapt` takes a function in.
Needs Hypothesis (the extra `check`).
"""

from importlib.util import find_spec

from scalerl.errors import InputError

if find_spec("hypothesis") is None:
    raise InputError("the invariants need Hypothesis: pip install -e '.[check]' in the checkout")

from scalerl.invariants import strategies
from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Invariant, Violation
from scalerl.invariants.check import CATALOGUE, Finding, Report, check_loss
from scalerl.invariants.subject import LossUnderTest, adapt

__all__ = [
    "CATALOGUE",
    "Case",
    "Finding",
    "Invariant",
    "LossUnderTest",
    "Report",
    "Violation",
    "adapt",
    "check_loss",
    "strategies",
]
