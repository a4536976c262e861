"""How often the intervals of a fit hold, and how wide they are: simulated curves whose truth is known.

Run it as a script: `python tests/benchmarks/calibration.py [--curves N] [--seed S] [--write]`. Each
row of the table is one kind of run: how many points, how they scatter, and how far they reach. Only
curves that `judge` calls ok are counted, as a reader would. `--write` puts the tables into
docs/forecasting.md, between its markers.
"""

import argparse
import itertools
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scalerl.curves.alarms import residual
from scalerl.curves.bootstrap import block_bootstrap
from scalerl.curves.curve import Curve, curve
from scalerl.curves.uncertainty import Interval, Uncertainty
from scalerl.fit import Floats, fit_points, sigmoid
from scalerl.forecast import judge

PAGE = Path(__file__).parents[2] / "docs" / "forecasting.md"
LAW = {"R0": 0.4, "A": 0.61, "C_mid": 1.0}  # the published 8B run, C in units of its C_mid
NUMBERS = ("A", "B", "C_mid", "C_80", "R(2C)")
BOOTSTRAP = 200


@dataclass(frozen=True)
class Kind:
    """A kind of run: n points from `first` to `last` (in units of C_mid), noise sd and AR(1) rho."""

    n: int
    rho: float
    sd: float
    first: float
    last: float
    B: float


@dataclass(frozen=True)
class Row:
    """What N simulated runs of a kind gave: shares that hold, in the order of NUMBERS."""

    kind: Kind
    ok: float
    covered: tuple[float, ...]
    bootstrap: float
    width: float  # median of A's interval


def kinds() -> Iterator[Kind]:
    """Independent noise with 20, 40 and 80 points, autocorrelated with 40 and 80."""
    noises = [(20, 0.0), (40, 0.0), (80, 0.0), (40, 0.7), (80, 0.7)]
    reach = [(0.3, 2.5), (0.3, 5.0), (0.1, 10.0)]
    for (n, rho), sd, (first, last), B in itertools.product(
        noises, (0.003, 0.01), reach, (1.5, 2.5)
    ):
        yield Kind(n, rho, sd, first, last, B)


def simulated(kind: Kind, rng: np.random.Generator) -> Curve:
    """One run of a kind, R0 known."""
    C_N = np.linspace(kind.first, kind.last, kind.n)
    R_N = sigmoid(C_N, **LAW, B=kind.B) + kind.sd * noise(kind.n, kind.rho, rng)
    return curve(np.stack([C_N, np.clip(R_N, 0.0, 1.0)], axis=1)).given(LAW["R0"])


def noise(n: int, rho: float, rng: np.random.Generator) -> Floats:
    """AR(1) of standard deviation 1."""
    e_N = rng.standard_normal(n)
    for i in range(1, n):
        e_N[i] = rho * e_N[i - 1] + np.sqrt(1.0 - rho**2) * e_N[i]
    return e_N


def measure(kind: Kind, curves: int, seed: int) -> Row:
    """Simulate, fit and count. The truth must lie inside the interval at its nominal 90 %."""
    rng = np.random.default_rng([seed, kind.n, int(100 * kind.rho), int(1000 * kind.sd)])
    C_80 = LAW["C_mid"] * 4.0 ** (1.0 / kind.B)
    ahead = float(sigmoid(2 * kind.last, **LAW, B=kind.B))
    truths = (LAW["A"], kind.B, LAW["C_mid"], C_80, ahead)
    held, boot, widths = [], [], []
    for i in range(curves):
        run = simulated(kind, rng)
        points = run.points()
        fit = fit_points(points)
        known = Uncertainty(points, fit)
        if judge(run, known, [])[0] != "ok":
            continue
        found = (
            known.A(),
            known.B(),
            known.C_mid(),
            known.compute_to_share(0.8),
            known.rate(2 * kind.last),
        )
        held.append([holds(interval, truth) for interval, truth in zip(found, truths, strict=True)])
        drawn = block_bootstrap(points, fit, BOOTSTRAP, seed=i).A_S
        lo, hi = np.quantile(drawn, [0.05, 0.95])
        boot.append(lo <= LAW["A"] <= hi)
        assert found[0].lo is not None and found[0].hi is not None
        widths.append(found[0].hi - found[0].lo)
    share = np.mean(held, axis=0) if held else np.full(len(NUMBERS), np.nan)
    return Row(
        kind,
        len(held) / curves,
        tuple(float(each) for each in share),
        float(np.mean(boot)) if boot else np.nan,
        float(np.median(widths)) if widths else np.nan,
    )


