"""What runs in each Ray actor: a vLLM engine that generates or evaluates, or one trainer rank.

Plain classes: Ray wraps them in `backend.launch`, tests call them as they are.
"""

import asyncio
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from backend.engine import Engine, EngineSpec
from backend.wire import free_port
from scalerl.batch import TrainBatch
from scalerl.errors import GeneratorLost
from scalerl.length import draw_limits
from scalerl.metrics import Metric
from scalerl.recipe import Recipe
from scalerl.rollout import Completion
from scalerl.task import Prompt, Task
from scalerl.world import EvalResult, Handle, results_of


class Actor:
    """A process of its own, where Ray puts it."""

    def keep_to(self, half: int) -> None:
        """Keep this process, and what it starts, to the lower (0) or upper (1) half of its cores.

        Beside trainers on the same cores an engine finds its caches emptied at every turn: a decode step of the same
        requests then takes a fifth more of CPU time.
        """
        if not hasattr(os, "sched_setaffinity"):  # only Linux binds to cores
            return
        cores = sorted(os.sched_getaffinity(0))
        middle = len(cores) // 2
        for thread in os.listdir("/proc/self/task") if middle else []:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), cores[middle:] if half else cores[:middle])


class EngineActor(Actor):
    """An engine and its channel to the trainers."""

    def __init__(self, spec: EngineSpec) -> None:
        self.engine = Engine(spec)

    async def start(self) -> None:
        await self.engine.start()

    async def version(self) -> int:
        """Of the weights in use; an engine that answers this takes steps."""
        with self._named():
            await self.engine.call("weights_alive")
        return self.engine.version

    async def connect(self, layout: dict[str, Any], kind: str, host: str, port: int) -> None:
        # twice the sender's: while the sender waits for another engine to give up, this one waits for its bucket
        timeout_s = 2 * self.engine.spec.site.push_timeout_s
        with self._named():
            await self.engine.call("weights_connect", layout, kind, host, port, timeout_s)

    async def receive(self, version: int) -> None:
        """Begin to receive weights, beside whatever the engine does."""
        with self._named():
            await self.engine.call("weights_receive", version)

    async def apply(self, version: int) -> None:
        with self._named():
            await self.engine.apply(version)

    async def head(self, seed: int, rows: int) -> list[list[float]]:
        with self._named():
            return await self.engine.call("weights_head", seed, rows)

    async def stats(self) -> dict[str, Any]:
        """Tokens sampled, pauses of generation, one a push, and the CPU-seconds of this process and its engine."""
        import psutil

        own = psutil.Process()
        times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
        return {
            "tokens": self.engine.tokens,
            "pauses_s": self.engine.pauses_s,
            "cpu_s": sum(spent.user + spent.system for spent in times),
        }

    async def call(self, method: str, *args: Any) -> Any:
        with self._named():
            return await self.engine.call(method, *args)

    async def close(self) -> None:
        self.engine.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An engine that is dead is a generator lost, whatever vLLM calls it."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            raise GeneratorLost(f"the engine of {self.engine.spec.name} died") from error


class GeneratorActor(EngineActor):
    """An engine that generates."""

    async def generate(
        self, prompt: Sequence[int], limits: Sequence[int | None]
    ) -> list[Completion]:
        """One completion for each limit of thinking tokens."""
        with self._named():
            return await self.engine.completions(prompt, limits)

    async def probe(self, prompt: Sequence[int], count: int, most: int) -> list[Completion]:
        """Plain continuations that start now, each of one version unless a push comes in between."""
        with self._named():
            sampled = await self.engine.samples(prompt, count, most)
        return [
            Completion(s.token_ids, s.logp, s.version, [True] * len(s.token_ids)) for s in sampled
        ]


