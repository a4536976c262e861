"""The plot as rows of roles: places worked by hand, clipping, views that zoom and pan."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.show.raster import (
    Band,
    Layer,
    Level,
    Line,
    Mark,
    Picture,
    Points,
    View,
    Zone,
    natural_view,
    raster,
)
from tui.show.rows import row_width, text

# 40 x 11: heading, 8 rows, axis and labels. y labels are "0.2": margin 4, the axis in column 4; the
# unit keeps 7 columns free at the right, so 40 - 5 - 7 = 28 columns, x on dots 2..53, y on 31..0.
FLAT = View((0.0, 10.0), (0.176, 0.824), log_x=False)
LEFT = 5


def drawn(*layers: Layer, view: View = FLAT, width: int = 40, height: int = 11) -> Picture:
    return raster(layers, view, width, height)


def where(picture: Picture, glyph: str) -> set[tuple[int, int]]:
    """(row, column) inside the axes."""
    return {
        (i - 1, j - LEFT)
        for i, row in enumerate(picture.rows)
        for j, c in enumerate(text(row))
        if c == glyph
    }


def roles(picture: Picture, row: int) -> list[str]:
    """Role of every cell of a row."""
    return [role for part, role in picture.rows[row] for _ in part]


def braille(picture: Picture) -> set[tuple[int, int]]:
    glyphs = {c for row in picture.rows for c in text(row) if 0x2800 < ord(c) <= 0x28FF}
    return set().union(*(where(picture, glyph) for glyph in glyphs))


def test_points_stand_where_computed_by_hand():
    # x: 0 on dot 2, 5.2 on dot 2 + 51 * 0.52 = 28.5 (28 or 29), 10 on dot 53: columns 1, 14, 26.
    # y: 0.2 on dot 31 - 31 * 0.024 / 0.648 = 29.9, 0.49 on 16.0, 0.8 on 1.1: rows 7, 4, 0.
    picture = drawn(Points([0, 5.2, 10], [0.2, 0.49, 0.8]))
    assert where(picture, "●") == {(7, 1), (4, 14), (0, 26)}
    assert roles(picture, 1)[LEFT + 26] == "data"
    assert text(picture.rows[0]).startswith("pass rate")
    assert text(picture.rows[-1]).split() == ["0", "2", "4", "6", "8", "10", "GPU-h"]


def test_what_lies_outside_is_not_drawn_and_not_at_the_edge():
    x = [-5, 5, 5, 20, np.nan, 5, 5]
    y = [0.5, 0.1, 0.9, 0.5, 0.5, np.nan, np.inf]
    assert where(drawn(Points(x, y)), "●") == set()
    assert braille(drawn(Line([0, 10], [2.0, 2.0]), Line([11, 20], [0.5, 0.5]))) == set()
    picture = drawn(Level(2.0, label="A"), Mark(11, label="now"), Zone(20, 30, label="zone"))
    # nothing, but that there is no curve yet
    assert {text(row)[LEFT:].strip() for row in picture.rows[1:9]} == {"", "no evaluation yet"}


def test_later_layers_win_and_points_stand_over_lines_over_rules_over_shades():
    layers = [
        Points([5.2], [0.49], "●", "data"),
        Points([5.2], [0.49], "◆", "pinned"),
        Line([0, 10], [0.49, 0.49], "paper"),
        Mark(5.2),
        Level(0.49),
        Band([0, 10], [0.3, 0.3], [0.7, 0.7]),
    ]
    picture = drawn(*layers)
    row = text(picture.rows[5])[LEFT : LEFT + 28]
    # the line on dot 16, the first of its row, from dot 2 to dot 53; the rule runs on
    assert row == "╌" + "⠉" * 13 + "◆" + "⠉" * 12 + "╌"
    seen = roles(picture, 5)[LEFT : LEFT + 28]
    assert seen == ["fit"] + ["paper"] * 13 + ["pinned"] + ["paper"] * 12 + ["fit"]
    # 0.3 on dot 25.07 and 0.7 on dot 5.93: half of row 6 and half of row 1, and all between
    assert {i for i, _ in where(picture, "░")} == {1, 2, 3, 5, 6}
    assert where(picture, "┊") == {(i, 14) for i in range(8) if i != 4}


def test_bands_that_overlap_are_darker():
    one = Band([0, 5.2], [0.3, 0.3], [0.7, 0.7])
    two = Band([5.2, 10], [0.3, 0.3], [0.7, 0.7], "paper")
    picture = drawn(one, two)
    # 5.2 is on dot 28.52, the middle of column 14 on 28.5: both bands have a part of it
    assert {j for _, j in where(picture, "▒")} == {14}
    assert roles(picture, 3)[LEFT + 13 : LEFT + 16] == ["band", "paper", "paper"]


def test_a_band_fills_the_cells_it_covers_by_half():
    # 0.68 on dot 6.89 (7: a quarter of row 1) and 0.32 on dot 24.11 (24: a quarter of row 6)
    assert {i for i, _ in where(drawn(Band([0, 10], [0.32] * 2, [0.68] * 2)), "░")} == {2, 3, 4, 5}
    assert where(drawn(Band([0, 10], [0.49] * 2, [0.49] * 2)), "░") == set()  # narrower than half
    narrow = drawn(Band([0, 10], [0.49] * 2, [0.49] * 2, unbroken=True))
    assert {i for i, _ in where(narrow, "░")} == {4}
    assert where(drawn(Band([0, 10], [0.1] * 2, [0.12] * 2)), "░") == set()  # below the view


def test_a_band_has_gaps_where_it_is_not_known_and_may_be_endless():
    x = np.linspace(0, 10, 101)
    lo = np.where((x > 4) & (x < 6), np.nan, 0.3)
    columns = {j for _, j in where(drawn(Band(x, lo, np.full(101, np.inf))), "░")}
    assert 3 in columns and 25 in columns and 14 not in columns
    assert (0, 3) in where(drawn(Band(x, lo, np.full(101, np.inf))), "░")


def test_a_line_has_no_holes_and_breaks_at_nan():
    steep = braille(drawn(Line([0, 4.9, 5.1, 10], [0.2, 0.2, 0.8, 0.8])))
    assert {i for i, _ in steep} == set(range(8))  # the rise goes through every row
    assert {j for _, j in steep} == set(range(1, 27))  # and the line through every column
    broken = braille(drawn(Line(np.arange(11.0), [0.5] * 5 + [np.nan] + [0.5] * 5)))
    # from 4 on dot 22.4 to 6 on dot 32.6: the columns 12 to 15 are free, of 11 and 16 one half
    assert {j for _, j in broken} == {*range(1, 12), *range(16, 27)}


def test_a_dashed_line_leaves_every_other_cell_free():
    picture = drawn(Level(0.49), Line([0, 10], [0.49, 0.49], "ahead", dashed=True))
    assert text(picture.rows[5])[LEFT : LEFT + 8] == "╌ ⠉ ⠉ ⠉ "
    assert roles(picture, 5)[LEFT + 1 : LEFT + 4] == ["", "ahead", ""]


def test_a_spike_between_two_columns_is_not_lost():
    x = np.linspace(0, 10, 2_001)  # 38 samples to a column
    y = np.full(2_001, 0.2)
    y[1_007] = 0.8
    assert {i for i, _ in braille(drawn(Line(x, y)))} == set(range(8))


def test_lines_in_one_cell_share_it():
    # 0.49 on dot 15.98 and 0.47 on dot 16.9: the two upper dots of row 4
    picture = drawn(Line([0, 10], [0.49, 0.49]), Line([0, 10], [0.47, 0.47], "paper"))
    assert text(picture.rows[5])[LEFT + 1 : LEFT + 27] == "⠛" * 26
    assert set(roles(picture, 5)[LEFT + 1 : LEFT + 27]) == {"paper"}


def test_a_log_axis_has_labels_ticks_between_and_a_break_before_zero():
    layers = [Points([0, 10, 100], [0.2, 0.3, 0.8])]
    view = natural_view(layers)
    picture = raster(layers, view, 76, 18)
    lines = [text(row) for row in picture.rows]
    assert "○" in "".join(lines) and "╱╱" in lines[-2]
    assert lines[-1].split() == ["0", "10", "20", "50", "100", "GPU-h"]
    # 30, 40, 60 to 90 between the labels
    assert lines[-2].count("┬") == 5 and lines[-2].count("┴") == 6
    for label in ("10", "20", "50"):
        at = lines[-1].index(f" {label} ") + 1
        assert "┬" in lines[-2][at : at + 2]
    # zoomed in to the right, 0 is out of view with the lowest point
    closer = raster(layers, view.zoomed(4, x=100), 76, 18)
    assert "○" not in "".join(text(row) for row in closer.rows)


def test_labels_stand_at_the_top_and_at_the_right_and_hide_no_data():
    layers = [Zone(0, 4, label="warm-up"), Mark(10, label="now"), Level(0.49, label="A .5")]
    picture = drawn(*layers)
    assert text(picture.rows[5])[LEFT + 28 :] == " A .5  "
    top = text(picture.rows[1])
    assert "warm-up" in top and "now┊" in top  # right of the rule is no room
    # columns 1 to 11 are the zone, and a row of points pushes its label down
    crowd = Points(np.linspace(0, 10, 60), np.full(60, 0.8))
    top, below = (text(row) for row in drawn(*layers, crowd).rows[1:3])
    assert "warm-up" not in top and "warm-up" in below and top.count("●") == 26


def test_two_levels_in_one_row_have_their_labels_in_two():
    picture = drawn(Level(0.48, label="A .50"), Level(0.479, label="B .50"))
    ends = [text(row).rstrip()[-5:] for row in picture.rows[1:9]]
    assert ends.count("A .50") == 1 and ends.count("B .50") == 1


def test_the_crosshair_lights_up_the_data_it_meets():
    picture = drawn(Points([5.2], [0.49]), Mark(5.2, "cursor"))
    seen = [roles(picture, i)[LEFT + 14] for i in range(1, 9)]
    assert seen == ["strong"] * 4 + ["cursor"] + ["strong"] * 3


def test_columns_and_values_are_inverse():
    layers = [Points([0, 8, 221], [0.2, 0.3, 0.9])]
    for view in (natural_view(layers), natural_view(layers, log_x=False)):
        picture = raster(layers, view, 60, 16)
        inside = [column for column in range(60) if picture.x_at(column) is not None]
        assert len(inside) > 35
        for column in inside[8:-2]:  # without the break and the padding
            x = picture.x_at(column)
            assert x is not None and picture.column(x) == column
        for row in range(1, 14):
            y = picture.y_at(row)
            assert y is not None and picture.row(y) == row
        assert picture.x_at(0) is picture.x_at(59) is picture.y_at(0) is picture.y_at(14) is None
        assert picture.column(1e6) is picture.row(7.0) is None
    broken = raster(layers, natural_view(layers), 60, 16)
    assert broken.x_at(5) == 0.0 == broken.x_at(broken.column(0.0) or 0)
    assert broken.x_at(7) is None  # in the break


def test_neighbours_of_one_role_are_one_span():
    for row in drawn(Points([0, 5], [0.2, 0.5]), Line([0, 10], [0.3, 0.7])).rows:
        assert all(a[1] != b[1] for a, b in pairwise(row))


def test_without_room_one_row_says_so():
    for width, height in ((23, 10), (40, 5)):
        picture = drawn(Points([5], [0.5]), width=width, height=height)
        assert len(picture.rows) == height
        assert text(picture.rows[0]) == "no room for a plot" and not any(picture.rows[1:])
        assert picture.x_at(8) is picture.y_at(2) is picture.column(5) is picture.row(0.5) is None


@given(
    st.integers(0, 90),
    st.integers(0, 30),
    st.booleans(),
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1e9, 1e9)), max_size=6),
)
def test_rows_fill_the_size_whatever_is_drawn(width, height, log_x, points):
    points.sort()
    x, y = [p[0] for p in points], [p[1] for p in points]
    layers: list[Layer] = [
        Points(x, y),
        Line(x, y),
        Band(x, y, [v + 1 for v in y]),
        Level(0.5, label="A .500"),
        Zone(0, math.inf, label="all"),
    ]
    picture = raster(layers, natural_view(layers, log_x), width, height)
    assert len(picture.rows) == height
    if picture.frame is not None:
        assert {row_width(row) for row in picture.rows} == {width}


def test_nothing_to_draw_says_what_is_missing():
    picture = raster([], natural_view([]), 60, 12)
    assert sum("no evaluation yet" in text(row) for row in picture.rows) == 1


def test_natural_view_by_hand():
    # y: 0.2..0.8 with 4 % of 0.6 each side; x: all that is finite and > 0
    layers: list[Layer] = [Points([0, 10, np.nan], [0.2, 0.6, 0.5]), Line([5, 40], [0.3, 0.7])]
    view = natural_view([*layers, Level(0.8)])
    assert view.x == (5.0, 40.0) and view.y == pytest.approx((0.176, 0.824))
    assert natural_view(layers, log_x=False).x == (0.0, 40.0)
    assert natural_view([*layers, Mark(100.0)]).x == (5.0, 100.0)
    # a label at the top asks for 7 % more: 0.824 + 0.07 * 0.648
    labelled = natural_view([*layers, Level(0.8), Mark(10.0, label="now")])
    assert labelled.y == pytest.approx((0.176, 0.86936))
    # a flat line: 0.05 about its middle, or as little as asked
    flat = Points([1, 2], [0.3, 0.3])
    assert natural_view([flat]).y == pytest.approx((0.275, 0.325))
    assert natural_view([flat], least=0.0).y == pytest.approx((0.295, 0.305))


def test_a_wide_band_leaves_the_rest_a_third_of_the_height():
    points = Points([1, 10], [0.4, 0.6])  # with air 0.392..0.608: 0.216 high
    view = natural_view([points, Band([1, 10], [-5, -5], [9, 9])])
    assert view.y == pytest.approx((0.392 - 0.216, 0.608 + 0.216))
    assert natural_view([points, Band([1, 10], [0.35, 0.35], [0.6, 0.6])]).y[0] < 0.35


def test_zoom_keeps_its_point_and_pan_its_size():
    view = View((1.0, 100.0), (0.0, 1.0))
    # 2 decades become 1, and 10 keeps the middle: 10 / 10 ** 0.5 .. 10 * 10 ** 0.5
    assert view.zoomed(2).x == pytest.approx((10**0.5, 10**1.5))
    assert view.zoomed(2).y == pytest.approx((0.25, 0.75))
    assert view.zoomed(2, x=1.0, y=1.0).x == pytest.approx((1.0, 10.0))
    assert view.zoomed(2, x=1.0, y=1.0).y == pytest.approx((0.5, 1.0))
    assert view.zoomed(2, axis="x").y == view.y and view.zoomed(2, axis="y").x == view.x
    assert view.panned(0.5, -0.1).x == pytest.approx((10.0, 1000.0))
    assert view.panned(0.5, -0.1).y == pytest.approx((-0.1, 0.9))
    line = View((0.0, 100.0), (0.0, 1.0), log_x=False)
    assert line.zoomed(2, x=20.0).x == pytest.approx((10.0, 60.0))
    assert line.panned(-0.3, 0).x == (0.0, 100.0)  # no compute below 0
    assert view.centred(100.0).x == pytest.approx((10.0, 1000.0))


@given(
    st.booleans(),
    st.lists(
        st.tuples(st.floats(1e-3, 1e3), st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 1e6)),
        max_size=20,
    ),
)
def test_a_view_stays_sane_whatever_is_done_to_it(log_x, steps):
    home = View((8.0, 221.0), (0.2, 0.9), log_x)
    view = home
    for factor, dx, dy, x in steps:
        view = view.zoomed(factor, x=x).panned(dx, dy).near(home)
        assert 0.0 <= view.x[0] < view.x[1] <= 1.001e15
        assert not log_x or view.x[0] >= 0.999e-12
        assert -0.1501 <= view.y[0] < view.y[1] <= 1.2501  # half a height beyond 0.2..0.9
        assert view.x[0] < home.x[1] and view.x[1] > home.x[0]  # something is in view
        raster([], view, 40, 10)


def test_a_view_changes_its_axis():
    home = View((8.0, 221.0), (0.2, 0.9))
    line = View((0.0, 50.0), (0.3, 0.5), log_x=False)
    assert line.on(True, home) == View((8.0, 50.0), (0.3, 0.5))
    assert View((0.0, 5.0), (0.3, 0.5), log_x=False).on(True, home).x == (0.5, 5.0)
    assert home.on(False, home) == View((8.0, 221.0), (0.2, 0.9), log_x=False)


@pytest.mark.parametrize(
    ("x", "y"), [((2, 1), (0, 1)), ((1, 2), (1, 1)), ((0, 1), (0, 1)), ((1, math.inf), (0, 1))]
)
def test_an_impossible_view_is_refused(x, y):
    with pytest.raises(ValueError, match=r"ends|x > 0"):
        View(x, y)
