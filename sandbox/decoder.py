"""Autoregressive sampling of many completions as one tensor batch, refilled as sequences end.

Active rows are kept together at the front: a row that ends is overwritten by the last one. Each completion
draws its random numbers from (seed, request, row) alone, so what it samples does not depend on its company.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sandbox.model import Cache, Policy
from scalerl.length import draw_limit, thinking_limits
from scalerl.logprobs import logits
from scalerl.recipe import Length
from scalerl.rollout import Completion
from scalerl.task import Prompt, Task

NEVER = 1 << 30


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled and where they end."""

    length: Length
    thinking_tokens: int
    answer_tokens: int
    temperature: float
    head_dtype: torch.dtype

    def longest(self, task: Task) -> int:
        """Most tokens that a completion can have."""
        return self.thinking_tokens + len(task.interruption) + self.answer_tokens


@dataclass
class Row:
    """One completion being sampled; `key` names the request, `index` the completion within it."""

    key: int
    index: int
    prompt: Prompt
    uniform_T: list[float]
    limit: int  # thinking tokens after which it is interrupted, or NEVER
    closed: int = -1  # length right after thinking closed, -1 while it is open
    forced: int = 0  # tokens of the interruption already forced
    completion: Completion = field(default_factory=lambda: Completion([], [], [], []))

    @property
    def length(self) -> int:
        return len(self.completion.token_ids)

    def to_json(self) -> dict[str, Any]:
        progress = {"closed": self.closed, "forced": self.forced}
        return {
            "key": self.key,
            "index": self.index,
            **progress,
            "completion": asdict(self.completion),
        }

    def load_json(self, data: dict[str, Any]) -> "Row":
        self.closed, self.forced = data["closed"], data["forced"]
        self.completion = Completion(**data["completion"])
        return self


