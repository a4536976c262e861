"""The base of every panel: rows with roles, of which only those that changed are painted again."""

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.show.rows import Row
from tui.show.themes import role_styles


class Panel(Widget):
    """A titled pane. A subclass says what it shows in `rows(width, height)` and calls `redraw()` when that changed."""

    DEFAULT_CSS = """
    Panel {
        border: round $foreground 35%;
        border-title-color: $foreground;
        border-title-style: bold;
        border-subtitle-color: $foreground 70%;
        padding: 0;
        background: $background;
        &:focus { border: round $accent; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._shown: list[Row] = []
        self._styles: tuple[str, dict[str, Style]] = ("", {})  # of a theme, by role

    def rows(self, width: int, height: int) -> Sequence[Row]:
        """What stands in the pane now, at most `height` rows of `width` cells."""
        return []

    def redraw(self) -> None:
        """Ask for the rows again and paint those that differ."""
        width, height = self.size
        if not width or not height:
            return
        new = list(self.rows(width, height))[:height]
        old, self._shown = self._shown, new
        if not old:
            self.refresh()
            return
        for y in range(max(len(new), len(old))):
            if y >= len(new) or y >= len(old) or new[y] != old[y]:
                self.refresh(Region(0, y, width, 1))

    def on_resize(self, event: events.Resize) -> None:
        self._shown = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        width = self.size.width
        if y >= len(self._shown):
            return Strip.blank(width, base)
        styles = self._role_styles()
        segments = [
            Segment(part, base + styles.get(role, Style())) for part, role in self._shown[y]
        ]
        return Strip(segments).adjust_cell_length(width, base)

    def _role_styles(self) -> dict[str, Style]:
        theme = self.app.current_theme
        if self._styles[0] != theme.name:
            self._styles = (theme.name, role_styles(theme.name, theme.dark))
        return self._styles[1]

    @property
    def plain(self) -> str:
        """What is shown, as text: for tests and for copying."""
        return "\n".join("".join(part for part, _ in row).rstrip() for row in self._shown)
