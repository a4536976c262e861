"""Whether a log can be believed: each line held to its checksum, the surviving timeline to its own numbers.

Readers of `scalerl/events.py` pass over what they cannot read and verify nothing; this says what that was, and where.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from scalerl.errors import InputError
from scalerl.events import FORMAT, UNNUMBERED, Event, is_number, parse_event, seals

LARGEST_SEQ = 2**53
SHOWN = 5  # faults that are told one by one


class Flaw(StrEnum):
    """What can be wrong with a line, or with its place."""

    TORN = "torn"  # its end is missing: a process was killed, a disk was full
    EDITED = "edited"  # its checksum is not that of its bytes
    FOREIGN = "foreign"  # no event of ours
    NEWER = "newer"  # of a later format
    GAP = "gap"  # events before it are missing
    REPEAT = "repeat"  # its number has been there
    CLOCK = "clock"  # its clock is earlier than the one before


@dataclass(frozen=True)
class Line:
    """A line that is not blank. `number` counts from 1; `offset` is its first byte in the file."""

    number: int
    offset: int
    event: Event | None
    flaw: Flaw | None = None
    why: str = ""
    ended: bool = True  # by a newline

    @property
    def place(self) -> str:
        return f"line {self.number} (byte {self.offset})"


@dataclass(frozen=True)
class Fault:
    """Something wrong. `seq`: the number from which on it touches the surviving timeline; None where it does not."""

    flaw: Flaw
    what: str
    seq: int | None = None
    last: bool = False  # it is the end of the file, and no newline follows


def verify_lines(path: Path) -> Iterator[Line]:
    """Every line of a log that is not blank, held to its checksum; lines of format 1 have none.

    Raises:
        InputError: it cannot be read.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read the event log {path}: {error.strerror}") from None
    with file:
        offset = 0
        for number, line in enumerate(file, 1):
            if text := line.strip():
                event = parse_event(text.decode("utf-8", "replace"))
                flaw, why = _flaw(text, event) or (None, "")
                yield Line(number, offset, event, flaw, why, line.endswith(b"\n"))
            offset += len(line)


def _flaw(line: bytes, event: Event | None) -> tuple[Flaw, str] | None:
    said, found = seals(line)
    if said != found and said:
        return Flaw.EDITED, f"was edited: its checksum is {said}, its bytes give {found}"
    if event is None:
        if b"\0" in line:
            return Flaw.TORN, f"holds {line.count(0)} NUL bytes, as a power cut leaves them"
        if line.startswith(b'{"v":') and not said:
            return Flaw.TORN, f"is torn after {len(line)} bytes"
        return Flaw.FOREIGN, "is no event"
    version = event.get("v")
    if isinstance(version, int) and version > FORMAT:
        return Flaw.NEWER, f"has format {version}; this version reads 1 and {FORMAT}"
    if version not in (1, FORMAT):
        return Flaw.FOREIGN, "is no event of ours: it has no format number"
    if version == FORMAT and not said:
        return Flaw.EDITED, "was edited: it has lost its checksum"
    name = "from_seq" if event["kind"] == "resume" else "seq"
    if event["kind"] != "heartbeat" and not _is_seq(event.get(name)):
        return Flaw.FOREIGN, f"is no event of ours: its {name} is no number of an event"
    return None


