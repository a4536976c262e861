"""The completions that are being sampled, as columns: one row each, running rows together at the front."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scalerl.recipe import Length
from scalerl.rollout import Completion
from scalerl.site import Rounding
from scalerl.task import Task

NEVER = 1 << 30


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled and where they end."""

    length: Length
    thinking_tokens: int
    answer_tokens: int
    temperature: float
    head_dtype: torch.dtype
    dtype: Rounding = "float32"  # of everything but the head

    def longest(self, task: Task) -> int:
        """Most tokens that a completion can have."""
        return self.thinking_tokens + len(task.interruption) + self.answer_tokens


class Done(NamedTuple):
    """A completion that has ended: number `number` of request `key`."""

    key: int
    number: int
    completion: Completion


class Rows:
    """Columns of at most `capacity` rows, `count` of them running.

    Completion `index` of request `key` has `length` tokens so far; it is interrupted after `limit` thinking tokens
    (NEVER: not at all), of whose phrase `forced` tokens have been forced; thinking closed at `closed` tokens (-1:
    still open). `place` is the caller's (an engine). The matrices hold what a `Completion` holds, and the random
    number for each of its tokens.
    """

    VECTORS = ("key", "index", "place", "prompt_length", "length", "limit", "closed", "forced")
    MATRICES = ("token", "logp", "version", "sampled", "uniform")

    def __init__(self, capacity: int, longest: int) -> None:
        self.count = 0
        for name in self.VECTORS:
            setattr(self, name, np.zeros(capacity, dtype=np.int64))
        kinds = (np.int64, np.float32, np.int64, np.bool_, np.float32)
        for name, kind in zip(self.MATRICES, kinds, strict=True):
            setattr(self, name, np.zeros((capacity, longest), dtype=kind))

    key: np.ndarray
    index: np.ndarray
    place: np.ndarray
    prompt_length: np.ndarray
    length: np.ndarray
    limit: np.ndarray
    closed: np.ndarray
    forced: np.ndarray
    token: np.ndarray
    logp: np.ndarray
    version: np.ndarray
    sampled: np.ndarray
    uniform: np.ndarray

    @property
    def columns(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in (*self.VECTORS, *self.MATRICES)}

    @property
    def free(self) -> int:
        """How many rows can still be added."""
        return len(self.key) - self.count

    @property
    def context(self) -> np.ndarray:
        """Tokens of each running row, prompt included."""
        return self.prompt_length[: self.count] + self.length[: self.count]

    def add(
        self,
        key: int,
        index: int,
        place: int,
        prompt_length: int,
        limit: int,
        uniform_T: np.ndarray,
    ) -> None:
        """A new row behind the running ones."""
        i = self.count
        self.key[i], self.index[i], self.place[i], self.prompt_length[i] = (
            key,
            index,
            place,
            prompt_length,
        )
        self.length[i], self.limit[i], self.closed[i], self.forced[i] = 0, limit, -1, 0
        self.uniform[i] = uniform_T
        for column in (self.token, self.logp, self.version, self.sampled):
            column[i] = 0  # nothing of the row's former tenant is saved with it
        self.count += 1

    def append(
        self, token_N: np.ndarray, logp_N: np.ndarray, version: int, task: Task, sampling: Sampling
    ) -> np.ndarray:
        """Give every running row a token, the sampled one or the interruption's next; True where that ended it."""
        n = self.count
        rows, length, closed = np.arange(n), self.length[:n], self.closed[:n]
        cut = (closed < 0) & ((self.forced[:n] > 0) | (length >= self.limit[:n]))
        phrase = np.array(task.interruption)
        token_N = np.where(cut, phrase[np.minimum(self.forced[:n], len(phrase) - 1)], token_N)
        self.token[rows, length] = token_N
        self.logp[rows, length] = np.where(cut, 0.0, logp_N)
        self.version[rows, length] = version
        self.sampled[rows, length] = ~cut
        self.forced[:n] += cut
        length += 1
        over = (token_N == task.eos_id) & ~cut
        closed[(token_N == task.think_close_id) & (closed < 0)] = length[
            (token_N == task.think_close_id) & (closed < 0)
        ]
        return over | self._truncated(sampling)

    def _truncated(self, sampling: Sampling) -> np.ndarray:
        """No end of sequence in time.

        With interruptions thinking always closes, and the answer has a budget of its own; without, thinking and answer
        share one, so that a completion which closes late cannot outgrow it.
        """
        length, closed = self.length[: self.count], self.closed[: self.count]
        answered = (closed >= 0) & (length - closed >= sampling.answer_tokens)
        spent = length >= sampling.thinking_tokens + sampling.answer_tokens
        return np.where(self.limit[: self.count] == NEVER, spent, answered)

    def take(self, ended: np.ndarray, task: Task) -> list[Done]:
        """The completions of the ended rows."""
        chosen = np.flatnonzero(ended)
        # whole columns at a time: a call for each row costs more than sampling it
        records = (self.token, self.logp, self.version, self.sampled)
        vectors = (self.length, self.forced, self.key, self.index)
        columns = [column[chosen].tolist() for column in (*records, *vectors)]
        done: list[Done] = []
        for token, logp, version, sampled, n, forced, key, index in zip(*columns, strict=True):
            completion = Completion(
                token_ids=token[:n],
                logp=logp[:n],
                version=version[:n],
                sampled=sampled[:n],
                truncated=not (token[n - 1] == task.eos_id and sampled[n - 1]),
                interrupted=bool(forced),
            )
            done.append(Done(key, index, completion))
        return done

    def close_gaps(self, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Drop ended rows: survivors from the back move into their places. Returns (from, to) of those moves."""
        kept = self.count - int(ended.sum())
        to = np.flatnonzero(ended[:kept])
        source = kept + np.flatnonzero(~ended[kept:])
        for column in self.columns.values():
            column[to] = column[source]
        self.count = kept
        return source, to

    def save(self) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(column[: self.count].copy())
            for name, column in self.columns.items()
        }

    def restore(self, saved: dict[str, Tensor]) -> None:
        self.count = len(saved["key"])
        for name, column in self.columns.items():
            column[: self.count] = saved[name].numpy()
