"""The fixture `check_loss`: the invariants of a policy loss as one line of anybody's tests.

    def test_my_loss(check_loss):
        check_loss(my_loss, kind="cispo", aggregation="token_mean")

Registered as a pytest plugin by the installation. Nothing heavy is imported until a test asks for the fixture.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def check_loss() -> Callable[..., Any]:
    """`scalerl.invariants.check_loss`; the test fails with the report of what is violated."""
    from scalerl.invariants import check_loss
    from scalerl.invariants.report import as_text

    def check(loss: Callable[..., Any], **options: Any) -> Any:
        __tracebackhide__ = True
        report = check_loss(loss, **options)
        if not report.ok:
            pytest.fail(as_text(report), pytrace=False)
        return report

    return check
