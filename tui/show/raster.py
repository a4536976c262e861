"""A plot of compute against anything, as rows of roles: layers and a view in, a picture out.

Cells are filled in one order, whatever the order of the layers: zones, bands, levels, marks, lines,
points; among layers of one kind the later one wins. What lies outside the view is not drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tui.show.canvas import Frame, frame
from tui.show.cells import Drawing
from tui.show.rows import Row, cut, ends
from tui.show.view import (
    Band,
    Layer,
    Level,
    Line,
    Mark,
    Points,
    View,
    Zone,
    has_zero,
    natural_view,
)

__all__ = [
    "Band",
    "Layer",
    "Level",
    "Line",
    "Mark",
    "Picture",
    "Points",
    "View",
    "Zone",
    "natural_view",
    "raster",
]

LEAST_WIDTH, LEAST_HEIGHT, LEAST_COLUMNS = 24, 6, 10
TOP = 1  # rows above the axes: the heading
ORDER = (Zone, Band, Level, Mark, Line, Points)  # of drawing


@dataclass(frozen=True, eq=False)
class Picture:
    """What `raster` drew, and where things stand in it, in cells counted from its top left corner.

    frame: the axes; None where there was no room for any.
    """

    rows: list[Row]
    view: View
    frame: Frame | None

    def x_at(self, column: int) -> float | None:
        """x in the middle of a column, kept inside the view; 0 left of a break; None outside the axes."""
        if self.frame is None or not 0 <= (at := column - self._left) < self.frame.columns:
            return None
        axis = self.frame.x
        if self.frame.broken and 2 * at + 1 < axis.first:
            return 0.0 if at == 0 else None
        share = min(max((2 * at + 0.5 - axis.first) / (axis.last - axis.first), 0.0), 1.0)
        if axis.log:
            return axis.lo * (axis.hi / axis.lo) ** share
        return axis.lo + share * (axis.hi - axis.lo)

    def y_at(self, row: int) -> float | None:
        """y in the middle of a row; None outside the axes."""
        if self.frame is None or not 0 <= (at := row - TOP) < self.frame.rows:
            return None
        axis = self.frame.y
        share = (4 * at + 1.5 - axis.first) / (axis.last - axis.first)
        return axis.lo + share * (axis.hi - axis.lo)

    def column(self, x: float) -> int | None:
        """Column of x; None outside the view."""
        if self.frame is None:
            return None
        if self.frame.broken and x == 0.0:
            return self._left
        inside = self.view.x[0] <= x <= self.view.x[1]
        return self._left + self.frame.x.cell(x, 2) if inside else None

    def row(self, y: float) -> int | None:
        """Row of y; None outside the view."""
        if self.frame is None or not self.view.y[0] <= y <= self.view.y[1]:
            return None
        return TOP + self.frame.y.cell(y, 4)

    @property
    def _left(self) -> int:
        return self.frame.margin + 1 if self.frame is not None else 0


def raster(
    layers: Sequence[Layer],
    view: View,
    width: int,
    height: int,
    unit: str = "GPU-h",
    y_name: str = "pass rate",
    heading: Row | None = None,
) -> Picture:
    """Layers as exactly `height` rows of `width` cells.

    Args:
        width, height: cells; below 24 x 6 the first row says that there is no room.
        unit: unit of x, under the right end of its axis.
        y_name: what y is, in the first row.
        heading: the right end of the first row.
    """
    plot = _frame(layers, view, width, height, unit)
    if plot is None:
        note = cut([("no room for a plot", "muted")], max(width, 0))
        return Picture([note, *([] for _ in range(height - 1))][: max(height, 0)], view, None)
    drawing = Drawing(plot, width, height, TOP)
    drawing.axes(unit)
    with np.errstate(all="ignore"):  # values far outside the view overflow, and are not drawn
        for layer in sorted(layers, key=lambda each: ORDER.index(type(each))):
            drawing.add(layer)
    drawing.finish(layers)
    rows = drawing.rows()
    rows[0] = ends([(y_name, "muted")], heading or [], width)
    return Picture(rows, view, plot)


def _frame(layers: Sequence[Layer], view: View, width: int, height: int, unit: str) -> Frame | None:
    """The axes, with labels of levels at the right if there is room; None without room for a plot."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return None
    longest = max((len(each.label) for each in layers if isinstance(each, Level)), default=0)
    # The unit stands under the margin, so that the last tick keeps its label.
    margins = (min(max(longest + 1, len(unit) + 2), width // 3), 0)
    broken = has_zero(layers, view)
    for right in margins:
        plot = frame(
            view.x,
            view.y,
            log_x=view.log_x,
            rows=height - TOP - 2,
            width=width,
            right=right,
            broken=broken,
        )
        if plot.columns >= LEAST_COLUMNS:
            return plot
    return None
