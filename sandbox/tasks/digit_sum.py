"""The task of the tiny world: the last digit of a sum of numbers, by thinking aloud.

    prompt      <bos> 17 4 25 9 <think>
    thinking    high: 17 =7 4 =1 25 =6 9 =5         every number, each with the running last digit
                medium: 17 =7 25 =2                  every second one, which is shorter, and seldom right
    answer      </think> =5 <eos>

The policy chooses its effort with its first word and then has to carry it out. The start policy mostly
chooses too little, so that reinforcement has something to teach: to think longer, and with fewer slips.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sandbox import vocabulary as words
from sandbox.tasks.worded import WordedTask
from scalerl.task import Prompt

LEVELS = ((3, 7), (8, 12), (13, 17))  # how many numbers, all different, by difficulty
OOD = (5, 12)  # the same lengths, but numbers may repeat, which the start policy has never seen
BENCHMARK, HARDEST = 30, LEVELS[-1][1]  # so many prompts, of so many numbers each
EFFORTS = (words.HIGH, words.MEDIUM, words.LOW)  # stride 1, 2, 3 through the numbers


@dataclass(frozen=True)
class DigitSum(WordedTask):
    """Fixed splits: train, validation (the same mixture of levels), ood (numbers that repeat) and a hard benchmark.

    The hardest prompts need 35 thinking tokens, about what the default budget allows before it interrupts:
    every prompt can be solved, and the longest only when the cut comes late.
    """

    name: str = "digit_sum"
    vocab_size: int = words.FIRST_DIGIT + 10

    def drawn(self) -> dict[str, tuple[Prompt, ...]]:
        return _splits(self.train_prompts, self.held_out_prompts, self.ood_prompts)

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        """The last three tokens are </think>, the answer and <eos>, and thinking was closed only there."""
        return (
            list(token_ids[-3:]) == [words.CLOSE, *prompt.answer, words.EOS]
            and token_ids.index(words.CLOSE) == len(token_ids) - 3
        )

    def solve(self, prompt: Prompt) -> list[int]:
        numbers = [token - words.FIRST_NUMBER for token in prompt.token_ids[1:-1]]
        return [*think(numbers, stride=1), words.CLOSE, *prompt.answer, words.EOS]


def think(numbers: Sequence[int], stride: int) -> list[int]:
    """The faultless thinking of one effort: its word, then every stride-th number with the running last digit."""
    tokens, total = [EFFORTS[stride - 1]], 0
    for number in numbers[::stride]:
        total += number
        tokens += [words.FIRST_NUMBER + number, words.FIRST_DIGIT + total % 10]
    return tokens


def make_prompt(id: int, numbers: Sequence[int], level: int) -> Prompt:
    tokens = (words.BOS, *(words.FIRST_NUMBER + int(number) for number in numbers), words.THINK)
    return Prompt(id, tokens, (words.FIRST_DIGIT + int(sum(numbers)) % 10,), level)


@cache
def _splits(train: int, held_out: int, ood: int) -> dict[str, tuple[Prompt, ...]]:
    """All splits from one stream of random problems, without repeats."""
    rng = np.random.default_rng(2510_13786)
    seen: set[tuple[int, ...]] = set()

    def draw(id: int, low: int, high: int, level: int, repeats: bool = False) -> Prompt:
        while True:
            count = rng.integers(low, high + 1)
            numbers = (
                rng.integers(0, words.NUMBERS, count)
                if repeats
                else rng.permutation(words.NUMBERS)[:count]
            )
            if repeats and len(set(numbers.tolist())) == count:
                continue
            prompt = make_prompt(id, numbers.tolist(), level)
            if prompt.token_ids not in seen:
                seen.add(prompt.token_ids)
                return prompt

    def mixture(count: int) -> tuple[Prompt, ...]:
        return tuple(draw(i, *LEVELS[i % len(LEVELS)], i % len(LEVELS) + 1) for i in range(count))

    return {
        "validation": mixture(held_out),
        "ood": tuple(draw(i, *OOD, len(LEVELS) + 1, repeats=True) for i in range(ood)),
        "train": mixture(train),
        "benchmark": tuple(draw(i, HARDEST, HARDEST, len(LEVELS)) for i in range(BENCHMARK)),
    }
