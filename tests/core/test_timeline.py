"""Whether a log can be believed: torn, edited, foreign and newer lines by place, gaps and repeats on what survives."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spoiled_logs import JSON

from scalerl.errors import InputError
from scalerl.events import EventLog, seal, surviving
from scalerl.timeline import Flaw, read_timeline, told, verify_lines

# What becomes of the lines of a log.
Damage = Callable[[list[bytes]], object]


def log_of(path: Path, *steps: str | int) -> Path:
    """A log as a run writes it: an event of each kind, and a resume for each number."""
    log = EventLog(path)
    for clock, step in enumerate(steps):
        if isinstance(step, int):
            log.resume(step, clock=float(step), gpu_h=0.0)
        else:
            log.emit(step, clock=float(min(clock, log.seq)), gpu_h=0.0)
    log.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return log_of(tmp_path / "events.jsonl", "run", *["update"] * 5)


def spoil(path: Path, damage: Damage) -> list[bytes]:
    """Change the lines of a log, which come without their newlines; returns them as they were."""
    lines = path.read_bytes().splitlines()
    before = list(lines)
    damage(lines)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return before


def put(lines: list[bytes], place: int, line: bytes | str | dict) -> None:
    """Another line in the place of one."""
    if isinstance(line, dict):
        line = json.dumps(line)
    lines[place] = line if isinstance(line, bytes) else line.encode()


def v2(line: bytes, **changes: Any) -> str:
    """An event with other fields, sealed anew."""
    event = {**json.loads(line), **changes}
    del event["crc"]
    return seal(json.dumps(event, separators=(",", ":")))


def faults(path: Path) -> list[tuple[Flaw, int | None, str]]:
    return sorted((f.flaw, f.seq, f.what) for f in read_timeline(path).faults)


def test_a_log_as_it_was_written_has_no_fault(path: Path) -> None:
    found = read_timeline(path)
    assert found.faults == found.before(6) == []
    assert (found.lines, found.end, found.resumes, found.unsealed) == (6, 6, 0, 0)
    assert found.head is not None and found.head["kind"] == "run"
    assert [line.offset for line in verify_lines(path)][:2] == [
        0,
        path.read_bytes().index(b"\n") + 1,
    ]


def test_any_history_of_resumes_has_none_either(tmp_path: Path) -> None:
    steps = [
        "run",
        "update",
        "update",
        2,
        "heartbeat",
        "update",
        "update",
        0,
        "run",
        "update",
        1,
        "update",
    ]
    found = read_timeline(log_of(tmp_path / "events.jsonl", *steps))  # fmt: skip
    assert found.faults == [] and (found.end, found.resumes) == (2, 3)


@pytest.mark.parametrize(
    ("flaw", "why", "line"),
    [
        (Flaw.EDITED, "was edited: its checksum is ", lambda old: old.replace(b"update", b"uqdate")),
        (Flaw.EDITED, "was edited: its checksum is ", lambda old: old.replace(b'"v":2', b'"v":1')),
        (Flaw.EDITED, "was edited: its checksum is ", lambda old: old.replace(b'"v":2', b'"v":{')),
        (Flaw.EDITED, "was edited: it has lost its checksum", lambda old: old[:-18] + b"}"),
        (Flaw.NEWER, "has format 3; this version reads 1 and 2", lambda old: v2(old, v=3)),
        (Flaw.CLOCK, "the clock falls from 1 to 0.5 s", lambda old: v2(old, clock=0.5)),
    ],
)  # fmt: skip
def test_a_line_that_is_an_event_no_more_as_it_was(
    path: Path, flaw: Flaw, why: str, line: Callable[[bytes], bytes | str]
) -> None:
    before = spoil(path, lambda lines: put(lines, 2, line(lines[2])))
    place = f"line 3 (byte {len(before[0]) + len(before[1]) + 2})"
    found = [f for f in read_timeline(path).faults if f.flaw is flaw]
    assert [(f.seq, f.what.startswith(place), why in f.what) for f in found] == [(2, True, True)]


@pytest.mark.parametrize(
    ("flaw", "why", "line"),
    [
        (Flaw.TORN, "is torn after 20 bytes", lambda old: old[:20]),
        (Flaw.TORN, "holds 4 NUL bytes, as a power cut leaves them", lambda old: b"\0" * 4),
        (Flaw.FOREIGN, "is no event", lambda old: b"not json"),
        (Flaw.FOREIGN, "is no event", lambda old: b"[" * 50_000),
        (Flaw.FOREIGN, "is no event", lambda old: b"\xff\xfe{}"),
        (Flaw.FOREIGN, "no format number", lambda old: b'{"kind":"update","seq":2}'),
        (Flaw.FOREIGN, "its seq is no number of an event", lambda old: v2(old, seq=-1)),
        (Flaw.FOREIGN, "its seq is no number of an event", lambda old: v2(old, seq=10**400)),
        (Flaw.FOREIGN, "its seq is no number of an event", lambda old: v2(old, seq="2")),
    ],
)
def test_a_line_in_whose_place_an_event_is_missing(
    path: Path, flaw: Flaw, why: str, line: Callable[[bytes], bytes | str]
) -> None:
    spoil(path, lambda lines: put(lines, 2, line(lines[2])))
    found = read_timeline(path)
    [one] = [f for f in found.faults if f.flaw is flaw]
    assert one.what.startswith("line 3 (byte ") and why in one.what
    if "format number" not in why:  # a reader takes it for an event: nothing is missing
        [gap] = [f for f in found.faults if f.flaw is Flaw.GAP]
        assert gap.what.startswith("line 4 (byte ") and gap.seq == 2
        assert "has seq 3 where 2 comes next: 1 events are missing" in gap.what
    assert one.seq == 2


def test_lines_that_cost_nothing(path: Path) -> None:
    """A torn one before a whole one, a foreign one between two, blank ones."""
    spoil(path, lambda lines: lines.insert(2, lines[2][:30]))
    spoil(path, lambda lines: lines.insert(4, b"# a remark"))
    spoil(path, lambda lines: lines.insert(1, b"  "))
    found = read_timeline(path)
    assert [(f.flaw, f.seq) for f in found.faults] == [(Flaw.TORN, None), (Flaw.FOREIGN, None)]
    assert found.before(99) == found.missing(99) and found.lines == 8


def test_lines_that_are_missing_or_there_twice(path: Path) -> None:
    spoil(path, lambda lines: lines.__delitem__(slice(1, 3)))
    [gap] = read_timeline(path).faults
    assert gap.what.endswith("has seq 3 where 1 comes next: 2 events are missing") and gap.seq == 1
    spoil(path, lambda lines: lines.append(lines[-1]))
    assert [flaw for flaw, _, _ in faults(path)] == [Flaw.GAP, Flaw.REPEAT]


def test_only_what_survives_below_the_checkpoint_counts(tmp_path: Path) -> None:
    """Of seq 0 to 3, 2 and 3 voided and written again: the old 2 and a heartbeat may be anything."""
    steps = ["run", "update", "update", "update", 2, "heartbeat", "update", "update"]
    path = log_of(tmp_path / "events.jsonl", *steps)
    edit: Callable[[bytes], bytes] = lambda line: line.replace(b'"t":', b'"T":')  # noqa: E731
    spoil(path, lambda lines: [put(lines, place, edit(lines[place])) for place in (2, 5, 7)])
    assert [(f.flaw, f.seq) for f in read_timeline(path).faults] == [
        (Flaw.EDITED, None), (Flaw.EDITED, None), (Flaw.EDITED, 3),
    ]  # fmt: skip
    assert read_timeline(path).before(3) == []
    [fault] = read_timeline(path).before(4)
    assert fault.what.startswith("line 8 (byte ")


def test_an_edited_resume_is_told(tmp_path: Path) -> None:
    path = log_of(tmp_path / "events.jsonl", "run", "update", "update", 2, "update")
    spoil(path, lambda lines: put(lines, 3, lines[3].replace(b'"from_seq":2', b'"from_seq":1')))
    assert [(flaw, seq) for flaw, seq, _ in faults(path)] == [(Flaw.EDITED, 1), (Flaw.GAP, 1)]


def test_a_log_that_ends_too_early(path: Path) -> None:
    [end] = read_timeline(path).before(9)
    assert end.what == "the log ends before seq 6, a checkpoint goes on at 9: 3 events are missing"


def test_a_last_line_that_is_torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    [fault] = read_timeline(path).faults
    assert (fault.flaw, fault.seq, fault.last) == (Flaw.TORN, 5, True)
    log = EventLog(path)  # a resume ends it; what it tells of then is void
    log.resume(5, clock=0.0, gpu_h=0.0)
    log.close()
    assert [(f.seq, f.last) for f in read_timeline(path).faults] == [(None, False)]


def test_lines_of_format_1_have_no_checksum(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps({"v": 1, "seq": seq, "kind": "update"}) for seq in range(3)]
    path.write_text("\n".join(lines) + "\n")
    found = read_timeline(path)
    assert found.faults == [] and found.unsealed == 3


def test_line_ends_of_another_system_are_no_edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_timeline(path).faults == []


def test_a_few_faults_are_told_one_by_one(path: Path) -> None:
    spoil(path, lambda lines: lines.extend([b"x"] * 9))
    said = told(read_timeline(path).faults)
    assert said.count("is no event") == 5 and said.endswith("; and 4 more")


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the event log .*: No such file"):
        read_timeline(tmp_path / "absent")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 7), st.booleans())
def test_no_flipped_bit_and_no_cut_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, cut: bool
) -> None:
    """But for the newline at the end, which is no part of a line."""
    path = log_of(tmp_path_factory.getbasetemp() / "bits.jsonl", "run", "update", "eval")
    spoiled = bytearray(path.read_bytes())
    at %= len(spoiled) - 1
    if cut:
        del spoiled[at:]
    else:
        spoiled[at] ^= 1 << bit
    path.write_bytes(spoiled)
    # a cut between two lines leaves a whole log that ends too early, as its checkpoint can tell
    found = read_timeline(path).before(3)
    assert found or read_timeline(path).faults
    path.unlink()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["update", "resume", "heartbeat", 3]), JSON, JSON, JSON)))
def test_whatever_stands_in_its_events(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple]
) -> None:
    """Never a traceback; and with no fault, what is left is what readers take."""
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    events = [
        {"v": 2, "kind": kind, "from_seq": start, "clock": clock}
        | ({} if kind == "heartbeat" else {"seq": seq})
        for kind, seq, start, clock in rows
    ]
    path.write_text("".join(seal(json.dumps(event)) + "\n" for event in events))
    found = read_timeline(path)
    if not found.faults:
        alive = surviving([event for event in events if isinstance(event["kind"], str)])
        assert [event["seq"] for event in alive] == list(range(found.end))


def test_junk_is_read_quickly(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{" * 2_000_000 + b"\n" + b"\n".join([b'{"v":2,"seq":9'] * 50_000))
    start = time.process_time()
    assert len(read_timeline(path).faults) == 50_001
    assert (
        time.process_time() - start < 20
    )  # in time that grows with the square it would be minutes
