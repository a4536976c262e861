"""The last line of a screen: the keys that matter now, each to be clicked as well.

Textual's own footer is built anew at every change of focus, which takes longer than all the rest of
what a key does.
"""

from rich.cells import cell_len
from textual import events
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen

from tui.show.rows import Row
from tui.widgets.lines import Line


class KeyLine(Line):
    """The bindings that are to be shown, of what has the focus first."""

    DEFAULT_CSS = "KeyLine { background: $panel; dock: bottom; }"

    def __init__(self) -> None:
        super().__init__("keys")
        self._bound: list[tuple[int, Binding, DOMNode]] = []  # with the column behind each

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._updated)
        self._updated(self.screen)

    def _updated(self, screen: Screen) -> None:
        row: Row = [(" ", "")]
        self._bound = []
        column = 1
        seen: set[str] = set()
        for active in screen.active_bindings.values():
            binding = active.binding
            if not binding.show or not active.enabled or binding.action in seen:
                continue
            seen.add(binding.action)
            key = self.app.get_key_display(binding)
            row += [(key, "key"), (f" {binding.description}  ", "")]
            column += cell_len(f"{key} {binding.description}  ")
            self._bound.append((column, binding, active.node))
        self.show([row])

    async def on_click(self, event: events.Click) -> None:
        for end, binding, node in self._bound:
            if event.x < end:
                await self.app.run_action(binding.action, node)
                return
