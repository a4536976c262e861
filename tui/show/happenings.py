"""What just happened, as rows: the chosen one with its evidence and what to try."""

from collections.abc import Sequence

from tui.show.rows import LEVEL_GLYPHS, LEVEL_ROLES, Row, cut, wrapped
from tui.watch.happenings import Happening
from tui.words import printable

INDENT = 9


def happening_rows(found: Sequence[Happening], chosen: int, width: int, height: int) -> list[Row]:
    """The list, a row each; the chosen one with its evidence and what to try."""
    if not found:
        return [[("nothing yet", "muted")]]
    rows: list[Row] = []
    for i, each in enumerate(found[max(chosen - 1, 0) :], start=max(chosen - 1, 0)):
        rows += _rows_of(each, i == chosen and len(found) > 1, i == chosen, width)
        if len(rows) >= height:
            break
    return rows[:height]


def _rows_of(each: Happening, marked: bool, whole: bool, width: int) -> list[Row]:
    glyph, role = LEVEL_GLYPHS.get(each.level, "●"), LEVEL_ROLES.get(each.level, "")
    lead: Row = [(f"{'▸' if marked else ' '}{each.update:>5} ", "muted"), (f"{glyph} ", role)]
    said = printable(each.what)
    if not whole:
        return [cut([*lead, (said, "")], width)]
    first, *rest = wrapped(said, width - INDENT)
    rows: list[Row] = [[*lead, *first], *([(" " * INDENT, ""), *row] for row in rest)]
    for words, role in (
        (each.evidence, "muted"),
        (f"try: {each.advice}" if each.advice else "", ""),
    ):
        if words:
            rows += [
                [(" " * INDENT, ""), *row]
                for row in wrapped(printable(words), width - INDENT, role)
            ]
    return [cut(row, width) for row in rows]
