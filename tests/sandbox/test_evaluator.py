"""Evaluation in the tiny world: pinned weights, fresh noise, GPUs of its own."""

import asyncio

import pytest
from tiny_policies import random_policy
from tiny_runs import of_kind, play, quiet_recipe

from sandbox.decoder import Decoder, sample_all
from sandbox.evaluator import Evaluator
from sandbox.model import Policy, load_policy
from sandbox.world import SandboxWorld, start_policy
from scalerl.clock import run_virtual
from scalerl.compute import Phase
from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.world import Handle
from scenarios.worlds import open_world


def evaluator(wanted: Recipe) -> Evaluator:
    return SandboxWorld(wanted).evaluator


def test_evaluation_is_of_the_weights_that_were_pinned() -> None:
    """Weights that change between the pin and the evaluation change nothing in it."""
    wanted = quiet_recipe("site.evaluation.prompts=32")
    policy = load_policy(start_policy("digit_sum"))
    plain, moved = evaluator(wanted), evaluator(wanted)
    first = plain.pin(policy, 3)
    expected = run_virtual(plain.evaluate(first, ["validation", "ood"]))
    handle = moved.pin(policy, 3)
    policy.load_state_dict(random_policy().state_dict())
    assert run_virtual(moved.evaluate(handle, ["validation", "ood"])) == expected
    assert [(r.set, r.version, r.k, r.n) for r in expected] == [
        ("validation", 3, 4, 32),
        ("ood", 3, 4, 32),
    ]
    assert sum(expected[0].passes) > 0
    other = moved.pin(policy, 4)
    assert sum(run_virtual(moved.evaluate(other, ["validation"]))[0].passes) == 0
    assert not moved.pinned and not moved.due, "weights are released once evaluated"


def test_every_evaluation_draws_fresh_random_numbers() -> None:
    """With weights that stand still, evaluations differ by noise; with one noise for all, drift would be hidden."""
    _, _, events = play(
        quiet_recipe(
            "site.optimizer.learning_rate=1e-30",
            "site.optimizer.weight_decay=0",
            "site.evaluation.every_updates=1",
            "site.updates=5",
        )
    )
    passes = [tuple(event["passes"]) for event in of_kind(events, "eval")]
    assert len(passes) == 6 and len(set(passes)) == 6


def test_evaluations_queue_for_their_gpus_and_nothing_else_waits() -> None:
    """Two pinned at once end one after the other; their cost is that of the steps that somebody decodes in."""
    wanted = quiet_recipe("site.evaluation.prompts=2", "site.evaluation.completions=2")
    runs = evaluator(wanted)
    policy = load_policy(start_policy("digit_sum"))
    handles = [runs.pin(policy, version) for version in (0, 1)]
    ends: list[float] = []

    async def one(handle: Handle) -> None:
        await runs.evaluate(handle, ["validation"])
        ends.append(runs.clock.now())

    async def main() -> list[Phase]:
        async with asyncio.TaskGroup() as tasks:
            for handle in handles:
                tasks.create_task(one(handle))
        return runs.take_phases()

    phases = run_virtual(main())
    assert [phase.end for phase in phases] == ends
    assert [phase.start for phase in phases] == [0.0, ends[0]]
    assert {phase.gpus for phase in phases} == {64}
    assert phases[0].end == pytest.approx(evaluation_cost(wanted, policy))


def evaluation_cost(wanted: Recipe, policy: Policy) -> float:
    """By its definition: replay what was sampled and let every step read the weights and all live contexts."""
    world = SandboxWorld(wanted)
    prompts = list(world.task.prompts("validation"))[:2]
    decoder = Decoder(policy, world.task, world.evaluator.decoder.sampling, 4, 19)
    groups = sample_all(decoder, prompts, 2, seed=1 << 40)
    hardware = world.site.hardware
    seconds = hardware.prefill_s(sum(len(prompt.token_ids) for prompt in prompts) / 64)
    for step in range(max(c.length_tokens for group in groups for c in group)):
        live = [
            len(prompt.token_ids) + step
            for prompt, group in zip(prompts, groups, strict=True)
            for c in group
            if c.length_tokens > step
        ]
        seconds += hardware.decode_s(len(live) / 64, sum(live) / 64)
    return seconds


def test_more_prompts_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match=r"site\.evaluation\.prompts = 513.*512"):
        open_world(quiet_recipe("site.evaluation.prompts=513"))
