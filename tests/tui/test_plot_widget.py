"""The plot pane in a terminal: what stands there, and every key and mouse movement it knows."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from screen import screen_text
from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.pilot import Pilot

from tui.show.canvas import Frame
from tui.show.raster import Band, Layer, Level, Line, Mark, Points, Zone
from tui.show.themes import DARK, themes
from tui.widgets.plot import PlotPanel

C = np.linspace(10.0, 220.0, 22)  # every 10
R = 0.2 + 0.7 / (1.0 + (50.0 / C) ** 2)
LAYERS: list[Layer] = [
    Zone(0, 20, label="warm-up"),
    Band(C, R - 0.05, R + 0.05),
    Level(0.9, label="A .900"),
    Mark(220, label="now"),
    Line(C, R),
    Points(np.concatenate([[0.0], C]), np.concatenate([[0.2], R])),
]


class PlotApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.moved: list[float | None] = []

    def compose(self) -> ComposeResult:
        yield PlotPanel(id="plot")

    def on_mount(self) -> None:
        for theme in themes():
            self.register_theme(theme)
        self.theme = DARK

    def on_plot_panel_crosshair_moved(self, event: PlotPanel.CrosshairMoved) -> None:
        assert event.control is self.query_one(PlotPanel)
        self.moved.append(event.x)


Scenario = Callable[[Pilot[None], PlotPanel], Awaitable[None]]


def played(scenario: Scenario, size: tuple[int, int] = (80, 24), layers=LAYERS) -> PlotApp:
    """The app after a scenario on a focused pane that shows the layers."""
    app = PlotApp()

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            plot = app.query_one(PlotPanel)
            plot.focus()
            if layers is not None:
                plot.show(layers, heading=[("fit 20 to 220", "muted")], footing=[("A .900", "")])
            await pilot.pause()
            await scenario(pilot, plot)

    asyncio.run(run())
    return app


def axes(plot: PlotPanel) -> Frame:
    frame = plot.picture.frame
    assert frame is not None
    return frame


async def wheel(pilot: Pilot[None], plot: PlotPanel, x: int, y: int, up: bool = True) -> None:
    """Turn the wheel over a cell of the content."""
    at = plot.content_region.offset + Offset(x, y)
    kind = events.MouseScrollUp if up else events.MouseScrollDown
    flags = {"button": 0, "shift": False, "meta": False, "ctrl": False}
    pilot.app.screen._forward_event(
        kind(
            widget=None, x=at.x, y=at.y, delta_x=0, delta_y=0, screen_x=at.x, screen_y=at.y, **flags
        )
    )
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (120, 36)])
def test_the_curve_is_on_the_screen(size):
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        shown = screen_text(pilot.app)
        lines = [line[1:-1] for line in shown.splitlines()[1:-1]]
        assert lines[0].startswith("pass rate") and lines[0].endswith("fit 20 to 220")
        assert lines[-1].startswith("A .900") and "GPU-h" in lines[-2]
        assert "A .900" in shown and "●" in shown and "○" in shown and "now" in shown
        assert any("⠀" < c <= "⣿" for c in shown)
        assert len(lines) == size[1] - 2 and {len(line) for line in lines} == {size[0] - 2}

    played(scenario, size)


@pytest.mark.parametrize("layers", [None, [], [Points([], [])]])
def test_nothing_yet_is_said_and_no_key_breaks_it(layers):
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        assert "no evaluation yet" in screen_text(pilot.app)
        await pilot.press("plus", "i", "left", "right", "x", "minus", "0", "up", "i", "left")
        assert "no evaluation yet" in screen_text(pilot.app)

    played(scenario, layers=layers)


def test_too_small_is_said_and_a_resize_draws_again():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        assert "no room for a" in screen_text(pilot.app)
        await pilot.press("plus", "i", "x")
        await pilot.hover(plot, offset=(3, 3))
        await wheel(pilot, plot, 3, 2)
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert "no room" not in screen_text(pilot.app) and "●" in screen_text(pilot.app)

    played(scenario, (18, 6))


def test_keys_zoom_pan_and_reset():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        before = plot.plain
        home = plot.seen
        assert plot.view is None and home.x == (10.0, 220.0)
        await pilot.press("plus")
        middle = (10.0 * 220.0) ** 0.5
        assert plot.seen.x == pytest.approx(  # 1 / 1.5 of the decades about their middle
            (middle * (10.0 / middle) ** (1 / 1.5), middle * (220.0 / middle) ** (1 / 1.5))
        )
        await pilot.press("minus")
        assert plot.seen.x == pytest.approx(home.x) and plot.seen.y == pytest.approx(home.y)
        await pilot.press("equals_sign", "right", "up")
        moved = plot.seen
        assert moved.x[0] > middle * (10.0 / middle) ** (1 / 1.5) and plot.plain != before
        await pilot.press("left", "down", "shift+up", "shift+left")
        assert plot.seen.x[0] < moved.x[0]
        await pilot.press("0")
        assert plot.view is None and plot.plain == before

    played(scenario)


def test_log_and_linear():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        assert "╱╱" in plot.plain
        await pilot.press("x")
        assert not plot.log_x and plot.seen.x == (0.0, 220.0) and "╱╱" not in plot.plain
        await pilot.press("plus", "x")  # a view that was chosen stays the same stretch
        assert plot.log_x and plot.seen.x == pytest.approx((110 - 110 / 1.5, 110 + 110 / 1.5))
        await pilot.press("0")
        assert plot.seen.x == (10.0, 220.0)

    played(scenario)


def test_a_view_that_was_chosen_stays_as_data_comes_in_and_else_it_follows():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        plot.show([Points([5, 500], [0.2, 0.8])])
        assert plot.seen.x == (5.0, 500.0)
        await pilot.press("plus")
        chosen = plot.seen
        plot.show([Points([5, 900], [0.2, 0.8])])
        assert plot.seen == chosen
        await pilot.press("0")
        assert plot.seen.x == (5.0, 900.0)

    played(scenario)


def test_the_crosshair_walks_over_the_points_and_reads_them():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        await pilot.press("i")
        assert plot.crosshair == 220.0
        assert plot.plain.splitlines()[0].endswith("C 220  pass rate .866")  # .2 + .7 / 1.0517
        await pilot.press("left", "left", "right", "right", "right")
        await pilot.press("i")
        assert plot.crosshair is None
        assert plot.plain.splitlines()[0].endswith("fit 20 to 220")

    app = played(scenario)
    assert app.moved == [220.0, 210.0, 200.0, 210.0, 220.0, None]


def test_the_owner_may_say_what_the_crosshair_reads():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        plot.readout = lambda x: [(f"update {x / 10:.0f}", "strong")]
        plot.move_crosshair(100.0)
        plot.move_crosshair(100.0)
        assert plot.plain.splitlines()[0].endswith("update 10")
        await pilot.pause()

    assert played(scenario).moved == [100.0]


def test_the_crosshair_takes_a_zoomed_view_along():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        await pilot.press("i", *["plus"] * 6)
        seen = plot.seen
        assert seen.x[0] == pytest.approx(220 / 22 ** (1.5**-6))  # about the crosshair: 168
        await pilot.press(*["left"] * 8)
        assert plot.crosshair == 140.0
        assert plot.seen.x[0] <= 140.0 <= plot.seen.x[1]
        await pilot.press(*["left"] * 13)
        assert plot.crosshair == 10.0 and plot.view is not None
        await pilot.press(*["shift+right"] * 9, "left")  # 0 is seen only with the lowest point
        assert plot.crosshair == 0.0 and plot.view is None
        assert plot.picture.column(0.0) is not None

    played(scenario)


def test_the_wheel_zooms_about_the_mouse_and_at_the_axes_one_way_only():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        home = plot.seen
        x, y = plot.picture.x_at(40), plot.picture.y_at(8)
        assert x is not None and y is not None
        await wheel(pilot, plot, 40, 8)
        assert plot.seen.y[1] - plot.seen.y[0] == pytest.approx((home.y[1] - home.y[0]) / 1.2)
        assert plot.picture.column(x) == 40 and plot.picture.row(y) == 8
        await pilot.press("0")
        await wheel(pilot, plot, 2, 8)
        assert plot.seen.x == pytest.approx(home.x) and plot.seen.y != home.y
        await pilot.press("0")
        await wheel(pilot, plot, 40, plot.size.height - 2, up=False)
        assert plot.seen.y == pytest.approx(home.y) and plot.seen.x[1] > home.x[1]

    played(scenario, layers=[Points(C, R)])  # no point at 0: the break before it goes in a zoom


def test_a_drag_pans_and_a_click_sets_the_crosshair():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        await pilot.press("x")
        pilot.app.set_focus(None)
        home, frame = plot.seen, axes(plot)
        await pilot.mouse_down(plot, offset=(41, 9))
        await pilot.hover(plot, offset=(31, 7))
        await pilot.mouse_up(plot, offset=(31, 7))
        # 10 columns to the left and 2 rows up: what one sees lies 20 dots further right, 8 down
        right, down = 20 / (frame.x.last - frame.x.first), 8 / frame.y.first
        assert plot.seen.x == pytest.approx((100 * right, 100 + 100 * right))
        assert plot.seen.y[0] == pytest.approx(home.y[0] - down * (home.y[1] - home.y[0]))
        assert plot.crosshair is None and plot.has_focus
        await pilot.click(plot, offset=(41, 9))
        assert plot.crosshair == plot.picture.x_at(40)  # the border is one column
        await pilot.hover(plot, offset=(51, 9))
        assert plot.crosshair == plot.picture.x_at(50)
        at = plot.crosshair
        await pilot.hover(plot, offset=(2, 9))  # over the labels of y nothing moves
        assert plot.crosshair == at

    app = played(scenario, layers=[Points([0, 100], [0.2, 0.8])])
    assert len(app.moved) == 2


def test_only_rows_that_changed_are_painted():
    async def scenario(pilot: Pilot[None], plot: PlotPanel) -> None:
        painted: list[int] = []
        plot.refresh = lambda *regions, **_: painted.extend(r.y for r in regions) or plot
        plot.show([*LAYERS[:-1], Points([50.0], [0.55])], heading=[("fit 20 to 220", "muted")])
        few = len(painted)
        plot.show([*LAYERS[:-1], Points([50.0], [0.55])], heading=[("fit 20 to 219", "muted")])
        assert painted[few:] == [0]

    played(scenario)
