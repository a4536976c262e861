"""A recorded run: playing, stepping, jumping to alarms, the bar, and what is not known before it happens."""

import re
from pathlib import Path

import pytest
from driving import SIZES, board, drive, press
from logs import done_event, numbered, run_event, update_event, whole_run, write_log
from screen import screen_text, until
from textual.pilot import Pilot

from tui.app import ScalerlApp
from tui.watch.player import Player

UPDATE_S = 90.0
RECORDING = "recorded.jsonl"


def record(place: Path) -> None:
    """112 updates of 90 s; truncation is 12 % from update 60 on."""
    events = [
        {**event, "truncated": 0.12}
        if event["kind"] == "update" and event["update"] >= 60
        else event
        for event in whole_run()
    ]
    write_log(place / RECORDING, events)


async def opened(pilot: Pilot[None]) -> Player:
    """The recording on screen, paused at its start."""
    app = pilot.app
    assert isinstance(app, ScalerlApp)
    app.show_run(RECORDING, replay=True)
    await until(pilot, "REPLAY")
    player = board(pilot).player
    assert player is not None
    if player.playing:
        await press(pilot, "space")
    await press(pilot, "home")
    assert (player.playing, player.cursor) == (False, 0.0)
    return player


def test_steps_jumps_and_ends(place: Path) -> None:
    record(place)

    async def look(pilot: Pilot[None]) -> None:
        player = await opened(pilot)
        await press(pilot, "right right right")
        assert player.cursor == 3 * UPDATE_S
        assert "update 3/112" in await until(pilot, "4m30s / 2h48m")  # 112 * 90 s
        await press(pilot, "left")
        assert player.cursor == 2 * UPDATE_S
        await press(pilot, "shift+right")
        assert player.cursor == pytest.approx(2 * UPDATE_S + 0.05 * 112 * UPDATE_S)
        await press(pilot, "shift+left home left")
        assert player.cursor == 0.0
        await press(pilot, "end right")
        assert player.cursor == player.end == 112 * UPDATE_S
        await until(pilot, "update 112/112")
        await until(pilot, "A 0.899")

    drive(look)


def test_it_plays_by_itself_and_begins_anew_at_the_end(place: Path) -> None:
    record(place)

    async def look(pilot: Pilot[None]) -> None:
        player = await opened(pilot)
        speed = player.speed
        assert speed == pytest.approx(112 * UPDATE_S / 45)
        await press(pilot, "greater_than_sign greater_than_sign less_than_sign")
        assert player.speed == 2 * speed
        player.speed = player.end  # the whole in a second
        await press(pilot, "space")
        text = await until(pilot, "update 112/112")
        assert not player.playing and "‖ REPLAY" in text
        await press(pilot, "space")
        assert player.playing and player.cursor < player.end
        await until(pilot, "⏵ REPLAY")

    drive(look)


def test_the_fit_knows_only_what_lies_before_the_cursor(place: Path) -> None:
    record(place)

    async def look(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await press(pilot, "end")
        await until(pilot, "A 0.899")
        await press(pilot, "home right right right right right right right right")
        await until(pilot, "2 so far")  # updates 4 and 8
        assert "A 0.899" not in screen_text(pilot.app)
        assert "the run is done" not in screen_text(pilot.app)

    drive(look)


def test_marks_are_jumped_to(place: Path) -> None:
    record(place)

    async def look(pilot: Pilot[None]) -> None:
        player = await opened(pilot)
        await until(pilot, "marks:")
        await press(pilot, "full_stop")
        first = player.cursor
        assert 60 * UPDATE_S <= first <= 80 * UPDATE_S  # an alarm takes some updates
        text = await until(pilot, lambda text: re.search(r"update (6|7|8)\d/112", text) is not None)
        assert "■" in text.splitlines()[-3]
        await press(pilot, "comma")
        assert player.cursor <= first
        await press(pilot, "home full_stop")
        assert player.cursor == first

    drive(look)


def test_a_click_on_the_bar_goes_there(place: Path) -> None:
    record(place)

    async def look(pilot: Pilot[None]) -> None:
        player = await opened(pilot)
        line = next(
            y for y, row in enumerate(screen_text(pilot.app).splitlines()) if row.startswith("├")
        )
        bar = screen_text(pilot.app).splitlines()[line]
        right = bar.index("┤")
        await pilot.click(offset=((1 + right) // 2, line))
        await pilot.pause()
        assert player.cursor == pytest.approx(player.end / 2, rel=0.03)
        await pilot.click(offset=(1, line))
        assert player.cursor == 0.0
        row = screen_text(pilot.app).splitlines()[line]
        assert row.startswith("├┃")

    drive(look)


def test_the_bar_stands_at_every_size(place: Path) -> None:
    record(place)

    async def look(pilot: Pilot[None]) -> None:
        await opened(pilot)
        await press(pilot, "end")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            text = await until(pilot, "2h48m / 2h48m")
            assert "REPLAY" in text and len(text.splitlines()) == size[1]
        for keys in ("2", "3", "4", "5", "6", "f", "escape", "1", "x", "b", "i", "escape"):
            await press(pilot, keys)
        assert "REPLAY" in screen_text(pilot.app)

    drive(look)


def test_a_recording_without_alarms_says_so(place: Path) -> None:
    write_log(place / RECORDING, whole_run())

    async def look(pilot: Pilot[None]) -> None:
        player = await opened(pilot)
        await until(pilot, "no alarm in this recording")
        await press(pilot, "full_stop")
        assert player.cursor == 0.0

    drive(look)


def test_a_recording_of_one_update(place: Path) -> None:
    write_log(place / RECORDING, numbered([run_event(), update_event(1), done_event(1)]))

    async def look(pilot: Pilot[None]) -> None:
        player = await opened(pilot)
        await press(pilot, "right right end left home")
        assert player.cursor == 0.0

    drive(look)


@pytest.mark.usefixtures("place")
def test_the_bundled_recordings_play() -> None:
    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "down enter")
        await until(pilot, "REPLAY")
        await press(pilot, "end")
        await until(pilot, "update 112/112")
        await until(pilot, "A 0.9")
        await press(pilot, "escape")
        await until(pilot, "Start the tiny run")

    drive(look)
