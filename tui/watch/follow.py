"""An event log read as it grows: events as they come, and the state of the run behind them."""

import signal
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import orjson

from scalerl.events import FORMAT, UNNUMBERED, Event, is_event, parse_event
from scalerl.nesting import DEEPEST, too_deep
from tui.watch.feeds import Feed, Restarted
from tui.words import duration

BUDGET = 128 * 1024  # bytes a poll; 2 ms of CPU, so that a long log never freezes the screen
LONGEST_LINE = 8 * 1024 * 1024  # bytes
STALE_S, STALE_GAPS = 15.0, 3.0  # without a line for longer than both: three heartbeats, three gaps
SILENT_S, SILENT_GAPS = 60.0, 10.0
_GAPS = 32  # the median gap is of the last so many


class State(StrEnum):
    """What is known of the run behind a log."""

    WAITING = "waiting"  # no line yet
    CATCHING_UP = "catching up"  # more than one budget of bytes is still to be read
    LIVE = "live"  # lines come
    STALE = "stale"  # no line for 15 s and three times the usual gap
    SILENT = "silent"  # no line, not even a heartbeat, for 60 s and ten times the usual gap
    FINISHED = "finished"  # the log says how the run ended, or nothing more can come
    CRASHED = "crashed"  # the log holds the fault that ended the run, or its process failed


@dataclass(frozen=True)
class Batch:
    """What one poll brought: events in the order of the file, without heartbeats, voided ones included."""

    events: list[Event]
    restarted: bool  # all events of earlier batches are void: the log was truncated or replaced


