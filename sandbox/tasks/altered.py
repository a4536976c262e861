"""A task with its training prompts, or the verdicts on them, changed; what evaluation asks stays as it is.

Whether a prompt is a training prompt is told by its tokens, which stand in one split only. Every choice is a hash of
tokens: the same in every process, and independent of the order of anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

from scalerl.errors import InputError
from scalerl.task import Prompt, Task


@dataclass(frozen=True)
class Altered:
    """A task that is another in all that a subclass does not change."""

    task: Task

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def splits(self) -> tuple[str, ...]:
        return self.task.splits

    @property
    def vocab_size(self) -> int:
        return self.task.vocab_size

    @property
    def eos_id(self) -> int:
        return self.task.eos_id

    @property
    def think_close_id(self) -> int:
        return self.task.think_close_id

    @property
    def interruption(self) -> tuple[int, ...]:
        return self.task.interruption

    def prompts(self, split: str) -> Sequence[Prompt]:
        return self.task.prompts(split)

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        return self.task.verify(prompt, token_ids)

    def solve(self, prompt: Prompt) -> list[int]:
        return self.task.solve(prompt)

    def to_text(self, token_ids: Sequence[int]) -> str:
        return self.task.to_text(token_ids)


@dataclass(frozen=True)
class Levels(Altered):
    """Training prompts of some difficulty levels only, renumbered; evaluation keeps all: a shift of distribution.

    Raises:
        InputError: no training prompt has one of these levels.
    """

    levels: tuple[int, ...]

    def __post_init__(self) -> None:
        have = sorted({prompt.level for prompt in self.task.prompts("train")})
        if missing := sorted(set(self.levels) - set(have)):
            raise InputError(
                f"site.data.levels = {list(self.levels)}: task {self.name!r} has no training prompts of level"
                f" {missing[0]}; it has {', '.join(map(str, have))}"
            )
        sources = {prompt.source for prompt in self.task.prompts("train")}
        if lost := sources - {prompt.source for prompt in self.prompts("train")}:
            raise InputError(
                f"site.data.levels = {list(self.levels)}: of {min(lost)!r} no training prompt is left in the mixture"
            )

    def prompts(self, split: str) -> Sequence[Prompt]:
        prompts = self.task.prompts(split)
        if split != "train":
            return prompts
        kept = [prompt for prompt in prompts if prompt.level in self.levels]
        return tuple(replace(prompt, id=place) for place, prompt in enumerate(kept))


@dataclass(frozen=True)
class Unanswerable(Altered):
    """A share of the training prompts, those of the smallest hashes, to which no answer is right.

    A larger share holds the smaller, and every run has the same. `check_task` refuses it, as solutions must verify:
    check the task within.
    """

    share: float

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        return prompt.token_ids not in self.hopeless and self.task.verify(prompt, token_ids)

    @cached_property
    def hopeless(self) -> frozenset[tuple[int, ...]]:
        """The tokens of the prompts without an answer."""
        tokens = [prompt.token_ids for prompt in self.task.prompts("train")]
        tokens.sort(key=lambda token_ids: chance("unanswerable", token_ids))
        return frozenset(tokens[: round(self.share * len(tokens))])


@dataclass(frozen=True)
class NoisyVerifier(Altered):
    """Flips verdicts on training prompts at two rates, each by a hash of prompt and completion.

    So the noise is systematic: the same completion of the same prompt gets the same verdict whenever it is asked, in
    every run. Sampling it again does not average the fault away; a policy can learn which wrong completions pay.
    Across completions and prompts the flips are independent. `check_task` refuses it: check the task within.
    """

    right_as_wrong: float
    wrong_as_right: float

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        verdict = self.task.verify(prompt, token_ids)
        rate = self.right_as_wrong if verdict else self.wrong_as_right
        if not rate or prompt.token_ids not in self.trained:
            return verdict
        flips = chance("noise", prompt.token_ids, token_ids) < rate
        return verdict is not flips

    @cached_property
    def trained(self) -> frozenset[tuple[int, ...]]:
        """The tokens of every training prompt."""
        return frozenset(prompt.token_ids for prompt in self.task.prompts("train"))


def chance(what: str, *tokens: Sequence[int]) -> float:
    """A number in [0, 1) that is random in its arguments and fixed by them."""
    words = [" ".join(map(str, token_ids)) for token_ids in tokens]
    digest = blake2b(":".join([what, *words]).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56
