"""Autoregressive sampling of many completions as one tensor batch, refilled as sequences end.

Each completion draws its random numbers from (seed, request, index) alone, so neither its company nor the moment
it is seated decides what it samples.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sandbox.engine import Cache, Engine
from sandbox.model import Policy
from sandbox.rows import NEVER, Done, Rows, Sampling
from scalerl.errors import InputError
from scalerl.length import draw_limits
from scalerl.rollout import Completion
from scalerl.task import Prompt, Task


class Decoder:
    """A policy, its KV cache, and the rows that are being decoded with them."""

    def __init__(
        self, policy: Policy, task: Task, sampling: Sampling, rows: int, widest_prompt: int
    ) -> None:
        self.policy, self.task, self.sampling = policy, task, sampling
        self.engine = Engine(policy, sampling.dtype)
        self.version = 0
        self.longest = sampling.longest(task)
        width, limit = widest_prompt + self.longest, policy.config.max_position_embeddings
        if width > limit:
            raise InputError(
                f"a prompt of {widest_prompt} tokens and a completion of {self.longest} need {width} positions; "
                f"the policy has {limit}: lower site.thinking_tokens or site.answer_tokens, or make a policy with more"
                " (scalerl pretrain --positions)"
            )
        self.cache = Cache(policy.config, rows, width, policy.device)
        self.rows = Rows(rows, self.longest)
        self.prompts: dict[int, Prompt] = {}  # of every request with running rows
        self._new = 0  # rows at the back that have been seated but not begun

    def seat(self, prompt: Prompt, key: int, indices: range, seed: int, place: int = 0) -> None:
        """Completions `indices` of a request, which begin at the next step."""
        stream = np.random.Generator(np.random.Philox(key=[seed, key]))
        uniform_GT = stream.random((indices.stop, self.longest), dtype=np.float32)
        sampling, length = self.sampling, len(prompt.token_ids)
        limits = draw_limits(sampling.length, sampling.thinking_tokens, seed, key, indices)
        for index, limit in zip(indices, limits, strict=True):
            limit = NEVER if limit is None else limit
            self.rows.add(key, index, place, length, limit, uniform_GT[index])
        self.prompts[key] = prompt
        self._new += len(indices)

    @torch.no_grad()
    def step(self) -> list[Done]:
        """Sample one token for every row; returns the completions that ended with it."""
        rows, running = self.rows, self.rows.count - self._new
        hidden = [self._decode(running)] if running else []
        if self._new:
            hidden.append(self._prefill(running))
            self._new = 0
        uniform_N = rows.uniform[np.arange(rows.count), rows.length[: rows.count]]
        token_N, logp_N = self._sample(torch.cat(hidden), self._tensor(uniform_N))
        ended = rows.append(token_N, logp_N, self.version, self.task, self.sampling)
        if not ended.any():
            return []
        done = rows.take(ended, self.task)
        self._drop(ended)
        return done

    def set_weights(self, weights: dict[str, Tensor], version: int) -> None:
        """New weights, in force from the next step on; the cache stays, stale."""
        self.policy.load_state_dict(weights)
        self.engine.refresh()
        self.version = version

    @torch.no_grad()
    def recompute(self) -> None:
        """Replace the stale KV cache of all running rows by that of the present weights."""
        running = self.rows.count - self._new
        if running:
            # the newest token is fed at the next step
            past = [self._tokens(i)[:-1] for i in range(running)]
            self.engine.prefill(self._padded(past), self.cache)

    def _tokens(self, i: int) -> list[int]:
        sampled = self.rows.token[i, : self.rows.length[i]].tolist()
        return [*self.prompts[int(self.rows.key[i])].token_ids, *sampled]

    def _prefill(self, running: int) -> Tensor:
        """Cache the prompts of new rows, each once however many rows share it; hidden states of their last tokens."""
        keys, place_N = np.unique(self.rows.key[running : self.rows.count], return_inverse=True)
        prompts = [list(self.prompts[int(key)].token_ids) for key in keys]
        token_PT = self._padded(prompts)
        width = token_PT.shape[1]
        scratch = Cache(self.policy.config, len(prompts), width, self.policy.device)
        hidden_PTD = self.engine.prefill(token_PT, scratch)
        place_N = self._tensor(place_N)
        self.cache.copy_rows(
            scratch, place_N, self._tensor(np.arange(running, self.rows.count)), width
        )
        last_N = self._tensor(self.rows.prompt_length[running : self.rows.count] - 1)
        return hidden_PTD[place_N, last_N]

    def _decode(self, running: int) -> Tensor:
        """Feed each running row its newest token; hidden states that predict the next."""
        length_N = self.rows.length[:running]
        position_N = self.rows.prompt_length[:running] + length_N - 1
        token_N = self.rows.token[np.arange(running), length_N - 1]
        return self.engine.decode(
            self._tensor(token_N), self._tensor(position_N), self.cache, int(position_N.max()) + 1
        )

    def _sample(self, hidden_ND: Tensor, uniform_N: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Tokens by inversion of the cumulative distribution, with their log-probs under it."""
        sampling = self.sampling
        z_NV = self.engine.logits(hidden_ND, sampling.head_dtype, sampling.temperature)
        logp_NV = z_NV.log_softmax(-1)
        cumulative_NV = logp_NV.exp().cumsum(-1)
        threshold_N1 = uniform_N[:, None] * cumulative_NV[:, -1:]
        token_N1 = (
            (cumulative_NV <= threshold_N1).sum(-1, keepdim=True).clamp_(max=z_NV.shape[-1] - 1)
        )
        return token_N1[:, 0].cpu().numpy(), logp_NV.gather(1, token_N1)[:, 0].cpu().numpy()

    def _drop(self, ended: np.ndarray) -> None:
        """Remove ended rows, moving caches along with the rows that fill their places."""
        gone = set(self.rows.key[np.flatnonzero(ended)].tolist())
        width = int(self.rows.context.max())
        source, to = self.rows.close_gaps(ended)
        if len(to):
            self.cache.copy_rows(self.cache, self._tensor(source), self._tensor(to), width)
        for key in gone - set(self.rows.key[: self.rows.count].tolist()):
            del self.prompts[key]

    def save(self) -> dict[str, Tensor]:
        """Rows and their cached keys and values, stale ones as they are, without the unused positions."""
        valid_NW = self._valid()
        parts = self.cache.tensors()
        caches = {
            f"kv.{i}": part[:, : self.rows.count].transpose(0, 1)[valid_NW]
            for i, part in enumerate(parts)
        }
        return {**caches, **self.rows.save()}

    def restore(self, saved: dict[str, Tensor], prompts: dict[int, Prompt]) -> None:
        """The reverse of `save`; `prompts` are those of the requests by key."""
        self.rows.restore(saved)
        self.prompts = {int(key): prompts[int(key)] for key in self.rows.key[: self.rows.count]}
        valid_NW = self._valid()
        for i, part in enumerate(self.cache.tensors()):
            part[:, : self.rows.count].transpose(0, 1)[valid_NW] = saved[f"kv.{i}"].to(part.device)

    def _valid(self) -> Tensor:
        """Which positions of each running row hold a key."""
        width = self.cache.keys[0].shape[0]
        return self._tensor(np.arange(width) < self.rows.context[:, None] - 1)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.policy.device)

    def _padded(self, sequences: list[list[int]]) -> Tensor:
        width = max(len(sequence) for sequence in sequences)
        padded = [sequence + [0] * (width - len(sequence)) for sequence in sequences]
        return torch.tensor(padded, device=self.policy.device)


def sample_all(
    decoder: Decoder, prompts: Sequence[Prompt], n: int, seed: int
) -> list[list[Completion]]:
    """n completions of every prompt, without a clock: what evaluation does. Keys are the prompts' places.

    Prompts are seated as rows become free, in their order.
    """
    completions: dict[tuple[int, int], Completion] = {}
    seated = 0
    while seated < len(prompts) or decoder.rows.count:
        while seated < len(prompts) and decoder.rows.free >= n:
            decoder.seat(prompts[seated], seated, range(n), seed)
            seated += 1
        completions |= {(done.key, done.number): done.completion for done in decoder.step()}
    return [[completions[place, index] for index in range(n)] for place in range(len(prompts))]
