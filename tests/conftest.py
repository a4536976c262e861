"""One torch thread: what a run uses, and the only number at which its bits are promised."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
