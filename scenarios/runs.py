"""A run from its plan to its folder: started, resumed, stopped, fitted."""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from scalerl.books import description
from scalerl.checkpoint import load_checkpoint, newest_checkpoint
from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.curves.curve import curve_of_run, fit_curve, flat
from scalerl.errors import Deadlock, InputError, RunFailed
from scalerl.events import Event, EventLog, evaluations, last_events, read_events, surviving
from scalerl.fit import FitError, SigmoidFit
from scalerl.loop import Control, Loop, cannot_write
from scalerl.manifest import sync
from scalerl.paths import regular
from scalerl.recipe import Recipe
from scalerl.settings import COMMAND_LINE, Layers, override_tables, read_toml, to_toml
from scalerl.state import LoopState
from scalerl.timeline import read_timeline, told
from scenarios.scenario import Plan
from scenarios.worlds import open_world, run_world


@dataclass(frozen=True)
class RunResult:
    """How a run ended. Where the curve cannot be fitted `fit` is None, and `no_fit` says why."""

    name: str
    arm: str
    seed: int
    algorithm_id: str
    status: str
    folder: Path
    fit: SigmoidFit | None
    no_fit: str | None
    gpu_hours: dict[str, dict[str, float]]
    evaluations: list[Event]


def runs_root() -> Path:
    return Path(os.environ.get("SCALERL_RUNS", "runs"))


def choose_folder(plan: Plan, plans: int, out: Path | None, taken: Collection[Path] = ()) -> Path:
    """Where a plan's run goes: an unfinished run of the same recipe is taken up, a finished one never overwritten.

    taken: folders of runs that were started a moment ago, and may hold nothing yet.

    Raises:
        InputError: `out` holds a finished run, or an unfinished one of another recipe.
    """
    if out is not None:
        folder = out if plans == 1 else out / plan.arm / f"seed-{plan.recipe.seed}"
        if is_finished(folder):
            raise InputError(
                f"{folder} holds a finished run, which is never overwritten: choose another --out"
            )
        if is_begun(folder) and (difference := differing_keys(folder, plan.recipe)):
            keys = ", ".join(difference)
            raise InputError(
                f"{folder} holds an unfinished run of another recipe (differing in {keys}): choose another --out"
            )
        return folder
    first = runs_root() / plan.name / plan.arm / f"seed-{plan.recipe.seed}"

    def is_free(folder: Path) -> bool:
        return folder not in taken and not (
            is_begun(folder)
            and (is_finished(folder) or is_locked(folder) or differing_keys(folder, plan.recipe))
        )

    return next(filter(is_free, attempts(first)))


def attempts(first: Path) -> Iterator[Path]:
    """The folders of the runs of one seed: seed-0, seed-0.2, seed-0.3, ..."""
    yield first
    for attempt in count(2):
        yield first.with_name(f"{first.name}.{attempt}")


def begin(folder: Path, recipe: Recipe) -> None:
    """Put a recipe into its run folder, unless one is there: from now on it is a run to be taken up."""
    if not is_begun(folder):
        # renamed when complete, so that a begun run has a whole recipe
        draft = folder / ".recipe.toml"
        draft.write_text(to_toml(recipe.model_dump(mode="json")))
        sync(draft)
        draft.rename(folder / "recipe.toml")
        sync(folder)


def is_begun(folder: Path) -> bool:
    return (folder / "recipe.toml").exists()


def is_finished(folder: Path) -> bool:
    """Whether the surviving timeline ends with a run that is done; the end of the log says so."""
    log = folder / "events.jsonl"
    if not log.is_file():
        return False
    left = surviving(last_events(log))[-1:]
    return any(e["kind"] == "done" and e.get("status") != "stopped" for e in left)


def recipe_of(folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """What a run folder says it runs, with overrides as on the command line.

    Raises:
        InputError: it cannot be read, or an override is no good.
    """
    layers, path = Layers(), folder / "recipe.toml"
    layers.add(read_toml(path), str(path))
    for table in override_tables(overrides):
        layers.add(table, COMMAND_LINE)
    return layers.build(Recipe)


def differing_keys(folder: Path, recipe: Recipe) -> list[str]:
    """Dotted keys in which the recipe of a run folder differs from this one."""
    try:
        theirs = flat(recipe_of(folder).model_dump())
    except InputError:  # of another version of this program, or edited
        return ["a recipe.toml that cannot be read"]
    ours = flat(recipe.model_dump())
    return sorted(key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key))


