"""The app as a whole: starting, changing, comparing and leaving runs, and what it says when something breaks."""

from functools import partialmethod
from pathlib import Path

import pytest
from command import refused
from driving import RUN, FakeStarts, append, board, drive, early, press, write_run
from logs import recipe_of, whole_run
from screen import until
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input
from tiny_runs import small_plan

from scalerl.checkpoint import checkpoints, updates_of
from scalerl.events import read_events
from scenarios.runs import run
from tui.app import ScalerlApp
from tui.screens.compare import CompareScreen
from tui.screens.dashboard import Dashboard
from tui.screens.forking import begin_changed
from tui.screens.home import HomeScreen


def app_of(pilot: Pilot[None]) -> ScalerlApp:
    assert isinstance(pilot.app, ScalerlApp)
    return pilot.app


async def live(pilot: Pilot[None]) -> None:
    """A run of the test's own, at update 40."""
    app_of(pilot).start(recipe_of(), RUN)
    await until(pilot, "STARTING")
    append(RUN, early(40))
    await until(pilot, "update 40/112")


def test_quitting_asks_about_a_live_run(starts: FakeStarts) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await live(pilot)
        await press(pilot, "q")
        text = await until(pilot, "Still running")
        assert "seed-0" in text and "leave it running" in text
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, Dashboard) and pilot.app.is_running
        assert not starts.last.stopping and not starts.last.detached

    drive(look)


def test_quitting_leaves_it_running(starts: FakeStarts) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await live(pilot)
        await press(pilot, "q")
        await until(pilot, "Still running")
        await press(pilot, "l")

    app = drive(look)
    assert starts.last.detached and not starts.last.stopping and app.return_code == 0


def test_quitting_stops_it_and_waits(starts: FakeStarts) -> None:
    async def look(pilot: Pilot[None]) -> None:
        await live(pilot)
        await press(pilot, "q")
        await until(pilot, "Still running")
        await press(pilot, "s")

    drive(look)
    assert starts.last.stopping and not starts.last.killed


@pytest.mark.usefixtures("place")
def test_quitting_without_a_run_asks_nothing() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "DONE")
        await press(pilot, "q")

    assert drive(look, RUN).return_code == 0


def test_a_changed_recipe_runs_beside_its_parent(starts: FakeStarts) -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "DONE")
        await press(pilot, "e down right r")
        await until(pilot, "STARTING")
        assert board(pilot).session.folder == RUN.with_name("seed-0.2")
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, HomeScreen)

    drive(look, RUN)
    assert starts.last.recipe.loss.kind == "dapo"


def test_a_finished_run_runs_anew_and_a_stopped_one_goes_on(starts: FakeStarts) -> None:
    write_run()
    stopped = write_run(RUN.with_name("seed-1"), whole_run(56, planned=112, status="stopped"))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "DONE")
        await press(pilot, "r")
        await until(pilot, "Run the same recipe and seed anew")
        assert not starts.children
        await press(pilot, "r")
        await until(pilot, "STARTING")
        await press(pilot, "escape")
        app_of(pilot).show_run(str(stopped))
        await until(pilot, "STOPPED")
        await press(pilot, "r")
        await until(pilot, lambda _: len(starts.children) == 2)

    drive(look, RUN)
    assert [child.folder.name for child in starts.children] == ["seed-0.2", "seed-1"]


@pytest.mark.usefixtures("place")
def test_compare_shows_the_run_and_enter_opens_it() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press(pilot, "c")
        await until(pilot, ".899")
        assert isinstance(pilot.app.screen, CompareScreen)
        await press(pilot, "enter")
        await until(pilot, "DONE")
        for _ in range(3):
            await press(pilot, "escape")
        assert isinstance(pilot.app.screen, HomeScreen)

    drive(look, RUN)


@pytest.mark.usefixtures("place")
def test_attaching_is_remembered_and_a_bad_source_is_told() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        await press(pilot, "a")
        await until(pilot, "Attach to a run")
        await pilot.press(*"nothing.gz", "enter")
        await until(pilot, "nothing.gz")
        assert isinstance(pilot.app.screen, HomeScreen)
        app_of(pilot).memory.attached(str(RUN))
        await press(pilot, "a down enter")
        await until(pilot, "DONE")

    app = drive(look)
    assert app.memory.recent[0] == str(RUN)


