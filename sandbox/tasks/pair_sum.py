"""A task of search: two numbers of the prompt whose sum ends in a given digit.

    prompt      <bos> 17 4 25 9 12 ?6 <think>
    thinking    17 4 =1 25 9 =4 4 12 =6             tries, each a pair with the last digit of its sum
    answer      </think> 4 12 <eos>

The start policy tries pairs at random, and after most misses it gives up and answers the last pair all the same.
Reinforcement teaches it to go on, and nothing in the task tells it when to stop: thinking grows to the budget,
and without length control past it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from sandbox import vocabulary as words
from sandbox.tasks.worded import WordedTask
from scalerl.task import Prompt

SIZES = (5, 8)  # how many numbers, all different
RIGHT = ((3, 28), (2, 2), (1, 1))  # how many of their pairs are right, by difficulty
OOD_SIZES = (9, 11)  # more numbers than the start policy has ever seen, one pair right
BENCHMARK = 30  # prompts of the greatest size, one pair right
MOST_TRIES = 14  # in a trace shown to the start policy


@dataclass(frozen=True)
class PairSum(WordedTask):
    """Fixed splits: train, validation (the same mixture of levels), ood (more numbers) and a hard benchmark.

    A policy that tries at random and never gives up finds the only pair of 28 within 12 tries in 35 % of all cases:
    the ceiling grows with the budget.
    """

    name: str = "pair_sum"

    def drawn(self) -> dict[str, tuple[Prompt, ...]]:
        return _splits(self.train_prompts, self.held_out_prompts, self.ood_prompts)

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        """The last four tokens are </think>, a right pair and <eos>, and thinking was closed only there."""
        if len(token_ids) < 4 or token_ids[-4] != words.CLOSE or token_ids[-1] != words.EOS:
            return False
        one, other = token_ids[-3:-1]
        return (
            token_ids.index(words.CLOSE) == len(token_ids) - 4
            and one != other
            and {one, other} <= set(prompt.token_ids[1:-2])
            and (one + other - 2 * words.FIRST_NUMBER) % 10 == target_of(prompt)
        )

    def solve(self, prompt: Prompt) -> list[int]:
        """Every pair from the left until one is right."""
        tokens: list[int] = []
        for a, b in combinations(numbers_of(prompt), 2):
            tokens += attempt(a, b, (a + b) % 10)
            if (a + b) % 10 == target_of(prompt):
                break
        return [*tokens, words.CLOSE, *prompt.answer, words.EOS]


def attempt(a: int, b: int, digit: int) -> list[int]:
    """The three tokens of one try, with whatever digit the thinker takes for its sum's."""
    return [words.FIRST_NUMBER + a, words.FIRST_NUMBER + b, words.FIRST_DIGIT + digit]


def numbers_of(prompt: Prompt) -> list[int]:
    return [token - words.FIRST_NUMBER for token in prompt.token_ids[1:-2]]


def target_of(prompt: Prompt) -> int:
    return prompt.token_ids[-2] - words.FIRST_TARGET


def right_pairs(numbers: Sequence[int], target: int) -> list[tuple[int, int]]:
    """The pairs whose sum ends in the target digit, from the left."""
    return [(a, b) for a, b in combinations(numbers, 2) if (a + b) % 10 == target]


def make_prompt(id: int, numbers: Sequence[int], target: int, level: int) -> Prompt:
    """A problem that has a solution; its `answer` is the first right pair, one of all that are accepted."""
    tokens = (words.FIRST_NUMBER + number for number in numbers)
    answer = (words.FIRST_NUMBER + number for number in right_pairs(numbers, target)[0])
    prompt = (words.BOS, *tokens, words.FIRST_TARGET + target, words.THINK)
    return Prompt(id, prompt, tuple(answer), level)


def draw_problem(
    rng: np.random.Generator, low: int, high: int, right: tuple[int, int] = (1, 100)
) -> tuple[list[int], int]:
    """`low` to `high` different numbers and a digit, such that so many pairs are right."""
    while True:
        numbers = rng.permutation(words.NUMBERS)[: rng.integers(low, high + 1)].tolist()
        target = int(rng.integers(10))
        if right[0] <= len(right_pairs(numbers, target)) <= right[1]:
            return numbers, target


@cache
def _splits(train: int, held_out: int, ood: int) -> dict[str, tuple[Prompt, ...]]:
    """All splits from one stream of random problems, without repeats."""
    rng = np.random.default_rng(2510_13787)
    seen: set[tuple[int, ...]] = set()

    def draw(id: int, sizes: tuple[int, int], right: tuple[int, int], level: int) -> Prompt:
        while True:
            prompt = make_prompt(id, *draw_problem(rng, *sizes, right), level)
            if prompt.token_ids not in seen:
                seen.add(prompt.token_ids)
                return prompt

    def mixture(count: int) -> tuple[Prompt, ...]:
        levels = len(RIGHT)
        return tuple(draw(i, SIZES, RIGHT[i % levels], i % levels + 1) for i in range(count))

    hardest = (SIZES[1], SIZES[1])
    return {
        "validation": mixture(held_out),
        "ood": tuple(draw(i, OOD_SIZES, RIGHT[-1], len(RIGHT) + 1) for i in range(ood)),
        "train": mixture(train),
        "benchmark": tuple(draw(i, hardest, RIGHT[-1], len(RIGHT)) for i in range(BENCHMARK)),
    }
