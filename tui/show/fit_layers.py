"""The scaling curve of a run as layers of a plot, and the words around it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.curves.curve import VALIDATION
from scalerl.events import is_number
from tui.show.rows import Row, cut, joined, led
from tui.show.view import Band, Layer, Level, Line, Mark, Points, Zone
from tui.watch.analysis import Analysis, Stage, sampled, shown_points, warm_up
from tui.watch.ghosts import Ghost
from tui.watch.scene import Scene
from tui.watch.store import Floats
from tui.words import amount, interval, printable

AHEAD = 1.6  # the curve goes on to this many times the last point, at least
UNITS = {"hours": "GPU-h", "updates": "updates", "tokens": "tokens"}


@dataclass(frozen=True, eq=False)
class Axis:
    """What stands on the x axis: compute in GPU-h, or the update or the token it was reached at.

    C_N, x_N: both ascending, of every update; empty for GPU-hours.
    """

    kind: str
    C_N: Floats
    x_N: Floats

    @property
    def unit(self) -> str:
        return UNITS[self.kind]

    def of(self, C: Sequence[float] | Floats) -> Floats:
        """Places of compute on the axis, straight on beyond the last update."""
        return _straight(np.asarray(C, dtype=np.float64), self.C_N, self.x_N, self.kind)

    def back(self, x: float) -> float:
        """The compute at a place."""
        return float(_straight(np.array([x]), self.x_N, self.C_N, self.kind)[0])


def _straight(at: Floats, from_N: Floats, to_N: Floats, kind: str) -> Floats:
    if kind == "hours" or len(from_N) < 2:
        return at
    found = np.interp(at, from_N, to_N)
    pace = (to_N[-1] - to_N[0]) / max(from_N[-1] - from_N[0], 1e-12)
    return np.where(at > from_N[-1], to_N[-1] + pace * (at - from_N[-1]), found)


def axis_of(scene: Scene, kind: str) -> Axis:
    """The x axis of a run."""
    if kind == "hours" or scene.view.n < 2:
        return Axis("hours", np.zeros(0), np.zeros(0))
    names = ("gpu_h", "update" if kind == "updates" else "tokens")
    C_N, x_N = (np.append(0.0, scene.view.column(name)) for name in names)
    whole = np.isfinite(C_N) & np.isfinite(x_N)
    return Axis(kind, np.maximum.accumulate(C_N[whole]), np.maximum.accumulate(x_N[whole]))


def planned_compute(scene: Scene) -> float | None:
    """GPU-hours that the whole run will have taken, at the pace so far."""
    view = scene.view
    updates, done, C = view.setting("site.updates"), view.last("update"), view.last("gpu_h")
    if not is_number(updates) or not done or C is None or done < 3:
        return None
    return C * updates / done


def fit_layers(
    scene: Scene, axis: Axis, *, band: bool = True, ghosts: Sequence[Ghost] = (), live: bool = True
) -> list[Layer]:
    """Everything in the plot: window, band, ceiling, ghosts, points, curve, and `now`."""
    found = scene.analysis
    if found.curve is None:
        return []
    C, R = shown_points(found.curve)
    layers: list[Layer] = []
    if (left_out := warm_up(found.curve, found.window)) is not None:
        lo, hi = axis.of(left_out)
        layers.append(Zone(float(lo), float(hi), "muted", "left out"))
    for ghost in ghosts:
        layers += _ghost_layers(ghost, axis)
    last_C = C[-1] if C else 0.0
    if found.made is not None and last_C > 0.0:
        layers += _fit_parts(found, axis, _reach(scene, last_C), band)
    layers.append(Points(axis.of(C), np.asarray(R), "●", "data"))
    now = scene.view.last("gpu_h")
    if live and scene.view.done is None and now is not None and now > 0.0 and C:
        layers.append(Mark(float(axis.of([now])[0]), "muted", "now"))
    return layers


def _reach(scene: Scene, last_C: float) -> float:
    return max(AHEAD * last_C, 1.05 * (planned_compute(scene) or 0.0))


def _fit_parts(found: Analysis, axis: Axis, reach: float, band: bool) -> list[Layer]:
    made = found.made
    assert made is not None
    last = made.whole.last_C
    first = min(float(made.whole.C_N[0]), last)
    C_M, R_M, lower, upper = sampled(found, first, reach)
    x_M = axis.of(C_M)
    layers: list[Layer] = []
    if band and found.stage in (Stage.BAND, Stage.FIT):
        layers.append(Band(x_M, lower, upper, unbroken=found.stage is Stage.BAND))
    if found.stage is Stage.BAND:
        return layers
    seen = C_M <= last
    if found.stage is Stage.FIT:
        layers.append(Level(made.fit.A, "fit", f"A {made.fit.A:.3f}"))
        layers.append(Line(x_M[~seen], R_M[~seen], "ahead", dashed=True))
    layers.append(Line(x_M[seen], R_M[seen], "fit"))
    return layers


def _ghost_layers(ghost: Ghost, axis: Axis) -> list[Layer]:
    C, R = shown_points(ghost.curve)
    C_N = np.asarray(C) * ghost.scale
    layers: list[Layer] = []
    found = ghost.analysis
    if found is not None and found.made is not None and found.stage in (Stage.FIT, Stage.BROKEN):
        made = found.made
        at = np.geomspace(float(made.whole.C_N[0]), made.whole.last_C, 120)
        layers.append(
            Line(axis.of(at * ghost.scale), np.atleast_1d(made.fit.predict(at)), ghost.role)
        )
    layers.append(Points(axis.of(C_N), np.asarray(R), ghost.glyph, ghost.role))
    return layers


# ---- words -----------------------------------------------------------------------------------------


def heading(scene: Scene, ghosts: Sequence[Ghost]) -> Row:
    """Which points the fit takes, how close it comes, and what the ghosts are."""
    found = scene.analysis
    parts: list[Row] = []
    if found.window is not None:
        lo, hi = found.window
        parts.append([(f"fit {amount(lo)}-{amount(hi) if np.isfinite(hi) else 'end'}", "fit")])
    if found.made is not None:
        parts.append([(f"rmse {found.made.fit.rmse:.4f} n {found.made.fit.n}", "muted")])
    for ghost in ghosts:
        times = "" if ghost.scale == 1.0 else f" (C x {ghost.scale:.3g})"
        parts.append([(f"{ghost.glyph} {ghost.name}{times}", ghost.role)])
    return joined(parts)


def shown_set(scene: Scene) -> str:
    """The set whose curve is shown; "" for a run that has no other than validation."""
    return "" if scene.view.sets() in ([], [VALIDATION]) else printable(scene.evaluation_set)


def other_sets(scene: Scene) -> str:
    """The newest pass rates of the sets that are not shown; "" where there are no others."""
    told: list[str] = []
    for name in scene.view.sets():
        if name != scene.evaluation_set:
            rate = scene.view.newest_rate(name)
            short = printable(name.removeprefix(f"{VALIDATION}/"))
            told.append(f"{short} {'-' if rate is None else f'{rate:.3f}'}")
    return f"h others: {'  '.join(told)}" if told else ""


def footing(scene: Scene, planned: float | None, width: int) -> list[Row]:
    """The fit in numbers, and where the run ends by it; or why there is no fit to tell of, in two rows at most."""
    found = scene.analysis
    if found.stage is Stage.NONE:
        return led([("○ no fit yet: ", "muted")], found.why, width)[:2]
    made = found.made
    assert made is not None
    if found.stage is Stage.BAND:
        lead: Row = [("▲ not yet predictive ", "watch"), (f"A {interval(made.A())}: ", "strong")]
        return led(lead, found.why, width)[:2]
    if found.stage is Stage.BROKEN:
        return led(
            [("■ the curve does not say where this run ends: ", "danger")], found.why, width
        )[:2]
    unit = made.curve.unit
    row: Row = [
        ("A ", "muted"), (interval(made.A()), "strong"),
        ("  B ", "muted"), (f"{made.B().value:.2f}", "strong"),
        ("  C_mid ", "muted"), (amount(made.C_mid().value), "strong"),
    ]  # fmt: skip
    end = planned if planned is not None and planned > 1.01 * made.last_C else 10 * made.last_C
    row += [(f"  R({amount(end)} {unit}) ", "muted"), (interval(made.rate(end)), "ahead")]
    return [cut(row, width)]


def readout(scene: Scene, axis: Axis, x: float) -> Row:
    """What the crosshair reads: compute, the nearest evaluation, and the fit there."""
    found = scene.analysis
    C = axis.back(x)
    row: Row = [(f"{amount(C)} GPU-h", "strong")]
    if axis.kind != "hours":
        row += [(f"  {axis.kind[:-1]} {amount(x)}", "")]
    if found.curve is not None and len(found.curve.C_N):
        near = int(np.argmin(np.abs(found.curve.C_N - C)))
        at = float(found.curve.C_N[near])
        if abs(at - C) <= 0.02 * max(at, 1e-12):
            row += [("  measured ", "muted"), (f"{found.curve.R_N[near]:.3f}", "data")]
    if found.made is not None and C > 0.0 and found.stage is not Stage.NONE:
        row += [("  fit ", "muted"), (interval(found.made.rate(C)), "fit")]
    return row
