"""Steps of a smoke test, the figures that they find, and how time and memory are measured on either device."""

import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Sizes:
    """Of the steps: an 8B model's head on a GPU; a rehearsal has a sixteenth of each of its axes."""

    D: int = 4096
    V: int = 151_936
    N: int = 8192
    N_long: int = 32_768
    chunk: int = 512
    prompts: int = 64
    updates: int = 8
    decoded: int = 192  # prompts, 16 completions each


REHEARSAL = Sizes(256, 9496, 512, 2048, 32, prompts=16, updates=2, decoded=16)


@dataclass(frozen=True)
class Found:
    """A measured figure and the most that it may be; without a bar it is only told."""

    what: str
    value: float
    bar: float | None = None

    @property
    def holds(self) -> bool:
        return self.bar is None or self.value <= self.bar

    def __str__(self) -> str:
        asked = "" if self.bar is None else f" (at most {self.bar:.2g})"
        return f"{self.what}: {self.value:.2g}{asked}"


class NotRun(Exception):
    """A step that this machine cannot take, and why."""


Step = Callable[[str, Sizes], Iterator[Found]]


def take(name: str, step: Step, device: str, sizes: Sizes) -> bool:
    """Take one step, a line for each figure; whether all that was measured holds."""
    holds = True
    try:
        for found in step(device, sizes):
            mark = "FAILED" if not found.holds else "ok" if found.bar is not None else "told"
            print(f"{mark:<9}{name:<11}{found}", flush=True)
            holds &= found.holds
    except NotRun as reason:
        print(f"{'not run':<9}{name:<11}{reason}", flush=True)
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        print(f"{'FAILED':<9}{name:<11}{type(error).__name__}: {said}", flush=True)
        holds = False
    return holds


def take_all(steps: dict[str, Step], device: str, sizes: Sizes) -> int:
    """Take every step, whatever became of those before; the exit status."""
    began = time.perf_counter()
    failed = [name for name, step in steps.items() if not take(name, step, device, sizes)]
    end = f"{', '.join(failed)} failed" if failed else "nothing failed"
    on = (
        "on the CPU, as a rehearsal: nothing is claimed of GPUs"
        if device == "cpu"
        else "on the GPU"
    )
    print(f"{end}, {on} ({time.perf_counter() - began:.0f} s)")
    return 1 if failed else 0


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest difference over the largest value of all; NaN and a missing name are infinitely far."""
    if found.keys() != expected.keys():
        return math.inf
    largest = max(value.abs().max().item() for value in expected.values())
    worst = [(found[name] - value).abs().max().item() for name, value in expected.items()]
    return max(worst) / largest if all(map(math.isfinite, worst)) else math.inf


def apart_one(found: Tensor, expected: Tensor) -> float:
    return apart({"": found}, {"": expected})


def timed(device: str, run: Callable[[], Any]) -> float:
    """Seconds of the second time."""
    run()
    wait(device)
    began = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - began


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(device: str, run: Callable[[], Any]) -> int:
    """Most memory above what is held already; on the CPU that of tensors, without the kernels' own."""
    if device == "cpu":
        with Live() as live:
            run()
        return live.peak
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


class Live(TorchDispatchMode):
    """Bytes of the tensors that came up since it began and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for part in _storages((args, kwargs)):
            self._meet(part, 0)  # what was there before
        out = func(*args, **(kwargs or {}))
        for part in _storages(out):
            self._meet(part, part.nbytes())
        return out

    def _meet(self, storage: torch.UntypedStorage, count: int) -> None:
        if storage._cdata not in self.known:
            self.known.add(storage._cdata)
            self.now += count
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, storage._cdata, count)

    def _gone(self, place: int, count: int) -> None:
        self.known.discard(place)
        self.now -= count


def _storages(parts: Any) -> list[torch.UntypedStorage]:
    return [part.untyped_storage() for part in tree_leaves(parts) if isinstance(part, Tensor)]
