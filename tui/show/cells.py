"""The cells of a plot: each layer of `tui/show/view.py` drawn over those before it."""

from collections.abc import Sequence
from itertools import pairwise
from math import log10

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tui.show.canvas import BRAILLE, DOT_BIT, Axis, Frame, minor_ticks
from tui.show.rows import ROLES, Row
from tui.show.view import Band, Layer, Level, Line, Mark, Points, Zone, is_empty

LABEL_ROWS = 3  # rows from the top in which a label of a mark or a zone looks for room
SPIKE = 2  # dots; samples of one column that lie further apart are all shown

Floats = NDArray[np.floating]

_ROLE_NAMES = ("", *ROLES)
_ROLE = {role: i for i, role in enumerate(_ROLE_NAMES)}
_DOT_BITS = np.array(DOT_BIT, dtype=np.uint8)[None, :, None, :]


class Drawing:
    """Code points and roles of all cells; `code` and `role` are the part inside the axes."""

    def __init__(self, plot: Frame, width: int, height: int, top: int) -> None:
        self.plot, self.top = plot, top
        self.width = width
        self._codes = np.full((height, width), ord(" "), dtype="<u4")
        self._roles = np.zeros((height, width), dtype=np.uint8)
        left = plot.margin + 1
        inside = (slice(self.top, self.top + plot.rows), slice(left, left + plot.columns))
        self.code, self.role = self._codes[inside], self._roles[inside]
        self.bits = np.zeros(self.code.shape, dtype="<u4")  # of braille lines
        self.data = np.zeros(self.code.shape, dtype=bool)  # lines and points
        self.taken = np.zeros(self.code.shape, dtype=bool)  # marks and labels
        self.shades = np.zeros(self.code.shape, dtype=np.uint8)  # bands that lie here
        self.first = plot.x.first if plot.broken else 0  # the leftmost dot of a positive x

    def write(self, row: int, column: int, words: str, role: str) -> None:
        """One line of text anywhere in the picture."""
        words = words[: self.width - column]
        end = column + len(words)
        self._codes[row, column:end] = np.frombuffer(words.encode("utf-32-le"), dtype="<u4")
        self._roles[row, column:end] = _ROLE[role]

    def axes(self, unit: str) -> None:
        """Both axes with their ticks and labels."""
        plot = self.plot
        for row in range(plot.rows):
            label, edge = plot.labels.get(row, ""), "┤" if row in plot.labels else "│"
            self.write(self.top + row, 0, f"{label:>{plot.margin - 1}} {edge}", "muted")
        axis, labels = plot.x_lines(unit)
        for value in minor_ticks(plot.x):
            at = plot.margin + 1 + plot.x.cell(value, 2)
            if axis[at] == "─":  # not at a label
                axis = axis[:at] + "┴" + axis[at + 1 :]
        self.write(self.top + plot.rows, 0, axis, "muted")
        self.write(self.top + plot.rows + 1, 0, labels, "muted")

    def add(self, layer: Layer) -> None:
        """Draw a layer over what is there, without its label."""
        match layer:
            case Zone():
                self._zone(layer)
            case Band():
                self._band(layer)
            case Level():
                self._level(layer)
            case Mark():
                self._mark(layer)
            case Line():
                self._line(layer)
            case Points():
                self._points(layer)

    def _zone(self, zone: Zone) -> None:
        across = slice(*self._stretch(zone))
        rows, columns = np.indices(self.code.shape)
        dots = ((columns + 3 * rows) % 6 == 0)[:, across]
        self.code[:, across][dots] = ord("·")
        self.role[:, across][dots] = _ROLE[zone.role]

    def _band(self, band: Band) -> None:
        columns = 2.0 * np.arange(self.plot.columns) + 0.5
        x_N, *ends_N = self._near(band)
        low, high = (
            np.rint(_sampled(columns, x_N, np.clip(end_N, -1e6, 1e6), 1.0)) for end_N in ends_N
        )
        # Cells that it fills by half or more: where it is narrower, a line says as much.
        rows = np.arange(self.plot.rows)[:, None]
        top, bottom = np.ceil((high - 2) / 4), np.floor((low - 1) / 4)
        if band.unbroken:
            middle = np.floor((low + high) / 8)
            top, bottom = np.minimum(top, middle), np.maximum(bottom, middle)
        inside = (rows >= top) & (rows <= bottom)
        inside &= columns >= self.first
        self.shades += inside
        self.code[inside] = ord("░")
        self.code[inside & (self.shades > 1)] = ord("▒")
        self.role[inside] = _ROLE[band.role]

    def _near(self, band: Band) -> list[Floats]:
        """Dots of x, lo and hi of the samples around the middle of each column: all that is needed."""
        axis, x_N = self.plot.x, np.asarray(band.x_N, dtype=np.float64)
        after = np.searchsorted(x_N, axis.values()[::2])
        pick = np.unique(np.clip([after - 1, after, after + 1], 0, max(x_N.size - 1, 0)))
        pick = pick[: x_N.size]
        x, lo, hi = (
            np.asarray(each, dtype=np.float64)[pick] for each in (x_N, band.lo_N, band.hi_N)
        )
        return [_dots(axis, x), _dots(self.plot.y, lo), _dots(self.plot.y, hi)]

    def _level(self, level: Level) -> None:
        row = self._row(level.y)
        if row is not None:
            across = slice(self.first // 2, None)
            self.code[row, across], self.role[row, across] = ord("╌"), _ROLE[level.role]

    def _mark(self, mark: Mark) -> None:
        column = self._column(mark.x)
        if column is not None:
            cursor = mark.role == "cursor"
            self.code[:, column] = ord("│" if cursor else "┊")
            self.role[:, column] = _ROLE["strong" if cursor else mark.role]
            self.taken[:, column] = True

    def _line(self, line: Line) -> None:
        dots = np.arange(2.0 * self.plot.columns)
        x_N, y_N = _dots(self.plot.x, line.x_N), _dots(self.plot.y, line.y_N)
        at = np.rint(_sampled(dots, x_N, y_N, 0.5))
        at[: self.first] = np.nan
        before = np.concatenate([at[:1], at[:-1]])
        # A stroke fills a column from its dot to beside the dot of the column before.
        high = np.where(before < at, before + 1, at)
        low = np.where(before > at, before - 1, at)
        top, bottom = _reach(x_N, y_N, len(dots))
        spike = (bottom - top > SPIKE) & np.isfinite(at)
        high[spike] = np.minimum(high, top)[spike]
        low[spike] = np.maximum(low, bottom)[spike]
        rows = np.arange(4 * self.plot.rows)[:, None]
        drawn = ((rows >= high) & (rows <= low)).reshape(self.plot.rows, 4, -1, 2)
        bits = (drawn * _DOT_BITS).sum(axis=(1, 3), dtype=np.uint8)
        passed = bits > 0
        if line.dashed:  # every other cell; those between are kept free, to be seen as gaps
            gaps = passed & ~self.data & (np.arange(self.plot.columns) % 2 == 1)
            bits[:, 1::2] = 0
            self.code[gaps], self.role[gaps] = ord(" "), _ROLE[""]
            passed[:, 1::2] = False
        self.bits |= bits
        self.code[passed] = BRAILLE | self.bits[passed]
        self.role[passed] = _ROLE[line.role]
        self.data |= passed

    def _points(self, points: Points) -> None:
        x_N = np.asarray(points.x_N, dtype=np.float64)
        row_N = np.floor(np.rint(_dots(self.plot.y, points.y_N)) / 4)
        column_N = np.floor(np.rint(_dots(self.plot.x, x_N)) / 2)
        hit = self._hit(row_N, column_N)
        hit[:, : self.first // 2] = False
        self.code[hit], self.role[hit] = ord(points.glyph), _ROLE[points.role]
        if self.plot.broken:
            row_Z = row_N[x_N == 0.0]
            zero = self._hit(row_Z, np.zeros_like(row_Z))
            self.code[zero], self.role[zero] = ord("○"), _ROLE[points.role]
            hit |= zero
        self.data |= hit

    def finish(self, layers: Sequence[Layer]) -> None:
        """What must not hide data: labels, and the place where a crosshair meets it."""
        if is_empty(layers):
            note = "no evaluation yet"[: self.plot.columns]
            at = (self.plot.columns - len(note)) // 2
            self.write(self.top + self.plot.rows // 2, self.plot.margin + 1 + at, note, "muted")
        used: set[int] = set()
        for layer in layers:
            if isinstance(layer, Mark):
                self._mark_label(layer)
            elif isinstance(layer, Zone):
                first, last = self._stretch(layer)
                if last > first:
                    spare = max(last - first - len(layer.label), 0) // 2
                    self._label([first + spare, first + 1], layer.label, layer.role)
            elif isinstance(layer, Level):
                self._level_label(layer, used)
        for layer in layers:
            if isinstance(layer, Mark) and layer.role == "cursor":
                column = self._column(layer.x)
                if column is not None:
                    self.role[self.data[:, column], column] = _ROLE["cursor"]

    def rows(self) -> list[Row]:
        """All cells; neighbours of one role are one span."""
        height, width = self._codes.shape
        words = self._codes.tobytes().decode("utf-32-le")
        turns = self._roles[:, 1:] != self._roles[:, :-1]
        found = []
        for row in range(height):
            starts = [0, *(np.flatnonzero(turns[row]) + 1).tolist(), width]
            line, roles = words[row * width : (row + 1) * width], self._roles[row].tolist()
            found.append([(line[a:b], _ROLE_NAMES[roles[a]]) for a, b in pairwise(starts)])
        return found

    def _hit(self, row_N: Floats, column_N: Floats) -> NDArray[np.bool_]:
        """The cells in which points lie."""
        rows, columns = self.code.shape
        hit = np.zeros((rows + 1, columns + 1), dtype=bool)
        # Index -1, the spare row or column, takes what lies outside and what is NaN.
        row_N = np.where((row_N >= 0) & (row_N < rows), row_N, -1)
        column_N = np.where((column_N >= 0) & (column_N < columns), column_N, -1)
        hit[row_N.astype(np.intp), column_N.astype(np.intp)] = True
        return hit[:-1, :-1]

    def _column(self, x: float) -> int | None:
        """Column inside the axes; None where x is not seen."""
        if self.plot.broken and x == 0.0:
            return 0
        return self.plot.x.cell(x, 2) if self.plot.x.lo <= x <= self.plot.x.hi else None

    def _row(self, y: float) -> int | None:
        return self.plot.y.cell(y, 4) if self.plot.y.lo <= y <= self.plot.y.hi else None

    def _stretch(self, zone: Zone) -> tuple[int, int]:
        """First column of a zone, and the one after its last; equal where it is not seen."""
        axis = self.plot.x
        if zone.hi < axis.lo or zone.lo > axis.hi:
            return 0, 0
        lo, hi = max(zone.lo, axis.lo), min(zone.hi, axis.hi)
        return axis.cell(lo, 2), axis.cell(hi, 2) + 1

    def _mark_label(self, mark: Mark) -> None:
        column = self._column(mark.x)
        if column is not None:
            self._label([column + 1, column - len(mark.label)], mark.label, mark.role)

    def _label(self, columns: Sequence[int], words: str, role: str) -> None:
        """Words at the first of the columns where they hide nothing, in the topmost rows."""
        for row in range(LABEL_ROWS):
            for column in columns:
                end = column + len(words)
                taken = self.data[row, column:end] | self.taken[row, column:end]
                if column < 0 or end > self.plot.columns or taken.any():
                    continue
                self.write(self.top + row, self.plot.margin + 1 + column, words, role)
                self.taken[row, max(column - 1, 0) : end + 1] = True
                return

    def _level_label(self, level: Level, used: set[int]) -> None:
        """The label in its row right of the axes, or in the next free one above or below."""
        row = self._row(level.y)
        left = self.plot.margin + 1 + self.plot.columns + 1
        if row is None or left >= self.width:
            return
        rows = [at for at in (row, row - 1, row + 1) if 0 <= at < self.plot.rows and at not in used]
        if rows:
            used.add(rows[0])
            self.write(self.top + rows[0], left, level.label, level.role)


def _dots(axis: Axis, values: ArrayLike) -> Floats:
    """Where values fall on an axis, as `Axis.dot` but neither rounded nor kept on it; NaN if nowhere."""
    found, (lo, hi) = np.asarray(values, dtype=np.float64), (axis.lo, axis.hi)
    if axis.log:
        found = np.log10(np.where(found > 0.0, found, np.nan))
        lo, hi = log10(lo), log10(hi)
    return axis.first + (found - lo) / (hi - lo) * (axis.last - axis.first)


def _sampled(at: Floats, x_N: Floats, y_N: Floats, reach: float) -> Floats:
    """The line through (x, y) at the dots `at`; NaN further than `reach` beyond its ends."""
    known = np.isfinite(x_N)
    x_N, y_N = x_N[known], y_N[known]
    if not x_N.size:
        return np.full(at.shape, np.nan)
    near = np.clip(at, x_N[0], x_N[-1])
    return np.where(np.abs(near - at) <= reach, np.interp(near, x_N, y_N), np.nan)


def _reach(x_N: Floats, y_N: Floats, count: int) -> tuple[Floats, Floats]:
    """The uppermost and the lowest dot of the samples in each column of dots."""
    column_N = np.rint(x_N)
    inside = (column_N >= 0) & (column_N < count) & np.isfinite(y_N)
    where, at = column_N[inside].astype(np.intp), np.rint(y_N[inside])
    top, bottom = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(top, where, at)
    np.maximum.at(bottom, where, at)
    return top, bottom
