"""Following a log: what a state is and says, lines torn anywhere, and any cut of the bytes gives the same events."""

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.events import Event
from tui.watch.feeds import Restarted
from tui.watch.follow import Follower, State
from tui.words import duration


class Fed:
    """A feed whose bytes the test gives; None among them is a restart."""

    def __init__(self, *pieces: bytes | None, size: int | None = None, ended: bool = False) -> None:
        self.pieces: list[bytes | None] = list(pieces)
        self.name, self.size, self.problem = "the log", size, None
        self.ended_after = ended
        self.closed = False

    @property
    def ended(self) -> bool:
        return self.ended_after and not self.pieces

    def read(self, most: int) -> bytes:
        if not self.pieces:
            return b""
        piece = self.pieces.pop(0)
        if piece is None:
            raise Restarted
        if len(piece) > most:
            self.pieces.insert(0, piece[most:])
        return piece[:most]

    def close(self) -> None:
        self.closed = True


class Log:
    """A follower with its feed and a clock, both in the hands of the test."""

    def __init__(self, *pieces: bytes | None, size: int | None = None, ended: bool = False) -> None:
        self.feed: Any = Fed(*pieces, size=size, ended=ended)
        self.now = 1000.0
        self.follower = Follower(self.feed, lambda: self.now)

    def comes(self, *events: Event, after: float = 0.0) -> list[Event]:
        self.now += after
        self.feed.pieces.append(lines(*events))
        return self.follower.poll().events

    def after(self, seconds: float) -> State:
        self.now += seconds
        return self.follower.state


def lines(*events: Event) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def update(seq: int) -> Event:
    return {"v": 1, "seq": seq, "kind": "update"}


ROW = b'{"kind":"update","seq":1,"x":"forty.."}\n'
HEARTBEAT: Event = {"v": 1, "kind": "heartbeat"}
RESUME: Event = {"v": 1, "kind": "resume", "from_seq": 0}
FAULT: Event = {"v": 1, "seq": 9, "kind": "fault", "error": "BatchError", "cause": "NaN in step 7"}


def done(status: str) -> Event:
    return {"v": 1, "seq": 9, "kind": "done", "status": status}


# ---- states ----


def test_a_log_without_a_line_is_waited_for_however_long() -> None:
    log = Log()
    log.follower.poll()
    assert log.after(1e6) is State.WAITING
    assert log.follower.age_s is None and log.follower.interval_s is None
    assert log.follower.says == "waiting for the log: nothing is written there yet"
    log.feed.problem = "the file does not exist yet; it is read as soon as it does"
    assert log.follower.says == f"waiting for the log: {log.feed.problem}"


def test_half_a_line_is_no_line() -> None:
    log = Log(b'{"kind":"upd')
    assert log.follower.poll().events == []
    assert log.follower.state is State.WAITING
    log.feed.pieces = [b'ate","seq":0}\n']
    assert log.follower.poll().events == [{"kind": "update", "seq": 0}]
    assert log.follower.state is State.LIVE


def test_catching_up_lasts_while_more_than_one_budget_is_left() -> None:
    assert len(ROW) == 40
    log = Log(ROW * 10, size=400)
    assert len(log.follower.poll(100).events) == 2  # 2.5 lines
    assert (log.follower.state, log.follower.progress) == (State.CATCHING_UP, 0.25)
    assert log.follower.says == "catching up, 25%: 0.0 MB read"
    log.follower.poll(100)
    assert log.follower.progress == 0.5  # 200 of 400 left, two budgets
    log.follower.poll(100)  # 100 left: exactly one
    assert (log.follower.state, log.follower.progress) == (State.LIVE, None)
    assert len(log.follower.poll(100).events) == 3


def test_where_the_size_is_unknown_a_full_read_means_that_there_is_more() -> None:
    log = Log(lines(*map(update, range(3))))
    log.follower.poll(100)
    assert (log.follower.state, log.follower.progress) == (State.CATCHING_UP, None)
    assert log.follower.says == "catching up: 0.0 MB read"
    log.follower.poll(100)
    assert log.follower.state is State.LIVE


def test_catching_up_that_gets_nothing_more_turns_stale() -> None:
    log = Log(lines(update(0)), size=10**6)
    log.follower.poll()
    assert log.after(15.0) is State.CATCHING_UP
    log.feed.problem = "the connection ended; next try in 1 s"
    assert log.after(0.1) is State.STALE
    assert log.follower.says == "no new line for 15s: the connection ended; next try in 1 s"


def test_without_a_usual_gap_a_log_is_stale_after_15_and_silent_after_60_seconds() -> None:
    log = Log()
    log.comes(update(0))
    assert log.after(15.0) is State.LIVE
    assert log.after(0.5) is State.STALE
    assert log.follower.says == "no new line for 15s: is the trainer silent?"
    assert log.after(44.5) is State.STALE  # 60.0
    assert log.after(70.0) is State.SILENT
    assert log.follower.says.startswith("no new line for 2m10s, not even a heartbeat: the trainer")


