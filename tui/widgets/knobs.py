"""The list of knobs of the recipe editor: names, values and, in words under it, the selected one."""

import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from textual import events
from textual.binding import Binding, BindingType

from tui.edit.editing import Draft, Knob, shown
from tui.show.rows import Row, cut, ends, joined, row_width, wrapped
from tui.widgets.panel import Panel
from tui.words import duration

NAME_CELLS = 35  # the longest key has 33
DETAIL_ROWS = 5  # help and range of the selected knob, and what is to be said
TALL, TALL_DETAIL_ROWS = 30, 8  # from this height on there is room for more of it
LIST_KEYS = (
    ("←→", "change"),
    ("enter", "type"),
    ("z", "undo"),
    ("Z", "undo all"),
    ("/", "filter"),
    ("d", "differences"),
    ("r", "run as new"),
    ("s", "save"),
    ("esc", "leave"),
)
DIFF_KEYS = (("↑↓", "scroll"), ("d", "back"))
INPUT_KEYS = (("enter", "take"), ("esc", "cancel"))
LEAVE_KEYS = (("y", "discard"), ("n", "go on editing"))


class KnobList(Panel):
    """The list, and under it the selected knob in words. It draws; the screen around it acts on its keys."""

    can_focus = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.move(-1)", "up", show=False),
        Binding("down,j", "screen.move(1)", "down", show=False),
        Binding("pageup", "screen.page(-1)", "page up", show=False),
        Binding("pagedown", "screen.page(1)", "page down", show=False),
        Binding("home", "screen.move(-1000)", "first", show=False),
        Binding("end", "screen.move(1000)", "last", show=False),
        Binding("left", "screen.step(-1)", "value down, or the choice before", show=False),
        Binding("right", "screen.step(1)", "value up, or the next choice", show=False),
        Binding("enter", "screen.edit", "type a value", show=False),
        Binding("z", "screen.revert", "undo this change", show=False),
        Binding("Z", "screen.revert_all", "undo all changes", show=False),
        Binding("slash", "screen.filter", "show only knobs with these letters", show=False),
        Binding("d", "screen.differences", "show the differences as TOML", show=False),
        Binding("r", "screen.run", "run as a new run", show=False),
        Binding("s", "screen.save", "save as a recipe file", show=False),
        Binding("y", "screen.leave(True)", show=False),
        Binding("n", "screen.leave(False)", show=False),
    ]

    def __init__(self, draft: Draft, seconds_per_update: float | None) -> None:
        super().__init__()
        self.draft, self.seconds_per_update = draft, seconds_per_update
        self.mode: Literal["list", "diff", "leaving"] = "list"
        self.asks = ""  # what an open Input in the first row is for
        self.typing = False
        self.filter = ""
        self.notice = ""  # answers the last key; gone with the next
        self.cursor = self.top = 0
        self.body_rows = 1

    @property
    def knobs(self) -> list[Knob]:
        """Those that the filter lets through: every word stands in the key or the help."""
        words = self.filter.lower().split()
        return [
            knob
            for knob in self.draft.rows()
            if all(word in f"{knob.key} {knob.help}".lower() for word in words)
        ]

    @property
    def selected(self) -> Knob | None:
        """The knob under the cursor; None if the filter lets none through."""
        return self.knobs[self.cursor] if self.cursor < len(self.knobs) else None

    def rows(self, width: int, height: int) -> Sequence[Row]:
        problem = self.draft.problem()
        keys = key_rows(self._keys(), width)
        # As many rows as in the list, so that nothing moves under an open Input.
        keys += [[]] * (len(key_rows(LIST_KEYS, width)) - len(keys))
        detail = self._detail(width, DETAIL_ROWS if height < TALL else TALL_DETAIL_ROWS, problem)
        self.body_rows = max(1, height - 2 - len(detail) - len(keys))
        body = self._differences(width) if self.mode == "diff" else self._list(width, problem)
        if self.mode != "diff":
            self.top = max(min(self.top, self.cursor), self.cursor - self.body_rows + 1)
        self.top = max(0, min(self.top, len(body) - self.body_rows))
        body = body[self.top : self.top + self.body_rows]
        body += [[]] * (self.body_rows - len(body))
        rule: Row = [("─" * width, "muted")]
        return [self._head(width, problem), *body, rule, *detail, *keys]

    def select(self, index: int) -> None:
        """Put the cursor on a row of those that the filter lets through."""
        self.cursor = max(0, min(index, len(self.knobs) - 1))

    def narrow(self, words: str) -> None:
        """Filter; the cursor stays on its knob if that is let through."""
        key = self.selected.key if self.selected else ""
        self.filter = words
        self.cursor = next((i for i, knob in enumerate(self.knobs) if knob.key == key), 0)

    def _keys(self) -> Sequence[tuple[str, str]]:
        if self.mode == "leaving":
            return LEAVE_KEYS
        return INPUT_KEYS if self.typing else DIFF_KEYS if self.mode == "diff" else LIST_KEYS

    def _head(self, width: int, problem: str | None) -> Row:
        if self.asks:
            return [(self.asks, "strong")]
        changes = len(self.draft.changes())
        facts: list[Row] = [[(count(changes, "change"), "strong" if changes else "muted")]]
        if problem:
            facts.append([("■ invalid", "danger")])
        elif doubts := len(self.draft.warnings()):
            facts.append([(f"▲ {count(doubts, 'warning')}", "watch")])
        updates = self.draft.knob("site.updates").value
        if self.seconds_per_update and isinstance(updates, int) and 0 < updates < 10**9:
            facts.append([(f"about {duration(self.seconds_per_update * updates)}", "")])
        left = "always a new run: the old one stays as it is"
        if self.filter:
            left = f"/{self.filter}: {len(self.knobs)} of {len(self.draft.rows())}"
        return ends([(left, "muted")], joined(facts, " · "), width)

    def _list(self, width: int, problem: str | None) -> list[Row]:
        fault = re.match(r"'?([\w.]*)", problem or "")
        at_fault = fault[1] if fault else ""
        found = [
            knob_row(
                knob,
                width,
                selected=i == self.cursor,
                wrong=bool(at_fault) and f"{knob.key}.".startswith(f"{at_fault}."),
            )
            for i, knob in enumerate(self.knobs)
        ]
        return found or [[("no knob matches; esc clears the filter", "muted")]]

    def _differences(self, width: int) -> list[Row]:
        toml = self.draft.differences()
        if not toml:
            return [[("nothing differs from the parent", "muted")]]
        rows: list[Row] = [cut([(line, "")], width) for line in toml.rstrip().split("\n")]
        rows += [[], [("on the command line:", "muted")]]
        return rows + [cut([(part, "")], width) for part in self.draft.overrides()]

    def _detail(self, width: int, height: int, problem: str | None) -> list[Row]:
        rows: list[Row] = []
        if self.mode == "leaving":
            question = f"Discard {count(len(self.draft.changes()), 'change')}?"
            rows.append([(question, "strong")])
        else:
            if knob := self.selected:
                words = [knob.help.rstrip("."), f"Allowed: {knob.allowed}"]
                rows += wrapped(". ".join(filter(None, words)), width)
            rows += self._messages(width, problem)
        if len(rows) > height:
            rows = [*rows[: height - 1], cut([*rows[height - 1], (" " * width, "")], width)]
        return rows + [[]] * (height - len(rows))

    def _messages(self, width: int, problem: str | None) -> list[Row]:
        """The answer to the last key, what is wrong, or the doubts, those about the selected knob first."""
        if self.notice:
            role = "danger" if self.notice.startswith("■") else "watch"
            return wrapped(self.notice, width, role)
        if problem:
            return wrapped(f"■ {problem}", width, "danger")
        knob = self.selected
        doubts = sorted(
            self.draft.warnings(), key=lambda doubt: knob is None or knob.key not in doubt
        )
        return [row for doubt in doubts for row in wrapped(f"▲ {doubt}", width, "watch")]

    def on_click(self, event: events.Click) -> None:
        row = event.y - self.content_region.y + self.region.y - 1
        if self.mode == "list" and 0 <= row < self.body_rows:
            self.select(self.top + row)
            self.redraw()

    def on_mouse_scroll_down(self) -> None:
        self.call_later(self.screen.run_action, "move(1)")

    def on_mouse_scroll_up(self) -> None:
        self.call_later(self.screen.run_action, "move(-1)")


