"""Runs side by side: as many at a time as asked, the events of serial runs, and no process left, however it ends."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from command import refused, scalerl
from logs import whole_run, write_log
from rich.console import Console
from tiny_runs import SMALL, timeline

from scalerl.errors import InputError
from scalerl.events import parse_lines
from scalerl.recipe import Recipe
from scenarios.runs import begin, holder, locked
from scenarios.scenario import plan
from tui.commands import running, side_by_side
from tui.commands.board import Board, Job
from tui.commands.side_by_side import Asked, how_to_go_on
from tui.watch.catalog import summary
from tui.watch.child import CONSOLE

PATIENCE_S = 120.0
SCALERL = Path(sys.executable).with_name("scalerl")
SIDE_BY_SIDE = ["run", "scalerl", "site.updates=8", "--out", "all"]
GPU_HOURS = {"generator": {"busy": 9.0, "idle": 1.0}, "trainer": {"busy": 2.0, "idle": 0.5}}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALERL_RUNS", "runs")
    return tmp_path


def folder_of(seed: int) -> Path:
    return Path("all/scalerl") / f"seed-{seed}"


class FakeChild:
    """A run that is asked `polls` times whether it has ended, and then has, with this exit code."""

    going: ClassVar[list["FakeChild"]] = []
    most: ClassVar[int] = 0

    def __init__(self, polls: int, code: int, on_poll: Callable[[], None]) -> None:
        self.polls, self.code, self.on_poll = polls, code, on_poll
        self.stopping = self.killed = False
        FakeChild.going.append(self)
        FakeChild.most = max(FakeChild.most, len(FakeChild.going))

    @property
    def exit_code(self) -> int | None:
        self.on_poll()
        self.polls -= 1
        if self.polls > 0 and not self.stopping:
            return None
        FakeChild.going.remove(self)
        return self.code

    def stop(self) -> None:
        self.stopping = True

    def kill(self) -> None:
        self.killed = self in FakeChild.going


class FakeStarts:
    """In place of `start_run`: what each seed's run will do, and the runs that were started."""

    def __init__(self) -> None:
        self.started: dict[int, FakeChild] = {}
        self.options: list[dict[str, Any]] = []
        self.ends: dict[int, tuple[int, int, str]] = {}  # polls, exit code, status in the log
        self.on_poll: Callable[[], None] = lambda: None

    def __call__(self, recipe: Recipe, folder: Path, **options: Any) -> FakeChild:
        polls, code, how = self.ends.get(recipe.seed, (1, 0, "done"))
        folder.mkdir(parents=True, exist_ok=True)
        begin(folder, recipe)
        if how in ("done", "stopped"):
            events = whole_run(8, recipe=recipe, status=how, every=1, seed=recipe.seed)
            write_log(
                folder / "events.jsonl", [*events[:-1], events[-1] | {"gpu_hours": GPU_HOURS}]
            )
        elif how:
            (folder / CONSOLE).write_text(how)
        self.options.append(options)
        self.started[recipe.seed] = FakeChild(polls, code, lambda: self.on_poll())
        return self.started[recipe.seed]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> FakeStarts:
    """Runs that have no process, in a world that need not be opened."""
    fake = FakeStarts()
    FakeChild.going, FakeChild.most = [], 0
    monkeypatch.setattr(side_by_side, "start_run", fake)
    monkeypatch.setattr(side_by_side, "POLL_S", 0.0)
    monkeypatch.setattr(side_by_side, "open_world", lambda recipe, *, allow_code: None)
    return fake


# ---- what is started, and when ----


