"""Tasks with changed training prompts: how much is changed, that evaluation is not, and that it is always the same."""

import pickle
from collections.abc import Sequence
from itertools import pairwise

import pytest

from sandbox.tasks.altered import Levels, NoisyVerifier, Unanswerable, chance
from sandbox.tasks.digit_sum import DigitSum
from sandbox.tasks.mixture import Mixture
from sandbox.tasks.pair_sum import PairSum
from sandbox.tasks.registry import task_of
from scalerl.errors import InputError, TaskError
from scalerl.recipe import Recipe
from scalerl.site import Data, Sandbox
from scalerl.task import Prompt, Task, check_task
from scenarios.scenario import plan

TASK = DigitSum()
TRAIN, VALIDATION = TASK.prompts("train"), TASK.prompts("validation")


def wrong(task: Task, prompt: Prompt) -> list[int]:
    """The solution with its last digit moved on by one."""
    *thinking, digit, eos = task.solve(prompt)
    return [*thinking, 39 + (digit - 39 + 1) % 10, eos]


def share(task: Task, prompts: Sequence[Prompt], solved: bool) -> float:
    answers = [TASK.solve(p) if solved else wrong(TASK, p) for p in prompts]
    return sum(map(task.verify, prompts, answers)) / len(prompts)


def test_the_verifier_flips_at_its_two_rates() -> None:
    """1,152 prompts: a standard deviation of 0.012 at 0.2 and of 0.006 at 0.05."""
    noisy = NoisyVerifier(TASK, right_as_wrong=0.2, wrong_as_right=0.05)
    assert share(noisy, TRAIN, solved=True) == pytest.approx(0.8, abs=0.04)
    assert share(noisy, TRAIN, solved=False) == pytest.approx(0.05, abs=0.02)
    assert share(noisy, VALIDATION, solved=True) == 1.0
    assert share(noisy, VALIDATION, solved=False) == 0.0


def test_one_completion_gets_one_verdict() -> None:
    """Whoever asks, and however often; other completions and prompts have their own."""
    noisy = NoisyVerifier(TASK, right_as_wrong=0.5, wrong_as_right=0.5)
    copy = pickle.loads(pickle.dumps(noisy))
    verdicts = [noisy.verify(p, TASK.solve(p)) for p in TRAIN]
    assert verdicts == [copy.verify(p, tuple(TASK.solve(p))) for p in TRAIN]
    prompt = TRAIN[0]
    lies = {noisy.verify(prompt, [token]) for token in range(20)}
    assert lies == {True, False}


def test_chance_is_uniform_and_tells_its_arguments_apart() -> None:
    numbers = sorted(chance("x", (i,)) for i in range(1000))
    assert max(abs(number - (i + 0.5) / 1000) for i, number in enumerate(numbers)) < 0.05
    assert len({chance("x", (1, 2)), chance("x", (12,)), chance("x", (1,), (2,))}) == 3


def test_unanswerable_prompts_are_an_exact_share_and_grow() -> None:
    tasks = [Unanswerable(TASK, share) for share in (0.1, 0.25, 0.5)]
    assert [len(task.hopeless) for task in tasks] == [115, 288, 576]
    for small, large in pairwise(tasks):
        assert small.hopeless < large.hopeless
    assert share(tasks[1], TRAIN, solved=True) == 1 - 288 / 1152
    assert share(tasks[1], VALIDATION, solved=True) == 1.0
    assert list(tasks[1].prompts("train")) == list(TRAIN)  # they are asked all the same


def test_levels_are_of_training_alone() -> None:
    easy = Levels(TASK, (1, 2))
    train = easy.prompts("train")
    assert {prompt.level for prompt in train} == {1, 2} and len(train) == 768
    assert [prompt.id for prompt in train] == list(range(768))
    assert easy.prompts("validation") is TASK.prompts("validation")
    check_task(easy)


def test_a_level_that_is_not_there() -> None:
    with pytest.raises(
        InputError, match=r"site\.data\.levels = \[2, 7\]: .* level 7; it has 1, 2, 3"
    ):
        Levels(TASK, (2, 7))


@pytest.mark.parametrize("task", [NoisyVerifier(TASK, 0.5, 0.0), Unanswerable(TASK, 0.5)])
def test_those_that_lie_break_the_contract_and_say_so(task: Task) -> None:
    with pytest.raises(TaskError, match=r"its own solution .* does not verify"):
        check_task(task)
    assert "check_task" in (type(task).__doc__ or "")


def recipe(*overrides: str) -> Recipe:
    (only,) = plan("scalerl", list(overrides))
    return only.recipe


def test_a_sites_data_puts_them_around_the_task() -> None:
    site = recipe(
        "site.data.levels=[3]",
        "site.data.unanswerable=0.25",
        "site.data.right_as_wrong=0.2",
        "site.data.wrong_as_right=0.1",
    ).site
    assert site is not None
    assert task_of(site) == NoisyVerifier(Unanswerable(Levels(TASK, (3,)), 0.25), 0.2, 0.1)
    plain = recipe().site
    assert isinstance(plain, Sandbox) and plain.data == Data() and task_of(plain) == TASK


def test_a_mixture_can_be_altered() -> None:
    mixed = Levels(Mixture((TASK, PairSum())), (1,))
    assert {(p.source, p.level) for p in mixed.prompts("train")} == {("digit_sum", 1), ("pair_sum", 1)}  # fmt: skip
    assert mixed.verify(mixed.prompts("train")[0], mixed.solve(mixed.prompts("train")[0]))
