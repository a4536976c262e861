"""Several tasks as one: training prompts by weight, everything else in equal shares."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from scalerl.errors import InputError
from scalerl.task import Prompt, Task


@dataclass(frozen=True)
class Mixture:
    """A task whose prompts are those of its parts, interleaved; `Prompt.source` is the name of the part.

    A part of weight 2 has twice as many training prompts as one of weight 1: the longer are cut, none is repeated.
    The other splits, those that all parts have, ask every part equally often, and every prefix does too, to one prompt.

    Raises:
        InputError: one part only, two of one name, a mixture as a part, or parts that disagree on a special token.
    """

    tasks: tuple[Task, ...]
    weights: tuple[Fraction, ...] = ()  # none = all 1

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if len(set(names)) < max(2, len(names)):
            raise InputError(
                f"a mixture needs two or more different tasks, not {' + '.join(names)}"
            )
        if self.weights and (len(self.weights) != len(names) or min(self.weights) <= 0):
            raise InputError(
                f"a mixture of {len(names)} tasks needs as many weights, all above 0, not {self.weights}"
            )
        first = self.tasks[0]
        for task in self.tasks:
            if task.prompts("train")[0].source:
                raise InputError(f"task {task.name!r} is a mixture already: name its parts instead")
            for member, ours in special_tokens(first).items():
                if ours != (theirs := special_tokens(task)[member]):
                    raise InputError(
                        f"tasks {first.name!r} and {task.name!r} cannot be mixed: {member} is {ours} and {theirs}"
                    )

    @property
    def name(self) -> str:
        weights = self.weights or (Fraction(1),) * len(self.tasks)
        return "+".join(
            task.name if weight == 1 else f"{float(weight):g}*{task.name}"
            for task, weight in zip(self.tasks, weights, strict=True)
        )

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(
            split for split in self.tasks[0].splits if all(split in t.splits for t in self.tasks)
        )

    @property
    def vocab_size(self) -> int:
        return self._widest.vocab_size

    @property
    def eos_id(self) -> int:
        return self.tasks[0].eos_id

    @property
    def think_close_id(self) -> int:
        return self.tasks[0].think_close_id

    @property
    def interruption(self) -> tuple[int, ...]:
        return tuple(self.tasks[0].interruption)

    def prompts(self, split: str) -> Sequence[Prompt]:
        parts = [task.prompts(split) for task in self.tasks]
        weights = self.weights if split == "train" and self.weights else (Fraction(1),) * len(parts)
        unit = min(len(part) / weight for part, weight in zip(parts, weights, strict=True))
        counts = [int(unit * weight) for weight in weights]
        if min(counts) < 1:
            raise InputError(f"mixture {self.name!r}: a weight is so small that no prompt is left")
        return tuple(
            replace(parts[which][place], id=id, source=self.tasks[which].name)
            for id, (place, which) in enumerate(interleaved(counts))
        )

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        return self._part(prompt).verify(replace(prompt, source=""), token_ids)

    def solve(self, prompt: Prompt) -> list[int]:
        return self._part(prompt).solve(replace(prompt, source=""))

    def to_text(self, token_ids: Sequence[int]) -> str:
        return self._widest.to_text(token_ids)

    @property
    def _widest(self) -> Task:
        return max(self.tasks, key=lambda task: task.vocab_size)

    def _part(self, prompt: Prompt) -> Task:
        return next(task for task in self.tasks if task.name == prompt.source)


def interleaved(counts: Sequence[int]) -> list[tuple[int, int]]:
    """(place within its part, part) of every prompt, each part spread evenly over the whole."""
    spots = [
        (Fraction(2 * place + 1, 2 * count), which, place)
        for which, count in enumerate(counts)
        for place in range(count)
    ]
    return [(place, which) for _, which, place in sorted(spots)]


def special_tokens(task: Task) -> dict[str, object]:
    """What all parts of a mixture have in common."""
    return {
        "eos_id": task.eos_id,
        "think_close_id": task.think_close_id,
        "interruption": tuple(task.interruption),
    }
