"""One moment of a run as the panels of a dashboard see it."""

from dataclasses import dataclass

from scalerl.curves.curve import VALIDATION
from tui.watch.analysis import NOTHING, Analysis
from tui.watch.store import RunStore, RunView


@dataclass(frozen=True)
class Scene:
    """A run, what its curve on one set says, and the update that is looked at (None: the newest)."""

    view: RunView
    analysis: Analysis = NOTHING
    at: int | None = None
    evaluation_set: str = VALIDATION

    @property
    def update(self) -> int | None:
        """The number of the update that is looked at."""
        value = self.view.last("update", self.at)
        return None if value is None else int(value)


def empty_scene() -> Scene:
    """Of a run that has written nothing."""
    return Scene(RunStore().view())
