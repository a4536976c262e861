"""The shared loop over the cluster's world, on fake engines and trainers: whole runs, and every way to fail.

Longer than most: each test is a few lines around one player, and they are read together.
"""

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import POLICY, FakeLauncher, FakeRemote, Fault, Script, cluster_recipe

import backend.push
from backend.preparing import for_actors
from backend.world import ClusterWorld
from sandbox.tasks.digit_sum import DigitSum
from scalerl.checkpoint import load_checkpoint, newest_checkpoint
from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.errors import CheckpointError, InputError, PushFailed, RunFailed
from scalerl.events import Event, EventLog, evaluations, lost_evaluations, read_events
from scalerl.loop import Control, Loop
from scalerl.recipe import CustomLoss, Recipe
from scalerl.rollout import Group
from scalerl.state import LoopState
from scalerl.world import UpdateStats

LIMIT_S = 20
STALENESS = {
    "pipeline": ("staleness.kind=pipeline", "staleness.k=2"),
    "ppo_off_policy": ("staleness.kind=ppo_off_policy", "staleness.k=3"),
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.push, "ALIVE_S", 0.2)


@pytest.fixture(scope="module", autouse=True)
def _collect_only_our_own() -> Iterator[None]:
    """Every run ends with a collection, so that an error that nobody saw is told: not of all that is imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class RecordingWorld(ClusterWorld):
    """With every batch as it was handed to the trainers, and the version it met there."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches: list[tuple[int, list[Group]]] = []

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        self.batches.append((self.version, list(groups)))
        return await super().update(groups)

    @property
    def trained(self) -> list[list[int]]:
        return [[group.request_id for group in groups] for _, groups in self.batches]


@dataclass
class Outcome:
    """A run of the loop over the fakes."""

    status: str
    world: RecordingWorld
    launcher: FakeLauncher
    state: LoopState
    events: list[Event]
    ledger: dict[str, dict[str, float]]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    @property
    def evaluator(self) -> FakeRemote:
        return self.launcher.made["the evaluator"][0]


@dataclass
class Cast:
    """Who takes part in a run."""

    script: Script
    folder: Path
    listen: Callable[[Event], None] = lambda event: None
    control: Control | None = None
    meanwhile: Callable[["RecordingWorld"], None] = lambda world: None


def play(recipe: Recipe, cast: Cast) -> Outcome:
    """Run, or take up, a recipe in a folder; nothing may be left running, and no failure unseen."""
    launcher = FakeLauncher(cast.script)
    world = RecordingWorld(recipe, DigitSum(), POLICY, launcher, device="cpu")
    cast.meanwhile(world)
    state = LoopState(curriculum_of(recipe, len(world.train)), Ledger(world.gpus))
    if (checkpoint := newest_checkpoint(cast.folder / "checkpoints")) is not None:
        load_checkpoint(checkpoint, state, recipe.algorithm_id())
        world.load(checkpoint)
    log = EventLog(cast.folder / "events.jsonl", cast.listen)
    if checkpoint is not None:
        log.resume(state.next_seq, clock=state.clock, gpu_h=state.ledger.gpu_hours(state.clock))
    checkpoints = cast.folder / "checkpoints"
    loop = Loop(recipe, world, state, log, checkpoints=checkpoints, control=cast.control)
    try:
        status = quietly(loop)
    finally:
        log.close()
        assert launcher.closed
        assert all(remote.dead for remotes in launcher.made.values() for remote in remotes)
    events = read_events(cast.folder / "events.jsonl")
    return Outcome(status, world, launcher, state, events, loop.books.gpu_hours())


def quietly(loop: Loop) -> str:
    """Run a loop on the wall clock; a task that outlives it, or an error that nobody saw, fails the test."""
    complaints: list[dict[str, Any]] = []

    async def main() -> str:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        try:
            async with asyncio.timeout(LIMIT_S):
                return await loop.run()
        finally:
            for _ in range(5):  # cancelled tasks end
                await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    try:
        return asyncio.run(main())
    finally:
        gc.collect()
        assert complaints == []


