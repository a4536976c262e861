"""Runs side by side: who has the higher ceiling, who gets there on less compute, and what was changed.

Longer than most files: two small widgets of its own, its CSS and its keys.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.screen import Screen

from scalerl.curves.sources import split_set
from scalerl.errors import InputError
from scalerl.forecast import Forecast
from tui.compare.compare_layers import HOWS, METRICS, PASS_RATE, How, overlay
from tui.compare.contrast import contrast
from tui.compare.exporting import as_csv, export, free_path
from tui.compare.forest import table
from tui.compare.ranking import Ranking
from tui.compare.standing import Entry, Standing, known_sources, read_entry, standings
from tui.screens.asking import Ask
from tui.show.rows import Row
from tui.watch.feeds import path_of
from tui.widgets.key_line import KeyLine
from tui.widgets.panel import Panel
from tui.widgets.plot import PlotPanel

DEFAULT_FILE = "comparison.csv"


class ForestTable(Panel, can_focus=True):
    """The curves as rows, of which one is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.move(-1)", "up", show=False),
        Binding("down,j", "screen.move(1)", "down", show=False),
        Binding("pageup", "screen.move(-8)", "up by eight", show=False),
        Binding("pagedown", "screen.move(8)", "down by eight", show=False),
        Binding("home", "screen.move(-1000)", "first", show=False),
        Binding("end", "screen.move(1000)", "last", show=False),
        Binding(
            "space",
            "screen.show_or_hide",
            "hide",
            tooltip="hide this curve in the plot, or show it",
        ),
        Binding(
            "p",
            "screen.pin",
            "base",
            tooltip="make this curve the base that others are compared with",
        ),
        Binding("enter", "screen.open", "open", tooltip="open the dashboard of this run"),
        Binding("x,delete", "screen.remove", "remove", tooltip="take this curve away"),
    ]

    class Picked(Message):
        """A row was clicked: the curve of that source."""

        def __init__(self, source: str) -> None:
            super().__init__()
            self.source = source

    def __init__(self, ranking: Ranking) -> None:
        super().__init__(id="forest")
        self.ranking = ranking
        self.reading = ""

    def rows(self, width: int, height: int) -> Sequence[Row]:
        return table(self.ranking, width, height, self.reading)

    def on_click(self, event: events.Click) -> None:
        """Select the curve under the mouse, counted from the row of the one that is selected."""
        at = event.get_content_offset(self)
        cursor = next(
            (y for y, line in enumerate(self.plain.splitlines()) if line[:1] == "▸"), None
        )
        order, selected = self.ranking.ordered(), self.ranking.selected
        if at is None or cursor is None or selected is None:
            return
        place = order.index(selected) + at.y - cursor
        if 0 <= place < len(order):
            self.post_message(self.Picked(order[place].source))


class Changed(Panel):
    """What sets the selected curve apart from the base."""

    def __init__(self, ranking: Ranking) -> None:
        super().__init__(id="changed")
        self.ranking = ranking
        self.reading = False
        self.border_title = "what changed"

    def rows(self, width: int, height: int) -> Sequence[Row]:
        if self.reading and not self.ranking.entries:
            return []
        return contrast(self.ranking, width, height)