def knob_row(knob: Knob, width: int, *, selected: bool, wrong: bool) -> Row:
    """Marker, key, value, and what it was; of a choice all values where there is room."""
    cells = name_cells(width) - 2
    name = knob.key if len(knob.key) <= cells else f"…{knob.key[1 - cells :]}"
    mark = ("■", "danger") if wrong else ("*", "watch") if knob.changed else (" ", "")
    row: Row = [("▸" if selected else " ", "strong"), mark]
    row += [(name, "cursor" if selected else ""), (" " * (cells - len(name) + 1), "")]
    was: Row = []
    if knob.changed:
        was = [(f"  {'was' if knob.inherited else 'default'} {shown(knob.before)}", "muted")]
    return cut([*row, *value_spans(knob, width - row_width(row) - row_width(was)), *was], width)


def value_spans(knob: Knob, room: int) -> Row:
    """The value between the signs that say that ← and → change it."""
    if knob.value is None and not knob.optional:
        return [("needed: press enter", "danger")]
    if not knob.steps:
        return [(shown(knob.value) or '""', "strong")]
    chosen: Row = [("‹ ", "key"), (shown(knob.value), "strong"), (" ›", "key")]
    if knob.choices is None:
        return chosen
    every = [chosen if each == knob.value else [(shown(each), "muted")] for each in knob.choices]
    line = joined(every, " ")
    return line if row_width(line) <= room else chosen


def key_rows(keys: Sequence[tuple[str, str]], width: int) -> list[Row]:
    """Keys and what they do, in as many rows as they take."""
    rows: list[Row] = [[]]
    for key, does in keys:
        part: Row = [(key, "key"), (f" {does}", "muted")]
        tried = joined([rows[-1], part])
        if row_width(tried) > width:
            rows.append(part)
        else:
            rows[-1] = tried
    return rows


def name_cells(width: int) -> int:
    """Cells before the values: two marks, the key, a space."""
    return min(NAME_CELLS, width * 9 // 20)


def count(number: int, noun: str) -> str:
    """1 change, 2 changes."""
    return f"{number} {noun}" + ("s" if number != 1 else "")
