"""A changed recipe begins: anew, or where the run that it was made from had got to."""

from pathlib import Path
from typing import TYPE_CHECKING

from scalerl.errors import InputError, RunFailed
from scalerl.recipe import Recipe
from scenarios.fork import Source, fork, forkable, place_of_fork
from tui.screens.choice import Choice

if TYPE_CHECKING:
    from tui.app import ScalerlApp

MOST = 9  # checkpoints that have a key


def begin_changed(app: "ScalerlApp", recipe: Recipe, parent: Path | None) -> None:
    """Start it; ask where from, if `parent` has checkpoints from which it could go on."""
    sources = forkable(parent, recipe)[:MOST] if parent is not None else []

    def answered(key: str | None) -> None:
        if key == "n":
            app.start(recipe, app.fleet.place_for(recipe, parent))
        elif key is not None:
            _go_on(app, sources[int(key) - 1], recipe)

    if not sources:
        answered("n")
        return
    answers = [("n", "anew, from update 0")]
    answers += [
        (f"{place}", f"from its checkpoint at update {source.update}")
        for place, source in enumerate(sources, 1)
    ]
    words = "The same seed with this recipe: from the beginning, or on from where that run was?"
    app.push_screen(Choice("Where from", words, answers), answered)


def _go_on(app: "ScalerlApp", source: Source, recipe: Recipe) -> None:
    try:
        place = place_of_fork(source)
        fork(source, recipe, place)
    except (InputError, RunFailed) as error:
        app.complain(str(error))
    else:
        app.start(recipe, place)
