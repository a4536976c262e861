"""Whole small runs in their folders: the same seed twice, stopped and taken up, finished, foreign, in use."""

import json
import shutil
import tomllib
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_runs import of_kind, run_with_stops, small_plan, timeline

from scalerl.errors import CheckpointError, InputError
from scalerl.events import Event, parse_lines
from scalerl.loop import Control
from scenarios.runs import choose_folder, differing_keys, is_finished, is_locked, locked, run
from scenarios.scenario import Plan

KEEP = ("staleness.k=4",)
ALTERNATING = ("staleness.kind=ppo_off_policy", "staleness.k=3", "kv_on_push=recompute")
RECOMPUTED = ("staleness.k=2", "kv_on_push=recompute", "zero_variance=resample")
SPARSE = (
    "prompts_per_update=1",
    "group_size=2",
    "staleness.k=2",
)  # half of its updates are skipped
WITHOUT_OOD = ("site.task=gym:scalerl/DigitSum-v0",)
MIXED = (
    "site.task=digit_sum+polynomial",
    "site.policy=three_tasks",
    "site.data.wrong_as_right=0.1",
    "site.data.unanswerable=0.1",
)
ROUNDED = ("site.generator_dtype=float8_e4m3", "generator_head_dtype=float8_e4m3")
KINDS = {
    "a task without a set that is asked for": WITHOUT_OOD,
    "a mixture, altered": MIXED,
    "generators in float8": ROUNDED,
    "pipeline, cache kept": KEEP,
    "alternating": ALTERNATING,
    "pipeline, cache recomputed": RECOMPUTED,
    "skipped updates": SPARSE,
}


def final(folder: Path, update: int = 8) -> Path:
    return folder / "checkpoints" / f"update-{update}"


