"""A fork shares the past of its run to the bit, and differs from it by what was changed and nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_runs import of_kind, small_plan, timeline

from scalerl.checkpoint import HELD, checkpoints, fault_of, hold, updates_of
from scalerl.errors import InputError
from scenarios.audit import Status, audit
from scenarios.fork import Source, fork, forkable, forked_recipe, place_of_fork
from scenarios.runs import run


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight updates with checkpoints at 2, 4, 6 and 8."""
    folder = tmp_path_factory.mktemp("origin") / "seed-0"
    run(small_plan("site.checkpoint_every_updates=2", "site.keep_checkpoints=9"), folder)
    return folder


def fork_of(origin: Path, update: int, folder: Path, *overrides: str) -> Path:
    source = Source.of(f"{origin}@{update}")
    run(fork(source, forked_recipe(source, overrides), folder), folder)
    return folder


def last_weights(folder: Path) -> dict[str, list[float]]:
    newest = checkpoints(folder / "checkpoints")[0]
    return {k: v.flatten().tolist() for k, v in load_file(newest / "policy.safetensors").items()}


def test_a_fork_without_a_change_is_the_same_run(origin: Path, tmp_path: Path) -> None:
    made = fork_of(origin, 4, tmp_path / "fork")
    ours, theirs = timeline(made), timeline(origin)
    head = ours[0].pop("fork")
    assert head == {"run": str(origin), "update": 4, "algorithm_id": theirs[0]["algorithm_id"]}
    assert ours == theirs
    assert last_weights(made) == last_weights(origin)


def test_a_changed_knob_acts_from_there_on(origin: Path, tmp_path: Path) -> None:
    made = fork_of(origin, 4, tmp_path / "fork", "site.optimizer.learning_rate=1e-3")
    ours, theirs = timeline(made), timeline(origin)
    assert ours[0]["site"]["optimizer"]["learning_rate"] == 1e-3
    assert theirs[0]["site"]["optimizer"]["learning_rate"] != 1e-3
    same = [a == b for a, b in zip(ours[1:], theirs[1:], strict=False)]
    until = same.index(False)
    assert all(e["update"] <= 5 for e in of_kind(ours[: until + 1], "update"))
    assert of_kind(ours, "update")[4]["grad_norm"] == of_kind(theirs, "update")[4]["grad_norm"]
    assert of_kind(ours, "update")[-1]["kl"] != of_kind(theirs, "update")[-1]["kl"]
    assert not [line for line in audit(made) if line.status != Status.OK]


def test_another_algorithm_has_another_identity(origin: Path, tmp_path: Path) -> None:
    made = fork_of(origin, 4, tmp_path / "fork", "loss.eps_max=3")
    ours, theirs = timeline(made)[0], timeline(origin)[0]
    assert ours["algorithm_id"] != theirs["algorithm_id"] == ours["fork"]["algorithm_id"]
    assert {fault_of(path) for path in checkpoints(made / "checkpoints")} == {None}


def test_a_finished_run_is_extended(origin: Path, tmp_path: Path) -> None:
    made = fork_of(origin, 8, tmp_path / "fork", "site.updates=10")
    assert [e["update"] for e in of_kind(timeline(made), "update")] == list(range(1, 11))
    assert timeline(made)[-1]["kind"] == "done"


def test_a_bigger_batch_and_an_older_bound_can_be_gone_on_with(
    origin: Path, tmp_path: Path
) -> None:
    changed = (
        "prompts_per_update=12",
        "staleness.k=9",
        "length.kind=none",
        "zero_variance=resample",
    )
    made = fork_of(origin, 4, tmp_path / "fork", *changed)
    assert of_kind(timeline(made), "update")[-1]["update"] == 8


def test_the_newest_checkpoint_is_taken_where_none_is_named(origin: Path) -> None:
    assert Source.of(str(origin)).update == 8


