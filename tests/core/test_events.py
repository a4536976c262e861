"""The event stream: numbering, torn lines, what a resume voids, and readers that tolerate what they do not know."""

import json
import os
from pathlib import Path
from time import sleep
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.events import (
    Event,
    EventLog,
    evaluations,
    lost_evaluations,
    parse_lines,
    read_events,
    seal,
    seals,
    surviving,
)

AT: dict[str, Any] = {"clock": 0.0, "gpu_h": 0.0}


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def numbered(*seqs: int) -> list[str]:
    return [json.dumps({"kind": "update", "seq": seq, "mark": i}) for i, seq in enumerate(seqs)]


def resume(from_seq: int) -> str:
    return json.dumps({"kind": "resume", "from_seq": from_seq})


class FakeTime:
    """The one function of `time` that the writer reads."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr("scalerl.events.time", fake)
    return fake


# ---- the writer ----


def test_an_event_is_one_line_with_the_common_fields(tmp_path: Path, time: FakeTime) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    heard: list[Event] = []
    log = EventLog(path, heard.append)
    time.now += 2.5
    log.emit("update", clock=7.0, gpu_h=0.25, loss=1.5, note="two\nlines")
    # flushed: readable before the file is closed
    text = path.read_text()
    log.close()
    assert text.count("\n") == 1 and text.endswith("\n")
    event = json.loads(text)
    said, found = seals(text[:-1].encode())
    assert event.pop("crc") == said == found == f"{crc32(text[:-19].encode()):08x}"
    assert event == {
        "v": 2,
        "seq": 0,
        "t": 2.5,
        "clock": 7.0,
        "gpu_h": 0.25,
        "kind": "update",
        "loss": 1.5,
        "note": "two\nlines",
    }
    assert heard == [event]


def test_seq_counts_all_but_heartbeat_and_resume(tmp_path: Path) -> None:
    heard: list[Event] = []
    log = EventLog(tmp_path / "events.jsonl", heard.append)
    for kind in ("run", "heartbeat", "update", "eval"):
        log.emit(kind, **AT)
    log.resume(1, **AT)
    log.emit("update", **AT)
    log.close()
    assert [(e["kind"], e.get("seq")) for e in heard] == [
        ("run", 0),
        ("heartbeat", None),
        ("update", 1),
        ("eval", 2),
        ("resume", None),
        ("update", 1),
    ]
    assert heard[4]["from_seq"] == 1
    assert [e["kind"] for e in read_events(tmp_path / "events.jsonl")] == ["run", "update"]


def test_without_a_file_only_the_listener_hears() -> None:
    heard: list[Event] = []
    log = EventLog(listen=heard.append)
    log.emit("run", **AT)
    log.close()
    assert [e["kind"] for e in heard] == ["run"]
    EventLog().emit("run", **AT)  # nobody listens, nothing fails


def test_a_heartbeat_only_after_quiet_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by a thread of its own, also while the run computes; at the clock of the last event, without a seq."""
    monkeypatch.setattr("scalerl.events.HEARTBEAT_S", 0.2)
    log = EventLog(tmp_path / "events.jsonl")
    log.emit("run", clock=3.0, gpu_h=0.5)
    sleep(0.1)
    assert [e["kind"] for e in parse_lines(tmp_path / "events.jsonl")] == ["run"]
    sleep(0.9)
    log.close()
    written = list(parse_lines(tmp_path / "events.jsonl"))
    beats = [e for e in written if e["kind"] == "heartbeat"]
    assert 2 <= len(beats) <= 5  # every 0.2 s of silence, looked for every 0.04 s
    assert all(e["clock"] == 3.0 and e["gpu_h"] == 0.5 and "seq" not in e for e in beats)
    assert log.seq == 1
    sleep(0.4)
    assert list(parse_lines(tmp_path / "events.jsonl")) == written  # a closed log is silent


def test_not_a_number_is_not_written(tmp_path: Path) -> None:
    """JSON has no NaN: a metric without a value is null, and a NaN is a fault to be seen at once."""
    log = EventLog(tmp_path / "events.jsonl")
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            log.emit("update", **AT, loss=value)
    log.emit("update", **AT, loss=None)
    log.close()
    assert [e["loss"] for e in parse_lines(tmp_path / "events.jsonl")] == [None]


