"""Keys of the dashboard: each does what help says of it, and no sequence of them breaks anything."""

import random
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from driving import RUN, FakeStarts, append, board, drive, early, later, press, write_run
from logs import whole_run
from screen import screen_text, until
from textual.events import MouseScrollUp
from textual.pilot import Pilot
from textual.widgets import OptionList

from scalerl.glossary import entry
from tui.app import ScalerlApp
from tui.screens.dashboard import PANELS
from tui.screens.help import HelpScreen
from tui.screens.home import HomeScreen
from tui.show.terms import terms
from tui.watch.memory import place as memory_file

KEYS = [
    *"123456fespcoyvxbwuijknadT",
    *("escape", "space", "plus", "minus", "0", "left", "right", "up", "down", "home", "end"),
    *("shift+left", "shift+right", "tab", "shift+tab", "enter", "question_mark", "slash"),
    *("comma", "full_stop", "less_than_sign", "greater_than_sign"),
]


def app_of(pilot: Pilot[None]) -> ScalerlApp:
    assert isinstance(pilot.app, ScalerlApp)
    return pilot.app


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_sequence_of_keys_breaks_it_and_escape_leads_home(seed: int, starts: FakeStarts) -> None:
    write_run()
    keys = random.Random(seed).choices(KEYS, k=30)

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        for key in keys:
            await pilot.press(key)
        for _ in range(8):  # the editor asks before it throws changes away
            await pilot.press("escape", *("y" if "Discard" in screen_text(pilot.app) else ""))
        assert isinstance(pilot.app.screen, HomeScreen), (keys, pilot.app.screen)

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_numbers_focus_panels_f_fills_the_screen_and_escape_goes_back() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        for number, name in enumerate(PANELS, 1):
            await press(pilot, str(number))
            assert board(pilot).panel == name
            await press(pilot, "f")
            await until(pilot, lambda text, own=number: re.findall(r"\[(\d)\]", text) == [str(own)])
            await press(pilot, "escape" if number % 2 else "f")
            await until(pilot, lambda text: len(re.findall(r"\[(\d)\]", text)) > 1)
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, HomeScreen)

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_a_pause_freezes_the_view_while_the_log_grows() -> None:
    events = early(72)
    write_run(events=events)

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "update 72/112")
        await press(pilot, "space")
        await until(pilot, "VIEW PAUSED")
        append(RUN, later(events, 73))
        await until(pilot, lambda _: board(pilot).session.store.updates.n == 73)
        assert "update 72/112" in screen_text(pilot.app)
        await press(pilot, "space")
        await until(pilot, "update 73/112")

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_the_window_moves_the_fit() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "n 28")
        await press(pilot, "w right right right")
        await until(pilot, "n 25")
        await press(pilot, "shift+left")
        await until(pilot, "n 24")
        assert board(pilot).watched.window == (32.0, 216.0)  # points at 8, 16, ... 224 GPU-h
        await press(pilot, "0")
        await until(pilot, "n 28")
        await press(pilot, "w")
        assert not board(pilot).fit.windowing

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_the_crosshair_takes_the_other_panels_with_it() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press(pilot, "i")
        text = await until(pilot, "at update 112")
        assert text.count("at update 112") >= 3
        await press(pilot, "left")
        assert (await until(pilot, "at update 108")).count("at update 108") >= 3
        await press(pilot, "u")
        await until(pilot, "updates")
        assert "at update 108" in screen_text(pilot.app)
        await press(pilot, "escape")
        await until(pilot, lambda text: "at update" not in text)

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_axes_zoom_band_and_mouse() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        fit = board(pilot).fit
        for unit in ("updates", "tokens", "GPU-h"):
            await press(pilot, "u")
            await until(pilot, unit)
        await press(pilot, "x")
        assert not fit.log_x
        await press(pilot, "x b")
        assert fit.log_x and not fit.band
        await press(pilot, "plus")
        close = fit.view
        assert close is not None
        await press(pilot, "right")
        assert fit.view != close
        await press(pilot, "0")
        assert fit.view is None
        await pilot._post_mouse_events([MouseScrollUp], fit, offset=(40, 8), button=0)
        assert fit.view is not None
        await press(pilot, "0")
        await pilot.click(fit, offset=(40, 8))
        await until(pilot, "at update")
        await pilot.click("#busy", offset=(4, 2))
        assert board(pilot).panel == "busy"

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_a_pinned_curve_and_one_of_the_paper_stand_behind() -> None:
    write_run()
    write_run(RUN.with_name("seed-1"), whole_run(A=0.7, seed=1))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press(pilot, "p")
        await until(pilot, "pinned")
        await press(pilot, "escape")
        app_of(pilot).show_run(str(RUN.with_name("seed-1")))
        await until(pilot, "A 0.7")
        await until(pilot, "◆")
        await press(pilot, "o")
        await until(pilot, "A curve of the paper")
        await pilot.press(*"Fig2/ScaleRL", "down", "enter")
        await until(pilot, "✚")
        await press(pilot, "o")
        await until(pilot, lambda text: "✚" not in text)

    drive(look, RUN, size=(160, 44))


