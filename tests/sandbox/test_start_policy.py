"""The shipped start policy poses the paper's question: it can do better than it does, by thinking longer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from sandbox import vocabulary as words
from sandbox.decoder import Decoder, sample_all
from sandbox.model import Policy, load_policy
from sandbox.rows import Sampling
from sandbox.tasks.digit_sum import DigitSum
from sandbox.tasks.registry import make_task
from sandbox.world import POLICIES, start_policy
from scalerl.recipe import Interruption, NoLengthControl
from scalerl.rollout import Completion
from scalerl.task import Prompt

TASK = DigitSum()
PROMPTS = list(TASK.prompts("validation"))
AS_SHIPPED = Sampling(Interruption(), 36, 4, 1.0, torch.float32)
N = 16


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(start_policy("digit_sum"))


def sample(
    policy: Policy,
    how: Sampling = AS_SHIPPED,
    *,
    prompts: Sequence[Prompt] = PROMPTS,
    begun: tuple[int, ...] = (),
    n: int = N,
) -> list[list[Completion]]:
    """n completions of every prompt; `begun` is put into their mouths first."""
    longer = [replace(prompt, token_ids=(*prompt.token_ids, *begun)) for prompt in prompts]
    widest = max(len(prompt.token_ids) for prompt in longer)
    return sample_all(Decoder(policy, TASK, how, len(longer) * n, widest), longer, n, seed=7)


def passes(
    groups: Sequence[Sequence[Completion]],
    *,
    prompts: Sequence[Prompt] = PROMPTS,
    begun: tuple[int, ...] = (),
) -> np.ndarray:
    """Right or wrong, [prompts, n]."""
    return np.array(
        [
            [TASK.verify(prompt, [*begun, *c.token_ids]) for c in group]
            for prompt, group in zip(prompts, groups, strict=True)
        ]
    )


@pytest.fixture(scope="module")
def thinking(policy: Policy) -> list[list[Completion]]:
    return sample(policy)


def test_it_solves_some_and_far_from_all(thinking: list[list[Completion]]) -> None:
    rate = passes(thinking).mean()
    assert 0.15 <= rate <= 0.50
    mixed = [0 < right.sum() < N for right in passes(thinking)]
    assert np.mean(mixed) > 0.6, "with groups all right or all wrong there is no gradient"


def test_harder_levels_are_solved_less_often_but_are_solved(
    thinking: list[list[Completion]],
) -> None:
    right = passes(thinking)
    rates = [right[[prompt.level == level for prompt in PROMPTS]].mean() for level in (1, 2, 3)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < 0.5
    assert rates[2] > 0.105, "no better than guessing one digit of ten"


def test_without_thinking_it_solves_at_most_half_as_many(
    policy: Policy, thinking: list[list[Completion]]
) -> None:
    """</think> is put behind the prompt, and the answer sampled: no more than a guess of one digit in ten."""
    at_once = replace(AS_SHIPPED, length=NoLengthControl(), thinking_tokens=1)
    begun = (words.CLOSE,)
    right = passes(sample(policy, at_once, begun=begun, n=32), begun=begun)
    assert right.mean() <= 0.5 * passes(thinking).mean()
    assert right.mean() == pytest.approx(0.1, abs=0.01)  # standard error 0.0023


def test_full_effort_solves_far_more(policy: Policy, thinking: list[list[Completion]]) -> None:
    """What reinforcement has to find: the effort that the policy knows but seldom chooses."""
    begun = (words.HIGH,)
    right = passes(sample(policy, begun=begun, n=4), begun=begun)
    assert right.mean() > 1.7 * passes(thinking).mean()
    assert right.mean() < 0.8, "and even then there are slips to unlearn"
    chosen = np.mean([c.token_ids[0] == words.HIGH for group in thinking for c in group])
    assert 0.15 < chosen < 0.45


def test_greedy_decoding_is_no_better_than_sampling(
    policy: Policy, thinking: list[list[Completion]]
) -> None:
    """Otherwise reinforcement would only have to sharpen what is there."""
    greedy = sample(policy, replace(AS_SHIPPED, temperature=1e-4), n=2)
    assert all(first.token_ids == second.token_ids for first, second in greedy)
    assert passes(greedy).mean() <= passes(thinking).mean()


def test_out_of_distribution_prompts_are_about_as_hard(policy: Policy) -> None:
    """Numbers that repeat, which it has never seen: a rate of its own, neither guessing nor solved."""
    prompts = list(TASK.prompts("ood"))
    rate = passes(sample(policy, prompts=prompts, n=4), prompts=prompts).mean()
    assert 0.13 < rate < 0.5


def test_it_ends_by_itself_and_is_seldom_cut(thinking: list[list[Completion]]) -> None:
    everything = [c for group in thinking for c in group]
    assert np.mean([c.truncated for c in everything]) < 0.01
    assert 0.002 < np.mean([c.interrupted for c in everything]) < 0.1
    assert 10 < np.mean([c.length_tokens for c in everything]) < 22


# --- the policy that knows three tasks, and digit_sum's of other sizes ---

THREE = {
    "digit_sum": AS_SHIPPED,
    "pair_sum": AS_SHIPPED,
    "polynomial": replace(AS_SHIPPED, answer_tokens=6),
}


@pytest.fixture(scope="module")
def three() -> Policy:
    return load_policy(start_policy("three_tasks"))


def passed(
    policy: Policy, name: str, how: Sampling, n: int = 4, split: str = "validation"
) -> np.ndarray:
    """Right or wrong of one task's first 256 prompts of a split, [prompts, n]."""
    task = make_task(name)
    prompts = list(task.prompts(split))[:256]
    widest = max(len(prompt.token_ids) for prompt in prompts)
    groups = sample_all(Decoder(policy, task, how, len(prompts) * n, widest), prompts, n, seed=7)
    return np.array(
        [
            [task.verify(prompt, c.token_ids) for c in group]
            for prompt, group in zip(prompts, groups, strict=True)
        ]
    )


@pytest.mark.parametrize("name", THREE)
def test_each_of_the_three_tasks_leaves_much_to_learn(three: Policy, name: str) -> None:
    levels = [prompt.level for prompt in make_task(name).prompts("validation")][:256]
    right = passed(three, name, THREE[name], n=8)
    rates = [right[[level == which for level in levels]].mean() for which in (1, 2, 3)]
    assert 0.12 <= right.mean() <= 0.35
    assert rates == sorted(rates, reverse=True)
    assert rates[2] > 0.02
    greedy = passed(three, name, replace(THREE[name], temperature=1e-4), n=1)
    assert greedy.mean() <= right.mean() + 0.02, "reinforcement would only sharpen"
    assert 0.01 < passed(three, name, THREE[name], split="ood").mean() < 0.5


@pytest.mark.parametrize("name", ["digit_sum_w16", "digit_sum_w64"])
def test_start_policies_of_other_widths_solve_about_as_much(name: str) -> None:
    policy = load_policy(start_policy(name))
    assert policy.config.hidden_size == int(name[-2:])
    assert passed(policy, "digit_sum", AS_SHIPPED).mean() == pytest.approx(0.20, abs=0.06)
    greedy = passed(policy, "digit_sum", replace(AS_SHIPPED, temperature=1e-4), n=1)
    assert greedy.mean() < 0.2


def test_every_shipped_policy_is_small() -> None:
    for folder in POLICIES.iterdir():
        assert sum(path.stat().st_size for path in folder.iterdir()) < 600_000, folder.name