def failure(recipe: Recipe, cast: Cast) -> tuple[str, list[Event]]:
    """The one sentence with which a run ends, and its events; the last of them says the same."""
    with pytest.raises(RunFailed) as error:
        play(recipe, cast)
    said = str(error.value)
    events = read_events(cast.folder / "events.jsonl")
    assert "\n" not in said and events[-1]["kind"] == "fault"
    assert said == f"{events[-1]['error']}: {events[-1]['cause']}"
    return said, events


def check(outcome: Outcome) -> None:
    """Every ordinal once, every lag within the bound, every GPU-second booked once, and events as readers want them."""
    state, world, recipe = outcome.state, outcome.world, outcome.world.recipe
    assert recipe.site is not None
    consumed = [ordinal for batch in world.trained for ordinal in batch]
    held = [*consumed, *state.finished, *state.in_flight]
    assert sorted(held) == list(range(state.next_ordinal))
    bound = recipe.staleness.k - (recipe.staleness.kind == "ppo_off_policy")
    for version, groups in world.batches:
        lags = [version - v for g in groups for c in g.completions for v in c.version]
        assert 0 <= min(lags) <= max(lags) <= bound
    assert [event["seq"] for event in outcome.events] == list(range(len(outcome.events)))
    assert outcome.events[0]["kind"] == "run"
    assert [e["update"] for e in outcome.of("update")] == list(range(1, recipe.site.updates + 1))
    clocks = [event["clock"] for event in outcome.events]
    assert clocks == sorted(clocks)
    for role, busy in outcome.ledger.items():
        assert all(hours >= 0 for hours in busy.values()), role
    check_evaluations(outcome)


def check_evaluations(outcome: Outcome) -> None:
    """All that were due, each by the weights it was pinned to: a fake's passes are their number."""
    site = outcome.world.site
    assert lost_evaluations(outcome.events) == 0 and outcome.state.pending == []
    points = evaluations(outcome.events)
    assert len(points) == 1 + ceil(site.updates / site.evaluation.every_updates)
    assert len({point["C"] for point in points}) == len(points)
    for point in points:
        each = point["version"] % (site.evaluation.completions + 1)
        assert point["passes"] == [each] * site.evaluation.prompts
    assert len(outcome.evaluator.actor.pinned) <= len(points)


# --- whole runs ---


@pytest.mark.parametrize("kind", STALENESS)
@pytest.mark.parametrize("kv_on_push", ["keep", "recompute"])
def test_a_run_from_start_to_end(kind: str, kv_on_push: str, tmp_path: Path) -> None:
    recipe = cluster_recipe(*STALENESS[kind], f"kv_on_push={kv_on_push}")
    outcome = play(recipe, Cast(Script(), tmp_path))
    assert outcome.status == "done" and outcome.of("warning") == outcome.of("fault") == []
    check(outcome)
    assert set(outcome.ledger["trainer"]) == {"push", "update", "idle"}
    assert set(outcome.ledger["generator"]) == {"generate", "idle"}
    assert outcome.ledger["evaluator"]["evaluate"] > 0
    measured = [e["mismatch_kl"] for e in outcome.of("update") if e["mismatch_kl"] is not None]
    assert measured and max(measured) < 1e-9
    samples = outcome.of("sample")
    assert samples and all("</think>" in sample["completion"] for sample in samples)


def test_the_bound_of_pipeline_rl_is_reached(tmp_path: Path) -> None:
    recipe = cluster_recipe("staleness.k=1", "site.updates=20")
    outcome = play(recipe, Cast(Script(), tmp_path))
    check(outcome)
    assert max(len(e["lag_tokens"]) for e in outcome.of("update")) == 2


