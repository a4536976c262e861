"""The scaling curve as text: pass rate against compute, for a terminal, a log file or a test.

Points and the ceiling are placed to the cell; the fitted curve is drawn in braille, so it shows the
slope that points alone hide. Lines come back as plain strings without colour codes or trailing
spaces: whoever prints them adds colour.
"""

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from scalerl.fit import SigmoidFit
from tui.show.canvas import (
    MIN_HEIGHT,
    MIN_WIDTH,
    Cells,
    Frame,
    Span,
    check_point,
    frame,
    x_span,
    y_span,
)

EVALUATION, AT_ZERO, CEILING, BAND = "●", "○", "╌", "░"
BAND_STEPS = 60  # compute values at which the y range asks for the band

Band = Callable[[float], tuple[float, float]]


def plot_curve(
    points: Sequence[tuple[float, float]],
    fit: SigmoidFit | None,
    *,
    width: int,
    height: int,
    unit: str = "GPU-h",
    log_x: bool = True,
    band: Band | None = None,
    until: float | None = None,
) -> list[str]:
    """Scaling curve as `height` lines of at most `width` columns.

    Without `until` the curve is drawn over the range of the points only: it shows the fit, not a
    forecast. An `A` with a question mark stands for a ceiling that a limit of the search has set
    (`fit.at_edge`).

    Args:
        points: (C, R) of each evaluation, C >= 0 in `unit`, R a pass rate. On a log axis C = 0 has
            no place: it is drawn at the left edge as ○, left of a break in the axis.
        fit: the fitted curve; None draws the points alone.
        width, height: size in cells; below 30 x 8 one line says that there is no room.
        unit: unit of C, written under the right end of the axis.
        log_x: logarithmic x axis.
        band: lo, hi of R at C > 0, at 90 %; shaded where nothing else stands. A band much wider
            than the rest runs out of the plot: the rest keeps a third of the height.
        until: compute > 0 up to which curve and band go on, where it is beyond the points.

    Raises:
        ValueError: a point that has no place, or an `until` that is not finite and > 0.
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return ["no room for a plot"[: max(width, 0)].rstrip()]
    for C, R in points:
        check_point(C, R)
    if until is not None and not (isfinite(until) and until > 0.0):
        raise ValueError(f"until = {until}: compute is finite and > 0; leave it out for the points")
    broken = log_x and any(C == 0.0 for C, _ in points)
    x = _x_range(points, fit, log_x, until)
    ceiling = "" if fit is None else f" A {fit.A:.3f}{'?' if fit.at_edge else ''}"
    plot = frame(
        x,
        _y_range(points, fit, x, band, log_x),
        log_x=log_x,
        rows=height - 3,  # heading above, axis and its labels below
        width=width,
        # The unit stands below the right margin, so that the last tick can keep its label.
        right=max(len(ceiling), min(len(unit) + 2, width // 4)),
        broken=broken,
    )
    heading = _heading(width, fit, bool(points), broken, band is not None)
    right = {} if fit is None else {plot.y.cell(fit.A, 4): ceiling}
    return [heading.rstrip(), *plot.lines(_cells(points, fit, plot, band), unit, right)]


def _x_range(
    points: Sequence[tuple[float, float]], fit: SigmoidFit | None, log_x: bool, until: float | None
) -> Span:
    compute = [C for C, _ in points]
    if until is not None and until > max(compute, default=0.0):
        compute.append(until)
    return x_span(compute, log_x, fit.C_mid if fit is not None else 1.0)


def _y_range(
    points: Sequence[tuple[float, float]],
    fit: SigmoidFit | None,
    x: Span,
    band: Band | None,
    log_x: bool,
) -> Span:
    """All that is drawn, and a little air: points, the ceiling, the curve from its left end.

    Of the band as much as leaves the rest a third of the height.
    """
    seen = [R for _, R in points]
    seen += [fit.A, float(fit.predict(x[0]))] if fit is not None else []
    lo, hi = y_span(seen)
    if band is None:
        return lo, hi
    spaced = np.geomspace(*x, BAND_STEPS) if log_x else np.linspace(*x, BAND_STEPS)[1:]
    ends = [end for C in spaced.tolist() for end in band(C) if isfinite(end)]
    low, high = y_span([*seen, *ends])
    return max(low, lo - (hi - lo)), min(high, hi + (hi - lo))


def _cells(
    points: Sequence[tuple[float, float]], fit: SigmoidFit | None, plot: Frame, band: Band | None
) -> Cells:
    """The area inside the axes; a point hides the curve, the curve the ceiling, and all the band."""
    cells = plot.blank()
    dots = list(enumerate(plot.x.values(), start=plot.x.first))
    if band is not None:
        _shade(cells, dots, band, plot)
    if fit is not None:
        cells[plot.y.cell(fit.A, 4)] = [CEILING] * plot.columns
        R = np.atleast_1d(fit.predict([C for _, C in dots])).tolist()
        plot.draw_line(cells, [(dot, value) for (dot, _), value in zip(dots, R, strict=True)])
    for C, R in points:
        row, column = plot.place(C, R)
        cells[row][column] = AT_ZERO if plot.broken and C == 0.0 else EVALUATION
    if not points:
        note = "no evaluation yet"[: plot.columns]
        start = (plot.columns - len(note)) // 2
        cells[plot.rows // 2][start : start + len(note)] = list(note)
    return cells


def _shade(cells: Cells, dots: Sequence[tuple[int, float]], band: Band, plot: Frame) -> None:
    """The cells from lo(C) to hi(C), those of both ends included."""
    for dot, C in dots:
        if C <= 0.0:  # a linear axis begins at 0, where a band in ln C has no value
            continue
        lo, hi = band(C)
        # NaN compares as False: no band there
        if lo <= hi and hi >= plot.y.lo and lo <= plot.y.hi:
            for row in range(plot.y.cell(hi, 4), plot.y.cell(lo, 4) + 1):
                cells[row][dot // 2] = BAND


def _heading(width: int, fit: SigmoidFit | None, any_points: bool, broken: bool, band: bool) -> str:
    """`pass rate` over the y axis, and as much of the legend as fits at the right."""
    entries = [f"{EVALUATION} evaluation"] if any_points else []
    entries += [f"{AT_ZERO} before RL"] if broken else []
    entries += ["⠒⠒ fit", f"{CEILING}{CEILING} ceiling A"] if fit is not None else []
    if fit is not None and fit.at_edge:
        entries[-1] += " (? at a limit)"
    entries += [f"{BAND}{BAND} 90 %"] if band else []
    title = "pass rate"
    while entries and len(title) + 3 + len("   ".join(entries)) > width:
        entries.pop()
    legend = "   ".join(entries)
    return title + " " * (width - len(title) - len(legend)) + legend
