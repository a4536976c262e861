"""The whole app under a pilot, on runs that are nothing but logs and a clock that stands still."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from logs import (
    done_event,
    eval_event,
    numbered,
    recipe_of,
    run_event,
    update_event,
    whole_run,
    write_log,
)
from textual.pilot import Pilot

from scalerl.events import Event
from scalerl.recipe import Recipe
from tui.app import ScalerlApp
from tui.screens.dashboard import Dashboard

Scenario = Callable[[Pilot[None]], Awaitable[None]]
RUN = Path("runs/tiny/scalerl/seed-0")
SIZES = ((80, 24), (120, 36), (200, 60))


def still_app(source: Path | str | None = None, *, theme: str | None = None) -> ScalerlApp:
    """The app without animations, quick to see what is new."""
    app = ScalerlApp(None if source is None else str(source), theme=theme)
    app.read_every_s = 0.1
    app.animation_level = "none"
    return app


def drive(
    scenario: Scenario,
    source: Path | str | None = None,
    *,
    size: tuple[int, int] = (120, 36),
    theme: str | None = None,
) -> ScalerlApp:
    """Open the app and let a scenario press its keys; the app as it was left."""
    app = still_app(source, theme=theme)

    async def whole() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await scenario(pilot)

    asyncio.run(whole())
    return app


def board(pilot: Pilot[None]) -> Dashboard:
    """The dashboard that is on screen."""
    screen = pilot.app.screen
    assert isinstance(screen, Dashboard), f"on screen is {screen}"
    return screen


async def press(pilot: Pilot[None], keys: str) -> None:
    """Press keys, separated by spaces, and let the app act on them."""
    await pilot.press(*keys.split())


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeChild:
    """A run whose process is the test itself: it writes the log, and ends when it is told to."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        self.exit_code: int | None = None
        self.stopping = self.detached = self.killed = False
        log = folder / "events.jsonl"
        self.began_at = log.stat().st_size if log.exists() else 0

    def write(self, events: Sequence[Event]) -> None:
        append(self.folder, events)

    def stop(self) -> None:
        self.stopping = True

    def detach(self) -> None:
        self.detached = True

    def wait(self, seconds: float) -> int | None:
        """A process that was asked to stop does."""
        if self.stopping:
            self.exit_code = 3
        return self.exit_code

    def kill(self) -> None:
        self.killed = True
        self.exit_code = -9


class FakeStarts:
    """In the place of `start_run`; remembers what it started."""

    def __init__(self) -> None:
        self.children: list[FakeChild] = []

    def __call__(self, recipe: Recipe, folder: Path, **_: Any) -> FakeChild:
        folder.mkdir(parents=True, exist_ok=True)
        self.children.append(FakeChild(folder, recipe))
        return self.children[-1]

    @property
    def last(self) -> FakeChild:
        return self.children[-1]


def append(folder: Path, events: Sequence[Event]) -> None:
    """Write on at the end of a run's log."""
    with (folder / "events.jsonl").open("a") as log:
        log.writelines(json.dumps(event) + "\n" for event in events)


def write_run(folder: Path = RUN, events: Sequence[Event] | None = None, tail: str = "") -> Path:
    """A run folder with the log of a whole run, or with these events."""
    write_log(folder / "events.jsonl", whole_run() if events is None else events, tail)
    return folder


def later(events: Sequence[Event], n: int, status: str | None = None) -> list[Event]:
    """What a run that stands at these events writes next: update n, and how it ended."""
    seq = len(events)
    more = [update_event(n, seq=seq)]
    return [*more, done_event(n, status, seq=seq + 1)] if status else more


def early(updates: int, **changes: Any) -> list[Event]:
    """A live run of 112 updates after so many of them."""
    return whole_run(updates, planned=112, status=None, **changes)


def falling() -> list[Event]:
    """A live run whose pass rate rises for 30 updates and then falls as fast."""
    events = [run_event(recipe_of(112))]
    for n in range(1, 61):
        events.append(update_event(n))
        if n % 4 == 0:
            rise = n / 30 if n <= 30 else 2 - n / 30
            events.append(eval_event(2.0 * n, 0.2 + 0.6 * rise + 0.004 * (-1) ** (n // 4)))
    return numbered(events)
