"""The runs of this machine, told from the first and last lines of their logs."""

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.events import Event, is_number, surviving
from scenarios.runs import holder, runs_root
from tui.words import printable

HEAD_BYTES, TAIL_BYTES = 64 * 1024, 128 * 1024
GLYPHS = {"live": "●", "done": "✔", "stopped": "◼", "crashed": "✖", "killed": "✖", "empty": "○"}


@dataclass(frozen=True)
class RunSummary:
    """One run folder. One row: "tiny/scalerl/seed-0", "live", 31 of 112 updates, pass rate 0.59.

    status: "live", "done", "stopped", "crashed" (a fault ended it), "killed" (it ended without a
    word) or "empty" (nothing was written yet). A: the ceiling of its last fit. age_s: since the last
    line.
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

    @property
    def glyph(self) -> str:
        return GLYPHS[self.status]

    @property
    def says(self) -> str:
        """Its state in a few words."""
        match self.status:
            case "live":
                rate = "" if self.pass_rate is None else f"  {self.pass_rate:.3f}"
                return f"live   step {self.update}/{self.updates}{rate}"
            case "done":
                return "done" if self.A is None else f"done   A {self.A:.3f}"
            case "stopped" | "killed":
                return f"{self.status}   step {self.update}/{self.updates}"
            case "crashed":
                return f"crashed   step {self.update}: {self.cause}"
        return "nothing written yet"


def runs(root: Path | None = None) -> list[RunSummary]:
    """Every run under the runs folder, the newest first."""
    root = runs_root() if root is None else root
    folders = {
        log.parent
        for pattern in ("*", "*/*", "*/*/*")
        for log in root.glob(f"{pattern}/events.jsonl")
    }
    found = [summary(folder, root) for folder in folders]
    return sorted((each for each in found if each is not None), key=lambda run: run.age_s)


def summary(folder: Path, root: Path | None = None) -> RunSummary | None:
    """What can be told of a run folder without reading its whole log; None if it has none."""
    log = folder / "events.jsonl"
    try:
        with log.open("rb") as file:
            head = file.read(HEAD_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL_BYTES, 0))
            tail = file.read()
        age = max(time.time() - log.stat().st_mtime, 0.0)
    except OSError:
        return None
    events = _events(tail)
    first = next((e for e in _events(head) if e["kind"] == "run"), {})
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
    )


def _status(folder: Path, left: list[Event], begun: bool) -> tuple[str, str, dict[str, Any]]:
    """(status, cause of a crash, fit of the end) by the surviving events of the end of the log."""
    if holder(folder) is not None:
        return "live", "", {}
    last = left[-1] if left else {}
    if last.get("kind") == "done":
        fit = last.get("fit")
        status = "stopped" if last.get("status") == "stopped" else "done"
        return status, "", fit if isinstance(fit, dict) else {}
    if last.get("kind") == "fault" and "group" not in last:  # one with a group is one lost request
        return "crashed", printable(str(last.get("cause", "no cause given"))), {}
    return ("killed" if begun else "empty"), "", {}


def _events(data: bytes) -> list[Event]:
    """Whole events of a piece of a log; lines cut at its ends are passed over."""
    found: list[Event] = []
    for line in data.split(b"\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            found.append(event)
    return found


def delete(folder: Path) -> None:
    """Remove a run folder.

    Raises:
        InputError: a run is going on in it, or it cannot be removed.
    """
    if holder(folder) is not None:
        raise InputError(f"{folder} is in use by a run that is still going: stop it first")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise InputError(f"cannot delete {folder}: {error.strerror or error}") from None


def beside(folder: Path, taken: set[Path]) -> Path:
    """A new folder beside a run's: seed-0, then seed-0.2, seed-0.3, ..."""
    stem, dot, number = folder.name.rpartition(".")
    first = stem if dot and number.isdecimal() else folder.name
    attempt = 2
    while (new := folder.with_name(f"{first}.{attempt}")).exists() or new in taken:
        attempt += 1
    return new
