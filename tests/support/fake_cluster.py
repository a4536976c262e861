"""A cluster in this process: engines and trainer ranks without vLLM, FSDP2 and Ray, slow by milliseconds.

The weights of a version are its number. Log-probs, logits and passes follow from the weights that an actor really has.
One file, since a fault of one actor is seen in what the others then do.
"""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch

from backend.completing import Budget, Marks, Sample, Sampled, complete
from backend.engine import EngineSpec
from backend.probe import hidden_states
from backend.remote import Gone
from sandbox import vocabulary as words
from scalerl.batch import TrainBatch
from scalerl.errors import GeneratorLost, PushFailed
from scalerl.metrics import Max, Mean, Metric, Sum, ratio_stats
from scalerl.recipe import Recipe
from scalerl.rollout import Completion
from scalerl.site import Cluster
from scalerl.task import Task
from scalerl.world import EvalResult
from scenarios.scenario import plan

WIDTH, PAUSE_S = 16, 0.001
POLICY = Path(words.__file__).parent / "policies/digit_sum"
SMALL = (
    "prompts_per_update=4",
    "group_size=4",
    "site.updates=12",
    "site.thinking_tokens=8",
    "site.checkpoint_every_updates=4",
    "site.push_timeout_s=2",
    "site.start_timeout_s=5",
    "site.probe_completions=2",
    "site.probe_tokens=8",
    "site.evaluation.prompts=6",
    "site.evaluation.completions=20",
    "site.evaluation.every_updates=3",
)


@dataclass(frozen=True)
class Fault:
    """The `call`-th call of a method, of all actors that had this name, does not do what it should.

    "die": the process is gone; "hang": it never answers anything again; "stall": only this call is never answered.
    """

    actor: str
    method: str
    does: Literal["die", "hang", "stall"] | Exception
    call: int = 1


@dataclass
class Script:
    """How long things take, in seconds, and what goes wrong; actors are named as in errors."""

    faults: Sequence[Fault] = ()
    token_s: float = 0.0003
    update_s: float = 0.001
    send_s: float = 0.001
    evaluate_s: float = 0.005
    pass_rate: float = 0.5
    deaf: Collection[str] = ()  # say that they have applied weights, and go on with the old ones
    coarse: Collection[str] = ()  # their LM head works in bfloat16
    foreign: Collection[str] = ()  # their LM head has other weights
    off: dict[str, float] = field(default_factory=dict)  # nats by which their log-probs are wrong


def logp(token: int, weights: int) -> float:
    """Of a token under the weights of a version: from one version to the next it moves by 0.02 nats or 0.04."""
    return -0.5 - 0.02 * ((token + weights) % 3)


def head(seed: int, rows: int, weights: int) -> torch.Tensor:
    """Logits [rows, V] of seeded states."""
    head_DV = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(weights))
    return hidden_states(seed, rows, WIDTH, torch.bfloat16).float() @ head_DV


def cluster_recipe(*overrides: str) -> Recipe:
    """ScaleRL with P = 4, G = 4 on two generators, two trainers and an evaluator that need milliseconds for all."""
    (only,) = plan("scalerl", [*SMALL, *overrides], site="cpu-cluster")
    return only.recipe


def engine_spec(recipe: Recipe, name: str) -> EngineSpec:
    marks = Marks(words.EOS, words.CLOSE, words.INTERRUPTION)
    return EngineSpec(name, recipe, POLICY, marks, "cpu", seed=0)


