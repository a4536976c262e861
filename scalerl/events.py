"""The event stream: one append-only JSON-lines file that screens, reports, fits and resume read, and nothing else.

Every event has `v` (format), `seq`, `t` (wall seconds: the only thing in which two runs of one seed differ), `clock`
(seconds of the world's clock), `gpu_h` and `kind`, and ends with `crc`, the checksum of its line, which format 1 had
not. `heartbeat` and `resume` carry no `seq`; a `resume` voids every earlier event whose `seq` is `from_seq` or more.
Readers verify nothing: `scalerl/timeline.py` does.
"""

import json
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from scalerl.errors import InputError
from scalerl.nesting import DEEPEST, too_deep

FORMAT = 2
UNNUMBERED = ("heartbeat", "resume")
HEARTBEAT_S = 5.0
_CRC = ',"crc":"'

Event = dict[str, Any]


class EventLog:
    """The writer. One line a write, flushed at once; a listener sees each event as it is written.

    While a file is open, a thread of its own writes a heartbeat whenever nothing else was written for five wall
    seconds: a long computation, or a wait, is then told from a dead process.
    """

    def __init__(
        self, path: Path | None = None, listen: Callable[[Event], None] | None = None
    ) -> None:
        self._listen = listen
        self._started = self._last_write = time.monotonic()
        self._last = {"clock": 0.0, "gpu_h": 0.0}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self.seq = 0
        self._file, self._torn = None, False
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A killed run, or a full disk, left half a line: the next one ends it, and only that is unreadable.
            self._torn = _ends_mid_line(path)
            # unbuffered: what a full disk refuses is not tried again, half, when the file is closed
            self._file = path.open("ab", buffering=0)
            threading.Thread(target=self._beat, daemon=True).start()

    def emit(self, kind: str, *, clock: float, gpu_h: float, **fields: Any) -> None:
        """Append one event."""
        event: Event = {"v": FORMAT}
        if kind not in UNNUMBERED:
            event["seq"] = self.seq
            self.seq += 1
        self._last = {"clock": clock, "gpu_h": gpu_h}
        event |= {"t": self._now(), **self._last, "kind": kind, **fields}
        self._write(event)
        if self._listen is not None:
            self._listen(event)

    def fault(self, error: Exception) -> None:
        """What ended a run, when there is no loop left to say it; at the time of the last event."""
        self.emit("fault", cause=str(error), error=type(error).__name__, **self._last)

    def resume(self, from_seq: int, *, clock: float, gpu_h: float) -> None:
        """Void what was written after a checkpoint; the next event has seq = from_seq."""
        self.emit("resume", clock=clock, gpu_h=gpu_h, from_seq=from_seq)
        self.seq = from_seq

    def sync(self) -> None:
        """Have all that was written on the disk before going on: a checkpoint must not outlive its events."""
        with self._lock:
            if self._file is not None:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _now(self) -> float:
        return round(time.monotonic() - self._started, 3)

    def _write(self, event: Event) -> None:
        with self._lock:
            self._last_write = time.monotonic()
            if self._file is not None:
                line = seal(json.dumps(event, separators=(",", ":"), allow_nan=False)) + "\n"
                rest = memoryview(("\n" + line if self._torn else line).encode())
                self._torn = True
                while rest:  # in one go, but where the disk takes only a part
                    rest = rest[self._file.write(rest) :]
                self._torn = False

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S / 5):
            if time.monotonic() - self._last_write >= HEARTBEAT_S:
                with suppress(OSError):  # a disk that is full: the next event says so
                    self._write({"v": FORMAT, "t": self._now(), **self._last, "kind": "heartbeat"})


def seal(text: str) -> str:
    """A JSON object that is not empty, with a last field `crc`: CRC-32 of the bytes before it, in eight hex digits."""
    body = text[:-1]
    return f'{body}{_CRC}{zlib.crc32(body.encode()):08x}"}}'


def seals(line: bytes) -> tuple[str, str]:
    """The checksum that a line ends with, and that of its bytes; ("", "") if it ends with none."""
    body, mark, digits, end = line[:-18], line[-18:-10], line[-10:-2], line[-2:]
    if mark != _CRC.encode() or end != b'"}':
        return "", ""
    return digits.decode("ascii", "replace"), f"{zlib.crc32(body):08x}"


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
            if (event := parse_event(line)) is not None:
                yield event


def read_events(path: Path) -> list[Event]:
    """The surviving timeline: numbered events in order of `seq`, without what a later `resume` voided."""
    return surviving(parse_lines(path))


def last_events(path: Path, most: int = 128 * 1024) -> list[Event]:
    """The readable events in the last `most` bytes of a log, voided ones included; of a longer last line, that line.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        while True:
            start = max(size - most, 0)
            file.seek(start)
            data = file.read()
            found = [
                event for line in data.split(b"\n") if (event := parse_event(line)) is not None
            ]
            if found or start == 0:
                return found
            most *= 4


def parse_event(line: str | bytes) -> Event | None:
    """The event of a line; None where it is none."""
    if isinstance(line, bytes):
        line = line.decode("utf-8", "replace")
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if line.count("[") + line.count("{") > DEEPEST and too_deep(event):
        return None
    return event if is_event(event) else None


def is_event(value: Any) -> TypeGuard[Event]:
    """Whether a JSON value is an event at all: an object with a kind."""
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def surviving(events: Iterable[Event]) -> list[Event]:
    """`read_events` of events that have been read already, or of a piece of a log."""
    alive: list[Event] = []
    for event in events:
        if event["kind"] == "resume":
            start = event.get("from_seq", 0)
            if not isinstance(start, int):
                continue
            while alive and alive[-1]["seq"] >= start:
                alive.pop()
        elif isinstance(event.get("seq"), int):
            alive.append(event)
    return alive


def evaluations(events: list[Event], evaluation_set: str = "validation") -> list[Event]:
    """The `eval` events of one set, in order of compute; one without a number for C or pass rate is passed over."""
    points = [
        event
        for event in events
        if event["kind"] == "eval"
        and event.get("set") == evaluation_set
        and all(is_number(event.get(name)) for name in ("C", "pass_rate"))
    ]
    return sorted(points, key=lambda event: event["C"])


def lost_evaluations(events: list[Event], evaluation_set: str = "validation") -> int:
    """How many `eval` events of a set have no number for C or pass rate, and so are no points."""
    asked = [e for e in events if e["kind"] == "eval" and e.get("set") == evaluation_set]
    return len(asked) - len(evaluations(events, evaluation_set))


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a field holds a finite number."""
    if (
        type(value) is float
    ):  # most are: logs of a hundred thousand events are asked this a million times
        return math.isfinite(value)
    try:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(float(value))
        )
    except OverflowError:  # an integer of hundreds of digits
        return False
