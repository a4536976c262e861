"""The panels beside the curve: truncation, lag, busy GPUs, what just happened, and completions."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from scalerl.events import Event
from tui.show.busy import busy_rows
from tui.show.completions import legend, sample_rows
from tui.show.gauges import lag_rows, truncation_rows
from tui.show.happenings import happening_rows
from tui.show.rows import Row
from tui.watch.happenings import Happening, gravest, happenings
from tui.watch.scene import Scene, empty_scene
from tui.widgets.panel import Panel


class ScenePanel(Panel, can_focus=True):
    """A panel that shows one moment of a run."""

    def __init__(self, number: int, title: str, *, id: str) -> None:
        super().__init__(id=id)
        self.number = number
        self.border_title = f"[{number}] {title}"
        self.scene = empty_scene()

    def show(self, scene: Scene) -> None:
        self.scene = scene
        self.border_subtitle = "" if scene.at is None else f"at update {scene.update}"
        self.redraw()


class TruncationPanel(ScenePanel):
    """Truncated completions and their zones, interruptions, zero-variance groups, length."""

    def __init__(self) -> None:
        super().__init__(2, "Truncated completions", id="truncation")

    def rows(self, width: int, height: int) -> list[Row]:
        return truncation_rows(self.scene, width, height)


class LagPanel(ScenePanel):
    """How many versions old the trained tokens were."""

    def __init__(self) -> None:
        super().__init__(3, "Off-policy lag", id="lag")

    def rows(self, width: int, height: int) -> list[Row]:
        return lag_rows(self.scene, width, height)


class BusyPanel(ScenePanel):
    """What generators, trainers and evaluators do."""

    def __init__(self) -> None:
        super().__init__(4, "Who is busy?", id="busy")

    def rows(self, width: int, height: int) -> list[Row]:
        return busy_rows(self.scene, width, height)


class HappenedPanel(ScenePanel):
    """Notices and alarms, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "older(-1)", "newer", show=False),
        Binding("down,j", "older(1)", "older", show=False),
        Binding("home", "newest", "newest", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(5, "What just happened", id="happened")
        self.found: list[Happening] = []
        self.reading: Happening | None = None  # what one has moved to; None: the newest alarm

    def show(self, scene: Scene) -> None:
        self.found = happenings(scene)
        super().show(scene)

    @property
    def chosen(self) -> int:
        """The place of what is read: it stays while news come in above."""
        if self.reading in self.found:
            return self.found.index(self.reading)
        return gravest(self.found)

    def rows(self, width: int, height: int) -> list[Row]:
        if len(self.found) > 1:
            self.border_subtitle = f"{self.chosen + 1} of {len(self.found)}  ↑↓"
        return happening_rows(self.found, self.chosen, width, height)

    def action_older(self, by: int) -> None:
        if self.found:
            place = min(max(self.chosen + by, 0), len(self.found) - 1)
            self.reading = self.found[place]
            self.redraw()

    def action_newest(self) -> None:
        self.reading = None
        self.redraw()


class SamplePanel(ScenePanel):
    """One completion at a time, as text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k,left", "move(-1)", "earlier", show=False),
        Binding("down,j,right", "move(1)", "later", show=False),
        Binding("end", "latest", "newest", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(6, "Completions", id="sample")
        self.chosen: int | None = None  # None follows the newest

    def rows(self, width: int, height: int) -> Sequence[Row]:
        samples = self.scene.view.samples()
        if not samples:
            return [[("no completion yet", "muted")]]
        self.border_subtitle = "↑↓ earlier, later"
        rows: list[Row] = []
        for i in range(self._place(samples), -1, -1):
            new = sample_rows(samples[i], f"{i + 1} of {len(samples)}", width)
            if rows and len(rows) + len(new) + 2 > height:
                break
            rows += [*new, []]
        return [*rows[: height - 1], legend(width)]

    def _place(self, samples: Sequence[Event]) -> int:
        if self.scene.at is not None and self.chosen is None:
            update = self.scene.update or 0
            before = [i for i, e in enumerate(samples) if e.get("update", 0) <= update]
            return before[-1] if before else 0
        return len(samples) - 1 if self.chosen is None else min(self.chosen, len(samples) - 1)

    def action_move(self, by: int) -> None:
        samples = self.scene.view.samples()
        if samples:
            self.chosen = min(max(self._place(samples) + by, 0), len(samples) - 1)
            if self.chosen == len(samples) - 1:
                self.chosen = None
            self.redraw()

    def action_latest(self) -> None:
        self.chosen = None
        self.redraw()
