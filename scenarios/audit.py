"""What a run folder is worth: every file of it read and held to what the others say; nothing is written."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from scalerl.checkpoint import (
    algorithm_of,
    checkpoints,
    fault_of,
    leftovers,
    next_seq_of,
)
from scalerl.curves.curve import flat
from scalerl.errors import CheckpointError, InputError
from scalerl.events import Event
from scalerl.manifest import CannotTell
from scalerl.paths import is_file
from scalerl.recipe import Recipe
from scalerl.settings import Layers, read_toml
from scalerl.timeline import SHOWN, Fault, Flaw, Timeline, read_timeline, told
from scenarios.runs import holder, is_finished

ENDLESS = 2**63  # more than any event's number
LEAST_ROOM = 64 * 2**20  # bytes


class Status(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One line of an audit; `way_out` is empty where there is nothing to do."""

    name: str
    status: Status
    found: str
    way_out: str = ""


@dataclass
class _Run:
    """What has been learnt of a run so far."""

    folder: Path
    holder: int | None = None  # as `scenarios.runs.holder`
    recipe: Recipe | None = None
    log: Timeline | None = None
    finished: bool = False
    good: list[Path] = field(default_factory=list)  # whole, of the recipe, the newest first
    some: bool = False  # whether there are checkpoints at all
    next_seq: int = 0  # at which a resume would go on
    bytes: int = 0  # of the largest checkpoint


def audit(folder: Path) -> list[Finding]:
    """Every finding about a run folder: recipe, log, checkpoints, lock, whether it can be resumed, room."""
    run = _Run(folder, holder(folder))
    recipe = _recipe(run)
    kept = [*_checkpoints(run)]
    log = [*_log(run)]
    return [*_same_algorithm(run, recipe), *log, *kept, _lock(run), _resume(run), _room(run)]


def _recipe(run: _Run) -> Finding:
    path = run.folder / "recipe.toml"
    try:
        if not is_file(path):
            return Finding("recipe", Status.BROKEN, "there is no recipe.toml", _ANOTHER_RECIPE)
        layers = Layers()
        layers.add(read_toml(path), path.name)
        run.recipe = layers.build(Recipe)
    except (InputError, OSError, ValueError, RecursionError) as error:
        said = str(error).partition("\n")[0]
        return Finding("recipe", Status.BROKEN, f"recipe.toml: {said}", _ANOTHER_RECIPE)
    return Finding("recipe", Status.OK, f"{run.recipe.name}, algorithm {run.recipe.algorithm_id()}")


_ANOTHER_RECIPE = "put the run's own recipe.toml back: its first event has all keys of it"


def _same_algorithm(run: _Run, recipe: Finding) -> list[Finding]:
    head = (run.log and run.log.head) or {}
    theirs = head.get("algorithm_id")
    if run.recipe is None or theirs is None:
        return [recipe]
    ours = run.recipe.algorithm_id()
    if theirs != ours:
        what = f"recipe.toml is of algorithm {ours}, the log of {theirs}"
    elif differing := _differing(run.recipe, head):
        what = f"recipe.toml is not the log's recipe, differing in {', '.join(differing[:SHOWN])}"
    else:
        return [recipe]
    run.recipe = None
    return [Finding("recipe", Status.BROKEN, what, _ANOTHER_RECIPE)]


def _differing(recipe: Recipe, head: Event) -> list[str]:
    """Dotted keys of the recipe and site in a log's first event that have another value in a recipe, or none."""
    recipe_there, site_there = head.get("recipe"), head.get("site")
    if not isinstance(recipe_there, dict) or not isinstance(site_there, dict):
        return []
    try:
        there = flat({**recipe_there, "site": site_there})
    except RecursionError:
        return ["everything"]
    here = flat(recipe.model_dump(mode="json"))
    return sorted(key for key, value in there.items() if here.get(key) != value)


# --- the log ---


def _log(run: _Run) -> Iterator[Finding]:
    path = run.folder / "events.jsonl"
    try:
        if not path.exists():
            status = Status.BROKEN if run.some else Status.OK
            yield Finding("events", status, "there is no events.jsonl", _LOST if run.some else "")
            return
        if not is_file(path):
            yield Finding("events", Status.BROKEN, "events.jsonl is no file")
            return
        log = run.log = read_timeline(path)
        run.finished = is_finished(run.folder)
    except (InputError, OSError) as error:
        yield Finding("events", Status.BROKEN, str(error), "make it readable")
        return
    yield _about(run, log)
    counts = ENDLESS if run.finished else run.next_seq
    faults = [f for f in log.faults if not (f.last and run.holder is not None)]
    for status, flaw, few in _sorted(faults + log.missing(run.next_seq), counts):
        what = f"{len(few)} {_NAMED[flaw]}: {told(few)}" if len(few) > 1 else few[0].what
        yield Finding("events", status, what, _way_out(flaw, status))


_LOST = "put it back from a copy; without it a resume begins a new log"


def _about(run: _Run, log: Timeline) -> Finding:
    parts = [f"{log.lines} lines", f"seq 0 to {log.end - 1}" if log.end else "no event survives"]
    if log.resumes:
        parts.append(f"resumed {log.resumes} times" if log.resumes > 1 else "resumed once")
    if log.unsealed:
        parts.append(f"{log.unsealed} lines of format 1, without checksums")
    if void := [f for f in log.faults if f.seq is None and f.flaw is Flaw.TORN]:
        parts.append(f"{len(void)} torn at no loss, as a kill leaves them: {told(void)}")
    return Finding("events", Status.OK, ", ".join(parts))


