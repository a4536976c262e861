"""Several curves as text: hand-placed marks, bars and lines, the legend, and widths at every size."""

from math import inf, log, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tui.show.overlay import Series, plot_overlay

# 12 lines: title, 8 rows, axis, labels, legend. The axes are those of test_curve: y 0.176..0.824 on
# dots 31..0, so 0.8 in row 0, 0.5 in row 4, 0.2 in row 7; 28 columns from column 5 on, x 0..10 on
# dots 2..53, so 0 in column 1, 5 in column 14, 10 in column 26.
SIZE: dict[str, Any] = {"width": 40, "height": 12, "unit": "GPU-h", "title": "pass rate"}
RISING = Series("rising", [(0, 0.2), (10, 0.8)], None)
MIDDLE = Series("middle", [(5, 0.5)], None)


def _found(lines: list[str], mark: str) -> set[tuple[int, int]]:
    """(row, column) of a character inside the axes."""
    end = next(i for i, line in enumerate(lines) if "└" in line)
    axis = lines[end].index("└")
    rows = lines[1:end]
    return {
        (i, j) for i, line in enumerate(rows) for j, c in enumerate(line[axis + 1 :]) if c == mark
    }


def _braille(lines: list[str]) -> set[tuple[int, int]]:
    marks = {c for line in lines for c in line if 0x2800 < ord(c) <= 0x28FF}
    return {place for mark in marks for place in _found(lines, mark)}


def test_each_series_has_its_mark_where_computed_by_hand():
    lines = plot_overlay([RISING, MIDDLE], **SIZE, log_x=False)
    assert _found(lines, "●") == {(7, 1), (0, 26)} and _found(lines, "▲") == {(4, 14)}
    assert lines[0] == "pass rate" and lines[-1] == "● rising   ▲ middle"
    assert lines[-2].split() == ["0", "2", "4", "6", "8", "10", "GPU-h"]
    assert [line[:5] for line in lines if "┤" in line] == ["0.8 ┤", "0.6 ┤", "0.4 ┤", "0.2 ┤"]
    other = plot_overlay([RISING, MIDDLE], **SIZE, log_x=False, marks="xy")
    assert _found(other, "x") == {(7, 1), (0, 26)} and other[-1] == "x rising   y middle"


def test_error_bars_stand_around_their_point():
    # 0.6 falls on dot 10.7 (row 2), 0.4 on dot 20.3 (row 5)
    barred = Series("middle", [(5, 0.5)], None, half=[0.1])
    lines = plot_overlay([RISING, barred], **SIZE, log_x=False)
    assert _found(lines, "│") == {(2, 14), (3, 14), (5, 14)} and (4, 14) in _found(lines, "▲")
    none = Series("middle", [(5, 0.5)], None, half=[0.0])
    assert not _found(plot_overlay([RISING, none], **SIZE, log_x=False), "│")
    # a bar without end runs out of the plot, and changes nothing else
    endless = Series("middle", [(5, 0.5)], None, half=[inf])
    lines = plot_overlay([RISING, endless], **SIZE, log_x=False)
    assert _found(lines, "│") == {(row, 14) for row in range(8)} - {(4, 14)}
    assert [line[:5] for line in lines if "┤" in line] == ["0.8 ┤", "0.6 ┤", "0.4 ┤", "0.2 ┤"]


def test_points_win_over_bars_and_bars_over_lines():
    level = Series("level", [(1, 0.5), (5, 0.8), (10, 0.5)], lambda C: 0.5)
    barred = Series("barred", [(5, 0.2)], None, half=[0.7])
    lines = plot_overlay([level, barred], **SIZE, log_x=False)
    # 1 falls on dot 2 + 5.1 = 7 (column 3) and 10 in column 26; the bar crosses the line in column 14
    assert _braille(lines) == {(4, column) for column in range(4, 26)} - {(4, 14)}
    assert _found(lines, "│") == {(row, 14) for row in range(1, 7)}
    assert _found(lines, "●") == {(4, 3), (0, 14), (4, 26)} and _found(lines, "▲") == {(7, 14)}
    # of two points in one cell the later series stands
    both = plot_overlay([MIDDLE, RISING, MIDDLE], **SIZE, log_x=False)
    assert _found(both, "■") == {(4, 14)} and not _found(both, "●")


