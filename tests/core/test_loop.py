"""The loop over a scripted world: what must hold for every interleaving of lengths, losses and pushes."""

from pathlib import Path

import pytest
from scripted import TOKENS, Outcome, Script, ScriptedWorld, play, scripted_recipe

from scalerl.checkpoint import load_checkpoint, newest_checkpoint
from scalerl.errors import GeneratorLost, RunFailed
from scalerl.events import Event
from scalerl.loop import Control
from scalerl.rollout import Group
from scalerl.state import LoopState, Ticket
from scalerl.task import Prompt

SEEDS = 540
P, G = 3, 2


def check(outcome: Outcome, recipe_updates: int = 20) -> None:
    """What holds at the end of every healthy run."""
    world, state = outcome.world, outcome.state
    consumed = [ordinal for batch in world.trained for ordinal in batch]
    assert len(set(consumed)) == len(consumed), "a group was trained twice"
    held = [*consumed, *state.finished, *state.in_flight]
    assert len(held) + state.rejected == state.next_ordinal, "a group was lost"
    assert sorted(held) == sorted(set(held))
    assert all(len(batch) == P for batch in world.trained)
    assert len(world.trained) == state.updates == recipe_updates
    assert state.version == world.version
    landed = len(consumed) + len(state.finished) + state.rejected
    assert state.tokens == landed * G * TOKENS  # generated, rejected ones included
    assert world.closed
    rows = state.ledger.report(outcome.trained_s, outcome.ended_at)
    ends = {
        "generator": outcome.trained_s,
        "trainer": outcome.trained_s,
        "evaluator": outcome.ended_at,
    }
    for role, gpus in world.gpus.items():  # every GPU-second is somewhere
        assert sum(rows[role].values()) == pytest.approx(gpus * ends[role] / 3600)
    assert rows["trainer"].get("update", 0.0) == pytest.approx(
        2 * world.script.train_s * world.version / 3600
    )
    # C stands still when training is over, whatever is still being evaluated
    C = 6 * outcome.trained_s / 3600
    assert outcome.events[-1]["gpu_h"] == pytest.approx(C)
    assert max(e["gpu_h"] for e in outcome.events) == pytest.approx(C)


