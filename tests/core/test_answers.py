"""A group is what was asked for, or it is asked for again; a run in which nothing finishes ends with a sentence."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from scripted import SITE, Script, ScriptedWorld, play, scripted_recipe

from scalerl.errors import GroupRefused, RunFailed
from scalerl.rollout import Completion, Group
from scalerl.task import Prompt
from scalerl.world import EvalResult, Handle

PROMPT = Prompt(7, (1, 2, 3), (4,), 1)


def answer() -> Group:
    completions = [Completion([5, 6], [-0.5, -0.1], [3, 4], [True, True]) for _ in range(2)]
    return Group(11, 7, [1, 2, 3], completions)


def renamed(group: Group) -> None:
    group.request_id = 12


def of_another_prompt(group: Group) -> None:
    group.prompt_id = 8


def with_other_tokens(group: Group) -> None:
    group.prompt_ids = [1, 2]


def one_missing(group: Group) -> None:
    group.completions.pop()


def without_tokens(group: Group) -> None:
    group.completions[1] = Completion([], [], [], [])


def with_fewer_log_probs(group: Group) -> None:
    group.completions[1].logp.pop()


def with_nan(group: Group) -> None:
    group.completions[1].logp[0] = float("nan")


def from_before(group: Group) -> None:
    group.completions[1].version[0] = 2


SPOILED: dict[str, tuple[Callable[[Group], None], str]] = {
    "renamed": (renamed, r"asked for group 11, 2 completions of prompt 7; got group 12"),
    "of_another_prompt": (of_another_prompt, "of prompt 8"),
    "with_other_tokens": (with_other_tokens, "tokens of another prompt"),
    "one_missing": (one_missing, "got 1$"),
    "without_tokens": (without_tokens, "completion 1 has 0 tokens"),
    "with_fewer_log_probs": (with_fewer_log_probs, "completion 1 has 2 tokens, 1 log-probs"),
    "with_nan": (with_nan, "completion 1 has a log-prob that is no number"),
    "from_before": (from_before, "a token of version 2, it began at 3"),
}


def test_an_answer_as_asked_for_is_taken() -> None:
    answer().check(11, PROMPT, 2, start=3)


@pytest.mark.parametrize("name", SPOILED)
def test_any_other_is_refused(name: str) -> None:
    spoil, said = SPOILED[name]
    group = answer()
    spoil(group)
    with pytest.raises(GroupRefused, match=said):
        group.check(11, PROMPT, 2, start=3)


@pytest.mark.parametrize("name", SPOILED)
def test_what_was_refused_is_asked_for_again(name: str) -> None:
    spoil, _ = SPOILED[name]

    class OnceWrong(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            group = await super().generate(prompt, n, request_id, seed)
            if request_id == 4 and self.tries[4] == 1:
                spoil(group)
                if name == "from_before":
                    group.completions[1].version[0] = -1
            return group

    outcome = play(scripted_recipe(), Script(), world_class=OnceWrong)
    assert outcome.status == "done" and outcome.world.tries[4] == 2
    trained = [ordinal for batch in outcome.world.trained for ordinal in batch]
    assert trained.count(4) == 1
    [fault] = [e for e in outcome.events if e["kind"] == "fault"]
    assert (fault["error"], fault["group"]) == ("GroupRefused", 4)


def test_an_engine_that_never_answers_as_asked_ends_the_run() -> None:
    class Wrong(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            group = await super().generate(prompt, n, request_id, seed)
            group.completions.pop()
            return group

    with pytest.raises(RunFailed, match=r"^GroupRefused: asked for group \d+, 2 completions"):
        play(scripted_recipe(), Script(), world_class=Wrong)


# ---- the watchdog ----


def impatient() -> dict[str, object]:
    return SITE.model_copy(update={"stall_s": 500.0}).model_dump()


def test_one_group_that_never_comes_ends_the_run_in_time() -> None:
    class Hanging(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            if request_id == 4:
                await asyncio.Event().wait()
            return await super().generate(prompt, n, request_id, seed)

    worlds: list[ScriptedWorld] = []
    recipe = scripted_recipe().on(type(SITE).model_validate(impatient()))
    with pytest.raises(RunFailed, match=r"^Stalled: .*500 s .*that are out: 4 \(since version 0\)"):
        play(
            recipe,
            Script(tail=9.0),
            world_class=Hanging,
            prepare=lambda world, state: worlds.append(world),
        )
    assert worlds[0].closed and worlds[0].version > 0


def test_an_evaluation_that_never_ends_does_not_hold_a_finished_run_for_ever() -> None:
    class Hanging(ScriptedWorld):
        async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
            if handle.version == 10:
                await asyncio.Event().wait()
            return await super().evaluate(handle, sets)

    recipe = scripted_recipe().on(type(SITE).model_validate(impatient()))
    with pytest.raises(RunFailed, match=r"^Stalled: .* groups that are out: .*evaluations: 1"):
        play(recipe, Script(tail=9.0), world_class=Hanging)


def test_a_slow_run_is_no_stalled_one() -> None:
    recipe = scripted_recipe().on(type(SITE).model_validate(impatient()))
    outcome = play(recipe, Script(tail=9.0, train_s=450.0))
    assert outcome.status == "done" and outcome.trained_s > 20 * 450
