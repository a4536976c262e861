"""The home screen: what one can start, watch, replay and read, with a preview of each.

Longer than most files: its CSS, its keys and its list are one thing.
"""

import asyncio
import gc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.recordings import RECORDINGS
from tui.screens.home_entries import (
    ATTACH,
    COMPARE,
    DEMO,
    LESSONS,
    NO_RUN,
    OPEN,
    START,
    TRUNCATED,
    Entry,
    run_entry,
    run_rows,
)
from tui.show.rows import Row, ends, wrapped
from tui.widgets.key_line import KeyLine
from tui.widgets.panel import Panel

if TYPE_CHECKING:  # these import the fit and the schema: not before the first paint
    from tui.app import ScalerlApp
    from tui.watch.catalog import RunSummary

REFRESH_S = 2.0
NARROW = 100


class Preview(Panel):
    """What the marked entry is."""

    DEFAULT_CSS = "Preview { width: 4fr; padding: 0 1; }"
    can_focus = False

    def __init__(self) -> None:
        super().__init__(id="preview")
        self.border_title = "Preview"
        self.entry: Entry = START

    def show(self, entry: Entry) -> None:
        self.entry = entry
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        title = self.entry.run.name if self.entry.run is not None else self.entry.label.strip("▸⏵ ")
        rows: list[Row] = [*wrapped(title, width, "strong"), []]
        if (run := self.entry.run) is not None:
            rows += run_rows(run, width)
        for words in self.entry.about:
            rows += [*wrapped(words, width), []]
        return rows[:height]


