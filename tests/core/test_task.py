"""The contract of a task, broken one clause at a time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from scalerl.errors import TaskError
from scalerl.task import Prompt, Task, check_task

EOS, CLOSE = 2, 4


@dataclass
class Echo:
    """Repeat the last token of the prompt after closing the thinking; an honest task."""

    name: str = "echo"
    splits: tuple[str, ...] = ("train", "validation", "ood")
    vocab_size: int = 100
    eos_id: int = EOS
    think_close_id: int = CLOSE
    interruption: tuple[int, ...] = (5, CLOSE)
    table: dict[str, list[Prompt]] = field(
        default_factory=lambda: {
            "train": [Prompt(i, (1, 10 + i), (10 + i,), 1) for i in range(5)],
            "validation": [Prompt(i, (1, 20 + i), (20 + i,), 1) for i in range(3)],
            "ood": [Prompt(0, (1, 30), (30,), 2)],
        }
    )

    def prompts(self, split: str) -> Sequence[Prompt]:
        return self.table[split]

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        return list(token_ids)[-3:] == [CLOSE, *prompt.answer, EOS]

    def solve(self, prompt: Prompt) -> list[int]:
        return [CLOSE, *prompt.answer, EOS]

    def to_text(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def refused(task: Task, match: str, **options: int) -> None:
    with pytest.raises(TaskError, match=match):
        check_task(task, **options)


def test_an_honest_task_passes() -> None:
    check_task(Echo())


@pytest.mark.parametrize("missing", ["train", "validation"])
def test_needed_splits(missing: str) -> None:
    splits = tuple(split for split in ("train", "validation") if split != missing)
    refused(replace(Echo(), splits=splits), rf"task 'echo' has splits .*without '{missing}'")


def test_an_empty_split() -> None:
    refused(replace(Echo(), table={**Echo().table, "ood": []}), "split 'ood' is empty")


@pytest.mark.parametrize("phrase", [(), (5,), (CLOSE, 5)])
def test_the_interruption_closes_the_thinking(phrase: tuple[int, ...]) -> None:
    refused(replace(Echo(), interruption=phrase), "must end with the token that closes thinking")


def test_ids_are_places() -> None:
    task = Echo()
    task.table["train"][3] = replace(task.table["train"][3], id=4)
    refused(task, r"train\[3\] has id 4; ids count from 0")


@pytest.mark.parametrize(("split", "place"), [("validation", 1), ("train", 2)])
def test_no_prompt_stands_twice(split: str, place: int) -> None:
    """A validation prompt that was trained on says nothing; neither does one that is drawn twice an epoch."""
    task = Echo()
    task.table[split][place] = replace(task.table["train"][0], id=place)
    refused(task, rf"{split}\[{place}\] stands in 'train' already")


class Shuffling(Echo):
    """Each copy of it has its own order."""

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.table["validation"] = self.table["validation"][::-1]


def test_splits_are_the_same_every_time() -> None:
    refused(Shuffling(), "split 'validation' differs between two readings")


class Gullible(Echo):
    def __init__(self, accepts: list[int] | None) -> None:
        super().__init__()
        self.accepts = accepts

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        return super().verify(prompt, token_ids) or list(token_ids) == (
            list(prompt.token_ids) if self.accepts is None else self.accepts
        )


@pytest.mark.parametrize(
    ("accepts", "what"),
    [
        ([], r"train\[0\]: an empty completion verifies"),
        ([CLOSE, 10], r"train\[0\]: a solution without its end of sequence verifies"),
        ([CLOSE, EOS], r"train\[0\]: a completion without an answer verifies"),
        (None, r"train\[0\]: the prompt itself verifies"),
    ],
)
def test_nonsense_does_not_verify(accepts: list[int] | None, what: str) -> None:
    refused(Gullible(accepts), what)


class Hopeless(Echo):
    def solve(self, prompt: Prompt) -> list[int]:
        return [CLOSE, 99, EOS] if prompt.token_ids[-1] in (13, 30) else super().solve(prompt)


def test_solutions_verify_in_every_split_that_is_sampled() -> None:
    refused(Hopeless(), r"train\[3\]: its own solution '4 99 2' does not verify")
    refused(Hopeless(), r"ood\[0\]: its own solution", sample=3)
    easy = replace(Hopeless(), splits=("train", "validation"))
    check_task(easy, sample=3)


@pytest.mark.parametrize("member", ["solve", "vocab_size"])
def test_every_member_is_there(member: str) -> None:
    class Partial:
        def __getattr__(self, name: str) -> object:
            if name == member or name.startswith("__"):
                raise AttributeError(name)
            return getattr(Echo(), name)

    with pytest.raises(TaskError, match=f"task 'echo' has no '{member}': a task has name, splits"):
        check_task(Partial())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("phrase", [(EOS, CLOSE), (CLOSE, 5, CLOSE)])
def test_the_interruption_closes_once_and_ends_nothing(phrase: tuple[int, ...]) -> None:
    refused(replace(Echo(), interruption=phrase), "must close thinking once, and hold no end")


def test_a_task_that_cannot_be_pickled() -> None:
    task = Echo()
    task.shout = lambda text: text.upper()  # type: ignore[attr-defined]
    refused(task, r"task 'echo' cannot be pickled \(.*lambda.*\): keep open files, lambdas")


class Dice(Echo):
    """Its prompts are of Python's own unseeded random numbers."""

    def prompts(self, split: str) -> Sequence[Prompt]:
        drawn = random.sample(range(10, 90), 20) if split == "train" else [90, 91]
        return [Prompt(i, (1, token), (token,), 1) for i, token in enumerate(drawn)]


