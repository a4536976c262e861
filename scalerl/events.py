"""The event stream: one append-only JSON-lines file that screens, reports, fits and resume read, and nothing else.

Every event has `v` (format), `seq`, `t` (wall seconds: the only field in which two runs of one seed differ),
`clock` (seconds of the world's clock), `gpu_h` and `kind`. `heartbeat` and `resume` carry no `seq`; a `resume`
voids every earlier event whose `seq` is `from_seq` or more.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scalerl.errors import InputError

FORMAT = 1
UNNUMBERED = ("heartbeat", "resume")
HEARTBEAT_S = 5.0

Event = dict[str, Any]


class EventLog:
    """The writer. One line a write, flushed at once; a listener sees each event as it is written."""

    def __init__(
        self, path: Path | None = None, listen: Callable[[Event], None] | None = None
    ) -> None:
        self._listen = listen
        self._started = time.monotonic()
        self._last_write = self._started
        self.seq = 0
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            torn = _ends_mid_line(path)
            self._file = path.open("a", encoding="utf-8")
            if torn:  # a killed run left half a line: end it, so that only that line is unreadable
                self._file.write("\n")

    def emit(self, kind: str, *, clock: float, gpu_h: float, **fields: Any) -> None:
        """Append one event."""
        event: Event = {"v": FORMAT}
        if kind not in UNNUMBERED:
            event["seq"] = self.seq
            self.seq += 1
        self._last_write = time.monotonic()
        event |= {
            "t": round(self._last_write - self._started, 3),
            "clock": clock,
            "gpu_h": gpu_h,
            "kind": kind,
            **fields,
        }
        if self._file is not None:
            self._file.write(json.dumps(event, separators=(",", ":"), allow_nan=False) + "\n")
            self._file.flush()
        if self._listen is not None:
            self._listen(event)

    def heartbeat(self, *, clock: float, gpu_h: float) -> None:
        """Say that the run is alive, if nothing was written for five wall seconds."""
        if time.monotonic() - self._last_write >= HEARTBEAT_S:
            self.emit("heartbeat", clock=clock, gpu_h=gpu_h)

    def resume(self, from_seq: int, *, clock: float, gpu_h: float) -> None:
        """Void what was written after a checkpoint; the next event has seq = from_seq."""
        self.emit("resume", clock=clock, gpu_h=gpu_h, from_seq=from_seq)
        self.seq = from_seq

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _ends_mid_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() != b"\n"


def parse_lines(path: Path) -> Iterator[Event]:
    """Every readable event of a file in order, voided ones included; torn or foreign lines are passed over."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot read the event log {path}: {error.strerror}") from None
    with file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and isinstance(event.get("kind"), str):
                yield event


def read_events(path: Path) -> list[Event]:
    """The surviving timeline: numbered events in order of `seq`, without what a later `resume` voided."""
    alive: list[Event] = []
    for event in parse_lines(path):
        if event["kind"] == "resume":
            start = event.get("from_seq", 0)
            while alive and alive[-1]["seq"] >= start:
                alive.pop()
        elif isinstance(event.get("seq"), int):
            alive.append(event)
    return alive


def evaluations(events: list[Event], evaluation_set: str = "validation") -> list[Event]:
    """The `eval` events of one set, in order of compute."""
    points = [
        event for event in events if event["kind"] == "eval" and event.get("set") == evaluation_set
    ]
    return sorted(points, key=lambda event: event["C"])
