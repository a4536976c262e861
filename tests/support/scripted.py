"""A world without a model: scripted lengths, rewards and failures on the virtual clock, to test the loop above it."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from scalerl.clock import VirtualClock, run_virtual
from scalerl.compute import Ledger, Phase, Role
from scalerl.curriculum import curriculum_of
from scalerl.errors import GeneratorLost, PushFailed
from scalerl.events import Event, EventLog
from scalerl.loop import Control, Loop
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.site import Evaluation, Optimizer, Sandbox
from scalerl.state import LoopState
from scalerl.task import Prompt
from scalerl.world import EvalResult, Handle, PushStats, UpdateStats

TOKENS = 3


@dataclass
class Script:
    """What happens in the scripted world; every draw is from (seed, request id), whatever the order of calls."""

    seed: int = 0
    tail: float = 1.5  # exponent of the Pareto law of generation times; small = heavy
    straggler: int | None = None  # this ordinal takes a hundred times as long
    lost: float = 0.0  # probability that a try of a group loses its engine
    pass_rate: float = 0.5
    skip_every: int = 0  # every n-th update finds nothing to train on
    train_s: float = 1.0
    push_s: float = 0.2
    fail_push_at: int | None = None
    fail_update_at: int | None = None
    fail_score_of: int | None = None


@dataclass
class ScriptedWorld:
    """`scalerl.world.World`, with a record of all that was asked of it."""

    recipe: Recipe
    script: Script
    prompts: int = 40
    clock: VirtualClock = field(default_factory=VirtualClock)
    version: int = 0  # optimiser steps applied
    published: int = 0
    trained: list[list[int]] = field(default_factory=list)  # ordinals of each batch
    lags: list[list[int]] = field(default_factory=list)  # lag of every token of each batch
    tries: dict[int, int] = field(default_factory=dict)
    evaluated: list[int] = field(default_factory=list)
    pushed: list[int] = field(default_factory=list)
    closed: bool = False
    booked: list[Phase] = field(default_factory=list)
    generating: int = 0
    idle_while_training: list[int] = field(default_factory=list)

    @property
    def gpus(self) -> dict[Role, int]:
        return {"generator": 4, "trainer": 2, "evaluator": 1}

    @property
    def train(self) -> list[Prompt]:
        return [Prompt(i, (1, i + 10), (2,), 1) for i in range(self.prompts)]

    def random(self, *key: object) -> Random:
        return Random(":".join(map(str, (self.script.seed, *key))))

    async def start(self) -> None:
        pass

    def notices(self) -> list[str]:
        return []

    async def serve(self) -> None:
        await asyncio.Event().wait()

    async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
        attempt = self.tries[request_id] = self.tries.get(request_id, 0) + 1
        random = self.random("generate", request_id, attempt)
        seconds = random.paretovariate(self.script.tail) * (
            100 if request_id == self.script.straggler else 1
        )
        self.generating += 1
        try:
            versions: list[int] = []
            for _ in range(TOKENS):
                await self.clock.sleep(seconds / TOKENS)
                versions.append(self.published)
                if random.random() < self.script.lost / TOKENS:
                    raise GeneratorLost(f"engine of group {request_id} died")
        finally:
            self.generating -= 1
        completions = [
            Completion([5] * TOKENS, [-1.0] * TOKENS, list(versions), [True] * TOKENS)
            for _ in range(n)
        ]
        return Group(request_id, prompt.id, list(prompt.token_ids), completions)

    async def score(self, group: Group) -> Group:
        if group.request_id == self.script.fail_score_of:
            raise RuntimeError("the verifier died")
        random = self.random("score", group.request_id)
        for completion in group.completions:
            completion.correct = random.random() < self.script.pass_rate
            completion.reward = 1.0 if completion.correct else -1.0
        return group

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        place = len(self.trained) + 1
        if place == self.script.fail_update_at:
            raise RuntimeError("the trainer died\nwith a long tale")
        self.trained.append([group.request_id for group in groups])
        self.lags.append(
            [self.version - v for g in groups for c in g.completions for v in c.version]
        )
        self.idle_while_training.append(self.generating)
        skipped = bool(self.script.skip_every) and place % self.script.skip_every == 0
        if not skipped:
            await self._book("trainer", "update", self.script.train_s)
            self.version += 1
        flat = [c for g in groups for c in g.completions]
        mean_correct = sum(c.correct for c in flat) / len(flat)
        return UpdateStats(
            skipped, 2 * mean_correct - 1, mean_correct, 0.0, 0.0, 0.0, float(TOKENS)
        )

    async def publish(self, version: int) -> PushStats:
        assert version == self.version
        if version == self.script.fail_push_at:
            raise PushFailed(
                f"push of version {version}: generator 3 did not answer in phase 'receive'"
            )
        await self._book("trainer", "push", self.script.push_s)
        self.published = version
        self.pushed.append(version)
        return PushStats(version, self.script.push_s)

    async def snapshot(self) -> Handle:
        return Handle(len(self.evaluated) + 1000 * self.version, self.version)

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        await self.clock.sleep(7.0)  # longer than several updates
        self.evaluated.append(handle.version)
        return [EvalResult(name, handle.version, 4, [2, 3, handle.version % 5]) for name in sets]

    async def _book(self, role: Role, what: str, seconds: float) -> None:
        start = self.clock.now()
        await self.clock.sleep(seconds)
        self.booked.append(Phase(role, 0, what, start, self.clock.now(), self.gpus[role]))

    def to_text(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def phases(self) -> list[Phase]:
        booked, self.booked = self.booked, []
        return booked

    def save(self, folder: Path) -> None:
        (folder / "scripted.json").write_text(
            json.dumps({"version": self.version, "published": self.published})
        )

    def load(self, folder: Path) -> None:
        saved = json.loads((folder / "scripted.json").read_text())
        self.version, self.published = saved["version"], saved["published"]

    async def close(self) -> None:
        self.closed = True


SITE = Sandbox(
    stall_s=1e15,  # a Pareto law knows no bound
    updates=20,
    thinking_tokens=8,
    answer_tokens=2,
    optimizer=Optimizer(learning_rate=1e-3),
    evaluation=Evaluation(every_updates=5),
)


def scripted_recipe(**changes: object) -> Recipe:
    """ScaleRL at P = 3, G = 2 on a site of twenty updates; `changes` are recipe fields, `updates` the site's."""
    site = Sandbox.model_validate(
        {**SITE.model_dump(), "updates": changes.pop("updates", SITE.updates)}
    )
    fields = {
        "prompts_per_update": 3,
        "group_size": 2,
        "curriculum": {"kind": "uniform"},
        **changes,
    }
    return Recipe.model_validate({**fields, "site": site.model_dump()})