class CompareScreen(Screen[None]):
    """Curves against a base, the first of `sources`: run folders, seeds, CSVs, `paper:` curves."""

    DEFAULT_CSS = """
    CompareScreen {
        & #forest { height: 6; }
        & #below { height: 1fr; min-height: 6; }
        & #overlay { width: 1fr; }
        & #changed { width: 35%; max-width: 56; min-width: 28; }
        &.-thin #changed { display: none; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (66, "-broad")]  # noqa: RUF012
    TITLE = "Compare"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "add", "add", tooltip="add a run, or a curve of the paper"),
        Binding(
            "y", "next_how", "y axis", tooltip="y axis: pass rate, gain over R0, efficiency plot"
        ),
        Binding(
            "m", "next_metric", "metric", tooltip="plot another metric: truncated, entropy, KL, ..."
        ),
        Binding("s", "next_sort", "sort", tooltip="sort by A, B, C_mid or name"),
        Binding("e", "export", "export", tooltip="export the table as CSV, the plot as SVG"),
        Binding("escape", "leave", "back"),
    ]

    class Open(Message):
        """A person wants to look at one curve by itself."""

        def __init__(self, source: str) -> None:
            super().__init__()
            self.source = source

    class _Read(Message):
        """One source has been read."""

        def __init__(self, entry: Entry) -> None:
            super().__init__()
            self.entry = entry

    class _Judged(Message):
        """How all stand against a base."""

        def __init__(self, found: dict[str, Standing], base: str) -> None:
            super().__init__()
            self.found, self.base = found, base

    def __init__(self, sources: list[str]) -> None:
        super().__init__()
        self.ranking = Ranking()
        self.how: How = HOWS[0]
        self.metric = PASS_RATE
        self._waiting = list(dict.fromkeys(sources))  # not read yet, in order
        self._asked = len(self._waiting)

    def compose(self) -> ComposeResult:
        yield ForestTable(self.ranking)
        with Horizontal(id="below"):
            yield PlotPanel(id="overlay")
            yield Changed(self.ranking)
        yield KeyLine()

    def on_mount(self) -> None:
        self.query_one(ForestTable).focus()
        self._show()
        self._read_next()

    # reading, in threads: messages bring back what they find

    def _read_next(self) -> None:
        if self._waiting:
            self._read(self._waiting[0])
        else:
            self._judge(list(self.ranking.entries), self.ranking.base)

    @work(thread=True, group="read")
    def _read(self, source: str) -> None:
        self.post_message(self._Read(read_entry(source)))

    @work(thread=True, group="judge", exclusive=True)
    def _judge(self, entries: list[Entry], base: str) -> None:
        self.post_message(self._Judged(standings(entries, base), base))

    @on(_Read)
    def _take(self, event: _Read) -> None:
        self._waiting.pop(0)
        self.ranking.add(event.entry)
        self._show()
        self._read_next()

    @on(_Judged)
    def _place(self, event: _Judged) -> None:
        asked = {entry.source for entry in self.ranking.entries}
        if event.base == self.ranking.base and asked <= set(event.found):  # else one too old
            self.ranking.standings = event.found
            self._show()

    # showing

    def on_resize(self) -> None:
        self._fit_table()

    def _fit_table(self) -> None:
        """As high as its rows, up to 60 % of the screen."""
        rows = len(self.ranking.entries) + bool(self._waiting) + 4
        self.query_one(ForestTable).styles.height = max(min(rows, 6 * self.size.height // 10), 5)

    def _show(self) -> None:
        forest, ranking = self.query_one(ForestTable), self.ranking
        forest.reading = ""
        if self._waiting:
            nth = self._asked - len(self._waiting) + 1
            forest.reading = f"{self._waiting[0]} ({nth} of {self._asked})"
        count, base = len(ranking.entries), ranking.names().get(ranking.base, "none yet")
        curves = "1 curve" if count == 1 else f"{count} curves"
        forest.border_title = Content(f"Compare · base: {base} · {curves}")
        forest.border_subtitle = Content(f"sort: {ranking.sort} {_ARROWS[ranking.sort]}")
        self._fit_table()
        forest.redraw()
        changed = self.query_one(Changed)
        changed.reading = bool(self._waiting)
        changed.redraw()
        self._show_plot()

    def _show_plot(self) -> None:
        plot, found = self.query_one(PlotPanel), overlay(self.ranking, self.metric, self.how)
        of = f"{self.metric} · {self.how}" if self.metric == PASS_RATE else self.metric
        plot.border_title = Content(f"overlay · {of}")
        footing: Row = [(" · ".join(found.notes), "muted")] if found.notes else []
        plot.show(
            found.layers,
            unit=found.unit,
            y_name=found.y_name,
            footing=footing,
            least=found.least,
        )

    @on(ForestTable.Picked)
    def _picked(self, event: ForestTable.Picked) -> None:
        self.ranking.cursor = event.source
        self._show()

    # keys

    def action_move(self, by: int) -> None:
        self.ranking.move(by)
        self._show()

    def action_show_or_hide(self) -> None:
        self.ranking.toggle()
        self._show()

    def action_pin(self) -> None:
        self._rebase(self.ranking.cursor)

    def _rebase(self, source: str) -> None:
        """Make one the base; what was said against the old one goes."""
        self.ranking.base, self.ranking.standings = source, {}
        self._show()
        self._judge(list(self.ranking.entries), source)

    def action_remove(self) -> None:
        base = self.ranking.base
        self.ranking.remove()
        self._rebase(self.ranking.base) if self.ranking.base != base else self._show()

    def action_next_sort(self) -> None:
        self.ranking.next_sort()
        self._show()

    def action_next_how(self) -> None:
        self.metric, self.how = PASS_RATE, HOWS[(HOWS.index(self.how) + 1) % len(HOWS)]
        self._new_axes()

    def action_next_metric(self) -> None:
        names = list(METRICS)
        self.metric = names[(names.index(self.metric) + 1) % len(names)]
        self._new_axes()

    def _new_axes(self) -> None:
        """Another y: what was zoomed in on is no longer there."""
        self.query_one(PlotPanel).action_reset()
        self._show_plot()

    def action_open(self) -> None:
        if self.ranking.selected is not None:
            self.post_message(self.Open(split_set(self.ranking.cursor)[0]))

    def action_leave(self) -> None:
        self.dismiss()

    # adding

    @work
    async def action_add(self) -> None:
        here = {entry.source for entry in self.ranking.entries} | set(self._waiting)
        options = [each for each in known_sources() if each not in here]
        hint = "a run folder, a CSV, or a curve of the paper · ↓ choose · tab complete · enter add · esc"
        source = await self.app.push_screen_wait(Ask("add a curve", hint, options=options))
        if source in here:
            self.notify(f"{source} is here already", markup=False)
        elif source is not None:
            idle = not self._waiting
            self._waiting.append(source)
            self._asked = len(self.ranking.entries) + len(self._waiting)
            self._show()
            if idle:
                self._read_next()

    # exporting

    @work
    async def action_export(self) -> None:
        if not self.ranking.entries:
            self.notify("no curve to export", severity="warning")
            return
        figure = find_spec("matplotlib") is not None
        what = "the table as CSV, and the figure as SVG beside it" if figure else "the table as CSV"
        path = await self.app.push_screen_wait(
            Ask("export", f"{what} · enter write · esc", str(free_path(Path(DEFAULT_FILE))))
        )
        if path is not None:
            try:
                target = path_of(path)
            except InputError as error:
                self.notify(str(error), severity="error")
                return
            # of one unit, as a figure has one axis
            made = [
                entry.made for entry in reversed(self.ranking.drawn()) if entry.made is not None
            ]
            self._write(target, as_csv(self.ranking), made if figure else [])

    @work(thread=True, group="write")
    def _write(self, path: Path, content: str, made: list[Forecast]) -> None:
        try:
            told = export(path, content, made)
        except InputError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.notify(told, markup=False)


_ARROWS = {"A": "▼", "B": "▼", "C_mid": "▲", "name": "▲"}  # the largest, or the smallest, first
