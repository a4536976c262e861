"""`make bench-backend`: what a push costs generation, what the loop costs the engines, what chunks cost log-probs.

All figures are ratios of two things measured in one run; bars are asserted.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.events import EventLog, read_events
from scalerl.loop import Loop
from scalerl.state import LoopState
from scenarios.scenario import plan
from scenarios.worlds import open_world

UPDATES = 24
SETTINGS = [
    f"site.updates={UPDATES}",
    "site.evaluation.every_updates=12",
    "site.sequences_per_generator=128",  # full steps, as an engine on a cluster takes them
]
PAUSE_STEPS, PAUSE_SHARE, THROUGHPUT = 2.0, 0.03, 0.9  # the bars
MEMORY, SLOWER = 0.2, 1.7


def engines() -> dict[str, Any]:
    """A run on cpu-cluster, watched; then the same requests on the same engines without trainers."""
    with tempfile.TemporaryDirectory() as name:
        return asyncio.run(_engines(Path(name)))


async def _engines(folder: Path) -> dict[str, Any]:
    recipe = plan("tiny", SETTINGS, site="cpu-cluster")[0].recipe
    world: Any = open_world(recipe, folder=folder, tell=print)
    close, world.close = world.close, _nothing
    requests: dict[int, list[Any]] = defaultdict(list)  # by the version that was out: a burst each
    generate = world.fleet.generate

    async def noted(prompt: Any, limits: Any) -> Any:
        requests[world.version].append((prompt, limits))
        return await generate(prompt, limits)

    start = world.start

    async def watched() -> None:
        await start()
        remotes.extend(member.remote for member in world.fleet.members.values())
        for remote in remotes:
            await remote.call("call", "weights_watch")
        before.extend([await remote.call("stats") for remote in remotes])
        world.fleet.generate = noted

    remotes: list[Any] = []
    before: list[dict[str, Any]] = []
    world.start = watched
    state = LoopState(curriculum_of(recipe, len(world.train)), Ledger(world.gpus))
    log = EventLog(folder / "events.jsonl")
    try:
        loop = Loop(recipe, world, state, log)
        await loop.run()
        after = [await remote.call("stats") for remote in remotes]
        steps = [await remote.call("call", "weights_steps") for remote in remotes]
        wall_s = world.clock.now()
        inside = _tokens_per_cpu_s(before, after)
        world.fleet.generate = generate
        alone = await _alone(world, remotes, requests)
    finally:
        log.close()
        await close()
    gaps_s = [np.diff(times) for times in steps]
    step_s = float(np.median(np.concatenate(gaps_s)))
    # from the wish to pause until generation goes on: the step under way is in it, so it is an upper bound
    pauses = [
        p for a, b in zip(after, before, strict=True) for p in a["pauses_s"][len(b["pauses_s"]) :]
    ]
    updates = [e for e in read_events(folder / "events.jsonl") if e["kind"] == "update"]
    return {
        "wall_s": wall_s,
        "update_s": median(np.diff([e["clock"] for e in updates])),
        "step_ms": 1e3 * step_s,
        "pause_ms": 1e3 * median(pauses),
        "pause_ms_worst": 1e3 * max(pauses),
        "pause_steps": median(pauses) / step_s,
        "pause_share": sum(pauses) / (len(remotes) * wall_s),
        "tokens_per_cpu_s_in_the_loop": inside,
        "tokens_per_cpu_s_alone": alone,
        "throughput": inside / alone,
    }


async def _nothing() -> None:
    pass


async def _alone(world: Any, remotes: list[Any], requests: dict[int, list[Any]]) -> float:
    """Tokens per CPU-second of the same engines, burst after burst, with nothing beside them."""
    before = [await remote.call("stats") for remote in remotes]
    for burst in requests.values():
        await asyncio.gather(*(world.fleet.generate(*request) for request in burst))
    return _tokens_per_cpu_s(before, [await remote.call("stats") for remote in remotes])


def _tokens_per_cpu_s(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> float:
    """Of all engines together, their probes and pushes included."""
    spent = [
        (a["tokens"] - b["tokens"], a["cpu_s"] - b["cpu_s"])
        for a, b in zip(after, before, strict=True)
    ]
    return sum(tokens for tokens, _ in spent) / sum(seconds for _, seconds in spent)


# --- log-probs at a vocabulary of 128k: a process for each way, as its peak memory is what is asked for ---

N, D, V, CHUNK = 2048, 256, 128_000, 128


def logprobs(how: str) -> None:
    """One forward and backward pass; prints seconds and peak bytes above what the inputs take."""
    import resource

    from scalerl.logprobs import sampled_logprobs

    torch.manual_seed(0)
    torch.set_num_threads(1)
    hidden_ND = torch.randn(N, D, requires_grad=True)
    head_VD = torch.nn.Parameter(torch.randn(V, D) * D**-0.5)
    token_N = torch.randint(0, V, (N,))
    head_VD.grad = torch.zeros_like(head_VD)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if how == "chunks":
        logp_N, _ = sampled_logprobs(
            hidden_ND, head_VD, token_N, head_dtype=torch.float32, chunk_tokens=CHUNK
        )
    else:
        logp_NV = torch.log_softmax(hidden_ND @ head_VD.T, dim=-1)
        logp_N = logp_NV.gather(1, token_N[:, None])[:, 0]
        with torch.no_grad():
            torch.special.entr(logp_NV.exp()).sum(-1)
    logp_N.sum().backward()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": seconds, "mib": (peak - base) / 1024}))


def chunks() -> dict[str, float]:
    """Chunked log-probs against the whole [N, V], each the best of three processes."""
    found: dict[str, dict[str, float]] = {}
    for how in ("chunks", "whole"):
        runs = [
            json.loads(subprocess.check_output([sys.executable, __file__, how])) for _ in range(3)
        ]
        found[how] = {key: min(run[key] for run in runs) for key in ("seconds", "mib")}
    return {
        "chunks_mib": found["chunks"]["mib"],
        "whole_mib": found["whole"]["mib"],
        "memory": found["chunks"]["mib"] / found["whole"]["mib"],
        "slower": found["chunks"]["seconds"] / found["whole"]["seconds"],
    }


def main() -> None:
    found = chunks() | engines()
    for name, value in found.items():
        print(f"{name:<32}{value:10.3f}")
    bars = {
        f"pause of at most {PAUSE_STEPS:g} steps": found["pause_steps"] <= PAUSE_STEPS,
        f"pauses of at most {PAUSE_SHARE:.0%} of the time": found["pause_share"] <= PAUSE_SHARE,
        f"throughput of at least {THROUGHPUT:g}": found["throughput"] >= THROUGHPUT,
        f"memory of at most {MEMORY:g}": found["memory"] <= MEMORY,
        f"at most {SLOWER:g} times as slow": found["slower"] <= SLOWER,
    }
    for bar, met in bars.items():
        print(f"{'met' if met else 'MISSED':<8}{bar}")
    sys.exit(not all(bars.values()))


if __name__ == "__main__":
    if sys.argv[1:]:
        logprobs(sys.argv[1])
    else:
        main()
