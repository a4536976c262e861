"""What a world needs to know of a task: prompts in fixed splits, and a verifier.

`check_task` is the contract as a function; every task of ours passes it, and so should yours.
"""

import pickle
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol

from scalerl.errors import InputError, TaskError, first_line

MEMBERS = (
    "name",
    "splits",
    "vocab_size",
    "eos_id",
    "think_close_id",
    "interruption",
    "prompts",
    "verify",
    "solve",
    "to_text",
)
RENUMBERED = 1 << 20  # no prompt of a split has such an id


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
        """Whether a completion (all tokens after the prompt) is correct.

        Total and deterministic; of the prompt it may use tokens and answer, but not the id: a mixture renumbers.
        """
        ...

    def solve(self, prompt: Prompt) -> list[int]:
        """A completion that is correct: what `check_task` holds the verifier to."""
        ...

    def to_text(self, token_ids: Sequence[int]) -> str: ...


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """32 hex digits over the tokens of prompts, in their order."""
    text = repr([prompt.token_ids for prompt in prompts])
    return blake2b(text.encode(), digest_size=16).hexdigest()


def check_validation(task: Task, asked: int) -> None:
    """Raise InputError unless the validation split has so many prompts."""
    if asked > (have := len(task.prompts("validation"))):
        raise InputError(
            f"site.evaluation.prompts = {asked}: task {task.name!r} has {have} validation prompts"
        )


def missing_sets(task: Task, asked: Iterable[str]) -> list[str]:
    """A sentence for each evaluation set that a task does not have; it is passed over."""
    return [
        f"task {task.name!r} has no split {name!r}: that set is not evaluated"
        for name in asked
        if name not in task.splits
    ]


def check_task(task: Task, *, sample: int = 50) -> None:
    """Raise TaskError unless splits are fixed and disjoint, solutions verify, nonsense does not, and it pickles.

    The verifier is asked about the first `sample` prompts of each split. What this cannot see is chance that acts when
    the task is made: the sandbox's registry makes every task of a user's own in a second process too.
    """
    _check_names(task)
    copy: Task = _pickled(task)
    seen: dict[tuple[int, ...], str] = {}
    first = Counter[int]()
    for split in task.splits:
        prompts = _read_twice(task, copy, split)
        for place, prompt in enumerate(prompts):
            if prompt.token_ids in seen:
                raise TaskError(
                    f"task {task.name!r}: the prompt {split}[{place}] stands in {seen[prompt.token_ids]!r} already"
                )
            seen[prompt.token_ids] = split
            first[prompt.token_ids[0]] += 1
        for prompt in prompts[:sample]:
            _check_verifier(task, split, prompt)
        _check_answers_matter(task, split, prompts[:sample])
    _check_starts(task, first)


def _check_names(task: Task) -> None:
    """Everything is there, splits have the names they need, and special tokens can do their work."""
    name = getattr(task, "name", type(task).__name__)
    for member in MEMBERS:
        if not hasattr(task, member):
            raise TaskError(f"task {name!r} has no {member!r}: a task has {', '.join(MEMBERS)}")
    for needed in ("train", "validation"):
        if needed not in task.splits:
            raise TaskError(f"task {name!r} has splits {task.splits}, without {needed!r}")
    phrase = tuple(task.interruption)
    if not phrase or phrase[-1] != task.think_close_id:
        raise TaskError(
            f"task {name!r}: the interruption must end with the token that closes thinking"
        )
    if task.eos_id in phrase or phrase.count(task.think_close_id) > 1:
        raise TaskError(
            f"task {name!r}: the interruption {phrase} must close thinking once, and hold no end of sequence"
        )
    _check_tokens(task, f"task {name!r}: the interruption", phrase)
    _check_tokens(task, f"task {name!r}: eos_id", (task.eos_id,))


def _pickled(task: Task) -> Task:
    try:
        return pickle.loads(pickle.dumps(task))  # our own bytes of a moment ago, never a file
    except Exception as error:  # pickle raises whatever the object's own methods do
        raise TaskError(
            f"task {task.name!r} cannot be pickled ({first_line(error)}): keep open files, lambdas and"
            " generators out of it"
        ) from error


def _read_twice(task: Task, copy: Task, split: str) -> Sequence[Prompt]:
    """The prompts, if the copy has the same, and a second reading too."""
    prompts = task.prompts(split)
    if not prompts:
        raise TaskError(f"task {task.name!r}: split {split!r} is empty")
    for place, prompt in enumerate(prompts):
        _check_prompt(task, f"task {task.name!r}: {split}[{place}]", place, prompt)
    if list(prompts) != list(copy.prompts(split)) or list(prompts) != list(task.prompts(split)):
        raise TaskError(f"task {task.name!r}: split {split!r} differs between two readings")
    return prompts


