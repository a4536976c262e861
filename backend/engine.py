"""One vLLM engine: completions with the version of every token, weights that arrive in mid-generation, probes."""

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from backend.completing import Budget, Marks, Sampled, complete
from scalerl.errors import GeneratorLost
from scalerl.recipe import Recipe
from scalerl.rollout import Completion
from scalerl.site import Cluster

# Several engines share a machine's cores; the tiny model gains nothing from compilation.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # with "uni" below: the worker is in the engine core's process, and no two processes spin for each other
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is made from."""

    name: str  # as errors call it: "generator 1", "the evaluator"
    recipe: Recipe
    folder: Path
    marks: Marks
    device: str  # "cpu" or "cuda"
    seed: int

    @property
    def site(self) -> Cluster:
        assert isinstance(self.recipe.site, Cluster)
        return self.recipe.site

    def arguments(self) -> dict[str, Any]:
        """Of vLLM's `AsyncEngineArgs`.

        Log-probs are of the sampling distribution; defaults that a model's files bring for sampling are not used.
        """
        recipe, site = self.recipe, self.site
        completion = site.thinking_tokens + len(self.marks.phrase) + site.answer_tokens
        arguments: dict[str, Any] = {
            "model": str(self.folder),
            "skip_tokenizer_init": True,
            "dtype": site.dtype,
            "seed": self.seed % 2**31,
            "max_model_len": site.prompt_tokens + completion,
            "max_num_seqs": site.sequences_per_generator,
            "hf_overrides": {"head_dtype": recipe.generator_head_dtype or recipe.head_dtype},
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "enable_prefix_caching": True,
            "scheduling_policy": "priority",
            "worker_extension_cls": "backend.worker.WeightsOfWorker",
            "disable_log_stats": True,
        }
        if site.kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(site.kv_cache_gib * 2**30)
        if self.device == "cpu":
            arguments |= {
                "enforce_eager": True,
                "block_size": 32,
                "distributed_executor_backend": "uni",
            }
            arguments.setdefault("kv_cache_memory_bytes", 2**30)
        return arguments


# The order in which vLLM takes what waits: a probe first, then the second part of a completion, then new ones.
PROBE, SECOND_PART, NEW = -2, -1, 0


class Engine:
    """vLLM's `AsyncLLM` and the weights it has; all methods run on one event loop."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec, self.version = spec, 0
        self.pauses_s: list[
            float
        ] = []  # from the wish to pause until generation went on, a push each
        self.tokens = 0  # sampled, of probes too
        self._ids = itertools.count()
        self._open = asyncio.Event()
        self._open.set()

    async def start(self) -> None:
        """Bring the engine up; seconds on a CPU, minutes for a large model."""
        os.environ.update(ENVIRONMENT | (CPU_ENVIRONMENT if self.spec.device == "cpu" else {}))
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self.spec.arguments()))

    # --- generation ---

    async def completions(
        self, prompt: Sequence[int], limits: Sequence[int | None]
    ) -> list[Completion]:
        """One completion for each limit of thinking tokens (None: not interrupted)."""
        site, tokens = self.spec.site, list(prompt)
        budgets = [Budget(limit, site.thinking_tokens, site.answer_tokens) for limit in limits]
        await self._open.wait()
        # both parts of a completion have one salt: a push in between leaves the keys of the first part in use
        salt = self.version
        new = len(tokens)

        async def sample(prompt: list[int], most: int) -> Sampled:
            priority = NEW if len(prompt) == new else SECOND_PART
            return await self._sample(prompt, most, salt, priority)

        return await asyncio.gather(
            *(complete(sample, tokens, self.spec.marks, budget) for budget in budgets)
        )

    async def samples(self, prompt: Sequence[int], count: int, most: int) -> list[Sampled]:
        """`count` plain continuations of at most `most` tokens: for probes."""
        await self._open.wait()
        sample = partial(self._sample, salt=self.version, priority=PROBE)
        return await asyncio.gather(*(sample(list(prompt), most) for _ in range(count)))

    async def _sample(self, prompt: list[int], most: int, salt: int, priority: int) -> Sampled:
        """One request: up to the end of sequence, or `most` tokens.

        The prefix cache is salted with the version at the completion's start: it never begins on keys of weights that
        were older then. One that waits in the engine while a push comes may read its prompt's keys of before.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        await self._open.wait()
        params = SamplingParams(
            max_tokens=most,
            temperature=self.spec.site.temperature,
            top_p=self.spec.site.top_p,
            top_k=self.spec.site.top_k,
            min_p=self.spec.site.min_p,
            logprobs=0,
            ignore_eos=True,
            stop_token_ids=[self.spec.marks.eos_id],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        request = {"prompt_token_ids": prompt, "cache_salt": f"v{salt}"}
        final = None
        name = f"{next(self._ids)}"
        async for output in self.llm.generate(request, params, name, priority=priority):
            final = output.outputs[0]
        if final is None or final.finish_reason not in ("stop", "length"):
            reason = "nothing" if final is None else final.finish_reason
            raise GeneratorLost(f"{self.spec.name} ended a request with {reason!r}")
        version = [
            int(span.version) for span in final.weight_versions for _ in range(span.start, span.end)
        ]
        logp = [
            at[token].logprob for token, at in zip(final.token_ids, final.logprobs, strict=True)
        ]
        self.tokens += len(version)
        return Sampled(list(final.token_ids), logp, version)

    # --- weights ---

    async def call(self, method: str, *args: Any) -> Any:
        """A method of the worker, between two steps."""
        return (await self.llm.collective_rpc(method, args=args))[0]

    async def apply(self, version: int) -> None:
        """Go on with the weights that have been received.

        Running requests stand still for one call into the engine, with their KV cache kept or, if the recipe says so,
        to be computed again; requests that come meanwhile wait.

        Raises:
            PushFailed: they have not arrived whole; the engine goes on with the weights, and the version, that it has.
        """
        core, clear = self.llm.engine_core, self.spec.recipe.kv_on_push == "recompute"
        self._open.clear()
        try:
            # not AsyncLLM.pause_generation: it sleeps for 20 ms afterwards
            began = time.perf_counter()
            await core.pause_scheduler_async(mode="keep", clear_cache=clear)
            try:
                await core.collective_rpc_async("weights_apply", None, (version,), {})
                await core.set_weight_version_async(str(version))
                self.version = version
            finally:
                await core.resume_scheduler_async()
                self.pauses_s.append(time.perf_counter() - began)
        finally:
            self._open.set()

    async def load_pinned(self, handle: int, version: int) -> None:
        """Load weights that were pinned; for an engine that has no requests."""
        await self.call("weights_apply_pinned", handle)
        await self.llm.engine_core.set_weight_version_async(str(version))
        self.version = version

    def close(self) -> None:
        self.llm.shutdown()
