"""vLLM's engine in this very process, under the project's `Engine`, and a trainer rank's sender that feeds it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.completing import Marks
from backend.engine import Engine, EngineSpec
from backend.sender import Sender
from backend.wire import Layout, free_port
from sandbox.model import Policy
from sandbox.world import start_policy
from scalerl.logprobs import sampled_logprobs
from scalerl.site import Cluster
from scenarios.scenario import plan

FOLDER = start_policy("digit_sum")
LONG_S = 60.0  # a timeout that no test may reach
BUCKET_BYTES = 1 << 14  # a push of the tiny policy takes several
ALIVE: list[
    Any
] = []  # vLLM's engines in a process share groups, which end with the first that is collected


def spec(*overrides: str, folder: Path = FOLDER) -> EngineSpec:
    """An engine of the tiny scenario on the CPU site, with changes as the command line takes them."""
    recipe = plan("tiny", overrides, site="cpu-cluster")[0].recipe
    assert isinstance(recipe.site, Cluster)
    phrase, close = recipe.site.interruption_phrase, recipe.site.think_close
    marks = Marks.of(folder, phrase=phrase, close=close)
    return EngineSpec("generator 0", recipe, folder, marks, "cpu", seed=0)


class OneProcess:
    """What `Engine` uses of vLLM's `AsyncLLM`: here a step is taken whenever the event loop comes round."""

    def __init__(self, spec: EngineSpec) -> None:
        from vllm import EngineArgs, LLMEngine  # pyright: ignore[reportMissingImports]

        self.llm = LLMEngine.from_engine_args(EngineArgs(**spec.arguments()))
        ALIVE.append(self.llm)
        self.steps = 0
        self.cached: dict[str, int] = {}  # tokens that a request found in the prefix cache
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._stepping: asyncio.Task[None] | None = None

    async def generate(
        self, request: Any, params: Any, request_id: str, *, priority: int
    ) -> AsyncIterator[Any]:
        self.llm.add_request(request_id, request, params, priority=priority)
        self._waiting[request_id] = asyncio.get_running_loop().create_future()
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step())
        yield await self._waiting[request_id]

    async def _step(self) -> None:
        try:
            while self._waiting:
                for output in self.llm.step():
                    self.cached[output.request_id] = output.num_cached_tokens
                    self._waiting.pop(output.request_id).set_result(output)
                self.steps += 1
                await asyncio.sleep(0)
        except Exception as error:
            for request in self._waiting.values():
                request.set_exception(error)

    async def until(self, steps: int) -> None:
        """Until so many more have been taken."""
        end = self.steps + steps
        while self.steps < end:
            await asyncio.sleep(0)

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        return self.llm.collective_rpc(method, args=args)

    # --- of the client to vLLM's core ---

    @property
    def engine_core(self) -> "OneProcess":
        return self

    async def pause_scheduler_async(self, *, mode: Any, clear_cache: bool) -> None:
        core: Any = self.llm.engine_core
        core.engine_core.pause_scheduler(mode, clear_cache)

    async def resume_scheduler_async(self) -> None:
        core: Any = self.llm.engine_core
        core.engine_core.resume_scheduler()

    async def set_weight_version_async(self, version: str) -> None:
        self.llm.set_weight_version(version)

    async def collective_rpc_async(
        self, method: str, timeout: float | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        return self.llm.collective_rpc(method, timeout, args, kwargs)


class Fed:
    """An engine, `llm` under it, and a sender in this process that pushes weights to it."""

    def __init__(self, *overrides: str, folder: Path = FOLDER) -> None:
        self.overrides, self.folder = overrides, folder
        self.engine = Engine(spec(*overrides, folder=folder))
        self.llm = OneProcess(self.engine.spec)
        self.engine.llm = self.llm  # pyright: ignore[reportAttributeAccessIssue]
        self.version = -1  # the newest that was sent
        self.sender: Sender | None = None
        self._aside = ThreadPoolExecutor(1)

    @contextmanager
    def settings(self, *overrides: str) -> Iterator[None]:
        """For a while, other settings of requests and pushes."""
        before = self.engine.spec
        self.engine.spec = spec(*self.overrides, *overrides, folder=self.folder)
        yield
        self.engine.spec = before

    def call(self, method: str, *args: Any) -> Any:
        return self.llm.llm.collective_rpc(method, args=args)[0]

    def begin(
        self, policy: Policy, before_last: Callable[[], object] = lambda: None
    ) -> Future[dict[int, str | None]]:
        """Send the next version, in a thread that calls `before_last` before the last bucket."""
        layout = self._layout(policy)
        if self.sender is None:
            self.sender = Sender(layout, kind="gloo", timeout_s=LONG_S, device="cpu")
            self.connect()
        self.version += 1
        flat = torch.zeros(layout.nbytes, dtype=torch.uint8)
        for name, view in layout.views(flat):
            view.copy_(policy.state_dict()[name])
        self.call("weights_receive", self.version)
        buckets = _buckets(layout, flat, before_last)
        return self._aside.submit(self.sender.push, self.version, buckets, [0])

    def receive(self, policy: Policy) -> int:
        """Send the next version, as far as the staging buffer; returns its number."""
        assert self.begin(policy).result(LONG_S) == {0: None}
        return self.version

    async def push(self, policy: Policy) -> int:
        """Send the next version and go on with it; returns its number."""
        await self.engine.apply(self.receive(policy))
        return self.version

    def connect(self) -> None:
        """A new channel; both ends of it wait for each other."""
        assert self.sender is not None
        port, plain = free_port(), self.sender.layout.to_json()
        hosting = self._aside.submit(self.sender.connect, 0, "generator 0", "127.0.0.1", port)
        self.call("weights_connect", plain, "gloo", "127.0.0.1", port, LONG_S)
        hosting.result(LONG_S)

    def _layout(self, policy: Policy) -> Layout:
        weights = policy.state_dict()
        return Layout(
            names=tuple(weights),
            dtypes=(self.engine.spec.site.dtype,) * len(weights),
            shapes=tuple(tuple(weight.shape) for weight in weights.values()),
            bucket_bytes=BUCKET_BYTES,
        )


def trainer_logp(
    policy: Policy,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    temperature: float = 1.0,
    head_dtype: torch.dtype = torch.float32,
) -> list[float]:
    """Log-prob of every token after the prompt, as a trainer computes it: one forward pass, the recipe's head."""
    with torch.no_grad():
        hidden_TD = policy.hidden(torch.tensor([[*prompt, *token_ids]]))[0, len(prompt) - 1 : -1]
        logp_T, _ = sampled_logprobs(
            hidden_TD,
            policy.head_VD,
            torch.tensor(token_ids),
            head_dtype=head_dtype,
            temperature=temperature,
        )
    return logp_T.tolist()


def _buckets(layout: Layout, flat: Tensor, before_last: Callable[[], object]) -> Iterator[Tensor]:
    ranges = layout.buckets()
    for number, (start, stop) in enumerate(ranges, 1):
        if number == len(ranges):
            before_last()
        yield flat[start:stop].clone()