class FakeRemote:
    """`backend.remote.Remote` on an object of this process: a task of its own for each call, in order of calls."""

    def __init__(self, name: str, actor: Any, script: Script, counts: Counter[Any]) -> None:
        self._name, self.actor, self.script, self._counts = name, actor, script, counts
        self.dead, self.hung = False, False
        self.calls: list[str] = []
        self._open: dict[asyncio.Task[None], asyncio.Future[Any]] = {}

    @property
    def name(self) -> str:
        return self._name

    def call(self, method: str, *args: Any) -> Coroutine[Any, Any, Any]:
        future = asyncio.get_running_loop().create_future()
        if self.dead:
            future.set_exception(Gone(f"{self.name} died"))
        else:
            task = asyncio.ensure_future(self._answer(future, method, args))
            self._open[task] = future
            task.add_done_callback(lambda done: self._open.pop(done, None))
        return self._result(future)

    def begin(self, method: str, *args: Any) -> Callable[[float], Any]:
        def wait(seconds: float) -> Any:
            if self.hung:
                raise GeneratorLost(f"{self.name} did not answer to {method!r} for {seconds:g} s")
            answer = self._do(method, args)
            try:
                answer.send(None)
            except StopIteration as done:
                return done.value
            raise AssertionError(f"{method} of {self.name} would wait, without an event loop")

        return wait

    def kill(self) -> None:
        """All open calls end with `Gone`; nothing of the actor goes on."""
        self.dead = True
        open_calls, self._open = self._open, {}
        for task, future in open_calls.items():
            task.cancel()
            if not future.done():
                future.set_exception(Gone(f"{self.name} died"))

    async def meet(self, method: str) -> None:
        """Whatever is to go wrong with this call goes wrong now."""
        self.calls.append(method)
        self._counts[self.name, method] += 1
        for fault in self.script.faults:
            if (fault.actor, fault.method, fault.call) != (
                self.name,
                method,
                self._counts[self.name, method],
            ):
                continue
            if isinstance(fault.does, Exception):
                raise fault.does
            self.hung |= fault.does == "hang"
            if fault.does == "die":
                self.kill()
            else:
                await asyncio.Event().wait()
        if self.hung:
            await asyncio.Event().wait()
        if self.dead:
            raise Gone(f"{self.name} died")

    async def _do(self, method: str, args: Sequence[Any]) -> Any:
        await self.meet(method)
        return await getattr(self.actor, method)(*args)

    async def _answer(self, future: asyncio.Future[Any], method: str, args: Sequence[Any]) -> None:
        try:
            result = await self._do(method, args)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    @staticmethod
    async def _result(future: asyncio.Future[Any]) -> Any:
        return await future


class FakeEngine:
    """What `backend.actors.EngineActor` does."""

    remote: FakeRemote

    def __init__(self, spec: EngineSpec, launcher: "FakeLauncher") -> None:
        self.spec, self.launcher, self.script = spec, launcher, launcher.script
        self.weights = self.applied = 0
        self.receiving: int | None = None
        self.received_at = 0.0
        self.arrived: int | None = None
        self.random = Random(spec.seed)

    async def start(self) -> None:
        await asyncio.sleep(PAUSE_S)

    async def version(self) -> int:
        return self.applied

    async def connect(self, layout: dict[str, Any], kind: str, host: str, port: int) -> None:
        assert layout == {"layout": "of the policy"} and kind == "fake" and host == "here"
        self.launcher.listening[port].set_result(self)

    async def receive(self, version: int) -> None:
        self.receiving, self.arrived = version, None
        self.received_at = asyncio.get_running_loop().time()

    async def apply(self, version: int) -> None:
        self._finish(version)
        if self.spec.name not in self.script.deaf:
            self.weights = version
        self.applied = version

    def _finish(self, version: int) -> None:
        if self.arrived != version:
            raise PushFailed(f"apply version {version}: {self.spec.name} has {self.arrived}")

    async def head(self, seed: int, rows: int) -> list[list[float]]:
        logits_NV = head(seed, rows, self.weights + (self.spec.name in self.script.foreign))
        if self.spec.name in self.script.coarse:
            logits_NV = logits_NV.bfloat16().float()
        return logits_NV.tolist()

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self, method)(*args)

    def logp(self, token: int) -> float:
        return logp(token, self.weights) - self.script.off.get(self.spec.name, 0.0)


