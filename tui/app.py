"""The Textual app: screens, themes, the runs it started, and what every screen can ask of it.

Longer than most files, since it is where the screens meet: each asks the app, and knows no other screen.
"""

import asyncio
import gc
import os
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen

from scalerl.errors import InputError
from tui.screens.asking import Ask
from tui.screens.choice import Choice
from tui.screens.home import HomeScreen
from tui.show.themes import ANSI, DARK, THEMES, themes
from tui.watch.memory import place, remembered
from tui.widgets.keys import is_plain, key
from tui.words import printable

LOOK_AFTER_S = 1.0
STOP_WAIT_S = 30.0
READ_EVERY_S = 0.25  # of a live log
HELP = "keys of this screen, and its numbers"
QUIT = "quit; asks about a live run first"

if TYPE_CHECKING:  # these import the fit and the schema: not before the first paint
    from scalerl.recipe import Recipe
    from tui.screens.compare import CompareScreen
    from tui.watch.child import ChildRun
    from tui.watch.fleet import Fleet


class ScalerlApp(App[None]):
    """ScaleRL Sandbox in a terminal."""

    TITLE = "scalerl"
    CSS = """
    Toast { width: 70; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "help", key_display="?", tooltip=HELP),
        key("T", "next_theme", "theme", "next theme: dark, light, ansi, contrast"),
        Binding("q,ctrl+q", "quit", "quit", key_display="q", tooltip=QUIT),
    ]

    def __init__(self, source: str | None = None, *, theme: str | None = None) -> None:
        """source: what to open at once, instead of the home screen."""
        self.colourless = bool(os.environ.get("NO_COLOR"))  # Textual takes it away
        super().__init__()
        self.memory = remembered()
        for each in themes():
            self.register_theme(each)
        wanted = theme or os.environ.get("TEXTUAL_THEME") or self.memory.theme
        if self.colourless and not theme:
            wanted = ANSI
        self.theme = wanted if wanted in self.available_themes else DARK
        self.source = source
        self.fault: str | None = None
        self.left: list[Path] = []  # runs that go on when the screens are gone
        self.alone = False  # in a process of its own, whose garbage collector may be tuned
        # a slow line gets half the repaints
        self.read_every_s = READ_EVERY_S * (2 if os.environ.get("SSH_CONNECTION") else 1)

    def settle(self) -> None:
        """Have the process for itself: a collection of all that is imported takes longer than a key may."""
        self.alone = True
        gc.set_threshold(20_000, 50, 1_000)

    def on_mount(self) -> None:
        self.push_screen(HomeScreen())
        if self.source is not None:
            self.show_run(self.source)
        self.set_interval(LOOK_AFTER_S, self._look_after_runs)

    def get_system_commands(self, screen: Screen) -> Iterable[SystemCommand]:
        """Everything that a key does on this screen, each by its sentence; then what has no key."""
        for binding, node in self._bound(screen):
            told = binding.tooltip or binding.description
            yield SystemCommand(
                f"{told[0].upper()}{told[1:]} ({self.get_key_display(binding)})",
                binding.description,
                lambda action=binding.action, node=node: self.call_later(
                    self.run_action, action, node
                ),
            )
        for child in self.live():
            yield SystemCommand(
                f"Watch {child.folder}",
                "a run that was started here",
                lambda f=child.folder: self.show_run(str(f)),
            )
        yield SystemCommand("Choose a theme", "all of them, in a list", self.action_change_theme)
        yield SystemCommand("Save a picture of this screen", "as SVG", self.action_picture)

    def action_picture(self) -> None:
        """Save the screen as SVG in the current folder."""
        target = Path(f"scalerl-{time.strftime('%Y%m%d-%H%M%S')}.svg")
        try:
            target.write_text(self.export_screenshot(), encoding="utf-8")
            self.notify(f"saved as {target.absolute()}")
        except OSError as error:
            self.complain(f"cannot write {target.absolute()}: {error.strerror}")

    def _bound(self, screen: Screen) -> list[tuple[Binding, DOMNode]]:
        """What keys do on a screen now, each action once."""
        found: dict[str, tuple[Binding, DOMNode]] = {}
        for active in screen.active_bindings.values():
            binding = active.binding
            if binding.description and active.enabled and not is_plain(binding):
                found.setdefault(binding.description, (binding, active.node))
        return list(found.values())

    # ---- runs ----

    @cached_property
    def fleet(self) -> "Fleet":
        """The runs that were started here."""
        from tui.watch.fleet import Fleet  # with the recipe's schema: not before the first paint

        return Fleet(colourless=self.colourless)

    def start(self, recipe: "Recipe", folder: Path) -> None:
        """Start a run in its folder, or take it up, and watch it in place of the one on screen."""
        from tui.screens.dashboard import Dashboard

        try:
            self.fleet.start(recipe, folder)
        except InputError as error:
            self.complain(str(error))
            return
        if isinstance(self.screen, Dashboard):
            self.pop_screen()
        self.show_run(str(folder))

    def open_plan(self, name: str, *, edit: bool) -> None:
        """A scenario or a recipe by name: run it, or change it first."""
        from scenarios.runs import is_begun
        from scenarios.scenario import plan

        try:
            wanted = plan(name, seeds=1)[0]
        except InputError as error:
            self.complain(str(error))
            return
        if edit:
            self.edit(wanted.recipe, name, None, None)
            return
        folder = self.fleet.place_of(wanted)
        if is_begun(folder):
            self.notify(f"takes up the unfinished run in {folder}")
        self.start(wanted.recipe, folder)

    def run_again(self, recipe: "Recipe | None", folder: Path) -> None:
        """Take up a run that is not finished; run a finished one anew in a folder beside it."""
        if self.fleet.is_running(folder):
            self.notify("it is still running: s stops it")
        elif recipe is None:
            self.complain("its log does not say a recipe that this program can read")
        elif (again := self.fleet.again(folder)) == folder:
            self.start(recipe, folder)
        else:

            def answered(key: str | None) -> None:
                if key == "r":
                    self.start(recipe, again)

            words = f"It is done. Run the same recipe and seed anew, in {again}?"
            self.push_screen(Choice("Run again", words, [("r", "run it anew")]), answered)

    def edit(self, recipe: "Recipe", title: str, pace_s: float | None, folder: Path | None) -> None:
        """Change a recipe; it always runs as a new run, which may go on from a checkpoint of the old one."""
        from tui.screens.editor import Edited, EditorScreen
        from tui.screens.forking import begin_changed

        editor = EditorScreen(recipe, title, pace_s)

        def done(edited: Edited | None) -> None:
            if edited is None:
                return
            if edited.action == "save":
                self.notify(f"saved as {edited.path}: scalerl run {edited.path}")
                return
            begin_changed(self, editor.draft.recipe(), folder)

        self.push_screen(editor, done)

    def live(self) -> list["ChildRun"]:
        """The runs that were started here and go on."""
        return self.fleet.live() if "fleet" in self.__dict__ else []

    def show_run(self, source: str, *, replay: bool = False) -> None:
        """Open the dashboard of a source."""
        from tui.screens.dashboard import Dashboard
        from tui.watch.catalog import refuse_root
        from tui.watch.session import Session

        for screen in self.screen_stack:
            if isinstance(screen, Dashboard) and screen.session.source == source and not replay:
                while self.screen is not screen:
                    self.pop_screen()
                return
        try:
            if "://" not in source:
                refuse_root(source)
            session = Session(source, child=self.fleet.child(source), replay=replay)
        except InputError as error:
            self.complain(str(error))
            return
        self.push_screen(Dashboard(session))

    def notify(self, message: str, **options: Any) -> None:
        """As Textual's, but the words are taken as they stand: paths and causes may hold anything."""
        super().notify(printable(message), **{"markup": False, **options})

    def complain(self, sentence: str) -> None:
        """Say what went wrong, for long enough to be read."""
        self.notify(sentence, severity="error", timeout=15)

    def go_back(self) -> None:
        """To the screen before."""
        if len(self.screen_stack) > 2:
            self.pop_screen()

    def delete(self, folder: Path) -> None:
        """Ask, and delete a run."""
        from tui.watch.catalog import delete

        if self.fleet.is_running(folder):
            self.complain(f"{folder} is in use by a run: stop it first")
            return

        def answered(key: str | None) -> None:
            if key == "y":
                try:
                    delete(folder)
                    self.notify(f"deleted {folder}")
                except InputError as error:
                    self.complain(str(error))

        words = f"Delete {folder} with its log and checkpoints?"
        answers = [("y", "yes, delete it")]
        self.push_screen(Choice("Delete a run", words, answers, careful=True), answered)

    def _fatal_error(self) -> None:
        """A fault of this program: kept in a file, and told in a sentence instead of over the whole screen."""
        path = place().with_name("fault.txt")
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(traceback.format_exc(), encoding="utf-8")
        self.fault = (
            f"a fault of the screens ended them: {sys.exc_info()[1]!r}; {path} has the details"
        )
        self._close_messages_no_wait()

    def _look_after_runs(self) -> None:
        """Say when a run ended that nobody looks at."""
        if "fleet" in self.__dict__:
            session = getattr(self.screen, "session", None)
            for how, well in self.fleet.ended(session.child if session is not None else None):
                self.notify(how, severity="information" if well else "warning")

    # ---- curves ----

    def compare(self, sources: list[str]) -> None:
        """Curves side by side, those that are pinned among them."""
        from tui.screens.compare import CompareScreen

        both = [*sources, *(source for source in self.fleet.pinned if source not in sources)]
        self.push_screen(CompareScreen(both))

    def on_compare_screen_open(self, event: "CompareScreen.Open") -> None:
        """A run of a comparison is to be looked at by itself."""
        from scalerl.curves.sources import PAPER

        if event.source.startswith(PAPER) or event.source.endswith(".csv"):
            self.notify("a curve without a log has no dashboard")
        else:
            self.show_run(event.source)

    async def choose_paper(self) -> str | None:
        """The name of a published curve, asked for."""
        from scalerl.curves.sources import PAPER, published_names

        names = [f"{PAPER}{name}" for name in published_names()]
        return await self.push_screen_wait(
            Ask("A curve of the paper", "type to filter, ↓ to choose, enter", options=names)
        )

    # ---- keys ----

    def action_attach(self) -> None:
        self.run_worker(
            self._ask_for_source(
                "Attach to a run", "a run folder, a log, ssh://host/path or http://...: read-only"
            )
        )

    def action_replay(self) -> None:
        self.run_worker(
            self._ask_for_source(
                "Open a recording", "an events.jsonl, or .jsonl.gz, to replay", replay=True
            )
        )

    async def _ask_for_source(self, title: str, hint: str, *, replay: bool = False) -> None:
        chosen = await self.push_screen_wait(Ask(title, hint, options=self.memory.recent))
        if chosen:
            before = self.screen
            self.show_run(chosen, replay=replay)
            if self.screen is not before:  # it could be opened
                self.memory.attached(chosen)

    def action_help(self) -> None:
        """What the keys of this screen do, and what its numbers mean."""
        from tui.screens.help import HelpScreen

        screen = self.screen
        if isinstance(screen, HelpScreen):
            return
        terms, first = getattr(screen, "help_terms", lambda: ([], None))()
        keys = [
            (self.get_key_display(b), b.tooltip or b.description) for b, _ in self._bound(screen)
        ]
        self.push_screen(HelpScreen(screen.TITLE or "this screen", keys, terms, first))

    def action_next_theme(self) -> None:
        place = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(place + 1) % len(THEMES)]
        self.memory.theme = self.theme
        self.memory.save()
        self.notify(f"theme: {self.theme}")

    async def action_quit(self) -> None:
        """Quit; a live run is stopped or left running, as one chooses."""
        live = self.live()
        if not live:
            self.exit()
            return
        names = ", ".join(str(child.folder) for child in live)

        def answered(key: str | None) -> None:
            if key == "s":
                for child in live:
                    child.stop()
                self.notify("stopping after the update under way ...")
                self.run_worker(self._exit_after(live))
            elif key == "l":
                for child in live:
                    child.detach()
                self.left = [child.folder for child in live]
                self.exit()

        answers = [("s", "stop it (saved: it can be taken up again)"), ("l", "leave it running")]
        self.push_screen(Choice("Quit", f"Still running: {names}", answers), answered)

    async def _exit_after(self, live: "list[ChildRun]") -> None:
        """Quit once they have stopped; one that takes longer stops by itself, for its leash ends with us."""
        await asyncio.gather(*(asyncio.to_thread(child.wait, STOP_WAIT_S) for child in live))
        self.exit()
