"""The tiny world: a real policy gradient on a tiny model, on a virtual cluster with a virtual clock."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from sandbox.decoder import Decoder
from sandbox.evaluator import Evaluator
from sandbox.generators import Generators
from sandbox.model import Policy, load_policy
from sandbox.rows import Sampling
from sandbox.tasks.registry import task_of
from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.clock import VirtualClock
from scalerl.compute import Phase, Role
from scalerl.errors import CheckpointError, InputError, first_line
from scalerl.length import score_group
from scalerl.metrics import Metric
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.site import Sandbox
from scalerl.task import Prompt, fingerprint, missing_sets
from scalerl.update import (
    DTYPES,
    LossPair,
    learning_rate,
    make_optimizer,
    policy_update,
    prepare,
    update_stats,
)
from scalerl.world import EvalResult, Handle, PushStats, UpdateStats

P = ParamSpec("P")
T = TypeVar("T")
HEAD_DTYPES = DTYPES | {"float8_e4m3": torch.float8_e4m3fn}
POLICIES = Path(__file__).parent / "policies"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")  # in one file, or in several


class SandboxWorld:
    """`scalerl.world.World` on one process: costs come from the site's hardware description, before time passes."""

    def __init__(self, recipe: Recipe, *, allow_code: bool = False, overlap: bool = True) -> None:
        """overlap: train on another core while the generators decode; the bytes that come out are the same."""
        assert isinstance(recipe.site, Sandbox)
        self.recipe, self.site = recipe, recipe.site
        self.clock = VirtualClock()
        self.task = task_of(self.site, allow_code=allow_code)
        self.train = self.task.prompts("train")
        self.gpus: dict[Role, int] = {
            "generator": self.site.generators,
            "trainer": self.site.trainers,
            "evaluator": self.site.evaluators,
        }
        self.loss = LossPair.of(recipe.loss, allow_code=allow_code)
        self.version = 0
        self.device = device_of(self.site.device)
        folder = start_policy(self.site.policy)
        self.policy = load_policy(folder, self.device)
        if (size := self.policy.config.vocab_size) < self.task.vocab_size:
            raise InputError(
                f"{folder} has a vocabulary of {size} words, task {self.task.name!r} one of {self.task.vocab_size}:"
                " choose a start policy that knows the task, site.policy=three_tasks, or train one: scalerl pretrain"
            )
        self.optimizer = make_optimizer(self.policy.parameters(), self.site.optimizer)
        self.pool = self._generators(load_policy(folder, self.device))
        self.evaluator = Evaluator(
            recipe, self.task, load_policy(folder, self.device), self._sampling()
        )
        # OpenMP counts threads by calling thread: without the initialiser the worker would take all cores.
        self._worker: Executor = (
            ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
            if overlap
            else Inline()
        )
        self._phases: list[Phase] = []
        self._notices = missing_sets(self.task, self.site.evaluation.cadence)

    def _generators(self, policy: Policy) -> Generators:
        rows = self.site.generators * self.site.slots_per_generator
        widest = max(len(prompt.token_ids) for prompt in self.train)
        return Generators(
            Decoder(policy, self.task, self._sampling(), rows, widest),
            self.site.hardware,
            self.site.generators,
            self.site.slots_per_generator,
            recompute_kv=self.recipe.kv_on_push == "recompute",
        )

    def _sampling(self) -> Sampling:
        head_dtype = HEAD_DTYPES[self.recipe.generator_head_dtype or self.recipe.head_dtype]
        return Sampling(
            self.recipe.length,
            self.site.thinking_tokens,
            self.site.answer_tokens,
            self.site.temperature,
            head_dtype,
            self.site.generator_dtype,
        )

    async def start(self) -> None:
        """Nothing has to be brought up."""

    async def serve(self) -> None:
        await self.pool.serve()

    async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
        return await self.pool.generate(prompt, n, request_id, seed)

    async def score(self, group: Group) -> Group:
        return score_group(group, self.train[group.prompt_id], self.task, self.recipe)

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        batch = RolloutBatch.from_groups(groups).to(self.device)
        train = prepare(batch, self.recipe)
        if not train.rows:
            return update_stats(batch, train, self.version, {})
        # The cost is known, so the work can be done on another core while virtual time passes here:
        # generators decode with weights of their own, and nobody reads the trainer's before the join.
        job = self._worker.submit(self._train, train)
        tokens = train.tokens
        await self._trainers_do("update", self.site.hardware.train_s(tokens, self.site.trainers))
        stats = update_stats(batch, train, self.version, job.result())
        self.version += 1
        return stats

    def _train(self, train: TrainBatch) -> dict[str, Metric]:
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = learning_rate(self.site.optimizer, self.version)
        return policy_update(
            self.policy,
            self.optimizer,
            train,
            self.recipe,
            self.loss,
            micro_batch_tokens=self.site.micro_batch_tokens,
            temperature=self.site.temperature,
            version=self.version,
        )

    async def publish(self, version: int) -> PushStats:
        await self._trainers_do("push", self.site.hardware.push_s)
        self.pool.set_weights(self.policy.state_dict(), version)
        return PushStats(version, self.site.hardware.push_s)

    async def snapshot(self) -> Handle:
        return self.evaluator.pin(self.policy, self.version)

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        return await self.evaluator.evaluate(handle, sets)

    async def _trainers_do(self, what: str, seconds: float) -> None:
        start = self.clock.now()
        await self.clock.sleep(seconds)
        self._phases.append(Phase("trainer", 0, what, start, self.clock.now(), self.site.trainers))

    def to_text(self, token_ids: Sequence[int]) -> str:
        return self.task.to_text(token_ids)

    def notices(self) -> list[str]:
        told, self._notices = self._notices, []
        return told

    def phases(self) -> list[Phase]:
        found = [*self._phases, *self.evaluator.take_phases(), *self.pool.phases(self.clock.now())]
        self._phases = []
        return found

    def save(self, folder: Path) -> None:
        """Everything: weights, moments, stale caches, partial tokens, the step under way, pinned evaluations."""
        save_file(
            {name: tensor.contiguous() for name, tensor in self.policy.state_dict().items()},
            folder / "policy.safetensors",
        )
        save_file(
            {
                name: tensor.clone()
                for name, tensor in self.pool.decoder.policy.state_dict().items()
            },
            folder / "generator.safetensors",
        )
        save_file(_flat_moments(self.optimizer, self.policy), folder / "optimizer.safetensors")
        state = {
            "version": self.version,
            "pool": self.pool.save(folder),
            "evaluator": self.evaluator.save(folder),
            "phases": [vars(phase) for phase in self._phases],
            "prompts": fingerprint(self.train),
        }
        (folder / "world.json").write_text(json.dumps(state, separators=(",", ":")))

    def load(self, folder: Path) -> None:
        try:
            state = json.loads((folder / "world.json").read_text())
            self.policy.load_state_dict(
                load_file(folder / "policy.safetensors", device=self.device)
            )
            self.pool.decoder.set_weights(
                load_file(folder / "generator.safetensors", device=self.device), state["version"]
            )
            _load_moments(
                self.optimizer,
                self.policy,
                load_file(folder / "optimizer.safetensors", device=self.device),
            )
            self._check_prompts(state)
            self._notices = []  # the run was told when it began
            self.version = state["version"]
            self.pool.restore(folder, state["pool"], self.train)
            self.evaluator.restore(folder, state["evaluator"])
            self._phases = [Phase(**phase) for phase in state["phases"]]
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot read the checkpoint {folder}: {first_line(error)}"
            ) from error

    def _check_prompts(self, state: dict[str, Any]) -> None:
        """Books, queues and caches are of prompts by number."""
        if state.get("prompts", found := fingerprint(self.train)) != found:
            raise CheckpointError(
                f"the training prompts of task {self.task.name!r} are not those that the run began with: bring the task"
                " back as it was, or begin a new run"
            )

    async def close(self) -> None:
        self._worker.shutdown()


