"""The home screen: what is listed, what the keys and the mouse do there, and runs that change meanwhile."""

import os
import time
from pathlib import Path

import pytest
from driving import RUN, SIZES, FakeStarts, drive, early, press, write_run
from logs import fault_event, recipe_of, whole_run
from screen import chromatic, screen_text, until
from textual.pilot import Pilot
from textual.widgets import OptionList

from scenarios.runs import locked
from tui.screens.dashboard import Dashboard
from tui.screens.editor import EditorScreen
from tui.screens.home import HomeScreen
from tui.show.themes import THEMES

ROOT = Path("runs/tiny/scalerl")


def write_one_of_each() -> None:
    write_run(ROOT / "seed-1")
    write_run(ROOT / "seed-2", whole_run(56, planned=112, status="stopped"))
    write_run(ROOT / "seed-3", [*early(40), fault_event(40, seq=999)])
    write_run(ROOT / "seed-4", early(40))
    write_run(ROOT / "seed-5", [])


def on_home(pilot: Pilot[None]) -> bool:
    return isinstance(pilot.app.screen, HomeScreen)


async def mark(pilot: Pilot[None], words: str) -> None:
    """Move the mark down to the entry with these words."""
    options = pilot.app.screen.query_one(OptionList)
    for _ in range(options.option_count):
        place = options.highlighted
        if place is not None and words in str(options.get_option_at_index(place).prompt):
            return
        await press(pilot, "down")
    raise AssertionError(f"no entry {words!r}:\n{screen_text(pilot.app)}")


@pytest.mark.usefixtures("place")
def test_without_runs_it_says_what_to_do_at_every_size_and_in_every_theme() -> None:
    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "deepseek-grpo")
        for theme, size in zip(THEMES, (*SIZES, SIZES[1]), strict=True):
            await pilot.resize_terminal(*size)
            pilot.app.theme = theme
            for words in ("Start the tiny run", "Replay a recorded run", "no runs yet"):
                text = await until(pilot, words)
            assert len(text.splitlines()) == size[1]
            assert ("28,000-parameter" in text) == (size[0] >= 100)
            assert "? help" in text.splitlines()[-1]

    drive(look)


@pytest.mark.usefixtures("place")
def test_the_preview_of_a_narrow_screen_opens_with_the_arrow() -> None:
    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "no runs yet")
        await press(pilot, "right")
        assert "28,000-parameter" in await until(pilot, "Preview")
        await press(pilot, "left")
        await until(pilot, "no runs yet")
        await press(pilot, "right escape")
        await until(pilot, "no runs yet")

    drive(look, size=(80, 24))


@pytest.mark.usefixtures("place")
def test_every_status_has_its_words() -> None:
    write_one_of_each()

    async def look(pilot: Pilot[None]) -> None:
        text = await until(pilot, "seed-1")
        line = {n: next(row for row in text.splitlines() if f"seed-{n}" in row) for n in "12345"}
        assert "✔" in line["1"] and "done" in line["1"]
        assert "◼" in line["2"] and "stopped   update 56/112" in line["2"]
        assert "✖" in line["3"] and "crashed   update 40: the loss is nan" in line["3"]
        assert "✖" in line["4"] and "killed   update 40/112" in line["4"]
        assert "○" in line["5"] and "nothing written yet" in line["5"]
        with locked(ROOT / "seed-4"):
            text = await until(pilot, "● tiny/scalerl/seed-4")
            assert "live   update 40/112" in text
        await until(pilot, "✖ tiny/scalerl/seed-4")
        await mark(pilot, "seed-2")
        text = await until(pilot, "pass rate 0.")
        assert "stopped   update 56/112" in text and str(ROOT / "seed-2") in text

    drive(look, size=(160, 44))


@pytest.mark.usefixtures("place")
def test_many_runs_the_newest_first_and_the_mark_stays() -> None:
    for n in range(40):
        log = write_run(ROOT / f"seed-{n}", whole_run(8)) / "events.jsonl"
        os.utime(log, (time.time() - 100 - n, time.time() - 100 - n))

    async def look(pilot: Pilot[None]) -> None:
        text = await until(pilot, "seed-1 ")
        seen = [row.split("seed-")[1].split()[0] for row in text.splitlines() if "seed-" in row]
        assert seen == [str(n) for n in range(len(seen))] and len(seen) > 5
        await mark(pilot, "seed-39")
        write_run(ROOT / "seed-77", whole_run(8))
        await press(pilot, "home")
        await until(pilot, "seed-77")
        assert "seed-0" in screen_text(pilot.app)

    drive(look, size=(120, 36))