class Follower:
    """Reads one feed. `poll` is called again and again; everything else says how things stand.

    Attributes:
        bytes_read: since the log last started.
        resets: how often it started anew.
        unreadable: lines that are no event, since it last started.
        newer: the highest format above ours that an event claimed; None if none did.
    """

    def __init__(self, feed: Feed, now: Callable[[], float] = time.monotonic) -> None:
        self._feed, self._now = feed, now
        self.resets = 0
        self._exit: int | None = None
        self._exit_is_old = False  # whether all that was written before the exit has been read
        self._begin()

    def _begin(self) -> None:
        """Know nothing of the log."""
        self.bytes_read = 0
        self.unreadable = 0
        self._events_seen = False
        self.newer: int | None = None
        self._torn: list[bytes] = []  # the start of a line whose end has not come
        self._behind = False
        self._forget_end()
        self._last_line: float | None = None
        self._last_batch: float | None = None
        self._gaps: deque[float] = deque(maxlen=_GAPS)

    def _forget_end(self) -> None:
        self._end: tuple[State, str] | None = None  # what the log says of it
        if self._exit_is_old:  # otherwise it is the start of the very process that has ended
            self._exit = None

    def poll(self, budget: int = BUDGET) -> Batch:
        """Events of the next `budget` bytes at most; never waits."""
        try:
            data = self._feed.read(budget)
        except Restarted:
            self._begin()
            self.resets += 1
            return Batch([], restarted=True)
        self.bytes_read += len(data)
        self._exit_is_old = self._exit is not None and (self._exit_is_old or not data)
        size = self._feed.size
        more = len(data) >= budget if size is None else size - self.bytes_read > budget
        self._behind = more and not self._feed.ended
        events = self._events(self._complete(data))
        if any(event["kind"] not in UNNUMBERED for event in events):
            self._note_gap()
        return Batch([e for e in events if e["kind"] != "heartbeat"], restarted=False)

    def exited(self, code: int) -> None:
        """The process that writes the log ended: its exit code, or minus the signal that killed it."""
        self._exit, self._exit_is_old = code, False

    def close(self) -> None:
        self._feed.close()

    # ---- from bytes to events ----

    def _complete(self, data: bytes) -> bytes:
        """The lines that are whole now; the rest is kept until its newline comes, or nothing more can."""
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            whole = b"".join([*self._torn, whole])
            self._torn = []
        self._torn.append(rest)
        if sum(map(len, self._torn)) > LONGEST_LINE:  # no log of ours, and no end in sight
            self._torn = []
            self.unreadable += 1
        if self._feed.ended:
            whole = b"\n".join([whole, b"".join(self._torn)])
            self._torn = []
        return whole

    def _events(self, lines: bytes) -> list[Event]:
        events: list[Event] = []
        now = self._now()
        for line in lines.split(b"\n"):
            if not line.strip():
                continue
            self._last_line = now
            event = _event(line)
            if event is None:
                self.unreadable += 1
            else:
                events.append(event)
                self._events_seen = True
                self._learn(event)
        return events

    def _learn(self, event: Event) -> None:
        """What an event says about the log and the end of the run."""
        version = event.get("v")
        if isinstance(version, int) and version > max(FORMAT, self.newer or 0):
            self.newer = version
        match event["kind"]:
            case "done":
                self._end = State.FINISHED, _how_it_ended(str(event.get("status", "done")))
            case "fault" if "group" not in event:  # one with a group is one lost request
                cause = f"{event.get('error', 'fault')}: {event.get('cause', 'no cause given')}"
                self._end = State.CRASHED, f"crashed: {cause}; it resumes from its last checkpoint"
            case "resume":
                self._forget_end()

    def _note_gap(self) -> None:
        now = self._now()
        if self._behind:
            self._last_batch = None
            return
        if self._last_batch is not None:
            self._gaps.append(now - self._last_batch)
        self._last_batch = now

    # ---- how things stand ----

    @property
    def state(self) -> State:
        age, gap = self.age_s or 0.0, self.interval_s or 0.0
        stale = age > max(STALE_S, STALE_GAPS * gap)
        if self._behind and not stale:
            return State.CATCHING_UP
        if self._end is not None and self._end[0] is State.FINISHED:
            return (
                State.FINISHED
            )  # a run that was stopped says so, and exits with a code of its own
        if self._end is not None or self._exit:
            return State.CRASHED
        if self._feed.ended or self._exit == 0:
            return State.FINISHED
        if self._last_line is None:
            return State.WAITING
        if age > max(SILENT_S, SILENT_GAPS * gap):
            return State.SILENT
        return State.STALE if stale else State.LIVE

    @property
    def is_whole(self) -> bool:
        """Whether all of it has been read and nothing more can come: of a recording."""
        return self._feed.ended

    @property
    def progress(self) -> float | None:
        """Share of the log that is read, while catching up; None otherwise, or where its size is unknown."""
        if self.state is not State.CATCHING_UP or not self._feed.size:
            return None
        return min(self.bytes_read / self._feed.size, 1.0)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last line of any kind came, heartbeats included; None before the first."""
        return None if self._last_line is None else self._now() - self._last_line

    @property
    def interval_s(self) -> float | None:
        """Median seconds between polls that brought events, while not catching up; None before the second."""
        return statistics.median(self._gaps) if self._gaps else None

    @property
    def name(self) -> str:
        """Where the log lies, for a person."""
        return self._feed.name

    @property
    def problem(self) -> str | None:
        """Why nothing comes, and the way out; None if all is well."""
        return self._feed.problem

    @property
    def notices(self) -> list[str]:
        """What is odd about the log itself, whatever the state: one sentence each."""
        found: list[str] = []
        if self.resets:
            again = f" ({_ordinal(self.resets)} time)" if self.resets > 1 else ""
            found.append(f"log restarted at update 0{again}")
        if self.unreadable and not self._events_seen:
            found.append("no event in it so far: is it the log of a run?")
        elif self.unreadable:
            lines = "line" if self.unreadable == 1 else "lines"
            found.append(f"{self.unreadable:,} unreadable {lines} skipped")
        if self.newer is not None:
            found.append(
                f"log format {self.newer}, this program knows up to {FORMAT}: unknown fields are ignored"
            )
        return found

    @property
    def says(self) -> str:
        """The state and what is odd about the log, in one sentence that names the way out."""
        return "; ".join([self._state_says(), *self.notices])

    def _state_says(self) -> str:
        age, problem = duration(self.age_s or 0.0), self.problem
        match self.state:
            case State.WAITING:
                return f"waiting for {self.name}: {problem or 'nothing is written there yet'}"
            case State.CATCHING_UP:
                share = self.progress
                of = f", {share:.0%}" if share is not None else ""
                return f"catching up{of}: {self.bytes_read / 1e6:.1f} MB read"
            case State.STALE:
                return f"no new line for {age}: {problem or 'is the trainer silent?'}"
            case State.SILENT:
                why = "the trainer hangs, was killed, or cannot be reached; look where it runs"
                return f"no new line for {age}, not even a heartbeat: {problem or why}"
            case State.LIVE:
                return f"following {self.name}" + (f": {problem}" if problem else "")
            case State.FINISHED | State.CRASHED:
                return self._end_says()

    def _end_says(self) -> str:
        if self._end is not None:
            return self._end[1]
        if self._exit is not None:
            return how_it_exited(self._exit)
        return self.problem or "the recording ends before the run does"


def _event(line: bytes) -> Event | None:
    """The event of a line; integers beyond 64 bits become floats."""
    try:
        event = orjson.loads(line)
    except ValueError:  # stricter than Python: with NaN, and with bytes that are no text
        return parse_event(line.decode("utf-8", "replace"))
    if line.count(b"[") + line.count(b"{") > DEEPEST and too_deep(event):
        return None
    return event if is_event(event) else None


def _how_it_ended(status: str) -> str:
    match status:
        case "stopped":
            return "stopped: can be resumed"
        case "exhausted":
            return "finished: every training prompt was excluded"
        case "done":
            return "finished"
    return f"finished: {status}"


def how_it_exited(code: int) -> str:
    """Exit code, or the signal by name, with a hint."""
    if code == 0:
        return "the process ended without a last word in the log"
    if code > 0:
        return f"the process ended with exit code {code}: its last lines on stderr say why"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": was there memory enough?" if name == "SIGKILL" else ""
    return f"the process was killed by {name}{hint}"


def _ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"
