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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.events import Event, EventLog, read_events
from scalerl.loop import Control, Loop
from scalerl.state import LoopState
from scenarios.scenario import plan
from scenarios.worlds import open_world

UPDATES, BLOCK = 24, 6
SETTINGS = [
    f"site.updates={UPDATES}",
    "site.evaluation.every_updates=12",
    "site.sequences_per_generator=128",  # full steps, as an engine on a cluster takes them
]
PAUSE_STEPS, PAUSE_SHARE, THROUGHPUT = 2.0, 0.03, 0.9  # the bars
MEMORY, SLOWER = 0.2, 1.7


def engines() -> dict[str, Any]:
    """A run on cpu-cluster in blocks of updates; after each, its requests again on the same engines, without trainers.

    Turn about, so that a machine that grows faster or slower meanwhile does so for both.
    """
    with tempfile.TemporaryDirectory() as name:
        return asyncio.run(_engines(Path(name)))


async def _engines(folder: Path) -> dict[str, Any]:
    recipe = plan("tiny", SETTINGS, site="cpu-cluster")[0].recipe
    world: Any = open_world(recipe, folder=folder, tell=print)
    close, world.close = world.close, _nothing
    await world.start()
    world.start = _nothing
    state = LoopState(curriculum_of(recipe, len(world.train)), Ledger(world.gpus))
    control = Control()

    def stop(event: Event) -> None:
        control.stop |= event["kind"] == "update" and event["update"] % BLOCK == 0

    log = EventLog(folder / "events.jsonl", stop)
    watched = Watched(world)
    try:
        await watched.begin()
        while state.updates < UPDATES:
            control.stop = False
            async with watched.loop():
                await Loop(recipe, world, state, log, control=control).run()
            await watched.again()
    finally:
        log.close()
        await close()
    updates = [e for e in read_events(folder / "events.jsonl") if e["kind"] == "update"]
    update_s = median(np.diff([e["clock"] for e in updates]))
    return {"update_s": update_s} | watched.figures()


class Watched:
    """The engines of a world, in the loop and alone."""

    def __init__(self, world: Any) -> None:
        self.world, self.wall_s = world, 0.0
        self.remotes = [member.remote for member in world.fleet.members.values()]
        self.pauses_s: list[float] = []
        self.steps_s: list[float] = []  # from one step of an engine to its next, in the loop
        self.spent = {"loop": np.zeros(2), "alone": np.zeros(2)}  # tokens and CPU-seconds
        self._generate = world.fleet.generate
        self._seen = [0] * len(self.remotes)

    async def begin(self) -> None:
        for remote in self.remotes:
            await remote.call("call", "weights_watch")

    @asynccontextmanager
    async def loop(self) -> AsyncIterator[None]:
        """The body runs the loop; its requests are noted."""
        self._requests: dict[int, list[Any]] = defaultdict(list)  # by version: a burst each
        self._running: list[asyncio.Future[Any]] = []

        async def noted(prompt: Any, limits: Any) -> Any:
            self._requests[self.world.version].append((prompt, limits))
            running = asyncio.ensure_future(self._generate(prompt, limits))
            self._running.append(running)
            return await asyncio.shield(running)

        self.world.fleet.generate = noted
        await self._steps()
        before, began_s = await self._stats(), self.world.clock.now()
        yield
        after = await self._stats()
        self.wall_s += self.world.clock.now() - began_s
        self._add("loop", before, after)
        # from the wish to pause until generation goes on: the step under way is in it, so it is an upper bound
        for a, b in zip(after, before, strict=True):
            self.pauses_s += a["pauses_s"][len(b["pauses_s"]) :]
        for times in await self._steps():
            self.steps_s += np.diff(times).tolist()
        await asyncio.gather(*self._running)  # what the end of the loop left behind

    async def again(self) -> None:
        """The same requests, burst after burst, with nothing beside them."""
        before = await self._stats()
        for burst in self._requests.values():
            await asyncio.gather(*(self._generate(*request) for request in burst))
        self._add("alone", before, await self._stats())

    async def _stats(self) -> list[dict[str, Any]]:
        return [await remote.call("stats") for remote in self.remotes]

    async def _steps(self) -> list[list[float]]:
        """When each engine's steps since the last call began."""
        steps = [await remote.call("call", "weights_steps") for remote in self.remotes]
        new = [times[seen:] for times, seen in zip(steps, self._seen, strict=True)]
        self._seen = [len(times) for times in steps]
        return new

    def _add(self, where: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
        """Of all engines together, their probes and pushes included."""
        for a, b in zip(after, before, strict=True):
            self.spent[where] += (a["tokens"] - b["tokens"], a["cpu_s"] - b["cpu_s"])

    def figures(self) -> dict[str, Any]:
        step_s = median(self.steps_s)
        rate = {where: float(tokens / cpu_s) for where, (tokens, cpu_s) in self.spent.items()}
        return {
            "wall_s": self.wall_s,
            "step_ms": 1e3 * step_s,
            "pause_ms": 1e3 * median(self.pauses_s),
            "pause_ms_worst": 1e3 * max(self.pauses_s),
            "pause_steps": median(self.pauses_s) / step_s,
            "pause_share": sum(self.pauses_s) / (len(self.remotes) * self.wall_s),
            "tokens_per_cpu_s_in_the_loop": rate["loop"],
            "tokens_per_cpu_s_alone": rate["alone"],
            "throughput": rate["loop"] / rate["alone"],
        }


async def _nothing() -> None:
    pass


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
