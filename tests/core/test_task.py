"""The contract of a task, broken one clause at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from scalerl.errors import TaskError
from scalerl.task import Prompt, Task, check_task

EOS, CLOSE = 2, 4


@dataclass
class Echo:
    """Repeat the last token of the prompt after closing the thinking; an honest task."""

    name: str = "echo"
    splits: tuple[str, ...] = ("train", "validation", "ood")
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