class HomeScreen(Screen[None]):
    """Entries left, preview right; runs refresh by themselves."""

    CSS = """
    HomeScreen {
        #top { height: 1; }
        #body { height: 1fr; }
        #entries {
            width: 5fr; height: 1fr; border: round $foreground 35%; background: $background; padding: 0;
            scrollbar-size-vertical: 1; text-wrap: nowrap; text-overflow: ellipsis;
            &:focus { border: round $accent; }
            & > .option-list--option-disabled { color: $accent; text-style: bold; }
        }
        #filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
        #filter.-open { display: block; }
        &.-narrow #preview { display: none; }
        &.-narrow.-preview #preview { display: block; }
        &.-narrow.-preview #entries { display: none; }
    }
    """
    TITLE = "Home"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", tooltip="open the entry one is at"),
        Binding("space", "mark", "mark", show=False, tooltip="mark a run, to be compared with c"),
        Binding(
            "n",
            "new",
            "new run",
            tooltip="a new run from a recipe that you change: the one you are at, or ScaleRL",
        ),
        Binding("a", "attach", "attach", tooltip="follow a run that trains elsewhere"),
        Binding("o", "replay", "replay", tooltip="open a recording"),
        Binding("c", "compare", "compare", tooltip="compare runs, or the paper's curves"),
        Binding("slash", "filter", "filter", tooltip="show only entries with these words"),
        Binding("d", "delete", "delete", tooltip="delete the run one is at, after a question"),
        Binding(
            "right",
            "preview(True)",
            "preview",
            show=False,
            tooltip="the preview, where it is hidden",
        ),
        Binding("left", "preview(False)", "list", show=False, tooltip="back to the list"),
        Binding("escape", "clear", "clear filter", show=False),
        Binding("j", "move(1)", "down", show=False),
        Binding("k", "move(-1)", "up", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, Entry] = {}
        self._runs: list[RunSummary] = []
        self._recipes: dict[str, str] = {}
        self._labels: list[str] = []
        # kept by name: the list may be filled once more while the screen is taken away
        self.top, self.preview = Static(id="top"), Preview()
        self.options, self.line = (
            OptionList(id="entries"),
            Input(placeholder="filter, esc to clear", id="filter"),
        )
        self._marks: set[str] = set()  # runs to be compared

    @property
    def home_app(self) -> "ScalerlApp":
        return cast("ScalerlApp", self.app)

    def compose(self) -> ComposeResult:
        yield self.top
        yield self.line
        with Horizontal(id="body"):
            yield self.options
            yield self.preview
        yield KeyLine()

    def on_mount(self) -> None:
        self._fill()
        self.options.border_subtitle = "enter opens · space marks a run · c compares"
        self.options.focus()
        self.options.highlighted = 1
        self.app.theme_changed_signal.subscribe(self, lambda _: self.show_top())
        self.run_worker(self._refresh(), name="runs")

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < NARROW, "-narrow")
        self.show_top()

    def show_top(self) -> None:
        """The title, and the theme that is on."""
        about = "scalerl · learn how RL compute scales"
        more = f"theme: {self.home_app.theme.removeprefix('scalerl-')} (T)   ? help   ctrl+p everything "
        row = ends([(" " + about, "strong")], [(more, "muted")], self.size.width)
        self.top.update(Content("".join(part for part, _ in row)))

    # ---- the list ----

    async def _refresh(self) -> None:
        """Fill in what takes longer to import than the screen to appear, then look at the runs every now and then."""
        self._recipes = await asyncio.to_thread(_recipes)
        await self._look_at_runs()
        await asyncio.to_thread(_preload)
        if self.home_app.alone:
            gc.freeze()  # what is imported by now stays: no collection need look at it again
        while True:
            await asyncio.sleep(REFRESH_S)
            if self.is_current:
                await self._look_at_runs()

    async def _look_at_runs(self) -> None:
        self._runs = await asyncio.to_thread(_runs)
        self._fill()

    def _groups(self) -> Iterator[tuple[str, list[Entry]]]:
        yield "Start here", [START, DEMO, TRUNCATED]
        yield "Learn", [LESSONS]
        yield (
            "Sandbox: a new run from a recipe",
            [
                Entry(
                    f"new-{name}",
                    f"✎ {name}",
                    "recipe",
                    (about, "enter opens the recipe, to change it and run it."),
                    name,
                )
                for name, about in self._recipes.items()
            ],
        )
        marks = self._marks
        yield (
            "Runs",
            [run_entry(run, str(run.folder) in marks) for run in self._runs] or [NO_RUN],
        )
        yield "Attach, replay, compare", [ATTACH, OPEN, COMPARE]

    def _fill(self) -> None:
        """Show the entries that the filter lets through; the mark stays where it was."""
        options = self.options
        words = self.line.value.lower().split()
        here = self._here()
        found: list[Option] = []
        entries: dict[str, Entry] = {}
        for title, group in self._groups():
            kept = [
                e
                for e in group
                if all(w in f"{e.label} {' '.join(e.about)}".lower() for w in words)
            ]
            if kept:
                found.append(Option(Content(title), disabled=True))
                found += [Option(Content(f"  {entry.label}"), id=entry.id) for entry in kept]
                entries |= {entry.id: entry for entry in kept}
        labels = [str(option.prompt) for option in found]
        self.entries = entries
        if labels != self._labels:
            self._labels = labels
            with self.prevent(OptionList.OptionHighlighted):
                options.clear_options()
                options.add_options(found)
                if here is not None and here.id in entries:
                    options.highlighted = options.get_option_index(here.id)
                elif entries:
                    options.highlighted = options.get_option_index(next(iter(entries)))
        self._show_preview()

    def _here(self) -> Entry | None:
        options = self.options
        if options.highlighted is None or options.highlighted >= options.option_count:
            return None
        return self.entries.get(options.get_option_at_index(options.highlighted).id or "")

    def _show_preview(self) -> None:
        here = self._here()
        if here is not None:
            self.preview.show(here)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self._show_preview()

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        self.action_open()

    @on(Input.Changed)
    def _filtered(self) -> None:
        self._fill()

    @on(Input.Submitted)
    def _filter_done(self) -> None:
        self.options.focus()

    # ---- keys ----

    def action_move(self, by: int) -> None:
        if by > 0:
            self.options.action_cursor_down()
        else:
            self.options.action_cursor_up()

    def action_filter(self) -> None:
        line = self.line
        line.add_class("-open")
        line.focus()

    def action_clear(self) -> None:
        line = self.line
        if self.has_class("-preview"):
            self.action_preview(False)
            return
        line.value = ""
        line.remove_class("-open")
        self.options.focus()

    def action_preview(self, on: bool) -> None:
        self.set_class(on, "-preview")
        if not on:
            self.options.focus()

    def action_open(self) -> None:
        entry = self._here()
        if entry is None:
            return
        app = self.home_app
        match entry.action:
            case "scenario" | "recipe":
                app.open_plan(entry.value, edit=entry.action == "recipe")
            case "run":
                app.show_run(entry.value)
            case "recording":
                app.show_run(str(RECORDINGS / entry.value))
            case "attach":
                app.action_attach()
            case "open":
                app.action_replay()
            case "compare":
                app.compare([])
            case "none":
                self.notify(entry.about[0])

    def action_mark(self) -> None:
        entry = self._here()
        if entry is None or entry.run is None:
            self.notify("move to a run to mark it: marked ones are compared with c")
            return
        self._marks ^= {entry.value}
        self._fill()

    def action_new(self) -> None:
        entry = self._here()
        at_recipe = entry is not None and entry.action == "recipe"
        self.home_app.open_plan(
            entry.value if entry is not None and at_recipe else "tiny", edit=True
        )

    def action_attach(self) -> None:
        self.home_app.action_attach()

    def action_replay(self) -> None:
        self.home_app.action_replay()

    def action_compare(self) -> None:
        entry = self._here()
        marked = [str(run.folder) for run in self._runs if str(run.folder) in self._marks]
        here = [entry.value] if entry is not None and entry.run is not None else []
        self.home_app.compare(marked or here)

    def action_delete(self) -> None:
        entry = self._here()
        if entry is None or entry.run is None:
            self.notify("move to a run to delete it")
        else:
            self.home_app.delete(Path(entry.value))


def _runs() -> "list[RunSummary]":
    from tui.watch.catalog import runs

    return runs()


def _recipes() -> dict[str, str]:
    from scenarios.scenario import names

    return {name: about for name, about in names().items() if name != "tiny"}


def _preload() -> None:
    """Import what the next keys will need, so that they need not wait for it."""
    for name in ("dashboard", "editor", "compare", "help"):
        import_module(f"tui.screens.{name}")