def bits(path: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an undisturbed run of each kind, made once."""

    @cache
    def whole(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        assert run(small_plan(*KINDS[kind]), folder).status == "done"
        return folder

    return whole


@pytest.fixture(scope="module")
def whole(wholes: Callable[[str], Path]) -> Path:
    return wholes("pipeline, cache kept")


def check_equal(one: Path, other: Path) -> None:
    """All that was said, and the weights and moments to the last bit."""
    assert timeline(one) == timeline(other)
    for name in ("policy", "generator", "optimizer"):
        file = f"{name}.safetensors"
        assert bits(final(one) / file) == bits(final(other) / file)


# --- one run ---


def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    wanted = small_plan(*KEEP)
    heard: list[Event] = []
    result = run(wanted, tmp_path, listen=heard.append)
    assert (result.status, result.name, result.arm, result.seed) == (
        "done",
        "scalerl",
        "scalerl",
        0,
    )
    assert result.algorithm_id == wanted.recipe.algorithm_id()
    events = timeline(tmp_path)
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert events == [
        {key: value for key, value in event.items() if key != "t"}
        for event in heard
        if "seq" in event
    ]
    assert events[0]["kind"] == "run" and events[-1]["kind"] == "done"
    assert [event["update"] for event in of_kind(events, "update")] == list(range(1, 9))
    clocks = [event["clock"] for event in events]
    assert clocks == sorted(clocks)
    evals = of_kind(events, "eval")
    validation = [e["version"] for e in evals if e["set"] == "validation"]
    assert validation == [0, 3, 6, 8]
    assert [e["version"] for e in evals if e["set"] == "ood"] == [0, 6, 8]
    assert [e["version"] for e in result.evaluations] == validation
    assert all(len(e["passes"]) == e["n"] == 16 and e["k"] == 4 for e in evals)
    assert evals[0]["C"] == 0.0
    assert tomllib.loads((tmp_path / "recipe.toml").read_text())["staleness"]["k"] == 4
    assert differing_keys(tmp_path, wanted.recipe) == []
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["update-4", "update-8"]


def test_c_counts_all_generators_and_trainers_whatever_they_do(tmp_path: Path) -> None:
    """(16 + 16) GPUs until the last update; evaluation, which goes on after it, is outside."""
    result = run(small_plan(*KEEP), tmp_path)
    last, done = of_kind(timeline(tmp_path), "update")[-1], timeline(tmp_path)[-1]
    assert last["gpu_h"] == pytest.approx(32 * last["clock"] / 3600)
    assert done["clock"] > last["clock"] + 1
    assert done["gpu_h"] == pytest.approx(last["gpu_h"])
    rows = result.gpu_hours
    assert sum(rows["generator"].values()) == pytest.approx(16 * last["clock"] / 3600)
    assert sum(rows["trainer"].values()) == pytest.approx(16 * last["clock"] / 3600)
    assert rows["evaluator"]["evaluate"] > 0
    points = of_kind(timeline(tmp_path), "eval")
    updates = {event["version"]: event["gpu_h"] for event in of_kind(timeline(tmp_path), "update")}
    for point in points:
        assert point["C"] == updates.get(point["version"], 0.0), (
            "C is taken when weights are pinned"
        )


# --- determinism ---


class Killed(BaseException):
    """Stands for a kill: no handler of ours catches it."""


def kill_at(update: int, wanted: Plan, folder: Path) -> None:
    def die(event: Event) -> None:
        if event["kind"] == "update" and event["update"] == update:
            raise Killed

    with pytest.raises(BaseException) as failure:  # noqa: PT011 - the task group wraps it
        run(wanted, folder, listen=die)
    assert failure.type is Killed or failure.group_contains(Killed)


def stopped_at(update: int, wanted: Plan, folder: Path) -> None:
    control = Control()

    def listen(event: Event) -> None:
        control.stop |= event["kind"] == "update" and event["update"] >= update

    assert run(wanted, folder, listen=listen, control=control).status == "stopped"


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_gives_one_run(kind: str, wholes: Callable[[str], Path], tmp_path: Path) -> None:
    run(small_plan(*KINDS[kind]), tmp_path)
    check_equal(wholes(kind), tmp_path)


def test_another_seed_gives_another_run(whole: Path, tmp_path: Path) -> None:
    run(small_plan(*KEEP, "seed=1"), tmp_path)
    pairs = zip(*(of_kind(timeline(f), "update") for f in (whole, tmp_path)), strict=True)
    assert all(one["tokens"] != other["tokens"] for one, other in pairs)


@pytest.mark.parametrize("stops", [(2, 6), (4, 7)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_and_taken_up_equals_one_that_never_stopped(
    kind: str, stops: tuple[int, ...], wholes: Callable[[str], Path], tmp_path: Path
) -> None:
    """In mid-phase and (at 6) between phases of k = 3; at a checkpoint that was due (4) and at others."""
    assert run_with_stops(small_plan(*KINDS[kind]), tmp_path, stops).status == "done"
    check_equal(wholes(kind), tmp_path)
    resumed = [e for e in parse_lines(tmp_path / "events.jsonl") if e["kind"] == "resume"]
    assert len(resumed) == len(stops)


INTEGER_COSTS = (
    "site.hardware.kv_bytes_token=0",
    "site.hardware.gpu_flops=1e300",
    "site.hardware.token_scale=1",
    "site.hardware.model_params=0.5",
    "site.hardware.gpu_bytes_s=1",
    "site.hardware.decode_efficiency=1",
    "site.hardware.optimizer_s=1",
    "site.hardware.push_s=1",
)


def test_resume_when_everything_ends_at_the_same_instant(tmp_path: Path) -> None:
    """Decode steps, updates and pushes of whole seconds: a step that ends as a checkpoint is due must not be lost."""
    wanted = small_plan(*INTEGER_COSTS, "site.updates=12")
    run(wanted, tmp_path / "whole")
    for stop in range(1, 12):
        folder = tmp_path / f"stop-{stop}"
        run_with_stops(wanted, folder, [stop])
        assert timeline(folder) == timeline(tmp_path / "whole"), stop


def test_the_whole_checkpoint_is_byte_identical_too(whole: Path, tmp_path: Path) -> None:
    """Running rows, caches, queues, books: so that a run stopped many times cannot drift unseen."""
    run_with_stops(small_plan(*KEEP), tmp_path, (3,))
    one, other = (
        {path.name: path.read_bytes() for path in final(f).iterdir()} for f in (whole, tmp_path)
    )
    running = load_file(final(whole) / "decoder.safetensors")["key"]
    assert len(running) > 10, "nothing was running"
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []


@pytest.mark.parametrize("kind", KINDS)
def test_training_beside_the_generators_or_in_turns_gives_the_same_bytes(
    wholes: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    """On one core the update is done where it begins, on two while virtual time passes."""
    assert run(small_plan(*KINDS[kind]), tmp_path, overlap=False).status == "done"
    beside, in_turns = final(wholes(kind)), final(tmp_path)
    check_equal(wholes(kind), tmp_path)
    for path in beside.iterdir():
        assert path.read_bytes() == (in_turns / path.name).read_bytes(), path.name


def test_an_update_that_fails_costs_the_same_beside_and_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that is no number, once: the batch is passed over after the time that its update takes."""
    (tmp_path / "loss.py").write_text(
        "calls = []\n\n\ndef fn(logp_BT, behavior_logp_BT, adv_B, mask_BT):\n    calls.append(1)\n"
        "    bad = float('nan') if len(calls) == 2 else 1.0\n"
        "    return -bad * adv_B[:, None] * logp_BT * mask_BT\n"
    )
    found = []
    for name, overlap in (("beside", True), ("turns", False)):
        # a copy each: a module that has been imported keeps its count
        code = shutil.copy(tmp_path / "loss.py", tmp_path / f"{name}.py")
        loss = ("loss.kind=custom", f"loss.function={code}:fn", *KEEP)
        wanted = small_plan(*loss, "site.supervision.not_finite=skip")
        run(wanted, tmp_path / name, overlap=overlap, allow_code=True)
        events = timeline(tmp_path / name)
        assert (
            sum(
                "not a number" in e["what"] or "nan" in e["what"]
                for e in of_kind(events, "warning")
            )
            == 1
        )
        found.append([{k: v for k, v in e.items() if k != "recipe"} for e in events])
    differing = [pair for pair in zip(*found, strict=True) if pair[0] != pair[1]]
    assert [one["kind"] for one, _ in differing] == ["run"], "the two loss files have two names"


def test_a_run_killed_before_its_first_checkpoint_starts_over(whole: Path, tmp_path: Path) -> None:
    """Also when its last line is torn."""
    wanted = small_plan(*KEEP)
    kill_at(2, wanted, tmp_path)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"v":1,"seq":99,"t":0.1,"clo')
    assert not is_finished(tmp_path)
    assert run(wanted, tmp_path).status == "done"
    check_equal(whole, tmp_path)


def test_a_run_killed_after_a_checkpoint_goes_on_from_it(whole: Path, tmp_path: Path) -> None:
    """The update after the checkpoint (4) had been written; it is voided and written again, the same."""
    wanted = small_plan(*KEEP)
    kill_at(6, wanted, tmp_path)
    updates: list[int] = []
    run(
        wanted,
        tmp_path,
        listen=lambda event: event["kind"] == "update" and updates.append(event["update"]),
    )
    assert updates == [5, 6, 7, 8]
    check_equal(whole, tmp_path)


def warnings(folder: Path) -> list[str]:
    """What is told at the resume, before anything else."""
    told = list(parse_lines(folder / "events.jsonl"))
    place = max(i for i, event in enumerate(told) if event["kind"] == "resume")
    return [e["what"] for e in takewhile(lambda e: e["kind"] == "warning", told[place + 1 :])]


def without_warnings(folder: Path) -> list[Event]:
    return [
        {**event, "seq": 0}
        for event in timeline(folder)
        if event["kind"] not in ("warning", "done")
    ]


@pytest.mark.parametrize("file", ["loop.json", "decoder.safetensors", "manifest.json"])
def test_a_run_whose_newest_checkpoint_is_torn_goes_on_from_the_one_before(
    file: str, whole: Path, tmp_path: Path
) -> None:
    """To the same weights and events, and the first thing it says is what was passed over, and why."""
    wanted = small_plan(*KEEP)
    stopped_at(6, wanted, tmp_path)
    path = final(tmp_path, 6) / file
    path.write_bytes(path.read_bytes()[:-7])
    assert run(wanted, tmp_path).status == "done"
    [said] = warnings(tmp_path)
    assert said.startswith(f"checkpoint update-6/{file} is torn or was edited: ")
    assert said.endswith("passed over, the run goes on from update-4")
    assert without_warnings(tmp_path) == without_warnings(whole)
    for name in ("policy", "generator", "optimizer"):
        weights = f"{name}.safetensors"
        assert bits(final(tmp_path) / weights) == bits(final(whole) / weights)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["update-4", "update-8"]


def test_a_run_without_any_whole_checkpoint_is_not_begun_anew(tmp_path: Path) -> None:
    wanted = small_plan(*KEEP)
    stopped_at(6, wanted, tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        (path / "world.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole .*from a copy"):
        run(wanted, tmp_path)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    before[tmp_path / "lock"] = after[tmp_path / "lock"]
    assert before == after


def test_events_that_were_edited_or_are_missing_are_told_at_the_resume(tmp_path: Path) -> None:
    wanted = small_plan(*KEEP)
    stopped_at(6, wanted, tmp_path)
    log = tmp_path / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace('"kind"', '"Kind"')
    del lines[7:9]
    log.write_text("".join(lines))
    assert run(wanted, tmp_path).status == "done"
    [said] = warnings(tmp_path)
    offsets = [sum(map(len, lines[:place])) for place in (3, 7)]
    assert said.startswith("events.jsonl is damaged: ")
    assert f"line 4 (byte {offsets[0]}) was edited: its checksum is " in said
    gap = f"line 8 (byte {offsets[1]}) has seq 9 where 7 comes next: 2 events are missing"
    assert gap in said


def test_a_log_that_is_gone_is_told_and_begun_anew(tmp_path: Path) -> None:
    wanted = small_plan(*KEEP)
    stopped_at(6, wanted, tmp_path)
    (tmp_path / "events.jsonl").unlink()
    heard: list[Event] = []
    assert run(wanted, tmp_path, listen=heard.append).status == "done"
    head, told, *rest = timeline(tmp_path)
    assert head["kind"] == "run" and "is gone, and with it the" in told["what"]
    assert (head["seq"], told["seq"]) == (0, rest[0]["seq"] - 1) and told["seq"] > 1
    assert [e["update"] for e in of_kind(rest, "update")] == [7, 8]


def test_a_run_of_the_formats_before_is_taken_up(whole: Path, tmp_path: Path) -> None:
    """Checkpoints without a manifest, lines without a checksum."""
    wanted = small_plan(*KEEP)
    stopped_at(6, wanted, tmp_path)
    shutil.rmtree(final(tmp_path, 4))
    (final(tmp_path, 6) / "manifest.json").unlink()
    loop = final(tmp_path, 6) / "loop.json"
    loop.write_text(loop.read_text().replace('{"format":2', '{"format":1', 1))
    log = tmp_path / "events.jsonl"
    old = [{**event, "v": 1} for event in parse_lines(log)]
    for event in old:
        del event["crc"]
    log.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in old))
    assert run(wanted, tmp_path).status == "done"
    assert warnings(tmp_path) == []
    events = [{**event, "v": 2} for event in timeline(tmp_path)]
    assert events == timeline(whole)