def test_a_slow_run_is_given_three_and_ten_of_its_usual_gaps() -> None:
    log = Log()
    for seq, gap in enumerate([0.0, 10.0, 10.0, 50.0]):
        log.comes(update(seq), after=gap)
    assert log.follower.interval_s == 10.0
    assert log.after(30.0) is State.LIVE
    assert log.after(0.1) is State.STALE
    assert log.after(69.9) is State.STALE  # 100.0
    assert log.after(0.1) is State.SILENT


def test_a_heartbeat_keeps_a_log_live_and_is_not_passed_on() -> None:
    log = Log()
    log.comes(update(0))
    for _ in range(20):
        assert log.comes(HEARTBEAT, after=5.0) == []
        assert log.follower.state is State.LIVE
    assert log.follower.interval_s is None  # of numbered events only
    assert log.follower.age_s == 0.0


def test_gaps_are_not_measured_while_catching_up() -> None:
    log = Log(ROW * 9, size=360)
    for _ in range(4):
        log.now += 20.0
        log.follower.poll(80)  # 280, 200, 120 and 40 left
    assert log.follower.interval_s is None
    log.now += 7.0
    log.follower.poll(80)
    assert log.follower.interval_s == 7.0
    log.feed.pieces, log.feed.size = [ROW * 9], 720
    for _ in range(4):  # behind again, until the fourth poll
        log.now += 20.0
        log.follower.poll(80)
    assert log.follower.interval_s == 7.0


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("done", "finished"),
        ("exhausted", "finished: every training prompt was excluded"),
        ("stopped", "stopped: can be resumed"),
    ],
)
def test_a_done_event_finishes(status: str, says: str) -> None:
    log = Log()
    log.comes(update(0), done(status))
    assert log.after(1e6) is State.FINISHED
    assert log.follower.says == says
    log.follower.exited(130)  # of a run that was stopped
    assert log.follower.state is State.FINISHED


def test_a_fault_crashes_unless_it_is_of_one_request() -> None:
    log = Log()
    log.comes({**FAULT, "group": 3})
    assert log.follower.state is State.LIVE
    log.comes(FAULT)
    assert log.after(1e6) is State.CRASHED
    assert "BatchError: NaN in step 7" in log.follower.says


def test_a_resume_makes_a_crashed_or_stopped_log_live_again() -> None:
    log = Log()
    log.comes(FAULT)
    assert log.comes(RESUME, update(0)) == [RESUME, update(0)]
    assert log.follower.state is State.LIVE
    log.comes(done("stopped"))
    log.comes(RESUME)
    assert log.follower.state is State.LIVE


@pytest.mark.parametrize(
    ("code", "state", "says"),
    [
        (
            1,
            State.CRASHED,
            "the process ended with exit code 1: its last lines on stderr say why",
        ),
        (-9, State.CRASHED, "the process was killed by SIGKILL: was there memory enough?"),
        (-15, State.CRASHED, "the process was killed by SIGTERM"),
        (-99, State.CRASHED, "the process was killed by signal 99"),
        (0, State.FINISHED, "the process ended without a last word in the log"),
    ],
)
def test_the_end_of_the_process_is_told(code: int, state: State, says: str) -> None:
    log = Log()
    log.follower.exited(code)
    assert (log.follower.state, log.follower.says) == (state, says)


def test_only_a_resume_written_after_the_exit_takes_it_back() -> None:
    log = Log()
    log.follower.exited(1)
    log.comes(RESUME)  # by the process that has ended, read late
    assert log.follower.state is State.CRASHED
    log.follower.poll()  # all it wrote is read
    log.comes(RESUME)
    assert log.follower.state is State.LIVE


def test_a_recording_is_finished_at_its_end_with_its_last_line_without_newline() -> None:
    log = Log(lines(update(0)) + b'{"seq":1,"kind":"update"}', ended=True)
    assert [e["seq"] for e in log.follower.poll().events] == [0, 1]
    assert log.follower.state is State.FINISHED
    assert log.follower.says == "the recording ends before the run does"


def test_a_torn_last_line_of_a_recording_is_counted_once() -> None:
    log = Log(lines(update(0)) + b'{"seq":1,"ki', ended=True)
    assert log.follower.poll().events == [update(0)]
    assert log.follower.poll().events == []
    assert log.follower.unreadable == 1


# ---- lines ----


