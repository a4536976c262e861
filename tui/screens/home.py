"""The home screen: what one can start, watch, replay and read, with a preview of each."""

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass
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
from tui.show.rows import Row, cut, ends, wrapped
from tui.widgets.key_line import KeyLine
from tui.widgets.panel import Panel
from tui.words import duration

if TYPE_CHECKING:  # these import the fit and the schema: not before the first paint
    from tui.app import ScalerlApp
    from tui.watch.catalog import RunSummary

REFRESH_S = 2.0
NARROW = 100
MOST_RUNS = 200


@dataclass(frozen=True)
class Entry:
    """One line of the list. action: what enter does; about: the words of its preview."""

    id: str
    label: str
    action: str
    about: tuple[str, ...]
    value: str = ""
    run: "RunSummary | None" = None


# The first entry starts the tiny run: enter, enter, enter is a tour.
START = Entry(
    "tiny",
    "▸ Start the tiny run",
    "scenario",
    (
        "Trains a 28,000-parameter policy with the whole ScaleRL recipe on a virtual 80-GPU cluster,"
        " about a minute on two cores, and shows its scaling curve as it grows.",
        "You will see: pass rate rising along a sigmoid, the fit's ceiling A become known, thinking grow"
        " longer, off-policy lag held under k = 8.",
        "Then press e, change one line of the recipe, run again, and compare.",
        "Needs nothing: no GPU, no network.",
    ),
    value="tiny",
)
DEMO = Entry(
    "demo",
    "⏵ Replay a recorded run",
    "recording",
    (
        "A bundled recording of the tiny run, with a scrub bar: the fit uses only what lies left of the"
        " cursor, so you see how early the end could be told.",
        "space plays and pauses, ←→ step, , and . jump between alarms.",
    ),
    value="tiny.jsonl.gz",
)
TRUNCATED = Entry(
    "truncated",
    "⏵ Replay a run that truncation held down",
    "recording",
    (
        "The same recipe without interruptions and with 24 thinking tokens: as thinking grows, more and more"
        " completions end without an answer, and the ceiling falls from 0.93 to 0.65.",
        "Watch panel 2 enter its danger zone long before the curve bends.",
    ),
    value="truncated.jsonl.gz",
)
LESSONS = Entry(
    "lessons",
    "  Lessons: predict, run, compare, explain",
    "none",
    ("Lessons are not here yet. Until then: start the tiny run, and press ? on anything you see.",),
)
ATTACH = Entry(
    "attach",
    "a Attach to a run ...",
    "attach",
    (
        "Follow a run that trains elsewhere: a run folder, a log, ssh://host/path/events.jsonl or http://...",
        "Read-only: nothing is ever written next to the run.",
    ),
)
OPEN = Entry(
    "open",
    "o Open a recording ...",
    "open",
    ("Replay an events.jsonl or .jsonl.gz with the scrub bar.",),
)
COMPARE = Entry(
    "compare",
    "c Compare curves ...",
    "compare",
    (
        "Runs, or the paper's curves, side by side: ceilings with intervals, who gets there faster, what"
        " differs in the recipes.",
    ),
)


class Preview(Panel):
    """What the marked entry is."""

    DEFAULT_CSS = "Preview { width: 1fr; padding: 0 1; }"
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
            rows += _run_rows(run, width)
        for words in self.entry.about:
            rows += [*wrapped(words, width), []]
        return rows[:height]


def _run_rows(run: "RunSummary", width: int) -> list[Row]:
    rows: list[Row] = [
        [("state     ", "muted"), (f"{run.glyph} {run.says}", "")],
        [("last line ", "muted"), (f"{duration(run.age_s)} ago", "")],
    ]
    if run.pass_rate is not None:
        rows.append([("pass rate ", "muted"), (f"{run.pass_rate:.3f}", "strong")])
    if run.A is not None:
        rows.append([("ceiling A ", "muted"), (f"{run.A:.3f}", "strong")])
    rows += [
        [("folder    ", "muted"), *first]
        for first in wrapped(str(run.folder), max(width - 10, 10))[:1]
    ]
    return [*[cut(row, width) for row in rows], []]


