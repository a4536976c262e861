"""A question with one line as its answer, and what one might mean: a path to write, a curve to add."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

MOST = 200  # suggestions listed at once


def matching(options: Sequence[str], text: str) -> list[str]:
    """Options that hold every word of the text, in any case and order."""
    words = text.lower().split()
    return [each for each in options if all(word in each.lower() for word in words)]


class Ask(ModalScreen[str | None]):
    """Asks for one line; None if it was left with esc.

    Enter takes the suggestion one has moved to; else what was typed, or the one suggestion that
    matches it. Tab puts the suggestion into the line.
    """

    DEFAULT_CSS = """
    Ask {
        align: center middle;
        & > Vertical {
            width: 76; max-width: 100%; height: auto; max-height: 90%;
            border: round $accent; background: $background; padding: 0 1;
        }
        & Label { color: $foreground 70%; width: 100%; }
        & OptionList { height: auto; max-height: 12; border: none; background: $background; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back"),
        Binding("down", "pick(1)", "next suggestion", show=False, priority=True),
        Binding("up", "pick(-1)", "previous suggestion", show=False, priority=True),
        Binding("tab", "complete", "complete", show=False, priority=True),
    ]

    def __init__(self, title: str, hint: str, value: str = "", options: Sequence[str] = ()) -> None:
        super().__init__()
        self._title, self._hint, self._value = title, hint, value
        self._options = list(options)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            yield Input(self._value, id="line", select_on_focus=False)
            if self._options:
                yield OptionList(id="options")
            yield Label(Content(self._hint))

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._list(self._value)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, text: str) -> None:
        if self._options:
            found = matching(self._options, text)[:MOST]
            options = self.query_one(OptionList)
            options.clear_options()
            options.add_options([Option(Content(each), id=None) for each in found])
            options.highlighted = None

    def _suggested(self) -> str | None:
        """The suggestion that is marked, or the only one there is."""
        if not self._options:
            return None
        found = matching(self._options, self.query_one(Input).value)[:MOST]
        marked = self.query_one(OptionList).highlighted
        if marked is not None:
            return found[marked]
        return found[0] if len(found) == 1 else None

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        self.dismiss(self._suggested() or event.value.strip() or None)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(matching(self._options, self.query_one(Input).value)[event.option_index])

    def action_pick(self, by: int) -> None:
        if self._options:
            options = self.query_one(OptionList)
            options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def action_complete(self) -> None:
        line, found = self.query_one(Input), self._suggested()
        if found is not None:
            line.value = found
            line.cursor_position = len(found)

    def action_leave(self) -> None:
        self.dismiss(None)
