"""What one can do with the run on screen: stop it, run it again, change its recipe, compare, pin, record it."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import BindingType
from textual.screen import Screen

from scalerl.curves.sources import with_set
from scalerl.errors import InputError
from tui.watch.child import ask_to_stop
from tui.watch.ghosts import Ghost, paper_ghost
from tui.watch.scene import Scene
from tui.watch.session import Session
from tui.watch.watching import Watch
from tui.widgets.fit_panel import FitPanel
from tui.widgets.keys import key

if TYPE_CHECKING:
    from tui.app import ScalerlApp


class RunKeys(Screen[None]):
    """The half of a dashboard that acts; the other half looks. It sets `watched`, `scene` and `fit`."""

    watched: Watch
    scene: Scene
    fit: FitPanel

    BINDINGS: ClassVar[list[BindingType]] = [
        key("e", "edit", "recipe", "change the recipe and run it as a new run", show=True),
        key("r", "rerun", "re-run", "take a stopped run up, or run a finished one anew", show=True),
        key("s", "stop", "stop", "stop the run after the update under way, saved", show=True),
        key("c", "compare", "compare", "compare with other runs, or the paper's curves", show=True),
        key("h", "next_set", "set", "the next of the held-out sets, and its fit"),
        key("p", "pin", "pin", "pin this curve behind the next runs, or take it away"),
        key("o", "paper", "paper", "a curve of the paper behind this one"),
        key("v", "log", "log", "what the run's process printed, and where its files lie"),
        key("R", "record", "record", "record a remote run into a file here"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._paper: Ghost | None = None
        self._sets: list[str] = []

    @property
    def session(self) -> Session:
        return self.watched.session

    @property
    def home_app(self) -> "ScalerlApp":
        return cast("ScalerlApp", self.app)

    def look(self) -> None:
        """Show the run as it is now."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("stop", "rerun"):
            return self.session.kind == "local"
        if action == "record":
            return self.session.kind == "remote" and self.session.recorded is None
        if action == "next_set":
            return self._sets not in ([], [self.watched.evaluation_set])
        return True

    def action_stop(self) -> None:
        child, folder = self.session.child, self.session.folder
        if child is not None and child.exit_code is None:
            child.stop()
            self.notify("stopping after the update under way; r takes it up again")
        elif folder is not None and ask_to_stop(folder):
            self.notify("asked the process that runs it to stop after the update under way")
        else:
            self.notify("nothing runs here: r starts it again")
        self.look()

    def action_rerun(self) -> None:
        """A stopped or broken run is taken up again, a finished one run anew beside it."""
        recipe, folder = self.session.recipe(), self.session.folder
        if folder is not None:
            self.home_app.run_again(recipe, folder)

    def action_edit(self) -> None:
        recipe = self.session.recipe()
        if recipe is None:
            self.notify(
                "the log has not said yet what recipe it is of, or one that this program cannot read"
            )
        else:
            self.home_app.edit(
                recipe, self.session.name, self.scene.view.seconds_per_update(), self.session.folder
            )

    def action_compare(self) -> None:
        self.home_app.compare([self._of_set(self.session.source)])

    def offer_sets(self) -> None:
        """The key that goes through them works once there is another than the one shown."""
        if self._sets != (sets := self.scene.view.sets()):
            self._sets = sets
            self.refresh_bindings()

    def action_next_set(self) -> None:
        """Go on to the next set that the run was evaluated on; after the last comes the first."""
        here = self.watched.evaluation_set
        at = self._sets.index(here) if here in self._sets else -1
        self.watched.choose(self._sets[(at + 1) % len(self._sets)])
        self.fit.look_anew()
        self.fit.ghosts = self.ghosts()
        self.look()

    def action_pin(self) -> None:
        curve = self.watched.analysis.curve
        if curve is None:
            self.notify("no evaluation to pin yet")
            return
        pinned = self.home_app.fleet.pin(
            self._of_set(self.session.name),
            self._of_set(self.session.source),
            curve,
            self.watched.analysis,
        )
        self.notify(
            "pinned: it stands behind the next run (p again takes it away)"
            if pinned
            else "not pinned any more"
        )
        self.fit.ghosts = self.ghosts()
        self.look()

    async def _choose_paper(self) -> None:
        chosen = await self.home_app.choose_paper()
        if chosen is None:
            return
        try:
            self._paper = await asyncio.to_thread(paper_ghost, chosen, self.watched.analysis)
        except InputError as error:
            self.home_app.complain(str(error))
        self.fit.ghosts = self.ghosts()
        self.look()

    def action_paper(self) -> None:
        if self._paper is not None:
            self._paper = None
            self.fit.ghosts = self.ghosts()
            self.look()
        else:
            self.run_worker(self._choose_paper())

    def ghosts(self) -> list[Ghost]:
        pinned = [
            ghost
            for source, ghost in self.home_app.fleet.pinned.items()
            if source != self._of_set(self.session.source)
        ]
        return [*pinned, *([self._paper] if self._paper else [])]

    def _of_set(self, run: str) -> str:
        """The run and the set that is shown, as `scalerl compare` reads them."""
        return with_set(run, self.watched.evaluation_set)

    def action_log(self) -> None:
        from tui.screens.log import LogScreen

        self.app.push_screen(LogScreen(self.session))

    def action_record(self) -> None:
        name = "".join(c if c.isalnum() else "-" for c in self.session.name).strip("-")
        target = Path("recordings") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        try:
            fresh = Session(self.session.source, record=target)
        except InputError as error:
            self.notify(str(error), severity="error")
            return
        self.watched.move_to(fresh)
        self.notify(f"recording to {target}, from the first event on")