def test_a_run_at_which_nothing_can_be_learnt(tmp_path: Path) -> None:
    """All groups are all wrong: every update is skipped, the version stays, two pins of it are two."""
    outcome = play(cluster_recipe("site.updates=6"), Cast(Script(pass_rate=0.0), tmp_path))
    check(outcome)
    assert outcome.state.version == 0 and all(e["skipped"] for e in outcome.of("update"))


@pytest.mark.parametrize("kind", STALENESS)
def test_evaluation_that_is_slower_than_training_holds_up_nothing(
    kind: str, tmp_path: Path
) -> None:
    slow = Script(evaluate_s=0.2)
    recipe = cluster_recipe(*STALENESS[kind], "site.evaluation.every_updates=2")
    outcome = play(recipe, Cast(slow, tmp_path))
    check(outcome)
    last = max(e["clock"] for e in outcome.of("update"))
    late = [e for e in evaluations(outcome.events) if e["clock"] > last]
    assert len(late) >= 4 and len({e["version"] for e in late}) == len(late)
    pins, done = outcome.evaluator.calls.count("pin"), outcome.evaluator.calls.count("evaluate")
    assert (pins, done) == (
        8,
        7,
    )  # once more at the start, to see that the evaluator can be reached


def test_a_stop_ends_with_a_checkpoint(tmp_path: Path) -> None:
    control = Control()
    listen = stop_at(control, 5)
    outcome = play(cluster_recipe(), Cast(Script(), tmp_path, listen, control))
    assert outcome.status == "stopped" and outcome.state.updates == 5
    assert newest_checkpoint(tmp_path / "checkpoints") == tmp_path / "checkpoints/update-5"


def stop_at(control: Control, update: int) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        control.stop |= event["kind"] == "update" and event["update"] >= update

    return listen


# --- generators that are lost ---


@pytest.mark.parametrize("kind", STALENESS)
def test_a_generator_that_dies_is_replaced_and_its_groups_are_issued_again(
    kind: str, tmp_path: Path
) -> None:
    script = Script([Fault("generator 1", "generate", "die", call=8)])
    recipe = cluster_recipe(*STALENESS[kind], "site.updates=24", "site.generator_restarts=1")
    outcome = play(recipe, Cast(script, tmp_path))
    check(outcome)
    lost = outcome.of("fault")
    assert lost and {event["error"] for event in lost} == {"GeneratorLost"}
    assert {event["group"] for event in lost} <= {
        o for batch in outcome.world.trained for o in batch
    }
    first, joined = (event["what"] for event in outcome.of("warning"))
    assert first == "generator 1 died; another one is started in its place"
    version = int(joined.removeprefix("generator 1 joined with version "))
    remotes = outcome.launcher.made["generator 1"]
    assert len(remotes) == 2 and 0 < version <= outcome.state.version
    assert remotes[1].actor.applied == remotes[1].actor.weights == outcome.state.version
    assert remotes[1].calls.count("generate") > 0
    assert remotes[0].actor.spec.seed != remotes[1].actor.spec.seed


def test_one_is_enough_when_no_other_may_be_started(tmp_path: Path) -> None:
    script = Script([Fault("generator 0", "generate", "die", call=3)])
    outcome = play(cluster_recipe("site.generator_restarts=0"), Cast(script, tmp_path))
    check(outcome)
    (warning,) = outcome.of("warning")
    assert warning["what"].endswith("site.generator_restarts is used up, the others go on")
    assert "generator 0" not in {
        name for name, made in outcome.launcher.made.items() if len(made) > 1
    }


def test_none_left(tmp_path: Path) -> None:
    script = Script([Fault(f"generator {i}", "generate", "die", call=6 + i) for i in range(2)])
    said, _ = failure(cluster_recipe("site.generator_restarts=0"), Cast(script, tmp_path))
    assert said.startswith("WorldFailed: no generator is left: generator ")
    assert said.endswith(" died")


