"""The curve of a run as layers and words: what each stage draws, the x axis, ghosts and the crosshair."""

from functools import cache

import numpy as np
import pytest
from logs import eval_event, run_event, update_event, whole_run

from scalerl.events import Event
from tui.show.fit_layers import (
    AHEAD,
    Axis,
    axis_of,
    fit_layers,
    footing,
    heading,
    planned_compute,
    readout,
)
from tui.show.rows import row_width, text, texts
from tui.show.view import Band, Layer, Level, Line, Mark, Points, Zone
from tui.watch.analysis import Analysis, analyse
from tui.watch.ghosts import Ghost
from tui.watch.scene import Scene, empty_scene
from tui.watch.store import RunStore

HOURS = Axis("hours", np.zeros(0), np.zeros(0))


@cache
def scene(
    gpu_h: float | None = None, window: tuple[float, float] | None = None, broken: bool = False
) -> Scene:
    """The run of 224 GPU-h at a moment of it; broken: its last third falls."""
    events = whole_run(planned=200, status="done" if gpu_h is None else None)
    if broken:
        events = [
            e | {"pass_rate": 0.5} if e["kind"] == "eval" and e["C"] > 160 else e for e in events
        ]
    store = RunStore()
    store.take(events)
    view = store.view(None if gpu_h is None else gpu_h * 45.0)
    return Scene(view, analyse(view.evals(), [], "tiny", window))


def kinds(layers: list[Layer]) -> list[str]:
    return [type(layer).__name__ + ("" if layer.role != "ahead" else " ahead") for layer in layers]


def the(layers: list[Layer], kind: type) -> Layer:
    return next(layer for layer in layers if isinstance(layer, kind))


# ---- what each stage draws ----


def test_nothing_before_the_first_evaluation() -> None:
    assert fit_layers(empty_scene(), HOURS) == []


def test_points_only_while_there_are_too_few() -> None:
    layers = fit_layers(scene(40.0), HOURS)
    assert kinds(layers) == ["Points", "Mark"]
    points = the(layers, Points)
    assert isinstance(points, Points) and np.asarray(points.x_N).tolist() == [0, 8, 16, 24, 32, 40]


def test_a_band_without_a_curve_while_it_is_not_predictive() -> None:
    assert kinds(fit_layers(scene(72.0), HOURS)) == ["Band", "Points", "Mark"]


def test_curve_ceiling_and_where_it_goes() -> None:
    layers = fit_layers(scene(), HOURS)
    assert kinds(layers) == ["Band", "Level", "Line ahead", "Line", "Points"]
    ahead, seen = (layer for layer in layers if isinstance(layer, Line))
    assert ahead.dashed and not seen.dashed
    assert np.asarray(seen.x_N).max() <= 224.0 < np.asarray(ahead.x_N).min()
    # 200 updates were planned: 400 GPU-h, and 5 % beyond
    assert np.asarray(ahead.x_N).max() == pytest.approx(420.0)
    level = the(layers, Level)
    assert isinstance(level, Level) and level.label == f"A {level.y:.3f}"


def test_a_broken_run_shows_no_ceiling_and_no_way_on() -> None:
    layers = fit_layers(scene(broken=True), HOURS)
    assert kinds(layers) == ["Line", "Points"]


def test_the_band_can_be_left_out_and_now_is_no_mark_of_a_run_that_ended() -> None:
    assert "Band" not in kinds(fit_layers(scene(), HOURS, band=False))
    live = fit_layers(scene(100.0), HOURS)
    mark = the(live, Mark)
    assert isinstance(mark, Mark) and (mark.x, mark.label) == (100.0, "now")
    assert "Mark" not in kinds(fit_layers(scene(100.0), HOURS, live=False))


def test_what_a_window_leaves_out_is_shaded() -> None:
    zone = the(fit_layers(scene(window=(60.0, np.inf)), HOURS), Zone)
    assert isinstance(zone, Zone) and (zone.lo, zone.hi, zone.label) == (8.0, 60.0, "left out")


def test_a_ghost_stands_behind_in_its_own_scale() -> None:
    other = scene(40.0).analysis
    whole = scene().analysis
    assert other.curve is not None and whole.curve is not None
    points_only = Ghost("short", other.curve, other, "pinned", "◆", scale=0.5)
    layers = fit_layers(scene(), HOURS, ghosts=[points_only])
    assert kinds(layers)[0] == "Points" and isinstance(layers[0], Points)
    assert (layers[0].glyph, layers[0].role) == ("◆", "pinned")
    assert np.asarray(layers[0].x_N).tolist() == [0, 4, 8, 12, 16, 20]
    with_fit = Ghost("long", whole.curve, whole, "paper", "▲")
    assert kinds(fit_layers(scene(40.0), HOURS, ghosts=[with_fit]))[:2] == ["Line", "Points"]


