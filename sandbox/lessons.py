"""What a start policy is shown of each task: faultless work first, then the habits that reinforcement has to unlearn.

A lesson draws one problem and its trace at `done` (0..1) of the training: full effort from easy to hard until
`GROWN`, then the habits, and from `SLIPS` on the slips. Slips come last: mixed in from the start they keep the tiny
model from learning the arithmetic at all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sandbox import vocabulary as words
from sandbox.tasks import pair_sum, polynomial
from sandbox.tasks.digit_sum import LEVELS, DigitSum, think
from scalerl.task import Prompt, Task

GROWN, SLIPS = 0.4, 0.75
SHORTEST, LONGEST = LEVELS[0][0], LEVELS[-1][1]

Shown = tuple[list[int], list[int]]  # the tokens of a prompt, and those of the trace to learn
Lesson = Callable[[np.random.Generator, float], Shown]


@dataclass(frozen=True)
class Habits:
    """What a start policy does badly. Shares are of traces; rates are per step of thinking."""

    efforts: tuple[float, float, float] = (0.3, 0.4, 0.3)  # high, medium, low
    slip_rate: float = 0.04  # a wrong result, from which the trace goes on
    stop_rate: float = 0.02  # thinking closes before the next step
    give_up_rate: float = 0.55  # pair_sum: after a try that misses, its answer is that pair
    hurry: float = 0.5  # a task known by its solutions alone: share whose thinking closes early


def lesson_of(task: Task, habits: Habits) -> Lesson:
    """The lesson of one of our tasks; of any other, its own solutions."""
    match task:
        case DigitSum():
            return partial(digit_sum_lesson, habits)
        case pair_sum.PairSum():
            return partial(pair_sum_lesson, habits)
        case polynomial.Polynomial():
            return partial(polynomial_lesson, habits)
        case _:
            # by difficulty: level, then length
            problems = sorted(task.prompts("train"), key=lambda p: (p.level, len(p.token_ids)))
            return partial(solved_lesson, task, problems, habits)


def noise_at(done: float) -> float:
    """How much of the slips are in force, 0..1."""
    return min(1.0, max(0.0, (done - SLIPS) / 0.125))


def effort_at(habits: Habits, rng: np.random.Generator, done: float) -> int:
    """The stride of one trace through its problem: 1, 2 or 3."""
    efforts = (1.0, 0.0, 0.0) if done < GROWN else habits.efforts
    return int(rng.choice(3, p=efforts)) + 1


def digit_sum_lesson(habits: Habits, rng: np.random.Generator, done: float) -> Shown:
    longest = min(LONGEST, SHORTEST + int(done / GROWN * (LONGEST - SHORTEST + 1)))
    numbers = rng.permutation(words.NUMBERS)[: rng.integers(SHORTEST, longest + 1)].tolist()
    prompt = [words.BOS, *(words.FIRST_NUMBER + number for number in numbers), words.THINK]
    stride, noise = effort_at(habits, rng, done), noise_at(done)
    return prompt, digit_sum_trace(
        rng, numbers, stride, noise * habits.slip_rate, noise * habits.stop_rate
    )


def digit_sum_trace(
    rng: np.random.Generator, numbers: list[int], stride: int, slip_rate: float, stop_rate: float
) -> list[int]:
    """Thinking of one effort with slips and early stops, then whatever answer it leads to."""
    clean = think(numbers, stride)
    tokens, digit, offset = clean[:1], int(rng.integers(10)), 0
    for place in range(1, len(clean), 2):
        if rng.random() < stop_rate:
            break
        if rng.random() < slip_rate:
            offset = int(rng.integers(10))
        digit = (clean[place + 1] - words.FIRST_DIGIT + offset) % 10
        tokens += [clean[place], words.FIRST_DIGIT + digit]
    return [*tokens, words.CLOSE, words.FIRST_DIGIT + digit, words.EOS]


def pair_sum_lesson(habits: Habits, rng: np.random.Generator, done: float) -> Shown:
    low, high = pair_sum.SIZES
    largest = min(high, low + int(done / GROWN * (high - low + 1)))
    numbers, target = pair_sum.draw_problem(rng, low, largest)
    prompt = list(pair_sum.make_prompt(0, numbers, target, 1).token_ids)
    give_up = 0.0 if done < GROWN else habits.give_up_rate
    return prompt, pair_sum_trace(rng, numbers, target, give_up, noise_at(done) * habits.slip_rate)


def pair_sum_trace(
    rng: np.random.Generator, numbers: list[int], target: int, give_up_rate: float, slip_rate: float
) -> list[int]:
    """Random tries until one hits or the search is given up; the last pair is the answer."""
    tokens: list[int] = []
    for tries_left in range(pair_sum.MOST_TRIES - 1, -1, -1):
        a, b = (int(number) for number in rng.choice(numbers, 2, replace=False))
        digit = int(rng.integers(10)) if rng.random() < slip_rate else (a + b) % 10
        tokens += pair_sum.attempt(a, b, digit)
        if digit == target or not tries_left or rng.random() < give_up_rate:
            break
    return [*tokens, words.CLOSE, *tokens[-3:-1], words.EOS]


def polynomial_lesson(habits: Habits, rng: np.random.Generator, done: float) -> Shown:
    low, high = polynomial.LEVELS[0][0], polynomial.LEVELS[-1][1]
    longest = min(high, low + int(done / GROWN * (high - low + 1)))
    terms = polynomial.draw_terms(rng, low, longest)
    prompt = list(polynomial.make_prompt(0, terms, 1).token_ids)
    stride, noise = effort_at(habits, rng, done), noise_at(done)
    return prompt, polynomial_trace(
        rng, terms, stride, noise * habits.slip_rate, noise * habits.stop_rate
    )


def polynomial_trace(
    rng: np.random.Generator,
    terms: Sequence[polynomial.Term],
    stride: int,
    slip_rate: float,
    stop_rate: float,
) -> list[int]:
    """Thinking of one effort with slips and early stops, then what was collected."""
    tokens, totals = [polynomial.EFFORTS[stride - 1]], {True: 0, False: 0}
    chosen = terms[::stride]
    for place, (number, of_x) in enumerate(chosen, start=1):
        if rng.random() < stop_rate:
            break
        totals[of_x] += number
        if rng.random() < slip_rate:  # to a total that leaves room for what is still to come
            to_come = sum(later for later, kind in chosen[place:] if kind is of_x)
            totals[of_x] = int(rng.integers(number, words.NUMBERS - to_come))
        tokens += polynomial.step(number, of_x, totals[of_x])
    return [*tokens, words.CLOSE, *polynomial.answer_of(totals[True], totals[False]), words.EOS]


def solved_lesson(
    task: Task, problems: Sequence[Prompt], habits: Habits, rng: np.random.Generator, done: float
) -> Shown:
    """A task's own solution, from easy problems to all; late in training many close their thinking early.

    What follows the close stays the right answer, which thinking cut short cannot know: it becomes a guess.
    """
    known = max(1, round(min(1.0, 0.1 + 0.9 * done / GROWN) * len(problems)))
    prompt = problems[int(rng.integers(known))]
    solution = task.solve(prompt)
    if done >= SLIPS and rng.random() < habits.hurry and task.think_close_id in solution:
        closes = solution.index(task.think_close_id)
        solution = [*solution[: int(rng.integers(closes + 1))], *solution[closes:]]
    return list(prompt.token_ids), solution