def test_a_run_starts_as_soon_as_another_has_ended(starts: FakeStarts) -> None:
    """Two at a time; the first one outlasts all others. Results are in the order of the plans."""
    starts.ends = {0: (9, 0, "done")}
    result = scalerl(*SIDE_BY_SIDE, "--seeds", "5", "--jobs", "2", "--allow-code")
    assert result.exit_code == 0, result.output
    assert FakeChild.most == 2 and starts.options == 5 * [{"allow_code": True, "one_core": True}]
    lines = result.stdout.splitlines()
    assert [line.partition(", run folder")[0] for line in lines if "started" in line] == [
        f"scalerl / scalerl, seed {n}: started" for n in range(5)
    ]
    ends = [line for line in lines if ": done, " in line]
    assert [int(line.partition("seed ")[2][0]) for line in ends] == [1, 2, 3, 4, 0]
    assert all(line.endswith(", 12.5 GPU-h") and "pass rate 0." in line for line in ends)
    assert lines[-1].startswith("5 of 5 runs done in ")


def test_the_document_is_in_the_order_of_the_plans(starts: FakeStarts) -> None:
    starts.ends = {0: (9, 0, "done")}
    result = scalerl(*SIDE_BY_SIDE, "--seeds", "3", "--jobs", "3", "--json")
    assert result.stderr == ""
    runs = json.loads(result.stdout)["runs"]
    assert [run["seed"] for run in runs] == [0, 1, 2]
    assert [run["folder"] for run in runs] == [str(folder_of(n)) for n in range(3)]
    assert {(run["name"], run["arm"], run["status"]) for run in runs} == {
        ("scalerl", "scalerl", "done")
    }


