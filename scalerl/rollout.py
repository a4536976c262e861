"""What a generator hands to the loop: completions in groups, in plain Python, so that they pickle and save as JSON."""

import math
from dataclasses import dataclass, field
from typing import Any

from scalerl.errors import GroupRefused
from scalerl.task import Prompt


@dataclass
class Completion:
    """One sampled answer to a prompt.

    Worked row, a completion whose thinking was cut after two tokens by a phrase of two tokens:

        token_ids  [41, 52, 5, 4, 47, 2]
        logp       [-0.7, -0.1, 0.0, 0.0, -0.2, -0.01]   nats, under the policy that sampled; 0.0 where not sampled
        version    [3, 3, 3, 3, 4, 4]                    weights that produced each token; non-decreasing
        sampled    [T, T, F, F, T, T]                    False on forced tokens, which are never trained on
        interrupted True, truncated False                (the last token ends the sequence within the answer budget)
    """

    token_ids: list[int]
    logp: list[float]
    version: list[int]
    sampled: list[bool]
    truncated: bool = False
    interrupted: bool = False
    reward: float = 0.0
    correct: bool = False

    @property
    def length_tokens(self) -> int:
        """Tokens after the prompt, forced ones included: what budgets and penalties count."""
        return len(self.token_ids)


@dataclass
class Group:
    """The completions of one draw of a prompt; `request_id` is that draw's ordinal in the prompt stream."""

    request_id: int
    prompt_id: int
    prompt_ids: list[int]
    completions: list[Completion] = field(default_factory=list)

    def check(self, ordinal: int, prompt: Prompt, n: int, start: int) -> None:
        """Whether this answers a request for n completions of a prompt, issued when version `start` was out.

        Raises:
            GroupRefused: it does not.
        """
        said = f"asked for group {ordinal}, {n} completions of prompt {prompt.id}"
        if (self.request_id, self.prompt_id) != (ordinal, prompt.id):
            raise GroupRefused(f"{said}; got group {self.request_id}, of prompt {self.prompt_id}")
        if self.prompt_ids != list(prompt.token_ids):
            raise GroupRefused(f"{said}; got the tokens of another prompt")
        if len(self.completions) != n:
            raise GroupRefused(f"{said}; got {len(self.completions)}")
        for place, c in enumerate(self.completions):
            if not len(c.token_ids) == len(c.logp) == len(c.version) == len(c.sampled) > 0:
                raise GroupRefused(
                    f"{said}; completion {place} has {len(c.token_ids)} tokens, {len(c.logp)} log-probs, "
                    f"{len(c.version)} versions"
                )
            if not all(map(math.isfinite, c.logp)):
                raise GroupRefused(f"{said}; completion {place} has a log-prob that is no number")
            if min(c.version) < start:
                raise GroupRefused(
                    f"{said}; completion {place} has a token of version {min(c.version)}, it began at {start}"
                )

    @property
    def passes(self) -> int:
        return sum(completion.correct for completion in self.completions)

    @property
    def zero_variance(self) -> bool:
        """All right or all wrong: by correctness, exactly, so that a length penalty cannot disguise it."""
        return self.passes in (0, len(self.completions))

    @property
    def oldest_version(self) -> int:
        return min(min(completion.version) for completion in self.completions)

    @property
    def newest_version(self) -> int:
        return max(max(completion.version) for completion in self.completions)

    @property
    def tokens(self) -> int:
        """Generated tokens of all completions."""
        return sum(completion.length_tokens for completion in self.completions)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "completions": [vars(c) for c in self.completions]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Group":
        return cls(**{**data, "completions": [Completion(**row) for row in data["completions"]]})
