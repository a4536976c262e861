"""What a run's process printed, and where its files lie."""

import shlex
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.watch.child import last_words
from tui.watch.session import Session
from tui.words import printable

LINES = 400


class LogScreen(ModalScreen[None]):
    """The console log of a run of this machine; of any run its source and what its reader says."""

    DEFAULT_CSS = """
    LogScreen {
        align: center middle;
        & > VerticalScroll {
            width: 96%; height: 90%; border: round $foreground 35%; background: $background; padding: 0 1;
        }
        & Static { width: 1fr; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,v", "leave", "close"),
        Binding("home", "top", "first line", show=False),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = Content(f"Log of {printable(self._session.name)}")
            box.border_subtitle = "↑↓ scroll  esc close"
            yield Static(Content(self._text()))

    def on_mount(self) -> None:
        box = self.query_one(VerticalScroll)
        box.focus()
        box.scroll_end(animate=False)

    def _text(self) -> str:
        session = self._session
        about = [f"source: {session.source}", f"state: {session.says}"]
        if (store := session.store).unknown:
            kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(store.unknown.items()))
            about.append(f"kinds of event that are not shown: {kinds}")
        if session.recorded is not None:
            about.append(f"recorded to: {session.recorded}")
        folder = session.folder
        if folder is None:
            return "\n".join(
                [*map(printable, about), "", "what its process printed is where it runs"]
            )
        lines = last_words(folder, LINES)
        printed = [printable(line) for line in lines] or [
            "its process has printed nothing to console.log"
        ]
        recipe, out = shlex.quote(f"{folder}/recipe.toml"), shlex.quote(str(folder))
        resume = f"to resume:  scalerl run {recipe} --out {out}"
        return "\n".join([*map(printable, about), printable(resume), "", *printed])

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_top(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)
