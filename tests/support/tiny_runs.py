"""Whole runs of the tiny world in under a second, what they leave behind, and a world that remembers more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sandbox.world import SandboxWorld
from scalerl.clock import run_virtual
from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.events import Event, EventLog, read_events
from scalerl.loop import Control, Loop
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.state import LoopState
from scalerl.world import PushStats, UpdateStats
from scenarios.runs import RunResult, run
from scenarios.scenario import Plan, plan

Weights = dict[str, torch.Tensor]

SMALL = (
    "site.updates=8",
    "site.checkpoint_every_updates=4",
    "prompts_per_update=8",
    "group_size=4",
    "site.generators=16",
    "site.slots_per_generator=2",
    "site.evaluation.prompts=16",
    "site.evaluation.completions=4",
    "site.evaluation.every_updates=3",
    "site.evaluation.ood_every_updates=6",
)


def small_plan(*overrides: str, name: str = "scalerl") -> Plan:
    """One run of eight updates over eight prompts times four completions."""
    (only,) = plan(name, [*SMALL, *overrides])
    return only


def quiet_recipe(*overrides: str, name: str = "scalerl") -> Recipe:
    """The recipe of a small run that is evaluated at its start and end only."""
    quiet = ("site.evaluation.every_updates=1000", "site.evaluation.ood_every_updates=0")
    return small_plan(*quiet, *overrides, name=name).recipe


def timeline(folder: Path) -> list[Event]:
    """The surviving events of a run without wall time, and so without checksums: all else is equal in equal runs."""
    return [
        {key: value for key, value in event.items() if key not in ("t", "crc")}
        for event in read_events(folder / "events.jsonl")
    ]


def of_kind(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event["kind"] == kind]


def run_with_stops(wanted: Plan, folder: Path, stops: Sequence[int]) -> RunResult:
    """Stop a run after each of these updates, then take it up and let it end."""
    for stop in stops:
        control = Control()

        def listen(event: Event, control: Control = control, stop: int = stop) -> None:
            control.stop |= event["kind"] == "update" and event["update"] >= stop

        assert run(wanted, folder, listen=listen, control=control).status == "stopped"
    return run(wanted, folder)


def copy_weights(policy: torch.nn.Module) -> Weights:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


class RecordingWorld(SandboxWorld):
    """The tiny world, with the weights of every version and every batch as it was handed to the trainers."""

    def __init__(self, recipe: Recipe, *, allow_code: bool = False) -> None:
        super().__init__(recipe, allow_code=allow_code)
        self.weights: dict[int, Weights] = {0: copy_weights(self.policy)}
        self.batches: list[tuple[int, list[Group]]] = []  # version before the update, groups
        self.pushed: list[int] = []

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        self.batches.append((self.version, list(groups)))
        stats = await super().update(groups)
        self.weights[self.version] = copy_weights(self.policy)
        return stats

    async def publish(self, version: int) -> PushStats:
        self.pushed.append(version)
        return await super().publish(version)


def play(recipe: Recipe, **world: Any) -> tuple[RecordingWorld, LoopState, list[Event]]:
    """Run to the end without a folder; the world keeps its records."""
    recording = RecordingWorld(recipe, **world)
    state = LoopState(curriculum_of(recipe, len(recording.train)), Ledger(recording.gpus))
    events: list[Event] = []
    loop = Loop(recipe, recording, state, EventLog(listen=events.append))
    assert run_virtual(loop.run()) == "done"
    return recording, state, events


def completions(world: RecordingWorld) -> list[tuple[Group, Completion]]:
    """All that was handed to the trainers, dropped groups included."""
    return [(g, c) for _, groups in world.batches for g in groups for c in g.completions]


def check_lags(world: RecordingWorld, updates: list[Event], k: int) -> list[int]:
    """`lag_tokens` of each event, counted anew over the tokens that were trained on; all lags that occur."""
    seen: list[int] = []
    for (version, groups), event in zip(world.batches, updates, strict=True):
        lags = [
            version - token_version
            for group in groups
            if not group.zero_variance or world.recipe.zero_variance == "keep"
            for c in group.completions
            for token_version, sampled in zip(c.version, c.sampled, strict=True)
            if sampled
        ]
        assert event["lag_tokens"] == [lags.count(lag) for lag in range(max(lags, default=-1) + 1)]
        assert event["trained_tokens"] == len(lags)
        assert not lags or 0 <= min(lags) <= max(lags) <= k
        seen += lags
    return seen
