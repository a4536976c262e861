"""The protocol between the loop and where it runs, and the records that cross it.

The loop decides who is admitted, what is taken and when weights go out; a world generates, scores, updates,
publishes and evaluates, and lets its own clock pass while it does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scalerl.clock import Clock
from scalerl.compute import Phase, Role
from scalerl.rollout import Group
from scalerl.task import Prompt


@dataclass(frozen=True)
class UpdateStats:
    """One batch, over all ranks. `None` where nothing was trained; formulas are in the metric glossary."""

    skipped: bool  # every group was dropped: no optimiser step, the version stays
    reward: float
    pass_rate: float
    truncated: float
    interrupted: float
    zero_variance: float  # share of the batch's groups that were all right or all wrong
    length_mean_tokens: float
    trained_tokens: int = 0
    # trained tokens by lag: index = the token's own lag in versions
    lag_tokens: list[int] = field(default_factory=list)
    loss: float | None = None
    entropy: float | None = None
    kl: float | None = None
    ess: float | None = None
    capped: float | None = None
    grad_norm: float | None = None
    # KL of tokens that the trainer's own version sampled, in completions it began and in those older ones began
    mismatch_kl: float | None = None
    stale_kv_kl: float | None = None


def untrained(groups: Sequence[Group]) -> UpdateStats:
    """Of a batch that was passed over whole."""
    flat = [completion for group in groups for completion in group.completions]

    def share(flags: Iterable[bool]) -> float:
        return sum(flags) / len(flat)

    return UpdateStats(
        skipped=True,
        reward=sum(c.reward for c in flat) / len(flat),
        pass_rate=share(c.correct for c in flat),
        truncated=share(c.truncated for c in flat),
        interrupted=share(c.interrupted for c in flat),
        zero_variance=sum(group.zero_variance for group in groups) / len(groups),
        length_mean_tokens=sum(c.length_tokens for c in flat) / len(flat),
    )


@dataclass(frozen=True)
class PushStats:
    """Weights on their way: every live engine has acknowledged `version` once this exists."""

    version: int
    seconds: float


@dataclass(frozen=True)
class Handle:
    """A pinned copy of the weights of one version, to be evaluated once and then released.

    `id` tells two pins of one version apart (a skipped update leaves the version as it is).
    """

    id: int
    version: int

    def seed(self, run_seed: int, place: int) -> int:
        """Of set number `place`: fresh random numbers for every evaluation, and none that training uses."""
        return (1 << 40) + (run_seed << 20) + 8 * self.id + place


@dataclass(frozen=True)
class EvalResult:
    """Passes per prompt of one evaluation set, k completions each, by the weights of one version."""

    set: str
    version: int
    k: int
    passes: list[int]

    @property
    def n(self) -> int:
        return len(self.passes)

    @property
    def pass_rate(self) -> float:
        return sum(self.passes) / (self.n * self.k)

    @property
    def se(self) -> float:
        """Standard error given this fixed set: sqrt(sum_p q_p (1 - q_p) / (k - 1)) / n, q_p the prompt's own rate.

        Only the sampling of completions counts. Completions of one prompt are not independent draws from the
        task, so the binomial formula over n k completions would be wrong; another set would differ by more.
        """
        within = sum((p / self.k) * (1 - p / self.k) for p in self.passes) / (self.k - 1)
        return within**0.5 / self.n


def results_of(
    evaluation_set: str, version: int, k: int, prompts: Sequence[Prompt], passes: Sequence[int]
) -> list[EvalResult]:
    """The result of one set; where a mixture asked it, also that of each of its tasks, as SET/SOURCE.

    No completion is sampled twice: those of `digit_sum` count in "validation" and in "validation/digit_sum".

    Args:
        k: completions of each prompt. passes: how many of them were correct, prompt by prompt.
    """
    parts: dict[str, list[int]] = {}
    for prompt, passed in zip(prompts, passes, strict=True):
        if prompt.source:
            parts.setdefault(f"{evaluation_set}/{prompt.source}", []).append(passed)
    whole = EvalResult(evaluation_set, version, k, list(passes))
    return [whole, *(EvalResult(name, version, k, parts[name]) for name in sorted(parts))]


class World(Protocol):
    """Where the loop runs. All calls but the last group are async and may let the clock pass."""

    @property
    def clock(self) -> Clock: ...

    @property
    def train(self) -> Sequence[Prompt]:
        """The training prompts; a prompt's `id` is its place."""
        ...

    @property
    def gpus(self) -> Mapping[Role, int]:
        """How many GPUs each role has."""
        ...

    async def start(self) -> None:
        """Bring up whatever the calls below need; called once, before them and after `load`."""
        ...

    async def serve(self) -> None:
        """The world's own background work, run beside the loop and cancelled with it."""
        ...

    async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
        """n completions; tokens may span several weight versions. A request that the world has kept across
        a resume is taken up where it stood.

        Raises:
            GeneratorLost: the engine died; issue it again.
        """
        ...

    async def score(self, group: Group) -> Group:
        """Fill in `correct` and `reward` of every completion."""
        ...

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        """Pack the groups, call `prepare` once on the whole batch, take one optimiser step over all ranks."""
        ...

    async def publish(self, version: int) -> PushStats:
        """Bring the trainers' weights to the generators; returns when every live engine has acknowledged.

        Raises:
            PushFailed: naming phase and peer.
        """
        ...

    async def snapshot(self) -> Handle:
        """Pin the present weights, before the next update changes them."""
        ...

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        """Evaluate pinned weights on their own devices, and release them; each set as `results_of` tells it."""
        ...

    def to_text(self, token_ids: Sequence[int]) -> str:
        """Tokens as a person reads them."""
        ...

    def notices(self) -> list[str]:
        """What a person should be told since the last call, a sentence each."""
        ...

    def phases(self) -> list[Phase]:
        """What GPUs did since the last call; phases still running are cut at now."""
        ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    async def close(self) -> None: ...