@pytest.mark.usefixtures("place")
def test_a_real_run_from_start_to_end() -> None:
    small = small_plan("site.evaluation.ood_every_updates=0")

    async def look(pilot: Pilot[None]) -> None:
        app_of(pilot).start(small.recipe, RUN)
        await until(pilot, "STARTING")
        await until(pilot, "update 8/8")
        await until(pilot, "DONE")
        child = app_of(pilot).fleet.child(str(RUN))
        assert child is not None and child.wait(20.0) == 0

    drive(look)
    assert read_events(RUN / "events.jsonl")[-1]["status"] == "done"


def test_a_fault_ends_in_a_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: HomeScreen) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("tui.cli_screens.has_terminal", lambda: True)
    monkeypatch.setattr(HomeScreen, "on_mount", broken)
    monkeypatch.setattr(ScalerlApp, "run", partialmethod(App.run, headless=True))
    write_run()
    sentence = refused("watch", str(RUN), status=1)
    assert "a fault of ours" in sentence and "Traceback" not in sentence
    [details] = (place / "state").rglob("fault.txt")
    assert "Traceback" in details.read_text() and str(details) in sentence


@pytest.mark.usefixtures("place")
def test_without_a_terminal_it_says_what_works() -> None:
    write_run()
    assert "need a terminal" in refused("watch", str(RUN))


@pytest.mark.usefixtures("place")
def test_words_from_outside_are_never_markup() -> None:
    async def look(pilot: Pilot[None]) -> None:
        app_of(pilot).complain("no [/red] such \x1b[31m thing")
        await until(pilot, "no [/red] such ?[31m thing")

    drive(look)


def test_a_run_that_cannot_be_taken_up_says_so(starts: FakeStarts) -> None:
    write_run(events=whole_run(56, planned=112, status="stopped"))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "STOPPED")
        await press(pilot, "r")
        await until(pilot, "STARTING")
        starts.last.exit_code = 1
        await until(pilot, "CRASHED")
        await until(pilot, "exit code 1")

    drive(look, RUN)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("source", ["~nobodyhere/x", "x" * 5000, "no [/red].gz", "ftp://a/b"])
def test_what_can_be_no_source_is_told_and_not_remembered(source: str) -> None:
    async def look(pilot: Pilot[None]) -> None:
        app = app_of(pilot)
        await until(pilot, "Start the tiny run")
        await press(pilot, "a")
        pilot.app.screen.query_one(Input).value = source
        await press(pilot, "enter")
        await until(pilot, lambda text: "Start the tiny run" in text or "WAITING" in text)
        assert app.is_running
        assert len(source) > 1000 or source not in app.memory.recent

    drive(look)


@pytest.mark.usefixtures("place")
def test_a_folder_of_runs_is_no_run_and_names_some() -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        app_of(pilot).show_run("runs")
        await until(pilot, "runs is no run but holds some: runs/tiny/scalerl/seed-0")

    drive(look)


@pytest.fixture(scope="module")
def with_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that ended at update 8, with checkpoints at 4 and 8."""
    folder = tmp_path_factory.mktemp("runs") / "seed-0"
    run(small_plan(), folder)
    return folder


@pytest.mark.parametrize(
    ("key", "place", "begins_at"), [("1", "seed-0@4", 4), ("n", "seed-0.2", None)]
)
def test_a_changed_recipe_begins_where_one_says(
    starts: FakeStarts, with_checkpoints: Path, key: str, place: str, begins_at: int | None
) -> None:
    changed = small_plan("loss.eps_max=3").recipe
    begun: list[Path] = []

    async def look(pilot: Pilot[None]) -> None:
        app = app_of(pilot)
        begin_changed(app, changed, with_checkpoints)
        text = await until(pilot, "Where from")
        assert "from its checkpoint at update 4" in text and "at update 8" not in text
        await press(pilot, key)
        begun.append(starts.last.folder)

    drive(look)
    [folder] = begun
    assert folder == with_checkpoints.with_name(place)
    found = [updates_of(path) for path in checkpoints(folder / "checkpoints")]
    assert found == ([] if begins_at is None else [begins_at])


def test_a_recipe_that_changes_too_much_begins_anew_without_a_question(
    starts: FakeStarts, with_checkpoints: Path
) -> None:
    async def look(pilot: Pilot[None]) -> None:
        begin_changed(app_of(pilot), small_plan("group_size=8").recipe, with_checkpoints)
        await until(pilot, "STARTING")
        assert starts.last.folder.parent == with_checkpoints.parent

    drive(look)
