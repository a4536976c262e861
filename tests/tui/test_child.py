"""Real child processes: stopped, let go, killed, taken up again, and never orphaned. Each start imports torch."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_runs import small_plan, timeline

from scalerl.errors import InputError
from scalerl.events import Event, parse_lines
from scalerl.recipe import Recipe
from scalerl.user_code import names_code
from scenarios.runs import begin, holder, run
from tui.watch import child
from tui.watch.catalog import summary
from tui.watch.child import ChildRun, ask_to_stop, last_words, start_run

PATIENCE_S = 120.0
SHORT = ("site.updates=30", "site.evaluation.every_updates=15")
LONG = (
    "site.updates=600",
    "site.evaluation.every_updates=200",
    "site.evaluation.ood_every_updates=0",
)

Start = Callable[..., ChildRun]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start_run`, from a folder that has packages named like ours; every process ends with the test."""
    decoy = tmp_path / "decoy"
    for name in ("tui", "scalerl"):
        (decoy / name).mkdir(parents=True)
        (decoy / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    monkeypatch.chdir(decoy)
    started: list[ChildRun] = []

    def begin(recipe: Recipe, folder: Path) -> ChildRun:
        started.append(start_run(recipe, folder))
        return started[-1]

    yield begin
    for each in started:
        each._process.kill()
        each._process.wait()
        assert each._process.stdin is not None
        each._process.stdin.close()


def until(true: Callable[[], object], what: str) -> None:
    """Wait for another process."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s for {what}"
        time.sleep(0.02)


def updates(folder: Path) -> list[int]:
    log = folder / "events.jsonl"
    found: list[Event] = list(parse_lines(log)) if log.exists() else []
    return [event["update"] for event in found if event["kind"] == "update"]


def close_leash(of: ChildRun) -> None:
    """As the end of the screen's process does."""
    assert of._process.stdin is not None
    of._process.stdin.close()


def status(folder: Path) -> str:
    found = summary(folder)
    return "" if found is None else found.status


def test_stopped_and_taken_up_again_to_the_end(start: Start, tmp_path: Path) -> None:
    """The same events as of a run that nobody stopped."""
    wanted, folder = small_plan(*SHORT), tmp_path / "run"
    first = start(wanted.recipe, folder)
    until(lambda: updates(folder), "the first update")
    assert holder(folder) == first.pid and status(folder) == "live"
    first.stop()
    assert first.stopping
    assert first.wait(PATIENCE_S) == first.exit_code == 130
    assert status(folder) == "stopped" and updates(folder)[-1] < 30
    assert start(wanted.recipe, folder).wait(PATIENCE_S) == 0
    assert status(folder) == "done"
    run(wanted, tmp_path / "whole")
    assert timeline(folder) == timeline(tmp_path / "whole")


def test_a_screen_that_dies_takes_its_run_with_it(start: Start, tmp_path: Path) -> None:
    first = start(small_plan(*LONG).recipe, tmp_path / "run")
    until(lambda: updates(tmp_path / "run"), "the first update")
    close_leash(first)
    assert first.wait(PATIENCE_S) == 130
    assert status(tmp_path / "run") == "stopped"
    assert any("to resume:" in line for line in last_words(tmp_path / "run"))


def test_a_run_that_was_let_go_outlives_the_screen_and_can_be_asked_to_stop(
    start: Start, tmp_path: Path
) -> None:
    """A second start beside it is refused meanwhile."""
    wanted, folder = small_plan(*LONG), tmp_path / "run"
    first = start(wanted.recipe, folder)
    until(lambda: updates(folder), "the first update")
    assert os.getpriority(os.PRIO_PROCESS, first.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10
    first.detach()
    assert first.detached
    seen = len(updates(folder))
    until(lambda: len(updates(folder)) > seen + 2, "updates without a leash")
    assert start(wanted.recipe, folder).wait(PATIENCE_S) == 2
    assert "in use by a run that is still going" in last_words(folder)[-1]
    assert first.exit_code is None and holder(folder) == first.pid
    assert ask_to_stop(folder)
    assert first.wait(PATIENCE_S) == 130 and status(folder) == "stopped"
    assert not ask_to_stop(folder)  # nobody holds it any more
    first.stop()  # and a word to one that is gone is no error


def test_a_run_that_was_killed_is_taken_up_again(start: Start, tmp_path: Path) -> None:
    wanted, folder = small_plan(*SHORT), tmp_path / "run"
    first = start(wanted.recipe, folder)
    until(lambda: len(updates(folder)) > 5, "a checkpoint")
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait(PATIENCE_S) == -9
    assert holder(folder) is None and status(folder) == "killed"
    assert start(wanted.recipe, folder).wait(PATIENCE_S) == 0
    assert status(folder) == "done"


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
from tui.cli import main
main()
"""


@pytest.mark.parametrize("room", [2, 3000, 9000], ids=["lock", "log", "checkpoint"])
def test_a_disk_that_is_full(room: int, tmp_path: Path) -> None:
    """No file may grow beyond `room` bytes: one sentence and exit status 1; with room again the run goes on."""
    wanted = small_plan("site.updates=5")
    folder = tmp_path / "run"
    folder.mkdir()
    begin(folder, wanted.recipe)
    command = [sys.executable, "-c", FULL, str(room)]
    command += ["run", str(folder / "recipe.toml"), "--out", str(folder)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    assert done.returncode == 1
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("scalerl: cannot write") and "File too large" in sentence
    assert sentence.endswith("make room or mend that, then resume the run")
    assert run(wanted, folder).status == "done"


# ---- without a process ----


def test_code_of_the_users_own_is_never_run_from_a_screen(tmp_path: Path) -> None:
    custom = small_plan("loss.kind=custom", "loss.function=my_loss.py:fn").recipe
    with pytest.raises(InputError, match=r"'my_loss.py:fn' is code of yours: .*--allow-code"):
        start_run(custom, tmp_path / "run")
    own = small_plan("site.task=digit_sum + 2*my_task.py:fn").recipe
    with pytest.raises(
        InputError, match=r"^site.task = 'digit_sum \+ 2\*my_task.py:fn' is code of"
    ):
        start_run(own, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ("digit_sum", False),
        ("digit_sum+2*pair_sum", False),
        ("gym:CartPole-v1", False),
        ("digit_sum + 1.5*gym:scalerl/PairSum-v0", False),
        ("my_task.py:fn", True),
        ("my.module:fn", True),
        ("gym:my.module:Mine-v0", True),
        ("digit_sum+2*gym:my.module:Mine-v0", True),
        ("my_gym:fn", True),
    ],
)
def test_which_tasks_are_code(task: str, own: bool) -> None:
    said = names_code(small_plan(f"site.task={task}").recipe)
    assert said == (f"site.task = {task!r}" if own else None)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot start a run in .*SCALERL_RUNS"):
        start_run(small_plan().recipe, tmp_path / "file" / "run")


def test_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path) == []
    (tmp_path / child.CONSOLE).write_bytes(b"\xff" + b"x" * 20_000 + b"\none\n\n  \ntwo\nthree\n")
    assert last_words(tmp_path, 2) == ["two", "three"]
    assert last_words(tmp_path, 3) == ["one", "two", "three"]


class Reader:
    """Commands as they would come on stdin."""

    def __init__(self, *lines: bytes) -> None:
        self.lines = [*lines, b""]

    def readline(self) -> bytes:
        return self.lines.pop(0)


@pytest.mark.parametrize(
    ("lines", "stops"),
    [
        ([{"cmd": "stop"}, {"cmd": "detach"}], True),
        ([{"cmd": "detach"}], False),
        ([{"cmd": "dance"}, [], "stop", None, {"cmd": "detach"}], False),
    ],
)
def test_what_is_obeyed(lines: list[object], stops: bool) -> None:
    control = child.Control()
    commands: list[bytes] = [json.dumps(line).encode() + b"\n" for line in lines]
    child._obey(control, Reader(b"no json\n", *commands))  # type: ignore[arg-type]
    assert control.stop is stops


def test_one_that_does_not_stop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(child.time, "sleep", waited.append)
    monkeypatch.setattr(child.os, "_exit", waited.append)
    control = child.Control()
    child._obey(control, Reader())  # type: ignore[arg-type]
    assert control.stop and waited == [child.GRACE_S, 1]