# ---- the axis ----


def test_axes_of_updates_and_tokens() -> None:
    """Two GPU-h and 2,000 tokens an update, from 0 at 0, and on at that pace beyond the last."""
    updates, tokens = axis_of(scene(), "updates"), axis_of(scene(), "tokens")
    assert updates.of([0.0, 7.0, 224.0, 300.0]).tolist() == [0.0, 3.5, 112.0, 150.0]
    assert tokens.of([50.0]).tolist() == [50_000.0]
    assert updates.back(150.0) == 300.0 and tokens.back(1000.0) == 1.0
    assert [each.unit for each in (HOURS, updates, tokens)] == ["GPU-h", "updates", "tokens"]
    assert HOURS.of([3.0]).tolist() == [3.0] and HOURS.back(3.0) == 3.0


def test_an_axis_needs_two_updates() -> None:
    store = RunStore()
    store.take([run_event(), update_event(1), eval_event(2.0, 0.3)])
    assert axis_of(Scene(store.view()), "updates").kind == "hours"


def test_the_compute_that_is_planned() -> None:
    assert planned_compute(scene(100.0)) == 400.0  # 100 / 50 * 200
    assert planned_compute(scene(4.0)) is None  # two updates tell no pace
    assert planned_compute(empty_scene()) is None


@pytest.mark.parametrize("updates", [10**400, "many", None])
def test_a_plan_that_makes_no_sense(updates: object) -> None:
    events: list[Event] = whole_run(8, status=None)
    events[0]["site"] |= {"updates": updates}
    store = RunStore()
    store.take(events)
    assert planned_compute(Scene(store.view())) is None


# ---- words ----


def test_the_foot_says_what_is_missing() -> None:
    assert texts(footing(scene(40.0), None, 120)) == (
        "○ no fit yet: the fit needs 8 evaluations: 5 so far and the one before training"
    )
    assert texts(footing(scene(72.0), None, 200)).startswith("▲ not yet predictive A ")
    assert texts(footing(scene(broken=True), None, 200)).startswith(
        "■ the curve does not say where"
    )


def test_the_foot_of_a_fit() -> None:
    said = texts(footing(scene(), 400.0, 120))
    assert said.startswith("A 0.") and "[0." in said and "  R(400 GPU-h) 0." in said
    assert "R(2,240 GPU-h)" in texts(footing(scene(), None, 120))  # ten times the last point
    assert "R(2,240 GPU-h)" in texts(footing(scene(), 224.0, 120))  # the plan has been reached


@pytest.mark.parametrize("width", [12, 40, 80])
@pytest.mark.parametrize("gpu_h", [None, 40.0, 72.0])
def test_the_foot_keeps_inside(width: int, gpu_h: float | None) -> None:
    rows = footing(scene(gpu_h), 400.0, width)
    assert len(rows) <= 2 and all(row_width(row) <= width for row in rows)


def test_the_head_names_window_and_ghosts() -> None:
    curve = scene().analysis.curve
    assert curve is not None
    ghost = Ghost(
        "paper", curve, Analysis(scene().analysis.stage, curve, None, ""), "paper", "▲", 0.01
    )
    said = text(heading(scene(window=(60.0, np.inf)), [ghost]))
    assert said.startswith("fit 60-end  rmse 0.") and said.endswith("n 21  ▲ paper (C x 0.01)")
    assert heading(scene(40.0), []) == []


def test_the_crosshair_reads_the_point_under_it() -> None:
    found = scene().analysis
    assert found.curve is not None
    at_100 = float(found.curve.R_N[found.curve.C_N == 104.0][0])
    said = text(readout(scene(), HOURS, 103.0))  # within 2 % of 104
    assert said.startswith(f"103 GPU-h  measured {at_100:.3f}  fit 0.")
    assert "measured" not in text(readout(scene(), HOURS, 100.0))
    assert text(readout(scene(40.0), HOURS, 36.0)) == "36 GPU-h"
    assert text(readout(scene(), axis_of(scene(), "updates"), 51.5)).startswith(
        "103 GPU-h  update 51.5"
    )
    assert text(readout(empty_scene(), HOURS, 5.0)) == "5 GPU-h"


def test_ahead_is_further_than_the_last_point() -> None:
    """Without a plan to 1.6 times the last point."""
    events = whole_run(planned=112)
    store = RunStore()
    store.take(events)
    view = store.view()
    layers = fit_layers(Scene(view, analyse(view.evals(), [])), HOURS)
    ahead = next(layer for layer in layers if isinstance(layer, Line) and layer.dashed)
    assert np.asarray(ahead.x_N).max() == pytest.approx(AHEAD * 224.0)
    assert the(layers, Band).role == "band"