def test_forks_do_not_take_each_others_place(origin: Path) -> None:
    source = Source.of(f"{origin}@6")
    first = place_of_fork(source)
    assert first == origin.with_name("seed-0@6")
    first.mkdir()
    assert place_of_fork(source) == origin.with_name("seed-0@6.2")
    first.rmdir()


REFUSED = {
    "group_size=8": r"^group_size = 8 cannot change in the middle of a run \(it was 4\)",
    "seed=1": "^seed = 1 cannot change",
    "site.hardware.push_s=9": "^site.hardware.push_s = 9.0 cannot change",
    "staleness.kind=ppo_off_policy": "^staleness.kind = 'ppo_off_policy' cannot change",
    "staleness.k=2": r"^staleness.k = 2 can only grow .*\(it was 8\)",
    "prompts_per_update=4": "^prompts_per_update = 4 can only grow",
    "site.updates=4": "nothing would be left after update 4",
    "site.updates=-1": "site.updates",
    "loss.nope=1": "nope",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_change_is_refused(origin: Path, override: str) -> None:
    with pytest.raises(InputError, match=REFUSED[override]):
        forked_recipe(Source.of(f"{origin}@4"), [override])


def without_checkpoint(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints" / "update-4")


def with_a_torn_one(folder: Path) -> None:
    path = folder / "checkpoints" / "update-4" / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def without_recipe(folder: Path) -> None:
    (folder / "recipe.toml").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_checkpoint, "no whole checkpoint of update 4; it has: 2, 6, 8"),
        (with_a_torn_one, "no whole checkpoint of update 4; it has: 2, 4, 6, 8"),
        (without_recipe, "there is no run in"),
    ],
)
def test_a_source_that_cannot_be_used(
    origin: Path, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(origin, copy)
    spoil(copy)
    with pytest.raises(InputError, match=said):
        Source.of(f"{copy}@4")


def test_a_log_that_does_not_reach_the_checkpoint_is_named(origin: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(origin, copy)
    lines = (copy / "events.jsonl").read_text().splitlines(keepends=True)
    (copy / "events.jsonl").write_text("".join(lines[:9]))
    source = Source.of(f"{copy}@4")
    with pytest.raises(
        InputError,
        match=r"events.jsonl (is damaged: .*|does not hold the events up to update 4): scalerl doctor",
    ):
        fork(source, forked_recipe(source, []), tmp_path / "fork")
    assert not (tmp_path / "fork").exists() and list(tmp_path.iterdir()) == [copy]


def test_a_folder_that_holds_something_is_left_alone(origin: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    source = Source.of(f"{origin}@4")
    with pytest.raises(InputError, match="is not empty"):
        fork(source, forked_recipe(source, []), tmp_path)


def test_which_checkpoints_a_changed_recipe_could_go_on_from(origin: Path) -> None:
    longer = small_plan("site.updates=9", "loss.eps_max=4").recipe
    assert [source.update for source in forkable(origin, longer)] == [8, 6, 4, 2]
    assert [s.update for s in forkable(origin, small_plan("loss.eps_max=4").recipe)] == [6, 4, 2]
    assert forkable(origin, small_plan("group_size=8").recipe) == []


def test_a_checkpoint_that_is_held_stays(origin: Path, tmp_path: Path) -> None:
    """What was whole before a trouble is not rotated away by what follows it."""
    folder = tmp_path / "run"
    source = Source.of(f"{origin}@2")
    wanted = fork(source, forked_recipe(source, ["site.keep_checkpoints=2"]), folder)
    hold(folder / "checkpoints", 2)
    run(wanted, folder)
    kept = checkpoints(folder / "checkpoints")
    assert [updates_of(path) for path in kept] == [8, 6, 2]
    assert [(path / HELD).exists() for path in kept] == [False, False, True]
    assert {fault_of(path) for path in kept} == {None}
    assert json.loads((kept[-1] / "manifest.json").read_text())["updates"] == 2
