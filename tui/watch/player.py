"""Replay: a cursor on the clock of a recorded run, and the bar that shows where it stands."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from tui.words import duration

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


def clock(seconds: float) -> str:
    """The world's clock as a person reads it."""
    return f"{seconds / 3600:.1f} h" if seconds >= 36_000 else duration(seconds)
