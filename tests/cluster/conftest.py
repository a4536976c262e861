"""vLLM and Ray on CPUs: their settings before either is imported, their warnings, and engines that tests share."""

import os

import pytest
from one_process import Fed

from backend.engine import CPU_ENVIRONMENT, ENVIRONMENT

os.environ.update(ENVIRONMENT | CPU_ENVIRONMENT)

THEIRS = ("vllm", "ray", "torch", "transformers")


def pytest_configure(config: pytest.Config) -> None:
    """An error of ours that warns stays one; what these warn of is theirs."""
    for name in THEIRS:
        config.addinivalue_line("filterwarnings", rf"ignore:::{name}(\..*)?$")


@pytest.fixture(scope="session")
def float32() -> Fed:
    """An engine in float32; prompts may be longer than a block of the KV cache, which is 32 tokens."""
    return Fed("site.dtype=float32", "site.prompt_tokens=80")


@pytest.fixture(scope="session")
def bfloat16() -> Fed:
    """An engine as the site has it: in bfloat16, with an LM head in float32."""
    return Fed()


@pytest.fixture(scope="session")
def bfloat16_head() -> Fed:
    """The same with its head in bfloat16, as one may ask for to study the difference."""
    return Fed("generator_head_dtype=bfloat16")