def test_themes_take_turns_and_are_remembered(place: Path) -> None:
    seen: list[str] = []

    async def look(pilot: Pilot[None]) -> None:
        for _ in range(4):
            await press(pilot, "T")
            seen.append(pilot.app.theme)

    drive(look)
    assert seen == ["scalerl-light", "ansi-dark", "scalerl-contrast", "scalerl-dark"]

    async def once(pilot: Pilot[None]) -> None:
        await press(pilot, "T")

    drive(once)
    assert memory_file().is_relative_to(place) and ScalerlApp().theme == "scalerl-light"


@pytest.mark.usefixtures("clock")
def test_help_opens_at_the_first_number_of_each_panel() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        for number, name in enumerate(PANELS, 1):
            await press(pilot, str(number))
            first = board(pilot).help_terms()[1]
            assert first is not None
            if name != "happened":  # there it is what the chosen alarm is about
                assert first == terms(board(pilot).scene, name)[0][0]
            await press(pilot, "question_mark")
            assert isinstance(pilot.app.screen, HelpScreen)
            await until(pilot, entry(first).title)
            option = pilot.app.screen.query_one(OptionList).highlighted_option
            assert option is not None and option.id == f"here:{entry(first).key}"
            await press(pilot, "escape")

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_the_palette_knows_every_key_of_the_screen() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        screen = pilot.app.screen
        told = " ".join(command.title for command in app_of(pilot).get_system_commands(screen))
        for active in screen.active_bindings.values():
            if active.binding.show and active.enabled and active.binding.description:
                words = active.binding.tooltip or active.binding.description
                assert words.lower() in told.lower()
        await press(pilot, "ctrl+p")
        await pilot.press(*"stop")
        await until(pilot, "Stop the run after the update under way, saved (s)")
        await press(pilot, "escape")

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_a_panel_is_copied_and_the_log_is_shown() -> None:
    write_run()
    (RUN / "console.log").write_text("hello from the run\n")

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press(pilot, "3 y")
        assert "p95 1" in pilot.app.clipboard
        await press(pilot, "v")
        await until(pilot, "hello from the run")
        await press(pilot, "escape")
        assert board(pilot).panel == "lag"

    drive(look, RUN)


@pytest.fixture
def served(place: Path) -> Iterator[str]:
    """The working folder over HTTP."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(place)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_remote_run_is_recorded(served: str, place: Path) -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "update 112/112")
        await press(pilot, "R")
        await until(pilot, "recording to")
        # the last update is seen before the last line is read
        await until(pilot, lambda _: recorded() >= len(whole_run()))

    def recorded() -> int:
        files = list(place.glob("recordings/*.jsonl"))
        return len(files[0].read_text().splitlines()) if files else 0

    drive(look, f"{served}/{RUN}/events.jsonl")
    assert recorded() == len(whole_run())
