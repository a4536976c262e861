"""The virtual generators: engines with a queue and slots each, decoding in lockstep on the virtual clock.

All engines take one decode step together, as long as the most loaded of them needs, so that one tensor batch
serves them all. Weights that arrive during a step act from the next one on, in the middle of whatever is
being generated; the KV cache is kept, stale, or recomputed, as the recipe says.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from sandbox.decoder import Decoder
from sandbox.rows import Done
from scalerl.clock import VirtualClock
from scalerl.compute import Phase
from scalerl.hardware import Hardware
from scalerl.rollout import Completion, Group
from scalerl.task import Prompt

STEP_GAP_S = 1e-9


@dataclass
class Request:
    """A group on its way: `seated` of its n completions have been given a slot, `done` have ended."""

    id: int
    prompt: Prompt
    n: int
    seed: int
    engine: int
    seated: int = 0
    done: dict[int, Completion] = field(default_factory=dict)


class Generators:
    """`count` engines of `slots` slots, fed first come, first served; a group stays on the least loaded engine."""

    def __init__(
        self, decoder: Decoder, hardware: Hardware, count: int, slots: int, *, recompute_kv: bool
    ) -> None:
        self.decoder, self.hardware, self.count, self.slots = decoder, hardware, count, slots
        self.recompute_kv = recompute_kv
        self.clock = VirtualClock()
        self.requests: dict[int, Request] = {}
        self.queues: list[deque[int]] = [deque() for _ in range(count)]
        self.load_E = [0] * count  # completions that each engine still owes
        self.busy_since: list[float | None] = [None] * count
        self._closed_phases: list[Phase] = []
        self._begin: float | None = None  # when the next step begins, once that is known
        # end of the step under way, whose tokens are already sampled
        self._due: float | None = None
        self._ended: list[Done] = []  # what ends with it
        self._extra_s = 0.0  # recomputing caches delays the next step
        self._waiting: dict[int, asyncio.Future[Group]] = {}
        self._wake = asyncio.Event()

    async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
        """Queue a request, or take up the one of this id that a resume has brought back."""
        if request_id not in self.requests:
            engine = self.load_E.index(min(self.load_E))
            self.load_E[engine] += n
            self.requests[request_id] = Request(request_id, prompt, n, seed, engine)
            self.queues[engine].append(request_id)
        self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._wake.set()
        return await self._waiting[request_id]

    async def serve(self) -> None:
        """Step for ever; sleeps while there is nothing to do.

        A step begins a nanosecond after what makes it possible, so that everything that happens at that moment,
        requests, weights, a batch taken, a checkpoint, comes before it, whatever the order of arrival.
        """
        while True:
            if self._due is None:
                if self._begin is None:
                    while not self.requests:
                        self._wake.clear()
                        await self._wake.wait()
                    self._begin = self.clock.now() + STEP_GAP_S
                await self.clock.sleep_until(self._begin)
                self._begin = None
                self._due = self.clock.now() + self._step()
            await self.clock.sleep_until(self._due)
            self._due = None
            self._deliver()

    def set_weights(self, weights: dict[str, torch.Tensor], version: int) -> None:
        """New weights for every engine, from the next decode step on."""
        self.decoder.set_weights(weights, version)
        if self.recompute_kv:
            self.decoder.recompute()
            context_E, _ = self._load()
            self._extra_s += self.hardware.prefill_s(float(context_E.max()))

    def phases(self, now: float) -> list[Phase]:
        """Busy times since the last call; those of engines still busy are cut at `now`."""
        for engine, since in enumerate(self.busy_since):
            if since is not None and now > since:
                self._closed_phases.append(Phase("generator", engine, "generate", since, now))
                self.busy_since[engine] = now
        phases, self._closed_phases = merge_neighbours(self._closed_phases), []
        return phases

    # --- one step ---

    def _step(self) -> float:
        """Seat what fits, sample one token for every row; returns the seconds that the slowest engine needs."""
        prefill_E = self._seat()
        context_E, rows_E = self._load()
        self._mark_busy(rows_E)
        hardware = self.hardware
        seconds = max(
            hardware.decode_s(rows, context) + hardware.prefill_s(prefill)
            for rows, context, prefill in zip(
                rows_E.tolist(), context_E.tolist(), prefill_E.tolist(), strict=True
            )
        )
        seconds, self._extra_s = seconds + self._extra_s, 0.0
        self._ended = self.decoder.step()
        return seconds

    def _seat(self) -> np.ndarray:
        """Give free slots to the heads of the queues; prompt tokens to prefill by engine."""
        rows = self.decoder.rows
        free_E = self.slots - np.bincount(rows.place[: rows.count], minlength=self.count)
        prefill_E = np.zeros(self.count)
        for engine in np.flatnonzero(free_E > 0).tolist():
            queue, free = self.queues[engine], int(free_E[engine])
            while queue and free:
                request = self.requests[queue[0]]
                take = min(free, request.n - request.seated)
                indices = range(request.seated, request.seated + take)
                self.decoder.seat(request.prompt, request.id, indices, request.seed, engine)
                prefill_E[engine] += len(request.prompt.token_ids)
                request.seated += take
                free -= take
                if request.seated == request.n:
                    queue.popleft()
        return prefill_E

    def _load(self) -> tuple[np.ndarray, np.ndarray]:
        """Context tokens and rows of each engine, seated ones included."""
        rows = self.decoder.rows
        place_N = rows.place[: rows.count]
        return np.bincount(place_N, rows.context, self.count), np.bincount(
            place_N, minlength=self.count
        )

    def _mark_busy(self, rows_E: np.ndarray) -> None:
        now = self.clock.now()
        for engine, rows in enumerate(rows_E):
            since = self.busy_since[engine]
            if rows and since is None:
                self.busy_since[engine] = now
            elif not rows and since is not None:
                self._closed_phases.append(Phase("generator", engine, "generate", since, now))
                self.busy_since[engine] = None

    def _deliver(self) -> None:
        """The step is over: hand out the groups that are complete."""
        ended, self._ended = self._ended, []
        for key, index, completion in ended:
            request = self.requests[key]
            request.done[index] = completion
            self.load_E[request.engine] -= 1
            if len(request.done) == request.n:
                del self.requests[key]
                completions = [request.done[i] for i in range(request.n)]
                group = Group(key, request.prompt.id, list(request.prompt.token_ids), completions)
                if not (waiting := self._waiting.pop(key)).done():
                    waiting.set_result(group)
        if not self.requests:
            self._mark_busy(np.zeros(self.count))

    # --- checkpoints: partial tokens, stale caches and the step under way ---

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the running rows with their caches; the rest is returned, to be saved as JSON."""
        save_file(self.decoder.save(), folder / "decoder.safetensors")
        requests = [
            {**vars(r), "prompt": r.prompt.id, "done": [[i, vars(c)] for i, c in r.done.items()]}
            for r in self.requests.values()
        ]
        return {
            "requests": requests,
            "queues": [list(queue) for queue in self.queues],
            "busy_since": self.busy_since,
            "phases": [vars(phase) for phase in self._closed_phases],
            "begin": self._begin,
            "due": self._due,
            "ended": [[key, index, vars(completion)] for key, index, completion in self._ended],
            "extra_s": self._extra_s,
            "version": self.decoder.version,
        }

    def restore(self, folder: Path, data: dict[str, Any], prompts: Sequence[Prompt]) -> None:
        """Take up where `save` stood; futures attach when the loop asks for its requests again."""
        for row in data["requests"]:
            done = {i: Completion(**completion) for i, completion in row["done"]}
            request = Request(**{**row, "prompt": prompts[row["prompt"]], "done": done})
            self.requests[request.id] = request
            self.load_E[request.engine] += request.n - len(done)
        self.queues = [deque(queue) for queue in data["queues"]]
        prompts_of = {request.id: request.prompt for request in self.requests.values()}
        self.decoder.restore(load_file(folder / "decoder.safetensors"), prompts_of)
        self.busy_since, self._extra_s = data["busy_since"], data["extra_s"]
        self._begin, self._due = data["begin"], data["due"]
        self._closed_phases = [Phase(**phase) for phase in data["phases"]]
        self._ended = [Done(key, i, Completion(**c)) for key, i, c in data["ended"]]
        self.decoder.version = data["version"]


def merge_neighbours(phases: list[Phase]) -> list[Phase]:
    """One phase for neighbouring GPUs that did the same at the same time."""
    merged: list[Phase] = []
    for phase in sorted(phases, key=lambda p: (p.start, p.end, p.what, p.index)):
        last = merged[-1] if merged else None
        if (
            last
            and (last.start, last.end, last.what) == (phase.start, phase.end, phase.what)
            and last.index + last.gpus == phase.index
        ):
            merged[-1] = Phase(
                last.role, last.index, last.what, last.start, last.end, last.gpus + phase.gpus
            )
        else:
            merged.append(phase)
    return merged
