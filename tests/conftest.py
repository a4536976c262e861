"""One torch thread: what a run uses, and the only number at which its bits are promised."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import Phase, settings

from scalerl.update import DTYPES

# The same examples on every machine; `make invariants` runs ten times as many, and a mutant's
# counterexample need not be small.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=40)
settings.register_profile("thorough", settings.get_profile("fixed"), max_examples=400)
settings.register_profile(
    "mutants", settings.get_profile("fixed"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def exact_throughout() -> Iterator[None]:
    """As `exact`, for a module of Hypothesis tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DTYPES, "float32", torch.float64)
        yield


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """The LM head in float64, so that gradients can be compared to twelve digits."""
    monkeypatch.setitem(DTYPES, "float32", torch.float64)
