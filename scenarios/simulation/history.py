"""What has happened on the surviving timeline of a run, as the world and the log saw it."""

from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random

from scalerl.events import Event
from scenarios.simulation.setting import GROUP_SIZE, Setting


class Violated(BaseException):
    """An invariant does not hold. Derived from BaseException, so that no loop goes on after it."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant, self.what = invariant, what


@dataclass(frozen=True)
class Pin:
    """An evaluation that was asked for: of the weights after `update`, on `sets` that have not been heard of yet."""

    handle: int
    update: int
    version: int
    C: float
    sets: tuple[str, ...]


@dataclass
class Stream:
    """The order in which prompts are drawn, computed once more: every epoch shuffled anew."""

    size: int
    seed: int
    threshold: Fraction | None
    order: list[int] = field(default_factory=list)  # of the epochs so far
    place: int = 0

    def next(self) -> int:
        if self.place == len(self.order):
            epoch = list(range(self.size))
            Random(f"{self.seed}:{len(self.order) // self.size}").shuffle(epoch)
            self.order = [*self.order, *epoch]
        self.place += 1
        return self.order[self.place - 1]


@dataclass
class History:
    """Grows during a life; a resume goes back to the copy that was made with the checkpoint."""

    stream: Stream
    events: list[Event] = field(default_factory=list)  # numbered ones
    prompts: list[int] = field(default_factory=list)  # of ticket n
    landed: dict[int, int] = field(default_factory=dict)  # ticket -> passes
    rejected: set[int] = field(default_factory=set)
    batches: list[list[int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=lambda: [0])  # after update n
    published: list[int] = field(default_factory=lambda: [0])
    busy_s: dict[tuple[str, str], float] = field(default_factory=dict)
    pins: dict[int, Pin] = field(default_factory=dict)  # by handle; until every set was heard of
    pinned: Counter[int] = field(default_factory=Counter)  # how often after update n
    out: set[int] = field(default_factory=set)  # prompts that are never drawn again
    seen: Counter[int] = field(default_factory=Counter)  # completions by prompt
    passed: Counter[int] = field(default_factory=Counter)

    def copy(self) -> "History":
        """Independent of what is added to this one later."""
        copies = {
            name: value.copy()
            for name, value in vars(self).items()
            if isinstance(value, list | dict | set)
        }
        return replace(self, stream=replace(self.stream), **copies)

    @property
    def trained(self) -> list[int]:
        return [ordinal for batch in self.batches for ordinal in batch]

    def draw(self, prompt: int) -> str | None:
        """A ticket was given for this prompt; what is wrong with that, if anything."""
        self.prompts.append(prompt)
        for _ in range(3 * self.stream.size):
            expected = self.stream.next()
            if expected == prompt:
                return None
            if expected not in self.out:
                return f"ticket {len(self.prompts) - 1} is prompt {prompt}, the next in order is {expected}"
        return f"ticket {len(self.prompts) - 1} is prompt {prompt}, which is in no epoch"

    def land(self, ordinal: int, passes: int, *, rejected: bool) -> None:
        """A scored group came in."""
        prompt = self.prompts[ordinal]
        self.landed[ordinal] = passes
        self.seen[prompt] += GROUP_SIZE
        self.passed[prompt] += passes
        if rejected:
            self.rejected.add(ordinal)
        threshold = self.stream.threshold
        if threshold is not None and self.passed[prompt] >= threshold * self.seen[prompt]:
            self.out.add(prompt)


def new_history(setting: Setting) -> History:
    """Of a run that has not begun."""
    curriculum = setting.recipe.curriculum
    threshold = getattr(curriculum, "threshold", None)
    exact = None if threshold is None else Fraction(str(threshold))
    return History(Stream(setting.prompts, setting.recipe.seed, exact))
