"""The tables of `docs/invariants.md`: laws of losses, laws of our other parts, and which mutant fell to which."""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mutate import Outcome

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- tables: made by `make mutants` -->", "<!-- end of the tables -->"


class Rows:
    """A pytest plugin: the rows that markers define, and the tests that hold them."""

    def __init__(self) -> None:
        self.invariants: dict[str, tuple[str, ...]] = {}
        self.reports: dict[str, tuple[str, ...]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            for name, found in (("invariant", self.invariants), ("report", self.reports)):
                for mark in item.iter_markers(name):
                    if len(mark.args) > len(found.get(mark.args[0], ())):
                        found[mark.args[0]] = mark.args


def collect() -> Rows:
    """From the markers of all invariant tests, without running them."""
    rows = Rows()
    quiet = ["-q", "--collect-only", "-p", "no:cacheprovider"]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        pytest.main([*quiet, str(ROOT / "tests/invariants")], plugins=[rows])
    return rows


def tables(outcomes: "list[Outcome]") -> str:
    """Markdown."""
    rows = collect()
    from scalerl.invariants import CATALOGUE  # only now: pytest rewrites what it imports itself

    of_losses = {law.id: (law.id, law.statement, law.formula, law.fault) for law in CATALOGUE}
    others = {id: row for id, row in rows.invariants.items() if id not in of_losses}
    lines = [
        "## Laws of policy losses",
        "",
        "`scalerl check` holds these against a loss of yours, in this order.",
        "",
    ]
    lines += _table(("id", "law", "formula", "seen in"), of_losses.values())
    lines += ["", "## Laws of our other parts", ""]
    lines += _table(("id", "law", "formula", "seen in"), (others[id] for id in sorted(others)))
    lines += [
        "",
        "## Faults that others reported",
        "",
        "Each row's smallest input is a test with the right value.",
        "",
    ]
    lines += _table(("id", "where", "what"), (rows.reports[id] for id in sorted(rows.reports)))
    lines += ["", "## Mutants", ""]
    lines.append(
        f"{len(outcomes)} faulty versions of our own functions, all noticed; by which rows:"
    )
    lines.append("")
    noticed = ((o.mutant.name, f"`{o.mutant.file}`", " ".join(o.killers)) for o in outcomes)
    lines += _table(("mutant", "file", "noticed by"), noticed)
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Any) -> list[str]:
    body = [_row((*row, *[""] * (len(head) - len(row)))) for row in rows]
    return [_row(head), "|".join(["", *["---"] * len(head), ""]), *body]


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def write(page: Path, outcomes: "list[Outcome]") -> None:
    """Replace what stands between the two marks."""
    text = page.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    page.write_text(f"{before}{START}\n\n{tables(outcomes)}\n\n{END}{after}")
