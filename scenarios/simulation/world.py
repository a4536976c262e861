"""A world without a model, on the virtual clock, to which the faults of one life happen.

It tells a `Checker` all that is asked of it. What it draws depends on seed, life and request alone.
"""

import asyncio
import errno
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.compute import Phase, Role
from scalerl.errors import GeneratorLost, NotFinite, PushFailed, WorldFailed
from scalerl.rollout import Completion, Group
from scalerl.task import Prompt
from scalerl.world import EvalResult, Handle, PushStats, UpdateStats
from scenarios.simulation.fate import Fate
from scenarios.simulation.faults import Fault
from scenarios.simulation.setting import (
    ENGINES,
    LONGEST_S,
    TOKENS,
    logp,
    passes,
    token_ids,
)

GPUS: dict[Role, int] = {"generator": ENGINES, "trainer": 2, "evaluator": 1}
STILL_S, SLOW_SCORE_S, SLOW_EVAL_S = 150.0, 60.0, 120.0  # all below the watchdog's patience
PATIENCE_S = 60.0  # how long a late group waits for a push, before its engine is given up
SAVED = "world.json"


@dataclass
class Engine:
    """One generator: the weights that it has, and since when it is busy."""

    version: int = 0
    active: int = 0
    since: float = 0.0


@dataclass
class SimulatedWorld(Fate):
    """`scalerl.world.World`."""

    version: int = 0  # optimiser steps applied
    engines: list[Engine] = field(default_factory=lambda: [Engine() for _ in range(ENGINES)])
    pins: dict[int, int] = field(default_factory=dict)  # handle -> version
    next_pin: int = 0
    closed: int = 0
    tries: Counter[int] = field(default_factory=Counter)
    cursed: dict[int, Fault] = field(default_factory=dict)  # requests that fail at every try
    late: dict[int, Group] = field(
        default_factory=dict
    )  # what engines that were given up still hold
    booked: list[Phase] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.train = [Prompt(i, (1, i + 10), (2,), 1) for i in range(self.setting.prompts)]
        self.gpus = GPUS
        self.evaluator = asyncio.Lock()

    # --- generators ---

    async def start(self) -> None:
        """Nothing has to be brought up."""

    async def serve(self) -> None:
        await self.clock.sleep(self.checker.longest_s)
        self.checker.violate("progress", f"no end after {self.checker.longest_s:g} s")

    async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
        fault = self.enter("generate") or self.cursed.get(request_id)
        self.checker.asked(request_id, prompt.id, n)
        self.kill(fault, "kill.generate")
        await self.hang(fault, "hang.generate")
        if request_id in self.late:
            return self.checker.answered(request_id, self.late.pop(request_id))
        if self.strike(fault, "stall"):
            self.still_until = self.clock.now() + STILL_S
        self.tries[request_id] += 1
        random = self.setting.random(self.life, request_id, self.tries[request_id])
        longest = (
            LONGEST_S * (1 + random.random()) / 2
        )  # not all the same, or many would end at one instant
        seconds = min(random.paretovariate(self.setting.tail), longest)
        seconds *= 10 if self.strike(fault, "slow.generate") else 1
        versions = await self._sample(self.engines[request_id % ENGINES], seconds)
        group = self._group(prompt, n, request_id, versions)
        await self._lose(fault, group)
        return self.checker.answered(request_id, self._spoil(fault, group))

    async def _sample(self, engine: Engine, seconds: float) -> list[int]:
        """The versions of the tokens that an engine samples in so many seconds."""
        versions: list[int] = []
        if not engine.active:
            engine.since = self.clock.now()
        engine.active += 1
        try:
            for _ in range(TOKENS):
                await self.sleep(seconds / TOKENS)
                versions.append(engine.version)
        finally:
            self._cut()
            engine.active -= 1
        return versions

    def _group(self, prompt: Prompt, n: int, request_id: int, versions: list[int]) -> Group:
        rows = [
            Completion(token_ids(request_id, i), logp(request_id, i), list(versions), [True] * TOKENS)
            for i in range(n)
        ]  # fmt: skip
        return Group(request_id, prompt.id, list(prompt.token_ids), rows)

    async def _lose(self, fault: Fault | None, group: Group) -> None:
        """The engine dies with the group, or is taken for dead and gives it to whoever asks next."""
        said = f"engine of group {group.request_id} died"
        if self.strike(fault, "crash.always"):
            assert fault is not None
            self._curse(group.request_id, fault)
            raise self.checker.lose(group.request_id, GeneratorLost(said))
        if self.strike(fault, "crash.once"):
            raise self.checker.lose(group.request_id, GeneratorLost(said))
        if self.strike(fault, "late"):
            before, until = self.checker.state.published, self.clock.now() + PATIENCE_S
            while self.checker.state.published == before and self.clock.now() < until:
                await self.sleep(1.0)
            self.late[group.request_id] = group
            raise self.checker.lose(group.request_id, GeneratorLost(said))

    def _curse(self, request_id: int, fault: Fault) -> None:
        """From now on every try of this request fails; another fault may strike the last of them."""
        self.cursed[request_id] = fault
        self.checker.excuse(f"GeneratorLost: engine of group {request_id}")
        self.checker.excuse(f"GroupRefused: asked for group {request_id}")

    def _spoil(self, fault: Fault | None, group: Group) -> Group:
        """The answer that comes back."""
        last = group.completions[-1]
        if self.strike(fault, "malformed.always"):
            assert fault is not None
            self._curse(group.request_id, fault)
            group.completions.pop()
        elif self.strike(fault, "malformed.missing"):
            group.completions.pop()
        elif self.strike(fault, "malformed.empty"):
            group.completions[-1] = Completion([], [], [], [])
        elif self.strike(fault, "malformed.nan"):
            last.logp[-1] = math.nan
        elif self.strike(fault, "malformed.lengths"):
            last.logp.pop()
        elif self.strike(fault, "malformed.prompt"):
            group.prompt_id = (group.prompt_id + 1) % self.setting.prompts
            group.prompt_ids = list(self.train[group.prompt_id].token_ids)
        elif self.strike(fault, "malformed.future"):
            last.version[-1] += 1000
            self.checker.excuse("StalenessViolation: ")
        elif self.strike(fault, "duplicate"):
            other = group.request_id + 1
            prompt = self.train[(group.prompt_id + 1) % self.setting.prompts]
            return self._group(prompt, len(group.completions), other, last.version)
        return group

    async def score(self, group: Group) -> Group:
        fault = self.enter("score")
        self.kill(fault, "kill.score")
        await self.hang(fault, "hang.score")
        self.die(fault, "verifier", RuntimeError(f"the verifier died\nat group {group.request_id}"))
        slow = self.strike(fault, "slow.score")
        if seconds := SLOW_SCORE_S if slow else self.setting.score_s:
            await self.sleep(seconds)
        random = self.setting.random("score", group.request_id)
        for completion in group.completions:
            completion.correct = random.random() < self.setting.pass_rate
            completion.reward = 1.0 if completion.correct else -1.0
        self.checker.landed(group)
        return group

    # --- trainer ---

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        self.checker.trained(groups)
        fault = self.enter("update")
        self.kill(fault, "kill.update")
        await self.hang(fault, "hang.update")
        start, batches = self.clock.now(), len(self.checker.history.batches)
        skipped = bool(self.setting.skip_every) and batches % self.setting.skip_every == 0
        if not skipped:
            await self.sleep(
                self.setting.train_s * (10 if self.strike(fault, "slow.update") else 1)
            )
            self.die(fault, "trainer.update", RuntimeError("rank 1 died in the update"))
            if self.strike(fault, "trainer.nan"):
                error = NotFinite("the gradient is not a number")
                if self.setting.site.supervision.not_finite == "stop":
                    self.checker.fail_with(error)
                raise error
            self._book("trainer", "update", start)
            self.version += 1
        flat = [c for group in groups for c in group.completions]
        rate = sum(c.correct for c in flat) / len(flat)
        zero_variance = sum(group.zero_variance for group in groups) / len(groups)
        return UpdateStats(skipped, 2 * rate - 1, rate, 0.0, 0.0, zero_variance, float(TOKENS))

    async def publish(self, version: int) -> PushStats:
        fault = self.enter("publish")
        self.checker.pushing(version)
        await self.hang(fault, "hang.publish")
        said = f"push of version {version}: generator 1 did not answer in phase"
        self.die(fault, "trainer.push", WorldFailed("the trainer died before the push"))
        self.die(fault, "push.before", PushFailed(f"{said} 'prepare'"))
        start = self.clock.now()
        slow = 10 if self.strike(fault, "slow.publish") else 1
        for engine in self.engines:
            await self.sleep(slow * self.setting.push_s / ENGINES)
            engine.version = version
            self.die(fault, "push.half", PushFailed(f"{said} 'receive'"))
            self.kill(fault, "kill.publish")
        self.die(fault, "push.after", PushFailed(f"{said} 'acknowledge'"))
        self._book("trainer", "push", start)
        self.checker.pushed(version)
        return PushStats(version, self.clock.now() - start)

    # --- evaluation ---

    async def snapshot(self) -> Handle:
        handle = Handle(self.next_pin, self.version)
        self.pins[handle.id], self.next_pin = self.version, self.next_pin + 1
        self.checker.pinned(handle)
        return handle

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        fault = self.enter("evaluate")
        self.checker.evaluating(handle, self.pins.get(handle.id))
        self.kill(fault, "kill.evaluate")
        await self.hang(fault, "hang.evaluate")
        async with self.evaluator:
            start = self.clock.now()
            usual = 1.0 + 6.0 * self.setting.random("evaluate", handle.id).random()
            await self.sleep(SLOW_EVAL_S if self.strike(fault, "slow.evaluate") else usual)
            self._book("evaluator", "evaluate", start)
        version = self.pins.pop(handle.id)
        self.checker.progress()
        return [EvalResult(name, version, 4, passes(version, handle.id)) for name in sets]

    # --- books, files, the end ---

    def to_text(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def notices(self) -> list[str]:
        return []

    def phases(self) -> list[Phase]:
        self._cut()
        booked, self.booked = self.booked, []
        self.checker.handed(booked)
        return booked

    def _book(self, role: Role, what: str, start: float) -> None:
        self.booked.append(Phase(role, 0, what, start, self.clock.now(), self.gpus[role]))

    def _cut(self) -> None:
        """Book what engines have done until now."""
        now = self.clock.now()
        for index, engine in enumerate(self.engines):
            if engine.active and now > engine.since:
                self.booked.append(Phase("generator", index, "generate", engine.since, now))
                engine.since = now

    def save(self, folder: Path) -> None:
        fault = self.enter("save")
        self._cut()
        saved = {
            "mark": self.checker.saved(),
            "version": self.version,
            "published": self.engines[0].version,
            "pins": list(self.pins.items()),
            "next_pin": self.next_pin,
            "booked": [vars(phase) for phase in self.booked],
        }
        text = json.dumps(saved)
        (folder / SAVED).write_text(text[: len(text) // 2])
        self.kill(fault, "kill.save")
        self.die(fault, "disk.save", OSError(errno.ENOSPC, "No space left on device"))
        (folder / SAVED).write_text(text)

    def load(self, folder: Path) -> None:
        saved = json.loads((folder / SAVED).read_text())
        self.version, self.next_pin = saved["version"], saved["next_pin"]
        self.engines = [Engine(saved["published"]) for _ in range(ENGINES)]
        self.pins = dict(saved["pins"])
        self.booked = [Phase(**phase) for phase in saved["booked"]]

    async def close(self) -> None:
        self.closed += 1
