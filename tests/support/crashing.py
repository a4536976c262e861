"""A `scalerl run` that tells over a pipe where it is, and dies there: by its own hand, or by its parent's.

    python crashing.py FD ORDER

ORDER is JSON: the run's folder, the arguments of `scalerl`, a blow (or null), a fault (or ""). A mark is one line: the
place that the run is in, and what is about to happen or has happened. Marks come from Python's audit events on files
of the run, and from functions of the product that are wrapped here; the product knows nothing of it.
"""

import contextlib
import inspect
import json
import os
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPENING = ("start-up", "resume")
# where a run is, by rank: a line logged while resuming counts as resuming
PLACES = (
    "checkpoint",
    *OPENING,
    "push",
    "log",
    "update",
    "evaluation",
    "exit",
    "ending",
    "decoding",
)
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


@dataclass(frozen=True)
class Blow:
    """One SIGKILL, at the nth mark in a place: by the child itself, or `delay_s` later by its parent.

    torn: of the nth file or line that has just been written there, only this fraction is left.
    """

    place: str
    nth: int
    delay_s: float | None = None
    torn: float | None = None

    def is_in(self, place: str) -> bool:
        return place not in OPENING if self.place == "anywhere" else place == self.place

    @property
    def how(self) -> str:
        if self.delay_s is not None:
            return "time"
        return "mark" if self.torn is None else "torn"


