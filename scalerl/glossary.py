"""The glossary: what every number, word and question of the screens means, from one file of data.

`glossary.toml` is the source; `docs/metrics.md` and the help screen are made from it. Fields of an `update` event,
numbers of a curve and words of a run are found by their bare name ("truncated", "A"); a field of another event by
the event's kind and its name ("eval.pass_rate"), since events share names.
"""

import difflib
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scalerl.errors import InputError

SOURCE = Path(__file__).with_name("glossary.toml")
EVENTS = ("event", "update", "eval", "sample", "phase", "done")  # groups whose entries are fields
QUALIFIED = ("eval", "sample", "phase", "done")  # of these, keys begin with the group
QUESTION = "question"


@dataclass(frozen=True)
class Entry:
    """One thing explained: Entry("eval.se", "eval", "standard error of an evaluation", ...).

    key: unique. group: "event" (of every event), "update", "eval", "sample", "phase", "done", "fit", "run" or
    "question". title: for a question, as a person asks it. definition: sentences with `code` and **emphasis**; for a
    question, the answer. formula, unit, moves (what moves the number): "" if there is none. see: keys of related
    entries.
    """

    key: str
    group: str
    title: str
    definition: str
    formula: str = ""
    unit: str = ""
    moves: str = ""
    see: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The field's name inside its event."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True)
class Section:
    """A group: its heading, a note or "", and its entries in the order of the file."""

    group: str
    heading: str
    note: str
    entries: tuple[Entry, ...]


@cache
def sections() -> tuple[Section, ...]:
    """The groups in the order of the file."""
    found: list[Section] = []
    for group, table in _source().items():
        if not isinstance(table, dict):
            continue
        prefix = f"{group}." if group in QUALIFIED else ""
        rows = {name: row for name, row in table.items() if isinstance(row, dict)}
        made = tuple(
            Entry(f"{prefix}{name}", group, **{**row, "see": tuple(row.get("see", ()))})
            for name, row in rows.items()
        )
        found.append(Section(group, table["heading"], table.get("note", ""), made))
    return tuple(found)


@cache
def entries() -> dict[str, Entry]:
    """Every entry by its key, in the order of the file."""
    return {each.key: each for section in sections() for each in section.entries}


def entry(key: str) -> Entry:
    """The entry of a key.

    Raises:
        InputError: there is none; names the nearest keys.
    """
    if key in entries():
        return entries()[key]
    near = difflib.get_close_matches(key, entries(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/metrics.md has them all"
    raise InputError(f"the glossary has no entry {key!r}: {hint}")


def markdown() -> str:
    """`docs/metrics.md`, the whole page."""
    parts = ["# Metrics", _source()["about"].strip()]
    for section in sections():
        parts += [f"## {section.heading}", section.note]
        if section.group == QUESTION:
            parts += [f"**{each.title}** {each.definition}" for each in section.entries]
        else:
            parts.append(_table(section.entries, section.group in EVENTS))
    return "\n\n".join(part for part in parts if part) + "\n"


@cache
def _source() -> dict[str, Any]:
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))


def _table(rows: Sequence[Entry], fields: bool) -> str:
    """Markdown; fields by their names, other entries by their titles; a column that is empty throughout is left out."""
    columns = [
        ("field" if fields else "term", [_name(row, fields) for row in rows]),
        ("definition", [_defined(row) for row in rows]),
        ("unit", [row.unit for row in rows]),
        ("what moves it", [row.moves for row in rows]),
    ]
    kept = [(head, cells) for head, cells in columns if any(cells)]
    lines = [_line(head for head, _ in kept), "|" + "---|" * len(kept)]
    lines += [_line(cells) for cells in zip(*(cells for _, cells in kept), strict=True)]
    return "\n".join(lines)


def _name(row: Entry, field: bool) -> str:
    return f"`{row.name}`" if field else f"{row.title} (`{row.key}`)"


def _defined(row: Entry) -> str:
    return f"{row.definition} `{row.formula}`" if row.formula else row.definition


def _line(cells: Iterable[str]) -> str:
    """A row of a table, in which a bar would end a cell."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