def test_a_line_falls_as_well_as_it_rises_and_crosses_another():
    down = Series("down", [(1, 0.8), (100, 0.2)], lambda C: 0.8 - 0.3 * log(C, 10))
    flat = Series("flat", [(1, 0.5), (100, 0.5)], lambda C: 0.5)
    frame = Series("", [(1, 0.2), (1, 0.8)], None)  # the same y axis for both
    alone, other = (plot_overlay([each, frame], **SIZE) for each in (down, flat))
    both = plot_overlay([down, frame, flat], **SIZE)
    columns = [column for _, column in _braille(alone)]
    assert set(columns) == set(range(2, 26)) and {row for row, _ in _braille(alone)} == set(
        range(8)
    )
    for column in set(columns):  # from one column to the next without a hole
        here, after = ([i for i, j in _braille(alone) if j == column + step] for step in (0, 1))
        assert not after or min(after) in (max(here), max(here) + 1)
    hidden = {place for mark in "●▲■" for place in _found(both, mark)}
    assert _braille(both) == (_braille(alone) | _braille(other)) - hidden
    # where the two lines share a cell it holds the dots of both
    shared = (_braille(alone) & _braille(other)) - hidden
    dots = [[ord(x[1 + i][5 + j]) - 0x2800 for x in (alone, other, both)] for i, j in shared]
    assert all(a | b == c for a, b, c in dots)
    assert any(a & ~b and b & ~a for a, b, _ in dots)


def test_a_line_ends_with_its_own_points_and_where_it_has_no_value():
    short = Series("short", [(10, 0.3), (100, 0.4)], lambda C: 0.3 if C < 30 else nan)
    long = Series("long", [(1, 0.2), (1000, 0.8)], None)
    lines = plot_overlay([short, long], **SIZE)
    marked = sorted(column for _, column in _found(lines, "●"))
    columns = sorted(column for _, column in _braille(lines))
    assert columns == list(range(marked[0] + 1, columns[-1] + 1))
    # 30 lies ln 3 / ln 10 = 0.477 of the way from one point to the other
    assert columns[-1] == pytest.approx(marked[0] + 0.477 * (marked[1] - marked[0]), abs=1)


def test_no_compute_stands_left_of_a_break():
    lines = plot_overlay([Series("a", [(0, 0.4), (10, 0.5), (100, 0.6)], None)], **SIZE)
    assert sorted(column for _, column in _found(lines, "●"))[:2] == [0, 5]
    assert "┬─╱╱" in lines[-3] and lines[-2].split() == ["0", "10", "20", "50", "100", "GPU-h"]


def test_an_efficiency_plot_has_negative_values():
    points = [(C, 1.5 * log(C / 3e3)) for C in (1e3, 2e3, 4e3, 8e3, 16e3)]
    line = Series("run", points, lambda C: 1.5 * log(C / 3e3), half=[0.3] * 5)
    lines = plot_overlay([line], width=60, height=20, unit="GPU-h", title="ln((R-R0)/(A-R))")
    # -1.65..2.51 with 16 rows for 8 steps of 0.53 at least: steps of 1
    assert [line.split()[0] for line in lines if "┤" in line] == ["2.0", "1.0", "0.0", "-1.0"]
    assert lines[0] == "ln((R-R0)/(A-R))" and len(_found(lines, "●")) == 5
    rows = {column: row for row, column in _braille(lines)}
    for row, column in _found(lines, "●"):  # the line runs through its points
        assert min(abs(row - rows[c]) for c in (column - 1, column + 1) if c in rows) <= 1


def test_little_or_nothing_to_draw():
    assert plot_overlay([], **SIZE) == ["no points to plot"]
    assert plot_overlay([Series("a", [], lambda C: C)], **SIZE) == ["no points to plot"]
    for width, height in ((29, 20), (60, 7)):
        lines = plot_overlay([RISING], width=width, height=height, unit="s", title="t")
        assert lines == ["no room for a plot"]
    assert plot_overlay([RISING], width=7, height=9, unit="s", title="t") == ["no room"]
    one = plot_overlay([Series("one", [(500, 0.3)], lambda C: 0.3, half=[0.0])], **SIZE)
    ((row, column),) = _found(one, "●")
    assert row in (3, 4) and column in (13, 14) and not _braille(one)  # in the middle
    assert {"500"} <= set(one[-2].split())
    level = plot_overlay([Series("level", [(1, 0.4), (10, 0.4), (100, 0.4)], None)], **SIZE)
    assert len(_found(level, "●")) == 3 and len({row for row, _ in _found(level, "●")}) == 1
    empty_too = plot_overlay([MIDDLE, Series("empty", [], None)], **SIZE)
    assert empty_too[-1] == "● middle   ▲ empty"


