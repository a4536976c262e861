"""What the compare screen is at: its curves, the base, the order, and which are drawn."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from scalerl.curves.sources import PAPER, split_set
from tui.compare.standing import Entry, Standing

Sort = Literal["A", "B", "C_mid", "name"]
SORTS: tuple[Sort, ...] = get_args(Sort)

BASE_GLYPH, BASE_ROLE = "◆", "pinned"
# Ten glyphs and six roles: no two of the first thirty curves have both alike.
GLYPHS = "▲●■✚▼★○△□▽"
SERIES_ROLES = ("data", "fit", "paper", "ok", "watch", "danger")


class Ranking:
    """The curves of the screen, in the order they came: which is the base, which are drawn, where one is at.

    The base stands first whatever the order; curves without a fit stand last. `standings` is what
    `standings()` last said; it is empty until then.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.base = self.cursor = ""
        self.hidden: set[str] = set()
        self.sort: Sort = SORTS[0]
        self.standings: Mapping[str, Standing] = {}
        self._slots: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        """Take one in; the first is the base."""
        self.entries.append(entry)
        self._slots.setdefault(entry.source, len(self._slots))
        self.base = self.base or entry.source
        self.cursor = self.cursor or entry.source

    def remove(self) -> None:
        """Let the selected one go; if it was the base, the first that is left becomes it."""
        order = self.ordered()
        gone = self.selected
        if gone is None:
            return
        place = order.index(gone)
        left = [entry for entry in order if entry is not gone]
        self.entries.remove(gone)
        self.hidden.discard(gone.source)
        self.cursor = left[min(place, len(left) - 1)].source if left else ""
        if gone.source == self.base:
            self.base = self.entries[0].source if self.entries else ""

    def ordered(self) -> list[Entry]:
        """Entries as they are shown."""
        names = self.names()
        return sorted(
            self.entries, key=lambda entry: self._rank(entry, names[entry.source].lower())
        )

    def _rank(self, entry: Entry, name: str) -> tuple[int, float, str]:
        if entry.source == self.base:
            return 0, 0.0, name
        if entry.made is None:
            return 2, 0.0, name
        fit = entry.made.fit
        best_first = {"A": -fit.A, "B": -fit.B, "C_mid": fit.C_mid, "name": 0.0}
        return 1, best_first[self.sort], name

    @property
    def selected(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.source == self.cursor), None)

    @property
    def base_entry(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.source == self.base), None)

    def move(self, by: int) -> None:
        """Select the row `by` further down, as far as there are rows."""
        order = self.ordered()
        if self.selected is not None:
            place = order.index(self.selected) + by
            self.cursor = order[min(max(place, 0), len(order) - 1)].source

    def toggle(self) -> None:
        """Draw the selected curve, or do not."""
        self.hidden ^= {self.cursor}

    def next_sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]

    def names(self) -> dict[str, str]:
        """What each source is called, by source."""
        return short_names([entry.source for entry in self.entries])

    def look(self, entry: Entry) -> tuple[str, str]:
        """(glyph, role) of a curve: its own whatever the order, and the base's for the base."""
        if entry.source == self.base:
            return BASE_GLYPH, BASE_ROLE
        i = self._slots[entry.source]
        return GLYPHS[i % len(GLYPHS)], SERIES_ROLES[i % len(SERIES_ROLES)]

    def unit(self) -> str:
        """Unit of the base's compute; of the first that has one where the base has none."""
        base_first = sorted(self.entries, key=lambda entry: entry.source != self.base)
        return next((e.made.curve.unit for e in base_first if e.made is not None), "GPU-h")

    def drawn(self) -> list[Entry]:
        """Those with a fit, in the base's unit and not hidden; the base last, so that it lies on top."""
        shown = [
            entry
            for entry in reversed(self.ordered())
            if entry.made is not None
            and entry.made.curve.unit == self.unit()
            and entry.source not in self.hidden
        ]
        return sorted(shown, key=lambda entry: entry.source == self.base)


def short_names(sources: Sequence[str]) -> dict[str, str]:
    """The last parts of each source, as many as tell them apart; of a seed, its arm too."""
    parts = {}
    for source in sources:
        place, _ = split_set(source)  # a set may have a / in its name
        folders = [p for p in place.removeprefix(PAPER).split("/") if p] or [place]
        parts[source] = [*folders[:-1], folders[-1] + source[len(place) :]]
    names = {}
    for source, own in parts.items():
        least = 2 if own[-1].startswith("seed-") else 1
        sizes = range(least, len(own) + 1)
        tails = ("/".join(own[-size:]) for size in sizes)
        others = [each for other, each in parts.items() if other != source]
        names[source] = next(
            (t for t in tails if not any(_ends_with(o, t.split("/")) for o in others)), source
        )
    return names


def _ends_with(parts: Sequence[str], tail: Sequence[str]) -> bool:
    return list(parts[-len(tail) :]) == list(tail)
