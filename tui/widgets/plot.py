"""The live curve: a plot to zoom, to pan and to read off, by keyboard and by mouse."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.message import Message

from tui.show.raster import LEAST_HEIGHT, TOP, Picture, raster
from tui.show.rows import Row, cut, joined
from tui.show.view import Layer, Mark, Points, View, natural_view
from tui.widgets.panel import Panel

KEY_ZOOM, WHEEL_ZOOM = 1.5, 1.2
STEP = 0.1  # share of the view that an arrow key pans by


class PlotPanel(Panel, can_focus=True):
    """A plot of layers over compute.

    It follows the data until it is zoomed or panned, and again after `reset`. All of its state is
    public to read: `view` (None while it follows), `log_x`, `crosshair` (x, None without one), `picture`.
    `readout` says what the crosshair at x reads, as one row; without it, the nearest point.
    """

    ALLOW_SELECT = False  # a drag pans

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("plus,equals_sign", "zoom(True)", "zoom in", show=False),
        Binding("minus", "zoom(False)", "zoom out", show=False),
        Binding("0", "reset", "reset view", show=False),
        Binding("x", "toggle_log", "log/lin", show=False, tooltip="logarithmic or linear x axis"),
        Binding(
            "i", "toggle_crosshair", "crosshair", show=False, tooltip="read values off with ←→"
        ),
        Binding("left", "sideways(-1)", "pan, or the point before", show=False),
        Binding("right", "sideways(1)", "pan, or the next point", show=False),
        Binding("up", "pan(0, 1)", "pan up", show=False),
        Binding("down", "pan(0, -1)", "pan down", show=False),
        Binding("shift+left", "pan(-1, 0)", "pan left", show=False),
        Binding("shift+right", "pan(1, 0)", "pan right", show=False),
        Binding("shift+up", "pan(0, 1)", "pan up", show=False),
        Binding("shift+down", "pan(0, -1)", "pan down", show=False),
    ]

    class CrosshairMoved(Message):
        """The crosshair stands elsewhere: x in the unit of the plot, None if it is off."""

        def __init__(self, plot: "PlotPanel", x: float | None) -> None:
            super().__init__()
            self.plot = plot
            self.x = x

        @property
        def control(self) -> "PlotPanel":
            return self.plot

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.view: View | None = None
        self.log_x = True
        self.crosshair: float | None = None
        self.readout: Callable[[float], Row] | None = None
        self._layers: list[Layer] = []
        self._heading: Row = []
        self._footing: Row = []
        self._unit, self._y_name, self._least = "GPU-h", "pass rate", 0.05
        self._home = natural_view([])
        self.picture = Picture([], self._home, None)
        self._grabbed: tuple[Offset, View] | None = None  # where a drag began, and what was seen
        self._dragged = False

    def show(
        self,
        layers: Sequence[Layer],
        *,
        heading: Row | None = None,
        unit: str = "GPU-h",
        y_name: str = "pass rate",
        footing: Row | None = None,
        least: float = 0.05,
    ) -> None:
        """Draw these layers from now on.

        Args:
            heading: the right end of the first row, beside the name of y.
            footing: the last row; none without it.
            least: least height of the plot while it follows, in the unit of y.
        """
        self._layers, self._heading, self._footing = list(layers), heading or [], footing or []
        self._unit, self._y_name, self._least = unit, y_name, least
        self._home = natural_view(self._layers, self.log_x, least)
        self.redraw()

    def rows(self, width: int, height: int) -> Sequence[Row]:
        foot = [cut(self._footing, width)] if self._footing and height > LEAST_HEIGHT else []
        layers, heading = self._layers, self._heading
        if self.view is not None:
            heading = joined([[("0 shows all again", "key")], heading or []])
        if self.crosshair is not None:
            layers = [*layers, Mark(self.crosshair, "cursor")]
            heading = (self.readout or self._nearest)(self.crosshair)
        self.picture = raster(
            layers, self.seen, width, height - len(foot), self._unit, self._y_name, heading
        )
        return [*self.picture.rows, *foot]

    @property
    def seen(self) -> View:
        """What is in view now."""
        return self.view or self._home

    def move_crosshair(self, x: float | None) -> None:
        """Set the crosshair, or turn it off; says so in a message if that changes anything."""
        if x != self.crosshair:
            self.crosshair = x
            self.redraw()
            self.post_message(self.CrosshairMoved(self, x))

    # keys

    def action_zoom(self, closer: bool) -> None:
        factor = KEY_ZOOM if closer else 1 / KEY_ZOOM
        self._look(self.seen.zoomed(factor, x=self.crosshair))

    def action_pan(self, dx: int, dy: int) -> None:
        self._look(self.seen.panned(STEP * dx, STEP * dy))

    def action_sideways(self, step: int) -> None:
        if self.crosshair is None:
            self.action_pan(step, 0)
            return
        x_N, _ = self._points()
        beyond = x_N[x_N > self.crosshair] if step > 0 else x_N[x_N < self.crosshair][::-1]
        if not beyond.size:
            return
        x = float(beyond[0])
        if self.picture.column(x) is None:
            if self.log_x and x == 0.0:  # it has no place but left of the whole axis
                self.action_reset()
            else:
                self._look(self.seen.centred(x))
        self.move_crosshair(x)

    def action_reset(self) -> None:
        self.view = None
        self.redraw()

    def action_toggle_log(self) -> None:
        self.log_x = not self.log_x
        self._home = natural_view(self._layers, self.log_x, self._least)
        self.view = self.view and self.view.on(self.log_x, self._home)
        self.redraw()

    def action_toggle_crosshair(self) -> None:
        if self.crosshair is not None:
            self.move_crosshair(None)
            return
        x_N, _ = self._points()
        lo, hi = self.seen.x
        inside = x_N[(x_N >= lo) & (x_N <= hi)]
        middle = (lo * hi) ** 0.5 if self.log_x else (lo + hi) / 2
        self.move_crosshair(float(inside[-1]) if inside.size else middle)

    # mouse

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, WHEEL_ZOOM)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1 / WHEEL_ZOOM)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        at = event.get_content_offset(self)
        if at is not None and event.button == 1:
            self._grabbed, self._dragged = (at, self.seen), False
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        at = event.get_content_offset_capture(self)
        if self._grabbed is None:
            x = self.picture.x_at(at.x)
            if self.crosshair is not None and x is not None and self.picture.y_at(at.y) is not None:
                self.move_crosshair(x)
            return
        start, seen = self._grabbed
        frame = self.picture.frame
        if at != start and frame is not None:
            self._dragged = True
            across, down = frame.x.last - frame.x.first, frame.y.first - frame.y.last
            self._look(seen.panned(2 * (start.x - at.x) / across, 4 * (at.y - start.y) / down))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._grabbed is None:
            return
        self.release_mouse()
        (start, _), self._grabbed = self._grabbed, None
        x = self.picture.x_at(start.x)
        if not self._dragged and x is not None and self.picture.y_at(start.y) is not None:
            self.move_crosshair(x)

    def _wheel(self, event: events.MouseEvent, factor: float) -> None:
        """Zoom about the mouse: left of the axes y alone, under them x alone."""
        at = event.get_content_offset(self)
        frame = self.picture.frame
        if at is None or frame is None:
            return
        event.stop()
        event.prevent_default()
        x, y = self.picture.x_at(at.x), self.picture.y_at(at.y)
        under = at.y >= TOP + frame.rows
        axis = "x" if under else "y" if at.x <= frame.margin else "both"
        self._look(self.seen.zoomed(factor, x, y, axis))

    # what both use

    def _look(self, view: View) -> None:
        self.view = view.near(self._home)
        self.redraw()

    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        """x and y of the first layer of points, by x; those that are drawn."""
        for layer in self._layers:
            if isinstance(layer, Points):
                x_N = np.asarray(layer.x_N, dtype=np.float64)
                y_N = np.asarray(layer.y_N, dtype=np.float64)
                known = np.isfinite(x_N) & np.isfinite(y_N)
                order = np.argsort(x_N[known], kind="stable")
                return x_N[known][order], y_N[known][order]
        return np.zeros(0), np.zeros(0)

    def _nearest(self, x: float) -> Row:
        x_N, y_N = self._points()
        if not x_N.size:
            return [("C ", "muted"), (f"{x:.4g}", "strong")]
        scale = np.log if self.log_x and x > 0.0 else np.positive
        with np.errstate(divide="ignore"):  # the point at 0 is infinitely far on a log axis
            at = int(np.argmin(np.abs(scale(x_N) - scale(x))))
        return [
            ("C ", "muted"),
            (f"{x_N[at]:.4g}", "strong"),
            (f"  {self._y_name} ", "muted"),
            (_number(float(y_N[at])), "strong"),
        ]


def _number(y: float) -> str:
    """.612, 1.3, 1234: three digits after the point below 1, else four digits."""
    return f"{y:.3f}".replace("0.", ".", 1) if abs(y) < 1.0 else f"{y:.4g}"
