"""The help screen: the keys of the screen one came from, its numbers now, questions, and every term there is."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from scalerl.glossary import QUESTION, Entry, entries, entry, sections

# What a person reads comes first, what only a program reads last.
ORDER = ("fit", "run", "update", "eval", "sample", "phase", "done", "event")
STYLES = {"`": "$accent", "**": "bold"}
HINT = "/ filter  ↑↓ move  → read on  1-9 see also  esc close"


@dataclass(frozen=True)
class Line:
    """One row of the list: a key (`entry` is None), or an entry, with its value now if the screen shows it."""

    id: str  # unique: an entry may stand under two headings
    title: str
    note: str = ""  # the value now; of a key, what it does
    entry: Entry | None = None

    def fits(self, query: str) -> int:
        """How well a query names it: 3 by its title or key, 2 where they begin so, 1 where they hold it."""
        names = [self.title.lower().strip("? "), self.entry.key.lower() if self.entry else ""]
        asked = query.strip("? ")
        if asked in names:
            return 3
        return 2 if any(n.startswith(asked) for n in names) else int(any(asked in n for n in names))

    def has(self, words: list[str]) -> bool:
        """Whether every word stands somewhere in it."""
        about = f"{self.entry.key} {self.entry.definition}" if self.entry else ""
        place = f"{self.title} {self.note} {about}".lower()
        return all(word in place for word in words)


class HelpScreen(ModalScreen[None]):
    """Context help over the screen one came from.

    Args:
        title: of that screen.
        keys: (key, what it does) on that screen.
        terms: (glossary key, value now or "") of the numbers it shows.
        first: glossary key to open at.

    Raises:
        InputError: a key that is not in the glossary.
    """

    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
        #help {
            max-width: 120; max-height: 40; background: $background;
            border: round $accent; border-title-color: $foreground; border-title-style: bold;
        }
        #filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
        #filter.-open { display: block; }
        #panes { layout: horizontal; height: 1fr; }
        #list {
            width: 36; height: 1fr; border: none; padding: 0; background: $background; scrollbar-size-vertical: 1;
            & > .option-list--option-disabled { color: $accent; text-style: bold; }
        }
        #shown { width: 1fr; height: 1fr; padding: 0 1; border-left: vkey $foreground 35%; scrollbar-size-vertical: 1; }
        #text { width: 1fr; height: auto; }
        #hint { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis; }
        &.-narrow {
            #panes { layout: vertical; }
            #list { width: 1fr; height: 2fr; }
            #shown { height: 3fr; border-left: none; border-top: solid $foreground 35%; }
        }
        &.-broad #list { width: 46; }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (70, "-normal"), (110, "-broad")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding("escape,question_mark", "leave", "close", show=False),
        Binding("slash", "filter", "filter", show=False),
        Binding("down,j", "move(1)", "next", show=False),
        Binding("up,k", "move(-1)", "previous", show=False),
        Binding("enter", "enter", "read on", show=False, priority=True),
        Binding("right", "read(1)", "read on", show=False),
        Binding("left", "read(-1)", "back", show=False),
        *(Binding(str(n), f"see({n})", "see also", show=False) for n in range(1, 10)),
    ]

    def __init__(
        self,
        title: str,
        keys: list[tuple[str, str]],
        terms: list[tuple[str, str]],
        first: str | None = None,
    ) -> None:
        super().__init__()
        self._title = title
        self._first = entry(first).key if first else None
        self._groups = list(_groups(keys, terms))
        self._lines = {line.id: line for _, lines in self._groups for line in lines}

    def compose(self) -> ComposeResult:
        with Vertical(id="help") as frame:
            frame.border_title = f"Help · {self._title}"
            field = Input(placeholder="words to look for", id="filter", compact=True)
            field.cursor_blink = False
            yield field
            with Container(id="panes"):
                yield OptionList(id="list")
                yield VerticalScroll(Static(id="text"), id="shown", can_focus=False)
            yield Static(HINT, id="hint", markup=False)

    def on_mount(self) -> None:
        self._list.focus()
        self._fill("")
        if self._first:
            self._go_to(self._first)

    def on_resize(self) -> None:
        self.call_after_refresh(self._list.scroll_to_highlight)

    # --- the list ---

    @property
    def _list(self) -> OptionList:
        return self.query_one("#list", OptionList)

    def _fill(self, query: str) -> None:
        """List what holds every word of the query, and stay where one was if that is still there."""
        words = query.lower().split()
        kept, seen = self._chosen(), set[str]()
        options: list[Option] = []
        for heading, lines in self._groups:
            found = [line for line in lines if line.has(words)]
            if words:  # under one heading only
                found = [line for line in found if not (line.entry and line.entry.key in seen)]
                seen |= {line.entry.key for line in found if line.entry}
            if found:
                options.append(Option(f"─ {heading}", disabled=True))
                options += [Option(_row(line), id=line.id) for line in found]
        self._list.set_options(options)
        ids = [option.id for option in options if option.id]
        if not ids:
            self._show(Content("Nothing has all of these words. esc clears the filter."))
            return
        wanted = kept.id if kept and kept.id in ids else ids[0]
        named = max(ids, key=lambda each: self._lines[each].fits(query.lower()))
        if words and self._lines[named].fits(query.lower()):
            wanted = named
        self._list.highlighted = self._list.get_option_index(wanted)

    def _chosen(self) -> Line | None:
        option = self._list.highlighted_option
        return self._lines[option.id] if option and option.id else None

    def _go_to(self, key: str) -> None:
        """The first row of an entry; a filter that hides it is dropped."""
        field = self.query_one("#filter", Input)
        if field.value:
            with field.prevent(Input.Changed):
                field.value = ""
            self._close_filter()
        at = next(line.id for line in self._lines.values() if line.entry and line.entry.key == key)
        self._list.highlighted = self._list.get_option_index(at)

    # --- the pane ---

    def _show(self, content: Content) -> None:
        self.query_one("#text", Static).update(content)
        self.query_one("#shown").scroll_home(animate=False)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        if line := self._chosen():
            self._show(explained(line))

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._fill(event.value)

    # --- keys ---

    def action_move(self, step: int) -> None:
        """Up or down the list; out of the filter, into it."""
        if not self._list.has_focus:
            self._list.focus()
        elif step > 0:
            self._list.action_cursor_down()
        else:
            self._list.action_cursor_up()

    def action_enter(self) -> None:
        """Out of the filter, into the list; there, read on."""
        if self._list.has_focus:
            self.action_read(1)
        else:
            self._list.focus()

    def action_read(self, pages: int) -> None:
        """Scroll the text by pages, less a line to hold on to."""
        pane = self.query_one("#shown")
        pane.scroll_relative(y=pages * max(pane.size.height - 1, 1), animate=False)

    def action_see(self, n: int) -> None:
        """Go to the n-th entry that the present one names."""
        line = self._chosen()
        if line and line.entry and n <= len(line.entry.see):
            self._go_to(line.entry.see[n - 1])

    def action_filter(self) -> None:
        """Open the filter."""
        field = self.query_one("#filter", Input)
        field.add_class("-open")
        field.focus()

    def action_leave(self) -> None:
        """Clear the filter if there is one, else close."""
        if self.query_one("#filter").has_class("-open"):
            self._close_filter()
        else:
            self.dismiss(None)

    def _close_filter(self) -> None:
        field = self.query_one("#filter", Input)
        with field.prevent(Input.Changed):
            field.value = ""
        field.remove_class("-open")
        self._fill("")
        self._list.focus()


def _groups(
    keys: list[tuple[str, str]], terms: list[tuple[str, str]]
) -> Iterator[tuple[str, list[Line]]]:
    """Headings with their rows."""
    widest = max((len(key) for key, _ in keys), default=0)
    here = [Line(f"here:{key}", entry(key).title, value, entry(key)) for key, value in terms]
    yield "Numbers on this screen", here
    yield "Keys here", [Line(f"key:{key}", f"{key:{widest}}", does) for key, does in keys]
    found = {section.group: section for section in sections()}
    now = dict(terms)
    for group in (QUESTION, *ORDER):
        heading = "Questions" if group == QUESTION else f"All terms · {found[group].heading}"
        lines = [
            Line(f"all:{each.key}", each.title, now.get(each.key, ""), each)
            for each in found[group].entries
        ]
        yield heading.replace("`", ""), lines


def _row(line: Line) -> Content:
    """A row of the list; a key stands before what it does, a value after its title."""
    if line.entry is None:
        return Content.assemble((line.title, "bold"), "  ", line.note)
    return Content.assemble(line.title, "  " if line.note else "", (line.note, "bold"))


def explained(line: Line) -> Content:
    """The text of the pane for a row of the list."""
    found = line.entry
    if found is None:
        return Content.assemble((line.title, "bold"), "\n\n", line.note)
    parts: list[Content] = [Content.styled(found.title, "bold")]
    if found.group != QUESTION:
        now = Content.styled(f"   now {line.note}", "bold") if line.note else Content()
        parts.append(Content.styled(found.key, "$text-muted") + now)
    parts += [Content(), _marked(found.definition)]
    if found.formula:
        parts += [Content(), Content.styled(f"  {found.formula}", "bold $accent")]
    facts = [("unit", found.unit), ("what moves it", found.moves)]
    for name, said in facts:
        if said:
            parts += [Content(), Content.styled(f"{name}: ", "$text-muted") + _marked(said)]
    if found.see:
        parts += [Content(), Content.styled("see also", "$text-muted")]
        for n, key in enumerate(found.see, 1):
            parts.append(Content.assemble((f" {n} ", "bold"), entries()[key].title))
    return Content("\n").join(parts)


def _marked(words: str) -> Content:
    """`code` and **emphasis** as styles, without their marks."""
    pieces = re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", words)
    styled = []
    for piece in pieces:
        mark = next((mark for mark in STYLES if len(piece) > 2 and piece.startswith(mark)), None)
        styled.append((piece.strip("`*"), STYLES[mark]) if mark else piece)
    return Content.assemble(*styled)
