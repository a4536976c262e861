"""The top line and the banner: every state in words with its way out, and what gives way when it is narrow."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import done_event, fault_event, recipe_of, run_event, update_event, whole_run, write_log

from scalerl.events import Event
from tui.show.rows import Row, row_width, text, texts
from tui.show.status import Standing, banner_rows, status_row
from tui.watch.follow import State
from tui.watch.player import Player
from tui.watch.scene import Scene
from tui.watch.session import Session

RUN = whole_run(20, planned=100, status=None)  # half a wall second an update


@dataclass
class Child:
    """A process as a session asks after it."""

    exit_code: int | None = None
    stopping: bool = False
    began_at: int = 0


OPEN: list[Session] = []


class Watched:
    """A session on a log of the test's own, with a clock in its hands; `folder` closes it."""

    def __init__(self, folder: Path, *events: Event, child: Child | None = None) -> None:
        self.now = 0.0
        self.log = folder / "events.jsonl"
        if events:
            write_log(self.log, events)
        opened: Any = child
        self.session = Session(str(folder), child=opened, now=lambda: self.now)
        OPEN.append(self.session)
        self.session.pump()

    def after(self, seconds: float) -> "Watched":
        self.now += seconds
        self.session.pump()
        return self

    def standing(self, **how: Any) -> Standing:
        return Standing(self.session, Scene(self.session.store.view()), **how)

    def top(self, width: int = 200, **how: Any) -> str:
        return text(status_row(self.standing(**how), width))

    def banner(self, width: int = 300, **how: Any) -> str:
        return texts(banner_rows(self.standing(**how), width))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path))
    (tmp_path / "tiny").mkdir()
    yield tmp_path / "tiny"
    while OPEN:
        OPEN.pop().close()


# ---- states ----


def test_waiting(folder: Path) -> None:
    run = Watched(folder)
    assert run.top().startswith(" ◌ WAITING tiny")
    assert "does not exist yet" in run.banner() and "esc to choose another" in run.banner()
    write_log(run.log, [], tail='{"v":1,"se')  # the first line is on its way
    assert "nothing is written there yet" in run.after(1.0).banner()


def test_starting(folder: Path) -> None:
    run = Watched(folder, child=Child())
    assert run.top().startswith(" ◌ STARTING tiny")
    assert run.banner().startswith("starting: loading torch")


def test_catching_up(folder: Path) -> None:
    write_log(folder / "events.jsonl", RUN)
    session = Session(str(folder), now=lambda: 0.0)
    OPEN.append(session)
    session.follower.poll(2000)
    standing = Standing(session, Scene(session.store.view()))
    assert text(status_row(standing, 90)).startswith(" ◐ CATCHING UP tiny")
    [bar] = banner_rows(standing, 60)
    share = session.follower.progress
    assert share is not None and 0.0 < share < 1.0
    assert text(bar)[:20] == "█" * round(20 * share) + "░" * (20 - round(20 * share))
    assert "catching up" in text(bar)


def test_live(folder: Path) -> None:
    run = Watched(folder, *RUN).after(3.2)
    said = run.top()
    assert said.startswith(" ● LIVE tiny  update 20/100  40 GPU-h  ScaleRL  2.0 updates/s  ETA 40s")
    assert "ScaleRL" in said and said.rstrip().endswith("◷3.2s")
    assert run.banner() == ""


def test_stale_and_silent(folder: Path) -> None:
    run = Watched(folder, *RUN).after(20.0)
    assert run.top().startswith(" ▲ STALE tiny") and run.top().rstrip().endswith("◷20.0s")
    assert run.banner() == "▲ no new line for 20s: is the trainer silent?"
    run.after(110.0)
    assert run.top().startswith(" ■ SILENT tiny") and run.top().rstrip().endswith("◷2m10s")
    assert "was killed" in run.banner() and "r takes up" in run.banner()
    assert "ETA" not in run.top() and "updates/s" not in run.top()


def test_done(folder: Path) -> None:
    run = Watched(folder, *whole_run(20)).after(1000.0)
    assert run.top().startswith(" ✔ DONE tiny  update 20/20")
    assert "◷" not in run.top() and "ETA" not in run.top()
    assert run.banner() == ""


def test_stopped(folder: Path) -> None:
    run = Watched(folder, *RUN, done_event(20, "stopped", seq=len(RUN)))
    assert run.top().startswith(" ◼ STOPPED tiny")
    assert run.banner().startswith("stopped, and saved: r takes it up")