@pytest.mark.parametrize("when", ["receive", "send", "apply"])
@pytest.mark.parametrize("does", ["die", "hang"])
def test_a_generator_that_is_lost_in_a_push(when: str, does: Any, tmp_path: Path) -> None:
    script = Script([Fault("generator 1", when, does, call=3)])
    recipe = cluster_recipe("site.push_timeout_s=0.6", "site.updates=16")
    outcome = play(recipe, Cast(script, tmp_path))
    check(outcome)
    assert len(outcome.launcher.made["generator 1"]) == 2
    assert "generator 1" in outcome.of("warning")[0]["what"]


def test_a_generator_that_hangs_is_found_out_by_the_next_push(tmp_path: Path) -> None:
    script = Script([Fault("generator 1", "generate", "hang", call=4)])
    outcome = play(cluster_recipe("site.push_timeout_s=0.6"), Cast(script, tmp_path))
    check(outcome)
    assert "generator 1 did not answer" in outcome.of("warning")[0]["what"]


@pytest.mark.parametrize(
    ("method", "does", "said"),
    [
        ("start", "die", "generator 1 died"),
        ("start", "hang", "generator 1 did not answer to 'start' for 0.6 s"),
        ("connect", "die", "generator 1 died"),
        ("connect", "hang", "connect: generator 1 did not come for 0.6 s"),
        ("receive", "die", "generator 1 died"),
        ("apply", "hang", "generator 1 did not answer for 0.6 s"),
        ("head", "die", "generator 1 died"),
        ("head", "hang", "generator 1 did not answer to 'head' for 0.6 s"),
    ],
)
def test_one_that_fails_while_it_joins_is_replaced_again(
    method: str, does: Any, said: str, tmp_path: Path
) -> None:
    script = Script([Fault("generator 1", "generate", "die", call=2)])

    def arm(event: Event) -> None:  # the next call of the method is the successor's
        made = worlds[0].launcher.made["generator 1"]
        if event["kind"] == "update":
            living.append(sum(not remote.dead for remote in made))
        if event["kind"] == "fault" and len(script.faults) == 1:
            calls = sum(remote.calls.count(method) for remote in made)
            script.faults = [*script.faults, Fault("generator 1", method, does, calls + 1)]

    worlds: list[Any] = []
    living: list[int] = []
    recipe = cluster_recipe(
        "site.push_timeout_s=0.6", "site.start_timeout_s=0.6", "site.updates=40"
    )
    cast = Cast(script, tmp_path, arm, meanwhile=worlds.append)
    outcome = play(recipe, cast)
    check(outcome)
    assert max(living) == 1, "one that failed was left running"
    warnings = [event["what"] for event in outcome.of("warning")]
    assert any(
        what.startswith(f"generator 1 could not be replaced: {said}") for what in warnings
    ), warnings


def test_a_run_may_end_while_a_generator_joins(tmp_path: Path) -> None:
    """Its successor never comes up; nobody waits for it."""
    script = Script(
        [Fault("generator 1", "generate", "die"), Fault("generator 1", "start", "stall", call=2)]
    )
    outcome = play(cluster_recipe(), Cast(script, tmp_path))
    check(outcome)
    assert [event["what"] for event in outcome.of("warning")] == [
        "generator 1 died; another one is started in its place"
    ]


# --- what cannot be replaced ---


@pytest.mark.parametrize("method", ["update", "push", "log_ratios"])
def test_a_trainer_that_dies(method: str, tmp_path: Path) -> None:
    script = Script([Fault("trainer rank 1", method, "die", call=4)])
    said, _ = failure(cluster_recipe(), Cast(script, tmp_path))
    assert said == (
        "WorldFailed: trainer rank 1 died: a trainer cannot be replaced in mid-run, so resume it"
    )


@pytest.mark.parametrize("method", ["evaluate", "receive", "send", "pin"])
def test_an_evaluator_that_dies(method: str, tmp_path: Path) -> None:
    script = Script([Fault("the evaluator", method, "die", call=2)])
    said, _ = failure(cluster_recipe(), Cast(script, tmp_path))
    assert said.startswith("WorldFailed: ") and "the evaluator" in said
    assert said.endswith("the evaluator cannot be replaced in mid-run, so resume it")