@pytest.mark.usefixtures("place")
def test_the_filter_narrows_and_escape_widens() -> None:
    write_one_of_each()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "seed-5")
        await press(pilot, "slash c r a s h e d")
        text = await until(pilot, lambda text: "seed-1 " not in text)
        assert "seed-3" in text and "Start the tiny run" not in text
        await press(pilot, "enter enter")
        assert isinstance(pilot.app.screen, Dashboard)
        await until(pilot, "CRASHED")
        await press(pilot, "escape")
        await until(pilot, "Runs")
        await press(pilot, "escape")
        assert "seed-1 " in await until(pilot, "Start the tiny run")
        await press(pilot, "slash q q q q q")
        await until(pilot, lambda text: "seed-" not in text)
        await press(pilot, "enter enter")  # nothing is marked: nothing opens
        assert on_home(pilot)

    drive(look)


@pytest.mark.usefixtures("place")
def test_a_click_opens_a_run() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        text = await until(pilot, "seed-0")
        row = next(y for y, line in enumerate(text.splitlines()) if "seed-0" in line)
        await pilot.click(offset=(10, row))
        text = await until(pilot, "DONE")
        assert isinstance(pilot.app.screen, Dashboard)

    drive(look)


@pytest.mark.usefixtures("place")
def test_a_run_is_deleted_after_a_question_and_a_live_one_never() -> None:
    write_one_of_each()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "seed-5")
        await press(pilot, "d")
        await until(pilot, "move to a run to delete it")
        await mark(pilot, "seed-2")
        await press(pilot, "d")
        await until(pilot, "Delete a run")
        await press(pilot, "escape")
        assert (ROOT / "seed-2").exists()
        await press(pilot, "d d enter")  # the way back is marked
        assert (ROOT / "seed-2").exists()
        await press(pilot, "d y")
        await until(pilot, lambda text: "◼ tiny/scalerl/seed-2" not in text)
        assert not (ROOT / "seed-2").exists() and (ROOT / "seed-3").exists()
        await mark(pilot, "seed-4")
        with locked(ROOT / "seed-4"):
            await press(pilot, "d")
            await until(pilot, "stop it first")
        assert (ROOT / "seed-4").exists()

    drive(look, size=(160, 44))


def test_enter_starts_the_tiny_run_and_the_recipes_open_the_editor(starts: FakeStarts) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "magistral")
        await press(pilot, "enter")
        await until(pilot, "STARTING")
        assert starts.last.recipe == recipe_of()
        assert starts.last.folder == RUN
        await press(pilot, "escape n")
        assert isinstance(pilot.app.screen, EditorScreen)
        await press(pilot, "escape")
        await mark(pilot, "magistral")
        await press(pilot, "enter")
        assert "magistral" in await until(pilot, "Recipe:")
        await press(pilot, "escape")
        assert on_home(pilot)

    drive(look)


@pytest.mark.usefixtures("place")
def test_every_entry_says_something_when_it_is_opened() -> None:
    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "magistral")
        for words, seen in (
            ("Replay a recorded run", "REPLAY"),
            ("Lessons", "Lessons"),
            ("Attach to a run", "read-only"),
            ("Open a recording", "to replay"),
            ("Compare curves", "add"),
        ):
            await press(pilot, "home")
            await mark(pilot, words)
            await press(pilot, "enter")
            await until(pilot, seen)
            if not on_home(pilot):
                await press(pilot, "escape")
            await until(pilot, "Start the tiny run")

    drive(look)


def test_no_colour(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    write_one_of_each()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "seed-5")
        for keys in ("down", "slash", "escape", "a", "escape", "question_mark", "escape", "n"):
            await press(pilot, keys)
            assert chromatic(pilot.app) == set(), keys

    drive(look)