def _check_prompt(task: Task, where: str, place: int, prompt: Prompt) -> None:
    if not isinstance(prompt, Prompt):
        raise TaskError(f"{where} is of type {type(prompt).__name__}, not scalerl.task.Prompt")
    if prompt.id != place:
        raise TaskError(f"{where} has id {prompt.id}; ids count from 0")
    if type(prompt.token_ids) is not tuple or not prompt.token_ids:
        raise TaskError(f"{where}: token_ids = {prompt.token_ids!r} is not a tuple of tokens")
    if type(prompt.level) is not int or prompt.level < 1:
        raise TaskError(f"{where}: level = {prompt.level!r} is not 1, 2, ...")
    _check_tokens(task, where, prompt.token_ids)


def _check_tokens(task: Task, where: str, token_ids: Sequence[int]) -> None:
    for token in token_ids:
        if type(token) is not int or not 0 <= token < task.vocab_size:
            raise TaskError(
                f"{where} has the token {token!r}: tokens are of type int, 0 to {task.vocab_size - 1} (vocab_size - 1)"
            )


def _check_starts(task: Task, first: Counter[int]) -> None:
    """Where nearly all prompts begin with one token, the others have forgotten it."""
    (token, count), total = first.most_common(1)[0], first.total()
    if total * 0.9 < count < total:
        raise TaskError(
            f"task {task.name!r}: {total - count} of {total} prompts do not begin with token {token} as the others do"
        )


def _check_verifier(task: Task, split: str, prompt: Prompt) -> None:
    where = f"task {task.name!r}: {split}[{prompt.id}]"
    solution = task.solve(prompt)
    _check_tokens(task, f"{where}: its solution", solution)
    if not _verdict(task, where, prompt, solution):
        raise TaskError(f"{where}: its own solution {task.to_text(solution)!r} does not verify")
    if not task.verify(replace(prompt, id=prompt.id + RENUMBERED), list(solution)):
        raise TaskError(
            f"{where}: its solution does not verify under another id: look at the prompt's tokens and answer"
        )
    for wrong, what in (
        ([], "an empty completion"),
        (solution[:-1], "a solution without its end of sequence"),
        ([task.think_close_id, task.eos_id], "a completion without an answer"),
        (list(prompt.token_ids), "the prompt itself"),
        ([task.eos_id], "an end of sequence alone"),
        ([task.vocab_size - 1] * 3, "one token three times"),
        (list(range(task.vocab_size)), "the whole vocabulary"),
    ):
        if _verdict(task, where, prompt, wrong):
            raise TaskError(f"{where}: {what} verifies")


def _verdict(task: Task, where: str, prompt: Prompt, token_ids: list[int]) -> bool:
    """The verifier's answer, if it gives the same one twice, as a bool, and leaves the tokens as they are."""
    given = list(token_ids)
    try:
        verdict, again = task.verify(prompt, given), task.verify(prompt, list(token_ids))
    except Exception as error:  # whatever a completion makes it raise would end the run
        raise TaskError(
            f"{where}: verify raises {type(error).__name__} ({first_line(error)}) for the tokens {_few(token_ids)}:"
            " it must answer False"
        ) from error
    if type(verdict) is not bool:
        raise TaskError(f"{where}: verify returns {verdict!r}, not True or False")
    if verdict is not again:
        raise TaskError(f"{where}: verify says {verdict} and then {again} of the same completion")
    if given != token_ids:
        raise TaskError(f"{where}: verify changes the tokens that it is given")
    return verdict


def _few(token_ids: list[int]) -> str:
    return (
        f"{token_ids[:8]} and {len(token_ids) - 8} more" if len(token_ids) > 8 else str(token_ids)
    )


def _check_answers_matter(task: Task, split: str, prompts: Sequence[Prompt]) -> None:
    """Not every prompt takes the solution of its neighbour, where the two differ."""
    pairs = [
        (prompt, task.solve(other))
        for prompt, other in zip(prompts, [*prompts[1:], *prompts[:1]], strict=True)
        if task.solve(other) != task.solve(prompt)
    ]
    if len(pairs) > 1 and all(task.verify(prompt, solution) for prompt, solution in pairs):
        raise TaskError(
            f"task {task.name!r}: in {split!r} every prompt takes the solution of the next:"
            " verify does not look at the prompt"
        )
