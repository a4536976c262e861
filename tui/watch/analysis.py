"""What a curve so far says, as a screen tells it: which of four stages the fit is in, and why.

A student must not read a ceiling off points that do not have one. So a curve is drawn only once the fit
is identifiable, and before that the words say what is still missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np

from scalerl.curves.alarms import GRAVEST_FIRST, Alarm, alarms
from scalerl.curves.curve import VALIDATION, Curve, curve_of_run, thinned
from scalerl.curves.sources import Source
from scalerl.errors import InputError
from scalerl.events import Event, is_number
from scalerl.fit import FitError, Grid
from scalerl.forecast import FEWEST_POINTS, Forecast, forecast

NEWEST_UPDATES = 1_500  # of a long run, that the alarms look at
PREDICTIVE = 0.10  # half width of A, as a share of it, above which the fit is not yet predictive

Window = tuple[float, float] | None


class Stage(StrEnum):
    """How much of a fit may be shown."""

    NONE = "none"  # no curve at all: too few points, or none that bend
    BAND = "band"  # only how wide it may be: not identifiable, or A known too loosely
    FIT = "fit"  # the curve, its band and where it goes
    BROKEN = "broken"  # the curve to the points; it does not say where the run goes


def forecast_of(
    source: Source, R0: float | None, window: tuple[float, float] | None, grid: Grid | None
) -> Forecast:
    """The forecast of a source; an error says whose it is."""
    try:
        return forecast(
            source.curves, R0=R0, window=window, grid=grid, events=source.events, name=source.name
        )
    except FitError as error:
        raise InputError(f"{source.name}: {error}") from None


@dataclass(frozen=True, eq=False)
class Analysis:
    """The fit of a run at one moment. why: what is missing, or wrong, in words; "" in stage FIT."""

    stage: Stage
    curve: Curve | None
    made: Forecast | None
    why: str
    alarms: tuple[Alarm, ...] = ()
    window: Window = None


NOTHING = Analysis(Stage.NONE, None, None, "no evaluation yet")


def analyse(
    evals: Sequence[Event],
    updates: Sequence[Event],
    name: str = "run",
    window: Window = None,
    evaluation_set: str = VALIDATION,
) -> Analysis:
    """Fit and judge. Takes some 70 ms for thirty points: not on the thread that answers keys."""
    try:
        curve = curve_of_run(list(evals), name, evaluation_set)
    except FitError as error:
        return Analysis(Stage.NONE, None, None, str(error), window=window)
    return of_curve(curve, [*evals, *updates], window)


def of_curve(curve: Curve, seen: Sequence[Event] = (), window: Window = None) -> Analysis:
    """`analyse` for a curve from anywhere; `seen` are the events of its run, for the alarms."""
    n = len(curve.within(window).C_N)
    if n < FEWEST_POINTS:
        inside = " in the window" if window else ""
        start = " and the one before training" if curve.R0_from == "measured" else ""
        why = f"the fit needs {FEWEST_POINTS} evaluations{inside}: {n} so far{start}"
        return Analysis(Stage.NONE, curve, None, why, tuple(alarms(curve, seen)), window)
    try:
        made = forecast([curve], window=window, events=[seen])
    except FitError as error:
        return Analysis(Stage.NONE, curve, None, str(error), tuple(alarms(curve, seen)), window)
    A = made.A()
    assert A.lo is not None and A.hi is not None  # a ceiling always has ends
    loose = (A.hi - A.lo) / 2 > PREDICTIVE * A.value
    if made.verdict == "unstable":
        stage, why = Stage.BROKEN, made.why
    elif made.verdict != "ok":
        stage, why = Stage.BAND, made.why
    elif loose:
        stage, why = Stage.BAND, f"A lies anywhere in {A.lo:.3f} .. {A.hi:.3f}"
    else:
        stage, why = Stage.FIT, ""
    return Analysis(stage, curve, made, why, tuple(made.alarms), window)


def remembered(new: Analysis, old: Analysis) -> Analysis:
    """The new one with the alarms of updates that the old one had: of a long run it looks at the newest only.

    Of two alarms of one name the graver stays; of two alike the new one, since when the old one fired.
    """
    found = {alarm.name: alarm for alarm in old.alarms if alarm.of == "update"}
    for alarm in new.alarms:
        past = found.get(alarm.name, alarm)
        if past.level == alarm.level:
            found[alarm.name] = replace(alarm, at=min(alarm.at, past.at))
        elif GRAVEST_FIRST.index(alarm.level) < GRAVEST_FIRST.index(past.level):
            found[alarm.name] = alarm
    order = sorted(found.values(), key=lambda alarm: GRAVEST_FIRST.index(alarm.level))
    return replace(new, alarms=tuple(order))


def unfitted(evals: Sequence[Event], name: str, evaluation_set: str, old: Analysis) -> Analysis:
    """The points alone, at once, of a set that is looked at from now on; with the alarms of updates that `old` had."""
    bare = [{**event, "passes": None} for event in evals]  # to check them takes most of the time
    kept = tuple(alarm for alarm in old.alarms if alarm.of == "update")
    try:
        curve = curve_of_run(bare, name, evaluation_set)
    except FitError as error:
        return Analysis(Stage.NONE, None, None, str(error), kept)
    return Analysis(Stage.NONE, curve, None, "fitting ...", kept)


def before(found: Analysis, evals: Sequence[Event], update: float | None) -> Analysis:
    """What an analysis may still say where only some evaluations and updates are known: of a replay that went back."""
    known = [float(e["C"]) for e in evals if is_number(e.get("C"))]
    C = max(known, default=0.0)
    kept = tuple(a for a in found.alarms if a.at <= (C if a.of == "compute" else update or 0.0))
    if found.curve is None or not len(found.curve.C_N) or found.curve.last_C <= C:
        return replace(found, alarms=kept)
    return Analysis(
        Stage.NONE, found.curve.within((0.0, C)), None, "fitting ...", kept, found.window
    )


def warm_up(curve: Curve | None, window: Window) -> tuple[float, float] | None:
    """The stretch of compute that a window leaves out at the start, to be shaded."""
    if curve is None or window is None or not len(curve.C_N) or window[0] <= curve.C_N[0]:
        return None
    return float(curve.C_N[0]), float(window[0])


def shown_points(curve: Curve) -> tuple[list[float], list[float]]:
    """Points to draw, the start at C = 0 first where it was measured; very many are averaged."""
    few = thinned(curve)
    C, R = few.C_N.tolist(), few.R_N.tolist()
    if curve.R0 is not None and curve.R0_from == "measured":
        return [0.0, *C], [curve.R0, *R]
    return C, R


@lru_cache(maxsize=16)  # 160 intervals: not again for every update that only moves `now`
def sampled(found: Analysis, lo: float, hi: float, n: int = 160) -> tuple[np.ndarray, ...]:
    """(C, R, lower end, upper end) of the fit and its band at `n` values of compute from lo to hi."""
    made = found.made
    assert made is not None
    C_M = np.geomspace(lo, hi, n)
    R_M = np.atleast_1d(made.fit.predict(C_M))
    ends = [made.rate(C) for C in C_M.tolist()]
    lower = np.array([np.nan if each.lo is None else each.lo for each in ends])
    upper = np.array([np.nan if each.hi is None else each.hi for each in ends])
    return C_M, R_M, lower, upper
