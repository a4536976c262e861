"""One torch thread: what a run uses, and the only number at which its bits are promised."""

import pytest
import torch

from scalerl.update import DTYPES


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The LM head in float64, so that gradients can be compared to twelve digits."""
    monkeypatch.setitem(DTYPES, "float32", torch.float64)