def _is_seq(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST_SEQ


@dataclass
class _Entry:
    """A line that may be on the surviving timeline; of one that cannot be read, `seq` is the next number then."""

    seq: int
    line: Line
    clock: float | None
    readable: bool


@dataclass
class Timeline:
    """What a log holds. `head` is its `run` event, `end` the number that comes next."""

    faults: list[Fault] = field(default_factory=list)  # in no order
    head: Event | None = None
    lines: int = 0
    resumes: int = 0
    end: int = 0
    unsealed: int = 0  # lines of format 1

    def before(self, seq: int) -> list[Fault]:
        """What is wrong with the surviving events whose number is below `seq`."""
        found = [fault for fault in self.faults if fault.seq is not None and fault.seq < seq]
        return found + self.missing(seq)

    def missing(self, seq: int) -> list[Fault]:
        """That the log ends before the event `seq - 1`, if it does."""
        if self.end >= seq:
            return []
        what = f"the log ends before seq {self.end}, a checkpoint goes on at {seq}"
        return [Fault(Flaw.GAP, f"{what}: {seq - self.end} events are missing", self.end)]


def read_timeline(path: Path) -> Timeline:
    """Read a log from its first line to its last, and hold what survives against its own numbers.

    Raises:
        InputError: it cannot be read.
    """
    found, alive = Timeline(), list[_Entry]()
    for line in verify_lines(path):
        found.lines += 1
        event = line.event
        found.unsealed += event is not None and event.get("v") == 1
        if event is not None and event["kind"] == "resume" and _is_seq(event.get("from_seq")):
            found.resumes += 1
            found.faults += _void(alive, event["from_seq"])
        if event is not None and event["kind"] in UNNUMBERED:
            seq = event.get("from_seq") if event["kind"] == "resume" else None
            found.faults += [_alone(line, seq if _is_seq(seq) else None)] if line.flaw else []
        else:
            alive.append(_entry(line, alive))
            if event is not None and event["kind"] == "run" and event.get("seq") == 0:
                found.head = event
    found.faults += _check(alive)
    found.end = alive[-1].seq + alive[-1].readable if alive else 0
    return found


def told(faults: Iterable[Fault]) -> str:
    """Faults in one sentence, the first of them one by one."""
    sentences = [fault.what for fault in faults]
    more = f"; and {len(sentences) - SHOWN} more" if len(sentences) > SHOWN else ""
    return "; ".join(sentences[:SHOWN]) + more


def _entry(line: Line, alive: list[_Entry]) -> _Entry:
    event = line.event or {}
    seq, clock = event.get("seq"), event.get("clock")
    line = replace(line, event=None)  # a long log would fill the memory
    if seq is not None and _is_seq(seq):
        return _Entry(seq, line, clock if is_number(clock) else None, readable=True)
    return _Entry(alive[-1].seq + alive[-1].readable if alive else 0, line, None, readable=False)


def _void(alive: list[_Entry], start: int) -> list[Fault]:
    faults: list[Fault] = []
    while alive and alive[-1].seq >= start:
        entry = alive.pop()
        faults += [_alone(entry.line)] if entry.line.flaw else []
    return faults


def _alone(line: Line, seq: int | None = None) -> Fault:
    assert line.flaw is not None
    return Fault(line.flaw, f"{line.place} {line.why}", seq, last=not line.ended)


def _check(alive: list[_Entry]) -> Iterator[Fault]:
    """Every line of the surviving timeline, in order: its own flaw, its number, its clock."""
    due, clock = 0, 0.0
    unreadable: list[Line] = []  # since the last event
    for entry in alive:
        if not entry.readable:
            unreadable.append(entry.line)
            continue
        place = entry.line.place
        lost = entry.seq > due
        yield from (_alone(line, due if lost else None) for line in unreadable)
        if lost:
            yield Fault(
                Flaw.GAP,
                f"{place} has seq {entry.seq} where {due} comes next: {entry.seq - due} events are missing",
                due,
            )
        elif entry.seq < due:
            yield Fault(
                Flaw.REPEAT, f"{place} has seq {entry.seq}, which has been there", entry.seq
            )
        if entry.line.flaw:
            yield _alone(entry.line, entry.seq)
        if entry.clock is not None and entry.clock < clock:
            yield Fault(
                Flaw.CLOCK,
                f"{place}: the clock falls from {clock:g} to {entry.clock:g} s",
                entry.seq,
            )
        clock = max(clock, entry.clock or 0.0)
        due, unreadable = entry.seq + 1, []
    yield from (_alone(line, due) for line in unreadable)
