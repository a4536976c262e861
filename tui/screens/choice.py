"""A question with a few answers, each on a key of its own."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option


class Choice(ModalScreen[str | None]):
    """Asks, and is dismissed with the key of the answer; None if it was left with esc.

    answers: (key, what it does). The first one is marked, or with `careful` the way back.
    """

    DEFAULT_CSS = """
    Choice {
        align: center middle;
        & > Vertical {
            width: 70; max-width: 100%; height: auto; max-height: 90%;
            border: round $accent; background: $background; padding: 0 1;
        }
        & Label { width: 100%; margin-bottom: 1; }
        & OptionList { height: auto; border: none; background: $background; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "back")]

    def __init__(
        self,
        title: str,
        question: str,
        answers: Sequence[tuple[str, str]],
        *,
        careful: bool = False,
    ) -> None:
        super().__init__()
        self._careful = careful
        self._title, self._question = title, question
        self._answers = list(answers)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            yield Label(Content(self._question))
            yield OptionList(
                *(Option(Content(f"{key}  {what}"), id=key) for key, what in self._answers),
                Option(Content("esc  back"), id="escape"),
            )

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.focus()
        options.highlighted = len(self._answers) if self._careful else 0

    def on_key(self, event: Key) -> None:
        if event.character in [key for key, _ in self._answers]:
            event.stop()
            self.dismiss(event.character)

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(None if event.option_id == "escape" else event.option_id)

    def action_leave(self) -> None:
        self.dismiss(None)
