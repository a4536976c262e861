"""Tasks as Gymnasium environments: one completion an episode, one token a step.

    import gymnasium, sandbox.environments
    env = gymnasium.make("scalerl/DigitSum-v0")
    envs = gymnasium.make_vec("scalerl/DigitSum-v0", num_envs=64)

An episode ends where a completion of the sandbox ends (`sandbox.rows`), under the same budgets.
"""

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from sandbox.tasks.registry import make_task
from scalerl.errors import InputError
from scalerl.length import thinking_limits
from scalerl.recipe import Interruption
from scalerl.task import Prompt, Task

NEVER = 1 << 30
Observation = dict[str, Any]
Info = dict[str, Any]


class Episodes:
    """Completions under way, as columns of N rows: prompt and completion in `token`, padded with 0.

    Row n has `start` prompt tokens and `length` tokens in all; its thinking is cut after `limit` tokens and closed
    at `closed` tokens of its completion (-1: still open).
    """

    def __init__(
        self,
        task: str | Task,
        count: int,
        split: str,
        thinking_tokens: int,
        answer_tokens: int,
        interruption: tuple[float, float] | None,
    ) -> None:
        if thinking_tokens < 1 or answer_tokens < 2:
            raise InputError(
                f"thinking_tokens = {thinking_tokens}, answer_tokens = {answer_tokens}: at least 1 and 2 are needed"
            )
        self.task = make_task(task) if isinstance(task, str) else task
        if split not in self.task.splits:
            raise InputError(f"split = {split!r}: task {self.task.name!r} has {self.task.splits}")
        self.prompts = self.task.prompts(split)
        self.thinking_tokens, self.answer_tokens = thinking_tokens, answer_tokens
        self.phrase = np.array(self.task.interruption)
        self.limits: tuple[int, int] | None = None
        if interruption is not None:
            low, high = interruption
            if not 0 < low <= high <= 1:
                raise InputError(
                    f"interruption = {interruption}: two shares of the thinking budget are needed, 0 < low <= high <= 1"
                )
            self.limits = thinking_limits(Interruption(low=low, high=high), thinking_tokens)
        # of all splits, so that their observations are alike
        widest = max(len(p.token_ids) for name in self.task.splits for p in self.task.prompts(name))
        self.width = widest + thinking_tokens + len(self.phrase) + answer_tokens
        self.token = np.zeros((count, self.width), dtype=np.int64)
        self.start, self.length = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.limit, self.closed = np.full(count, NEVER), np.full(count, -1)
        self.prompt: list[Prompt] = [self.prompts[0]] * count

    def spaces(self) -> tuple[spaces.Dict, spaces.Discrete]:
        """Of observations and of actions, of one row."""
        size = self.task.vocab_size
        tokens = spaces.Box(0, size - 1, (self.width,), dtype=np.int64)
        observation = spaces.Dict({"tokens": tokens, "length": spaces.Discrete(self.width + 1)})
        return observation, spaces.Discrete(size)

    def begin(self, row: int, rng: np.random.Generator, options: dict[str, Any] | None) -> Info:
        """A new episode in a row: a prompt and a limit by chance, or the prompt that `options` name."""
        place = (options or {}).get("prompt")
        if place is None:
            place = int(rng.integers(len(self.prompts)))
        if not isinstance(place, int | np.integer) or not 0 <= place < len(self.prompts):
            raise InputError(
                f"prompt = {place}: the split has prompts 0 to {len(self.prompts) - 1}"
            )
        prompt = self.prompts[int(place)]
        limit = NEVER if self.limits is None else int(rng.integers(*self.limits, endpoint=True))
        self.prompt[row] = prompt
        self.start[row] = self.length[row] = len(prompt.token_ids)
        self.token[row] = 0
        self.token[row, : len(prompt.token_ids)] = prompt.token_ids
        self.limit[row], self.closed[row] = limit, -1
        solution = tuple(self.task.solve(prompt))
        return {"prompt": prompt.id, "level": prompt.level, "solution": solution}

    def append(
        self, token_N: np.ndarray, going_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Give the rows that are going their next tokens: which have ended, which in time, how many were forced."""
        rows = np.flatnonzero(going_N)
        if not np.all((0 <= token_N[rows]) & (token_N[rows] < self.task.vocab_size)):
            raise InputError(
                f"action = {token_N[rows].tolist()}: tokens are 0 to {self.task.vocab_size - 1}"
            )
        self._put(rows, token_N[rows])
        finished_N = going_N & (token_N == self.task.eos_id)
        cut_N = going_N & ~finished_N & (self.closed < 0) & (self._written() >= self.limit)
        for token in self.phrase if cut_N.any() else ():
            rows = np.flatnonzero(cut_N)
            self._put(rows, np.full(len(rows), token))
        written_N = self._written()
        answered_N = (self.closed >= 0) & (written_N - self.closed >= self.answer_tokens)
        spent_N = written_N >= self.thinking_tokens + self.answer_tokens
        truncated_N = np.where(self.limit == NEVER, spent_N, answered_N) & going_N & ~finished_N
        return finished_N, truncated_N, cut_N * len(self.phrase)

    def _put(self, rows: np.ndarray, token_M: np.ndarray) -> None:
        self.token[rows, self.length[rows]] = token_M
        self.length[rows] += 1
        closing = rows[(token_M == self.task.think_close_id) & (self.closed[rows] < 0)]
        self.closed[closing] = self._written()[closing]

    def _written(self) -> np.ndarray:
        """Tokens of each row's completion."""
        return self.length - self.start

    def completion(self, row: int) -> list[int]:
        return self.token[row, self.start[row] : self.length[row]].tolist()

    def reward(self, row: int) -> float:
        """+1 or -1 for the completion of a row."""
        return 1.0 if self.task.verify(self.prompt[row], self.completion(row)) else -1.0

    def text(self, row: int) -> str:
        return self.task.to_text(self.token[row, : self.length[row]].tolist())


class TokenEnv(gymnasium.Env[Observation, Any]):
    """One completion an episode: reward 0 until its end, then +1 or -1.

    Observation: `tokens` [width], prompt and completion, then zeros, and `length`, how many of them count. Action: the
    next token. `terminated` by the end of sequence, `truncated` by the budget. With an interruption thinking is cut
    at random between two shares of its budget: the phrase is appended within the step, and `info["forced"]` says how
    many tokens that added. `reset(options={"prompt": id})` asks for one prompt, else the seed draws it; its info has
    prompt, level and solution.

    Args:
        task: a name of ours, as in `site.task`, or any task.
        interruption: earliest and latest cut as shares of the thinking budget; None = thinking and answer share theirs.

    Raises:
        InputError: no such task, split or prompt.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        task: str | Task = "digit_sum",
        *,
        split: str = "train",
        thinking_tokens: int = 36,
        answer_tokens: int = 4,
        interruption: tuple[float, float] | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.episodes = Episodes(task, 1, split, thinking_tokens, answer_tokens, interruption)
        self.observation_space, self.action_space = self.episodes.spaces()
        self.render_mode = render_mode
        self.ended = True

    @property
    def eos_id(self) -> int:
        return self.episodes.task.eos_id

    @property
    def think_close_id(self) -> int:
        return self.episodes.task.think_close_id

    @property
    def interruption(self) -> tuple[int, ...]:
        return self.episodes.task.interruption

    def to_text(self, token_ids: Sequence[int]) -> str:
        return self.episodes.task.to_text(token_ids)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        info = self.episodes.begin(0, self.np_random, options)
        self.ended = False
        return self._observation(), info

    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, Info]:
        if self.ended:
            raise InputError("step without an episode: call reset() first")
        finished, truncated, forced = self.episodes.append(np.array([action]), np.array([True]))
        self.ended = bool(finished[0] or truncated[0])
        reward = self.episodes.reward(0) if self.ended else 0.0
        info = {"forced": int(forced[0])}
        return self._observation(), reward, bool(finished[0]), bool(truncated[0]), info

    def render(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.episodes.text(0)

    def _observation(self) -> Observation:
        return {"tokens": self.episodes.token[0].copy(), "length": self.episodes.length[0]}


class TokenVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """`num_envs` of `TokenEnv` in columns, one numpy operation for all; row n of `reset(seed=s)` has seed s + n.

    A row that has ended ignores its next action and begins anew with that step (`AutoresetMode.NEXT_STEP`).
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int,
        task: str | Task = "digit_sum",
        *,
        split: str = "train",
        thinking_tokens: int = 36,
        answer_tokens: int = 4,
        interruption: tuple[float, float] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.episodes = Episodes(
            task, num_envs, split, thinking_tokens, answer_tokens, interruption
        )
        self.single_observation_space, self.single_action_space = self.episodes.spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rngs: list[np.random.Generator] = []
        self.ended_N = np.zeros(num_envs, dtype=bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, Info]:
        seeds: list[int | None]
        if seed is None or isinstance(seed, int | np.integer):
            seeds = [None if seed is None else int(seed) + n for n in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise InputError(f"{len(seeds)} seeds for {self.num_envs} rows: one each is needed")
        for n in range(self.num_envs):
            if (wanted := seeds[n]) is not None or len(self.rngs) == n:
                rng, _ = np_random(wanted)
                self.rngs[n : n + 1] = [rng]
        self.ended_N[:] = False
        infos = self._begin(np.ones(self.num_envs, dtype=bool), {}, options)
        return self._observations(), infos

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, Info]:
        if not self.rngs:
            raise InputError("step before reset: call reset(seed=...) first")
        resets_N = self.ended_N.copy()
        finished_N, truncated_N, forced_N = self.episodes.append(np.asarray(actions), ~resets_N)
        self.ended_N = finished_N | truncated_N
        reward_N = np.zeros(self.num_envs)
        for n in np.flatnonzero(self.ended_N).tolist():
            reward_N[n] = self.episodes.reward(n)
        infos: Info = {} if resets_N.all() else {"forced": forced_N, "_forced": ~resets_N}
        infos = self._begin(resets_N, infos, None)
        return self._observations(), reward_N, finished_N, truncated_N, infos

    def _begin(self, resets_N: np.ndarray, infos: Info, options: dict[str, Any] | None) -> Info:
        for n in np.flatnonzero(resets_N).tolist():
            infos = self._add_info(infos, self.episodes.begin(n, self.rngs[n], options), n)
        return infos

    def _observations(self) -> Observation:
        return {"tokens": self.episodes.token.copy(), "length": self.episodes.length.copy()}


def _register() -> None:
    for name, kwargs in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point="sandbox.environments:TokenEnv",
                vector_entry_point="sandbox.environments:TokenVectorEnv",
                kwargs=kwargs,
            )


# With budgets that every solution fits into; those of the digit sum are the sandbox's.
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "scalerl/DigitSum-v0": {"task": "digit_sum"},
    "scalerl/PairSum-v0": {"task": "pair_sum", "thinking_tokens": 160},
    "scalerl/Polynomial-v0": {"task": "polynomial", "answer_tokens": 6},
}
_register()
