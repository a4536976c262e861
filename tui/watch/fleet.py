"""The runs that the screens started, where new ones go, and the curves that are pinned behind them."""

from pathlib import Path

from scalerl.curves.curve import Curve
from scalerl.recipe import Recipe
from scenarios.runs import choose_folder, is_finished, is_locked, runs_root
from scenarios.scenario import Plan
from tui.watch.analysis import Analysis
from tui.watch.catalog import beside
from tui.watch.child import ChildRun, start_run
from tui.watch.feeds import path_of
from tui.watch.ghosts import Ghost

GHOST_GLYPHS = "◆▲▼★"


class Fleet:
    """Children by run folder, and ghosts by source. colourless: NO_COLOR was set, and is for children too."""

    def __init__(self, *, colourless: bool) -> None:
        self._colourless = colourless
        self._children: dict[Path, ChildRun] = {}
        self.pinned: dict[str, Ghost] = {}

    # ---- runs ----

    def start(self, recipe: Recipe, folder: Path) -> None:
        """Start a run in its folder, or take it up.

        Raises:
            InputError: as `start_run`.
        """
        self._children[folder.absolute()] = start_run(recipe, folder, no_color=self._colourless)

    def child(self, source: str) -> ChildRun | None:
        """The process behind a run folder, if it was started here."""
        return self._children.get(path_of(source).absolute())

    def live(self) -> list[ChildRun]:
        return [child for child in self._children.values() if child.exit_code is None]

    def is_running(self, folder: Path) -> bool:
        """Here, or in another process."""
        child = self._children.get(folder.absolute())
        return (child is not None and child.exit_code is None) or is_locked(folder)

    def place_of(self, plan: Plan) -> Path:
        """Where the run of a plan goes; an unfinished one of the same recipe is taken up."""
        return choose_folder(plan, 1, None, self._busy())

    def again(self, folder: Path) -> Path:
        """Where a run goes on: in its folder, or in one beside it if it is finished."""
        return beside(folder, self._busy()) if is_finished(folder) else folder

    def place_for(self, recipe: Recipe, parent: Path | None) -> Path:
        """A new folder for a changed recipe, beside its parent's."""
        first = parent or runs_root() / "tiny" / recipe.name / f"seed-{recipe.seed}"
        if parent is None and not first.exists() and first not in self._busy():
            return first
        return beside(first, self._busy())

    def ended(self, watched: ChildRun | None) -> list[tuple[str, bool]]:
        """(how it ended, whether it is well) of every run that ended since, but the one on screen."""
        said: list[tuple[str, bool]] = []
        for folder, child in list(self._children.items()):
            code = child.exit_code
            if code is None or child is watched:
                continue
            del self._children[folder]
            how = (
                "done"
                if code == 0
                else "stopped"
                if child.stopping
                else f"ended with exit code {code}"
            )
            said.append((f"{child.folder}: {how}", code == 0))
        return said

    def _busy(self) -> set[Path]:
        return {child.folder for child in self.live()}

    # ---- curves behind others ----

    def pin(self, name: str, source: str, curve: Curve, analysis: Analysis) -> bool:
        """Pin a run's curve behind the others, or take it away; whether it is pinned now."""
        if source in self.pinned:
            del self.pinned[source]
            return False
        taken = {ghost.glyph for ghost in self.pinned.values()}
        glyph = next((each for each in GHOST_GLYPHS if each not in taken), GHOST_GLYPHS[0])
        self.pinned[source] = Ghost(name, curve, analysis, "pinned", glyph)
        return True