def test_stopping(folder: Path) -> None:
    run = Watched(folder, *RUN, child=Child(stopping=True))
    assert run.top().startswith(" ● STOPPING tiny")


def test_crashed_by_a_fault_with_the_last_words_of_its_process(folder: Path) -> None:
    (folder / "console.log").write_text("one\ntwo\x1b[2J\n\nthree\n")
    run = Watched(folder, *RUN, fault_event(20, seq=len(RUN)), child=Child(exit_code=1))
    assert run.top().startswith(" ■ CRASHED tiny")
    lines = run.banner().splitlines()
    assert lines[0].startswith("■ crashed: BatchError: the loss is nan")
    assert lines[-4:-1] == ["one", "two?[2J", "three"]
    assert "v full log" in lines[-1] and "r take it up again" in lines[-1]


def test_killed(folder: Path) -> None:
    run = Watched(folder, *RUN, child=Child(exit_code=-9))
    assert run.top().startswith(" ■ CRASHED tiny")
    assert "killed by SIGKILL: was there memory enough?" in run.banner()


def test_a_child_that_never_wrote_a_line(folder: Path) -> None:
    run = Watched(folder, child=Child(exit_code=2))
    assert run.top().startswith(" ■ CRASHED tiny") and "exit code 2" in run.banner()


def test_attached(folder: Path) -> None:
    run = Watched(folder, *RUN)
    run.session.kind, run.session.source = "remote", "ssh://login1/runs/8b"
    assert run.top().startswith(" ◉ ATTACHED ssh://login1/runs/8b")
    run.after(1000.0)
    assert (
        run.top().startswith(" ■ SILENT") and "r takes up" not in run.banner()
    )  # not ours to take up


def test_a_frozen_view_and_a_replay(folder: Path) -> None:
    run = Watched(folder, *RUN)
    assert run.top(paused=True).startswith(" ‖ VIEW PAUSED tiny")
    player = Player([90.0], 1800.0)
    assert run.top(player=player).startswith(
        " ⏵ REPLAY tiny  update 20/100  40 GPU-h  ScaleRL  speed 40x"
    )
    player.toggle()
    assert run.top(player=player).startswith(" ‖ REPLAY tiny")
    assert run.after(1000.0).banner(player=player) == ""


def test_what_is_odd_about_the_log_is_told_while_all_is_well(folder: Path) -> None:
    write_log(folder / "events.jsonl", [*RUN, {"v": 9, "seq": 999, "kind": "new"}], tail="{torn\n")
    run = Watched(folder)
    assert run.banner().startswith("▲ 1 unreadable line skipped; log format 9")


# ---- width ----


def test_what_gives_way_when_it_is_narrow(folder: Path) -> None:
    """The time to go, the pace, the recipe, the compute; state, name, update and age stay."""
    run = Watched(folder, *RUN)
    parts = [("ETA", 0), ("updates/s", 1), ("ScaleRL", 2), ("GPU-h", 3)]
    gone: list[str] = []
    for width in range(120, 33, -1):
        said = run.top(width)
        assert "● LIVE tiny" in said and "update 20/100" in said and "◷0.0s" in said, width
        gone += [word for word, _ in parts if word not in said and word not in gone]
    assert gone == ["ETA", "updates/s", "ScaleRL", "GPU-h"]


@given(width=st.integers(10, 140), name=st.text(max_size=30))
def test_no_row_is_wider_than_the_screen(width: int, name: str) -> None:
    session = Session("nowhere", now=lambda: 0.0)
    session.kind, session.source = "remote", name
    session.store.take(RUN)
    standing = Standing(session, Scene(session.store.view()))
    rows: list[Row] = [status_row(standing, width), *banner_rows(standing, width)]
    assert [row for row in rows if row_width(row) > width] == []
    assert "\x1b" not in texts(rows) and "\n" not in text(rows[0])


@pytest.mark.parametrize("updates", ["many", 10**400, None, {"a": 1}, -5])
def test_a_site_that_makes_no_sense(folder: Path, updates: Any) -> None:
    head = run_event(recipe_of())
    head["site"] |= {"updates": updates}
    run = Watched(folder, head, *(update_event(n) for n in range(1, 6)))
    assert run.top().startswith(" ● LIVE tiny  update 5") and "ETA" not in run.top().replace(
        "ETA 0s", ""
    )


def test_every_state_is_covered(folder: Path) -> None:
    from tui.show.status import STATES

    assert STATES.keys() == set(State)
    assert len({(glyph, word) for glyph, word, _ in STATES.values()}) == len(State)
