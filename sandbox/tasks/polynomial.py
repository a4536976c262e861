"""A task whose answers are formulas: collect like terms, by thinking aloud.

    prompt      <bos> 3 x + 5 + 2 x + 4 <think>
    thinking    high: 3 x: 3 5 1: 5 2 x: 5 4 1: 9   every term, and the running total of its kind (x or 1)
                medium: 3 x: 3 2 x: 5               every second one, which is shorter, and wrong
    answer      </think> 5 x + 9 <eos>              or 9 + 5 x

As in `digit_sum` the policy chooses its effort with its first word, and the start policy mostly chooses too little.

Answers are compared by `scalerl.verify`, with one condition before it: that they are collected. math-verify compares
values, and finds `3 x + 2 x + 9` equal to `5 x + 9`, so that copying the question would be an answer.
"""

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from sandbox import vocabulary as words
from sandbox.tasks.worded import WordedTask
from scalerl.task import Prompt
from scalerl.verify import Outcome, Verifier, VerifierError
from scalerl.verify.exact import equal, quantity

LEVELS = ((3, 4), (5, 6), (7, 9))  # how many terms, all numbers different, by difficulty
OOD = (4, 7)  # numbers may repeat, which the start policy has never seen
BENCHMARK, HARDEST = 30, LEVELS[-1][1]  # so many prompts, of so many terms each
LARGEST = 15  # number of a term; both totals are words too, below words.NUMBERS
TRIES = 3  # of math-verify, when it does not answer in time
EFFORTS = (words.HIGH, words.MEDIUM, words.LOW)  # stride 1, 2, 3 through the terms

Term = tuple[int, bool]  # a number, and whether it is that of an x


@dataclass(frozen=True)
class Polynomial(WordedTask):
    """Fixed splits: train, validation (the same mixture of levels), ood (numbers that repeat) and a hard benchmark.

    The hardest prompts need 28 thinking tokens.
    """

    name: str = "polynomial"

    def drawn(self) -> dict[str, tuple[Prompt, ...]]:
        return _splits(self.train_prompts, self.held_out_prompts, self.ood_prompts)

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        """Thinking is closed once, the last token is <eos>, and between them stands the collected answer."""
        if token_ids.count(words.CLOSE) != 1 or token_ids[-1] != words.EOS:
            return False
        said = tuple(token_ids[token_ids.index(words.CLOSE) + 1 : -1])
        return said == prompt.answer or _same(prompt.answer, said)

    def solve(self, prompt: Prompt) -> list[int]:
        return [*think(terms_of(prompt), stride=1), words.CLOSE, *prompt.answer, words.EOS]


@lru_cache(1 << 17)
def _same(gold: tuple[int, ...], said: tuple[int, ...]) -> bool:
    """Whether a collected answer is the gold: number by number where it is plain terms, else by math-verify.

    A call of math-verify takes some 15 ms in a process of its own. Plain terms are nearly all that a policy says,
    and most of them are wrong; what is left is `x + 9` for `1 x + 9`, or `x 5 + 9`.
    """
    if not collected(said):
        return False
    ours, theirs = plain_terms(gold), plain_terms(said)
    if ours is not None and theirs is not None:
        return ours.keys() == theirs.keys() and all(
            _equal(ours[kind], theirs[kind]) for kind in ours
        )
    boxed = f"\\boxed{{{words.to_text(said)}}}"
    for _ in range(TRIES):  # a machine that was too busy to answer has not found it wrong
        verdict = _verifier(os.getpid()).verify(words.to_text(gold), boxed)
        if verdict.outcome not in (Outcome.TIMEOUT, Outcome.CRASHED):
            return verdict.outcome is Outcome.CORRECT
    raise VerifierError(f"math-verify gave no verdict on {words.to_text(said)!r} in {TRIES} tries")


def collected(said: Sequence[int]) -> bool:
    """Whether it is a sum of at most one term of x and one without, with at most one number in each."""
    parts = split_terms(said)
    of_x = [words.X in part for part in parts]
    return len(of_x) == len(set(of_x)) and all(
        part
        and part.count(words.X) <= 1
        and sum(map(is_number, part)) <= 1
        and all(token == words.X or is_number(token) for token in part)
        for part in parts
    )


