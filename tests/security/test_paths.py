"""Nothing that a recipe, a scenario or a log says leads a write out of the run folder."""

import json
import os
from pathlib import Path

import pytest
from command import refused, scalerl
from tiny_runs import SMALL, small_plan

from scalerl.errors import InputError
from scenarios.runs import begin, run
from scenarios.scenario import plan
from tui.watch.catalog import delete

QUICK = (*SMALL, "site.updates=1", "site.evaluation.every_updates=1000")
CLIMBING = (
    "../../out", "/absolute", "..", ".", "a/b", "a\\b", "n\0l", "", " ", "~", "-x", "x" * 300, "é" * 200,
    "\u202egnp", "con:",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("SCALERL_RUNS", "runs")


def _outside(root: Path) -> set[str]:
    """Files that are neither below runs/ nor what the test itself wrote."""
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
    return {each for each in found if not each.startswith("work/runs/") and not each.endswith(".toml")}  # fmt: skip


@pytest.mark.parametrize("name", CLIMBING)
def test_the_name_of_a_recipe_is_made_a_folder_of_its_own(name: str, tmp_path: Path) -> None:
    Path("r.toml").write_text(f'extends = "scalerl"\nname = {json.dumps(name)}\n')
    [only] = plan("r.toml")
    folder = (Path("runs") / only.name / only.arm).resolve()
    assert folder.parents[1] == Path("runs").resolve()
    assert len(only.name.encode()) <= 255 and only.name.isprintable()


def test_a_run_of_a_climbing_name_stays_below_the_runs(tmp_path: Path) -> None:
    Path("r.toml").write_text('extends = "scalerl"\nname = "../../out"\n')
    assert scalerl("run", "r.toml", *QUICK, "--json").exit_code == 0
    assert _outside(tmp_path) == set()


@pytest.mark.parametrize("name", CLIMBING)
def test_scenarios_and_arms_of_such_names_are_refused(name: str) -> None:
    text = 'name = {0}\nquestion = "?"\n[arms.{1}]\nrecipe = "scalerl"\n'
    for scenario, arm in ((json.dumps(name), "a"), ('"s"', json.dumps(name))):
        Path("c.toml").write_text(text.format(scenario, arm))
        with pytest.raises(InputError, match=r"c\.toml"):
            plan("c.toml")


def test_an_out_that_cannot_be_is_one_sentence() -> None:
    for out in ("x" * 300, "/dev/null/x", "r.toml/x"):
        Path("r.toml").write_text('extends = "scalerl"\n')
        result = scalerl("run", "tiny", *QUICK, "--out", out)
        assert result.exit_code == 2, (out, result.exception)
        assert len(result.stderr.splitlines()) == 1


def test_the_recipe_of_a_run_folder_names_no_place_to_write(tmp_path: Path) -> None:
    """Its names are shown; the folder that is written to is the one on the command line."""
    wanted = small_plan(*QUICK, "name='../../out'", "site.name='../../out'")
    begin(_made(Path("mine")), wanted.recipe)
    assert scalerl("run", "mine/recipe.toml", "--out", "mine", "--json").exit_code == 0
    assert {each.split("/")[1] for each in _outside(tmp_path)} == {"mine"}


def test_a_link_in_a_run_folder_is_not_written_through(tmp_path: Path) -> None:
    """A checkpoint that is a link elsewhere: what it leads to is not removed with it."""
    elsewhere = _made(tmp_path / "elsewhere")
    (elsewhere / "precious").write_text("kept")
    folder = _made(Path("mine"))
    _made(folder / "checkpoints")
    (folder / "checkpoints/update-0").symlink_to(elsewhere, target_is_directory=True)
    scalerl("run", "tiny", *QUICK, "--out", "mine", "--json")
    assert (elsewhere / "precious").read_text() == "kept"


def test_deleting_a_run_follows_no_link(tmp_path: Path) -> None:
    elsewhere = _made(tmp_path / "elsewhere")
    (elsewhere / "precious").write_text("kept")
    folder = _made(Path("runs/a"))
    (folder / "events.jsonl").symlink_to(elsewhere / "precious")
    (folder / "checkpoints").symlink_to(elsewhere, target_is_directory=True)
    delete(folder)
    Path("runs/b").symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(InputError, match="a link, or no folder"):
        delete(Path("runs/b"))
    assert (elsewhere / "precious").read_text() == "kept" and not folder.exists()


def test_a_pipe_named_lock_or_log_is_not_waited_for() -> None:
    folder = _made(Path("mine"))
    os.mkfifo(folder / "events.jsonl")
    assert refused("fit", "mine").endswith("it is not a regular file")


def test_a_run_writes_its_own_files_and_no_others() -> None:
    run(small_plan(*QUICK), Path("mine"))
    known = {"recipe.toml", "events.jsonl", "lock", "checkpoints"}
    assert {path.name for path in Path("mine").iterdir()} <= known


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