def _sorted(faults: list[Fault], counts: int) -> Iterator[tuple[Status, Flaw, list[Fault]]]:
    """Faults by how bad they are, and by kind. From `counts` on a resume voids them."""
    for status in (Status.BROKEN, Status.WARNING):
        for flaw in Flaw:
            few = [f for f in faults if f.flaw is flaw and _status(f, counts) is status]
            if few:
                yield status, flaw, few


def _status(fault: Fault, counts: int) -> Status:
    if fault.seq is None:
        return Status.OK if fault.flaw is Flaw.TORN else Status.WARNING
    mild = fault.flaw in (Flaw.NEWER, Flaw.CLOCK) or fault.last
    return Status.WARNING if mild or fault.seq >= counts else Status.BROKEN


_NAMED = {
    Flaw.TORN: "torn lines",
    Flaw.EDITED: "edited lines",
    Flaw.FOREIGN: "foreign lines",
    Flaw.NEWER: "lines of a later format",
    Flaw.GAP: "gaps",
    Flaw.REPEAT: "numbers twice",
    Flaw.CLOCK: "falls of the clock",
}


def _way_out(flaw: Flaw, status: Status) -> str:
    if flaw is Flaw.NEWER:
        return "read it with the version that wrote it"
    if status is Status.BROKEN:
        return "put the log back from a copy; without one, believe nothing at and near that place"
    if flaw is Flaw.CLOCK:
        return "look whether somebody edited it"
    return "nothing to do: no reader counts it, or a resume voids it"


# --- checkpoints ---


def _checkpoints(run: _Run) -> Iterator[Finding]:
    folder = run.folder / "checkpoints"
    try:
        found, left = checkpoints(folder), sorted(leftovers(folder))
    except OSError as error:
        run.some = True
        yield Finding(
            "checkpoints", Status.BROKEN, f"cannot be read: {error.strerror}", "mend that"
        )
        return
    run.some = bool(found)
    for path in found:
        yield _checkpoint(run, path)
    for path in left if run.holder is None else ():
        what = f"{path.name} was left by a process that was killed"
        yield Finding("checkpoints", Status.WARNING, what, "nothing to do: the next one removes it")


def _checkpoint(run: _Run, path: Path) -> Finding:
    try:
        if fault := fault_of(path):
            return Finding(path.name, Status.BROKEN, fault, _PASSED_OVER)
        theirs = algorithm_of(path)
        if run.recipe is not None and theirs != run.recipe.algorithm_id():
            what = f"is of algorithm {theirs}, the recipe of {run.recipe.algorithm_id()}"
            return Finding(path.name, Status.BROKEN, what, "move it to the run it is of")
        next_seq, sealed = next_seq_of(path)
    except CannotTell as error:
        what, _, way_out = str(error).partition(": ")
        return Finding(path.name, Status.BROKEN, what, way_out)
    except (CheckpointError, OSError) as error:
        if run.holder is not None and not path.exists():  # it was removed meanwhile
            return Finding(path.name, Status.OK, "has made room for a newer one")
        return Finding(path.name, Status.BROKEN, str(error), _PASSED_OVER)
    size = sum(file.stat().st_size for file in path.rglob("*") if is_file(file))
    if not run.good:
        run.next_seq = next_seq
    run.good.append(path)
    run.bytes = max(run.bytes, size)
    checked = "every digest holds" if sealed else "format 1, without digests"
    return Finding(path.name, Status.OK, f"{_amount(size)}, {checked}")


_PASSED_OVER = "put it back from a copy, or remove it: a resume takes the newest whole one"


# --- what it comes to ---


def _lock(run: _Run) -> Finding:
    if run.holder is None:
        return Finding("lock", Status.OK, "no run is going on in it")
    who = f"process {run.holder}" if run.holder else "a process that does not say which"
    return Finding("lock", Status.OK, f"{who} runs in it: what it is writing now may look torn")


def _resume(run: _Run) -> Finding:
    if run.finished:
        return Finding("resume", Status.OK, "it is finished")
    if run.holder is not None:
        return Finding("resume", Status.OK, "it goes on")
    if run.recipe is None:
        return Finding("resume", Status.BROKEN, "not without its recipe", "see above")
    if run.some and not run.good:
        way_out = "put a checkpoint back from a copy, or move them away to begin the run anew"
        return Finding("resume", Status.BROKEN, "no checkpoint can be used", way_out)
    if not os.access(run.folder, os.W_OK):
        return Finding("resume", Status.BROKEN, "the folder cannot be written", "make it yours")
    where = f"from {run.good[0].name}" if run.good else "from the start: there is no checkpoint"
    how = f"scalerl run {run.folder}/recipe.toml --out {run.folder}"
    return Finding("resume", Status.OK, f"it can be resumed {where}", how)


def _room(run: _Run) -> Finding:
    """A checkpoint stands beside the older ones before any is removed."""
    free = shutil.disk_usage(run.folder).free
    what = f"{_amount(free)} free" + (
        f", a checkpoint takes {_amount(run.bytes)}" if run.bytes else ""
    )
    if free >= max(2 * run.bytes, LEAST_ROOM):
        return Finding("disk", Status.OK, what)
    return Finding("disk", Status.WARNING, what, "make room before the run goes on")


def _amount(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