def holds(interval: Interval, truth: float) -> bool:
    lo = -np.inf if interval.lo is None else interval.lo
    hi = np.inf if interval.hi is None else interval.hi
    return bool(lo <= truth <= hi)


def false_alarms(n: int, rho: float, runs: int, seed: int) -> float:
    """Share of healthy runs of n evaluations on which the residual test ever fires."""
    rng = np.random.default_rng([seed, n, int(100 * rho)])
    fired = 0
    for i in range(runs):
        B, last = ((2.0, 4.0), (1.5, 8.0))[i % 2]
        kind = Kind(n, rho, 0.005, last / n, last, B)
        fired += residual(simulated(kind, rng)) is not None
    return fired / runs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--curves", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    todo = list(kinds())
    with ProcessPoolExecutor(2) as pool:
        counts, seeds = itertools.repeat(asked.curves), itertools.repeat(asked.seed)
        rows = []
        for row in pool.map(measure, todo, counts, seeds):
            print(line(row), flush=True)
            rows.append(row)
        healthy = [(n, rho) for n in (40, 100) for rho in (0.0, 0.7)]
        ns, rhos = zip(*healthy, strict=True)
        shares = list(pool.map(false_alarms, ns, rhos, counts, seeds))
    text = page(rows, list(zip(healthy, shares, strict=True)), asked.curves, asked.seed)
    print(text)
    if asked.write:
        before, begin, rest = PAGE.read_text().partition("<!-- calibration -->\n")
        _, end, after = rest.partition("<!-- end of calibration -->")
        PAGE.write_text(before + begin + text + end + after)


def line(row: Row) -> str:
    """One line of the table: coverages in per cent."""
    kind = row.kind
    noise = "independent" if kind.rho == 0.0 else f"AR(1) {kind.rho:g}"
    shares = " | ".join(f"{100 * each:.0f}" for each in row.covered)
    return (
        f"| {kind.n} | {noise} | {kind.sd:g} | {kind.first:g} .. {kind.last:g} | {kind.B:g}"
        f" | {100 * row.ok:.0f} | {shares} | {100 * row.bootstrap:.0f} | {row.width:.4f} |"
    )


def page(
    rows: list[Row], healthy: list[tuple[tuple[int, float], float]], curves: int, seed: int
) -> str:
    """The tables as Markdown."""
    heads = ["n", "noise", "sd", "C / C_mid", "B", "ok", *NUMBERS, "A, bootstrap", "width of A"]
    parts = [
        f"{curves} simulated runs a row, seed {seed}; coverage in per cent, nominal 90.",
        "",
        f"| {' | '.join(heads)} |",
        "|" + "---|" * len(heads),
        *map(line, rows),
        "",
        *summary(rows),
        "",
        "| healthy runs of | noise | residual alarm ever fires |",
        "|---|---|---|",
    ]
    for (n, rho), share in healthy:
        told = "independent" if rho == 0.0 else f"AR(1) {rho:g}"
        parts.append(f"| {n} evaluations | {told} | {100 * share:.1f} % |")
    return "\n".join(parts) + "\n"


def summary(rows: list[Row]) -> list[str]:
    """Least, mean and greatest coverage, by noise."""
    lines = ["| noise | least | mean | greatest | bootstrap, mean |", "|---|---|---|---|---|"]
    for name, of in (("independent, n >= 20", 0.0), ("AR(1) 0.7, n >= 40", 0.7)):
        mine = [row for row in rows if row.kind.rho == of]
        all_of = np.array([row.covered for row in mine])
        boot = np.mean([row.bootstrap for row in mine])
        lines.append(
            f"| {name} | {100 * np.nanmin(all_of):.1f} | {100 * np.nanmean(all_of):.1f}"
            f" | {100 * np.nanmax(all_of):.1f} | {100 * boot:.1f} |"
        )
    return lines


if __name__ == "__main__":
    main()
