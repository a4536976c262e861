"""Event logs made by hand: a run of known numbers, whole or in parts, as the screens read it.

One update takes 90 s of the world's clock on 64 generators and 16 trainers: 2 GPU-h.
"""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scalerl.events import Event
from scalerl.recipe import Recipe
from scenarios.scenario import plan

UPDATE_S = 90.0
UPDATE_GPU_H = 2.0  # (64 + 16) * 90 / 3600


def recipe_of(updates: int = 112, *overrides: str) -> Recipe:
    """The recipe of the scenario `tiny` with so many updates."""
    (only,) = plan("tiny", [f"site.updates={updates}", *overrides])
    return only.recipe


def run_event(recipe: Recipe | None = None, **changes: Any) -> Event:
    """The head of a log: seq 0 at clock 0."""
    recipe = recipe_of() if recipe is None else recipe
    event: Event = {
        **_common("run", 0.0, 0),
        "recipe": recipe.model_dump(mode="json", exclude={"site"}),
        "site": recipe.site.model_dump(mode="json") if recipe.site else None,
        "algorithm_id": recipe.algorithm_id(),
        "seed": recipe.seed,
    }
    return event | changes


def update_event(n: int, **changes: Any) -> Event:
    """Update n, at 90 n seconds and 2 n GPU-h; 1,000 tokens were trained, half of lag 0, a half of lag 1."""
    event: Event = {
        **_common("update", UPDATE_S * n, n),
        "update": n, "version": n, "epoch": n / 12, "tokens": 2000 * n, "rejected": 0,
        "skipped": False, "reward": 0.1, "pass_rate": 0.55, "truncated": 0.0, "interrupted": 0.02,
        "zero_variance": 0.25, "length_mean_tokens": 20.0, "trained_tokens": 1000,
        "lag_tokens": [500, 500], "loss": -0.02, "entropy": 0.2, "kl": 1e-4, "ess": 0.99,
        "capped": 0.0, "grad_norm": 0.4, "wait_s": 0.0, "stall_s": 0.0, "stall_group": None,
    }  # fmt: skip
    return event | changes


def eval_event(C: float, rate: float, **changes: Any) -> Event:
    """An evaluation of the validation set with weights of C GPU-h, reported at the clock of C."""
    n = round(C / UPDATE_GPU_H)
    event: Event = {
        **_common("eval", UPDATE_S * n, n),
        "version": n, "C": C, "pass_rate": rate, "se": 0.006, "n": 320, "k": 12,
        "set": "validation",
    }  # fmt: skip
    return event | changes


def phase_event(
    role: str, what: str, start: float, end: float, *, index: int = 0, gpus: int = 1, **changes: Any
) -> Event:
    """What some GPUs did, reported as it ended."""
    event: Event = {
        **_common("phase", end, 0),
        "role": role, "index": index, "what": what, "start": start, "end": end, "gpus": gpus,
    }  # fmt: skip
    return event | changes


def sample_event(n: int, **changes: Any) -> Event:
    """A completion of four tokens, the last two by newer weights, reported with update n."""
    event: Event = {
        **_common("sample", UPDATE_S * n, n),
        "update": n, "group": 0, "prompt": "<bos> 12 4 <think>", "completion": "low: </think> =6 <eos>",
        "version": [0, 0, 1, 1], "sampled": [True, True, True, True],
        "correct": True, "reward": 1.0, "truncated": False, "interrupted": False,
    }  # fmt: skip
    return event | changes


def done_event(n: int, status: str = "done", **changes: Any) -> Event:
    """The last word of a run of n updates."""
    event = _common("done", UPDATE_S * n, n) | {"status": status, "fit": None, "gpu_hours": {}}
    return event | changes


def fault_event(n: int, cause: str = "the loss is nan", **changes: Any) -> Event:
    """The failure that ended a run after n updates."""
    return _common("fault", UPDATE_S * n, n) | {"cause": cause, "error": "BatchError"} | changes


def resume_event(from_seq: int, n: int, **changes: Any) -> Event:
    """A run taken up after update n: what has `seq` from_seq or more is void."""
    event = _common("resume", UPDATE_S * n, n) | {"from_seq": from_seq}
    del event["seq"]
    return event | changes


def whole_run(
    updates: int = 112,
    *,
    A: float = 0.9,
    B: float = 2.4,
    C_mid: float = 50.0,
    R0: float = 0.2,
    every: int = 4,
    noise: float = 0.005,
    seed: int = 0,
    planned: int | None = None,
    recipe: Recipe | None = None,
    status: str | None = "done",
    **changes: Any,
) -> list[Event]:
    """A run whose pass rate follows the sigmoid, with Gaussian noise; every call gives the same events.

    planned: updates that its recipe asks for, as many by default. status: None for a run without an
    end. changes: of every update.
    """
    drawn = random.Random(seed)
    recipe = recipe_of(planned or updates) if recipe is None else recipe
    events = [run_event(recipe)]
    for n in range(updates + 1):
        C = UPDATE_GPU_H * n
        if n:
            events += [update_event(n, **changes), *_phases(n)]
        if n % every == 0:
            rise = 0.0 if n == 0 else 1.0 / (1.0 + (C_mid / C) ** B)
            rate = R0 + (A - R0) * rise + drawn.gauss(0.0, noise)
            events.append(eval_event(C, min(max(rate, 0.0), 1.0)))
            events += [sample_event(n)] if n else []
    if status is not None:
        events.append(done_event(updates, status))
    return numbered(events)


def numbered(events: Iterable[Event]) -> list[Event]:
    """The events with `seq` 0, 1, 2, ..."""
    return [{**event, "seq": seq} for seq, event in enumerate(events)]


def write_log(path: Path, events: Sequence[Event], tail: str = "") -> Path:
    """Write a log, `tail` as it stands after its last line; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + tail)
    return path


def _common(kind: str, clock: float, n: int) -> Event:
    """Fields of every event; a wall second is half an update."""
    gpu_h = UPDATE_GPU_H * clock / UPDATE_S
    return {"v": 1, "seq": n, "t": 0.5 * n, "clock": clock, "gpu_h": gpu_h, "kind": kind}


def _phases(n: int) -> list[Event]:
    """Generators busy all the time; trainers 60 s of 90, with a push of 3 s at the end."""
    start, end = UPDATE_S * (n - 1), UPDATE_S * n
    phases = [
        phase_event("generator", "generate", start, end, gpus=64),
        phase_event("trainer", "update", start + 30.0, end - 3.0, gpus=16),
        phase_event("trainer", "push", end - 3.0, end, gpus=16),
    ]
    common = _common("phase", end, n)
    return [{**phase, **common} for phase in phases]
