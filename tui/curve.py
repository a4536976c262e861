"""The scaling curve as text: pass rate against compute, for a terminal, a log file or a test.

A cell is one character. Points and the ceiling are placed to the cell; the fitted curve is drawn in
braille, 2 x 4 dots a cell, so it shows the slope that points alone hide. Lines come back as plain
strings without colour codes or trailing spaces: whoever prints them adds colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

import numpy as np

from scalerl.fit import SigmoidFit

EVALUATION, AT_ZERO, CEILING = "●", "○", "╌"
MIN_WIDTH, MIN_HEIGHT = 30, 8
BRAILLE = 0x2800
DOT_BIT = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row in cell][column in cell]
ZERO_GAP = 5  # columns between C = 0 and the first positive C of a log axis, where the axis breaks


def plot_curve(
    points: Sequence[tuple[float, float]],
    fit: SigmoidFit | None,
    *,
    width: int,
    height: int,
    unit: str = "GPU-h",
    log_x: bool = True,
) -> list[str]:
    """Scaling curve as `height` lines of at most `width` columns.

    The curve is drawn over the range of the points only: it shows the fit, not a forecast. An `A`
    with a question mark stands for a ceiling that a limit of the search has set (`fit.at_edge`).

    Args:
        points: (C, R) of each evaluation, C >= 0 in `unit`, R a pass rate. On a log axis C = 0 has
            no place: it is drawn at the left edge as ○, left of a break in the axis.
        fit: the fitted curve; None draws the points alone.
        width, height: size in cells; below 30 x 8 one line says that there is no room.
        unit: unit of C, written under the right end of the axis.
        log_x: logarithmic x axis.
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return ["no room for a plot"[: max(width, 0)].rstrip()]
    for C, R in points:
        if not (isfinite(C) and isfinite(R) and C >= 0.0):
            raise ValueError(f"point ({C}, {R}): C >= 0 and both finite; drop the point")
    rows = height - 3  # heading above, axis and its labels below
    broken = log_x and any(C == 0.0 for C, _ in points)
    x_lo, x_hi = _x_range(points, fit, log_x)
    y_lo, y_hi = _y_range(points, fit, x_lo)
    y = _Axis(y_lo, y_hi, False, 4 * rows - 1, 0)
    y_ticks = _linear_ticks(y_lo, y_hi, max(2, rows // 2))
    tick_at = dict(zip([y.cell(v, 4) for v in y_ticks], _decimals(y_ticks), strict=True))
    ceiling = "" if fit is None else f" A {fit.A:.3f}{'?' if fit.at_edge else ''}"
    margin = max(map(len, tick_at.values())) + 1  # tick label and a space, then the axis itself
    # The unit stands below the right margin, so that the last tick can keep its label.
    columns = width - margin - 1 - max(len(ceiling), min(len(unit) + 2, width // 4))
    x = _Axis(x_lo, x_hi, log_x, 2 * ZERO_GAP if broken else 2, 2 * columns - 3)

    lines = [_heading(width, fit, bool(points), broken)]
    for i, row in enumerate(_cells(points, fit, x, y, rows, columns, broken)):
        edge = f"{tick_at.get(i, ''):>{margin - 1}} {'┤' if i in tick_at else '│'}"
        at_ceiling = fit is not None and i == y.cell(fit.A, 4)
        lines.append(edge + "".join(row) + (ceiling if at_ceiling else ""))
    lines += _x_lines(x, margin, columns, width, unit, broken)
    return [line.rstrip() for line in lines]


@dataclass(frozen=True)
class _Axis:
    """Maps lo..hi onto the dots first..last (first may exceed last: y grows upwards)."""

    lo: float
    hi: float
    log: bool
    first: int
    last: int

    def dot(self, value: float) -> int:
        """Nearest dot; values outside lo..hi fall on the ends."""
        a, b, v = (log10(t) if self.log else t for t in (self.lo, self.hi, max(value, self.lo)))
        share = min(max((v - a) / (b - a), 0.0), 1.0)
        return round(self.first + share * (self.last - self.first))

    def cell(self, value: float, dots: int) -> int:
        return self.dot(value) // dots

    def values(self) -> list[float]:
        """Value at each dot from first to last."""
        count = abs(self.last - self.first) + 1
        spaced = np.geomspace if self.log else np.linspace
        return spaced(self.lo, self.hi, count).tolist()


def _x_range(
    points: Sequence[tuple[float, float]], fit: SigmoidFit | None, log_x: bool
) -> tuple[float, float]:
    positive = [C for C, _ in points if C > 0.0]
    centre = fit.C_mid if fit is not None else 1.0
    lo, hi = (min(positive), max(positive)) if positive else (centre / 10, centre * 10)
    if not log_x:
        return 0.0, hi
    return (lo, hi) if hi > 1.01 * lo else (lo / 2, hi * 2)  # one evaluation: room on both sides


def _y_range(
    points: Sequence[tuple[float, float]], fit: SigmoidFit | None, x_lo: float
) -> tuple[float, float]:
    """All that is drawn, and a little air: points, the ceiling, the curve from its left end."""
    seen = [R for _, R in points]
    seen += [fit.A, float(fit.predict(x_lo))] if fit is not None else []
    lo, hi = (min(seen), max(seen)) if seen else (0.0, 1.0)
    air = max(0.04 * (hi - lo), 0.005)
    return lo - air, hi + air


def _cells(
    points: Sequence[tuple[float, float]],
    fit: SigmoidFit | None,
    x: _Axis,
    y: _Axis,
    rows: int,
    columns: int,
    broken: bool,
) -> list[list[str]]:
    """The area inside the axes; a point hides the curve, and the curve the ceiling."""
    cells = [[" "] * columns for _ in range(rows)]
    if fit is not None:
        cells[y.cell(fit.A, 4)] = [CEILING] * columns
        _draw_curve(cells, fit, x, y)
    for C, R in points:
        zero = broken and C == 0.0
        cells[y.cell(R, 4)][0 if zero else x.cell(C, 2)] = AT_ZERO if zero else EVALUATION
    if not points:
        note = "no evaluation yet"[:columns]
        start = (columns - len(note)) // 2
        cells[rows // 2][start : start + len(note)] = list(note)
    return cells


def _draw_curve(cells: list[list[str]], fit: SigmoidFit, x: _Axis, y: _Axis) -> None:
    """Braille dots along the curve, with vertical strokes where it rises by more than one dot."""
    bits: dict[tuple[int, int], int] = {}
    before = None
    for dot_x, R in enumerate(np.atleast_1d(fit.predict(x.values())).tolist(), start=x.first):
        dot_y = y.dot(R)
        # The curve never falls: a rise fills this column from the new dot down to the last one.
        for d in range(dot_y, max(dot_y + 1, dot_y if before is None else before)):
            key = (d // 4, dot_x // 2)
            bits[key] = bits.get(key, 0) | DOT_BIT[d % 4][dot_x % 2]
        before = dot_y
    for (row, column), mask in bits.items():
        cells[row][column] = chr(BRAILLE | mask)


def _heading(width: int, fit: SigmoidFit | None, any_points: bool, broken: bool) -> str:
    """`pass rate` over the y axis, and as much of the legend as fits at the right."""
    entries = [f"{EVALUATION} evaluation"] if any_points else []
    entries += [f"{AT_ZERO} before RL"] if broken else []
    entries += ["⠒⠒ fit", f"{CEILING}{CEILING} ceiling A"] if fit is not None else []
    if fit is not None and fit.at_edge:
        entries[-1] += " (? at a limit)"
    title = "pass rate"
    while entries and len(title) + 3 + len("   ".join(entries)) > width:
        entries.pop()
    legend = "   ".join(entries)
    return title + " " * (width - len(title) - len(legend)) + legend


def _x_lines(
    x: _Axis, margin: int, columns: int, width: int, unit: str, broken: bool
) -> tuple[str, str]:
    """The axis with its ticks, and the labels under it; a label that would collide is not set."""
    axis = ["─"] * columns
    if broken:
        axis[0], axis[2], axis[3] = "┬", "╱", "╱"
    room = width - margin - 1 - len(unit) - 2  # for labels, counted from the first column
    labels = [(0, "0")] if broken else []
    labels += next(
        (fitting for ticks in _tick_choices(x) if (fitting := _place(x, ticks, room)) is not None),
        [],
    )
    line = [" "] * width
    for column, label in labels:
        axis[column] = "┬"
        start = margin + 1 + max(column - len(label) // 2, 0)
        line[start : start + len(label)] = list(label)
    unit = unit[: width - margin - 1]
    line[width - len(unit) :] = list(unit)
    return " " * margin + "└" + "".join(axis), "".join(line)


def _place(x: _Axis, ticks: Sequence[float], room: int) -> list[tuple[int, str]] | None:
    """(column, label) of every tick, or None when two labels would touch."""
    placed, free_from = [], 2 if x.first >= 2 * ZERO_GAP else 0
    for value in ticks:
        label, column = _short(value), x.cell(value, 2)
        start = max(column - len(label) // 2, 0)
        if start + len(label) > room:  # the unit stands there
            continue
        if start < free_from:
            return None
        placed.append((column, label))
        free_from = start + len(label) + 2
    return placed


def _tick_choices(x: _Axis) -> list[list[float]]:
    """Sets of ticks from fine to coarse: the first whose labels fit is used."""
    if not x.log:
        return [_linear_ticks(x.lo, x.hi, most) for most in (8, 5, 3, 2)]
    decades = range(floor(log10(x.lo)), ceil(log10(x.hi)) + 1)
    choices = [
        [m * 10.0**d for d in decades if d % every == 0 for m in steps]
        for every, steps in ((1, (1, 2, 5)), (1, (1,)), (2, (1,)), (3, (1,)), (6, (1,)))
    ]
    inside = [[t for t in ticks if x.lo <= t <= x.hi] for ticks in choices]
    if len(inside[0]) < 3:  # less than a decade: the numbers between are missed more than symmetry
        return [_linear_ticks(x.lo, x.hi, most) for most in (6, 4, 3, 2)]
    return inside


def _linear_ticks(lo: float, hi: float, most: int) -> list[float]:
    """At most `most` + 1 multiples of 1, 2 or 5 x 10^n inside lo..hi."""
    rough = (hi - lo) / most
    unit = 10.0 ** floor(log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough * (1 - 1e-9))
    return [i * step for i in range(ceil(lo / step - 1e-9), floor(hi / step + 1e-9) + 1)]


def _decimals(ticks: Sequence[float]) -> list[str]:
    """Ticks with one decimal, or as many more as they need."""
    digits = next((d for d in range(1, 9) if all(abs(round(t, d) - t) < 1e-9 for t in ticks)), 9)
    return [f"{tick:.{digits}f}" for tick in ticks]


def _short(value: float) -> str:
    """1500 -> 1.5k, 2e6 -> 2M, 0.05 -> 0.05."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * (1 - 1e-9):
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"
