"""Figures of fits and comparisons for a report: SVG, PNG, or one page of HTML.

The same input gives the same bytes. Needs matplotlib, the extra `plot`; nothing else does, so it is
imported inside the functions, and its global state is left as it was.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.curves.comparison import efficiency
from scalerl.curves.curve import Curve
from scalerl.curves.uncertainty import Interval
from scalerl.errors import InputError
from scalerl.forecast import ENOUGH_SEEDS, RUN_TO_RUN, Forecast
from tui.show.canvas import Axis, Span, short, tick_choices
from tui.show.drawing import drawing
from tui.words import printable

# Okabe and Ito's palette, told apart by the colour-blind too; yellow, faint on white, comes last.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442",
)  # fmt: skip
# Nine and five: with eight colours no two of the first 72 curves have both colour and marker alike.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
STYLES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
STEPS = 60  # compute values at which a curve and its band are drawn
MOST_TICKS = 7
LONGEST_NAME = 44


def save_fit(path: Path, made: Forecast, whole: Curve, at: Sequence[float]) -> None:
    """One curve: points, fit, 90 % band and forecasts at the left, the ridge at the right.

    The y axis gives points and curve a third of its height at least: an interval that is longer
    runs out of the picture, and the legend has its numbers.

    Args:
        path: .svg, .png or .html; written whole or not at all.
        made: the forecast. Points outside `made.window` are hollow: the fit has not seen them.
        whole: all points of the run, or of its seeds.
        at: compute >= 0, in the unit of the curve, to forecast at; 0 has no place on a log axis.

    Raises:
        InputError: another suffix, no matplotlib, a path that cannot be written, or no compute in `at`.
    """
    for C in at:
        if not 0.0 <= C < np.inf:
            raise InputError(f"a forecast at {C}: compute is a finite number, 0 or more")
    with drawing(path) as (figure, say):
        figure.set_size_inches(11.0, 5.6)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        figure.suptitle(f"{_shown(made.curve.name)}\n{_verdict(made)}", fontsize=10)
        ahead = [C for C in at if C > 0.0]
        _draw_fit(left, made, whole, ahead)
        _draw_ridge(figure, right, made)
        A = made.A()
        say(
            f"Scaling curve of {made.curve.name}",
            f"pass rate against compute in {whole.unit}: {len(whole.C_N)} points, "
            f"ceiling {_told(A)}, {_verdict(made)}"
            + "".join(f"; {_told(made.rate(C))} at {C:.4g}" for C in ahead),
        )


def save_comparison(path: Path, forecasts: Sequence[Forecast]) -> None:
    """Several curves: points, fits and 90 % bands at the left, the efficiency plot at the right.

    Args:
        path: as in `save_fit`.
        forecasts: one or more, in one unit of compute.

    Raises:
        InputError: none, different units, or as in `save_fit`.
    """
    units = sorted({made.curve.unit for made in forecasts})
    if len(units) != 1:
        raise InputError(f"a figure needs curves in one unit of compute, not {units or 'none'}")
    with drawing(path) as (figure, say):
        figure.set_size_inches(12.0, 5.0 + 0.2 * len(forecasts))
        left, right = figure.subplots(1, 2)
        _draw_curves(left, forecasts)
        _draw_efficiency(right, forecasts)
        names = [made.curve.name for made in forecasts]
        say(
            f"Comparison of {', '.join(names)}",
            f"pass rate against compute in {units[0]}; "
            + "; ".join(f"{each.curve.name} with ceiling {_told(each.A())}" for each in forecasts),
        )


# ---- what is drawn -------------------------------------------------------------------------------


def _draw_fit(axes: Any, made: Forecast, whole: Curve, at: Sequence[float]) -> None:
    colour, ahead = COLOURS[0], COLOURS[1]
    lo, hi = made.window or (0.0, np.inf)
    inside_N = (whole.C_N >= lo) & (whole.C_N <= hi)
    for keep_N, label, face in (
        (inside_N, f"{inside_N.sum()} points", colour),
        (~inside_N, f"{(~inside_N).sum()} points outside the window", "none"),
    ):
        if keep_N.any():
            look = {"ls": "", "marker": "o", "color": colour, "markerfacecolor": face, "zorder": 3}
            axes.plot(whole.C_N[keep_N], whole.R_N[keep_N], label=label, **look)
    first, last = float(whole.C_N[0]), max(whole.last_C, *at, 0.0)
    band_label = "fit, with its 90 % band"
    if last > made.last_C and len(made.seeds) < ENOUGH_SEEDS:
        band_label = f"fit, 90 % band, ahead >= +-{RUN_TO_RUN}"
    band = _draw_band(axes, made, first, last, colour, "-", band_label)
    for alarm in made.alarms:
        if alarm.of == "compute":
            look = {"color": COLOURS[1], "ls": ":", "lw": 1.2, "zorder": 1}
            axes.axvline(alarm.at, label=f"{alarm.name} alarm", **look)
    rates = [made.rate(C) for C in at]
    if at:
        half = _halves(rates)
        look = {"ls": "", "marker": "D", "color": ahead, "capsize": 4, "zorder": 4}
        axes.errorbar(at, [rate.value for rate in rates], yerr=half, label="forecast", **look)
    A, room = made.A(), (last / first) ** 0.06
    axes.axhline(A.value, color=COLOURS[6], ls="--", lw=0.9, zorder=1)
    look = {"color": COLOURS[6], "marker": "_", "ls": "--", "lw": 0.9, "capsize": 4}
    axes.errorbar(
        [last * room], [A.value], yerr=_halves([A]), label=f"ceiling A {_told(A)}", **look
    )
    _log_axis(axes, f"C, {whole.unit}", min(first, *at, last) / room, last * room**1.5)
    curve = [*whole.R_N.tolist(), A.value, float(made.fit.predict(first))]
    wide = [*band, *_ends(A), *(end for rate in rates for end in _ends(rate))]
    axes.set(title="pass rate against compute", ylabel="pass rate", ylim=_limits(curve, wide))
    _legend(axes, columns=2)


def _draw_ridge(figure: Any, axes: Any, made: Forecast) -> None:
    A_K, B_K, C_mid_K = (np.array(column) for column in zip(*made.uncertainty.ridge(), strict=True))
    fit, unit = made.fit, made.curve.unit
    dots = axes.scatter(C_mid_K, A_K, c=B_K, cmap="cividis", s=22, label="fits as well, at 90 %")
    look = {"ls": "", "marker": "*", "markersize": 13, "markeredgecolor": "white", "zorder": 3}
    axes.plot([fit.C_mid], [fit.A], color=COLOURS[1], label=f"the fit, B {fit.B:.2f}", **look)
    room = max((C_mid_K.max() / C_mid_K.min()) ** 0.06, 1.005)
    _log_axis(axes, f"C_mid, {unit}", C_mid_K.min() / room, C_mid_K.max() * room)
    axes.set(title="the ridge", ylabel="ceiling A", ylim=_limits([*A_K.tolist(), fit.A]))
    axes.ticklabel_format(axis="y", useOffset=False)
    figure.colorbar(dots, ax=axes, label="B")
    _legend(axes, columns=2)


def _draw_curves(axes: Any, forecasts: Sequence[Forecast]) -> None:
    seen: list[float] = []
    end = max(made.last_C for made in forecasts)
    for i, made in enumerate(forecasts):
        curve, look, style = made.curve, _look(i), STYLES[i % len(STYLES)]
        axes.plot(curve.C_N, curve.R_N, ls="", alpha=0.8, zorder=3, **look)
        first = float(curve.C_N[0])
        _draw_band(axes, made, first, made.last_C, look["color"], style, None)
        label = f"{_shown(curve.name)}: A {_told(made.A())}"
        axes.plot([], [], ls=style, label=label, **look)
        seen += [*curve.R_N.tolist(), *made.fit.predict([first, made.last_C]).tolist()]
        if end > made.last_C:  # on to where the longest curve ends, as a forecast
            C_S = np.geomspace(made.last_C, end, STEPS)
            axes.plot(C_S, made.fit.predict(C_S), color=look["color"], ls=":", lw=1.0, zorder=2)
    axes.set(title="pass rate against compute", ylabel="pass rate", ylim=_limits(seen))
    _finish_compared(axes, forecasts)


def _draw_efficiency(axes: Any, forecasts: Sequence[Forecast]) -> None:
    seen: list[float] = []
    for i, made in enumerate(forecasts):
        found, look, style = efficiency(made), _look(i), STYLES[i % len(STYLES)]
        bars = {"elinewidth": 0.7, "capsize": 1.5, "ls": "", "alpha": 0.8, "zorder": 3}
        C_N = np.exp(found.lnC_N)
        axes.errorbar(C_N, found.logit_N, yerr=found.half_N, **bars, **look)
        ends = np.array([made.curve.C_N[0], made.last_C])
        line = found.slope * np.log(ends) + found.intercept
        axes.plot(ends, line, color=look["color"], ls=style)
        label = f"{_shown(made.curve.name)}: B {found.slope:.2f}"
        if found.dropped:
            label += f", {found.dropped} of {len(made.curve.C_N)} points not in R0 < R < A"
        axes.plot([], [], ls=style, label=label, **look)
        seen += [*found.logit_N.tolist(), *line.tolist()]
    axes.axhline(0.0, color="#888888", lw=0.6, zorder=0)
    axes.set(title="efficiency", ylabel="ln((R - R0) / (A - R))", ylim=_limits(seen))
    _finish_compared(axes, forecasts)


def _finish_compared(axes: Any, forecasts: Sequence[Forecast]) -> None:
    first = min(float(made.curve.C_N[0]) for made in forecasts)
    last = max(made.last_C for made in forecasts)
    room = (last / first) ** 0.03
    _log_axis(axes, f"C, {forecasts[0].curve.unit}", first / room, last * room)
    _legend(axes, columns=1)


def _look(i: int) -> dict[str, str]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def _draw_band(
    axes: Any, made: Forecast, first: float, last: float, colour: str, style: Any, label: str | None
) -> Span:
    """The fit and its band, whose lowest and highest ends come back.

    The band widens by a step behind the last point, where it becomes a forecast.
    """
    seen = min(made.last_C, last)
    steps = np.geomspace(first, last, STEPS)
    C_S = np.union1d(steps, [seen, min(np.nextafter(seen, np.inf), last)])
    lo_S, hi_S = np.transpose([_ends(made.rate(float(C))) for C in C_S])
    axes.fill_between(C_S, lo_S, hi_S, color=colour, alpha=0.18, lw=0, zorder=1)
    axes.plot(C_S, made.fit.predict(C_S), color=colour, ls=style, label=label, zorder=2)
    return float(lo_S.min()), float(hi_S.max())


# ---- axes and words ------------------------------------------------------------------------------


def _log_axis(axes: Any, label: str, lo: float, hi: float) -> None:
    """With the ticks of the text plots: 1k, 2k, 5k."""
    from matplotlib.ticker import NullLocator

    choices = tick_choices(Axis(lo, hi, True, 0, 1))
    ticks = next((each for each in choices if len(each) <= MOST_TICKS), choices[-1])
    axes.set(xscale="log", xlim=(lo, hi), xlabel=_shown(label))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [short(tick) for tick in ticks])


def _limits(seen: Sequence[float], wide: Sequence[float] = ()) -> Span:
    """What is seen with a little air, and of what is wide as much as leaves the former a third."""
    lo, hi = min(seen), max(seen)
    air = max(0.05 * (hi - lo), 0.002)
    lo, hi, size = lo - air, hi + air, hi - lo + 2 * air
    low, high = min([lo, *(end - air for end in wide)]), max([hi, *(end + air for end in wide)])
    return max(low, lo - size), min(high, hi + size)


def _legend(axes: Any, columns: int) -> None:
    """Below the axes, where it hides no point."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=columns, handlelength=3.5)


def _ends(interval: Interval) -> Span:
    """Ends of a pass rate; where the search found none, 0 or 1."""
    lo, hi = interval.lo, interval.hi
    return 0.0 if lo is None else lo, 1.0 if hi is None else hi


def _halves(intervals: Sequence[Interval]) -> list[list[float]]:
    """Lengths below and above the values, as matplotlib takes error bars."""
    pairs = [(each.value, *_ends(each)) for each in intervals]
    return [[value - lo for value, lo, _ in pairs], [hi - value for value, _, hi in pairs]]


def _told(interval: Interval) -> str:
    lo, hi = _ends(interval)
    return f"{interval.value:.3f} ({lo:.3f} .. {hi:.3f})"


def _verdict(made: Forecast) -> str:
    return f"verdict {made.verdict}" + (f": {made.why}" if made.why else "")


def _shown(name: str) -> str:
    """A name as a picture can show it; a leading underscore would hide it from the legend."""
    name = printable(name)
    name = name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
    return f" {name}" if name.startswith("_") else name
