"""What a redraw of the plot costs, and that 100,000 points cost little more than 75.

Run it as a script: `python tests/benchmarks/bench_raster.py`. It fails if the ratio of the two is 6
or more; a ratio measured within one process says the same on a busy machine.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from tui.show.raster import Band, Layer, Level, Line, Points, natural_view, raster

FEW, MANY, MOST = 75, 100_000, 6.0
WIDTH, HEIGHT = 100, 30


def scene(points: int) -> list[Layer]:
    """Points about a sigmoid, its band at each of them, and the curve at 400 places."""
    rng = np.random.default_rng(0)
    C = np.geomspace(8.0, 221.0, points)
    R = _law(C)
    curve = np.geomspace(8.0, 221.0, 400)
    return [
        Band(C, R - 0.02, R + 0.02),
        Level(0.926, label="A .926"),
        Line(curve, _law(curve)),
        Points(C, R + rng.normal(0.0, 0.006, points)),
    ]


def main() -> int:
    few_s, many_s = _redraw(FEW), _redraw(MANY)
    ratio = many_s / few_s
    print(f"{WIDTH} x {HEIGHT}: {FEW} points {1e3 * few_s:.2f} ms, {MANY} {1e3 * many_s:.2f} ms")
    print(f"ratio {ratio:.1f}, to stay under {MOST:.0f}")
    return int(ratio >= MOST)


def _redraw(points: int) -> float:
    layers = scene(points)
    view = natural_view(layers)
    return _lap(lambda: raster(layers, view, WIDTH, HEIGHT), 50)


def _law(C: np.ndarray) -> np.ndarray:
    return 0.215 + (0.926 - 0.215) / (1.0 + (50.6 / C) ** 2.43)


def _lap(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of `repeats` calls."""
    laps = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        laps.append(time.perf_counter() - start)
    return min(laps)


if __name__ == "__main__":
    sys.exit(main())
