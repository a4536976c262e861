"""Which prompt is drawn next, and which finished groups are worth training on.

Exclusion acts when a prompt is drawn, on an epoch order fixed in advance: a pass rate that crosses the threshold
never reorders what follows. Counts are integers, since a float mean of nine passes in ten may miss 0.9.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING, Any

from scalerl.errors import CurriculumExhausted
from scalerl.recipe import NoPositiveResampling, Recipe

if TYPE_CHECKING:
    from scalerl.rollout import Group


@dataclass
class Curriculum:
    """An endless stream of prompt numbers 0..size-1: every live prompt once an epoch, in seeded order.

    Each visit is counted, of dropped and rejected groups too; passes are of raw correctness.
    """

    size: int
    seed: int
    threshold: Fraction | None = None  # None: nothing is ever excluded
    epoch: int = 0
    position: int = 0  # next place in this epoch's order
    passes: list[int] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)
    out: list[bool] = field(default_factory=list)  # excluded for good

    def __post_init__(self) -> None:
        self.passes = self.passes or [0] * self.size
        self.completions = self.completions or [0] * self.size
        self.out = self.out or [False] * self.size
        self._order = self._shuffled()

    def draw(self) -> int:
        """The next prompt of the epoch that is not excluded.

        Raises:
            CurriculumExhausted: every prompt is excluded.
        """
        if all(self.out):
            raise CurriculumExhausted(
                f"all {self.size} training prompts have reached a pass rate of {self.threshold}: "
                "raise curriculum.threshold, take curriculum.kind=uniform, or end the run earlier"
            )
        while True:
            if self.position == self.size:
                self.epoch, self.position = self.epoch + 1, 0
                self._order = self._shuffled()
            prompt = self._order[self.position]
            self.position += 1
            if not self.out[prompt]:
                return prompt

    def observe(self, prompt: int, passes: int, completions: int) -> None:
        """Count one visit; passes / completions >= threshold over all visits excludes the prompt, for good."""
        self.passes[prompt] += passes
        self.completions[prompt] += completions
        if self.threshold is not None and self.completions[prompt]:
            needed = self.threshold.numerator * self.completions[prompt]
            self.out[prompt] |= self.passes[prompt] * self.threshold.denominator >= needed

    def excluded(self, prompt: int) -> bool:
        """Whether the prompt is never drawn again."""
        return self.out[prompt]

    @property
    def epochs(self) -> float:
        """Passes over the training set, with the fraction of the current one."""
        return self.epoch + self.position / self.size

    def to_json(self) -> dict[str, Any]:
        return {
            name: getattr(self, name)
            for name in ("epoch", "position", "passes", "completions", "out")
        }

    def load_json(self, data: dict[str, Any]) -> None:
        self.epoch, self.position = data["epoch"], data["position"]
        self.passes, self.completions = list(data["passes"]), list(data["completions"])
        self.out = list(data["out"])
        self._order = self._shuffled()

    def _shuffled(self) -> list[int]:
        order = list(range(self.size))
        Random(f"{self.seed}:{self.epoch}").shuffle(order)
        return order


def curriculum_of(recipe: Recipe, size: int) -> Curriculum:
    """The prompt stream that a recipe asks for, over a training set of `size` prompts."""
    match recipe.curriculum:
        case NoPositiveResampling(threshold=threshold):
            return Curriculum(size, recipe.seed, Fraction(Decimal(str(threshold))))
        case _:
            return Curriculum(size, recipe.seed)


def rejected(group: "Group", recipe: Recipe) -> bool:
    """Dynamic sampling (`zero_variance = "resample"`): an all-right or all-wrong group is replaced by a new prompt."""
    return recipe.zero_variance == "resample" and group.zero_variance
