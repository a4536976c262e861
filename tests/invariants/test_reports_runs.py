"""Reported faults of queues, staleness, resuming, the curriculum and the fit: their smallest inputs, given to ours."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted import TOKENS, Outcome, Script, ScriptedWorld, play, scripted_recipe

from scalerl.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from scalerl.compute import Ledger
from scalerl.curriculum import Curriculum
from scalerl.curves.search import B_BOUNDS
from scalerl.errors import CheckpointError, CurriculumExhausted, GeneratorLost
from scalerl.fit import fit_sigmoid
from scalerl.loop import Control
from scalerl.rollout import Completion, Group
from scalerl.state import LoopState
from scalerl.task import Prompt
from scalerl.update import mixed_groups

NINE_TENTHS = Fraction(9, 10)
ID = "0123456789ab"


def trained(outcome: Outcome) -> list[int]:
    return [ordinal for batch in outcome.world.trained for ordinal in batch]


# ---- queue and staleness ----


@pytest.mark.report(
    "B85",
    "molt #124",
    "a rollout goes on under new weights although partial rollouts are switched off",
)
def test_no_rollout_spans_a_push_where_generation_waits() -> None:
    class Recording(ScriptedWorld):
        async def score(self, group: Group) -> Group:
            spans.extend(set(c.version) for c in group.completions)
            return await super().score(group)

    def play_with(kind: str, k: int) -> None:
        spans.clear()
        recipe = scripted_recipe(staleness={"kind": kind, "k": k}, prompts_per_update=1)
        play(recipe, Script(), world_class=Recording)

    spans: list[set[int]] = []
    for k in (1, 2):  # one group in flight at each push, or two
        play_with("ppo_off_policy", k)
        assert {len(versions) for versions in spans} == {1}
    play_with("pipeline", 2)
    assert max(len(versions) for versions in spans) > 1, "with mid-flight pushes they do span"


@pytest.mark.report(
    "B86",
    "tinker-cookbook #822",
    "rollouts that came too late are discarded and drawn again: slow prompts are never trained on",
)
def test_slow_prompts_are_trained_on_as_often_as_fast_ones() -> None:
    """Three prompts that take 1, 1 and 9 updates' time, at k = 3: the trainer waits and discards nothing."""

    class Slow(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            version = self.published
            await self.clock.sleep((1.0, 1.0, 9.0)[prompt.id])
            drawn[request_id] = prompt.id
            rows = [Completion([5], [-1.0], [version], [True]) for _ in range(n)]
            return Group(request_id, prompt.id, list(prompt.token_ids), rows)

    drawn: dict[int, int] = {}
    recipe = scripted_recipe(
        staleness={"kind": "pipeline", "k": 3}, prompts_per_update=1, updates=30
    )
    outcome = play(recipe, Script(push_s=0.0), prompts=3, world_class=Slow)
    assert max(lag for batch in outcome.world.lags for lag in batch) == 3
    times = np.bincount([drawn[ordinal] for ordinal in trained(outcome)], minlength=3)
    # 30 updates of one prompt each, three prompts in turn: 10 times each, but for the 3 + 1 that are held
    assert times.sum() == 30 and times.min() >= 8, times
    held = {*outcome.state.finished, *outcome.state.in_flight}
    assert {*trained(outcome), *held} == set(range(outcome.state.next_ordinal))


@pytest.mark.report(
    "B88",
    "NeMo-RL #2651",
    "a group is counted when it is asked for, so one that fails is waited for without end",
)
def test_a_group_that_fails_holds_nothing_up() -> None:
    class FailsOnce(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            if request_id == 1 and request_id not in self.tries:
                self.tries[request_id] = 1
                raise GeneratorLost("engine 1 died")
            return await super().generate(prompt, n, request_id, seed)

    recipe = scripted_recipe(staleness={"kind": "pipeline", "k": 0}, updates=3)
    outcome = play(recipe, Script(), world_class=FailsOnce)
    # k = 0 takes exactly what was admitted: 3 updates of 3 groups, the failed one in its turn, and no slot is lost
    assert outcome.status == "done"
    assert outcome.world.trained == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert outcome.world.tries[1] == 2


@pytest.mark.report(
    "B90", "TRL #6804", "a buffer keeps one flag for the whole batch, not one for each group"
)
def test_each_group_has_its_flag() -> None:
    # rewards 1, 0 (std 1/2) and 1, 1 (std 0)
    correct_B = torch.tensor([True, False, True, True])
    assert mixed_groups(correct_B, torch.tensor([8, 8, 3, 3])).tolist() == [
        True,
        True,
        False,
        False,
    ]


# ---- resuming ----


@pytest.mark.report(
    "B87",
    "NeMo-RL #108; prime-rl #3299 (review)",
    "a resumed run draws its first items again, because prefetching began before the state was loaded",
)
def test_a_resumed_run_goes_on_with_the_third_item(tmp_path: Path) -> None:
    control = Control()

    def stop(event: dict[str, Any]) -> None:
        control.stop = control.stop or event.get("update") == 2

    def load(world: ScriptedWorld, state: LoopState) -> None:
        path = newest_checkpoint(tmp_path)
        assert path is not None
        load_checkpoint(path, state, recipe.algorithm_id())
        world.load(path)

    recipe = scripted_recipe(
        staleness={"kind": "pipeline", "k": 0}, prompts_per_update=1, updates=4
    )
    first = play(recipe, Script(), control=control, listen=stop, checkpoints=tmp_path)
    second = play(recipe, Script(), prepare=load)
    # items 0 and 1, then 2 and 3: not 0 and 1 once more
    assert (first.status, trained(first), trained(second)) == ("stopped", [0, 1], [2, 3])
    whole = play(recipe, Script())
    assert whole.state.curriculum.to_json() == second.state.curriculum.to_json()


@pytest.mark.report(
    "B89",
    "NeMo-RL #3480 (review)",
    "resuming with another sampler silently drops the groups that had been finished",
)
def test_finished_groups_survive_or_the_load_is_refused(tmp_path: Path) -> None:
    def fresh() -> LoopState:
        return LoopState(Curriculum(5, 0), Ledger({"generator": 1, "trainer": 1, "evaluator": 1}))

    state = fresh()
    for correct in (True, False):
        ticket, row = state.admit(), Completion([5], [-1.0], [0], [True], correct=correct)
        state.land(ticket, Group(ticket.ordinal, ticket.prompt, [1], [row]), reject=False)
    world = ScriptedWorld(scripted_recipe(), Script())
    path = save_checkpoint(tmp_path, state, world, ID)
    again = fresh()
    load_checkpoint(path, again, ID)
    assert len(again.finished) == 2 and again.finished == state.finished
    with pytest.raises(CheckpointError, match=f"belongs to algorithm {ID}"):
        load_checkpoint(path, fresh(), "ba9876543210")


@pytest.mark.report(
    "B91", "open-instruct #1158", "the list of excluded prompts is not part of what is saved"
)
def test_excluded_prompts_stay_excluded_after_a_load() -> None:
    before = Curriculum(5, 0, NINE_TENTHS)
    before.observe(3, 16, 16)
    after = Curriculum(5, 0, NINE_TENTHS)
    after.load_json(before.to_json())
    assert after.excluded(3)
    assert sorted(after.draw() for _ in range(8)) == [0, 0, 1, 1, 2, 2, 4, 4]


# ---- the curriculum ----


@pytest.mark.report(
    "B92",
    "prime-rl #2667, #2916",
    "one-way pools drain until nothing is left and the run hangs, or solved prompts come back",
)
def test_a_drained_curriculum_ends_the_run() -> None:
    curriculum = Curriculum(2, 0, NINE_TENTHS)
    for prompt in (0, 1):
        curriculum.observe(prompt, 16, 16)
    with pytest.raises(CurriculumExhausted, match="all 2 training prompts"):
        curriculum.draw()
    recipe = scripted_recipe(curriculum={"kind": "no_positive_resampling", "threshold": 0.9})
    outcome = play(recipe, Script(pass_rate=1.0), prompts=6)
    assert outcome.status == "exhausted"
    # each prompt was solved at its first visit: the 3 + 3 draws are trained on, and no ordinal is lost
    held = {*outcome.state.finished, *outcome.state.in_flight}
    assert {*trained(outcome), *held} == set(range(outcome.state.next_ordinal))
    assert outcome.state.tokens == outcome.state.next_ordinal * 2 * TOKENS


@pytest.mark.report(
    "B93", "open-instruct #1158", "the pass rate is the last group's, and not that of all visits"
)
def test_the_pass_rate_is_of_all_visits() -> None:
    curriculum = Curriculum(2, 0, NINE_TENTHS)
    curriculum.observe(0, 0, 16)
    curriculum.observe(0, 15, 16)
    curriculum.observe(1, 15, 16)
    # 15 / 32 = 0.47 is kept; 15 / 16 = 0.94, at an only visit, is excluded
    assert not curriculum.excluded(0) and curriculum.excluded(1)


# ---- the fit ----

LAW = {"R0": 0.4, "A": 0.645, "B": 1.67, "C_mid": 10_788.0}
GPU_HOURS = np.geomspace(1_500.0, 60_000.0, 20)


def law(C: np.ndarray, R0: float, A: float, B: float, C_mid: float) -> np.ndarray:
    return R0 + (A - R0) / (1.0 + (C_mid / C) ** B)


@pytest.mark.report(
    "B94", "scipy #5980", "from a start of ones the sigmoid's fit ends at a meaningless point"
)
@pytest.mark.parametrize("R0", [None, 0.4])
def test_the_fit_needs_no_start(R0: float | None) -> None:
    fit = fit_sigmoid(GPU_HOURS, law(GPU_HOURS, **LAW), R0=R0)
    # without noise the law itself comes back, and not B = -104
    assert (fit.R0, fit.A, fit.B) == pytest.approx((0.4, 0.645, 1.67), rel=1e-5)
    assert fit.C_mid == pytest.approx(10_788.0, rel=1e-5) and not fit.at_edge


@pytest.mark.report("B95", "scipy #12715", "what is fitted depends on the unit of x")
def test_gpu_hours_and_gpu_seconds_give_one_fit() -> None:
    noise = 0.005 * np.cos(np.arange(20.0) ** 2)
    R = law(GPU_HOURS, **LAW) + noise
    hours, seconds = fit_sigmoid(GPU_HOURS, R), fit_sigmoid(3_600.0 * GPU_HOURS, R)
    for name in ("R0", "A", "B", "rmse"):
        assert getattr(seconds, name) == pytest.approx(getattr(hours, name), rel=1e-6), name
    assert seconds.C_mid == pytest.approx(3_600.0 * hours.C_mid, rel=1e-6)


@pytest.mark.report(
    "B97",
    "scipy #5719, #5722",
    "a first guess is ignored, or lies outside the bounds that are given",
)
def test_the_fit_stays_inside_its_bounds_and_says_when_they_chose() -> None:
    """We take no first guess: ours come from a grid inside the bounds. A step is steeper than the largest B."""
    low, high = B_BOUNDS
    step = np.where(GPU_HOURS < 9_000.0, 0.4, 0.6)
    fit = fit_sigmoid(GPU_HOURS, step)
    assert (
        low <= fit.B <= high * (1 + 1e-12) and fit.at_edge
    )  # exp(ln 10) is 10 but for its last digit
    # and a law at an edge of the grid is found: B = 4 of 0.2 .. 10
    steep = fit_sigmoid(GPU_HOURS, law(GPU_HOURS, 0.4, 0.645, 4.0, 10_788.0))
    assert steep.B == pytest.approx(4.0, rel=1e-5) and not steep.at_edge
