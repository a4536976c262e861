"""The mutants of `tests/mutants/` still apply to the code as it is, and the page that lists them knows them all."""

from pathlib import Path

import pytest
from mutate import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = list(mutants())
PAGE = (ROOT / "docs/invariants.md").read_text()


def test_there_are_enough_and_no_two_of_one_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_is_python(mutant: Mutant) -> None:
    text = mutant.applied((ROOT / mutant.file).read_text())
    compile(text, mutant.file, "exec")
    assert all((ROOT / path).exists() for path in mutant.tests)
    assert f"| {mutant.name} |" in PAGE, "make mutants writes docs/invariants.md"


def test_the_page_has_every_row(request: pytest.FixtureRequest) -> None:
    """Of the tests that are collected together with this one."""
    marks = [
        mark
        for item in request.session.items
        for name in ("invariant", "report")
        for mark in item.iter_markers(name)
    ]
    assert [mark.args[0] for mark in marks if f"| {mark.args[0]} |" not in PAGE] == []


def test_an_id_means_one_law(request: pytest.FixtureRequest) -> None:
    marks = [m for item in request.session.items for m in item.iter_markers("invariant")]
    meant: dict[str, set[tuple[str, ...]]] = {}
    for mark in marks:
        if len(mark.args) > 1:
            meant.setdefault(mark.args[0], set()).add(mark.args)
    assert [id for id, texts in meant.items() if len(texts) > 1] == []
