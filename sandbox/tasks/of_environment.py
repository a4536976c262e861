"""A Gymnasium environment with token steps as a task: prompts are its resets, the verifier plays a completion."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import gymnasium
import numpy as np

from scalerl.errors import InputError, first_line
from scalerl.task import Prompt
from scalerl.user_code import load_module


class EnvironmentTask:
    """A task of an environment whose action is the next token, and whose first observation holds the prompt's tokens.

    Prompt i is `reset(seed=i)`: validation takes the first seeds, training those after them, and prompts that have been
    seen are passed over, so that a small environment gives fewer. A completion is right if its tokens, played by
    `step`, add up to a reward above 0 and terminate the episode with the last one, which is `eos_id`.

    The observation is a row of tokens, or a dict with `tokens` and, if they are padded, `length`. `info` of a reset
    says a `solution`, which `check_task` plays, and may say a `level`.

    Args:
        make_env: makes the environment; a function of a module, so that the task pickles.
        eos_id: with `think_close_id` and `interruption`, special tokens; None = attributes of the environment.

    Raises:
        InputError: actions that are no tokens, no special tokens, or a reset without tokens or solution.
    """

    splits = ("train", "validation")

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        *,
        name: str = "",
        train_seeds: int = 1152,
        validation_seeds: int = 512,
        eos_id: int | None = None,
        think_close_id: int | None = None,
        interruption: Sequence[int] | None = None,
    ) -> None:
        self.make_env = make_env
        self.seeds = {
            "validation": range(validation_seeds),
            "train": range(validation_seeds, validation_seeds + train_seeds),
        }
        self.name = name or type(self.env.unwrapped).__name__
        if not isinstance(self.env.action_space, gymnasium.spaces.Discrete):
            raise InputError(
                f"environment {self.name!r} has actions {self.env.action_space}: a token each is Discrete(words)"
            )
        self.vocab_size = int(self.env.action_space.n)
        self.eos_id = int(self._special("eos_id", eos_id))
        self.think_close_id = int(self._special("think_close_id", think_close_id))
        self.interruption = tuple(map(int, self._special("interruption", interruption)))

    @cached_property
    def env(self) -> gymnasium.Env[Any, Any]:
        """The one that completions are played on."""
        return self.make_env()

    def prompts(self, split: str) -> Sequence[Prompt]:
        return self._read[0][split]

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        self.env.reset(seed=self._read[1][prompt.token_ids])
        total, last = 0.0, len(token_ids) - 1
        for place, token in enumerate(token_ids):
            _, reward, terminated, truncated, _ = self.env.step(int(token))
            total += float(reward)
            if terminated or truncated:
                return bool(terminated) and place == last and total > 0
        return False

    def solve(self, prompt: Prompt) -> list[int]:
        _, info = self.env.reset(seed=self._read[1][prompt.token_ids])
        return self._solution(info)

    def to_text(self, token_ids: Sequence[int]) -> str:
        spell = getattr(self.env.unwrapped, "to_text", None)
        return " ".join(map(str, token_ids)) if spell is None else spell(list(token_ids))

    @cached_property
    def _read(self) -> tuple[dict[str, tuple[Prompt, ...]], dict[tuple[int, ...], int]]:
        """The splits, and the seed whose reset shows the tokens of a prompt."""
        splits: dict[str, tuple[Prompt, ...]] = {}
        seed_of: dict[tuple[int, ...], int] = {}
        for split, seeds in self.seeds.items():
            prompts: list[Prompt] = []
            for seed in seeds:
                observation, info = self.env.reset(seed=seed)
                if (tokens := self._tokens(observation)) not in seed_of:
                    seed_of[tokens] = seed
                    prompts.append(Prompt(len(prompts), tokens, (), int(info.get("level", 1))))
            splits[split] = tuple(prompts)
        if not splits["train"]:
            raise InputError(
                f"environment {self.name!r} shows {len(seed_of)} different prompts, all taken for validation: return"
                " EnvironmentTask(..., validation_seeds=N) from a function, with a smaller N"
            )
        return splits, seed_of

    def _special(self, name: str, given: Any) -> Any:
        """A special token as it was given, or as the environment says it."""
        said = getattr(self.env.unwrapped, name, None) if given is None else given
        if said is None:
            raise InputError(
                f"environment {self.name!r} does not say its {name}: give it that attribute"
            )
        return said

    def _tokens(self, observation: Any) -> tuple[int, ...]:
        """The prompt of a first observation."""
        tokens = observation.get("tokens") if isinstance(observation, dict) else observation
        row = np.asarray(tokens)
        if row.ndim != 1 or row.dtype.kind not in "iu":
            raise InputError(
                f"environment {self.name!r} shows {observation!r} first: a row of tokens was expected, or a dict"
                " with tokens and length"
            )
        length = observation.get("length", len(row)) if isinstance(observation, dict) else len(row)
        return tuple(row[: int(length)].tolist())

    def _solution(self, info: dict[str, Any]) -> list[int]:
        if "solution" not in info:
            raise InputError(
                f"environment {self.name!r} says no solution: put one into the info of its reset"
            )
        return [int(token) for token in info["solution"]]

    def __getstate__(self) -> dict[str, Any]:
        """Without the environment and what was read from it, which any process can make anew."""
        return {key: value for key, value in vars(self).items() if key not in ("env", "_read")}


def registered(id: str) -> Callable[[], gymnasium.Env[Any, Any]]:
    """What makes an environment of Gymnasium's registry, with ours in it.

    Raises:
        InputError: it cannot be made.
    """
    try:
        made(id).close()
    except Exception as error:  # of the library, or of the environment's own constructor
        raise InputError(f"gym:{id} cannot be made: {first_line(error)}") from error
    return partial(made, id)


def made(id: str) -> gymnasium.Env[Any, Any]:
    """An environment by its id; a module before it (MODULE:ID) is imported first."""
    import sandbox.environments  # noqa: F401  # registers

    module, _, name = id.rpartition(":")
    if module:
        load_module(module)
    return gymnasium.make(name, disable_env_checker=True)
