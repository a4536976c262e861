"""The app in tmux, from the first run to the question at its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import SCALERL, environment
from tmux import Tmux, is_alive, runs_of, until

HOME = "Start the tiny run"
FIRST_EVALUATION = "the fit needs"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Tmux]:
    """The home screen, 100 by 30."""
    pane = Tmux(SCALERL, environment(tmp_path))
    pane.expect(HOME)
    yield pane
    pane.close()


def edit_updates(app: Tmux, number: int) -> None:
    """In the recipe editor: the number of updates."""
    app.send("/")
    app.expect("filter: ")
    app.type("site.updates")
    app.expect("▸ site.updates")
    app.send("Enter")
    app.expect("/site.updates: 1 of")
    app.send("Enter")
    app.expect("enter take")
    app.send("C-u")
    app.type(str(number))
    app.send("Enter")
    app.expect("1 change", f"‹ {number} ›")


def test_run_change_compare_replay_quit(app: Tmux, tmp_path: Path) -> None:
    app.send("Enter")
    app.expect("tiny/scalerl/seed-0", "● LIVE", FIRST_EVALUATION)
    app.send("p")
    app.expect("pinned: it stands behind the next run")

    app.send("e")
    app.expect("Recipe: ", "always a new run")
    edit_updates(app, 8)
    app.send("r")
    app.expect("tiny/scalerl/seed-0.2", FIRST_EVALUATION)
    assert len(runs_of(tmp_path)) == 2
    app.expect("tiny/scalerl/seed-0.2", "update 8/8", seconds=60.0)
    assert until(lambda: len(runs_of(tmp_path)) == 1, 20.0)

    app.send("c")
    both = app.expect("Compare", "seed-0.2")
    assert both.count("seed-0") >= 2
    app.send("Escape")
    app.expect("[1]", "update 8/8")
    app.send("Escape")
    app.expect(HOME, "seed-0.2")

    app.send("Home", "Down", "Enter")
    app.expect("REPLAY tiny.jsonl.gz", "┃")
    app.send("End")
    app.expect("update 112/112")
    app.send("Left", "Left")
    app.expect("update 111/112")  # the first was to the clock of update 112
    app.send("Home")
    app.expect("0s / ")

    app.send("q")
    app.expect("Still running: ", "s  stop it")
    app.send("s")
    assert until(lambda: not app.alive, 60.0), app.text
    assert runs_of(tmp_path) == []
    assert not is_alive(app.pid)


def test_a_run_can_be_left_running(app: Tmux, tmp_path: Path) -> None:
    app.send("Enter")
    app.expect(FIRST_EVALUATION)
    app.send("q")
    app.expect("l  leave it running")
    app.send("l")
    assert until(lambda: not app.alive, 10.0), app.text
    [left] = runs_of(tmp_path)

    again = Tmux(
        [*SCALERL, "watch", str(tmp_path / "runs/tiny/scalerl/seed-0")], environment(tmp_path)
    )
    try:
        again.expect("● LIVE", FIRST_EVALUATION)
        again.send("s")
        again.expect("r takes it up", seconds=30.0)
        assert until(lambda: not is_alive(left), 20.0)
        again.send("q")
        assert until(lambda: not again.alive, 10.0), again.text
    finally:
        again.close()
