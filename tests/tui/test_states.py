"""Every state of a run on the dashboard, at three sizes, in four themes and without colour."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from driving import (
    RUN,
    SIZES,
    Clock,
    FakeStarts,
    append,
    board,
    drive,
    early,
    falling,
    later,
    write_run,
)
from logs import done_event, fault_event, recipe_of, resume_event, run_event, whole_run, write_log
from screen import chromatic, screen_text, until
from textual.pilot import Pilot

from tui.show.themes import THEMES
from tui.watch.session import Session

# What is written before the dashboard opens, and what it says of it at every size.
WRITTEN: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "waiting": (lambda: None, ("WAITING", "seed-0", "esc to choose another")),
    "too few points": (
        lambda: write_run(events=early(8)),
        ("LIVE", "update 8/112", "the fit needs 8 evaluations", "2 so far"),
    ),
    "band": (lambda: write_run(events=early(40)), ("LIVE", "update 40/112", "twice")),
    "fit": (lambda: write_run(events=early(72)), ("LIVE", "update 72/112", "A 0.899")),
    "unstable": (lambda: write_run(events=falling()), ("LIVE", "update 60/112", "mean 0.3")),
    "done": (lambda: write_run(), ("DONE", "update 112/112", "224 GPU-h", "A 0.899")),
    "stopped": (
        lambda: write_run(events=whole_run(56, planned=112, status="stopped")),
        ("STOPPED", "update 56/112", "r takes it up"),
    ),
    "exhausted": (
        lambda: write_run(events=whole_run(56, planned=112, status="exhausted")),
        ("DONE", "update 56/112"),
    ),
    "crashed": (
        lambda: (
            write_run(events=[*early(40), fault_event(40, seq=999)]),
            (RUN / "console.log").write_text("update 40\nTraceback: the loss is nan\n"),
        ),
        ("CRASHED", "the loss is nan", "Traceback: the loss is nan", "v full log"),
    ),
    "taken up": (
        lambda: write_run(events=[*early(40), resume_event(len(early(40)), 40)]),
        ("LIVE", "update 40/112"),
    ),
    "newer format": (
        lambda: write_run(events=[{**event, "v": 9} for event in whole_run()]),
        ("DONE", "log format 9"),
    ),
    "unreadable lines": (
        lambda: write_run(events=early(40), tail="{not json\n[1, 2]\n\x00\n"),
        ("LIVE", "3 unreadable lines skipped"),
    ),
    "truncated": (
        lambda: write_run(events=whole_run(truncated=0.12)),
        ("DONE", "12", "■"),
    ),
    "a run without a head": (lambda: write_run(events=whole_run()[1:]), ("DONE", "update 112")),
}


async def everywhere(pilot: Pilot[None], words: tuple[str, ...]) -> None:
    """The words stand on the screen at each size and in each theme."""
    for theme, size in zip(THEMES, (*SIZES, SIZES[1]), strict=True):
        await pilot.resize_terminal(*size)
        pilot.app.theme = theme
        for word in words:
            await until(pilot, word)


@pytest.mark.parametrize("state", WRITTEN)
@pytest.mark.usefixtures("clock")
def test_a_state_is_told_at_every_size_and_in_every_theme(state: str) -> None:
    write, words = WRITTEN[state]
    write()

    async def look(pilot: Pilot[None]) -> None:
        for word in words:
            await until(pilot, word)
        await everywhere(pilot, words)

    drive(look, RUN)


@pytest.mark.parametrize("state", ["waiting", "unstable", "crashed", "truncated"])
@pytest.mark.usefixtures("clock")
def test_no_colour_means_none(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    write, words = WRITTEN[state]
    write()

    async def look(pilot: Pilot[None]) -> None:
        assert pilot.app.theme == "ansi-dark"
        for word in words:
            await until(pilot, word)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert chromatic(pilot.app) == set()
        for keys in ("question_mark", "escape", "e", "escape", "ctrl+p", "escape", "escape"):
            await pilot.press(keys)
            await pilot.pause()
            assert chromatic(pilot.app) == set(), keys

    drive(look, RUN)


def test_colours_are_noticed_where_there_are_some(clock: Clock) -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        assert any("●" in each for each in chromatic(pilot.app))

    drive(look, RUN)


def test_a_log_falls_silent_and_speaks_again(clock: Clock) -> None:
    write_run(events=early(40))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "LIVE")
        clock.now += 16.0  # more than 15 s
        await until(pilot, "STALE")
        await everywhere(pilot, ("STALE", "no new line for 16s", "◷16.0s"))
        clock.now += 60.0
        await until(pilot, "SILENT")
        await everywhere(pilot, ("SILENT", "no new line for 1m16s", "not even a heartbeat"))
        append(RUN, later(early(40), 41))
        await until(pilot, "update 41/112")
        assert "LIVE" in screen_text(pilot.app)

    drive(look, RUN)


def test_a_long_log_is_caught_up_with_a_bar(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(events=whole_run(1200, every=1200))
    pump, turns = Session.pump, [1]

    def held(session: Session) -> bool:
        """As many turns of reading as the test allows, one budget each."""
        turns[0] -= 1
        return turns[0] >= 0 and pump(session)

    monkeypatch.setattr("tui.watch.session.BURST_S", 0.0)
    monkeypatch.setattr(Session, "pump", held)

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "CATCHING UP")
        await everywhere(pilot, ("CATCHING UP", "catching up, ", "MB read", "█░"))
        turns[0] = 10**6
        text = await until(pilot, "DONE")
        assert "update 1200/1200" in text and "catching up" not in text

    drive(look, RUN)


def test_the_file_becomes_another_run(clock: Clock) -> None:
    write_run(events=early(40))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "update 40/112")
        write_log(RUN / "new.jsonl", early(8)).replace(RUN / "events.jsonl")
        await until(pilot, "update 8/112")
        await everywhere(
            pilot, ("log restarted at update 0", "update 8/112", "needs 8 evaluations")
        )
        write_log(RUN / "new.jsonl", early(12)).replace(RUN / "events.jsonl")
        await until(pilot, "(2nd time)")
        shutil.rmtree(RUN)
        await until(pilot, "WAITING")

    drive(look, RUN)


def test_a_child_starts_runs_and_dies(clock: Clock, starts: FakeStarts) -> None:
    async def look(pilot: Pilot[None]) -> None:
        pilot.app.start(recipe_of(), RUN)  # type: ignore[attr-defined]
        await until(pilot, "STARTING")
        await everywhere(pilot, ("STARTING", "loading torch"))
        child = starts.last
        append(RUN, early(40))
        await until(pilot, "update 40/112")
        child.stop()
        await until(pilot, "STOPPING")
        child.stopping = False
        (RUN / "console.log").write_text("one line\nKilled\n")
        child.exit_code = -9
        await until(pilot, "CRASHED")
        await everywhere(pilot, ("CRASHED", "SIGKILL", "Killed", "memory"))

    drive(look)


def test_a_run_ends_while_one_looks(clock: Clock) -> None:
    write_run(events=early(72))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "LIVE")
        append(RUN, later(early(72), 73, "done"))
        text = await until(pilot, "DONE")
        assert "update 73/112" in text and "◷" not in text
        assert "the run is done" in text

    drive(look, RUN)


def test_resizing_keeps_the_place(clock: Clock) -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press_and_see(pilot)
        await pilot.resize_terminal(200, 60)
        text = await until(pilot, "[6] Completions")
        assert len(text.splitlines()) == 60
        await pilot.resize_terminal(60, 15)
        text = await until(pilot, lambda text: len(text.splitlines()) == 15)
        assert "enlarge to 80x24" in text and "DONE" in text
        await pilot.resize_terminal(120, 36)
        text = await until(pilot, "[1] Scaling fit")
        assert "[2] Truncated completions" in text and len(text.splitlines()) == 36
        assert board(pilot).panel == "lag"

    async def press_and_see(pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.pause()
        assert board(pilot).panel == "lag"

    drive(look, RUN)


def test_a_head_alone_is_a_run(clock: Clock) -> None:
    write_run(events=[run_event()])

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "LIVE")
        await everywhere(pilot, ("LIVE", "no evaluation yet"))
        for panel in "123456":
            await pilot.press(panel)
            await pilot.pause()
        append(RUN, [done_event(0, seq=1)])
        await until(pilot, "DONE")

    drive(look, RUN)


def test_a_log_that_stands_alone(clock: Clock, place: Path) -> None:
    write_log(place / "elsewhere.jsonl", whole_run())

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "DONE")
        assert board(pilot).session.folder is None
        await pilot.press("v")
        text = await until(pilot, "source:")
        assert "elsewhere.jsonl" in text

    drive(look, "elsewhere.jsonl")