@pytest.mark.parametrize("k", [1, 2, 8])
def test_pipeline_holds_for_every_seed(k: int) -> None:
    """Heavy tails, stragglers, lost engines, skipped updates: never a lag over k, never a hang."""
    worst = 0
    for seed in range(SEEDS // 3):
        script = Script(
            seed=seed,
            tail=(0.6, 1.1, 3.0)[seed % 3],
            straggler=seed % 7 if seed % 2 else None,
            lost=0.15 if seed % 5 == 0 else 0.0,
            skip_every=(0, 3, 2)[seed % 3],
            train_s=(0.05, 1.0, 4.0)[seed // 3 % 3],
        )
        recipe = scripted_recipe(staleness={"kind": "pipeline", "k": k}, seed=seed)
        outcome = play(recipe, script)
        assert outcome.status == "done"
        check(outcome)
        lags = [lag for batch in outcome.world.lags for lag in batch]
        assert 0 <= min(lags) and max(lags) <= k
        worst = max(worst, *lags)
    assert worst == k, "the bound is never reached, so the test shows nothing"


def test_a_straggler_stalls_the_trainer_and_is_named() -> None:
    outcome = play(
        scripted_recipe(staleness={"kind": "pipeline", "k": 1}), Script(tail=5.0, straggler=4)
    )
    stalls = [e for e in outcome.events if e["kind"] == "update" and e["stall_group"] == 4]
    assert (
        stalls and max(e["stall_s"] for e in stalls) > 50
    )  # it takes a hundred times the others' second or so
    assert max(lag for batch in outcome.world.lags for lag in batch) <= 1


def test_synchronous_at_k_0() -> None:
    outcome = play(scripted_recipe(staleness={"kind": "pipeline", "k": 0}), Script())
    check(outcome)
    assert {lag for batch in outcome.world.lags for lag in batch} == {0}
    assert outcome.world.trained == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(20)]


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("skip_every", [0, 3])
def test_ppo_off_policy_alternates(k: int, skip_every: int) -> None:
    """Mini-batch j has lag j - 1, less what was skipped in its phase; generators idle while the trainer works."""
    for seed in range(10):
        recipe = scripted_recipe(staleness={"kind": "ppo_off_policy", "k": k}, seed=seed)
        outcome = play(recipe, Script(seed=seed, tail=0.8, skip_every=skip_every))
        check(outcome)
        for place, lags in enumerate(outcome.world.lags):
            phase_start = place - place % k
            skipped = sum(
                skip_every > 0 and (i + 1) % skip_every == 0 for i in range(phase_start, place)
            )
            assert set(lags) == {place % k - skipped}, (k, place)
        assert set(outcome.world.idle_while_training) == {0}
        phases = [
            sorted(o for batch in outcome.world.trained[i : i + k] for o in batch)
            for i in range(0, 20 - 20 % k, k)
        ]
        assert phases == [list(range(i * k * P, (i + 1) * k * P)) for i in range(len(phases))]


def test_ppo_pushes_once_a_phase() -> None:
    outcome = play(scripted_recipe(staleness={"kind": "ppo_off_policy", "k": 4}), Script())
    assert outcome.world.pushed == [4, 8, 12, 16, 20]


def test_ppo_order_is_seeded() -> None:
    def order(seed: int) -> list[list[int]]:
        return play(
            scripted_recipe(staleness={"kind": "ppo_off_policy", "k": 4}, seed=seed), Script()
        ).world.trained

    assert order(1) == order(1) != order(2)


@pytest.mark.parametrize("kind", ["pipeline", "ppo_off_policy"])
def test_all_updates_skipped_does_not_deadlock(kind: str) -> None:
    outcome = play(scripted_recipe(staleness={"kind": kind, "k": 2}), Script(skip_every=1))
    check(outcome)
    assert outcome.state.version == 0 and outcome.world.pushed == []
    assert all(e["skipped"] for e in outcome.events if e["kind"] == "update")


@pytest.mark.parametrize("kind", ["pipeline", "ppo_off_policy"])
def test_dynamic_sampling_replaces_constant_groups(kind: str) -> None:
    for seed in range(20):
        recipe = scripted_recipe(
            staleness={"kind": kind, "k": 2}, zero_variance="resample", seed=seed
        )
        outcome = play(recipe, Script(seed=seed, pass_rate=0.3))
        check(outcome)
        assert outcome.state.rejected > 0
        assert max(lag for batch in outcome.world.lags for lag in batch) <= 2
        rates = [e["pass_rate"] for e in outcome.events if e["kind"] == "update"]
        assert set(rates) == {0.5}  # of two completions one passed, in every group that was kept


def test_no_positive_resampling_ends_an_exhausted_run() -> None:
    recipe = scripted_recipe(curriculum={"kind": "no_positive_resampling", "threshold": 0.9})
    outcome = play(recipe, Script(pass_rate=1.0), prompts=10)
    # Ten prompts, each solved at its first visit: fewer than the 60 groups of twenty updates can ever be drawn.
    assert outcome.status == "exhausted"
    assert 0 < len(outcome.world.trained) < 20
    evals = [e["version"] for e in outcome.events if e["kind"] == "eval"]
    assert evals[-1] == outcome.state.version  # the last weights are evaluated all the same
    assert any("training prompts" in e["what"] for e in outcome.events if e["kind"] == "warning")


def test_lost_engines_are_issued_again_and_said() -> None:
    outcome = play(scripted_recipe(), Script(lost=0.5))
    check(outcome)
    faults = [e for e in outcome.events if e["kind"] == "fault"]
    assert len(faults) == sum(tries - 1 for tries in outcome.world.tries.values()) - sum(
        outcome.world.tries.get(o, 0) == 0 for o in outcome.state.in_flight
    )
    assert all(e["error"] == "GeneratorLost" for e in faults) and faults


def test_a_group_issued_again_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens come from the weights of the second try, so the old start would make the trainer wait for nothing."""
    starts: dict[int, int] = {}
    land = LoopState.land

    def recorded(state: LoopState, ticket: Ticket, group: Group, *, reject: bool) -> None:
        starts[ticket.ordinal] = ticket.start
        assert group.oldest_version >= ticket.start
        land(state, ticket, group, reject=reject)

    class LateLoss(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            if request_id == 1 and self.published < 3:
                while self.published < 3:
                    await self.clock.sleep(1.0)
                raise GeneratorLost("engine 1 died")
            return await super().generate(prompt, n, request_id, seed)

    monkeypatch.setattr(LoopState, "land", recorded)
    outcome = play(scripted_recipe(), Script(), world_class=LateLoss)
    check(outcome)
    assert starts[0] == 0 and starts[1] >= 3


def test_the_last_update_is_evaluated_whatever_the_cadence() -> None:
    outcome = play(scripted_recipe(updates=18), Script())
    evals = [e["version"] for e in outcome.events if e["kind"] == "eval"]
    assert evals == [0, 5, 10, 15, 18]


def test_engines_that_all_die_end_the_run() -> None:
    with pytest.raises(RunFailed, match="GeneratorLost: engine of group"):
        play(scripted_recipe(), Script(lost=3.0))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(fail_update_at=4), "RuntimeError: the trainer died"),
        (Script(fail_score_of=5), "RuntimeError: the verifier died"),
        (Script(fail_push_at=3), "PushFailed: push of version 3: generator 3"),
    ],
)
def test_the_first_failure_ends_the_run_with_its_cause(script: Script, said: str) -> None:
    events: list[dict[str, object]] = []
    with pytest.raises(RunFailed, match=said) as failure:
        play(scripted_recipe(), script, listen=events.append)
    assert "\n" not in str(failure.value)
    assert [e["kind"] for e in events][-1] == "fault"


ENOSPC = 28


class Disk(ScriptedWorld):
    """A world whose part of a checkpoint cannot be saved."""

    error: Exception

    def save(self, folder: Path) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(ENOSPC, "No space left on device"), "cannot write the run folder: No space left on device: make"),
        (OSError(ENOSPC, "No space left on device", "w.bin"), "cannot write w.bin: No space left on device: make"),
        # as safetensors says it
        (ValueError("I/O error: File too large (os error 27)"), "cannot write the run folder: I/O error: File too"),
        (ValueError("no such tensor"), "ValueError: no such tensor"),
        (ConnectionResetError(104, "reset by peer"), "ConnectionResetError: [Errno 104] reset by peer"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_written_says_so_and_what_to_do(
    error: Exception, said: str, tmp_path: Path
) -> None:
    """And an error that is no full disk is not taken for one."""
    heard: list[Event] = []
    world = type("Broken", (Disk,), {"error": error})
    with pytest.raises(RunFailed) as failure:
        play(
            scripted_recipe(),
            Script(),
            checkpoints=tmp_path,
            world_class=world,
            listen=heard.append,
        )
    sentence = str(failure.value)
    assert sentence.startswith(said)
    assert sentence.endswith("then resume the run") is ("cannot write" in said)
    assert heard[-1]["kind"] == "fault" and sentence.endswith(heard[-1]["cause"])


def test_a_world_that_waits_for_ever_is_an_error_not_a_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(self: ScriptedWorld, *_: object) -> object:
        await self.serve()
        raise AssertionError

    monkeypatch.setattr(ScriptedWorld, "generate", never)
    said = r"nothing has finished for 1e\+15 s .*groups that are out: 0 \(since version 0\), 1"
    with pytest.raises(RunFailed, match=said):
        play(scripted_recipe(), Script())


def test_a_stale_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backstop: a world that stamps tokens with versions older than the rule allows is found out."""
    monkeypatch.setattr(Group, "check", lambda *_: None)  # which finds it first

    async def stamped(self: ScriptedWorld, *arguments: object) -> object:
        group = await honest(self, *arguments)  # type: ignore[arg-type]
        group.completions[0].version = [0, 0, 0]
        return group

    honest = ScriptedWorld.generate
    monkeypatch.setattr(ScriptedWorld, "generate", stamped)
    with pytest.raises(RunFailed, match=r"took a token of lag 3; the recipe allows 0 to 2"):
        play(scripted_recipe(staleness={"kind": "pipeline", "k": 2}), Script())


def test_evaluations_are_pinned_and_do_not_stop_the_run() -> None:
    outcome = play(scripted_recipe(), Script())
    evals = [e for e in outcome.events if e["kind"] == "eval"]
    assert [e["version"] for e in evals] == [0, 5, 10, 15, 20]
    # Three updates or more pass while one evaluation (7 s) runs, and C is that of the snapshot.
    for event in evals:
        assert 6 * event["clock"] / 3600 - event["C"] == pytest.approx(6 * 7.0 / 3600)
    # passes 2, 3, v % 5 of 4: pass rate (2 + 3 + 0) / 12
    assert all(e["pass_rate"] == pytest.approx(5 / 12) for e in evals)


def test_a_run_describes_itself_and_shows_samples() -> None:
    outcome = play(scripted_recipe(), Script())
    run = outcome.events[0]
    assert run["versions"].keys() == {"scalerl-sandbox", "torch", "numpy"}
    assert run["algorithm_id"] == scripted_recipe().algorithm_id()
    samples = [e for e in outcome.events if e["kind"] == "sample"]
    assert [e["update"] for e in samples] == [5, 10, 15, 20]  # at the evaluations' pace
    assert samples[0]["completion"] == "5 5 5" and len(samples[0]["version"]) == TOKENS


def test_a_stop_is_heard_while_no_batch_can_come() -> None:
    """Dynamic sampling on a task that is always solved rejects for ever; the first stop still ends the run."""
    control = Control()
    seen = 0

    def landed(world: ScriptedWorld) -> None:
        nonlocal seen
        seen += 1
        control.stop = seen > 500

    class Counting(ScriptedWorld):
        async def score(self, group: Group) -> Group:
            landed(self)
            return await super().score(group)

    recipe = scripted_recipe(zero_variance="resample")
    outcome = play(recipe, Script(pass_rate=1.0), control=control, world_class=Counting)
    assert outcome.status == "stopped" and outcome.state.updates == 0
    assert outcome.state.rejected >= 500


def test_events_are_the_same_twice_and_numbered() -> None:
    def events() -> list[dict[str, object]]:
        return [
            {k: v for k, v in e.items() if k != "t"}
            for e in play(scripted_recipe(), Script(lost=0.2)).events
        ]

    first = events()
    assert first == events()
    assert [e["seq"] for e in first] == list(range(len(first)))
    assert first[0]["kind"] == "run" and first[0]["seed"] == 0


def test_stop_and_resume_loses_nothing(tmp_path: Path) -> None:
    """Stopped after update 8; the second half issues again what was in flight, and trains each ordinal once."""
    control = Control()

    def stop(event: dict[str, object]) -> None:
        control.stop = control.stop or event.get("update") == 8

    recipe = scripted_recipe(staleness={"kind": "pipeline", "k": 2})
    first = play(recipe, Script(), control=control, listen=stop, checkpoints=tmp_path)
    assert first.status == "stopped" and first.state.updates == 8

    def load(world: ScriptedWorld, state: LoopState) -> None:
        path = newest_checkpoint(tmp_path)
        assert path is not None
        load_checkpoint(path, state, recipe.algorithm_id())
        world.load(path)

    second = play(recipe, Script(), prepare=load)
    assert second.status == "done"
    trained = [o for batch in (*first.world.trained, *second.world.trained) for o in batch]
    assert len(first.world.trained) == 8 and len(second.world.trained) == 12
    assert len(trained) == len(set(trained))
    held = {*trained, *second.state.finished, *second.state.in_flight}
    assert held == set(range(second.state.next_ordinal))
    assert max(lag for batch in second.world.lags for lag in batch) <= 2
    assert second.events[0]["seq"] == first.state.next_seq


def test_stopped_while_waiting_for_the_first_batch(tmp_path: Path) -> None:
    """Taken up again it does not begin twice: one `run`, one evaluation of version 0."""
    control = Control()

    class Impatient(ScriptedWorld):
        async def score(self, group: Group) -> Group:
            control.stop = True
            return await super().score(group)

    recipe = scripted_recipe()
    first = play(recipe, Script(), control=control, checkpoints=tmp_path, world_class=Impatient)
    assert first.status == "stopped" and first.state.updates == 0

    def load(world: ScriptedWorld, state: LoopState) -> None:
        path = newest_checkpoint(tmp_path)
        assert path is not None and path.name == "update-0"
        load_checkpoint(path, state, recipe.algorithm_id())
        world.load(path)

    second = play(recipe, Script(), prepare=load)
    assert second.status == "done"
    kept = [e for e in first.events if e["seq"] < first.state.next_seq] + second.events
    assert [e["seq"] for e in kept] == list(range(len(kept)))
    assert sum(e["kind"] == "run" for e in kept) == 1
    assert [e["version"] for e in kept if e["kind"] == "eval"] == [0, 5, 10, 15, 20]


def test_phase_events_are_capped_and_the_ledger_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from scalerl.compute import Phase

    def many(self: ScriptedWorld) -> list[Phase]:
        now = self.clock.now()
        return [Phase("generator", i % 4, "blink", now, now) for i in range(300)]

    monkeypatch.setattr(ScriptedWorld, "phases", many)
    outcome = play(scripted_recipe(updates=1), Script())
    assert sum(e["kind"] == "phase" for e in outcome.events) <= 2 * 200