def test_two_writers_append_and_the_file_ends_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for _ in range(2):
        log = EventLog(path)
        log.emit("run", **AT)
        log.close()
    assert len(list(parse_lines(path))) == 2 and path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("cut", [1, 2, 20, -2, -1])
def test_a_torn_line_costs_itself_only(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.emit("run", **AT)
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut])
    # cut = -1 loses nothing but the end of line: the event is there
    assert [e["kind"] for e in parse_lines(path)] == ["run"] * (2 if cut == -1 else 1)
    log = EventLog(path)
    log.emit("update", **AT)
    log.close()
    assert [e["kind"] for e in parse_lines(path)][-1] == "update"
    assert len(list(parse_lines(path))) == (3 if cut == -1 else 2)


class FullDisk:
    """A file that takes so many bytes, then none until there is room again."""

    def __init__(self, room: int) -> None:
        self.room, self.taken = room, b""

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        part = bytes(data[: self.room])
        self.taken += part
        self.room -= len(part)
        return len(part)

    def close(self) -> None:
        pass


def test_what_a_full_disk_cut_costs_one_line(tmp_path: Path) -> None:
    """The half line is not written again, nor does it swallow the next one."""
    log = EventLog(tmp_path / "events.jsonl")
    assert log._file is not None
    log._file.close()
    disk: Any = FullDisk(100)
    log._file = disk
    log.emit("run", **AT)
    with pytest.raises(OSError, match="No space left"):
        log.emit("update", **AT, text="x" * 200)
    assert len(disk.taken) == 100
    with pytest.raises(OSError, match="No space left"):
        log.emit("update", **AT)
    disk.room = 10_000
    log.emit("fault", **AT)
    log.emit("done", **AT)
    log.close()
    path = tmp_path / "kept.jsonl"
    path.write_bytes(disk.taken)
    assert [e["kind"] for e in parse_lines(path)] == ["run", "fault", "done"]


def test_a_heartbeat_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalerl.events.HEARTBEAT_S", 0.05)
    log = EventLog(tmp_path / "events.jsonl")
    assert log._file is not None
    log._file.close()
    disk: Any = FullDisk(0)
    log._file = disk
    sleep(0.2)
    disk.room = 10_000
    sleep(0.2)  # the thread goes on, and there is room again
    log.close()
    assert b"heartbeat" in disk.taken


def test_an_empty_file_is_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.touch()
    log = EventLog(path)
    log.emit("run", **AT)
    log.close()
    assert path.read_text().startswith("{")


def test_a_log_can_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    log = EventLog(tmp_path / "events.jsonl")
    log.emit("run", **AT)
    log.sync()
    assert synced == [(tmp_path / "events.jsonl").stat().st_size] and synced[0] > 0
    log.close()
    log.sync()
    EventLog().sync()  # without a file there is nothing to do
    assert len(synced) == 1


def test_a_seal_by_hand() -> None:
    assert crc32(b"123456789") == 0xCBF43926  # the check value of CRC-32
    body = '{"a":"ä"'
    sealed = seal(body + "}")
    assert sealed == f'{body},"crc":"{crc32(body.encode()):08x}"' + "}"
    assert len(set(seals(sealed.encode()))) == 1
    assert seals(b'{"a":1}') == seals(b"") == seals(b'","crc":"12345678') == ("", "")


# ---- readers ----


def test_readers_pass_over_what_they_do_not_know(tmp_path: Path) -> None:
    path = write(
        tmp_path / "events.jsonl",
        '{"kind": "run", "seq": 0, "field of the future": {"a": [1]}}',
        '{"kind": "kind of the future", "seq": 1}',
        "",
        "not json",
        "[1, 2]",
        '"kind"',
        "null",
        '{"no": "kind"}',
        '{"kind": 3}',
        '{"kind": "update", "seq"',
        '{"kind": "heartbeat"}',
        '{"kind": "update", "seq": 2}',
    )
    with path.open("ab") as file:
        file.write(b'{"kind": "sample", "seq": 3, "text": "\xff"}\n')  # a bad byte spoils no line
    assert [e["kind"] for e in read_events(path)] == [
        "run",
        "kind of the future",
        "update",
        "sample",
    ]
    assert [e["kind"] for e in parse_lines(path)].count("heartbeat") == 1


