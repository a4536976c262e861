"""What text plots share: axes in cells and dots, ticks with their labels, and lines in braille.

A cell is one character of the area inside the axes, 2 x 4 braille dots. Row 0 is the top one, and
column 0 stands right of the y axis. A plot makes a `Frame`, fills the cells of `blank()` and asks
for `lines()`: plain strings, without colour codes or trailing spaces.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

import numpy as np

MIN_WIDTH, MIN_HEIGHT = 30, 8
BRAILLE = 0x2800
DOT_BIT = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row in cell][column in cell]
ZERO_GAP = 5  # columns between C = 0 and the first positive C of a log axis, where the axis breaks

MINOR_DOTS = 24  # of a decade on a log axis: fewer, and the ticks between its labels say nothing

Span = tuple[float, float]
Cells = list[list[str]]


@dataclass(frozen=True)
class Axis:
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
        """Row (4 dots) or column (2 dots) of the nearest dot."""
        return self.dot(value) // dots

    def values(self) -> list[float]:
        """Value at each dot from first to last."""
        count = abs(self.last - self.first) + 1
        spaced = np.geomspace if self.log else np.linspace
        return spaced(self.lo, self.hi, count).tolist()


@dataclass(frozen=True)
class Frame:
    """The axes of one plot of `width` columns. `frame()` makes one.

    margin: columns left of the y axis. labels: label of the y ticks by row. broken: C = 0 stands in
    column 0, left of a break in a log axis.
    """

    x: Axis
    y: Axis
    rows: int
    columns: int
    width: int
    margin: int
    labels: Mapping[int, str]
    broken: bool

    def blank(self) -> Cells:
        """Spaces, [row][column]."""
        return [[" "] * self.columns for _ in range(self.rows)]

    def place(self, C: float, value: float) -> tuple[int, int]:
        """(row, column) of a point."""
        column = 0 if self.broken and C == 0.0 else self.x.cell(C, 2)
        return self.y.cell(value, 4), column

    def draw_line(self, cells: Cells, values: Sequence[tuple[int, float]]) -> None:
        """Braille dots through (x dot, value), with vertical strokes where it moves by more than one.

        Dots of lines drawn before stay; anything else in a cell is replaced.
        """
        before = None
        for dot_x, value in values:
            dot_y = self.y.dot(value)
            # A stroke fills this column from the new dot to beside the last one.
            reach = dot_y if before is None else before
            stroke = range(dot_y, max(dot_y + 1, reach))
            for d in stroke if reach >= dot_y else range(reach + 1, dot_y + 1):
                row, column = d // 4, dot_x // 2
                old = ord(cells[row][column]) - BRAILLE
                mask = DOT_BIT[d % 4][dot_x % 2] | (old if 0 < old <= 0xFF else 0)
                cells[row][column] = chr(BRAILLE | mask)
            before = dot_y

    def lines(self, cells: Cells, unit: str, right: Mapping[int, str] | None = None) -> list[str]:
        """`rows` + 2 lines: the cells behind the y axis, the x axis and its labels.

        right: text right of a row.
        """
        found = []
        for i, row in enumerate(cells):
            edge = f"{self.labels.get(i, ''):>{self.margin - 1}} {'┤' if i in self.labels else '│'}"
            found.append(edge + "".join(row) + (right or {}).get(i, ""))
        return [line.rstrip() for line in [*found, *self.x_lines(unit)]]

    def x_lines(self, unit: str) -> tuple[str, str]:
        """The axis with its ticks, and the labels under it; a label that would collide is not set."""
        axis = ["─"] * self.columns
        if self.broken:
            axis[0], axis[2], axis[3] = "┬", "╱", "╱"
        # for labels, counted from the first column
        room = self.width - self.margin - 1 - len(unit) - 2
        labels = [(0, "0")] if self.broken else []
        choices = (self._placed(ticks, room) for ticks in tick_choices(self.x))
        labels += next((fitting for fitting in choices if fitting is not None), [])
        line = [" "] * self.width
        for column, label in labels:
            axis[column] = "┬"
            start = self.margin + 1 + max(column - len(label) // 2, 0)
            line[start : start + len(label)] = list(label)
        unit = unit[: self.width - self.margin - 1]
        line[self.width - len(unit) :] = list(unit)
        return " " * self.margin + "└" + "".join(axis), "".join(line)

    def _placed(self, ticks: Sequence[float], room: int) -> list[tuple[int, str]] | None:
        """(column, label) of every tick, or None when two labels would touch."""
        placed, free_from = [], 2 if self.broken else 0
        for value in ticks:
            label, column = short(value), self.x.cell(value, 2)
            start = max(column - len(label) // 2, 0)
            if start + len(label) > room:  # the unit stands there
                continue
            if start < free_from:
                return None
            placed.append((column, label))
            free_from = start + len(label) + 2
        return placed


def frame(
    x: Span, y: Span, *, log_x: bool, rows: int, width: int, right: int, broken: bool
) -> Frame:
    """Axes over the spans x and y, both lo < hi.

    Args:
        rows, width: rows of cells; columns of the whole, with the y labels.
        right: columns kept free at the right.
        broken: C = 0 has a place of its own at the left; log axis only.
    """
    y_axis = Axis(*y, False, 4 * rows - 1, 0)
    ticks = linear_ticks(*y, max(2, rows // 2))
    labels = dict(zip([y_axis.cell(v, 4) for v in ticks], decimals(ticks), strict=True))
    margin = max(map(len, labels.values())) + 1  # tick label and a space, then the axis itself
    columns = width - margin - 1 - right
    x_axis = Axis(*x, log_x, 2 * ZERO_GAP if broken else 2, 2 * columns - 3)
    return Frame(x_axis, y_axis, rows, columns, width, margin, labels, broken)


def check_point(C: float, value: float) -> None:
    """Refuse what has no place.

    Raises:
        ValueError: C < 0, or one of the two is not finite.
    """
    if not (isfinite(C) and isfinite(value) and C >= 0.0):
        raise ValueError(f"point ({C}, {value}): C >= 0 and both finite; drop the point")


def x_span(C: Sequence[float], log: bool, centre: float = 1.0) -> Span:
    """Range of the x axis over compute C, in which 0 counts for nothing; around `centre` without any."""
    positive = [c for c in C if c > 0.0]
    lo, hi = (min(positive), max(positive)) if positive else (centre / 10, centre * 10)
    if not log:
        return 0.0, hi
    return (lo, hi) if hi > 1.01 * lo else (lo / 2, hi * 2)  # one evaluation: room on both sides


def y_span(seen: Sequence[float], least: float = 0.005) -> Span:
    """All that is seen and a little air, at least `least`; 0..1 where nothing is."""
    lo, hi = (min(seen), max(seen)) if seen else (0.0, 1.0)
    air = max(0.04 * (hi - lo), least)
    return lo - air, hi + air


def tick_choices(x: Axis) -> list[list[float]]:
    """Sets of ticks from fine to coarse: the first whose labels fit is to be used."""
    if not x.log:
        return [linear_ticks(x.lo, x.hi, most) for most in (8, 5, 3, 2)]
    decades = range(floor(log10(x.lo)), ceil(log10(x.hi)) + 1)
    choices = [
        [m * 10.0**d for d in decades if d % every == 0 for m in steps]
        for every, steps in ((1, (1, 2, 5)), (1, (1,)), (2, (1,)), (3, (1,)), (6, (1,)))
    ]
    inside = [[t for t in ticks if x.lo <= t <= x.hi] for ticks in choices]
    if len(inside[0]) < 3:  # less than a decade: the numbers between are missed more than symmetry
        return [linear_ticks(x.lo, x.hi, most) for most in (6, 4, 3, 2)]
    return inside


def minor_ticks(x: Axis) -> list[float]:
    """1, 2, .. 9 of every decade inside a log axis; none where they would touch, or on a linear axis."""
    decades = log10(x.hi / x.lo) if x.log else 0.0
    if not 0.0 < decades < (x.last - x.first) / MINOR_DOTS:
        return []
    whole = range(floor(log10(x.lo)), ceil(log10(x.hi)) + 1)
    values = [m * 10.0**d for d in whole for m in range(1, 10)]
    return [value for value in values if x.lo <= value <= x.hi]


def linear_ticks(lo: float, hi: float, most: int) -> list[float]:
    """At most `most` + 1 multiples of 1, 2 or 5 x 10^n inside lo..hi."""
    rough = (hi - lo) / most
    unit = 10.0 ** floor(log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough * (1 - 1e-9))
    return [i * step for i in range(ceil(lo / step - 1e-9), floor(hi / step + 1e-9) + 1)]


def decimals(ticks: Sequence[float]) -> list[str]:
    """Ticks with one decimal, or as many more as they need; four digits where that is too long."""
    digits = next((d for d in range(1, 9) if all(abs(round(t, d) - t) < 1e-9 for t in ticks)), 9)
    plain = [f"{tick:.{digits}f}" for tick in ticks]
    return plain if max(map(len, plain), default=0) <= 12 else [f"{tick:.4g}" for tick in ticks]


def short(value: float) -> str:
    """1500 -> 1.5k, 2e6 -> 2M, 0.05 -> 0.05."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * (1 - 1e-9):
            return f"{value / size:.4g}{suffix}"
    return f"{value:.4g}"


def line_values(axis: Axis, line: Callable[[float], float]) -> list[tuple[int, float]]:
    """(dot, value) of a line at each dot of an axis, as `Frame.draw_line` takes them."""
    return [(dot, line(C)) for dot, C in enumerate(axis.values(), start=axis.first)]