class EvaluatorActor(EngineActor):
    """An engine that evaluates pinned weights, one set of them after the other; a push is a copy in host memory."""

    def __init__(self, spec: EngineSpec, task: Task) -> None:
        super().__init__(spec)
        self.task = task
        self._one_at_a_time = asyncio.Lock()

    async def pin(self, version: int, handle: int) -> None:
        """Keep the weights that have been received; an evaluation under way goes on undisturbed."""
        await self.call("weights_pin", version, handle)

    async def evaluate(self, handle: int, version: int, sets: Sequence[str]) -> list[EvalResult]:
        """The results of each set, by pinned weights, which are kept until all is counted."""
        recipe = self.engine.spec.recipe
        async with self._one_at_a_time:
            with self._named():
                await self.engine.load_pinned(handle, version)
                pinned = Handle(handle, version)
                found = [
                    await self._results(pinned, name, pinned.seed(recipe.seed, place))
                    for place, name in enumerate(sets)
                    if name in self.task.splits  # of another the world has said so
                ]
        return [result for results in found for result in results]

    async def _results(self, pinned: Handle, name: str, seed: int) -> list[EvalResult]:
        spec = self.engine.spec
        site, length = spec.site, spec.recipe.length
        rows = range(site.evaluation.completions)

        async def of(number: int, prompt: Prompt) -> int:
            limits = draw_limits(length, site.thinking_tokens, seed, number, rows)
            completions = await self.engine.completions(prompt.token_ids, limits)
            return sum(self.task.verify(prompt, completion.token_ids) for completion in completions)

        prompts = list(self.task.prompts(name))[: site.evaluation.prompts]
        passes = await asyncio.gather(
            *(of(number, prompt) for number, prompt in enumerate(prompts))
        )
        return results_of(name, pinned.version, len(rows), prompts, passes)


class TrainerActor(Actor):
    """One trainer rank, and the channels to the engines that it feeds."""

    def __init__(
        self, recipe: Recipe, folder: Path, rank: int, world_size: int, allow_code: bool
    ) -> None:
        from backend.trainer import Trainer

        self.trainer = Trainer(
            recipe, folder, rank=rank, world_size=world_size, allow_code=allow_code
        )

    def address(self) -> str:
        """Where rank 0 awaits the others."""
        return f"{host()}:{free_port()}"

    def start(self, address: str) -> dict[str, Any]:
        """Join the other ranks and load the policy; returns the layout of what will be pushed."""
        from backend.sender import Sender

        self.trainer.start(address)
        self.layout = self.trainer.layout()
        device = self.trainer.device
        kind = "nccl" if device.type == "cuda" else "gloo"
        self.sender = Sender(
            self.layout, kind=kind, timeout_s=self.trainer.site.push_timeout_s, device=device
        )
        return {"layout": self.layout.to_json(), "kind": kind}

    def endpoint(self) -> tuple[str, int]:
        """Host and port for the next channel."""
        return host(), free_port()

    def connect(self, engine: int, name: str, at: str, port: int) -> None:
        self.sender.connect(engine, name, at, port)

    def push(self, version: int, engines: Collection[int]) -> dict[int, str | None]:
        """Gather the weights together with the other ranks, and send them to those of this rank's engines."""
        return self.sender.push(version, self.trainer.gather_buckets(self.layout), engines)

    def update(self, rows: TrainBatch, version: int) -> dict[str, Metric]:
        return self.trainer.update(rows, version)

    def log_ratios(self, rows: TrainBatch) -> list[list[float]]:
        """log pi(trainer) - log pi(generator) of the trained tokens of each row."""
        return self.trainer.log_ratios(rows)

    def head(self, seed: int, rows: int) -> list[list[float]]:
        """All ranks take part; the first one has the answer."""
        logits_NV = self.trainer.head_probe(seed, rows)
        return logits_NV if self.trainer.rank == 0 else []

    def save(self, folder: Path) -> None:
        self.trainer.save(folder)

    def load(self, folder: Path) -> None:
        self.trainer.load(folder)

    def close(self) -> None:
        self.sender.close()
        self.trainer.close()


def host() -> str:
    """This machine's address, as the others of the cluster reach it."""
    try:
        import ray

        if ray.is_initialized():
            return ray.util.get_node_ip_address()
    except ImportError:
        pass
    return socket.gethostbyname(socket.gethostname())
