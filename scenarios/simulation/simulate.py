"""One seed: a run over all its lives, in a folder of its own, until it is done or an invariant fails."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from scalerl.checkpoint import checkpoints, load_checkpoint, newest_checkpoint
from scalerl.clock import run_virtual
from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.errors import CheckpointError, Deadlock, RunFailed
from scalerl.events import EventLog, read_events
from scalerl.loop import Loop, cannot_write
from scalerl.state import LoopState
from scenarios.simulation.checks import Checker
from scenarios.simulation.damage import Stamp, damage, mark_of, remove, stamp
from scenarios.simulation.fate import Killed
from scenarios.simulation.faults import KINDS, FaultPlan
from scenarios.simulation.heard import Disk, Ear
from scenarios.simulation.history import Violated, new_history
from scenarios.simulation.setting import Setting, draw_setting
from scenarios.simulation.world import GPUS, SimulatedWorld

SPARE_LIVES = 3  # without faults: the first of them has to end well
MEMORY = Path("/dev/shm")  # a folder in memory, where there is one: checkpoints wait for the disk


@dataclass
class Outcome:
    """What became of a plan. `lives` holds how each ended: a status, the cause of a failure, or "killed"."""

    plan: FaultPlan
    lives: list[str] = field(default_factory=list)
    violation: str | None = None  # the invariant that failed
    what: str = ""
    struck: Counter[str] = field(default_factory=Counter)  # faults that happened, by kind
    refused: list[str] = field(default_factory=list)  # why a run could not be taken up at first
    events: int = 0
    looks: int = 0
    told: list[Any] = field(default_factory=list)  # events of all lives, voided ones included


def simulate(plan: FaultPlan, folder: Path | None = None, loop_class: type[Loop] = Loop) -> Outcome:
    """Play a plan; `folder` keeps the log and the checkpoints."""
    if folder is None:
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
            return simulate(plan, Path(name), loop_class)
    setting = draw_setting(plan.seed, plan.updates)
    run = _Run(setting, plan, folder, loop_class, Checker(setting), Outcome(plan))
    try:
        run.play()
    except Violated as violated:
        run.outcome.violation, run.outcome.what = violated.invariant, violated.what
    run.outcome.struck, run.outcome.looks = run.checker.struck, run.checker.looks
    run.outcome.events = len(run.outcome.told)
    return run.outcome


@dataclass
class _Run:
    """The run of one seed, life after life."""

    setting: Setting
    plan: FaultPlan
    folder: Path
    loop_class: type[Loop]
    checker: Checker
    outcome: Outcome
    damaged: set[Stamp] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)  # what the last resume had to say
    at: float = 0.0  # when the last life ended
    left: int = 0  # its tasks that were still there
    taken_up: bool = False  # whether it got as far as its first event

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def play(self) -> None:
        for life in range(self.plan.lives + SPARE_LIVES):
            status = self._life(life)
            self.outcome.lives.append(status)
            if self.taken_up:  # a resume that was never written has voided nothing
                self._look_at_file()
            if status in ("done", "exhausted"):
                return
            if life >= self.plan.lives:
                self.checker.violate("progress", f"a life without faults ended: {status}")
            for fault in self.plan.of_life(life):
                if KINDS[fault.kind].site == "end":
                    self._damage(fault.kind, life)

    def _life(self, life: int) -> str:
        faults = self.plan.of_life(life)
        world = SimulatedWorld(self.setting, life, faults, self.checker)
        state = LoopState(curriculum_of(self.setting.recipe, self.setting.prompts), Ledger(GPUS))
        from_seq = self._take_up(world, state)
        self.checker.begin(world, state)
        path = self.folder / "events.jsonl"
        begun = path.exists() and path.stat().st_size > 0
        history = [e for e in read_events(path) if e["seq"] < state.next_seq] if begun else []
        ear = Ear(self.checker, faults, from_seq=from_seq)

        def listen(event: dict[str, Any]) -> None:
            self.outcome.told.append(event)
            ear(event)

        log = EventLog(path, listen)
        open_file = cast(Any, log)
        ear.disk = open_file._file = Disk(open_file._file, self.checker, faults)
        try:
            return self._run(ear, log, begun, history)
        finally:
            log.close()
            self.taken_up = ear.heard > 0

    def _run(self, ear: Ear, log: EventLog, begun: bool, history: list[Any]) -> str:
        """One life from its first event to its last; how it ended."""
        world, state, start = self.checker.world, self.checker.state, self.checker.state.clock
        try:
            if begun:
                gpu_h = state.ledger.gpu_hours(start)
                log.resume(state.next_seq, clock=start, gpu_h=gpu_h)
                for what in self.troubles if log.seq else ():
                    log.emit("warning", clock=start, gpu_h=gpu_h, what=what)
            ear.loop = self.loop_class(
                self.setting.recipe,
                world,
                state,
                log,
                checkpoints=self.checkpoints,
                control=ear.control,
                history=history,
            )
            status = run_virtual(self._main(ear), start)
        except BaseException as error:
            status = self._failed(error)
        if ear.loop is not None and status != "killed":
            ear.ended(status, self.at, self.left)
        return status

    async def _main(self, ear: Ear) -> str:
        """The loop, and the last line of its log, as every run writes it."""
        assert ear.loop is not None
        self.checker.running = True
        try:
            status = await ear.loop.run()
        finally:
            self.at = self.checker.now()
            self.left = len(asyncio.all_tasks()) - 2  # this one, and the one that watches the clock
        gpu_hours = ear.loop.books.gpu_hours()
        ear.loop.books.emit("done", status=status, fit=None, gpu_hours=gpu_hours)
        return status

    def _failed(self, error: BaseException) -> str:
        """How a life ended that did not end well."""
        found = list(_leaves(error))
        for leaf in found:
            if isinstance(leaf, Violated):
                raise leaf
        if any(isinstance(leaf, Killed) for leaf in found):
            return "killed"
        if isinstance(error, RunFailed):
            return str(error)
        if isinstance(error, OSError):
            return cannot_write(error)
        if isinstance(error, Deadlock):
            self.checker.violate("progress", str(error))
        raise error

    # --- between two lives ---

    def _take_up(self, world: SimulatedWorld, state: LoopState) -> int | None:
        """Load the newest good checkpoint, as a person does; where the log goes on, None if the run begins."""
        begun = (self.folder / "events.jsonl").exists()
        good = [path for path in checkpoints(self.checkpoints) if stamp(path) not in self.damaged]
        mark = mark_of(good[0]) if good else None
        try:
            self._load(world, state)
        except CheckpointError as error:
            if not self.damaged:
                self.checker.violate("resume", f"a good checkpoint was refused: {error}")
            self.outcome.refused.append(str(error))
            bad = [p for p in checkpoints(self.checkpoints) if stamp(p) in self.damaged]
            remove(bad)
            self._load(world, state)
        saved = None if mark is None else self.checker.saves[mark]
        self.checker.history = new_history(self.setting) if saved is None else saved.history.copy()
        fresh = LoopState(curriculum_of(self.setting.recipe, self.setting.prompts), Ledger(GPUS))
        wanted = json.dumps(fresh.to_json()) if saved is None else saved.state
        if json.dumps(state.to_json()) != wanted:
            name = good[0].name if good else "the beginning"
            self.checker.violate("resume", f"taken up at update {state.updates}, not from {name}")
        return state.next_seq if begun else None

    def _load(self, world: SimulatedWorld, state: LoopState) -> None:
        self.troubles = []
        path = newest_checkpoint(self.checkpoints, self.troubles.append)
        if path is not None:
            load_checkpoint(path, state, self.setting.recipe.algorithm_id())
            world.load(path)

    def _damage(self, kind: str, life: int) -> None:
        random = self.setting.random("damage", life, kind)
        harmed = damage(self.checkpoints, kind, random, self.setting)
        if harmed is not None:
            self.checker.struck[kind] += 1
            self.damaged |= harmed

    def _look_at_file(self) -> None:
        """What is read from the file is what was heard."""
        read = [
            (e["seq"], e["kind"], e["clock"]) for e in read_events(self.folder / "events.jsonl")
        ]
        heard = [(e["seq"], e["kind"], e["clock"]) for e in self.checker.history.events]
        if read != heard:
            what = f"the file holds {len(read)} events that count, {len(heard)} were written"
            self.checker.violate("events", what)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
