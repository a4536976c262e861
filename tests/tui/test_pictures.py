"""A dozen screens as pictures, to be looked at when they change; SCALERL_PICTURES=update takes them anew.

What stands on them is asserted elsewhere; these show what words cannot: alignment, borders, colours.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from driving import RUN, early, still_app, write_run
from logs import fault_event, whole_run, write_log
from pictures import compare_picture
from screen import settle, until
from textual.pilot import Pilot

from tui.app import ScalerlApp

ROOT = RUN.parent
NOW = 2_000_000_000.0
pytestmark = pytest.mark.usefixtures("clock", "still")


@pytest.fixture
def still(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages on the home screen are told by a clock that stands."""
    monkeypatch.setattr("tui.watch.catalog.time", SimpleNamespace(time=lambda: NOW))


def write_some() -> None:
    """A run of each kind, last written to 1, 2, 3, ... minutes ago."""
    write_run()
    write_run(ROOT / "seed-1", whole_run(56, planned=112, status="stopped"))
    write_run(ROOT / "seed-2", [*early(40), fault_event(40, seq=999)])
    write_run(ROOT / "seed-3", early(40))
    (ROOT / "seed-2" / "console.log").write_text(
        "update 39  pass rate 0.55\nupdate 40  pass rate nan\nBatchError: the loss is nan\n"
    )
    for n in range(4):
        at = NOW - 60 * (n + 1)
        os.utime(ROOT / f"seed-{n}" / "events.jsonl", (at, at))


def write_alarming(path: Path) -> None:
    events = [
        {**e, "truncated": 0.12} if e["kind"] == "update" and e["update"] >= 60 else e
        for e in whole_run()
    ]
    write_log(path, events)


async def home(pilot: Pilot[None]) -> None:
    await until(pilot, "seed-3")
    await until(pilot, "deepseek-grpo")
    await pilot.press("slash", *"crashed", "enter", "escape")  # the mark stays on the one found
    await until(pilot, "Start the tiny run")


async def fitted(pilot: Pilot[None]) -> None:
    await until(pilot, "A 0.899")


async def replaying(pilot: Pilot[None]) -> None:
    app = pilot.app
    assert isinstance(app, ScalerlApp)
    app.show_run("recorded.jsonl", replay=True)
    await until(pilot, "marks:")
    await pilot.press("space", "end", "full_stop", "comma")
    await until(pilot, "A 0.904")


async def helping(pilot: Pilot[None]) -> None:
    await fitted(pilot)
    await pilot.press("2", "question_mark")
    await until(pilot, "Help")


async def editing(pilot: Pilot[None]) -> None:
    await fitted(pilot)
    await pilot.press("e", "down", "right")
    await until(pilot, "1 change")


async def comparing(pilot: Pilot[None]) -> None:
    await fitted(pilot)
    await pilot.press("c")
    await until(pilot, "verdict")
    await until(pilot, "±.020")


async def crashed(pilot: Pilot[None]) -> None:
    await until(pilot, "CRASHED")
    await until(pilot, "twice")


Scene = tuple[str | None, tuple[int, int], str | None, Callable[[Pilot[None]], Awaitable[None]]]
# source, size, theme, what is done before the picture is taken
SCENES: dict[str, Scene] = {
    "home-80x24": (None, (80, 24), None, home),
    "home-120x36": (None, (120, 36), None, home),
    "dashboard-80x24": (str(RUN), (80, 24), None, fitted),
    "dashboard-120x36": (str(RUN), (120, 36), None, fitted),
    "dashboard-200x60": (str(RUN), (200, 60), None, fitted),
    "dashboard-light-120x36": (str(RUN), (120, 36), "scalerl-light", fitted),
    "dashboard-contrast-80x24": (str(RUN), (80, 24), "scalerl-contrast", fitted),
    "replay-120x36": (None, (120, 36), None, replaying),
    "help-120x36": (str(RUN), (120, 36), None, helping),
    "editor-120x36": (str(RUN), (120, 36), None, editing),
    "compare-120x36": (str(RUN), (120, 36), None, comparing),
    "crashed-120x36": (str(ROOT / "seed-2"), (120, 36), None, crashed),
}


@pytest.mark.parametrize("scene", SCENES)
def test_picture(scene: str, place: Path) -> None:
    source, size, theme, before = SCENES[scene]
    write_some()
    write_alarming(place / "recorded.jsonl")
    app = still_app(source, theme=theme)

    async def look() -> None:
        async with app.run_test(size=size) as pilot:
            await before(pilot)
            await settle(pilot)
            compare_picture(app, scene, place)

    asyncio.run(look())
