"""Text with meaning: what a panel shows, as rows of spans that name a role instead of a colour.

Whatever is drawn is made by plain functions that return rows, so that a test reads text and roles
without a terminal; `tui/widgets/panel.py` turns roles into the colours of the theme.
"""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from tui.words import printable

Span = tuple[str, str]  # text, role; the role "" is plain text
Row = list[Span]

# Every role, and what it marks. Each also has a glyph or a word of its own where it is used: no
# message is carried by colour alone.
ROLES = {
    "data": "measured points; generating",
    "fit": "the fitted curve; training",
    "ahead": "the fit beyond the points",
    "band": "the 90 % band of the fit",
    "pinned": "a pinned run; weight pushes",
    "paper": "a curve of the paper",
    "ok": "healthy",
    "watch": "worth a look",
    "danger": "broken, or about to be",
    "muted": "axes, units, what stands behind",
    "strong": "a number or a name to be read first",
    "key": "a key one can press",
    "cursor": "the row, or the place, one is at",
}

LEVEL_GLYPHS = {"ok": "●", "watch": "▲", "danger": "■", "collapse": "■"}
LEVEL_ROLES = {"ok": "ok", "watch": "watch", "danger": "danger", "collapse": "danger"}


def text(row: Row) -> str:
    """The row without its roles."""
    return "".join(part for part, _ in row)


def texts(rows: Iterable[Row]) -> str:
    """Rows as lines, without trailing spaces."""
    return "\n".join(text(row).rstrip() for row in rows)


def row_width(row: Row) -> int:
    """Cells that a row takes."""
    return sum(cell_len(part) for part, _ in row)


def cut(row: Row, width: int) -> Row:
    """At most `width` cells; what is lost is shown by an ellipsis."""
    if row_width(row) <= width:
        return row
    found: Row = []
    left = width - 1
    for part, role in row:
        size = cell_len(part)
        if size > left:
            found.append((set_cell_size(part, max(left, 0)), role))
            break
        found.append((part, role))
        left -= size
    return [*found, ("…", "muted")] if width > 0 else []


def ends(left: Row, right: Row, width: int) -> Row:
    """Two parts of one row, the second at its right end; the first gives way."""
    room = width - row_width(right)
    if room <= 0:
        return cut(right, width)
    left = cut(left, max(room - 1, 0))
    return [*left, (" " * (room - row_width(left)), ""), *right]


def within(rows: Sequence[Row], width: int, height: int) -> list[Row]:
    """The first `height` rows, each cut to `width` cells."""
    return [cut(row, width) for row in rows[: max(height, 0)]]


def joined(parts: Sequence[Row], between: str = "  ") -> Row:
    """Rows one after the other in one row."""
    found: Row = []
    for part in parts:
        if part and found:
            found.append((between, ""))
        found += part
    return found


def led(lead: Row, words: str, width: int, role: str = "") -> list[Row]:
    """A paragraph that begins with some spans; its later rows begin at the left edge."""
    first, *rest = wrapped(words, width, role, taken=row_width(lead))
    return [cut([*lead, *first], width), *rest]


def wrapped(words: str, width: int, role: str = "", indent: str = "", taken: int = 0) -> list[Row]:
    """A paragraph as rows of at most `width` cells, of a character at least; a word longer than that is cut.

    indent: before every row but the first, where the rows have room for it. taken: cells of the first row that
    something else fills.
    """
    width, indent = max(width, 1), indent if 2 * cell_len(indent) <= width else ""
    lines: list[str] = []
    line, gap, room = "", "", width - taken
    for word in map(printable, words.split()):
        if (gap or room < width) and cell_len(line + gap + word) > room:
            lines.append(line)
            line, gap, room = indent, "", width
        while cell_len(line + gap + word) > width and len(word) > 1:
            piece = set_cell_size(word, width - cell_len(line)).rstrip() or word[0]
            lines.append(line + piece)
            line, word = indent, word[len(piece) :]
        line, gap = line + gap + word, " "
    return [[(each, role)] for each in [*lines, line]]


def merged(cells: Row) -> Row:
    """Neighbours of one role as one span."""
    found: Row = []
    for part, role in cells:
        if found and found[-1][1] == role:
            found[-1] = (found[-1][0] + part, role)
        else:
            found.append((part, role))
    return found
