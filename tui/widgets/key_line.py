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
from tui.widgets.keys import is_plain
from tui.widgets.lines import Line

FIRST = ("help", "back", "leave", "clear")


def _rank(binding: Binding) -> tuple[bool, bool, bool]:
    return binding.action not in FIRST, not binding.show, len(binding.key) > 9


class KeyLine(Line):
    """The bindings that are to be shown, of what has the focus first."""

    DEFAULT_CSS = "KeyLine { background: $panel; dock: bottom; }"

    def __init__(self) -> None:
        super().__init__("keys")
        self._bound: list[tuple[int, Binding, DOMNode]] = []  # with the column behind each

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._updated)
        self._updated(self.screen)

    def on_resize(self, event: events.Resize) -> None:
        self._updated(self.screen)
        super().on_resize(event)

    def _updated(self, screen: Screen) -> None:
        """Help and back first, for they must never be cut off; hidden keys where there is room left."""
        found: dict[str, tuple[Binding, DOMNode]] = {}
        for active in screen.active_bindings.values():
            binding = active.binding
            if binding.description and active.enabled and not is_plain(binding):
                found.setdefault(binding.action, (binding, active.node))
        ordered = sorted(found.values(), key=lambda each: _rank(each[0]))
        row: Row = [(" ", "")]
        self._bound = []
        column = 1
        for binding, node in ordered:
            key = self.app.get_key_display(binding)
            size = cell_len(f"{key} {binding.description}  ")
            if column + size > self.size.width + 2:
                continue
            row += [(key, "key"), (f" {binding.description}  ", "")]
            column += size
            self._bound.append((column, binding, node))
        self.show([row])

    async def on_click(self, event: events.Click) -> None:
        for end, binding, node in self._bound:
            if event.x < end:
                await self.app.run_action(binding.action, node)
                return