@pytest.mark.parametrize("name", ["trainer rank 1", "the evaluator"])
def test_one_that_is_gone_when_a_checkpoint_is_due(name: str, tmp_path: Path) -> None:
    method = "save" if "rank" in name else "call"
    made: list[Any] = []

    def arm(event: Event) -> None:
        if event["kind"] == "update" and event["update"] == 3:
            remote = made[0].launcher.made[name][0]
            calls = remote.calls.count(method)
            script.faults = [Fault(name, method, "die", calls + 1)]

    script = Script()
    cast = Cast(script, tmp_path, arm, meanwhile=made.append)
    said, _ = failure(cluster_recipe("site.evaluation.every_updates=100"), cast)
    assert said.startswith(f"WorldFailed: {name} died") and said.endswith("so resume it")


# --- engines that do not agree ---


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(coarse=["generator 1"]), "the LM head of generator 1 works in bfloat16"),
        (Script(foreign=["generator 0"]), "the LM head of generator 0 differs from the trainer's"),
    ],
)
def test_heads_that_differ_end_a_run_before_its_first_update(
    script: Script, said: str, tmp_path: Path
) -> None:
    found, events = failure(cluster_recipe(), Cast(script, tmp_path))
    assert found.startswith(f"EngineMismatch: {said}")
    assert [event["kind"] for event in events] == ["fault"]


def test_a_head_of_another_precision_may_be_asked_for(tmp_path: Path) -> None:
    script = Script(coarse=["generator 0", "generator 1"])
    recipe = cluster_recipe("generator_head_dtype=bfloat16", "site.updates=3")
    check(play(recipe, Cast(script, tmp_path)))


def test_log_probs_that_are_off_are_warned_of(tmp_path: Path) -> None:
    script = Script(off={"generator 1": 0.2})
    outcome = play(cluster_recipe("site.updates=3"), Cast(script, tmp_path))
    check(outcome)
    warnings = {event["what"].partition(" disagree")[0] for event in outcome.of("warning")}
    assert warnings == {"generator 1 and the trainer"}
    assert max(e["mismatch_kl"] or 0.0 for e in outcome.of("update")) > 0.005


def test_log_probs_that_are_off_by_far_end_a_run(tmp_path: Path) -> None:
    said, events = failure(cluster_recipe(), Cast(Script(off={"generator 1": 0.6}), tmp_path))
    assert said.startswith(
        "EngineMismatch: generator 1 and the trainer disagree on tokens of version 0"
    )
    assert "above site.mismatch_stop = 0.1" in said
    assert not [event for event in events if event["kind"] == "update"]


def test_weights_that_an_engine_only_says_it_has(tmp_path: Path) -> None:
    """The heads were equal at the start; after the first update the probes tell, and name the generator."""
    script = Script(deaf=["generator 0"])
    alarms = ("site.mismatch_alarm=1e-7", "site.mismatch_stop=1e-5")
    said, events = failure(cluster_recipe(*alarms), Cast(script, tmp_path))
    assert said.startswith(
        "EngineMismatch: generator 0 and the trainer disagree on tokens of version 1"
    )
    assert len([event for event in events if event["kind"] == "update"]) >= 1


# --- pushes and starts that fail ---


@pytest.mark.parametrize("method", ["receive", "apply"])
def test_a_push_that_a_living_generator_refuses(method: str, tmp_path: Path) -> None:
    refusal = PushFailed("receive version 1: bucket 2 of 9: the trainer: reset by peer")
    script = Script([Fault("generator 1", method, refusal, call=2)])
    said, _ = failure(cluster_recipe(), Cast(script, tmp_path))
    assert said == (
        "PushFailed: receive version 1: bucket 2 of 9: the trainer: reset by peer; "
        "generator 1 lives, so the run stops here"
    )


