"""Panel 1: the scaling curve, live, with its fit, its band, its window and whatever is pinned behind it."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from tui.show.fit_layers import (
    Axis,
    axis_of,
    fit_layers,
    footing,
    heading,
    other_sets,
    planned_compute,
    readout,
    shown_set,
)
from tui.show.raster import LEAST_HEIGHT
from tui.show.rows import Row, cut
from tui.watch.ghosts import Ghost
from tui.watch.scene import Scene, empty_scene
from tui.widgets.plot import PlotPanel

LEAST_SPAN = 0.1  # of the pass rate: the scatter of the first points must not look like a rise
TITLE = "[1] Scaling fit"
KINDS = ("hours", "updates", "tokens")


class FitPanel(PlotPanel):
    """The plot of a run. In window mode the arrows move the ends of the fit's window, a point at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("b", "toggle_band", "band", show=False, tooltip="show or hide the 90 % band"),
        Binding(
            "w", "toggle_window", "window", tooltip="move the window of points that the fit uses"
        ),
        Binding(
            "u", "next_unit", "unit of x", show=False, tooltip="x axis: GPU-hours, updates, tokens"
        ),
        Binding("left", "sideways(-1)", "pan, the point before, or the window's start", show=False),
        Binding("right", "sideways(1)", "pan, the next point, or the window's start", show=False),
        Binding("shift+left", "far_end(-1)", "pan, or the window's end", show=False),
        Binding("shift+right", "far_end(1)", "pan, or the window's end", show=False),
    ]

    class WindowMoved(Message):
        """The fit is to use the points with lo <= C <= hi; None for all."""

        def __init__(self, window: tuple[float, float] | None) -> None:
            super().__init__()
            self.window = window

    def __init__(self) -> None:
        super().__init__(id="fit")
        self.number = 1
        self.border_title = Content(TITLE)
        self._sets = ("", "")  # as the borders tell them
        self.scene: Scene = empty_scene()
        self.kind = "hours"
        self.band = True
        self.ghosts: list[Ghost] = []
        self.live = True
        self.windowing = False
        self._ends: tuple[int, int] | None = None  # first and last point of the window
        self._axis: Axis = axis_of(self.scene, self.kind)
        self.readout = self._readout

    def show_scene(self, scene: Scene) -> None:
        self.scene = scene
        self._axis = axis_of(scene, self.kind)
        ghosts = self.ghosts
        layers = fit_layers(scene, self._axis, band=self.band, ghosts=ghosts, live=self.live)
        self.show(layers, heading=heading(scene, ghosts), unit=self._axis.unit, least=LEAST_SPAN)
        self._name_sets(scene)

    def _name_sets(self, scene: Scene) -> None:
        """The set that is shown in the upper border, the others in the lower: no row of the plot goes to them."""
        shown, others = shown_set(scene), other_sets(scene)
        if self._sets != (shown, others):
            self._sets = (shown, others)
            self.border_title = Content(f"{TITLE}: {shown}" if shown else TITLE)
            self.border_subtitle = Content(others)

    def look_anew(self) -> None:
        """Another set is shown: where one had zoomed to, and the window of the fit, were of the one before."""
        self.view, self.windowing, self._ends = None, False, None

    def rows(self, width: int, height: int) -> Sequence[Row]:
        foot = footing(self.scene, planned_compute(self.scene), width)
        if self.windowing:
            keys = "←→ its start  shift+←→ its end  w done  0 all points"
            foot = [*foot[:1], cut([("window: ", "key"), (keys, "")], width)]
        if height < LEAST_HEIGHT + len(foot):
            foot = []
        return [*super().rows(width, height - len(foot)), *foot]

    def crosshair_compute(self) -> float | None:
        """The compute under the crosshair, in GPU-hours."""
        return None if self.crosshair is None else self._axis.back(self.crosshair)

    def _readout(self, x: float) -> Row:
        return readout(self.scene, self._axis, x)

    def action_toggle_band(self) -> None:
        self.band = not self.band
        self.show_scene(self.scene)

    def action_next_unit(self) -> None:
        at = self.crosshair_compute()
        self.kind = KINDS[(KINDS.index(self.kind) + 1) % len(KINDS)]
        self.view = None
        self.show_scene(self.scene)
        if at is not None:
            self.move_crosshair(float(self._axis.of([at])[0]))

    # ---- the window ----

    def action_toggle_window(self) -> None:
        self.windowing = not self.windowing
        if self.windowing and self._ends is None:
            self._ends = (0, self._last())
        self.show_scene(self.scene)

    def action_reset(self) -> None:
        if self.windowing:
            self._ends = (0, self._last())
            self.post_message(self.WindowMoved(None))
        super().action_reset()

    def action_sideways(self, step: int) -> None:
        if not self.windowing:
            super().action_sideways(step)
        elif self._ends is not None:
            first, last = self._ends
            self._set_ends(min(max(first + step, 0), last - 1), last)

    def action_far_end(self, step: int) -> None:
        if not self.windowing:
            self.action_pan(step, 0)
        elif self._ends is not None:
            first, last = self._ends
            self._set_ends(first, min(max(last + step, first + 1), self._last()))

    def _last(self) -> int:
        curve = self.scene.analysis.curve
        return 0 if curve is None else max(len(curve.C_N) - 1, 0)

    def _set_ends(self, first: int, last: int) -> None:
        curve = self.scene.analysis.curve
        if curve is None or len(curve.C_N) < 2:
            return
        self._ends = (first, last)
        whole = first == 0 and last == self._last()
        hi = float("inf") if last == self._last() else float(curve.C_N[last])
        lo = 0.0 if first == 0 else float(curve.C_N[first])
        self.post_message(self.WindowMoved(None if whole else (lo, hi)))