class HomeScreen(Screen[None]):
    """Entries left, preview right; runs refresh by themselves."""

    CSS = """
    HomeScreen {
        #top { height: 1; }
        #body { height: 1fr; }
        #entries {
            width: 1fr; height: 1fr; border: round $foreground 35%; background: $background; padding: 0;
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
            "n", "new", "new run", tooltip="a new run from the ScaleRL recipe, changed as you like"
        ),
        Binding("a", "attach", "attach", tooltip="follow a run that trains elsewhere"),
        Binding("o", "replay", "replay", tooltip="open a recording"),
        Binding("c", "compare", "compare", tooltip="compare runs, or the paper's curves"),
        Binding("slash", "filter", "filter", tooltip="show only entries with these words"),
        Binding("d", "delete", "delete", tooltip="delete the marked run, after a question"),
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
        self._marks: set[str] = set()  # runs to be compared

    @property
    def home_app(self) -> "ScalerlApp":
        return cast("ScalerlApp", self.app)

    @property
    def options(self) -> OptionList:
        return self.query_one("#entries", OptionList)

    def compose(self) -> ComposeResult:
        yield Static(id="top")
        yield Input(placeholder="filter, esc to clear", id="filter")
        with Horizontal(id="body"):
            yield OptionList(id="entries")
            yield Preview()
        yield KeyLine()

    def on_mount(self) -> None:
        self._fill()
        self.options.border_subtitle = "enter opens · space marks a run · c compares"
        self.options.focus()
        self.options.highlighted = 1
        self.run_worker(self._refresh(), name="runs")

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < NARROW, "-narrow")
        about = "scalerl · learn how RL compute scales"
        more = f"theme: {self.home_app.theme.removeprefix('scalerl-')} (T)   ? help   ctrl+p everything "
        row = ends([(" " + about, "strong")], [(more, "muted")], event.size.width)
        self.query_one("#top", Static).update(Content("".join(part for part, _ in row)))

    # ---- the list ----

    async def _refresh(self) -> None:
        """Look again at the runs folder every now and then, and at once for what takes longer to import."""
        self._recipes = await asyncio.to_thread(_recipes)
        if self.home_app.alone:
            gc.freeze()  # what is imported by now stays: no collection need look at it again
        while True:
            if self.is_current:
                self._runs = await asyncio.to_thread(_runs)
                self._fill()
            await asyncio.sleep(REFRESH_S)

    def _groups(self) -> Iterator[tuple[str, list[Entry]]]:
        yield "Start here", [START, DEMO, TRUNCATED]
        yield "Learn", [LESSONS]
        yield (
            "Sandbox: a new run from a recipe",
            [
                Entry(
                    f"new-{name}",
                    f"n {name}",
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
            [_run_entry(run, str(run.folder) in marks) for run in self._runs[:MOST_RUNS]]
            or [_NO_RUN],
        )
        yield "Attach, replay, compare", [ATTACH, OPEN, COMPARE]

    def _fill(self) -> None:
        """Show the entries that the filter lets through; the mark stays where it was."""
        options = self.options
        words = self.query_one("#filter", Input).value.lower().split()
        marked = self._marked()
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
                if marked is not None and marked.id in entries:
                    options.highlighted = options.get_option_index(marked.id)
                elif entries:
                    options.highlighted = options.get_option_index(next(iter(entries)))
        self._show_preview()

    def _marked(self) -> Entry | None:
        options = self.options
        if options.highlighted is None or options.highlighted >= options.option_count:
            return None
        return self.entries.get(options.get_option_at_index(options.highlighted).id or "")

    def _show_preview(self) -> None:
        marked = self._marked()
        if marked is not None:
            self.query_one(Preview).show(marked)

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
        line = self.query_one("#filter", Input)
        line.add_class("-open")
        line.focus()

    def action_clear(self) -> None:
        line = self.query_one("#filter", Input)
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
        entry = self._marked()
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
        entry = self._marked()
        if entry is None or entry.run is None:
            self.notify("move to a run to mark it: marked ones are compared with c")
            return
        self._marks ^= {entry.value}
        self._fill()

    def action_new(self) -> None:
        self.home_app.open_plan("tiny", edit=True)

    def action_attach(self) -> None:
        self.home_app.action_attach()

    def action_replay(self) -> None:
        self.home_app.action_replay()

    def action_compare(self) -> None:
        entry = self._marked()
        marked = [str(run.folder) for run in self._runs if str(run.folder) in self._marks]
        here = [entry.value] if entry is not None and entry.run is not None else []
        self.home_app.compare(marked or here)

    def action_delete(self) -> None:
        entry = self._marked()
        if entry is None or entry.run is None:
            self.notify("move to a run to delete it")
        else:
            self.home_app.delete(Path(entry.value))


_NO_RUN = Entry(
    "none",
    "no runs yet: press enter on the first entry to start the tiny run",
    "none",
    ("No runs yet.",),
)


def _run_entry(run: "RunSummary", marked: bool) -> Entry:
    about = (
        "enter watches it."
        if run.status == "live"
        else "enter shows it; r there takes it up again, or runs it anew."
    )
    glyph = "+" if marked else run.glyph
    label = f"{glyph} {run.name:<24} {run.says}"
    return Entry(f"run-{run.folder}", label, "run", (about,), str(run.folder), run)


def _runs() -> "list[RunSummary]":
    from tui.watch.catalog import runs

    return runs()


def _recipes() -> dict[str, str]:
    """Recipes by name; takes longer to import than the screen takes to appear."""
    from scenarios.scenario import names

    return {name: about for name, about in names().items() if name != "tiny"}