class Inline(Executor):
    """Does what is submitted at once, in the caller's thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:  # told where it would be with a thread: at the join
            done.set_exception(error)
        return done


def device_of(setting: str) -> str:
    """CUDA when it is there, if the site leaves the choice."""
    if setting == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if setting == "cuda" and not torch.cuda.is_available():
        raise InputError("site.device = 'cuda', but torch finds no CUDA device: take auto or cpu")
    return setting


def start_policy(name: str) -> Path:
    """A shipped start policy by name, or any folder in Hugging Face layout."""
    for folder in (POLICIES / name, Path(name)):
        if any((folder / weights).exists() for weights in WEIGHTS):
            return folder
    shipped = ", ".join(sorted(path.name for path in POLICIES.iterdir()))
    raise InputError(
        f"site.policy = {name!r} is neither a shipped policy ({shipped}) nor a folder with model.safetensors"
    )


def _flat_moments(optimizer: torch.optim.AdamW, policy: Policy) -> dict[str, torch.Tensor]:
    """AdamW's moments by parameter name; empty before the first step."""
    flat: dict[str, torch.Tensor] = {}
    for name, parameter in policy.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            flat[f"{key}/{name}"] = value
    return flat


def _load_moments(
    optimizer: torch.optim.AdamW, policy: Policy, flat: dict[str, torch.Tensor]
) -> None:
    parameters = dict(policy.named_parameters())
    for key, value in flat.items():
        moment, name = key.split("/", 1)
        optimizer.state[parameters[name]][moment] = value.cpu() if moment == "step" else value