def test_stopping_before_the_first_update_leaves_a_run_that_can_be_taken_up(
    whole: Path, tmp_path: Path
) -> None:
    wanted = small_plan(*KEEP)
    assert run(wanted, tmp_path, control=Control(stop=True)).status == "stopped"
    assert run(wanted, tmp_path).status == "done"
    check_equal(whole, tmp_path)


# --- folders ---


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def quick(*overrides: str) -> Plan:
    return small_plan("site.updates=2", "site.evaluation.every_updates=2", *overrides)


def stopped(wanted: Plan, folder: Path) -> None:
    """One update of a run, then a stop."""
    control = Control()

    def listen(event: Event) -> None:
        control.stop |= event["kind"] == "update"

    assert run(wanted, folder, listen=listen, control=control).status == "stopped"


def test_a_finished_run_is_never_overwritten(root: Path) -> None:
    wanted = quick()
    first = choose_folder(wanted, 1, None)
    assert first == root / "scalerl" / "scalerl" / "seed-0"
    run(wanted, first)
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert is_finished(first)
    second = choose_folder(wanted, 1, None)
    assert second == first.with_name("seed-0.2")
    run(wanted, second)
    assert choose_folder(wanted, 1, None) == first.with_name("seed-0.3")
    with pytest.raises(InputError, match=r"finished run.*never overwritten.*--out"):
        choose_folder(wanted, 1, first)
    assert before == {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}