def test_a_restart_voids_what_was_known_and_is_counted() -> None:
    log = Log(lines(update(0), FAULT) + b'bad\n{"torn":', None, lines(update(5)), None)
    assert not log.follower.poll().restarted
    assert log.follower.state is State.CRASHED and log.follower.unreadable == 1
    batch = log.follower.poll()
    assert (batch.restarted, batch.events, log.follower.bytes_read) == (True, [], 0)
    assert log.follower.state is State.WAITING
    assert log.follower.poll().events == [update(5)]
    assert log.follower.says == "following the log; log restarted at update 0"
    log.follower.poll()
    assert (log.follower.resets, log.follower.notices) == (
        2,
        ["log restarted at update 0 (2nd time)"],
    )


def test_lines_that_are_no_event_are_counted_and_blank_ones_passed_over() -> None:
    good = lines(update(0))
    bad = [b"{", b"[1]", b"7", b'{"kind":3}', b"{}", b'{"kind":"a"} {"kind":"b"}', b"[" * 10**5]
    log = Log(b"\n".join([good, *bad, good, b"", b"  ", b""]))
    assert log.follower.poll().events == [update(0)] * 2
    assert log.follower.unreadable == 7
    assert log.follower.notices == ["7 unreadable lines skipped"]


def test_lines_that_only_together_are_json_stay_unreadable() -> None:
    """Two values in one line and one value in two lines: three values in three lines, none of them an event."""
    log = Log(b'{"kind":"a"},{"kind":"b"}\n{"kind":"c","x":[{}\n{}]}\n')
    assert log.follower.poll().events == []
    assert log.follower.unreadable == 3


def test_a_line_of_bytes_that_are_no_text_does_not_harm_the_next() -> None:
    log = Log(b'{"kind":"\xc3\n' + lines(update(1)))
    assert log.follower.poll().events == [update(1)]


def test_unknown_kinds_are_passed_on_and_a_newer_format_is_told() -> None:
    log = Log()
    strange: Event = {"v": 3, "seq": 0, "kind": "dreams", "of": ["sheep"]}
    assert log.comes(strange, {"v": 2, "kind": "x"}, {"v": "9", "kind": "y"})[0] == strange
    assert log.follower.newer == 3
    assert log.follower.notices == [
        "log format 3, this program knows up to 2: unknown fields are ignored"
    ]
    old = Log()
    old.comes(update(0))
    assert old.follower.newer is None and old.follower.notices == []


def test_closing_closes_the_feed() -> None:
    log = Log()
    log.follower.close()
    assert log.feed.closed


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3)
    ),
    max_leaves=5,
)
EVENTS = st.builds(
    lambda kind, more: {**more, "kind": kind},
    st.sampled_from(["update", "é", "heartbeat"]),
    st.dictionaries(st.sampled_from(["seq", "x", "ü€😀"]), VALUES, max_size=3),
)
BAD = st.sampled_from(
    ['{"kind":"a"},{"kind":"b"}', '{"kind":', '"a"}', "[", "]", "[1,{}]", "{}", ","]
)


@given(
    st.lists(EVENTS | BAD, max_size=12),
    st.lists(st.integers(0, 400), max_size=8),
    st.integers(1, 60),
)
def test_any_cut_of_the_bytes_gives_the_same_events(
    written: list[Event | str], cuts: list[int], budget: int
) -> None:
    """Cut by the writer anywhere, inside characters too, and by the budget of the reader."""
    text = "".join(
        (w if isinstance(w, str) else json.dumps(w, ensure_ascii=False)) + "\n" for w in written
    )
    data = text.encode("utf-8", "replace")
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    log = Log(*(data[a:b] for a, b in pairwise(marks)))
    found: list[Event] = []
    while log.feed.pieces:
        found += log.follower.poll(budget).events
    expected = [w for w in written if isinstance(w, dict) and w["kind"] != "heartbeat"]
    assert [repr(e) for e in found] == [repr(_as_written(e)) for e in expected]  # NaN is not itself
    assert log.follower.unreadable == sum(isinstance(w, str) for w in written)


def _as_written(event: Event) -> Event:
    """With lone surrogates as UTF-8 can hold them."""
    text = json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
    return json.loads(text)


def test_a_long_log_is_read_fast_and_no_poll_takes_long() -> None:
    """100,000 events take 0.3 s on a free core, and a poll 5 ms; the bounds leave room for busy ones."""
    numbers = {"t": 1.5, "clock": 2.25, "gpu_h": 0.5, "start": 1.25, "end": 2.25}
    event = update(1) | numbers | {"what": "x" * 50}  # 164 bytes
    data = lines(*[event] * 20_000)
    log = Log(data, size=len(data))
    count, worst, started = 0, 0.0, time.process_time()
    while log.feed.size - log.follower.bytes_read:
        before = time.process_time()
        count += len(log.follower.poll().events)
        worst = max(worst, time.process_time() - before)
    assert count == 20_000
    assert time.process_time() - started < 0.5
    assert worst < 0.1


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.9, "0s"), (59.9, "59s"), (130, "2m10s"), (3599, "59m59s"), (11100, "3h05m")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
