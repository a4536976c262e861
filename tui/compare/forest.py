"""The table of the compare screen as rows: each curve's numbers, and its difference from the base as a forest plot.

    ▸◆ full      .617 ±.020          ░·░
     ▲ PPO-sync  .612 ±.020      ├───░●░───┤      slower: 1.40x compute
                             −.06 −.03 0 +.03

Where the pane is narrow, columns go in the order of `DROPPED_FIRST`; name, A, forest and verdict stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.cells import cell_len, set_cell_size

from scalerl.curves.comparison import BAND
from scalerl.curves.uncertainty import Interval
from tui.compare.ranking import Ranking
from tui.compare.standing import Entry, Standing
from tui.show.canvas import decimals, linear_ticks, short
from tui.show.rows import LEVEL_GLYPHS, LEVEL_ROLES, Row, cut, merged, row_width
from tui.words import printable

DROPPED_FIRST = ("lag p95", "trunc.", "C_mid", "B")
GAP = 2
MARGIN = 4  # cursor, glyph and the spaces beside it
WIDTHS = {"A": 11, "B": 4, "C_mid": 5, "trunc.": 6, "lag p95": 7}
# Cells asked for before a number is dropped, and the most that are taken where there is room.
NAME, FOREST, VERDICT = (16, 26), (17, 33), (26, 34)
TOO_LONG = (
    1.8  # times the median interval: a longer one runs out of the forest, and an arrow says so
)
TRUNCATION_MATTERS = 0.05


@dataclass(frozen=True)
class Forest:
    """The axis of the forest column: differences from -reach to reach on an odd number of cells."""

    reach: float
    width: int

    def cell(self, value: float) -> int:
        """Cell of a difference; what is outside falls on the ends."""
        share = (min(max(value, -self.reach), self.reach) / self.reach + 1.0) / 2.0
        return round(share * (self.width - 1))

    def blank(self) -> list[tuple[str, str]]:
        """The +-0.02 that runs of one recipe differ by, around 0."""
        lo, hi = self.cell(-BAND), self.cell(BAND)
        cells = [("░", "band") if lo <= i <= hi else (" ", "") for i in range(self.width)]
        cells[self.cell(0.0)] = ("┊", "muted")
        return cells

    def interval(self, gap: Interval, role: str, point: str = "●") -> Row:
        """├──●──┤ over the band; an end out of sight is an arrow."""
        assert gap.lo is not None and gap.hi is not None
        cells = self.blank()
        lo, hi = self.cell(gap.lo), self.cell(gap.hi)
        for i in range(lo, hi + 1):
            cells[i] = ("┼" if i == self.cell(0.0) else "─", role)
        if gap.hi >= -self.reach:
            cells[hi] = ("▸" if gap.hi > self.reach else "┤", role)
        if gap.lo <= self.reach:
            cells[lo] = ("◂" if gap.lo < -self.reach else "├", role)
        if abs(gap.value) <= self.reach:
            cells[self.cell(gap.value)] = (point, role)
        return merged(cells)

    def axis(self) -> Row:
        """As many labels under their cells as can be read."""
        for most in (8, 6, 4, 3, 2):
            line, free_from = [" "] * self.width, 0
            ticks = linear_ticks(-self.reach, self.reach, most)
            for value, label in zip(ticks, decimals(ticks), strict=True):
                told = "0" if abs(value) < 1e-9 else _signed(label)
                start = min(max(self.cell(value) - len(told) // 2, 0), self.width - len(told))
                if start < free_from:
                    break
                line[start : start + len(told)] = told
                free_from = start + len(told) + 1
            else:
                return [("".join(line), "muted")]
        return [("0".center(self.width), "muted")]


def forest_axis(found: Sequence[Standing], width: int) -> Forest:
    """An axis for the differences of ceilings, or where there is none, for those at matched compute.

    It shows every difference; an interval much longer than most would squeeze the others to a dot,
    and runs out of the forest instead.
    """
    known = [each for each in found if each.gap is not None]
    gaps = [each.gap for each in known if each.matched is None] or [each.gap for each in known]
    ends = [max(abs(gap.lo or 0.0), abs(gap.hi or 0.0)) for gap in gaps if gap is not None]
    points = [abs(gap.value) for gap in gaps if gap is not None]
    usual = min(max(ends), TOO_LONG * median(ends)) if ends else 0.0
    return Forest(1.05 * max([2.0 * BAND, *points, usual]), width - 1 + width % 2)


def _signed(label: str) -> str:
    """-0.02 as −.02, 0.02 as +.02."""
    sign = "−" if label.startswith("-") else "+"
    return sign + label.removeprefix("-").removeprefix("0")


# ---- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The columns that are shown, and the cells of those that stretch."""

    numbers: tuple[str, ...]
    name: int
    forest: int
    verdict: int


