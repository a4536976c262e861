"""`scalerl compare`: curves side by side, who wins at which budget, and why."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from scalerl.curves.comparison import (
    BAND,
    SHARES,
    Comparison,
    efficiency,
    exponent_at,
    speed,
)
from scalerl.curves.curve import differing_settings, thinned
from scalerl.curves.extending import Effort, effort_to_detect
from scalerl.curves.sources import PAPER, Source, read_source, split_set
from scalerl.errors import InputError
from scalerl.fit import FitError
from scalerl.forecast import Forecast
from tui.commands.fitting import parse_grid, parse_window
from tui.compare.contrast import speed_told
from tui.show.overlay import Series, plot_overlay
from tui.watch.analysis import forecast_of
from tui.words import amount, interval, page, printable

HEIGHT = 16
CLEAR = 0.8  # chance from which a winner is named
REACH = 10.0  # crossings are looked for up to this many times the last point


def compare(
    sources: Sequence[str],
    *,
    budgets: Sequence[float],
    detect: float | None,
    x: str | None,
    y: str | None,
    select: Sequence[str],
    unit: str | None,
    R0: float | None,
    window: str | None,
    grid: str | None,
    plot: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Read, fit, compare and print.

    Raises:
        InputError: fewer than two sources, one that cannot be read or fitted, or different units.
    """
    if len(sources) < 2:
        raise InputError("a comparison needs two curves or more: `scalerl fit` looks at one")
    limits, searched = parse_window(window), parse_grid(grid)
    made = [forecast_of(_read(each, x, y, select, unit), R0, limits, searched) for each in sources]
    units = {each.curve.name: each.curve.unit for each in made}
    if len(set(units.values())) > 1:
        told = ", ".join(f"{name} in {of}" for name, of in units.items())
        raise InputError(f"different units of compute: {told}; say --unit where it is the same")
    both = Comparison(made, seed)
    if plot is not None:
        from tui.show.figures import save_comparison

        save_comparison(plot, made)
    if as_json:
        print(json.dumps(document(both, budgets, detect), indent=2, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    width = min(console.width, 110)
    parts = [
        _curves(made, width),
        _table(both),
        _settings(made),
        _sets(made),
        *(_at_budget(both, C) for C in budgets),
        _pairs(both),
        _efficiency(made, width),
        _effort(both, detect),
    ]
    console.print("\n\n".join(page(part) for part in parts if part))


def _read(
    text: str, x: str | None, y: str | None, select: Sequence[str], unit: str | None
) -> Source:
    """A source; what chooses columns and rows is for those that are CSVs."""
    place, _ = split_set(text)
    if place.startswith(PAPER) or Path(place).is_dir() or place.endswith(".jsonl"):
        return read_source(text, unit=unit)
    return read_source(text, x=x, y=y, select=select, unit=unit)


def document(both: Comparison, budgets: Sequence[float], detect: float | None) -> dict[str, Any]:
    """The comparison as JSON."""
    made, pairs = both.forecasts, list(combinations(range(len(both.forecasts)), 2))
    return {
        "unit": both.unit,
        "curves": [_row(each) for each in made],
        "settings": differing_settings([each.whole for each in made]),
        "budgets": [
            {
                "C": C,
                "best": [
                    {"name": each.curve.name, "chance": chance}
                    for each, chance in zip(made, both.best_at(C), strict=True)
                ],
                "pairs": [asdict(both.duel(i, j, C)) for i, j in pairs],
            }
            for C in budgets
        ],
        "crossings": [asdict(both.crossing(i, j, _reach(made))) for i, j in pairs],
        "speed": [
            {"a": made[i].curve.name, "b": made[j].curve.name, **asdict(found)}
            for i, j in pairs
            if (found := speed(made[i], made[j])) is not None
        ],
        "effort": None if detect is None else asdict(_needed(both, detect)),
    }


def _row(made: Forecast) -> dict[str, Any]:
    return {
        "name": made.curve.name,
        "verdict": made.verdict,
        "A": asdict(made.A()),
        "B": asdict(made.B()),
        "C_mid": asdict(made.C_mid()),
        "R0": asdict(made.R0()),
        "compute_to_share": {str(q): asdict(made.compute_to_share(q)) for q in SHARES},
        "rmse": made.fit.rmse,
        "n": made.fit.n,
        "last_C": made.last_C,
        "dropped": efficiency(made).dropped,
    }


def _reach(made: Sequence[Forecast]) -> float:
    return REACH * max(each.last_C for each in made)


def _curves(made: Sequence[Forecast], width: int) -> list[str]:
    series = [
        Series(
            each.curve.name,
            list(zip(whole.C_N.tolist(), whole.R_N.tolist(), strict=True)),
            lambda C, fit=each.fit: float(fit.predict(C)),
        )
        for each in made
        for whole in (thinned(each.whole),)
    ]
    unit = made[0].curve.unit
    return plot_overlay(series, width=width, height=HEIGHT, unit=unit, title="pass rate")


def _table(both: Comparison) -> list[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    made = both.forecasts
    shares = [f"C_{round(100 * q)}" for q in SHARES]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    common = sum(each.fit.A for each in made) / len(made)
    pairs = combinations(range(len(made)), 2)
    close = all(both.same_ceiling(i, j) for i, j in pairs)
    heads = ["curve", "A", *shares, "n", "rmse", "verdict"]
    if close:
        heads.insert(2, f"B at A {common:.3f}")
    for head in heads:
        table.add_column(head, no_wrap=head != "curve", overflow="fold")
    for each in made:
        cells = [printable(each.curve.name), interval(each.A())]
        if close:
            held = exponent_at(each, common)
            cells.append("-" if held is None else f"{held[0]:.2f}")
        cells += [amount(each.compute_to_share(q).value) for q in SHARES]
        cells += [str(each.fit.n), f"{each.fit.rmse:.4f}", each.verdict]
        table.add_row(*cells)
    width = max(110, 40 + 12 * len(heads))
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as held_back:
        console.print(table)
    lines = [line.rstrip() for line in held_back.get().splitlines() if line.strip()]
    lines.append(f"C_q is the compute to the share q of the gain, {made[0].curve.unit}")
    if close:
        lines.append(
            f"the ceilings lie within +-{BAND} of one another: the same, as far as single runs can"
            " say; the one that gets there on less compute is the better"
        )
    lines += [
        f"alarm ({alarm.level}) {alarm.name} in {each.curve.name}: {alarm.evidence}"
        for each in made
        for alarm in each.alarms
    ]
    return lines


def _settings(made: Sequence[Forecast]) -> list[str]:
    rows = differing_settings([each.whole for each in made])
    if any(each.whole.recipe is None for each in made):
        return []
    if not rows:
        return ["the recipes are the same"]
    return [
        "what differs in the recipes:",
        *(f"  {key}: {' | '.join(map(str, values))}" for key, values in rows.items()),
    ]


def _sets(made: Sequence[Forecast]) -> list[str]:
    if len({each.curve.evaluation_set for each in made}) == 1:
        return []
    return ["different evaluation sets: compare shapes, not values"]


def _at_budget(both: Comparison, C: float) -> list[str]:
    rows = sorted(
        zip(both.best_at(C), both.forecasts, strict=True), key=lambda row: -row[1].rate(C).value
    )
    (best, winner), sure = (
        max(rows, key=lambda row: row[0]),
        all(m.verdict == "ok" for _, m in rows),
    )
    take = f"take {winner.curve.name}" if best >= CLEAR and sure else "no clear winner"
    lines = [f"at {amount(C)} {both.unit}: {take}"]
    for chance, made in rows:
        how = "   (ahead of its points)" if made.last_C < C else ""
        doubt = "" if made.verdict == "ok" else f"   {made.verdict}"
        lines.append(
            f"  {interval(made.rate(C))}   best with chance {chance:.0%}   {made.curve.name}"
            f"{how}{doubt}"
        )
    return lines


def _pairs(both: Comparison) -> list[str]:
    made = both.forecasts
    last = max(each.last_C for each in made)
    lines: list[str] = []
    for i, j in combinations(range(len(made)), 2):
        duel, cross = both.duel(i, j, last), both.crossing(i, j, _reach(made))
        how = ", on the same held-out prompts" if duel.paired else ""
        lines.append(
            f"{duel.a} less {duel.b} at {amount(last)} {both.unit}:"
            f" {interval(duel.difference, '+.3f')}, ahead with chance {duel.ahead:.0%}{how}"
        )
        if cross.C is None:
            lines.append(
                f"  they do not cross between {amount(cross.first)} and {amount(cross.reach)} {both.unit}"
            )
        else:
            lines.append(
                f"  they cross at {interval(cross.C, 'amount')} {both.unit}"
                f" ({cross.chance:.0%} of the draws cross, between {amount(cross.first)} and"
                f" {amount(cross.reach)})"
            )
        found = speed(made[i], made[j])
        if found is not None:
            lines.append(f"  {speed_told(found, both.unit)}")
    return lines


def _efficiency(made: Sequence[Forecast], width: int) -> list[str]:
    rows = [efficiency(each) for each in made]
    series = []
    for each, row in zip(made, rows, strict=True):
        C = [math.exp(value) for value in row.lnC_N]
        series.append(
            Series(
                f"{each.curve.name} ({row.dropped} dropped)" if row.dropped else each.curve.name,
                list(zip(C, row.logit_N.tolist(), strict=True)),
                lambda C, row=row: row.intercept + row.slope * math.log(C),
                row.half_N.tolist(),
            )
        )
    title = "ln((R - R0) / (A - R)): a line of slope B, 0 at C_mid"
    unit = made[0].curve.unit
    lines = plot_overlay(series, width=width, height=HEIGHT, unit=unit, title=title)
    dropped = sum(row.dropped for row in rows)
    if dropped:
        lines.append(f"{dropped} points dropped: R >= A or R <= R0 has no logarithm")
    return lines


def _effort(both: Comparison, detect: float | None) -> list[str]:
    if detect is None:
        return []
    need = _needed(both, detect)
    return [
        f"to show a difference of {detect:g} in A (power 80 %, level 95 %): {need.seeds} seeds of"
        f" each recipe to {amount(need.C)} {both.unit}, {amount(need.total)} {both.unit} in all"
    ]


def _needed(both: Comparison, difference: float) -> Effort:
    """Run-to-run scatter as the least sure of them has it, to the last point of the longest."""
    made = both.forecasts
    spread = max(each.between_runs for each in made)
    try:
        return effort_to_detect(difference, spread, max(each.last_C for each in made))
    except FitError as error:
        raise InputError(f"--detect: {error}") from None
