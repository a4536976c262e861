"""Rows of spans and the colours of their roles: never wider than asked, nothing lost unseen, legible on every theme."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from textual.theme import Theme

from tui.show.rows import (
    ROLES,
    Row,
    cut,
    ends,
    joined,
    led,
    row_width,
    text,
    texts,
    within,
    wrapped,
)
from tui.show.themes import ANSI, THEMES, role_styles, themes

WORDS = st.text(alphabet="ab 漢字é\u200b-", max_size=30)
ROWS = st.lists(st.tuples(WORDS, st.sampled_from(["", "data", "muted"])), max_size=5)


def test_what_is_cut_shows_that_it_was() -> None:
    row: Row = [("abc", "data"), ("def", "fit")]
    assert cut(row, 6) == row
    assert cut(row, 5) == [("abc", "data"), ("d", "fit"), ("…", "muted")]
    assert cut(row, 4) == [("abc", "data"), ("", "fit"), ("…", "muted")]
    assert cut(row, 1) == [("", "data"), ("…", "muted")]
    assert cut(row, 0) == []


def test_a_wide_character_is_not_halved() -> None:
    assert text(cut([("漢字漢", "")], 4)) == "漢 …"  # 2 + 1 + 1 cells
    assert row_width(cut([("漢字漢", "")], 4)) == 4


def test_two_ends_of_a_row() -> None:
    assert text(ends([("left", "")], [("right", "")], 12)) == "left   right"
    assert text(ends([("a long left", "")], [("right", "")], 12)) == "a lon… right"
    assert text(ends([("left", "")], [("right", "")], 5)) == "right"
    assert text(ends([("left", "")], [("right", "")], 4)) == "rig…"


def test_parts_that_are_empty_leave_no_gap() -> None:
    assert text(joined([[], [("a", "")], [], [("b", "")], []])) == "a  b"
    assert texts([[("a ", ""), (" ", "")], [("b", "")]]) == "a\nb"


def test_a_paragraph() -> None:
    rows = wrapped("one two  three\nfour", 8, "muted")
    assert [text(row) for row in rows] == ["one two", "three", "four"]
    assert rows[0] == [("one two", "muted")]
    assert wrapped("", 8) == [[("", "")]]


def test_a_word_longer_than_a_row_is_cut_and_nothing_is_lost() -> None:
    assert [text(row) for row in wrapped("an abcdefghij end", 4)] == [
        "an",
        "abcd",
        "efgh",
        "ij",
        "end",
    ]


def test_an_indent_takes_part_in_the_width() -> None:
    rows = [text(row) for row in wrapped("prompt  12 345678 9", 8, indent="  ")]
    assert rows == ["prompt", "  12", "  345678", "  9"]
    assert [text(row) for row in wrapped("ab abc", 3, indent="  ")] == [
        "ab",
        "abc",
    ]  # no room for it


def test_a_paragraph_after_a_lead() -> None:
    lead: Row = [("why: ", "watch")]
    assert [text(row) for row in led(lead, "one two three", 9)] == ["why: one", "two three"]
    assert [text(row) for row in led(lead, "longer words", 9)] == ["why: ", "longer", "words"]
    assert [text(row) for row in led(lead, "abcdefghijk", 9)] == ["why: ", "abcdefghi", "jk"]
    assert [text(row) for row in led(lead, "one", 4)] == ["why…", "one"]
    assert led([], "one two", 9) == wrapped("one two", 9)


def test_nothing_in_a_paragraph_moves_the_cursor() -> None:
    assert text(wrapped("red \x1b[31m and \x07 bell", 40)[0]) == "red ?[31m and ? bell"


@given(
    words=st.lists(st.text(alphabet="ab漢é", min_size=1, max_size=12), max_size=8),
    width=st.integers(2, 20),
)
def test_paragraphs_keep_every_character_inside_the_width(words: list[str], width: int) -> None:
    rows = wrapped(" ".join(words), width, indent="  ")
    assert all(row_width(row) <= width for row in rows)
    assert "".join(text(row).replace(" ", "") for row in rows) == "".join(words)


@given(row=ROWS, right=ROWS, width=st.integers(0, 40))
def test_no_row_is_wider_than_asked(row: Row, right: Row, width: int) -> None:
    assert row_width(cut(row, width)) <= width
    made = ends(row, right, width)
    assert row_width(made) <= width
    if right and 0 < row_width(right) < width:
        assert row_width(made) == width and text(made).endswith(text(right))
    assert all(row_width(each) <= width for each in within([row, right], width, 1))
    assert len(within([row, right], width, 1)) == 1 and within([row], width, -3) == []


# ---- colours ----


def luminance(colour: ColorTriplet) -> float:
    """WCAG 2: relative luminance of sRGB."""
    parts = [channel / 255 for channel in colour]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: ColorTriplet, other: ColorTriplet) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_the_ratio_is_that_of_the_standard() -> None:
    black, white = ColorTriplet(0, 0, 0), ColorTriplet(255, 255, 255)
    assert contrast(black, white) == pytest.approx(21.0)
    assert contrast(ColorTriplet(0x77, 0x77, 0x77), white) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("name", THEMES)
@pytest.mark.parametrize("dark", [True, False])
def test_every_role_has_a_style_in_every_theme(name: str, dark: bool) -> None:
    styles = role_styles(name, dark)
    assert styles.keys() == {*ROLES, ""}


@pytest.mark.parametrize("theme", themes(), ids=lambda theme: theme.name)
def test_every_colour_stands_out_from_its_background(theme: Theme) -> None:
    """4.5 for what is read, 3 for lines and areas (WCAG 2.2, AA); on panels and surfaces too."""
    grounds = [theme.background, theme.surface, theme.panel]
    for role, style in role_styles(theme.name, theme.dark).items():
        if style.color is None:
            continue
        colour = style.color.triplet
        assert colour is not None
        for ground in grounds:
            ratio = contrast(colour, Color.parse(ground).triplet or colour)
            least = 3.0 if role == "band" else 4.5
            assert ratio >= least, f"{role} on {ground}: {ratio:.2f}"


def test_a_theme_of_another_name_takes_the_colours_of_its_darkness() -> None:
    assert role_styles("nord", True) == role_styles("scalerl-dark", True)
    assert role_styles("solarized-light", False) == role_styles("scalerl-light", False)
    assert role_styles("ansi-light", False) == role_styles(ANSI, True)


def test_the_theme_of_plain_terminals_uses_their_own_colours_only() -> None:
    for style in role_styles(ANSI, True).values():
        assert style.color is None or style.color.type is ColorType.STANDARD


def test_cells_are_what_a_terminal_counts() -> None:
    assert [cell_len(each) for each in ("●", "▲", "■", "◼", "✔", "⏵", "‖", "◷")] == [1] * 8