@dataclass
class Outcome:
    """A run of the loop over the scripted world."""

    status: str
    world: ScriptedWorld
    state: LoopState
    events: list[Event]
    trained_s: float  # world seconds until training was over
    ended_at: float  # until the last evaluation was


def play(
    recipe: Recipe,
    script: Script,
    *,
    prompts: int = 40,
    control: Control | None = None,
    listen: Callable[[Event], None] = lambda event: None,
    checkpoints: Path | None = None,
    prepare: Callable[[ScriptedWorld, LoopState], None] = lambda world, state: None,
    world_class: type[ScriptedWorld] = ScriptedWorld,
) -> Outcome:
    """Run to the end on a virtual clock; `prepare` may load a checkpoint first."""
    world = world_class(recipe, script, prompts)
    state = LoopState(curriculum_of(recipe, prompts), Ledger(world.gpus))
    prepare(world, state)
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        listen(event)

    log = EventLog(listen=hear)
    log.seq = state.next_seq
    loop = Loop(recipe, world, state, log, checkpoints=checkpoints, control=control)
    ended = 0.0

    async def main() -> str:
        nonlocal ended
        status = await loop.run()
        ended = world.clock.now()
        return status

    status = run_virtual(main(), start=state.clock)
    return Outcome(status, world, state, events, loop.books.trained_s, ended)
