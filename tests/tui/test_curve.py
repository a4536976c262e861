"""The text plot: hand-placed markers, labels, and widths at every size."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.fit import SigmoidFit, fit_sigmoid, sigmoid
from tui.show.curve import plot_curve

ROOT = Path(__file__).parents[2]
LAW = {"R0": 0.4, "A": 0.61, "B": 1.95, "C_mid": 2_500.0}
POINTS = [(C, float(sigmoid(C, **LAW))) for C in (1e3, 1.5e3, 2e3, 3e3, 5e3, 8e3, 12e3, 16e3)]


def _fit(**changes) -> SigmoidFit:
    values = {**LAW, "rmse": 0.0, "n": 8, "R0_fixed": True, "grid": "relative", "at_edge": False}
    return SigmoidFit(**{**values, **changes})


def _braille(line: str) -> list[int]:
    return [i for i, c in enumerate(line) if 0x2800 <= ord(c) <= 0x28FF]


def test_markers_stand_where_computed_by_hand():
    # 11 lines: heading, 8 rows of points, axis, labels. R spans 0.2..0.8 and 4 % air each side:
    # 0.176..0.824 on dots 31..0, so 0.8 falls on dot 31 * 0.024 / 0.648 = 1.1 (row 0), 0.2 on dot
    # 29.9 (row 7) and 0.5 on dot 15.5, rounded to even: 16 (row 4).
    # y labels are "0.2": margin 4, the axis in column 4, 7 columns at the right for the unit, so
    # columns = 40 - 5 - 7 = 28. Linear x: 0..10 on dots 2..53, two dots a column: 0 falls in column
    # 1, 5 on dot 27.5, rounded to even 28, column 14, and 10 on dot 53, column 26.
    lines = plot_curve([(0, 0.2), (5, 0.5), (10, 0.8)], None, width=40, height=11, log_x=False)
    found = {(i, j) for i, line in enumerate(lines[1:]) for j, c in enumerate(line) if c == "●"}
    assert found == {(7, 5 + 1), (4, 5 + 14), (0, 5 + 26)}


def test_axes_by_hand():
    lines = plot_curve([(0, 0.2), (5, 0.5), (10, 0.8)], None, width=40, height=11, log_x=False)
    assert lines[0].startswith("pass rate") and lines[0].endswith("● evaluation")
    assert [line[:5] for line in lines if "┤" in line] == ["0.8 ┤", "0.6 ┤", "0.4 ┤", "0.2 ┤"]
    assert lines[1].startswith("0.8 ┤") and lines[8].startswith("0.2 ┤")
    assert lines[-1].split() == ["0", "2", "4", "6", "8", "10", "GPU-h"]
    for label in ("0", "2", "4", "6", "8"):  # every label stands under its tick
        assert lines[-2][lines[-1].index(label)] == "┬"
    ticks = [j for j, c in enumerate(lines[-2]) if c == "┬"]
    assert ticks[0] == lines[8].index("●") and ticks[-1] == lines[1].index("●")  # C = 0 and 10


def test_log_ticks_are_1_2_5():
    lines = plot_curve(POINTS, _fit(), width=80, height=20)
    assert lines[-1].split() == ["1k", "2k", "5k", "10k", "GPU-h"]
    ticks = [i for i, c in enumerate(lines[-2]) if c == "┬"]
    # 1k, 2k, 5k, 10k: distances in ln are 0.69, 0.92, 0.69 on ln 16 = 2.77 of the width
    one, two, three = (b - a for a, b in pairwise(ticks))
    width = lines[-2].count("─") + len(ticks) - 3
    assert one == pytest.approx(width / 4, abs=1.5) and three == pytest.approx(width / 4, abs=1.5)
    assert two == pytest.approx(width * 0.330, abs=1.5)
    assert "GPU-days" in plot_curve(POINTS, None, width=80, height=20, unit="GPU-days")[-1]


def test_less_than_a_decade_still_has_ticks():
    points = [(5_306.0, 0.45), (6_000.0, 0.46), (6_629.0, 0.47)]
    labels = plot_curve(points, None, width=80, height=12)[-1].split()
    assert labels == ["5.5k", "6k", "6.5k", "GPU-h"]


def test_many_decades_thin_out():
    points = [(10.0**d, 0.1 + 0.05 * (d + 3)) for d in range(-3, 9)]
    labels = plot_curve(points, None, width=60, height=12)[-1].split()
    assert labels == ["0.01", "1", "100", "10k", "1M", "100M", "GPU-h"]


def test_the_ceiling_is_dashed_and_labelled():
    lines = plot_curve(POINTS, _fit(), width=80, height=20)
    row = next(i for i, line in enumerate(lines) if line.endswith(" A 0.610"))
    assert lines[row].count("╌") > 30
    assert all("╌" not in line for i, line in enumerate(lines[1:], start=1) if i != row)
    points = [i for i, line in enumerate(lines) if "●" in line and i > 0]
    assert row <= min(points)  # no point of this run is above its ceiling
    edge = plot_curve(POINTS, _fit(at_edge=True), width=80, height=20)
    assert any(line.endswith("A 0.610?") for line in edge)
    assert "(? at a limit)" in edge[0] and "(?" not in lines[0]


def test_the_curve_runs_through_the_points_and_only_there():
    lines = plot_curve(POINTS, _fit(), width=80, height=20)
    axis = lines[-2].index("└")
    columns = sorted({j for line in lines[1:-2] for j in _braille(line)})
    markers = sorted({j for line in lines[1:-2] for j, c in enumerate(line) if c == "●"})
    inside = set(columns) | set(markers)
    assert inside == set(range(markers[0], markers[-1] + 1))  # no gap, nothing beyond
    assert markers[0] == axis + 2
    assert set("⠒⠉⠤⣀") & set("".join(lines[1:]))  # where it is flat, both dots of a cell
    heights = [min(i for i, line in enumerate(lines[1:-2]) if j in _braille(line)) for j in columns]
    assert heights == sorted(heights, reverse=True)  # never falls
    # Hide the points: the curve passes through their cells, and half of the gain is at C_mid.
    bare = plot_curve([(1e3, 0.4), (16e3, 0.61)], _fit(), width=80, height=20)
    at = [(i, j) for i, line in enumerate(lines[1:-2]) for j, c in enumerate(line) if c == "●"]
    for row, column in at[1:-1]:
        near = [i for i, line in enumerate(bare[1:-2]) if column in _braille(line)]
        assert any(abs(i - row) <= 1 for i in near)


def test_a_steep_curve_has_no_holes():
    steep = _fit(B=10.0, C_mid=4e3)
    lines = plot_curve([(1e3, 0.4), (16e3, 0.61)], steep, width=80, height=30)
    rows = [i for i, line in enumerate(lines[1:-2]) if _braille(line)]
    assert rows == list(range(rows[0], rows[-1] + 1)) and len(rows) > 20


def test_points_before_any_compute_stand_at_the_left_edge():
    lines = plot_curve([(0.0, 0.4), *POINTS], _fit(), width=80, height=20)
    (row,) = [line for line in lines[1:] if "○" in line]
    axis = lines[-2].index("└")
    assert row.index("○") == axis + 1
    assert "╱╱" in lines[-2] and lines[-1].split()[0] == "0" and "○ before RL" in lines[0]
    markers = [line.index("●") for line in lines[1:] if "●" in line]
    assert min(markers) == axis + 1 + 5  # the break keeps the two apart
    linear = plot_curve([(0.0, 0.4), *POINTS], _fit(), width=80, height=20, log_x=False)
    assert "○" not in "".join(linear) and "╱" not in "".join(linear)


def test_without_fit_or_points():
    lines = plot_curve(POINTS, None, width=80, height=20)
    text = "\n".join(lines)
    assert text.count("●") == 1 + len({(p[0]) for p in POINTS})
    assert "╌" not in text and not any(map(_braille, lines)) and " A " not in text
    assert "no evaluation yet" in "\n".join(plot_curve([], None, width=80, height=10))
    alone = "\n".join(plot_curve([], _fit(), width=80, height=12))
    assert "A 0.610" in alone and any(map(_braille, alone))
    single = plot_curve([(5.0, 0.3)], None, width=40, height=9)
    assert sum(line.count("●") for line in single[1:]) == 1


@pytest.mark.parametrize("bad", [(-1.0, 0.4), (float("nan"), 0.4), (1.0, float("inf"))])
def test_impossible_points_are_named(bad):
    with pytest.raises(ValueError, match=r"point .*drop"):
        plot_curve([bad], None, width=80, height=20)


def test_the_band_shades_what_nothing_else_fills():
    # The plot of `test_markers_stand_where_computed_by_hand`. 0.6 falls on dot
    # 31 * (0.824 - 0.6) / 0.648 = 10.7, so 11 (row 2), and 0.4 on dot 20.3 (row 5).
    points = [(0, 0.2), (5, 0.5), (10, 0.8)]
    plain = plot_curve(points, None, width=40, height=11, log_x=False)
    lines = plot_curve(points, None, width=40, height=11, log_x=False, band=lambda C: (0.4, 0.6))
    shaded = {(i, j) for i, line in enumerate(lines[1:]) for j, c in enumerate(line) if c == "░"}
    # columns 1..26 hold the dots 2..53 of the axis; the point at C = 5 stands in row 4, column 14
    area = {(i, 5 + j) for i in range(2, 6) for j in range(1, 27)}
    assert shaded == area - {(4, 5 + 14)}
    assert [line.replace("░", " ").rstrip() for line in lines[1:]] == plain[1:]
    assert lines[0].endswith("● evaluation   ░░ 90 %")


def test_a_band_without_values_shades_nothing():
    nan = float("nan")
    nowhere = [lambda C: (nan, nan), lambda C: (0.6, 0.4), lambda C: (7.0, 8.0)]
    for band in nowhere[:2]:
        assert "░" not in "".join(plot_curve(POINTS, _fit(), width=80, height=20, band=band)[1:])
    # far above everything: the plot reaches towards it, and no further than as high again
    far = plot_curve(POINTS, _fit(), width=80, height=20, band=nowhere[2])
    assert "░" not in "".join(far[1:])


def test_a_wide_band_leaves_the_rest_a_third():
    lines = plot_curve(POINTS, _fit(), width=80, height=33, band=lambda C: (0.0, 1.0))
    rows = [i for i, line in enumerate(lines[1:31]) if "●" in line]
    assert 9 <= rows[-1] - rows[0] <= 10  # of 30 rows, less the air above and below
    assert "░" in lines[1] and "░" in lines[30]
    # open ends count for nothing in the range, and shade up to the frame
    open_ended = (-float("inf"), float("inf"))
    lines = plot_curve(POINTS, _fit(), width=80, height=20, band=lambda C: open_ended)
    bare = plot_curve(POINTS, _fit(), width=80, height=20)
    assert [line.replace("░", " ").rstrip() for line in lines[1:]] == bare[1:]
    assert lines[2].count("░") > 40 and lines[17].count("░") > 50


def test_until_draws_the_curve_on():
    lines = plot_curve(
        POINTS, _fit(), width=80, height=20, until=160e3, band=lambda C: (0.30, 0.35)
    )
    assert lines[-1].split() == ["1k", "2k", "5k", "10k", "20k", "50k", "100k", "GPU-h"]
    markers = [j for line in lines[1:-2] for j, c in enumerate(line) if c == "●"]
    drawn = [j for line in lines[1:-2] for j in _braille(line)]
    first, last = min(markers), max(drawn)
    # the points end at ln 16 / ln 160 = 0.546 of the way, and the curve and its band at the end
    assert (max(markers) - first) / (last - first) == pytest.approx(0.546, abs=0.02)
    assert last == lines[-2].rindex("─") - 1
    assert max(j for line in lines[1:] for j, c in enumerate(line) if c == "░") == last
    plain = plot_curve(POINTS, _fit(), width=80, height=20)
    for until in (500.0, 5e3, 16e3):  # not beyond the points
        assert plot_curve(POINTS, _fit(), width=80, height=20, until=until) == plain


@pytest.mark.parametrize("until", [0.0, -1.0, float("inf"), float("nan")])
def test_until_is_a_compute(until):
    with pytest.raises(ValueError, match="until = "):
        plot_curve(POINTS, _fit(), width=80, height=20, until=until)


points_lists = st.lists(
    st.tuples(st.one_of(st.just(0.0), st.floats(1e-6, 1e9)), st.floats(0.0, 1.0)), max_size=20
)


@settings(max_examples=60, deadline=None)
@given(points_lists, st.booleans(), st.booleans(), st.integers(1, 130), st.integers(1, 40))
def test_never_wider_than_asked(points, fitted, log_x, width, height):
    fit = _fit(at_edge=True) if fitted else None
    lines = plot_curve(points, fit, width=width, height=height, log_x=log_x)
    assert max(map(len, lines)) <= width
    assert len(lines) == (height if width >= 30 and height >= 8 else 1)
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    assert lines == plot_curve(points, fit, width=width, height=height, log_x=log_x)


@pytest.mark.parametrize("width", range(30, 90))
def test_the_legend_gives_way(width):
    heading = plot_curve([(0.0, 0.4), *POINTS], _fit(at_edge=True), width=width, height=10)[0]
    assert heading.startswith("pass rate   ") and "● evaluation" in heading
    assert len(heading) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_a_real_fit_fills_the_width(width):
    fit = fit_sigmoid(*zip(*POINTS, strict=True), R0=0.4)
    lines = plot_curve(POINTS, fit, width=width, height=24)
    assert max(map(len, lines)) == width and len(lines) == 24
    assert lines[0].endswith("╌╌ ceiling A") and len(lines[0]) == width
    assert lines[-1].endswith("GPU-h") and len(lines[-1]) == width


def test_importing_the_plot_loads_neither_torch_nor_textual():
    names = ("torch", "textual", "rich")
    code = f"import sys, tui.show.curve; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