class Marks:
    """Where the run is; told at every step, and the end of the run if a blow says so."""

    def __init__(self, fd: int, folder: Path, blow: Blow | None) -> None:
        self.fd, self.folder = fd, folder
        self.blow = blow if blow is None or blow.delay_s is None else None
        self.left = 0 if self.blow is None else self.blow.nth
        self.active: Counter[str] = Counter()

    @property
    def place(self) -> str:
        return next((place for place in PLACES if self.active[place]), PLACES[-1])

    def tell(self, what: str, *, file: Path | None = None, begin: int = 0) -> None:
        """file, begin: what was written last, which may be torn from this byte on."""
        blow = self.blow
        if blow is not None and self.left == 0:  # dying
            return
        os.write(self.fd, f"{self.place}\t{what}\n".encode())
        if blow is None or not blow.is_in(self.place) or (blow.torn is not None and file is None):
            return
        self.left -= 1
        if self.left == 0:
            if blow.torn is not None and file is not None:
                os.truncate(file, begin + int(blow.torn * (file.stat().st_size - begin)))
            os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def inside(self, place: str, what: str) -> Iterator[None]:
        self.active[place] += 1
        self.tell(f"{what} begins")
        try:
            yield
        finally:
            self.tell(f"{what} ends")
            self.active[place] -= 1
            self.tell(f"{what} is over")

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event: something is about to be done to a file."""
        if event not in FILE_EVENTS:
            return
        paths = [str(a) for a in arguments[:2] if isinstance(a, str | os.PathLike)]
        if self.active["checkpoint"] or any(p.startswith(str(self.folder)) for p in paths):
            self.tell(f"{event} {Path(paths[0]).name if paths else ''}")


def tell_places(marks: Marks) -> None:
    """Wrap what a run is made of."""
    import safetensors.torch

    safetensors.torch.save_file = _saving(marks, safetensors.torch.save_file)
    for name in ("rename", "replace"):
        setattr(os, name, _after(marks, getattr(os, name), name))
    os.fsync = _syncing(marks, os.fsync)
    sys.addaudithook(marks.hear)

    import sandbox.decoder
    import sandbox.evaluator
    import sandbox.generators
    import sandbox.world
    import scalerl.events
    import scalerl.loop
    import scenarios.runs  # noqa: F401 - imported now, so that opening a run is not all imports

    for owner, name, place in (
        (scalerl.loop, "save_checkpoint", "checkpoint"),
        (sandbox.world.SandboxWorld, "publish", "push"),
        (sandbox.world, "policy_update", "update"),
        (sandbox.evaluator, "sample_all", "evaluation"),
    ):
        setattr(owner, name, _within(marks, getattr(owner, name), place))
    for owner, name in (
        (sandbox.world.SandboxWorld, "load"),
        (sandbox.generators.Generators, "set_weights"),
        (sandbox.decoder.Decoder, "step"),
    ):
        setattr(owner, name, _after(marks, getattr(owner, name), name))
    scalerl.events.EventLog.emit = _logging(marks, scalerl.events.EventLog.emit)
    scalerl.loop.Loop.run = _looping(marks, scalerl.loop.Loop.run)


def _within(marks: Marks, function: Callable[..., Any], place: str) -> Callable[..., Any]:
    name = function.__name__

    async def told_later(*arguments: Any, **keywords: Any) -> Any:
        with marks.inside(place, name):
            return await function(*arguments, **keywords)

    def told(*arguments: Any, **keywords: Any) -> Any:
        with marks.inside(place, name):
            return function(*arguments, **keywords)

    return told_later if inspect.iscoroutinefunction(function) else told


def _after(marks: Marks, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def told(*arguments: Any, **keywords: Any) -> Any:
        result = function(*arguments, **keywords)
        marks.tell(f"after {name}")
        return result

    return told


def _saving(marks: Marks, save_file: Callable[..., Any]) -> Callable[..., Any]:
    def told(tensors: Any, filename: Path, *arguments: Any, **keywords: Any) -> None:
        marks.tell(f"before {Path(filename).name}")
        save_file(tensors, filename, *arguments, **keywords)
        marks.tell(f"after {Path(filename).name}", file=Path(filename))

    return told


def _syncing(marks: Marks, fsync: Callable[[Any], None]) -> Callable[[Any], None]:
    def told(file: Any) -> None:
        fd = file if isinstance(file, int) else file.fileno()
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        marks.tell(
            f"before fsync {path.name}",
            file=path if stat.S_ISREG(os.fstat(fd).st_mode) else None,
        )
        fsync(fd)
        marks.tell(f"after fsync {path.name}")

    return told


def _logging(marks: Marks, emit: Callable[..., None]) -> Callable[..., None]:
    path = marks.folder / "events.jsonl"

    def told(log: Any, kind: str, **fields: Any) -> None:
        with marks.inside("log", f"line of {kind}"):
            begin = path.stat().st_size if path.exists() else 0
            emit(log, kind, **fields)
            marks.tell(f"line of {kind} written", file=path, begin=begin)
            marks.active["exit"] += kind == "done"

    return told


def _looping(marks: Marks, run: Callable[..., Any]) -> Callable[..., Any]:
    async def told(loop: Any) -> str:
        for place in OPENING:
            marks.active[place] = 0
        marks.tell("the loop begins")
        status = await run(loop)
        marks.active["ending"] += 1
        marks.tell("the loop is over")
        return status

    return told


# ---- faults, each of which the crash test must notice ----


def loses_a_group() -> None:
    """A resume that drops a finished group, if one waits to be trained on."""
    from scalerl.state import LoopState

    _then(LoopState, "load_json", lambda state: state.finished and state.finished.popitem())


def forgets_moments() -> None:
    """A resume that begins with a fresh optimiser."""
    from sandbox.world import SandboxWorld

    _then(SandboxWorld, "load", lambda world: world.optimizer.state.clear())


def skips_an_update() -> None:
    """A resume that counts an update which was never made."""
    from scalerl.state import LoopState

    def skip(state: Any) -> None:
        state.updates += 1

    _then(LoopState, "load_json", skip)


def starts_over() -> None:
    """A resume that finds no checkpoint: the run ends the same, but work is lost."""
    import scenarios.runs

    scenarios.runs.newest_checkpoint = lambda *_: None


def voids_nothing() -> None:
    """A resume that counts its events on from the last one written, and so voids none."""
    from scalerl.events import EventLog

    def voided(self: EventLog, from_seq: int, *, clock: float, gpu_h: float) -> None:
        self.seq = from_seq

    EventLog.resume = voided


def leaves_a_draft() -> None:
    """A checkpoint that leaves its scaffolding behind."""
    import scalerl.loop

    save = scalerl.loop.save_checkpoint

    def saved(folder: Path, *arguments: Any) -> Any:
        (folder / ".scaffold").mkdir(parents=True, exist_ok=True)
        return save(folder, *arguments)

    scalerl.loop.save_checkpoint = saved


def leaves_a_process() -> None:
    """A run that starts a process which outlives it."""
    subprocess.Popen(["sleep", "600"])


FAULTS = {
    f.__name__: f
    for f in (
        loses_a_group,
        forgets_moments,
        skips_an_update,
        starts_over,
        voids_nothing,
        leaves_a_draft,
        leaves_a_process,
    )
}


def _then(owner: Any, name: str, spoil: Callable[[Any], object]) -> None:
    function = getattr(owner, name)

    def spoiled(self: Any, *arguments: Any) -> None:
        function(self, *arguments)
        spoil(self)

    setattr(owner, name, spoiled)


def main() -> None:
    order = json.loads(sys.argv[2])
    folder = Path(order["folder"])
    blow = Blow(**order["blow"]) if order["blow"] else None
    marks = Marks(int(sys.argv[1]), folder, blow)
    marks.active[OPENING[(folder / "recipe.toml").exists()]] += 1
    marks.tell("the process begins")
    tell_places(marks)
    if order["fault"]:
        FAULTS[order["fault"]]()
    from tui.cli import main as scalerl

    marks.tell("imported")
    sys.argv = ["scalerl", *order["arguments"]]
    scalerl()


if __name__ == "__main__":
    main()