class Decoder:
    """A policy, its KV cache, and the rows that are being decoded with them."""

    def __init__(
        self, policy: Policy, task: Task, sampling: Sampling, rows: int, widest_prompt: int
    ) -> None:
        self.policy, self.task, self.sampling = policy, task, sampling
        self.version = 0
        self.longest = sampling.longest(task)
        self.width = widest_prompt + self.longest
        self.cache = Cache(policy.config, rows, self.width, policy.device)
        self.rows: list[Row] = []
        self._seated: list[Row] = []

    def begin(self, prompt: Prompt, key: int, indices: range, seed: int) -> list[Row]:
        """Completions `indices` of a request, about to be seated.

        Random numbers come from (seed, key), a row of them for each index, so that neither company nor
        the moment of seating changes what a completion samples.
        """
        stream = np.random.Generator(np.random.Philox(key=[seed, key]))
        uniform_GT = stream.random((indices.stop, self.longest), dtype=np.float32)
        limits = thinking_limits(self.sampling.length, self.sampling.thinking_tokens)
        rows = []
        for index in indices:
            limit = NEVER if limits is None else draw_limit(limits, seed, key, index)
            rows.append(Row(key, index, prompt, uniform_GT[index].tolist(), limit))
        return rows

    def seat(self, rows: list[Row]) -> None:
        """Rows that join at the next step."""
        self._seated += rows

    @property
    def everyone(self) -> list[Row]:
        """Rows that are running or about to."""
        return [*self.rows, *self._seated]

    @torch.no_grad()
    def step(self) -> list[Row]:
        """Sample one token for every row; returns the rows that ended with it."""
        hidden = [self._decode()] if self.rows else []
        if self._seated:
            hidden.append(self._prefill(self._seated))
            self.rows += self._seated
            self._seated = []
        uniform = torch.tensor(
            [row.uniform_T[row.length] for row in self.rows], device=self.policy.device
        )
        token_N, logp_N = self._sample(torch.cat(hidden), uniform)
        ended = [i for i, row in enumerate(self.rows) if self._append(row, token_N[i], logp_N[i])]
        done = [self.rows[i] for i in ended]
        self._drop(ended)
        return done

    @torch.no_grad()
    def recompute(self) -> None:
        """Replace the stale KV cache of all running rows by that of the present weights."""
        if self.rows:
            self.policy.hidden(self._padded([self._past(row) for row in self.rows]), self.cache)

    def _past(self, row: Row) -> list[int]:
        """All tokens whose keys are cached: the last one sampled is fed at the next step."""
        return [*row.prompt.token_ids, *row.completion.token_ids[:-1]]

    def _prefill(self, rows: list[Row]) -> Tensor:
        """Cache the prompts, each once however many completions share it; hidden state of their last tokens."""
        first: dict[int, int] = {}
        place = [first.setdefault(row.key, len(first)) for row in rows]
        prompts = [next(row for row in rows if row.key == key).prompt.token_ids for key in first]
        token_PT = self._padded([list(prompt) for prompt in prompts])
        width = token_PT.shape[1]
        scratch = Cache(self.policy.config, len(prompts), width, self.policy.device)
        hidden_PTD = self.policy.hidden(token_PT, scratch)
        place_N = torch.tensor(place, device=self.policy.device)
        start = len(self.rows)
        target_N = torch.arange(start, start + len(rows), device=self.policy.device)
        self.cache.copy_rows(scratch, place_N, target_N, width)
        last_N = torch.tensor(
            [len(row.prompt.token_ids) - 1 for row in rows], device=self.policy.device
        )
        return hidden_PTD[place_N, last_N]

    def _decode(self) -> Tensor:
        position = [len(row.prompt.token_ids) + row.length - 1 for row in self.rows]
        token_N = torch.tensor(
            [row.completion.token_ids[-1] for row in self.rows], device=self.policy.device
        )
        position_N = torch.tensor(position, device=self.policy.device)
        return self.policy.decode(token_N, position_N, self.cache, max(position) + 1)

    def _sample(self, hidden_ND: Tensor, uniform_N: Tensor) -> tuple[list[int], list[float]]:
        """Tokens by inversion of the cumulative distribution, with their log-probs under it."""
        sampling = self.sampling
        z_NV = logits(hidden_ND, self.policy.head_VD, sampling.head_dtype, sampling.temperature)
        logp_NV = z_NV.log_softmax(-1)
        cumulative_NV = logp_NV.exp().cumsum(-1)
        threshold_N1 = uniform_N[:, None] * cumulative_NV[:, -1:]
        token_N1 = (
            (cumulative_NV <= threshold_N1).sum(-1, keepdim=True).clamp_(max=z_NV.shape[-1] - 1)
        )
        return token_N1[:, 0].tolist(), logp_NV.gather(1, token_N1)[:, 0].tolist()

    def _append(self, row: Row, token: int, logp: float) -> bool:
        """Add a token, the sampled one or the interruption's next; True if the completion has ended."""
        done, task = row.completion, self.task
        interrupt = row.closed < 0 and (row.forced > 0 or len(done.token_ids) >= row.limit)
        if interrupt:
            token, logp = task.interruption[row.forced], 0.0
            row.forced += 1
            done.interrupted = True
        done.token_ids.append(token)
        done.logp.append(logp)
        done.version.append(self.version)
        done.sampled.append(not interrupt)
        length = len(done.token_ids)
        if token == task.eos_id and not interrupt:
            return True
        if token == task.think_close_id and row.closed < 0:
            row.closed = length
        if row.closed >= 0:
            done.truncated = length - row.closed >= self.sampling.answer_tokens
        elif row.limit == NEVER:
            done.truncated = length >= self.sampling.thinking_tokens + self.sampling.answer_tokens
        return done.truncated

    def _drop(self, ended: list[int]) -> None:
        """Close the gaps: surviving rows from the back move into the places of ended ones."""
        if not ended:
            return
        keep = len(self.rows) - len(ended)
        gone = set(ended)
        holes = [i for i in ended if i < keep]
        movers = [i for i in range(keep, len(self.rows)) if i not in gone]
        if holes:
            device = self.policy.device
            width = max(len(self.rows[i].prompt.token_ids) + self.rows[i].length for i in movers)
            self.cache.copy_rows(
                self.cache,
                torch.tensor(movers, device=device),
                torch.tensor(holes, device=device),
                width,
            )
            for hole, mover in zip(holes, movers, strict=True):
                self.rows[hole] = self.rows[mover]
        del self.rows[keep:]

    def _padded(self, sequences: list[list[int]]) -> Tensor:
        width = max(len(sequence) for sequence in sequences)
        return torch.tensor(
            [sequence + [0] * (width - len(sequence)) for sequence in sequences],
            device=self.policy.device,
        )


def sample_all(
    decoder: Decoder, prompts: list[Prompt], n: int, seed: int
) -> list[list[Completion]]:
    """n completions of every prompt, without a clock: what evaluation does. Keys are the prompts' places."""
    rows = [
        row
        for place, prompt in enumerate(prompts)
        for row in decoder.begin(prompt, place, range(n), seed)
    ]
    decoder.seat(rows)
    while decoder.everyone:
        decoder.step()
    by_prompt: list[list[Completion]] = [[] for _ in prompts]
    for row in rows:
        by_prompt[row.key].append(row.completion)
    return by_prompt
