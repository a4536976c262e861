"""How much faster the vectorised searches are than one call after the other, same answer.

Run it as a script: `python tests/benchmarks/bench_fit.py`. Every ratio is measured within one run
of one process, so the load of the machine cancels.
"""

import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import curve_fit

from scalerl.curves.bootstrap import block_bootstrap
from scalerl.curves.sources import published
from scalerl.curves.uncertainty import Uncertainty
from scalerl.fit import (
    DRAWN_C_MID_K,
    PAPER_A_M,
    PAPER_C_MID_K,
    Grid,
    fit_points,
    fit_sigmoid,
    usable_points,
)

Floats = NDArray[np.float64]


def read_curve(figure: str, series: str) -> tuple[Floats, Floats]:
    """(C, R) of one digitised curve, C in GPU-hours."""
    [curve] = published(f"{figure}/{series}").curves
    return curve.C_N, curve.R_N


def one_call_per_cell(
    C: Floats, R: Floats, R0: float, C_mid_K: Floats
) -> tuple[float, float, float, int]:
    """(A, B, C_mid, calls): the search as the paper describes it, B alone by `curve_fit`."""
    best_sse, best, calls = np.inf, (0.0, 0.0, 0.0), 0
    for A in PAPER_A_M[PAPER_A_M > R0]:
        for C_mid in C_mid_K:

            def law(c: Floats, B: float, A: float = A, C_mid: float = C_mid) -> Floats:
                return R0 + (A - R0) / (1.0 + (C_mid / c) ** B)

            calls += 1
            try:
                with warnings.catch_warnings(
                    action="ignore"
                ):  # far cells overflow, say nothing of B
                    (B,), _ = curve_fit(law, C, R, p0=[1.5])
                    sse = float(np.sum((law(C, B) - R) ** 2))
            except RuntimeError:  # no convergence: not the best cell either
                continue
            if sse < best_sse:
                best_sse, best = sse, (float(A), float(B), float(C_mid))
    return *best, calls


def main() -> None:
    C, R = read_curve("Fig1a", "ScaleRL-bs2048-100k")
    for R0 in (0.4, None):
        laps = _lap(partial(fit_sigmoid, C, R, R0=R0), 20)
        print(f"relative, R0={R0}: {1e3 * laps:.1f} ms for {len(C)} points")
        points = usable_points(C, R, R0=R0)
        fit = fit_points(points)
        refits_s = _lap(partial(block_bootstrap, points, fit, 1_000, 0), 3)
        print(
            f"1,000 refits of a block bootstrap, R0={R0}: {refits_s:.2f} s, "
            f"{1_000 * laps / refits_s:.0f} times faster than one fit after the other"
        )
        known_s = _lap(lambda p=points, f=fit: Uncertainty(p, f).A(), 10)
        print(f"profile interval of A, R0={R0}: {1e3 * known_s:.1f} ms")
    grids: tuple[tuple[Grid, Floats], ...] = (
        ("paper", PAPER_C_MID_K),
        ("paper-drawn", DRAWN_C_MID_K),
    )
    for grid, C_mid_K in grids:
        ours_s = _lap(partial(fit_sigmoid, C, R, R0=0.4, grid=grid), 5)
        fit = fit_sigmoid(C, R, R0=0.4, grid=grid)
        start = time.perf_counter()
        A, B, C_mid, calls = one_call_per_cell(C, R, 0.4, C_mid_K)
        theirs_s = time.perf_counter() - start
        same = (fit.A, fit.C_mid) == (A, C_mid)
        print(
            f"{grid}: {calls} calls {theirs_s:.2f} s, vectorised {1e3 * ours_s:.1f} ms, "
            f"{theirs_s / ours_s:.0f} times faster; same cell: {same}, B {B:.4f} and {fit.B:.4f}"
        )


def _lap(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of `repeats` calls."""
    laps = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        laps.append(time.perf_counter() - start)
    return min(laps)


if __name__ == "__main__":
    main()