def test_a_push_that_a_living_evaluator_refuses(tmp_path: Path) -> None:
    script = Script([Fault("the evaluator", "pin", PushFailed("no room"), call=2)])
    said, _ = failure(cluster_recipe(), Cast(script, tmp_path))
    assert said == "PushFailed: no room; the evaluator lives, so the run stops here"


@pytest.mark.parametrize("name", ["generator 1", "trainer rank 1", "the evaluator"])
@pytest.mark.parametrize("does", ["die", "hang"])
def test_one_that_does_not_come_up(name: str, does: Any, tmp_path: Path) -> None:
    script = Script([Fault(name, "start", does)])
    said, _ = failure(cluster_recipe("site.start_timeout_s=0.5"), Cast(script, tmp_path))
    assert said.startswith("WorldFailed: ")
    assert (name if does == "die" else "site.start_timeout_s = 0.5 s") in said


@pytest.mark.parametrize("does", ["die", "hang"])
@pytest.mark.parametrize("method", ["connect", "receive", "apply", "head"])
def test_a_generator_that_fails_later_in_the_start(method: str, does: Any, tmp_path: Path) -> None:
    script = Script([Fault("generator 1", method, does)])
    said, _ = failure(cluster_recipe("site.push_timeout_s=0.6"), Cast(script, tmp_path))
    assert "generator 1" in said


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("site.prompt_tokens=12",),
            "site.prompt_tokens = 12: a prompt of task 'digit_sum' has 19",
        ),
        (
            ("site.evaluation.prompts=600",),
            "site.evaluation.prompts = 600: task 'digit_sum' has 512 validation prompts",
        ),
        (
            ("site.interruption_phrase='=1 =2 <eos>'", "site.think_close='<eos>'"),
            "ends thinking with token 4",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    overrides: Sequence[str], said: str
) -> None:
    launcher = FakeLauncher()
    with pytest.raises(InputError) as error:
        ClusterWorld(cluster_recipe(*overrides), DigitSum(), POLICY, launcher, device="cpu")
    assert said in str(error.value) and not launcher.opened


# --- checkpoints ---


@pytest.mark.parametrize("kind", STALENESS)
@pytest.mark.parametrize("evaluate_s", [0.0, 0.1])
def test_a_resumed_run_trains_every_ordinal_once(
    kind: str, evaluate_s: float, tmp_path: Path
) -> None:
    """Stopped at any update, in the middle of a phase and of an evaluation too."""
    recipe = cluster_recipe(*STALENESS[kind])
    batches: list[tuple[int, list[Group]]] = []
    seeds: list[int] = []
    for stop in (4, 5, 10, None):
        control = Control()
        listen = stop_at(control, stop) if stop else lambda event: None
        script = Script(evaluate_s=evaluate_s)
        outcome = play(recipe, Cast(script, tmp_path, listen, control))
        assert outcome.status == ("stopped" if stop else "done")
        batches += outcome.world.batches
        made = outcome.launcher.made
        seeds += [made[f"generator {slot}"][0].actor.spec.seed for slot in range(2)]
        ranks = {made[f"trainer rank {rank}"][0].actor.version for rank in range(2)}
        assert ranks == {outcome.state.version}
    outcome.world.batches = batches
    check(outcome)
    assert len(set(seeds)) == len(seeds), "an engine of a resumed run samples what another did"


def test_engines_of_a_resumed_run_sample_anew_although_the_version_is_the_same(
    tmp_path: Path,
) -> None:
    seeds: list[int] = []
    for stop in (2, 4, 6):
        control = Control()
        cast = Cast(Script(pass_rate=0.0), tmp_path, stop_at(control, stop), control)
        made = play(cluster_recipe(), cast).launcher.made
        seeds += [made[f"generator {slot}"][0].actor.spec.seed for slot in range(2)]
    assert len(set(seeds)) == len(seeds)


