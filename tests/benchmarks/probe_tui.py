"""Half of bench_tui.py: the app without a terminal, in a process of its own, watched from within.

`probe_tui.py attach LOG UPDATES` and `probe_tui.py replay RECORDING SECONDS` print what they saw as JSON.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

from textual.app import App

from tui.app import ScalerlApp
from tui.screens.dashboard import Dashboard
from tui.widgets.panel import Panel

SIZE = (120, 36)
FIT_S = 4.0  # for the fit of a whole log, and its painting
TICK_S = 0.005
QUARTERS = (0.25, 0.5, 0.75, 1.0)
MB = 1e6


class Blocks:
    """How long the app's loop was busy with one thing: by how much a sleep of 5 ms overslept.

    On a machine that others use too the processor time of the loop's thread says more than the clock.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []  # seconds by the clock, and on the processor

    async def watch(self) -> None:
        while True:
            before, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            self.seen.append((time.perf_counter() - before - TICK_S, time.thread_time() - worked))

    def taken(self) -> dict[str, float]:
        """Of the time since this was asked last: the longest of both."""
        seen, self.seen = self.seen, []
        by_clock, at_work = zip(*seen, strict=True)
        return {"longest_ms": 1e3 * max(by_clock), "longest_cpu_ms": 1e3 * max(at_work)}


async def until(true: Callable[[], bool]) -> float:
    """Seconds until so."""
    start = time.perf_counter()
    while not true():
        await asyncio.sleep(TICK_S)
    return time.perf_counter() - start


def dashboard(app: App) -> Dashboard | None:
    return app.screen if isinstance(app.screen, Dashboard) and app.screen.is_mounted else None


async def attach(log: str, updates: int) -> dict:
    """From the home screen to the last update of a log, and on to the fit."""
    app = ScalerlApp()
    app.settle()
    blocks = Blocks()

    def shown() -> bool:
        board = dashboard(app)
        return board is not None and f"update {updates}/" in board.query_one("#status", Panel).plain

    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        watching = asyncio.create_task(blocks.watch())
        start, worked = time.perf_counter(), time.process_time()
        app.show_run(log)
        await until(shown)
        seconds, cpu = time.perf_counter() - start, time.process_time() - worked
        reading = blocks.taken()
        await asyncio.sleep(FIT_S)
        fitting = blocks.taken()
        watching.cancel()
    return {"seconds": seconds, "cpu_s": cpu, "reading": reading, "fitting": fitting}


async def replay(recording: str, seconds: float) -> dict:
    """Open a recording, play it from start to end in so many seconds."""
    app = ScalerlApp()
    app.settle()
    blocks = Blocks()
    before = rss()

    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        watching = asyncio.create_task(blocks.watch())
        app.show_run(recording, replay=True)
        opened = await until(lambda: (b := dashboard(app)) is not None and b.player is not None)
        opening = blocks.taken() | {"peak_mb": peak_rss() / MB, "start_mb": before / MB}
        board = dashboard(app)
        assert board is not None and board.player is not None
        player = board.player
        player.speed = player.end / seconds
        memory = []
        start = time.perf_counter()
        for share in QUARTERS:
            seen = []
            while player.cursor < share * player.end:
                await asyncio.sleep(0.05)
                seen.append(rss() / MB)
            memory.append(statistics.median(seen))
        played = time.perf_counter() - start
        playing = blocks.taken()
        watching.cancel()
    return {
        "opened_s": opened, "opening": opening, "played_s": played, "playing": playing,
        "rss_mb": memory, "peak_mb": peak_rss() / MB,
    }  # fmt: skip


def rss() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_rss() -> int:
    """The most there were."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    what, path, number = sys.argv[1:]
    found = attach(path, int(number)) if what == "attach" else replay(path, float(number))
    print(json.dumps(asyncio.run(found)))