def test_marks_repeat_and_the_legend_says_so():
    series = [Series(f"run-{i}", [(i + 1, 0.1 * i)], None) for i in range(9)]
    lines = plot_overlay(series, width=60, height=20, unit="GPU-h", title="pass rate")
    legend = "\n".join(lines[-4:])
    assert "(9 curves share 8 marks)" in legend
    assert legend.count("●") == 2 and "● run-0" in legend and "● run-8" in legend
    assert len(_found(lines, "●")) == 2 and len(_found(lines, "▲")) == 1
    eight = plot_overlay(series[:8], width=60, height=20, unit="GPU-h", title="pass rate")
    assert "share" not in "\n".join(eight)


def test_names_give_way_to_the_width_from_the_middle():
    names = [f"runs/a-long-folder-name/seed-{i}" for i in range(4)]
    series = [Series(name, [(i + 1, 0.1 * i)], None) for i, name in enumerate(names)]
    wide = plot_overlay(series, width=140, height=12, unit="s", title="t")
    assert wide[-1] == "   ".join(f"{m} {n}" for m, n in zip("●▲■◆", names, strict=True))
    narrow = plot_overlay(
        series, width=40, height=12, unit="s", title="t"
    )  # 3 lines for the legend
    assert len(narrow) == 12
    for i, mark in enumerate("●▲■◆"):
        assert any(f"{mark} runs" in line and f"seed-{i}" in line for line in narrow[-3:])
    assert all("…" in line for line in narrow[-2:])
    (single,) = plot_overlay(series[:1], width=30, height=9, unit="s", title="t")[-1:]
    assert len(single) == 30 and single.startswith("● runs/a-lo…") and single.endswith("/seed-0")


def test_names_that_never_fit_are_counted():
    series = [Series(f"a-recipe-{i:02}", [(i + 1, 0.1)], None) for i in range(30)]
    lines = plot_overlay(series, width=40, height=12, unit="s", title="t")
    assert len(lines) == 12
    legend = "   ".join(lines[-3:])
    shown = sum(legend.count(mark) for mark in "●▲■◆○△□◇")
    assert f"and {30 - shown} more" in legend and 5 <= shown <= 9
    assert plot_overlay(series, width=30, height=8, unit="s", title="t")[-1] == "30 curves"


def test_names_from_a_file_system_are_tamed():
    odd = Series("a\x1b[31m\n名前名前", [(1, 0.1)], None)
    lines = plot_overlay([odd], width=30, height=9, unit="s", title="t\n2")
    assert lines[-1] == "● a?[31m?名前名前" and lines[0] == "t?2"
    wide = Series("名" * 40, [(1, 0.1)], None)
    (legend,) = plot_overlay([wide], width=30, height=9, unit="s", title="t")[-1:]
    # 28 columns for the name: 4 signs before the …, 9 behind, two columns each
    assert legend == "● " + "名" * 4 + "…" + "名" * 9


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Series("a", [(-1, 0.4)], None), r"point .*drop"),
        (Series("a", [(1, nan)], None), r"point .*drop"),
        (Series("a", [(1, 0.4)], None, half=[]), "a: 0 error bars for 1 points"),
        (Series("a", [(1, 0.4)], None, half=[-0.1]), "a: half = -0.1"),
        (Series("a", [(1, 0.4)], None, half=[nan]), "a: half = nan"),
    ],
)
def test_impossible_series_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        plot_overlay([bad], **SIZE)
    with pytest.raises(ValueError, match="marks is empty"):
        plot_overlay([RISING], **SIZE, marks="")


points_lists = st.lists(
    st.tuples(st.one_of(st.just(0.0), st.floats(1e-6, 1e9)), st.floats(-1e9, 1e9)), max_size=6
)
all_series = st.lists(
    st.builds(
        lambda name, points, slope, barred: Series(
            name,
            points,
            None if slope is None else lambda C: slope * log(C),
            [abs(slope or 0.0)] * len(points) if barred else None,
        ),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=50),
        points_lists,
        st.none() | st.floats(-10, 10),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(all_series, st.booleans(), st.integers(1, 130), st.integers(1, 40), st.text(max_size=40))
def test_never_wider_or_higher_than_asked(series, log_x, width, height, title):
    size = {"width": width, "height": height, "unit": "GPU-h", "title": title}
    lines = plot_overlay(series, **size, log_x=log_x)
    assert max(map(len, lines)) <= width
    drawn = width >= 30 and height >= 8 and any(each.points for each in series)
    assert len(lines) == (height if drawn else 1)
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    assert lines == plot_overlay(series, **size, log_x=log_x)