class NumpyDice(Echo):
    def prompts(self, split: str) -> Sequence[Prompt]:
        drawn = np.random.permutation(80)[:20] + 10 if split == "train" else np.array([90, 91])
        return [Prompt(i, (1, t), (t,), 1) for i, t in enumerate(drawn.tolist())]


class Spinning(Echo):
    """Seeded once, and drawn from at every reading: each copy begins alike, and no reading is the last one again."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(7)

    def prompts(self, split: str) -> Sequence[Prompt]:
        drawn = self.rng.sample(range(10, 90), 20) if split == "train" else [90, 91]
        return [Prompt(i, (1, token), (token,), 1) for i, token in enumerate(drawn)]


@pytest.mark.parametrize("task", [Dice(), NumpyDice(), Spinning()])
def test_prompts_of_unseeded_chance(task: Echo) -> None:
    refused(task, "split 'train' differs between two readings")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"token_ids": (1, 100)}, r"train\[2\] has the token 100: tokens are of type int, 0 to 99"),
        ({"token_ids": (1, -1)}, r"train\[2\] has the token -1"),
        ({"token_ids": (1, np.int64(12))}, r"train\[2\] has the token np\.int64\(12\)"),
        ({"token_ids": [1, 12]}, r"train\[2\]: token_ids = \[1, 12\] is not a tuple of tokens"),
        ({"token_ids": ()}, r"train\[2\]: token_ids = \(\) is not a tuple of tokens"),
        ({"level": 0}, r"train\[2\]: level = 0 is not 1, 2, \.\.\."),
    ],
)
def test_prompts_are_of_tokens_of_the_vocabulary(changes: dict[str, Any], what: str) -> None:
    task = Echo()
    task.table["train"][2] = replace(task.table["train"][2], **changes)
    refused(task, what)


def test_a_prompt_is_a_prompt() -> None:
    task = Echo()
    task.table["train"][1] = vars(task.table["train"][1])  # type: ignore[call-overload]
    refused(task, r"train\[1\] is of type dict, not scalerl\.task\.Prompt")


def test_prompts_begin_alike_if_nearly_all_do() -> None:
    """One that forgets its <bos> is a slip; prompts that never had one are a choice."""
    task = Echo()
    task.table["train"] = [Prompt(i, (1, 40 + i), (40 + i,), 1) for i in range(20)]
    task.table["train"][7] = Prompt(7, (3, 47), (47,), 1)
    refused(task, r"1 of 24 prompts do not begin with token 1 as the others do")
    for split in task.table:
        task.table[split] = [
            replace(p, token_ids=(p.token_ids[-1], p.token_ids[-1])) for p in task.table[split]
        ]
    check_task(task)


class Verifying(Echo):
    """An honest task whose verifier has one fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.asked = fault, 0

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        verdict = super().verify(prompt, token_ids)
        self.asked += 1
        match self.fault:
            case "raises":
                return token_ids[-2] == prompt.answer[0] and verdict
            case "wavers":
                return verdict and self.asked % 2 == 1
            case "counts":
                return int(verdict)  # type: ignore[return-value]
            case "eats":
                return (
                    isinstance(token_ids, list)
                    and bool(token_ids)
                    and token_ids.pop() == EOS
                    and verdict
                )
            case "looks at ids":
                return verdict and prompt.id < 1000
            case _:
                return list(token_ids[:1]) == [CLOSE] and len(token_ids) == 3 and token_ids[-1] == EOS  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("raises", r"verify raises IndexError \(list index out of range\) for the tokens \[\]: it must"),
        ("wavers", r"verify says True and then False of the same completion"),
        ("counts", r"verify returns 1, not True or False"),
        ("eats", r"verify changes the tokens that it is given"),
        ("looks at ids", r"does not verify under another id: look at the prompt's tokens and answer"),
        ("takes any", r"in 'train' every prompt takes the solution of the next"),
    ],
)  # fmt: skip
def test_verifiers_with_one_fault(fault: str, what: str) -> None:
    refused(Verifying(fault), what)


class Loud(Echo):
    def solve(self, prompt: Prompt) -> list[int]:
        return [120, *super().solve(prompt)]


def test_solutions_are_of_the_vocabulary() -> None:
    refused(Loud(), r"train\[0\]: its solution has the token 120")