def layout(width: int, longest_name: int, longest_verdict: int) -> Layout:
    """What fits into `width` cells: numbers go first, then the name shrinks."""
    least_name, least_verdict = min(longest_name, NAME[0]), min(longest_verdict, VERDICT[0])
    least = MARGIN + max(least_name, len("curve")) + GAP + FOREST[0] + GAP + least_verdict
    numbers = list(WIDTHS)
    for gone in DROPPED_FIRST:
        if least + sum(WIDTHS[key] + GAP for key in numbers) <= width:
            break
        numbers.remove(gone)
    left = width - MARGIN - 2 * GAP - sum(WIDTHS[key] + GAP for key in numbers)
    name = max(min(longest_name, NAME[0], left - FOREST[0] - least_verdict), len("curve"))
    left -= name + FOREST[0]
    verdict = max(min(longest_verdict, VERDICT[1], left), 0)
    left -= verdict
    wider = max(min(longest_name - name, NAME[1] - NAME[0], left), 0)
    forest = FOREST[0] + max(min(left - wider, FOREST[1] - FOREST[0]), 0)
    return Layout(tuple(numbers), name + wider, forest, verdict)


def table(ranking: Ranking, width: int, height: int, reading: str = "") -> list[Row]:
    """Head, one row a curve, and the axis of the forest: at most `height` rows.

    Of more curves than fit, those around the selected one are shown. reading: what is being read
    still, "" when all is there.
    """
    names = {source: printable(name) for source, name in ranking.names().items()}
    told = [stands.words for stands in ranking.standings.values()]
    shape = layout(
        width, max(map(cell_len, names.values()), default=0), max(map(len, [*told, "verdict"]))
    )
    found = list(ranking.standings.values())
    forest = forest_axis(found, shape.forest)
    room = max(height - 2 - bool(reading), 1)
    order = ranking.ordered()
    place = next((i for i, e in enumerate(order) if e.source == ranking.cursor), 0)
    first = max(min(place - room // 2, len(order) - room), 0)
    rows = [_head(shape, ranking, names)]
    rows += [
        _row(shape, forest, ranking, each, names[each.source], width)
        for each in order[first : first + room]
    ]
    if reading:
        rows.append([(f"  ◌ reading {printable(reading)}", "muted")])
    indent = MARGIN + shape.name + sum(WIDTHS[key] + GAP for key in shape.numbers) + GAP
    if any(each.gap for each in found):
        note = f"{'':{GAP}}○ at matched compute" if any(each.matched for each in found) else ""
        rows.append([(" " * indent, ""), *forest.axis(), (note, "muted")])
    return [cut(row, width) for row in rows[:height]]


def _head(shape: Layout, ranking: Ranking, names: dict[str, str]) -> Row:
    base = names.get(ranking.base, "base")
    cells = [_cell("curve", shape.name)]
    cells += [_cell(key, WIDTHS[key], right=key != "A") for key in shape.numbers]
    of_base = f"ΔA to {_cut_name(base, shape.forest - len('ΔA to '))}"
    cells += [_cell(of_base, shape.forest), "verdict"]
    return [(" " * MARGIN + (" " * GAP).join(cells), "muted")]


def _row(
    shape: Layout, forest: Forest, ranking: Ranking, entry: Entry, name: str, width: int
) -> Row:
    """One curve; greyed where it cannot be compared, which its verdict says too."""
    here, stands = entry.source == ranking.cursor, ranking.standings.get(entry.source, Standing(""))
    glyph, role = ranking.look(entry)
    hidden = entry.source in ranking.hidden
    grey = "muted" if stands.role == "muted" or hidden or entry.made is None else ""
    shown = set_cell_size(_cut_name(name, shape.name), shape.name)
    row: Row = [
        ("▸" if here else " ", "key"),
        ("·" if hidden else glyph, "muted" if hidden else role),
        (" " * (MARGIN - 2), ""),
        (shown, "cursor" if here else grey),
    ]
    if entry.made is None:
        left = width - row_width(row) - GAP
        return [*row, (" " * GAP, ""), *cut([(printable(entry.why), "watch")], left)]
    for key in shape.numbers:
        text = _cell(_number(entry, key), WIDTHS[key], right=key != "A")
        warn = key == "trunc." and (entry.truncated() or 0.0) >= TRUNCATION_MATTERS
        row += [(" " * GAP, ""), (text, "watch" if warn else grey)]
    row += [(" " * GAP, ""), *_forest_cell(forest, entry, ranking, stands, grey)]
    row.append((" " * (shape.forest - forest.width + GAP), ""))
    words = stands.words
    if len(words) > shape.verdict:  # the plot says the unit too
        words = words.removesuffix(f" {ranking.unit()}")
    return [*row, *cut([(words, stands.role)], shape.verdict)]


def _forest_cell(
    forest: Forest, entry: Entry, ranking: Ranking, stands: Standing, grey: str
) -> Row:
    if stands.gap is not None:
        # a hollow point: a difference of pass rates at matched compute, and not of ceilings
        return forest.interval(stands.gap, grey, "●" if stands.matched is None else "○")
    cells = forest.blank()
    if entry.source == ranking.base:
        cells[forest.cell(0.0)] = ("·", "strong")
    return merged(cells)


def _number(entry: Entry, key: str) -> str:
    """One number of a curve with a fit; "-" where there is none."""
    assert entry.made is not None
    fit = entry.made.fit
    match key:
        case "A":
            return f"{fit.A:.3f} ±{half_width(entry.made.A())}"
        case "B":
            return f"{fit.B:.2f}" if fit.B < 10 else f"{fit.B:.1f}"
        case "C_mid":
            return short(float(f"{fit.C_mid:.2g}" if fit.C_mid >= 1000 else f"{fit.C_mid:.3g}"))
        case "trunc.":
            share = entry.truncated()
            return "-" if share is None else f"{share:.1%}"
    lag = entry.lag_p95()
    return "-" if lag is None else str(lag)


def half_width(found: Interval) -> str:
    """Half of an interval as .020; of one with an end missing, "?"."""
    if found.lo is None or found.hi is None:
        return "?"
    return f"{(found.hi - found.lo) / 2:.3f}".removeprefix("0")


def _cell(text: str, width: int, *, right: bool = False) -> str:
    """Text in exactly `width` cells."""
    pad = " " * max(width - cell_len(text), 0)
    return set_cell_size(pad + text if right else text + pad, width)


def _cut_name(name: str, width: int) -> str:
    """A name cut in front: its end tells arms apart."""
    while cell_len(name) > width:
        name = "…" + name.removeprefix("…")[1:]
    return name


def alarm_rows(entry: Entry) -> list[Row]:
    """The alarms of a curve, each with its level as glyph and word."""
    if entry.made is None:
        return []
    return [
        [
            (f"{LEVEL_GLYPHS[alarm.level]} {alarm.level} ", LEVEL_ROLES[alarm.level]),
            (f"{alarm.name}: {printable(alarm.evidence)}", ""),
        ]
        for alarm in entry.made.alarms
    ]
