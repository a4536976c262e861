"""The recipe editor: every knob, what it means and what is wrong with it; a new run or a file comes of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from scalerl.recipe import Recipe
from tui.edit.editing import Draft, Knob, exact
from tui.edit.stepping import Direction
from tui.widgets.knobs import KnobList, name_cells


@dataclass(frozen=True)
class Edited:
    """What came of it: the changes as KEY=VALUE, and whether to run them or that they were written to `path`."""

    overrides: tuple[str, ...]
    action: Literal["run", "save"]
    path: Path | None = None


class EditorScreen(Screen[Edited | None]):
    """Edit a copy of `parent`; the result is None if it was left. It never changes or overwrites anything.

    `seconds_per_update` is wall-clock time as measured on the parent, if it was.
    """

    CSS = """
    EditorScreen { layers: base over; }
    EditorScreen KnobList { layer: base; width: 100%; height: 100%; }
    EditorScreen Input {
        layer: over; display: none; height: 1; border: none; padding: 0;
        background: $panel;
        &.open { display: block; }
    }
    """
    TITLE = "The recipe editor"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "back", show=False)]

    def __init__(self, parent: Recipe, title: str, seconds_per_update: float | None) -> None:
        super().__init__()
        self.draft = Draft(parent)
        self.list = KnobList(self.draft, seconds_per_update)
        self.list.border_title = f"Recipe: {title}"
        self.input = Input(compact=True)
        self.input.cursor_blink = False
        self.purpose: Literal["value", "filter", "path"] = "value"

    def compose(self) -> ComposeResult:
        yield self.list
        yield self.input

    def on_mount(self) -> None:
        self.list.focus()

    # --- moving and changing ---

    def action_move(self, by: int) -> None:
        if self.list.mode == "diff":
            self.list.top = max(0, self.list.top + by)
        elif self.list.mode == "list":
            self.list.select(self.list.cursor + by)
        self._answer()

    def action_page(self, direction: Direction) -> None:
        self.action_move(direction * self.list.body_rows)

    def action_step(self, direction: Direction) -> None:
        knob = self._editable()
        if knob is None:
            return
        if not knob.steps:
            self._answer(f"{knob.key} is text: enter edits it")
            return
        self.draft.step(knob.key, direction)
        stays = self.draft.knob(knob.key).value == knob.value
        self._answer(f"{knob.key} ends here: {knob.allowed}" if stays else "")

    def action_edit(self) -> None:
        knob = self._editable()
        if knob is None:
            return
        if knob.choices is not None:
            self.action_step(1)
            return
        missing = knob.value is None and not knob.optional
        row = 1 + self.list.cursor - self.list.top
        self._open("value", "" if missing else exact(knob.value), name_cells(self._width) + 1, row)

    def action_revert(self) -> None:
        if knob := self._editable():
            self.draft.revert(knob.key)
            self._answer("" if knob.changed else f"{knob.key} is as it was")

    def action_revert_all(self) -> None:
        if self.list.mode == "list":
            self.draft.revert_all()
            self.list.select(self.list.cursor)
            self._answer()

    def _editable(self) -> Knob | None:
        return self.list.selected if self.list.mode == "list" else None

    # --- typing ---

    def action_filter(self) -> None:
        if self.list.mode == "list":
            self.list.asks = "filter: "
            self._open("filter", self.list.filter, len(self.list.asks), 0)

    def action_save(self) -> None:
        if self.list.mode != "list" or self._refuses("saved"):
            return
        self.list.asks = "save as: "
        self._open("path", str(free_path(self.draft.recipe().name)), len(self.list.asks), 0)

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.purpose == "filter" and self.list.typing:
            self.list.narrow(event.value)
            self._answer()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        knob = self.list.selected
        self._close()
        if self.purpose == "path":
            self._write(event.value.strip())
        elif self.purpose == "value" and knob is not None:
            self.draft.type(knob.key, event.value)
            self._answer()

    def _open(self, purpose: Literal["value", "filter", "path"], text: str, x: int, y: int) -> None:
        self.purpose, self.list.typing, self.list.notice = purpose, True, ""
        corner = self.list.content_region
        self.input.value = text
        self.input.styles.width = max(1, corner.width - x)
        self.input.styles.offset = (corner.x + x, corner.y + y)
        self.input.add_class("open")
        self.input.focus()
        self.list.redraw()

    def _close(self) -> None:
        self.list.typing, self.list.asks = False, ""
        self.input.remove_class("open")
        self.list.focus()
        self.list.redraw()

    def on_resize(self) -> None:
        if self.list.typing:  # it would stand in the wrong place
            self._close()

    # --- leaving ---

    def action_differences(self) -> None:
        if self.list.mode != "leaving":
            self.list.mode = "list" if self.list.mode == "diff" else "diff"
            self.list.top = 0
            self.list.select(self.list.cursor)
            self._answer()

    def action_run(self) -> None:
        if self.list.mode == "list" and not self._refuses("started"):
            self.dismiss(Edited(tuple(self.draft.overrides()), "run"))

    def action_back(self) -> None:
        """Out of what is innermost: an Input, the differences, the filter, the screen."""
        if self.list.typing:
            if self.purpose == "filter":
                self.list.narrow("")
            self._close()
        elif self.list.mode == "diff":
            self.action_differences()
        elif self.list.mode == "leaving":
            self.action_leave(False)
        elif self.list.filter:
            self.list.narrow("")
            self._answer()
        elif self.draft.changes():
            self.list.mode = "leaving"
            self._answer()
        else:
            self.dismiss(None)

    def action_leave(self, sure: bool) -> None:
        if self.list.mode == "leaving" and sure:
            self.dismiss(None)
        elif self.list.mode == "leaving":
            self.list.mode = "list"
            self._answer()

    def _write(self, name: str) -> None:
        path = Path(name).expanduser()
        begun = False
        try:
            with path.open("x", encoding="utf-8") as file:
                begun = True
                file.write(self.draft.toml())
        except FileExistsError:
            self._answer(f"Not saved: {name} is there already, and nothing is overwritten.")
        except OSError as error:
            if begun:  # half a recipe is none
                path.unlink(missing_ok=True)
            self._answer(f"Not saved: {name or 'no name'}: {error.strerror}.")
        else:
            self.dismiss(Edited(tuple(self.draft.overrides()), "save", path))

    def _refuses(self, what: str) -> bool:
        problem = self.draft.problem()
        if problem:
            self._answer(f"■ Not {what}: {problem}")
        return problem is not None

    def _answer(self, notice: str = "") -> None:
        self.list.notice = notice
        self.list.redraw()

    @property
    def _width(self) -> int:
        return self.list.size.width


def free_path(name: str) -> Path:
    """NAME.toml here, or the first of NAME-2.toml, NAME-3.toml ... that is not there."""
    path, i = Path(f"{name}.toml"), 1
    while path.exists():
        i += 1
        path = Path(f"{name}-{i}.toml")
    return path
