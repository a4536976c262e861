"""What a person waits for in the terminal app: its start, a key, a long log; and what a long replay keeps in memory.

Run it with `make bench-tui`. It prints one table and fails if a bar is missed.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from long_logs import write_long
from terminal import SCALERL, Screen, Terminal, environment

PROBE = [sys.executable, str(Path(__file__).with_name("probe_tui.py"))]
HOME = "Start the tiny run"
STARTS = 5
KEYS_S, PAUSE_S = 40.0, (0.2, 0.4)
UPDATES = 400  # of the run beside the keys: more than it gets to
LAPS = slice(10, 51)  # updates between which steps a second are counted
PLAY_S = 20.0
LONG, LONGEST = 100_000, 1_000_000
CTRL_U, BACKSPACE = "\x15", "\x7f"


@dataclass(frozen=True)
class Figure:
    """One row of the table. bar: the value must be below it; None if there is none."""

    what: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def held(self) -> bool:
        return self.bar is None or self.value < self.bar

    def __str__(self) -> str:
        bar = "" if self.bar is None else f"{'<' if self.held else 'NOT <'} {self.bar:g}"
        return f"{self.what:<64} {self.value:>9.3g} {self.unit:<6} {bar}"


def main() -> int:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for measure in (starts, first_evaluation, keys_beside_a_run, long_log, replays):
            for figure in measure(place):
                figures.append(figure)
                print(figure, flush=True)
    missed = sum(not figure.held for figure in figures)
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores;", end=" ")
    print(f"{missed} of {sum(f.bar is not None for f in figures)} bars missed")
    return int(missed > 0)


# ---- start ----


def starts(place: Path) -> list[Figure]:
    """To the first paint of the home screen."""
    cold = _start(place, {"PYTHONPYCACHEPREFIX": str(place / "no-bytecode")})
    warm = sorted(_start(place) for _ in range(STARTS))
    return [
        Figure(f"start to first paint, median of {STARTS}", statistics.median(warm), "s", 1.0),
        Figure(f"start to first paint, slowest of {STARTS}", warm[-1], "s"),
        Figure("start to first paint, nothing compiled yet", cold, "s"),
    ]


def _start(place: Path, more: dict[str, str] | None = None) -> float:
    screen = Terminal(SCALERL, environment(place) | (more or {}))
    try:
        return screen.expect(HOME, 30.0) - screen.started
    finally:
        screen.close()


# ---- a run, and keys beside it ----


def first_evaluation(place: Path) -> list[Figure]:
    """From Enter on the first entry to the evaluation of the start policy on screen."""
    screen = Terminal(SCALERL, environment(place))
    try:
        screen.expect(HOME, 30.0)
        screen.idle(1.0)
        pressed = screen.send("\r")
        shown = screen.expect("the fit needs", 60.0) - pressed
        quit_and_stop(screen)
    finally:
        screen.close()
    return [Figure("Enter to first evaluation on screen", shown, "s", 8.0)]


def keys_beside_a_run(place: Path) -> list[Figure]:
    """Keys in random moments while a run trains at full speed, and what the screen costs the run."""
    screen = Terminal(SCALERL, environment(place))
    try:
        screen.expect(HOME, 30.0)
        start_long_run(screen)
        screen.expect("the fit needs", 60.0)
        by_key = press_keys(screen)
        seconds = sorted(each for found in by_key.values() for each in found)
        lag = [1e3 * seconds[min(int(q * len(seconds)), len(seconds) - 1)] for q in QUANTILES]
        [log] = place.glob("runs/tiny/scalerl/seed-0.2/events.jsonl")
        beside = pace(log)
        quit_and_stop(screen)
    finally:
        screen.close()
    rows = [
        Figure(f"key to its effect beside a run, p{100 * q:.0f} of {len(seconds)}", ms, "ms", bar)
        for q, ms, bar in zip(QUANTILES, lag, (None, None, 60.0, None), strict=True)
    ]
    middle = {name: 1e3 * statistics.median(found) for name, found in by_key.items()}
    each = " ".join(f"{name} {ms:.0f}" for name, ms in middle.items())
    alone = _pace_alone(place)
    return [
        *rows,
        Figure(f"  medians: {each}; slowest", max(middle.values()), "ms"),
        Figure("updates a second beside the screen", beside, "/s"),
        Figure("updates a second of the same run alone", alone, "/s"),
        Figure("pace beside the screen, of that alone", beside / alone, ""),
    ]


QUANTILES = (0.5, 0.9, 0.95, 0.99)


def start_long_run(screen: Terminal) -> None:
    """From the home screen, with the recipe editor."""
    screen.send("n")
    screen.expect("always a new run", 10.0)
    for keys in ("/", "site.updates", "\r", "\r", CTRL_U + BACKSPACE * 4, str(UPDATES), "\r"):
        screen.idle(0.3)
        screen.send(keys)
    screen.expect("1 change", 5.0)
    screen.send("r")


@dataclass(frozen=True)
class Key:
    """A key, and what on the screen it changes: nothing that a repaint of the live run changes."""

    name: str
    key: str
    shows: Callable[[Screen], object]


def _words(words: str) -> Callable[[Screen], object]:
    return lambda screen: words in screen.text


def _readout(screen: Screen) -> object:
    """The compute under the crosshair."""
    before, found, _ = screen.line(2).partition(" GPU-h")
    return before.split()[-1] if found else None


def _border(screen: Screen) -> object:
    return screen.style(0, 1)


KEYS = [
    *[Key("x", "x", _words("╱╱"))] * 2,
    Key("i", "i", _readout),
    *[Key("arrow", "\x1b[D", _readout)] * 2,
    Key("arrow", "\x1b[C", _readout),
    Key("i", "i", _readout),
    *[Key("1-5", key, _border) for key in ("2", "1", "5", "1")],
    *[Key("f", "f", _words("[2] Truncated"))] * 2,
    *[Key("w", "w", _words("window: "))] * 2,
]


def press_keys(screen: Terminal) -> dict[str, list[float]]:
    """Seconds from each press of a key to its effect."""
    chance = random.Random(0)
    found: dict[str, list[float]] = {}
    until = time.monotonic() + KEYS_S
    screen.idle(8.0)  # the crosshair needs points to stand on
    while time.monotonic() < until:
        for key in KEYS:
            screen.idle(chance.uniform(*PAUSE_S))
            before = key.shows(screen.screen)
            pressed = screen.send(key.key)
            seen = screen.wait(lambda now, k=key, b=before: k.shows(now) != b, 2.0)
            assert seen is not None, f"{key.key!r} changed nothing:\n{screen.screen.text}"
            found.setdefault(key.name, []).append(seen - pressed)
    return found


def quit_and_stop(screen: Terminal) -> None:
    """Leave the app, and stop the run it started."""
    screen.send("q")
    screen.expect("stop it", 5.0)
    screen.send("s")
    screen.idle(60.0)  # to its end


def pace(log: Path) -> float:
    """Updates a second of a run, of those that every run of it comes to."""
    with log.open() as file:
        events = [json.loads(line) for line in file if line.endswith("\n")]
    t = [event["t"] for event in events if event["kind"] == "update"][LAPS]
    return (len(t) - 1) / (t[-1] - t[0])


def _pace_alone(place: Path) -> float:
    """The run without a screen, as nice as the one with."""
    folder = place / "alone"
    words = ["run", "tiny", f"site.updates={LAPS.stop}", "--out", str(folder)]
    subprocess.run(
        ["nice", "-n", "10", *SCALERL, *words],
        env=environment(place) | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return pace(folder / "events.jsonl")


# ---- long logs ----


def long_log(place: Path) -> list[Figure]:
    """Attaching to a written log."""
    log = place / "long.jsonl"
    updates = write_long(log, LONG)
    screen = Terminal(SCALERL, environment(place))
    try:
        screen.expect(HOME, 30.0)
        screen.idle(1.0)
        screen.send("a")
        screen.expect("a run folder, a log", 5.0)
        screen.send(str(log))
        screen.idle(0.5)
        pressed = screen.send("\r")
        in_terminal = screen.expect(f"update {updates}/", 60.0) - pressed
    finally:
        screen.close()
    seen = _probe(place, "attach", str(log), str(updates))
    size = f"{LONG:,} events, {log.stat().st_size / 1e6:.0f} MB"
    return [
        Figure(f"attach to {size}: last update shown", in_terminal, "s", 1.0),
        Figure("  the same without a terminal", seen["seconds"], "s", 1.0),
        Figure("  processor time of it", seen["cpu_s"], "s"),
        *blocks("while reading", seen["reading"]),
        *blocks("while the fit is made", seen["fitting"]),
    ]


def replays(place: Path) -> list[Figure]:
    """Opening a recording, and playing it fast."""
    found = {}
    for events in (LONG, LONGEST):
        recording = place / f"{events}.jsonl.gz"
        write_long(recording, events)
        seconds = PLAY_S if events == LONGEST else PLAY_S / 4
        found[events] = _probe(place, "replay", str(recording), f"{seconds:g}")
    short, seen = found[LONG], found[LONGEST]
    memory = seen["rss_mb"]
    quarters = " ".join(f"{each:.0f}" for each in memory)
    return [
        Figure(f"replay of {LONGEST:,} events: opened", seen["opened_s"], "s"),
        *blocks("while opening", seen["opening"]),
        *blocks("while playing", seen["playing"], bar_ms=None),
        Figure(f"  played in {PLAY_S:g} s, quarters {quarters} MB: growth",
               100 * (memory[-1] / memory[0] - 1), "%", 5.0),
        Figure("  most memory", seen["peak_mb"], "MB"),
        Figure(f"  most memory, of that with {LONG:,} events",
               seen["peak_mb"] / short["peak_mb"], "", 1.25),
    ]  # fmt: skip


def blocks(when: str, seen: dict[str, float], bar_ms: float | None = 50.0) -> list[Figure]:
    """The longest time without an answer to a key, and how much of such a one was the app's own work."""
    return [
        Figure(f"  longest block {when}", seen["longest_ms"], "ms", bar_ms),
        Figure("    on the processor", seen["longest_cpu_ms"], "ms"),
    ]


def _probe(place: Path, *words: str) -> dict:
    done = subprocess.run(
        [*PROBE, *words], env=environment(place), stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    if shutil.which("nice") is None:
        sys.exit("bench_tui.py needs a POSIX system")
    sys.exit(main())