def test_a_growing_file_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "events.jsonl", *numbered(0, 1))
    reader = parse_lines(path)
    assert next(reader)["seq"] == 0
    with path.open("a") as file:
        file.write(numbered(2)[0] + "\n")
    assert [e["seq"] for e in reader] == [1, 2]


def test_a_missing_log_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"cannot read the event log .*absent\.jsonl: No such file"
    ):
        read_events(tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    ("lines", "marks"),
    [
        ([*numbered(0, 1, 2), resume(1)], [0]),
        ([*numbered(0, 1, 2), resume(3)], [0, 1, 2]),
        ([*numbered(0, 1, 2), resume(0)], []),
        # taken up twice from the same checkpoint, then once from a later one
        ([*numbered(0, 1, 2), resume(1), *numbered(1, 2), resume(1), *numbered(1)], [0, 0]),
        ([*numbered(0, 1), resume(1), *numbered(1, 2, 3), resume(3), *numbered(3)], [0, 0, 1, 0]),
        ([resume(0), *numbered(0)], [0]),
    ],
)
def test_a_resume_voids_what_came_after_its_checkpoint(
    tmp_path: Path, lines: list[str], marks: list[int]
) -> None:
    alive = read_events(write(tmp_path / "events.jsonl", *lines))
    assert alive == surviving([json.loads(line) for line in lines])
    assert [e["mark"] for e in alive] == marks
    assert [e["seq"] for e in alive] == list(range(len(alive)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.just("event"), st.just("heartbeat"), st.integers(0, 5)), max_size=25))
def test_the_surviving_timeline_counts_from_zero(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | int]
) -> None:
    """Whatever the history of resumes: no number twice, none missing, each the last written under that number."""
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    log = EventLog(path)
    last: dict[int, int] = {}
    for mark, step in enumerate(steps):
        if isinstance(step, int):
            log.resume(min(step, log.seq), **AT)
        else:
            if step == "event":
                last[log.seq] = mark
            log.emit(step, **AT, mark=mark)
    log.close()
    assert [(e["seq"], e["mark"]) for e in read_events(path)] == [
        (seq, last[seq]) for seq in range(log.seq)
    ]


def test_evaluations_of_one_set_in_order_of_compute() -> None:
    rate = {"pass_rate": 0.5}
    events: list[Event] = [
        {"kind": "eval", "set": "validation", "C": 3.0, **rate},
        {"kind": "eval", "set": "ood", "C": 1.0, **rate},
        {"kind": "update", "C": 0.5, **rate},
        {"kind": "eval", "set": "validation", "C": 0, **rate},  # ended late: it takes its time
        # damaged or foreign: passed over
        {"kind": "eval", "set": "validation", "C": None, **rate},
        {"kind": "eval", "set": "validation", "C": True, **rate},
        {"kind": "eval", "set": "validation", "C": float("nan"), **rate},
        {"kind": "eval", "set": "validation", "C": 2.0},
    ]
    assert [e["C"] for e in evaluations(events)] == [0.0, 3.0]
    assert [e["C"] for e in evaluations(events, "ood")] == [1.0]


def test_a_log_that_somebody_damaged_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    """Numbers of hundreds of digits, a resume to nowhere, a line nested beyond reason."""
    path = tmp_path / "events.jsonl"
    fine = {"seq": 0, "kind": "eval", "set": "validation", "C": 1.0, "pass_rate": 0.5}
    lines = [
        json.dumps(fine),
        json.dumps({**fine, "seq": 1, "C": 10**400}),
        json.dumps({"kind": "resume", "from_seq": "soon"}),
        "[" * 5_000,
        json.dumps({**fine, "seq": 2, "C": 2.0}),
    ]
    path.write_text("\n".join(lines) + "\n")
    events = read_events(path)
    assert [event["C"] for event in evaluations(events)] == [1.0, 2.0]
    assert lost_evaluations(events) == 1