def test_an_unfinished_run_of_the_same_recipe_is_taken_up(root: Path) -> None:
    wanted = quick()
    first = choose_folder(wanted, 1, None)
    stopped(wanted, first)
    assert not is_finished(first)
    assert choose_folder(wanted, 1, None) == first
    assert choose_folder(wanted, 1, first) == first


def test_an_unfinished_run_of_another_recipe_is_refused_and_says_why(root: Path) -> None:
    stopped(quick(), first := choose_folder(quick(), 1, None))
    other = quick("loss.eps_max=4", "site.optimizer.learning_rate=1e-4")
    with pytest.raises(
        InputError, match=r"another recipe \(differing in loss\.eps_max, site\.optimizer\.learning"
    ):
        choose_folder(other, 1, first)
    assert choose_folder(other, 1, None) == first.with_name("seed-0.2")
    assert differing_keys(first, quick().recipe) == []


def test_a_checkpoint_of_another_algorithm_is_refused(root: Path) -> None:
    """Even if the folder's recipe has been edited to look right."""
    stopped(quick(), first := choose_folder(quick(), 1, None))
    with pytest.raises(CheckpointError, match="belongs to algorithm"):
        run(quick("loss.eps_max=4"), first)


def test_a_folder_in_use_is_refused_and_passed_over(root: Path) -> None:
    wanted = quick()
    first = choose_folder(wanted, 1, None)
    stopped(wanted, first)
    with locked(first):
        assert is_locked(first)
        with pytest.raises(InputError, match="in use"):
            run(wanted, first)
        assert choose_folder(wanted, 1, None) == first.with_name("seed-0.2")
    assert not is_locked(first)
    assert run(wanted, first).status == "done"


def test_several_runs_below_one_out_each_get_a_folder(root: Path) -> None:
    wanted = quick("seed=5")
    assert choose_folder(wanted, 3, root / "out") == root / "out" / "scalerl" / "seed-5"
    assert choose_folder(wanted, 1, root / "out") == root / "out"
