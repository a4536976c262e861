"""Where runs go that the screens start, and the curves that are pinned behind others."""

from pathlib import Path
from typing import cast

import pytest
from driving import FakeStarts
from logs import recipe_of, whole_run, write_log

from scenarios.runs import begin
from scenarios.scenario import plan
from tui.watch.analysis import Stage, analyse
from tui.watch.child import ChildRun
from tui.watch.fleet import Fleet
from tui.watch.ghosts import paper_ghost

TINY = Path("runs/tiny/scalerl/seed-0")


def test_a_run_that_was_just_started_is_not_started_twice(starts: FakeStarts) -> None:
    fleet = Fleet(colourless=False)
    (wanted,) = plan("tiny")
    first = fleet.place_of(wanted)
    fleet.start(wanted.recipe, first)
    assert first == TINY and fleet.is_running(first) and fleet.live() == [starts.last]
    assert fleet.place_of(wanted) == TINY.with_name("seed-0.2")
    assert fleet.child(str(first)) is starts.last and fleet.child("elsewhere") is None


def test_an_unfinished_run_goes_on_in_its_folder_and_a_finished_one_beside_it(
    starts: FakeStarts,
) -> None:
    fleet = Fleet(colourless=False)
    TINY.mkdir(parents=True)
    begin(TINY, recipe_of())
    write_log(TINY / "events.jsonl", whole_run(40, planned=112, status="stopped"))
    assert fleet.again(TINY) == TINY
    write_log(TINY / "events.jsonl", whole_run())
    assert fleet.again(TINY) == TINY.with_name("seed-0.2")
    TINY.with_name("seed-0.2").mkdir()
    assert fleet.again(TINY.with_name("seed-0.2")) == TINY.with_name(
        "seed-0.2"
    )  # nothing done there
    assert fleet.place_for(recipe_of(), TINY) == TINY.with_name("seed-0.3")
    assert fleet.place_for(recipe_of(), None) == TINY.with_name("seed-0.3")


def test_what_ended_is_told_once_and_not_of_the_run_on_screen(starts: FakeStarts) -> None:
    fleet = Fleet(colourless=False)
    for name in ("a", "b", "c"):
        fleet.start(recipe_of(), Path(name))
    well, ill, watched = starts.children
    well.exit_code, ill.exit_code, watched.exit_code = 0, 1, 0
    on_screen = cast(ChildRun, watched)
    assert fleet.ended(on_screen) == [
        ("a: done", True),
        ("b: ended with exit code 1", False),
    ]
    assert fleet.ended(on_screen) == []
    assert fleet.ended(None) == [("c: done", True)]


def test_a_pin_is_put_and_taken_away(starts: FakeStarts) -> None:
    fleet = Fleet(colourless=False)
    found = analyse([e for e in whole_run() if e["kind"] == "eval"], [])
    assert found.curve is not None
    assert fleet.pin("one", "a", found.curve, found) and fleet.pin("two", "b", found.curve, found)
    assert [ghost.glyph for ghost in fleet.pinned.values()] == ["◆", "▲"]
    assert not fleet.pin("one", "a", found.curve, found) and list(fleet.pinned) == ["b"]


def test_a_curve_of_the_paper_is_scaled_where_its_compute_is_of_another_size() -> None:
    """Of some 2,500 GPU-h to its middle, against 50: its middle is laid on ours."""
    found = analyse([e for e in whole_run() if e["kind"] == "eval"], [])
    assert found.stage is Stage.FIT and found.made is not None
    ghost = paper_ghost("paper:Fig2/ScaleRL", found)
    assert ghost.analysis is not None and ghost.analysis.made is not None
    theirs = ghost.analysis.made.fit.C_mid
    assert ghost.scale * theirs == pytest.approx(found.made.fit.C_mid)
    near = analyse([e for e in whole_run(C_mid=40.0) if e["kind"] == "eval"], [])
    assert paper_ghost("paper:Fig2/ScaleRL", near).scale < 0.1
