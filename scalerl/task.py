"""What a world needs to know of a task: prompts in fixed splits, and a verifier.

`check_task` is the contract as a function; every task of ours passes it, and so should yours.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scalerl.errors import InputError, TaskError


@dataclass(frozen=True)
class Prompt:
    """One problem. `id` is its place in its split; `level` its difficulty, 1 the easiest.

    `source` names the task it is of, where a mixture asks the prompts of several; else it is empty.
    """

    id: int
    token_ids: tuple[int, ...]
    answer: tuple[int, ...]
    level: int
    source: str = ""


class Task(Protocol):
    """Splits are fixed: the same prompts in the same order every time; "train" and "validation" must exist.

    Two more have a meaning where they exist: "ood" (out of the training distribution) and "benchmark" (few and hard).
    """

    @property
    def name(self) -> str: ...

    @property
    def splits(self) -> tuple[str, ...]: ...

    @property
    def vocab_size(self) -> int:
        """Every token id of the task is below it; a policy has at least so many words."""
        ...

    @property
    def eos_id(self) -> int: ...

    @property
    def think_close_id(self) -> int:
        """The token that ends thinking."""
        ...

    @property
    def interruption(self) -> tuple[int, ...]:
        """What is forced when thinking is cut; ends with `think_close_id`."""
        ...

    def prompts(self, split: str) -> Sequence[Prompt]: ...

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        """Whether a completion (all tokens after the prompt) is correct. Total and deterministic."""
        ...

    def solve(self, prompt: Prompt) -> list[int]:
        """A completion that is correct: what `check_task` holds the verifier to."""
        ...

    def to_text(self, token_ids: Sequence[int]) -> str: ...


def check_validation(task: Task, asked: int) -> None:
    """Raise InputError unless the validation split has so many prompts."""
    if asked > (have := len(task.prompts("validation"))):
        raise InputError(
            f"site.evaluation.prompts = {asked}: task {task.name!r} has {have} validation prompts"
        )


def check_task(task: Task, *, sample: int = 50) -> None:
    """Raise TaskError unless splits are fixed and disjoint, solutions verify, nonsense does not, and it pickles."""
    for needed in ("train", "validation"):
        if needed not in task.splits:
            raise TaskError(f"task {task.name!r} has splits {task.splits}, without {needed!r}")
    if not task.interruption or task.interruption[-1] != task.think_close_id:
        raise TaskError(
            f"task {task.name!r}: the interruption must end with the token that closes thinking"
        )
    copy: Task = pickle.loads(pickle.dumps(task))  # our own bytes of a moment ago, never a file
    seen: dict[tuple[int, ...], str] = {}
    for split in task.splits:
        prompts = task.prompts(split)
        if not prompts:
            raise TaskError(f"task {task.name!r}: split {split!r} is empty")
        if list(prompts) != list(copy.prompts(split)):
            raise TaskError(f"task {task.name!r}: split {split!r} differs between two readings")
        for place, prompt in enumerate(prompts):
            if prompt.id != place:
                raise TaskError(
                    f"task {task.name!r}: {split}[{place}] has id {prompt.id}; ids count from 0"
                )
            if prompt.token_ids in seen:
                raise TaskError(
                    f"task {task.name!r}: {split}[{place}] stands in {seen[prompt.token_ids]!r} already"
                )
            seen[prompt.token_ids] = split
        for prompt in prompts[:sample]:
            _check_verifier(task, split, prompt)


def _check_verifier(task: Task, split: str, prompt: Prompt) -> None:
    where = f"task {task.name!r}: {split}[{prompt.id}]"
    solution = task.solve(prompt)
    if not task.verify(prompt, solution):
        raise TaskError(f"{where}: its own solution {task.to_text(solution)!r} does not verify")
    for wrong, what in (
        ([], "an empty completion"),
        (solution[:-1], "a solution without its end of sequence"),
        ([task.think_close_id, task.eos_id], "a completion without an answer"),
        (list(prompt.token_ids), "the prompt itself"),
    ):
        if task.verify(prompt, wrong):
            raise TaskError(f"{where}: {what} verifies")