def test_a_run_that_failed_is_taken_up_at_its_last_checkpoint(tmp_path: Path) -> None:
    """What came after it is void: trained again, each ordinal once on what survives."""
    recipe = cluster_recipe()
    script = Script([Fault("trainer rank 0", "update", "die", call=7)])
    worlds: list[RecordingWorld] = []
    failure(recipe, Cast(script, tmp_path, meanwhile=worlds.append))
    outcome = play(recipe, Cast(Script(), tmp_path))
    outcome.world.batches = [*worlds[0].batches[:4], *outcome.world.batches]
    check(outcome)


def test_pinned_weights_are_saved_until_their_evaluation_is_counted(tmp_path: Path) -> None:
    """The evaluator may have finished while the checkpoint is written: the run, resumed, evaluates them again."""

    async def main() -> None:
        launcher = FakeLauncher(Script(evaluate_s=0.01))
        world = ClusterWorld(cluster_recipe(), DigitSum(), POLICY, launcher, device="cpu")
        await world.start()
        handles = [await world.snapshot() for _ in range(2)]
        first, second = (
            asyncio.ensure_future(world.evaluate(handle, ["validation"])) for handle in handles
        )
        assert saved(world) == [0, 1]
        await first
        assert not second.done() and saved(world) == [1]
        await second
        await world.snapshot()
        assert list(launcher.made["the evaluator"][0].actor.pinned) == [2]
        await world.close()

    def saved(world: ClusterWorld) -> list[int]:
        world.save(tmp_path)
        return [handle for handle, _ in json.loads((tmp_path / "world.json").read_text())["pinned"]]

    asyncio.run(main())


def test_a_checkpoint_of_a_world_that_cannot_be_read(tmp_path: Path) -> None:
    world = ClusterWorld(cluster_recipe(), DigitSum(), POLICY, FakeLauncher(), device="cpu")
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        world.load(tmp_path)


def test_a_silent_generator_is_noticed_while_no_push_comes(tmp_path: Path) -> None:
    """Off-policy no push comes before all groups are there: what hangs is found by asking it for a sign of life."""
    script = Script([Fault("generator 1", "generate", "hang", call=2)])
    recipe = cluster_recipe(
        "staleness.kind=ppo_off_policy", "staleness.k=2", "site.push_timeout_s=0.4"
    )
    outcome = play(recipe, Cast(script, tmp_path))
    assert outcome.status == "done"
    assert {event["error"] for event in outcome.of("fault")} == {"GeneratorLost"}
    assert any("did not answer to 'version'" in event["what"] for event in outcome.of("warning"))


def test_an_evaluator_that_hangs_ends_the_run(tmp_path: Path) -> None:
    script = Script([Fault("the evaluator", "evaluate", "hang", call=2)])
    said, _ = failure(cluster_recipe("site.push_timeout_s=0.3"), Cast(script, tmp_path))
    assert said.startswith("WorldFailed: the evaluator did not answer")


def test_a_trainer_that_hangs_ends_the_run(tmp_path: Path) -> None:
    script = Script([Fault("trainer rank 1", "update", "hang", call=3)])
    said, _ = failure(cluster_recipe("site.step_timeout_s=0.5"), Cast(script, tmp_path))
    assert said.startswith("WorldFailed: ") and "trainer rank 1" in said
    assert "did not answer for site.step_timeout_s = 0.5 s" in said


def test_actors_get_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They work in another directory: a run folder and a loss of the user's own are found all the same."""
    monkeypatch.chdir(tmp_path)
    outcome = play(cluster_recipe("site.updates=4"), Cast(Script(), Path("here")))
    assert outcome.status == "done"
    mine = cluster_recipe("loss.kind=custom", "loss.function=my_loss.py:fn")
    theirs = for_actors(mine, "cpu")
    assert isinstance(theirs.loss, CustomLoss)
    assert theirs.loss.function == f"{tmp_path / 'my_loss.py'}:fn"
    assert theirs.site is not None and theirs.site.device == "cpu"
