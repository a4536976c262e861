"""What a plot shows, and the part of it that one looks at: layers, and a view to zoom and to pan."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite, log10

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tui.show.canvas import Span, x_span, y_span

LEAST_X, MOST_X = 1e-12, 1e15  # what a view may show of x; from 0 on a linear axis
LEAST_DECADES = 1e-3  # of a log axis
LEAST_X_SHARE, LEAST_Y_SHARE = 2e-3, 1e-6  # of the larger end: how narrow a linear axis may be
LABEL_AIR = 0.07  # share of the height kept free above all for labels of marks and zones

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Points:
    """Measured points, one glyph in the cell of each; one that is not finite is not drawn.

    x_N: >= 0; 0 stands left of a break in a log axis, as ○.
    glyph: one character of one cell.
    """

    x_N: ArrayLike
    y_N: ArrayLike
    glyph: str = "●"
    role: str = "data"


@dataclass(frozen=True, eq=False)
class Line:
    """A line through points, straight on the screen from one to the next; NaN in y breaks it.

    x_N: never decreasing.
    """

    x_N: ArrayLike
    y_N: ArrayLike
    role: str = "fit"
    dashed: bool = False


@dataclass(frozen=True, eq=False)
class Band:
    """The area between two lines, shaded where nothing else stands; NaN leaves a gap.

    x_N: never decreasing. unbroken: a cell in every column, where the band stands for the line too;
        else only what it fills by half.
    """

    x_N: ArrayLike
    lo_N: ArrayLike
    hi_N: ArrayLike
    role: str = "band"
    unbroken: bool = False


@dataclass(frozen=True)
class Zone:
    """A stretch of x over the whole height, such as the warm-up; either end may be infinite."""

    lo: float
    hi: float
    role: str = "muted"
    label: str = ""


@dataclass(frozen=True)
class Level:
    """A dashed rule at y, with its label right of the axes."""

    y: float
    role: str = "fit"
    label: str = ""


@dataclass(frozen=True)
class Mark:
    """A rule at x, with its label at the top. With role "cursor" it also lights up the data it meets."""

    x: float
    role: str = "muted"
    label: str = ""


Layer = Points | Line | Band | Zone | Level | Mark


@dataclass(frozen=True)
class View:
    """The part of a plot that is seen: x and y as (lo, hi), lo < hi, and 0 < x on a log axis.

    Raises:
        ValueError: a span that has no width or no place on its axis.
    """

    x: Span
    y: Span
    log_x: bool = True

    def __post_init__(self) -> None:
        for name, (lo, hi) in (("x", self.x), ("y", self.y)):
            if not (isfinite(lo) and isfinite(hi) and lo < hi):
                raise ValueError(f"{name} = {(lo, hi)}: two finite ends, the lower one first")
        if self.log_x and self.x[0] <= 0.0:
            raise ValueError(f"x = {self.x}: a log axis shows x > 0 only")

    def zoomed(
        self, factor: float, x: float | None = None, y: float | None = None, axis: str = "both"
    ) -> "View":
        """The view with 1 / `factor` of its spans, about a point that stays where it is.

        Args:
            factor: > 1 shows less, < 1 shows more.
            x, y: the point that stays; the centre where it is None, or has no place on the axis.
            axis: "x", "y" or "both".
        """
        found = self
        if axis != "y":
            at = None if x is None or (self.log_x and x <= 0.0) else self._flat(x)
            found = found._with_x(_about(self._flat_x, factor, at))
        if axis != "x":
            found = found._with_y(_about(self.y, factor, y))
        return found

    def panned(self, dx: float, dy: float) -> "View":
        """The view moved by shares of its spans: dx > 0 towards larger x, dy > 0 towards larger y."""
        (left, right), (low, high) = self._flat_x, self.y
        by_x, by_y = dx * (right - left), dy * (high - low)
        return self._with_x((left + by_x, right + by_x))._with_y((low + by_y, high + by_y))

    def centred(self, x: float) -> "View":
        """The view moved so that x, > 0 on a log axis, stands in its middle."""
        left, right = self._flat_x
        return self.panned((self._flat(x) - (left + right) / 2) / (right - left), 0.0)

    def near(self, home: "View") -> "View":
        """The view, kept where there is something to see.

        y stays within half a height of `home`, above and below; x shows at least a tenth of itself
        of what `home` shows. Both views have the same kind of x axis.
        """
        (low, high), (left, right), (first, last) = home.y, self._flat_x, home._flat_x
        air, overlap = (high - low) / 2, min(right - left, last - first) / 10
        x = _slid((left, right), first - (right - left) + overlap, last + (right - left) - overlap)
        return replace(self._with_x(x), y=_slid(self.y, low - air, high + air))

    def on(self, log_x: bool, home: "View") -> "View":
        """The same stretch on a log or a linear axis; what a log axis cannot show starts as `home`."""
        lo, hi = self.x
        if log_x and lo <= 0.0:
            lo = home.x[0] if home.x[0] < hi else hi / 10
        return replace(self, x=(lo, hi), log_x=log_x)

    @property
    def _flat_x(self) -> Span:
        return self._flat(self.x[0]), self._flat(self.x[1])

    def _flat(self, x: float) -> float:
        return log10(x) if self.log_x else x

    def _with_x(self, flat: Span) -> "View":
        if self.log_x:
            lo, hi = _slid(_wide(flat, LEAST_DECADES), log10(LEAST_X), log10(MOST_X))
            return replace(self, x=(10.0**lo, 10.0**hi))
        return replace(self, x=_slid(_wide(flat, LEAST_X_SHARE * flat[1]), 0.0, MOST_X))

    def _with_y(self, y: Span) -> "View":
        least = LEAST_Y_SHARE * max(abs(y[0]), abs(y[1]))
        return replace(self, y=_slid(_wide(y, least), -MOST_X, MOST_X))


def _about(span: Span, factor: float, at: float | None) -> Span:
    lo, hi = span
    middle = (lo + hi) / 2 if at is None else at
    return middle - (middle - lo) / factor, middle + (hi - middle) / factor


def _wide(span: Span, least: float) -> Span:
    """The span, or one of the width `least` about its middle."""
    short = max(least - (span[1] - span[0]), 0.0) / 2
    return span[0] - short, span[1] + short


def _slid(span: Span, least: float, most: float) -> Span:
    """The span moved into least..most; all of it where the span is wider."""
    lo, hi = span
    width = min(hi - lo, most - least)
    lo = min(max(lo, least), most - width)
    return lo, lo + width


def natural_view(layers: Iterable[Layer], log_x: bool = True, least: float = 0.05) -> View:
    """The view of all that is drawn, with a little air.

    Of a band as much as leaves the rest a third of the height.

    Args:
        layers: any; what is not finite is passed over.
        log_x: a log x axis, on which x <= 0 counts for nothing.
        least: least height, in the unit of y.
    """
    layers = list(layers)
    x = x_span([end for layer in layers for end in _ends(_xs(layer), log_x)], log_x)
    seen = [end for layer in layers for end in _ends(_ys(layer))]
    least = max([least, *(LEAST_Y_SHARE * abs(y) for y in seen)])
    lo, hi = _wide(y_span(seen), least)
    bands = [layer for layer in layers if isinstance(layer, Band)]
    ends = [end for band in bands for each in (band.lo_N, band.hi_N) for end in _ends(each)]
    low, high = _wide(y_span([*seen, *ends]), least)
    if seen:
        low, high = max(low, lo - (hi - lo)), min(high, hi + (hi - lo))
    if any(isinstance(layer, Mark | Zone) and layer.label for layer in layers):
        high += LABEL_AIR * (high - low)
    return View(x, (low, high), log_x)


def has_zero(layers: Iterable[Layer], view: View) -> bool:
    """Whether points at x = 0 are seen on a log axis: as long as its lowest x is."""
    points = [each for each in layers if isinstance(each, Points)] if view.log_x else []
    if not any(np.any(np.asarray(each.x_N) == 0.0) for each in points):
        return False
    lowest = [min(_ends(each.x_N, positive=True), default=view.x[0]) for each in points]
    return view.x[0] <= min(lowest) * (1 + 1e-9)


def is_empty(layers: Iterable[Layer]) -> bool:
    """Whether nothing is drawn that was measured or fitted."""
    curves = [each for each in layers if isinstance(each, Points | Line | Band)]
    return not any(np.size(each.x_N) for each in curves)


def _xs(layer: Layer) -> ArrayLike:
    match layer:
        case Zone():
            return [layer.lo, layer.hi]
        case Mark():
            return [layer.x]
        case Level():
            return []
    return layer.x_N


def _ys(layer: Layer) -> ArrayLike:
    match layer:
        case Points() | Line():
            return layer.y_N
        case Level():
            return [layer.y]
    return []


def _ends(values: ArrayLike, positive: bool = False) -> list[float]:
    """The least and the largest finite value, of those > 0 if asked; none of none."""
    found = np.asarray(values, dtype=np.float64)
    found = found[np.isfinite(found) & (found > 0.0)] if positive else found[np.isfinite(found)]
    return [float(found.min()), float(found.max())] if found.size else []
