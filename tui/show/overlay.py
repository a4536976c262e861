"""Several curves on one pair of axes, as text: pass rates against compute, or the efficiency plot.

Each series has a mark of its own, its line in braille, and error bars if they are known. A legend
under the plot says which mark is whose. Plain strings, without colour codes or trailing spaces.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

import numpy as np

from tui.show.canvas import (
    MIN_HEIGHT,
    MIN_WIDTH,
    Cells,
    Frame,
    Span,
    check_point,
    frame,
    line_values,
    x_span,
    y_span,
)
from tui.words import printable

BAR = "│"
GAP = "   "  # between entries of the legend
LEAST_NAME = 8  # columns below which a name says too little: rather count those left out
LINE_STEPS = 60  # compute values at which the y range asks for a line


@dataclass(frozen=True)
class Series:
    """One curve. One row of its points: (1_500.0, 0.52), half 0.01.

    name: what the legend calls it; what cannot be printed in one line becomes `?`.
    points: (C, y) in any order, C >= 0 and both finite.
    line: y of the fitted curve at C > 0, None for none. Drawn over the range of its own points.
    half: half width of each point's error bar in the unit of y, 0 for no bar, inf for one that ends
        nowhere; None where none is known.
    """

    name: str
    points: Sequence[tuple[float, float]]
    line: Callable[[float], float] | None
    half: Sequence[float] | None = None


def plot_overlay(
    series: Sequence[Series],
    *,
    width: int,
    height: int,
    unit: str,
    title: str,
    log_x: bool = True,
    marks: str = "●▲■◆○△□◇",
) -> list[str]:
    """Several curves as `height` lines of at most `width` columns, the legend included.

    Points hide error bars, and bars hide lines; a later series hides an earlier one. The y axis
    covers points and lines: a bar that is longer runs out of the plot. The legend takes at most a
    third of the room: names are shortened to fit, and those that still do not are counted.

    Args:
        series: the curves, in the order of the legend.
        width, height: size in cells; below 30 x 8 one line says that there is no room. One line
            says so too where no series has a point.
        unit: unit of C, written under the right end of the axis.
        title: what y is, written over the y axis.
        log_x: logarithmic x axis, on which C = 0 stands at the left edge, left of a break.
        marks: one character for each series; with more series they repeat, and the legend says so.

    Raises:
        ValueError: a point that has no place, error bars that are not one per point or not >= 0, or
            no marks.
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return ["no room for a plot"[: max(width, 0)].rstrip()]
    if not marks:
        raise ValueError("marks is empty: give one character for each series")
    for each in series:
        _check(each)
    compute = [C for each in series for C, _ in each.points]
    if not compute:
        return ["no points to plot"]
    legend = _legend([each.name for each in series], marks, width, max(1, (height - 3) // 3))
    plot = frame(
        x_span(compute, log_x),
        _y_range(series, log_x),
        log_x=log_x,
        rows=height - 3 - len(legend),  # title above, axis and its labels below
        width=width,
        # The unit stands below the right margin, so that the last tick can keep its label.
        right=min(len(unit) + 2, width // 4),
        broken=log_x and any(C == 0.0 for C in compute),
    )
    heading = _cut(printable(title), width)
    return [heading.rstrip(), *plot.lines(_cells(series, marks, plot), printable(unit)), *legend]


def _check(each: Series) -> None:
    for C, value in each.points:
        check_point(C, value)
    if each.half is None:
        return
    if len(each.half) != len(each.points):
        raise ValueError(
            f"{each.name}: {len(each.half)} error bars for {len(each.points)} points; give one each"
        )
    bad = [half for half in each.half if not half >= 0.0]  # also True for NaN
    if bad:
        raise ValueError(f"{each.name}: half = {bad[0]} is not >= 0; give 0 for no bar")


def _own_range(each: Series) -> Span | None:
    """The compute over which a line is drawn; None for no line."""
    positive = [C for C, _ in each.points if C > 0.0]
    return None if each.line is None or not positive else (min(positive), max(positive))


def _y_range(series: Sequence[Series], log_x: bool) -> Span:
    seen = [value for each in series for _, value in each.points]
    spaced = np.geomspace if log_x else np.linspace
    for each in series:
        own = _own_range(each)
        if own is not None and each.line is not None:
            values = [each.line(C) for C in spaced(*own, LINE_STEPS).tolist()]
            seen += [value for value in values if np.isfinite(value)]
    size = max(abs(value) for value in seen)
    return y_span(seen, 0.005 * max(size, 1.0))  # ticks of a flat plot keep few decimals


def _cells(series: Sequence[Series], marks: str, plot: Frame) -> Cells:
    cells = plot.blank()
    for each in series:
        own = _own_range(each)
        if own is not None and each.line is not None:
            first, last = plot.x.dot(own[0]), plot.x.dot(own[1])
            _draw_between(cells, each.line, first, last, plot)
    for each in series:
        for (C, value), half in zip(each.points, each.half or (), strict=False):
            low, column = plot.place(C, max(value - half, plot.y.lo))
            high, _ = plot.place(C, min(value + half, plot.y.hi))
            for row in range(high, low + 1):
                cells[row][column] = BAR
    for i, each in enumerate(series):
        for C, value in each.points:
            row, column = plot.place(C, value)
            cells[row][column] = marks[i % len(marks)]
    return cells


def _draw_between(
    cells: Cells, line: Callable[[float], float], first: int, last: int, plot: Frame
) -> None:
    """A line from one x dot to another, in pieces where it has no value."""
    piece: list[tuple[int, float]] = []

    def value_at(C: float) -> float:
        return line(C) if C > 0.0 else float("nan")

    for dot, value in line_values(plot.x, value_at)[first - plot.x.first : last + 1 - plot.x.first]:
        if np.isfinite(value):
            piece.append((dot, value))
            continue
        plot.draw_line(cells, piece)
        piece = []
    plot.draw_line(cells, piece)


# ---- the legend ----------------------------------------------------------------------------------


def _legend(names: Sequence[str], marks: str, width: int, most: int) -> list[str]:
    """Entries `mark name` in at most `most` lines."""
    names = [printable(name) for name in names]
    notes = []
    if len(names) > len(marks):
        notes = [f"({len(names)} curves share {len(marks)} marks)"]
    longest = min(max(map(_columns, names)), width - 2)
    for limit in range(longest, min(LEAST_NAME, longest) - 1, -1):
        lines = _wrapped([*notes, *_entries(names, marks, limit)], width)
        if len(lines) <= most:
            return lines
    entries = _entries(names, marks, min(LEAST_NAME, longest))
    for kept in range(len(names) - 1, 0, -1):
        more = f"and {len(names) - kept} more"
        lines = _wrapped([*notes, *entries[:kept], more], width)
        if len(lines) <= most:
            return lines
    return _wrapped([f"{len(names)} curves"], width)


def _entries(names: Sequence[str], marks: str, limit: int) -> list[str]:
    return [f"{marks[i % len(marks)]} {_cut(name, limit)}" for i, name in enumerate(names)]


def _wrapped(entries: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for entry in (_cut(entry, width) for entry in entries):
        if lines and _columns(lines[-1] + GAP + entry) <= width:
            lines[-1] += GAP + entry
        else:
            lines.append(entry)
    return [line.rstrip() for line in lines]


def _cut(text: str, limit: int) -> str:
    """At most `limit` columns. Two thirds of what stays is the end: it tells one path from another."""
    if _columns(text) <= limit:
        return text
    head = text[: (limit - 1) // 3]
    while _columns(head) > (limit - 1) // 3:
        head = head[:-1]
    tail = text[-limit:]
    while _columns(head + "…" + tail) > limit:
        tail = tail[1:]
    return head + "…" + tail


def _columns(text: str) -> int:
    """Columns of a terminal that a text takes, or more: a combining mark counts as one."""
    return sum(2 if east_asian_width(each) in "WF" else 1 for each in text)
