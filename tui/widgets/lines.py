"""Rows without a border that a screen fills: the status line, the banner, the tabs, the bar of a replay."""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from tui.show.rows import Row
from tui.show.scrub import column_time
from tui.watch.player import Player
from tui.widgets.panel import Panel


class Line(Panel):
    """Shows the rows that it is given."""

    DEFAULT_CSS = "Line { border: none; height: 1; &:focus { border: none; } }"
    can_focus = False

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.content: list[Row] = []

    def show(self, content: list[Row]) -> None:
        self.content = content
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        return self.content


class ScrubBar(Line, can_focus=True):
    """Where a replay stands; the arrows and a click move it."""

    DEFAULT_CSS = "ScrubBar { height: 2; &:focus { background: $panel; } }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "back", tooltip="replay: an update back"),
        Binding("right", "step(1)", "on", tooltip="replay: an update on"),
        Binding("shift+left", "jump(-0.05)", "back 5 %", show=False, tooltip="replay: 5 % back"),
        Binding("shift+right", "jump(0.05)", "on 5 %", show=False, tooltip="replay: 5 % on"),
        Binding("home", "to(0.0)", "start", show=False, tooltip="replay: to the start"),
        Binding("end", "to(1.0)", "end", show=False, tooltip="replay: to the end"),
    ]

    class Moved(Message):
        """The cursor of the replay stands elsewhere."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.player: Player | None = None

    def action_step(self, by: int) -> None:
        if self.player is not None:
            self.player.step(by)
            self.post_message(self.Moved())

    def action_jump(self, share: float) -> None:
        if self.player is not None:
            self.player.jump(share)
            self.post_message(self.Moved())

    def action_to(self, share: float) -> None:
        if self.player is not None:
            self.player.to(share * self.player.end)
            self.post_message(self.Moved())

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if self.player is not None:
            self.player.to(column_time(self.player, event.x, self.size.width))
            self.post_message(self.Moved())
