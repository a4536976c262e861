"""Which of the paper's claims can the tiny world show at all? Every setting of pilots.toml on its seeds, all shown.

    python tests/benchmarks/pilots.py [--runs DIR] [--jobs J] [--only TEXT] [--write]

Pilots have seeds of their own, from 900 on, which no report uses: settings were chosen after looking at them. Runs that
are in DIR already are read, not run again. `--write` puts the table into docs/pilots.md.
"""

import argparse
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.curves.curve import curve_of_run, fit_curve
from scalerl.events import Event, evaluations, read_events
from scalerl.fit import FitError

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "pilots.md"
SCALERL = Path(sys.executable).with_name("scalerl")
FIRST_SEED = 900
LAST = 3  # evaluations whose mean is the end of a run
HEADER = (
    "| setting | seed | start | end | A | C_mid | C to half-way | C | benchmark | truncated | KL | entropy |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Pilot:
    """One setting of one claim's question, on some seeds."""

    name: str
    claims: list[int]
    recipe: str = "scalerl"
    on: str = "sandbox"
    set: tuple[str, ...] = ()
    seeds: int = 2

    @property
    def slug(self) -> str:
        return self.name.replace(" ", "-").replace(",", "").replace("/", "-")


def pilots() -> list[Pilot]:
    table = tomllib.loads((HERE / "pilots.toml").read_text())
    common = tuple(table["set"])
    return [Pilot(**{**p, "set": (*common, *p.get("set", ()))}) for p in table["pilot"]]


def run(pilot: Pilot, seed: int, folder: Path) -> list[Event]:
    """The events of one run, made now or found in its folder; a run that failed ends with a fault."""
    log = folder / "events.jsonl"
    if not is_over(log):
        command = [SCALERL, "run", pilot.recipe, "--on", pilot.on, f"seed={seed}", *pilot.set]
        done = subprocess.run(
            [*command, "--out", folder, "--one-core", "--json"], capture_output=True, text=True
        )
        print(f"{pilot.name}, seed {seed}: {done.stderr.strip() or 'done'}", flush=True)
    return read_events(log)


def is_over(log: Path) -> bool:
    """Done, or broken; a run that was stopped is taken up."""
    if not log.exists():
        return False
    last = read_events(log)[-2:]
    done = any(e["kind"] == "done" and e["status"] != "stopped" for e in last)
    return done or any(e["kind"] == "fault" for e in last)


def row(pilot: Pilot, seed: int, events: list[Event]) -> str:
    """What one run showed, as a line of the table."""
    updates = [e for e in events if e["kind"] == "update"]
    cells: list[str] = []
    for name in ("validation", *parts(events)):
        points = evaluations(events, name)
        end = mean([e["pass_rate"] for e in points[-LAST:]])
        half = (points[0]["pass_rate"] + end) / 2
        reached = next(
            (e["C"] for e in points if e["pass_rate"] >= half > points[0]["pass_rate"]), None
        )
        A, C_mid = fitted(events, name)
        cells += [
            f"| {pilot.name}{name.removeprefix('validation').replace('/', ': ')} | {seed} "
            f"| {points[0]['pass_rate']:.3f} | {end:.3f} | {A} | {C_mid} "
            f"| {'' if reached is None else f'{reached:.0f}'} | {points[-1]['C']:.0f} "
            f"| {downstream(events)} | {max(u['truncated'] for u in updates):.1%} "
            f"| {largest(updates, 'kl')} | {last(updates, 'entropy')} |"
        ]
    return "\n".join(cells)


def parts(events: list[Event]) -> list[str]:
    """The tasks of a mixture, as names of evaluation sets."""
    sets = {e["set"] for e in events if e["kind"] == "eval"}
    return sorted(name for name in sets if name.startswith("validation/"))


def fitted(events: list[Event], name: str) -> tuple[str, str]:
    try:
        fit = fit_curve(curve_of_run(events, name, name))
    except FitError:
        return "none", "none"
    return f"{fit.A:.3f}", f"{fit.C_mid:.0f}"


def downstream(events: list[Event]) -> str:
    """Pass rate of the mini-benchmark before and after."""
    rates = [e["pass_rate"] for e in evaluations(events, "benchmark")]
    return f"{rates[0]:.2f} to {rates[-1]:.2f}" if len(rates) > 1 else ""


def largest(updates: list[dict[str, Any]], key: str) -> str:
    return f"{max((u[key] for u in updates if u[key] is not None), default=0.0):.4f}"


def last(updates: list[dict[str, Any]], key: str) -> str:
    values = [u[key] for u in updates if u[key] is not None]
    return f"{values[-1]:.3f}" if values else ""


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/pilots"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="pilots whose name contains this")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    chosen = [p for p in pilots() if options.only in p.name]
    asked = [(p, FIRST_SEED + i) for p in chosen for i in range(p.seeds)]

    def line(one: tuple[Pilot, int]) -> str:
        pilot, seed = one
        return row(pilot, seed, run(pilot, seed, options.runs / pilot.slug / f"seed-{seed}"))

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(line, asked))
    table = HEADER + "\n".join(rows) + "\n"
    print(table)
    if options.write:
        head = PAGE.read_text(encoding="utf-8").partition(HEADER.partition("\n")[0])[0]
        PAGE.write_text(head + table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