def run(
    plan: Plan,
    folder: Path,
    *,
    listen: Callable[[Event], None] | None = None,
    control: Control | None = None,
    allow_code: bool = False,
    overlap: bool = True,
) -> RunResult:
    """Run, or take up, one plan in its folder; `overlap` as `open_world` has it.

    Raises:
        InputError: the folder is in use, or code was not allowed. CheckpointError: no checkpoint can be used.
        RunFailed: the first failure, in one line; a full disk is one.
    """
    recipe = plan.recipe

    def tell(what: str) -> None:
        if listen is not None:
            listen({"kind": "starting", "what": what})

    world = open_world(recipe, folder=folder, allow_code=allow_code, overlap=overlap, tell=tell)
    with writing(), locked(folder):
        begin(folder, recipe)
        state = LoopState(curriculum_of(recipe, len(world.train)), Ledger(world.gpus))
        troubles: list[str] = []
        checkpoint = newest_checkpoint(folder / "checkpoints", troubles.append)
        if checkpoint is not None:
            load_checkpoint(checkpoint, state, recipe.algorithm_id())
            world.load(checkpoint)
        path = folder / "events.jsonl"
        begun = path.exists() and path.stat().st_size > 0
        troubles += _doubts(path, state.next_seq)
        history = [e for e in read_events(path) if e["seq"] < state.next_seq] if begun else []
        log = EventLog(path, listen)
        try:
            loop = Loop(
                recipe,
                world,
                state,
                log,
                checkpoints=folder / "checkpoints",
                control=control,
                history=history,
            )
            now = {"clock": state.clock, "gpu_h": state.ledger.gpu_hours(state.clock)}
            if begun:  # without a checkpoint too: then all that was written is void
                log.resume(state.next_seq, **now)
            elif state.next_seq:  # the log is lost, but for its head
                log.emit("run", **now, **description(recipe))
                log.seq = state.next_seq
            for what in troubles:
                if log.seq == 0:  # which is the head's
                    tell(what)
                else:
                    log.emit("warning", **now, what=what)
            return run_world(recipe, _finish(plan, folder, loop), state.clock)
        except Deadlock as error:
            log.fault(error)
            raise
        finally:
            log.close()


def _doubts(log: Path, next_seq: int) -> list[str]:
    """What is wrong with the events that a resume from `next_seq` goes on from, in a sentence, if anything is."""
    if next_seq == 0:
        return []
    if not log.exists():
        return [f"{log} is gone, and with it the {next_seq} events before the checkpoint"]
    faults = read_timeline(log).before(next_seq)
    return [f"{log.name} is damaged: {told(faults)}"] if faults else []


@contextmanager
def writing() -> Iterator[None]:
    """A file that cannot be written, outside the loop: the lock, the recipe, the last lines of the log."""
    try:
        yield
    except OSError as error:
        raise RunFailed(cannot_write(error)) from error


async def _finish(plan: Plan, folder: Path, loop: Loop) -> RunResult:
    """Run the loop, then write what the curve says as the last event."""
    status = await loop.run()
    points = evaluations(read_events(folder / "events.jsonl"))
    fit, no_fit = fit_run(points)
    gpu_hours = loop.books.gpu_hours()
    loop.books.emit("done", status=status, fit=asdict(fit) if fit else None, gpu_hours=gpu_hours)
    return RunResult(
        name=plan.name,
        arm=plan.arm,
        seed=plan.recipe.seed,
        algorithm_id=plan.recipe.algorithm_id(),
        status=status,
        folder=folder,
        fit=fit,
        no_fit=no_fit,
        gpu_hours=gpu_hours,
        evaluations=points,
    )


def fit_run(points: list[Event]) -> tuple[SigmoidFit | None, str | None]:
    """The sigmoid through evaluation events; or None, and the reason why there is none to fit."""
    rates = [event["pass_rate"] for event in points]
    if len(rates) > 1 and rates[-1] <= rates[0]:
        return (
            None,
            "the curve ends no higher than it began, and a rising sigmoid says nothing of it",
        )
    try:
        return fit_curve(curve_of_run(points, "run")), None
    except FitError as error:
        return None, str(error)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for as long as the run lasts; the lock goes with the process, however it ends."""
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in (folder / "lock", folder / "events.jsonl"):
                if path.exists():
                    regular(path)
            file = held.enter_context((folder / "lock").open("a"))
        except OSError as error:
            raise InputError(f"cannot write to the run folder {folder}: {error.strerror}") from None
        for patience in (0.05, 0.05, None):  # somebody may just be looking whether it is held
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if patience is None:
                    raise InputError(
                        f"{folder} is in use by a run that is still going: choose another --out"
                    ) from None
                time.sleep(patience)
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n")
        file.flush()
        yield


def holder(folder: Path) -> int | None:
    """The process of this machine that runs in a folder; None when there is none, 0 when it cannot be told."""
    lock = folder / "lock"
    if not lock.is_file():
        return None
    try:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                pid, _, host = file.read().strip().partition(" ")
                return int(pid) if pid.isdecimal() and host == socket.gethostname() else 0
    except OSError:
        return None


def is_locked(folder: Path) -> bool:
    """Whether a run is going on in a folder."""
    return holder(folder) is not None
