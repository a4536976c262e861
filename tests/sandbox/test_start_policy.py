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
from sandbox.world import start_policy
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