def split_terms(said: Sequence[int]) -> list[list[int]]:
    """What stands between the plus signs."""
    parts: list[list[int]] = [[]]
    for token in said:
        if token == words.PLUS:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def plain_terms(said: Sequence[int]) -> dict[bool, int] | None:
    """The number of the term of x (True) and of the other (False); None unless each is written `5 x` or `9`."""
    found: dict[bool, int] = {}
    for part in split_terms(said):
        if not is_number(part[0]) or part[1:] not in ([], [words.X]):
            return None
        found[len(part) == 2] = part[0]
    return found


def is_number(token: int) -> bool:
    return words.FIRST_NUMBER <= token < words.FIRST_NUMBER + words.NUMBERS


def _equal(gold: int, said: int) -> bool:
    ours, theirs = quantity(words.WORDS[gold]), quantity(words.WORDS[said])
    return ours is not None and theirs is not None and equal(ours, theirs)


@cache
def _verifier(process: int) -> Verifier:
    """One for each process that needs it, opened when first needed and closed at exit: a fork inherits none."""
    verifier = Verifier(workers=1)
    atexit.register(verifier.close)
    return verifier


def think(terms: Sequence[Term], stride: int) -> list[int]:
    """The faultless thinking of one effort: its word, then every stride-th term with the running total of its kind."""
    tokens, totals = [EFFORTS[stride - 1]], {True: 0, False: 0}
    for number, of_x in terms[::stride]:
        totals[of_x] += number
        tokens += step(number, of_x, totals[of_x])
    return tokens


def step(number: int, of_x: bool, total: int) -> list[int]:
    """The three tokens for one term: its number, its kind, and the running total of that kind."""
    kind = words.X_TOTAL if of_x else words.TOTAL
    return [words.FIRST_NUMBER + number, kind, words.FIRST_NUMBER + total]


def answer_of(x_total: int, total: int) -> list[int]:
    """`5 x + 9`, without a term whose total is 0."""
    of_x = [words.FIRST_NUMBER + x_total, words.X] if x_total else []
    constant = [words.FIRST_NUMBER + total] if total else []
    return [*of_x, *([words.PLUS] if of_x and constant else []), *constant]


def terms_of(prompt: Prompt) -> list[Term]:
    parts = split_terms(prompt.token_ids[1:-1])
    return [(part[0] - words.FIRST_NUMBER, len(part) == 2) for part in parts]


def make_prompt(id: int, terms: Sequence[Term], level: int) -> Prompt:
    tokens: list[int] = []
    for number, of_x in terms:
        tokens += [words.FIRST_NUMBER + number, *([words.X] if of_x else []), words.PLUS]
    totals = [sum(number for number, kind in terms if kind is of_x) for of_x in (True, False)]
    return Prompt(id, (words.BOS, *tokens[:-1], words.THINK), tuple(answer_of(*totals)), level)


def draw_terms(rng: np.random.Generator, low: int, high: int, repeats: bool = False) -> list[Term]:
    """`low` to `high` terms of both kinds, with different numbers or with some that repeat, both totals words."""
    while True:
        count = int(rng.integers(low, high + 1))
        numbers = (
            rng.integers(1, LARGEST + 1, count) if repeats else 1 + rng.permutation(LARGEST)[:count]
        )
        kinds = rng.random(count) < 0.5
        totals = (numbers[kinds].sum(), numbers[~kinds].sum())
        if all(0 < total < words.NUMBERS for total in totals) and repeats == (
            len(set(numbers.tolist())) < count
        ):
            return list(zip(numbers.tolist(), kinds.tolist(), strict=True))


@cache
def _splits(train: int, held_out: int, ood: int) -> dict[str, tuple[Prompt, ...]]:
    """All splits from one stream of random problems, without repeats."""
    rng = np.random.default_rng(2510_13788)
    seen: set[tuple[int, ...]] = set()

    def draw(id: int, terms: tuple[int, int], level: int, repeats: bool = False) -> Prompt:
        while True:
            prompt = make_prompt(id, draw_terms(rng, *terms, repeats), level)
            if prompt.token_ids not in seen:
                seen.add(prompt.token_ids)
                return prompt

    def mixture(count: int) -> tuple[Prompt, ...]:
        return tuple(draw(i, LEVELS[i % len(LEVELS)], i % len(LEVELS) + 1) for i in range(count))

    return {
        "validation": mixture(held_out),
        "ood": tuple(draw(i, OOD, len(LEVELS) + 1, repeats=True) for i in range(ood)),
        "train": mixture(train),
        "benchmark": tuple(draw(i, (HARDEST, HARDEST), len(LEVELS)) for i in range(BENCHMARK)),
    }