def test_as_many_as_there_are_cores(starts: FakeStarts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= side_by_side.cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(side_by_side, "cores", lambda: 3)
    starts.ends = dict.fromkeys(range(5), (3, 0, "done"))
    assert scalerl(*SIDE_BY_SIDE, "--seeds", "5", "--jobs", "0").exit_code == 0
    assert FakeChild.most == 3


def test_a_single_run_needs_no_other_process(starts: FakeStarts) -> None:
    result = scalerl("run", "scalerl", *SMALL, "--jobs", "4")
    assert result.exit_code == 0 and starts.started == {}
    assert "how far to trust the fit" in result.stdout or "no fit" in result.stdout


# ---- what fails ----


def test_one_that_fails_is_told_at_once_and_the_others_go_on(starts: FakeStarts) -> None:
    said = "an earlier line\nscalerl: NotFinite: the loss is nan\n"
    starts.ends = {0: (6, 0, "done"), 1: (2, 1, said), 2: (1, -9, "")}
    result = scalerl(*SIDE_BY_SIDE, "--seeds", "4", "--jobs", "2", "--json")
    assert result.exit_code == 1
    assert [run["seed"] for run in json.loads(result.stdout)["runs"]] == [0, 3]
    assert result.stderr.splitlines() == [
        "scalerl / scalerl, seed 1: failed: NotFinite: the loss is nan",
        "scalerl / scalerl, seed 2: failed: the process was killed by SIGKILL: was there memory enough?",
        "to go on with all:  scalerl run scalerl site.updates=8 --seeds 4 --out all --jobs 2",
        "scalerl: 2 of 4 runs failed: scalerl / scalerl, seed 1; scalerl / scalerl, seed 2",
    ]  # fmt: skip


def test_one_that_cannot_be_started(starts: FakeStarts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full by now; it is not told how to resume what holds nothing."""

    def start(recipe: Recipe, folder: Path, **options: Any) -> FakeChild:
        if recipe.seed == 1:
            raise InputError("cannot start a run: no space left")
        return starts(recipe, folder, **options)

    monkeypatch.setattr(side_by_side, "start_run", start)
    result = scalerl(*SIDE_BY_SIDE, "--seeds", "3", "--jobs", "2")
    assert result.exit_code == 1 and sorted(starts.started) == [0, 2]
    assert "seed 1: failed: cannot start a run: no space left" in result.stdout
    assert "2 of 3 runs done, 1 failed" in result.stdout and "to resume" not in result.stdout


def test_runs_that_are_all_refused_are_a_refusal(starts: FakeStarts) -> None:
    starts.ends = dict.fromkeys(range(2), (1, 2, "scalerl: no such thing\n"))
    result = scalerl(*SIDE_BY_SIDE, "--seeds", "2", "--jobs", "2")
    assert result.exit_code == 2 and "to resume" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loss.eps_mx=4"], "did you mean 'loss.eps_max'?"),
        (["--out", "/proc/none"], "cannot write to the run folder /proc/none"),
        (["--out", "used"], "used/scalerl/seed-1 is in use by a run that is still going"),
        (["--out", "over"], "over/scalerl/seed-2 holds a finished run"),
        (["--on", "cpu-cluster"], "site 'cpu-cluster' is a cluster, whose devices its runs share"),
        (["--from", "all@3"], "--seeds and --jobs do not go with it"),
        (["--jobs", "-1"], "Invalid value for '--jobs'"),
    ],
)
def test_refusals_come_before_the_first_run(
    starts: FakeStarts, arguments: list[str], said: str
) -> None:
    write_log(Path("over/scalerl/seed-2/events.jsonl"), whole_run(8))
    with locked(Path("used/scalerl/seed-1")):
        done = scalerl("run", "scalerl", "--seeds", "3", "--jobs", "2", *arguments)
    assert done.exit_code == 2 and done.stdout == ""
    assert said in done.stderr or said in str(done.exception)
    assert starts.started == {} and not Path("runs").exists()
    left = {str(path) for path in Path().glob("*/*/*")}
    assert left == {"used/scalerl/seed-1", "over/scalerl/seed-2"}


def test_a_folder_that_cannot_be_made_leaves_none_of_the_others(starts: FakeStarts) -> None:
    Path("all/scalerl").mkdir(parents=True)
    folder_of(1).touch()
    assert "cannot write to the run folder all/scalerl/seed-1" in refused(
        *SIDE_BY_SIDE, "--seeds", "2", "--jobs", "2"
    )
    assert list(Path("all/scalerl").iterdir()) == [folder_of(1)]


def test_a_cluster_site_runs_one_at_a_time_whatever_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single run, or a single core: nothing goes side by side, and the run gets as far as its world."""
    reached: list[str] = []

    def stop(plan: Any, folder: Path, **options: Any) -> None:
        reached.append(plan.recipe.site.kind)
        raise InputError("far enough")

    monkeypatch.setattr(running, "run", stop)
    said = refused("run", "scalerl", "--on", "cpu-cluster", "--jobs", "2")
    assert said.endswith("far enough") and reached == ["cluster"]


@pytest.mark.parametrize(
    ("override", "said"),
    [("site.policy=nowhere", "'nowhere'"), ("site.thinking_tokens=200", "positions")],
)
def test_a_world_that_cannot_be_opened_is_refused_once(
    override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeStarts()
    monkeypatch.setattr(side_by_side, "start_run", fake)
    assert said in refused("run", "tiny", override, "--seeds", "3", "--jobs", "2")
    assert fake.started == {} and not Path("runs").exists()


# ---- what is stopped ----


def interrupts(starts: FakeStarts, *polls: int) -> None:
    """Press Ctrl-C at these polls of any child."""
    seen = 0

    def press() -> None:
        nonlocal seen
        seen += 1
        if seen in polls:
            os.kill(os.getpid(), signal.SIGINT)

    starts.on_poll = press


def test_a_stop_ends_all_and_says_how_to_go_on(starts: FakeStarts) -> None:
    """Seed 0 is done, 1 and 2 are stopped, 3 and 4 were never begun: no folder of theirs is left."""
    starts.ends = {0: (1, 0, "done"), 1: (9, 130, "stopped"), 2: (9, 130, "stopped")}
    interrupts(starts, 3)
    result = scalerl(*SIDE_BY_SIDE, "--seeds", "5", "--jobs", "2")
    assert result.exit_code == 130 and sorted(starts.started) == [0, 1, 2]
    assert not any(child.killed for child in starts.started.values())
    lines = result.stdout.splitlines()
    assert lines.count("stopping after this update (Ctrl-C again to end at once)") == 1
    assert sum(": stopped, pass rate" in line for line in lines) == 2
    assert lines[-2].startswith("1 of 5 runs done, 2 stopped in ")
    asked_again = "scalerl run scalerl site.updates=8 --seeds 5 --out all --jobs 2"
    assert lines[-1] == f"to go on with all:  {asked_again}"
    assert not folder_of(3).exists() and not folder_of(4).exists()
    starts.on_poll, starts.ends = (lambda: None), {}
    starts.started.clear()
    words = shlex.split(asked_again)[1:]
    result = scalerl(*words)
    assert result.exit_code == 0, result.output
    assert sorted(starts.started) == [1, 2, 3, 4]
    assert "seed 0: done already, pass rate 0." in result.stdout
    assert "seed 1: taken up, run folder all/scalerl/seed-1" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("5 of 5 runs done in ")
    starts.started.clear()
    runs = json.loads(scalerl(*words, "--json").stdout)["runs"]
    assert [run["seed"] for run in runs] == list(range(5)) and starts.started == {}


def test_without_out_one_line_names_the_folders_that_there_are(starts: FakeStarts) -> None:
    starts.ends = dict.fromkeys(range(2), (9, 130, "stopped"))
    interrupts(starts, 2)
    result = scalerl("run", "scalerl", "--seeds", "2", "--jobs", "2", "--allow-code")
    line = (
        "to go on with all:  scalerl run scalerl --seeds 2 --out runs/scalerl --jobs 2 --allow-code"
    )
    assert result.exit_code == 130 and result.stdout.splitlines()[-1] == line


def test_a_finished_run_of_another_recipe_is_none_of_them(starts: FakeStarts) -> None:
    scalerl(*SIDE_BY_SIDE, "--seeds", "2", "--jobs", "2")
    starts.started.clear()
    again = ("run", "scalerl", "site.updates=9", "--out", "all", "--seeds", "2", "--jobs", "2")
    assert "all/scalerl/seed-0 holds a finished run" in refused(*again)
    assert starts.started == {}


def test_a_second_ctrl_c_ends_all_at_once(starts: FakeStarts) -> None:
    starts.ends = dict.fromkeys(range(3), (9, 130, ""))
    monkey = starts.on_poll
    interrupts(starts, 1, 2)
    FakeChild.stop, before = (lambda self: None), FakeChild.stop  # one that takes its time
    try:
        result = scalerl(*SIDE_BY_SIDE, "--seeds", "3", "--jobs", "2", "--json")
    finally:
        FakeChild.stop, starts.on_poll = before, monkey
    assert result.exit_code == 130 and result.stdout == ""
    assert [child.killed for child in starts.started.values()] == [True, True]
    assert result.stderr.splitlines()[1:] == [
        "to go on with all:  scalerl run scalerl site.updates=8 --seeds 3 --out all --jobs 2",
        "scalerl: interrupted",
    ]


def test_how_to_begin_the_rest_of_each_arm() -> None:
    """An arm's rest in one command; what was asked for is asked for again, quoted for a shell."""
    one, two = plan("scalerl", seeds=2)
    jobs = [Job(one, Path("a")), Job(two, Path("b"))]
    asked = Asked("my scenario.toml", ["name=x y"], "sandbox", None, None, 2, 2, True)
    [line] = how_to_go_on(jobs, asked)
    said = "my scenario.toml|name=x y|seed=0|--seeds|2|--arm|scalerl|--on|sandbox|--jobs|2|--allow-code"
    words = shlex.split(line.removeprefix("to begin the rest:  "))
    assert words == ["scalerl", "run", *said.split("|")]


# ---- what is seen ----


@pytest.fixture
def screen() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, width=120, height=30, no_color=True, highlight=False
    )
    return console, file


def test_a_terminal_shows_a_bar_for_each_run_that_goes_on(
    screen: tuple[Console, io.StringIO], starts: FakeStarts
) -> None:
    console, file = screen
    plans = plan("scalerl", ["site.updates=16"], seeds=3)
    jobs = [Job(each, folder_of(n)) for n, each in enumerate(plans)]
    with Board(Console(file=io.StringIO()), jobs, silent=False) as unseen:
        unseen.started(jobs[0], taken_up=False)
        assert unseen._bars == []  # and no log is open
    with Board(console, jobs, silent=False) as board:
        for job in jobs[:2]:
            starts(job.plan.recipe, job.folder)
            board.started(job, taken_up=False)
        write_log(folder_of(1) / "events.jsonl", whole_run(4, every=1)[:3])
        shown = look(board)
        assert [line.split()[0] for line in shown] == ["scalerl", "scalerl", "all"]
        assert "8/16 updates" in shown[0] and "pass rate 0." in shown[0]
        assert shown[0].rstrip().endswith(", 16 GPU-h")
        assert "1/16 updates" in shown[1] and shown[1].rstrip().endswith("2 GPU-h")
        assert "9/48 updates" in shown[2] and "0 of 3 runs done" in shown[2]
        jobs[0].cause = "it broke"
        board.ended(jobs[0])
        shown = look(board)
        assert "scalerl, seed 1" in shown[0] and "9/48 updates" in shown[1]
        assert "0 of 3 runs done, 1 failed" in shown[1]
    assert "scalerl / scalerl, seed 0: failed: it broke" in file.getvalue()
    assert "started" not in file.getvalue()


def look(board: Board) -> Sequence[str]:
    """The lines of the display as it is now."""
    board._next_look = 0.0
    board.follow()
    paper = Console(file=io.StringIO(), width=120)
    with paper.capture() as captured:
        paper.print(board.get_renderable())
    return captured.get().splitlines()


# ---- with processes ----


def test_the_events_are_those_of_serial_runs() -> None:
    """Two real processes; the document on stdout too is equal, but for wall time."""
    arguments = ["run", "tiny", *SMALL, "--seeds", "2", "--json", "--out"]
    together = scalerl(*arguments, "together", "--jobs", "2")
    assert together.exit_code == 0, together.output
    one_by_one = scalerl(*arguments, "one-by-one")
    for seed in range(2):
        place = f"scalerl/seed-{seed}"
        assert timeline(Path("together") / place) == timeline(Path("one-by-one") / place)
        assert holder(Path("together") / place) is None

    def document(text: str) -> Any:
        found = json.loads(text)
        for run in found["runs"]:
            run["folder"] = Path(run["folder"]).name
            run["evaluations"] = [e | {"t": 0, "crc": ""} for e in run["evaluations"]]
        return found

    assert document(together.stdout) == document(one_by_one.stdout)
    assert together.stderr == ""


def until(true: Callable[[], object], what: str) -> None:
    """Wait for other processes."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s for {what}"
        time.sleep(0.02)


def has_updates(folder: Path) -> bool:
    log = folder / "events.jsonl"
    return log.exists() and any(event["kind"] == "update" for event in parse_lines(log))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_child_outlives_the_command(how: signal.Signals) -> None:
    """Stopped, or killed itself: its runs end after their update, saved."""
    long = ["site.updates=4000", "site.evaluation.every_updates=2000"]
    command = [SCALERL, "run", "tiny", *SMALL, *long, "--seeds", "3", "--jobs", "2", "--out", "all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        until(lambda: all(has_updates(folder_of(n)) for n in range(2)), "both first updates")
        pids = [holder(folder_of(n)) for n in range(2)]
        assert all(pids) and os.getpid() not in pids
        process.send_signal(how)
        said = process.communicate(timeout=PATIENCE_S)[0].decode()
    assert process.returncode == (-9 if how == signal.SIGKILL else 130)
    until(lambda: all(holder(folder_of(n)) is None for n in range(2)), "the ends of both runs")
    found = [summary(folder_of(n)) for n in range(2)]
    assert [each and each.status for each in found] == ["stopped", "stopped"]
    if how != signal.SIGKILL:
        assert said.count("to go on with all:  ") == 1 and "--seeds 3 --out all --jobs 2" in said
        assert not folder_of(2).exists()