class FakeGenerator(FakeEngine):
    """Thinks for some tokens, closes, and answers; `Script.pass_rate` says how often rightly."""

    async def generate(
        self, prompt: Sequence[int], limits: Sequence[int | None]
    ) -> list[Completion]:
        site, marks = self.spec.site, self.spec.marks
        budgets = [Budget(limit, site.thinking_tokens, site.answer_tokens) for limit in limits]
        return await asyncio.gather(
            *(complete(self._stream(prompt), list(prompt), marks, b) for b in budgets)
        )

    async def probe(self, prompt: Sequence[int], count: int, most: int) -> list[Completion]:
        found = [await self._stream(prompt)(list(prompt), most) for _ in range(count)]
        return [
            Completion(s.token_ids, s.logp, s.version, [True] * len(s.token_ids)) for s in found
        ]

    def _stream(self, prompt: Sequence[int]) -> Sample:
        total = sum(token - words.FIRST_NUMBER for token in prompt[1:-1])
        total += self.random.random() >= self.script.pass_rate
        rest = [words.LOW] * self.random.randrange(1 + self.spec.site.thinking_tokens)
        rest += [words.CLOSE, words.FIRST_DIGIT + total % 10, words.EOS]

        async def sample(so_far: list[int], most: int) -> Sampled:
            nonlocal rest
            found = Sampled()
            if so_far[-1] == words.CLOSE and words.CLOSE in rest:
                rest = rest[rest.index(words.CLOSE) + 1 :]
            tokens, rest = rest[:most], rest[most:]
            for token in tokens:
                await asyncio.sleep(self.script.token_s)
                found.token_ids.append(token)
                found.logp.append(self.logp(token))
                found.version.append(self.applied)
            return found

        return sample


class FakeEvaluator(FakeEngine):
    """`passes` of every prompt are the number of the weights, modulo completions + 1."""

    def __init__(self, spec: EngineSpec, launcher: "FakeLauncher") -> None:
        super().__init__(spec, launcher)
        self.pinned: dict[int, int] = {}
        self._one_at_a_time = asyncio.Lock()

    async def pin(self, version: int, handle: int) -> None:
        self._finish(version)
        self.pinned[handle] = version

    async def evaluate(self, handle: int, version: int, sets: Sequence[str]) -> list[EvalResult]:
        evaluation = self.spec.site.evaluation
        async with self._one_at_a_time:
            self.weights = self.pinned[handle]
            await asyncio.sleep(self.script.evaluate_s)
            k = evaluation.completions
            passes = [self.weights % (k + 1)] * evaluation.prompts
            return [EvalResult(name, version, k, passes) for name in sets]

    async def weights_release(self, handle: int) -> None:
        self.pinned.pop(handle, None)

    async def weights_save_pinned(self, folder: str) -> list[tuple[int, int]]:
        (Path(folder) / "pinned.json").write_text(json.dumps(self.pinned))
        return list(self.pinned.items())

    async def weights_load_pinned(self, folder: str, pinned: list[tuple[int, int]]) -> None:
        saved = json.loads((Path(folder) / "pinned.json").read_text())
        self.pinned |= {handle: saved[str(handle)] for handle, _ in pinned}


