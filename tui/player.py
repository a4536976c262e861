"""Replay: a cursor on the clock of a recorded run, and the bar that shows where it stands."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from tui.canvas import printable
from tui.follow import duration
from tui.gauges import merged
from tui.happenings import Happening
from tui.rows import LEVEL_GLYPHS, LEVEL_ROLES, Row, cut

FULL_S = 45.0  # wall seconds in which a recording plays at its first speed
FASTER = 2.0
JUMP = 0.05


@dataclass
class Player:
    """Where a replay stands, in seconds of the world's clock. times: of every update, ascending."""

    times: Sequence[float]
    end: float
    cursor: float = 0.0
    speed: float = field(init=False)  # seconds of the world's clock in one of ours
    playing: bool = True

    def __post_init__(self) -> None:
        self.speed = max(self.end / FULL_S, 1e-9)

    def tick(self, seconds: float) -> bool:
        """Let wall time pass; whether the cursor moved."""
        if not self.playing:
            return False
        self._go(self.cursor + seconds * self.speed)
        self.playing = self.cursor < self.end
        return True

    def step(self, by: int) -> None:
        """To an update before or after."""
        self.playing = False
        if by > 0:
            i = bisect.bisect_right(self.times, self.cursor)
            self._go(self.times[i] if i < len(self.times) else self.end)
        else:
            i = bisect.bisect_left(self.times, self.cursor) - 1
            self._go(self.times[i] if i >= 0 else 0.0)

    def jump(self, share: float) -> None:
        self._go(self.cursor + share * self.end)

    def to(self, cursor: float) -> None:
        self._go(cursor)

    def toward(self, clocks: Sequence[float], by: int) -> None:
        """To the nearest of some moments, before or after."""
        self.playing = False
        later = sorted(
            c for c in clocks if (c > self.cursor + 1e-9 if by > 0 else c < self.cursor - 1e-9)
        )
        if later:
            self._go(later[0] if by > 0 else later[-1])

    def toggle(self) -> None:
        """Play or pause; at the end, from the start again."""
        if self.cursor >= self.end and not self.playing:
            self.cursor = 0.0
        self.playing = not self.playing

    def faster(self, by: int) -> None:
        self.speed *= FASTER**by

    def _go(self, cursor: float) -> None:
        self.cursor = min(max(cursor, 0.0), self.end)


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


def clock(seconds: float) -> str:
    """The world's clock as a person reads it."""
    return f"{seconds / 3600:.1f} h" if seconds >= 36_000 else duration(seconds)
