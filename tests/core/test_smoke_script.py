"""`tests/gpu/smoke.sh` where there is no GPU: it claims nothing; and how its steps are taken and told."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

GPU = Path(__file__).parents[1] / "gpu"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(GPU)
    return import_module("measuring")


def smoke(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script with every GPU hidden."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    kept = {k: v for k, v in os.environ.items() if k != "SCALERL_SMOKE_DEVICE"}
    return subprocess.run(
        ["bash", str(GPU / "smoke.sh"), *arguments],
        env=kept | hidden | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--strict",), 77)])
def test_without_a_gpu_it_is_skipped_and_says_why(arguments: tuple[str, ...], status: int) -> None:
    done = smoke(*arguments)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout == "skipped: torch finds no CUDA device, so nothing was checked\n"


def test_a_rehearsal_takes_every_step_and_claims_nothing_of_gpus() -> None:
    lines = smoke(SCALERL_SMOKE_DEVICE="cpu").stdout.splitlines()
    assert lines[0].endswith(" on the CPU, as a rehearsal")
    assert "on the CPU, as a rehearsal: nothing is claimed of GPUs" in lines[-1]
    steps = {line[9:20].strip() for line in lines[1:-1]}
    assert steps == {"update", "logprobs", "memory", "precision", "sandbox", "parity", "fsdp2"}
    slow = [line for line in lines[1:-1] if line.startswith("FAILED") and " s against " not in line]
    assert slow == [], "all but a comparison of times, which a busy machine may spoil"


def test_every_step_is_taken_whatever_failed_before(
    measuring: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def misses(device: str, sizes: Any) -> Iterator[Any]:
        yield measuring.Found("far", 0.25, 0.125)
        yield measuring.Found("near", 0.0625, 0.125)

    def breaks(device: str, sizes: Any) -> Iterator[Any]:
        yield measuring.Found("speed", 3.0)
        raise ValueError("no such kernel\nand more")

    def cannot(device: str, sizes: Any) -> Iterator[Any]:
        raise measuring.NotRun("a thing is missing")
        yield

    steps = {"one": misses, "two": breaks, "three": cannot}
    assert measuring.take_all(steps, "cuda", measuring.REHEARSAL) == 1
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert told == [
        "FAILED one far: 0.25 (at most 0.12)",
        "ok one near: 0.062 (at most 0.12)",
        "told two speed: 3",
        "FAILED two ValueError: no such kernel",
        "not run three a thing is missing",
        "one, two failed, on the GPU (0 s)",
    ]
    assert measuring.take_all({"three": cannot}, "cuda", measuring.REHEARSAL) == 0


def test_what_is_not_a_number_or_missing_is_far(measuring: Any) -> None:
    one, nan = {"a": torch.tensor([4.0, 1.0])}, {"a": torch.tensor([4.0, torch.nan])}
    assert measuring.apart({"a": torch.tensor([4.0, 2.0])}, one) == 0.25  # 1 of 4
    assert measuring.apart(nan, one) == measuring.apart({}, one) == torch.inf
    assert not measuring.Found("", torch.nan, 1.0).holds


def test_the_peak_is_of_what_was_alive_at_once(measuring: Any) -> None:
    held = torch.zeros(1000)

    def run() -> None:
        for _ in range(3):
            one = held + 1  # 4,000 bytes; its view has none of its own
            two = one.view(10, 100) * 2  # 4,000 more
            del one
            two.add_(1)
            del two

    assert measuring.peak_bytes("cpu", run) == 8000