class FakeTrainer:
    """One rank, as `backend.actors.TrainerActor`; what is collective there waits for all ranks here."""

    remote: FakeRemote

    def __init__(self, launcher: "FakeLauncher", recipe: Recipe, rank: int) -> None:
        self.launcher, self.script, self.recipe, self.rank = (
            launcher,
            launcher.script,
            recipe,
            rank,
        )
        self.version = 0
        self.channels: dict[int, FakeEngine] = {}
        self._working = False

    @property
    def _timeout_s(self) -> float:
        assert isinstance(self.recipe.site, Cluster)
        return self.recipe.site.push_timeout_s

    async def _together(self) -> None:
        assert not self._working, "a rank does one thing at a time"
        self._working = True
        await self.launcher.meeting.wait()
        self._working = False

    async def address(self) -> str:
        return "here:1"

    async def start(self, address: str) -> dict[str, Any]:
        await self._together()
        return {"layout": {"layout": "of the policy"}, "kind": "fake"}

    async def endpoint(self) -> tuple[str, int]:
        port = next(self.launcher.ports)
        self.launcher.listening[port] = asyncio.get_running_loop().create_future()
        return "here", port

    async def connect(self, engine: int, name: str, at: str, port: int) -> None:
        try:
            coming = self.launcher.listening[port]
            self.channels[engine] = await asyncio.wait_for(coming, self._timeout_s)
        except TimeoutError:
            raise PushFailed(f"connect: {name} did not come for {self._timeout_s:g} s") from None

    async def push(self, version: int, engines: Collection[int]) -> dict[int, str | None]:
        await self._together()
        assert version == self.version
        said = await asyncio.gather(*(self._send(self.channels[e], version) for e in engines))
        return dict(zip(engines, said, strict=True))

    async def _send(self, engine: FakeEngine, version: int) -> str | None:
        assert engine.receiving == version
        await asyncio.sleep(self.script.send_s)
        if asyncio.get_running_loop().time() > engine.received_at + self._timeout_s:
            return f"send version {version}: {engine.spec.name}: it waited for too long"
        try:
            await asyncio.wait_for(engine.remote.meet("send"), self._timeout_s)
        except (Gone, TimeoutError, PushFailed):
            return f"send version {version}: {engine.spec.name} did not acknowledge it"
        engine.arrived = version
        return None

    async def update(self, rows: TrainBatch, version: int) -> dict[str, Metric]:
        await self._together()
        assert version == self.version
        await asyncio.sleep(self.script.update_s)
        self.version += 1
        ratio_N = np.array([x for row in self._ratios(rows, version) for x in row])
        entropy = Mean(0.5 * len(ratio_N), len(ratio_N))
        return {
            "loss": Sum(0.1),
            "entropy": entropy,
            "grad_norm": Max(1.0),
            **ratio_stats(ratio_N),
        }

    async def log_ratios(self, rows: TrainBatch) -> list[list[float]]:
        await self._together()
        return self._ratios(rows, self.version)

    @staticmethod
    def _ratios(rows: TrainBatch, weights: int) -> list[list[float]]:
        return [
            [logp(t, weights) - b for t, b, m in zip(token, behavior, mask, strict=True) if m]
            for token, behavior, mask in zip(
                rows.token_BT.tolist(),
                rows.behavior_logp_BT.tolist(),
                rows.mask_BT.tolist(),
                strict=True,
            )
        ]

    async def head(self, seed: int, rows: int) -> list[list[float]]:
        await self._together()
        return head(seed, rows, self.version).tolist()

    async def save(self, folder: Path) -> None:
        assert folder.is_absolute()  # the real ones are in another directory
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{self.rank}.json").write_text(json.dumps(self.version))

    async def load(self, folder: Path) -> None:
        await self._together()
        self.version = json.loads((folder / f"rank-{self.rank}.json").read_text())


@dataclass
class FakeLauncher:
    """`backend.remote.Launcher`; remembers every actor it ever made, by name."""

    script: Script = field(default_factory=Script)
    made: dict[str, list[FakeRemote]] = field(default_factory=dict)
    opened: bool = False
    closed: bool = False

    def __post_init__(self) -> None:
        self.ports = itertools.count(2000)
        self.listening: dict[int, asyncio.Future[FakeEngine]] = {}
        self._counts: Counter[Any] = Counter()

    def open(self) -> None:
        self.opened = True

    def generator(self, slot: int, spec: EngineSpec) -> FakeRemote:
        return self._make(spec.name, FakeGenerator(spec, self))

    def evaluator(self, spec: EngineSpec, task: Task) -> FakeRemote:
        return self._make(spec.name, FakeEvaluator(spec, self))

    def trainer(self, rank: int, *args: Any) -> FakeRemote:
        recipe, _, own_rank, ranks, _ = args
        assert rank == own_rank
        if rank == 0:
            self.meeting = asyncio.Barrier(ranks)
        return self._make(f"trainer rank {rank}", FakeTrainer(self, recipe, rank))

    def _make(self, name: str, actor: Any) -> FakeRemote:
        remote = FakeRemote(name, actor, self.script, self._counts)
        actor.remote = remote
        self.made.setdefault(name, []).append(remote)
        return remote

    def close(self) -> None:
        self.closed = True
        for remote in itertools.chain(*self.made.values()):
            remote.kill()
