"""The bar of a replay: where the cursor stands, and the alarms of the whole recording."""

from collections.abc import Sequence

from tui.show.rows import LEVEL_GLYPHS, LEVEL_ROLES, Row, cut, merged
from tui.watch.happenings import Happening
from tui.watch.player import Player, clock
from tui.words import printable


def scrub_rows(player: Player, found: Sequence[Happening], width: int) -> list[Row]:
    """The bar with a mark for each of `found`, and what the marks near the cursor are."""
    label = _label(player)
    room = _room(player, width)
    cells = ["─"] * room
    roles = ["muted"] * room

    def place(at: float) -> int:
        return min(int(at / max(player.end, 1e-9) * room), room - 1)

    for each in found:
        if 0.0 < each.clock <= player.end:
            i = place(each.clock)
            cells[i], roles[i] = LEVEL_GLYPHS[each.level], LEVEL_ROLES[each.level]
    now = place(player.cursor)
    cells[now], roles[now] = "┃", "strong"
    bar: Row = [("├", "muted")]
    bar += [(cell, role) for cell, role in zip(cells, roles, strict=True)]
    bar += [("┤", "muted"), (label, "")]
    near = [each for each in found if 0.0 < each.clock <= player.end]
    near.sort(key=lambda each: abs(each.clock - player.cursor))
    words: Row = [(" marks: ", "muted")] if near else [(" no alarm in this recording", "muted")]
    for each in sorted(near[:3], key=lambda each: each.clock):
        words += [
            (f"{LEVEL_GLYPHS[each.level]} ", LEVEL_ROLES[each.level]),
            (f"{printable(each.what)} @{clock(each.clock)}   ", "muted"),
        ]
    return [cut(merged(bar), width), cut(words, width)]


def column_time(player: Player, column: int, width: int) -> float:
    """The time under a column of the bar."""
    return (column - 1) / _room(player, width) * player.end


def _label(player: Player) -> str:
    return f" {clock(player.cursor)} / {clock(player.end)}"


def _room(player: Player, width: int) -> int:
    """Cells of the bar between its ends."""
    return max(width - len(_label(player)) - 2, 10)
