"""What is left when a process is killed: words and a way out, never an orphan."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import SCALERL, environment
from tmux import Tmux, is_alive, runs_of, until

LOG = "runs/tiny/scalerl/seed-0/events.jsonl"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Tmux]:
    """The app, and a run of its own that has evaluated once."""
    pane = Tmux(SCALERL, environment(tmp_path))
    pane.expect("Start the tiny run")
    pane.send("Enter")
    pane.expect("● LIVE", "the fit needs")
    yield pane
    pane.close()


def kinds(place: Path) -> list[str]:
    """Of the events so far."""
    whole, _, _ = (place / LOG).read_text().rpartition("\n")
    return [json.loads(line)["kind"] for line in whole.splitlines()]


def test_a_killed_run_says_so_and_is_taken_up_again(watched: Tmux, tmp_path: Path) -> None:
    [run] = runs_of(tmp_path)
    os.kill(run, signal.SIGKILL)
    watched.expect("killed by SIGKILL", "r take it up again")
    assert runs_of(tmp_path) == []

    watched.send("r")
    assert until(lambda: kinds(tmp_path).count("resume") == 1, 30.0), watched.text
    watched.expect("● LIVE")
    [again] = runs_of(tmp_path)
    assert again != run

    watched.send("q")
    watched.expect("s  stop it")
    watched.send("s")
    assert until(lambda: not watched.alive, 60.0), watched.text
    assert runs_of(tmp_path) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
def test_a_run_does_not_outlive_its_screen(
    watched: Tmux, tmp_path: Path, how: signal.Signals
) -> None:
    [run] = runs_of(tmp_path)
    os.kill(watched.pid, how)
    assert until(lambda: not is_alive(run), 20.0)
    assert not is_alive(watched.pid)
    last = json.loads((tmp_path / LOG).read_text().splitlines()[-1])
    assert (last["kind"], last["status"]) == ("done", "stopped")  # it can be taken up again
