"""The runs of this machine, told from the first and last lines of their logs."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.events import Event, is_number, last_events, parse_lines, surviving
from scenarios.runs import attempts, is_locked, runs_root
from tui.watch.feeds import path_of
from tui.watch.recipes import recipe_told
from tui.words import printable

HEAD_LINES = 8  # in which a log says what run it is of
MOST_RUNS = 200
GLYPHS = {"live": "●", "done": "✔", "stopped": "◼", "crashed": "✖", "killed": "✖", "empty": "○"}


@dataclass(frozen=True)
class RunSummary:
    """One run folder. One row: "tiny/scalerl/seed-0", "live", 31 of 112 updates, pass rate 0.59.

    status: "live", "done", "stopped", "crashed" (a fault ended it), "killed" (it ended without a
    word) or "empty" (nothing was written yet). A: the ceiling of its last fit. age_s: since the last
    line. cause: of a crash. recipe: in what it differs from ScaleRL.
    """

    folder: Path
    name: str
    status: str
    update: int
    updates: int
    pass_rate: float | None
    A: float | None
    age_s: float
    cause: str = ""
    recipe: str = ""

    @property
    def glyph(self) -> str:
        return GLYPHS[self.status]

    @property
    def says(self) -> str:
        """Its state in a few words."""
        match self.status:
            case "live":
                rate = "" if self.pass_rate is None else f"  {self.pass_rate:.3f}"
                return f"live   update {self.update}/{self.updates}{rate}"
            case "done":
                return "done" if self.A is None else f"done   A {self.A:.3f}"
            case "stopped" | "killed":
                return f"{self.status}   update {self.update}/{self.updates}"
            case "crashed":
                return f"crashed   update {self.update}: {self.cause}"
        return "nothing written yet"


def runs(root: Path | None = None) -> list[RunSummary]:
    """The runs under the runs folder that were written to last, the newest first; only what changed is read again."""
    root = runs_root() if root is None else root
    written: dict[Path, float] = {}
    for pattern in ("*", "*/*", "*/*/*"):
        for log in root.glob(f"{pattern}/events.jsonl"):
            with suppress(OSError):
                written[log.parent] = log.stat().st_mtime
    newest = sorted(written, key=lambda folder: -written[folder])[:MOST_RUNS]
    return [found for folder in newest if (found := _remembered(folder, root)) is not None]


def _remembered(folder: Path, root: Path) -> RunSummary | None:
    """`summary`, read anew only if the log or the holder of the folder has changed."""
    try:
        now = (folder / "events.jsonl").stat()
    except OSError:
        return None
    key = (now.st_mtime_ns, now.st_size, is_locked(folder))
    known = _SUMMARIES.get((folder, root))
    if known is None or known[0] != key:
        known = (key, summary(folder, root))
        _SUMMARIES[folder, root] = known
    found = known[1]
    return None if found is None else replace(found, age_s=max(time.time() - now.st_mtime, 0.0))


_SUMMARIES: dict[tuple[Path, Path], tuple[tuple[int, int, bool], RunSummary | None]] = {}


def summary(folder: Path, root: Path | None = None) -> RunSummary | None:
    """What can be told of a run folder without reading its whole log; None if it has none."""
    log = folder / "events.jsonl"
    if not log.is_file():  # a pipe of that name would keep us waiting
        return None
    try:
        events = last_events(log)
        first = next((e for e in islice(parse_lines(log), HEAD_LINES) if e["kind"] == "run"), {})
        age = max(time.time() - log.stat().st_mtime, 0.0)
    except (OSError, InputError):
        return None
    left = surviving(events)
    update = next((e for e in reversed(left) if e["kind"] == "update"), {})
    evaluation = next(
        (e for e in reversed(left) if e["kind"] == "eval" and e.get("set") == "validation"), {}
    )
    status, cause, fit = _status(folder, left, bool(first or events))
    name = str(folder.relative_to(root)) if root and folder.is_relative_to(root) else str(folder)
    site = first.get("site")
    updates = site.get("updates") if isinstance(site, dict) else None
    rate, A = evaluation.get("pass_rate"), fit.get("A")
    return RunSummary(
        folder=folder,
        name=name,
        status=status,
        update=int(update["update"]) if is_number(update.get("update")) else 0,
        updates=int(updates) if is_number(updates) else 0,
        pass_rate=float(rate) if is_number(rate) else None,
        A=float(A) if is_number(A) else None,
        age_s=age,
        cause=cause,
        recipe=recipe_told(first),
    )


def _status(folder: Path, left: list[Event], begun: bool) -> tuple[str, str, dict[str, Any]]:
    """(status, cause of a crash, fit of the end) by the surviving events of the end of the log."""
    if is_locked(folder):
        return "live", "", {}
    last = left[-1] if left else {}
    if last.get("kind") == "done":
        fit = last.get("fit")
        status = "stopped" if last.get("status") == "stopped" else "done"
        return status, "", fit if isinstance(fit, dict) else {}
    if last.get("kind") == "fault" and "group" not in last:  # one with a group is one lost request
        return "crashed", printable(str(last.get("cause", "no cause given"))), {}
    return ("killed" if begun else "empty"), "", {}


def refuse_root(source: str) -> None:
    """Refuse a folder that holds runs and is none itself.

    Raises:
        InputError: naming some of the runs in it; or no path at all.
    """
    folder = path_of(source)
    try:
        if not folder.is_dir() or (folder / "events.jsonl").exists():
            return
    except OSError:  # a name too long, a folder that may not be looked into: the reader says so
        return
    inside = [str(run.folder) for run in runs(folder)]
    if inside:
        more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
        raise InputError(f"{source} is no run but holds some: {', '.join(inside[:3])}{more}")


OWN = ("events.jsonl", "recipe.toml", ".recipe.toml", "console.log", "lock", "checkpoints")


def delete(folder: Path) -> None:
    """Remove the files of a run, and its folder if nothing else is in it.

    Raises:
        InputError: a run is going on in it, or it cannot be removed.
    """
    if is_locked(folder):
        raise InputError(f"{folder} is in use by a run that is still going: stop it first")
    if folder.is_symlink() or not folder.is_dir():
        raise InputError(f"cannot delete {folder}: a link, or no folder")
    try:
        for path in (folder / name for name in OWN):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else's files are in it
            folder.rmdir()
    except OSError as error:
        raise InputError(f"cannot delete {folder}: {error.strerror or error}") from None


def beside(folder: Path, taken: set[Path]) -> Path:
    """A new folder beside a run's: seed-0, then seed-0.2, seed-0.3, ..."""
    stem, dot, number = folder.name.rpartition(".")
    first = folder.with_name(stem) if dot and number.isdecimal() else folder
    others = islice(attempts(first), 1, None)
    return next(each for each in others if not each.exists() and each not in taken)
