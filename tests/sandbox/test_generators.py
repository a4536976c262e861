"""The virtual generators: slots, queues, seconds, and weights that arrive in mid-sequence.

Times are worked by hand on a GPU where everything costs one: a decode step takes 2 seconds (the weights, 2 bytes)
plus 1 for each token of context, prefill 1 for each token.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_policies import chain, chain_policy, random_policy

from sandbox import vocabulary as words
from sandbox.decoder import Decoder
from sandbox.generators import Generators, merge_neighbours
from sandbox.model import Policy
from sandbox.rows import Sampling
from sandbox.tasks.digit_sum import DigitSum, make_prompt
from scalerl.clock import run_virtual
from scalerl.compute import Phase
from scalerl.hardware import Hardware
from scalerl.recipe import Interruption
from scalerl.rollout import Group
from scalerl.task import Prompt

TASK = DigitSum()
UNIT = Hardware(
    token_scale=1,
    model_params=1,
    kv_bytes_token=1,
    gpu_bytes_s=1,
    gpu_flops=2,
    decode_efficiency=1,
    prefill_efficiency=1,
)
CLOSE, EOS, THINK = words.CLOSE, words.EOS, words.THINK
ONE, D1 = words.FIRST_NUMBER + 1, words.FIRST_DIGIT + 1
SHORT = (CLOSE, D1, EOS)  # three tokens
FIVE = make_prompt(0, [1, 2, 3], 1)  # <bos> 1 2 3 <think>
SEVEN = make_prompt(1, [1, 2, 3, 4, 5], 1)

Landed = dict[int, tuple[float, Group]]
Timer = tuple[float, Callable[[Generators], object]]


def pool(policy: Policy, engines: int = 1, slots: int = 1, recompute: bool = False) -> Generators:
    sampling = Sampling(Interruption(low=1.0, high=1.0), 12, 4, 1.0, torch.float32)
    decoder = Decoder(policy, TASK, sampling, engines * slots, widest_prompt=7)
    return Generators(decoder, UNIT, engines, slots, recompute_kv=recompute)


def drive(
    generators: Generators,
    requests: Mapping[int, tuple[Prompt, int]],
    timers: Sequence[Timer] = (),
    start: float = 0.0,
    delay: float = 0.0,
) -> Landed:
    """All requests (by id) at once, `delay` after `start`; when each came back, and with what.

    A step begins a nanosecond after what makes it possible; those nanoseconds are rounded away.
    """
    landed: Landed = {}

    async def ask(id: int, prompt: Prompt, n: int) -> None:
        await generators.clock.sleep(delay)
        group = await generators.generate(prompt, n, id, seed=0)
        landed[id] = round(generators.clock.now(), 6), group

    async def at(when: float, do: Callable[[Generators], object]) -> None:
        await generators.clock.sleep_until(when)
        do(generators)

    async def main() -> None:
        service = asyncio.create_task(generators.serve())
        async with asyncio.TaskGroup() as tasks:
            for id, (prompt, n) in requests.items():
                tasks.create_task(ask(id, prompt, n))
            for when, do in timers:
                tasks.create_task(at(when, do))
        service.cancel()

    run_virtual(main(), start=start)
    return landed


def times(landed: Landed) -> dict[int, float]:
    return {id: when for id, (when, _) in landed.items()}


@pytest.mark.parametrize(
    ("engines", "slots", "requests", "expected"),
    [
        # prefill 5 + decode 2 + 5, then 2 + 6, then 2 + 7
        pytest.param(1, 1, [(FIVE, 1)], {0: 12 + 8 + 9}, id="one completion"),
        pytest.param(1, 1, [(FIVE, 2)], {0: 29 + 29}, id="two in one slot"),
        # the prompt is prefilled once for both; two contexts are read in every step
        pytest.param(1, 2, [(FIVE, 2)], {0: (5 + 2 + 10) + (2 + 12) + (2 + 14)}, id="two slots"),
        # two prompts begin on one engine: 12 + 2 + 12, 2 + 14, 2 + 16
        pytest.param(1, 2, [(FIVE, 1), (SEVEN, 1)], {0: 60, 1: 60}, id="two prompts at once"),
        pytest.param(2, 1, [(FIVE, 2)], {0: 58}, id="a group stays on its engine"),
        pytest.param(2, 1, [(FIVE, 1), (FIVE, 1)], {0: 29, 1: 29}, id="two engines"),
        # in lockstep: the longer context sets the pace: 7 + 2 + 7, 2 + 8, 2 + 9
        pytest.param(2, 1, [(FIVE, 1), (SEVEN, 1)], {0: 37, 1: 37}, id="the slowest engine"),
        pytest.param(1, 1, [(FIVE, 1), (SEVEN, 1)], {0: 29, 1: 29 + 37}, id="first come"),
        # request 2 goes to engine 1, which owes one completion; engine 0 owes two
        pytest.param(
            2, 1, [(FIVE, 2), (FIVE, 1), (FIVE, 1)], {0: 58, 1: 29, 2: 58}, id="least loaded"
        ),
    ],
)
def test_seconds_by_hand(
    engines: int, slots: int, requests: list[tuple[Prompt, int]], expected: dict[int, float]
) -> None:
    landed = drive(pool(chain(*SHORT), engines, slots), dict(enumerate(requests)))
    assert times(landed) == expected
    for id, (prompt, n) in enumerate(requests):
        group = landed[id][1]
        assert (group.request_id, group.prompt_id) == (id, prompt.id)
        assert group.prompt_ids == list(prompt.token_ids)
        assert [c.token_ids for c in group.completions] == [list(SHORT)] * n


def test_a_freed_slot_is_refilled_at_once() -> None:
    """Eleven completions of unequal length on two engines with three slots: none stays free while work waits."""
    generators = pool(random_policy(seed=5), engines=2, slots=3)
    seen: list[tuple[int, int]] = []
    step = generators.decoder.step

    def watched() -> list:
        rows = generators.decoder.rows
        for engine in range(2):
            running = int((rows.place[: rows.count] == engine).sum())
            waiting = sum(
                generators.requests[id].n - generators.requests[id].seated
                for id in generators.queues[engine]
            )
            assert running <= 3
            assert running == 3 or waiting == 0
            seen.append((running, waiting))
        return step()

    generators.decoder.step = watched  # type: ignore[method-assign]
    landed = drive(generators, {0: (FIVE, 4), 1: (SEVEN, 4), 2: (FIVE, 3)})
    assert sorted(len(group.completions) for _, group in landed.values()) == [3, 4, 4]
    assert (3, 0) in seen and (1, 0) in seen and max(waiting for _, waiting in seen) > 1
    assert generators.load_E == [0, 0]
    assert not generators.requests and generators.decoder.rows.count == 0


# --- weights in mid-sequence ---

ENDLESS = {THINK: ONE, ONE: ONE}
ENDING = {ONE: CLOSE, CLOSE: D1, D1: EOS}


def push(policy: Policy, version: int) -> Callable[[Generators], object]:
    return lambda generators: generators.set_weights(policy.state_dict(), version)


def test_weights_act_from_the_next_step_on() -> None:
    """Steps end at 12, 20, 29; at 15, in the second, its token has been sampled already."""
    generators = pool(chain_policy(ENDLESS))
    landed = drive(generators, {0: (FIVE, 1)}, [(15.0, push(chain_policy(ENDING), 1))])
    (completion,) = landed[0][1].completions
    assert completion.token_ids == [ONE, ONE, CLOSE, D1, EOS]
    assert completion.version == [0, 0, 1, 1, 1]
    assert landed[0][0] == 12 + 8 + 9 + 10 + 11


def test_recomputing_the_cache_delays_the_next_step() -> None:
    """At 15 the context is 5 + 2 tokens, so the third step takes 7 seconds more."""
    generators = pool(chain_policy(ENDLESS), recompute=True)
    landed = drive(generators, {0: (FIVE, 1)}, [(15.0, push(chain_policy(ENDING), 1))])
    assert landed[0][0] == 12 + 8 + (9 + 7) + 10 + 11


def test_a_push_while_nothing_runs_costs_nothing() -> None:
    generators = pool(chain_policy(ENDING), recompute=True)
    landed = drive(generators, {0: (FIVE, 1)}, [(3.0, push(chain(*SHORT), 4))], delay=10.0)
    assert landed[0][0] == 10 + 29
    assert landed[0][1].completions[0].version == [4, 4, 4]


# --- busy times ---


def rounded(phases: Sequence[Phase]) -> list[Phase]:
    """Without the nanoseconds between steps."""
    return [replace(p, start=round(p.start, 6), end=round(p.end, 6)) for p in phases]


def test_an_engine_is_busy_from_its_first_token_to_its_last() -> None:
    """Engine 1 owes one completion (to 29), engine 0 two in a row (to 58), engine 2 none."""
    generators = pool(chain(*SHORT), engines=3)
    drive(generators, {0: (FIVE, 2), 1: (FIVE, 1)})
    assert rounded(generators.phases(60.0)) == [
        Phase("generator", 1, "generate", 0.0, 29.0, 1),
        Phase("generator", 0, "generate", 0.0, 58.0, 1),
    ]
    assert generators.phases(70.0) == []


def test_phases_of_a_running_engine_are_cut_and_go_on() -> None:
    generators = pool(chain(*SHORT))
    found: list[list[Phase]] = []
    drive(generators, {0: (FIVE, 1)}, [(20.5, lambda g: found.append(g.phases(20.5)))])
    assert [rounded(phases) for phases in (*found, generators.phases(30.0))] == [
        [Phase("generator", 0, "generate", 0.0, 20.5, 1)],
        [Phase("generator", 0, "generate", 20.5, 29.0, 1)],
    ]


def test_neighbours_are_merged_only_when_they_did_the_same() -> None:
    def phase(index: int, end: float = 9.0) -> Phase:
        return Phase("generator", index, "generate", 0.0, end, 1)

    assert merge_neighbours([phase(4), phase(0), phase(1), phase(2, 8.0), phase(3)]) == [
        phase(2, 8.0),
        Phase("generator", 0, "generate", 0.0, 9.0, 2),
        Phase("generator", 3, "generate", 0.0, 9.0, 2),
    ]


# --- checkpoints ---


@pytest.mark.parametrize("when", [0.0, 30.0, 75.5, 140.25])
def test_a_pool_taken_up_in_mid_step_lands_the_same_groups_at_the_same_time(
    when: float, tmp_path: Path
) -> None:
    """Partial tokens, stale caches, queues and the step under way; weights changed at 60, kept caches are stale."""
    old, new = random_policy(seed=5), random_policy(seed=6)
    requests = {0: (FIVE, 4), 1: (SEVEN, 4), 2: (FIVE, 3), 3: (SEVEN, 2)}
    saved: dict = {}
    weights: dict = {}

    def save(generators: Generators) -> None:
        saved.update(generators.save(tmp_path))
        weights.update({k: v.clone() for k, v in generators.decoder.policy.state_dict().items()})

    change = (60.0, push(new, 1))
    whole = drive(pool(old, engines=2, slots=2), requests, [change, (when, save)])
    spans = [c.version for _, group in whole.values() for c in group.completions]
    assert any(len(set(versions)) == 2 for versions in spans)

    again = pool(random_policy(seed=7), engines=2, slots=2)
    again.decoder.set_weights(weights, 0)
    again.restore(tmp_path, saved, [FIVE, SEVEN])
    assert again.load_E == [
        sum(r.n - len(r.done) for r in again.requests.values() if r.engine == engine)
        for engine in range(2)
    ]
    left = {id: requests[id] for id in requests if whole[id][0] > when}
    assert left and left.keys() == again.requests.keys()
    rest = drive(again, left, [change] if when < 60 else [], start=when)
    assert rest == {id: whole[id] for id in left}
