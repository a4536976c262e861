"""Evaluation of pinned weights, on virtual GPUs of its own and outside C."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from sandbox.decoder import Decoder, sample_all
from sandbox.model import Policy
from sandbox.rows import Sampling
from scalerl.clock import VirtualClock
from scalerl.compute import Phase
from scalerl.recipe import Recipe
from scalerl.rollout import Completion
from scalerl.site import Sandbox
from scalerl.task import Prompt, Task, check_validation
from scalerl.world import EvalResult, Handle, results_of

MOST_ROWS = 1024  # that are sampled at a time: beyond it caches leave the processor's


class Evaluator:
    """Pinned weights, evaluated one after the other on GPUs of their own; nothing else waits for it."""

    def __init__(self, recipe: Recipe, task: Task, policy: Policy, sampling: Sampling) -> None:
        assert isinstance(recipe.site, Sandbox)
        self.seed, self.site = recipe.seed, recipe.site
        self.task = task
        self.clock = VirtualClock()
        check_validation(task, self.site.evaluation.prompts)
        asked = [name for name in self.site.evaluation.cadence if name in task.splits]
        held_out = [prompt for name in asked for prompt in self._prompts(name)]
        rows = min(len(held_out), MOST_ROWS // self.site.evaluation.completions + 1)
        self.decoder = Decoder(
            policy,
            task,
            sampling,
            rows * self.site.evaluation.completions,
            max(len(prompt.token_ids) for prompt in held_out),
        )
        self.pinned: dict[int, dict[str, torch.Tensor]] = {}
        # under way: when it ends, and with what
        self.due: dict[int, tuple[float, list[EvalResult]]] = {}
        self.free_at = 0.0
        self.next_id = 0
        self._phases: list[Phase] = []

    def pin(self, policy: Policy, version: int) -> Handle:
        handle = Handle(self.next_id, version)
        self.next_id += 1
        self.pinned[handle.id] = {
            name: tensor.clone() for name, tensor in policy.state_dict().items()
        }
        return handle

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        if handle.id not in self.due:
            results, seconds = self._sample(handle, sets)
            start = max(self.clock.now(), self.free_at)
            self.free_at = start + seconds
            self.due[handle.id] = (self.free_at, results)
            self._phases.append(
                Phase("evaluator", 0, "evaluate", start, self.free_at, self.site.evaluators)
            )
        await self.clock.sleep_until(self.due[handle.id][0])
        return self.due.pop(handle.id)[1]

    def _sample(self, handle: Handle, sets: Sequence[str]) -> tuple[list[EvalResult], float]:
        """Results, and the virtual seconds they cost."""
        self.decoder.set_weights(self.pinned.pop(handle.id), handle.version)
        k, seconds = self.site.evaluation.completions, 0.0
        results: list[EvalResult] = []
        for place, name in enumerate(sets):
            if name not in self.task.splits:
                continue  # the world has said so
            prompts = self._prompts(name)
            completions = sample_all(self.decoder, prompts, k, handle.seed(self.seed, place))
            passes = [
                sum(self.task.verify(p, c.token_ids) for c in group)
                for p, group in zip(prompts, completions, strict=True)
            ]
            results += results_of(name, handle.version, k, prompts, passes)
            seconds += self._cost_s(prompts, completions)
        return results, seconds

    def _prompts(self, split: str) -> Sequence[Prompt]:
        """The first so many of the fixed held-out set."""
        return self.task.prompts(split)[: self.site.evaluation.prompts]

    def _cost_s(self, prompts: Sequence[Prompt], completions: list[list[Completion]]) -> float:
        """Prefill, and a decode step for every length that some completion reaches, on all evaluators together."""
        hardware, gpus = self.site.hardware, self.site.evaluators
        seconds = hardware.prefill_s(sum(len(prompt.token_ids) for prompt in prompts) / gpus)
        rows = [
            (len(p.token_ids), c.length_tokens)
            for p, group in zip(prompts, completions, strict=True)
            for c in group
        ]
        for step in range(max(length for _, length in rows)):
            context = sum(prompt + step for prompt, length in rows if length > step)
            running = sum(length > step for _, length in rows)
            seconds += hardware.decode_s(running / gpus, context / gpus)
        return seconds

    def take_phases(self) -> list[Phase]:
        """Phases that have ended by now."""
        now = self.clock.now()
        ended = [phase for phase in self._phases if phase.end <= now]
        self._phases = [phase for phase in self._phases if phase.end > now]
        return ended

    def save(self, folder: Path) -> dict[str, Any]:
        tensors = {
            f"{id}/{name}": tensor
            for id, weights in self.pinned.items()
            for name, tensor in weights.items()
        }
        save_file(tensors, folder / "pinned.safetensors")
        due = [
            [id, when, [asdict(result) for result in results]]
            for id, (when, results) in self.due.items()
        ]
        phases = [asdict(phase) for phase in self._phases]
        return {"due": due, "free_at": self.free_at, "next_id": self.next_id, "phases": phases}

    def restore(self, folder: Path, data: dict[str, Any]) -> None:
        for key, tensor in load_file(folder / "pinned.safetensors").items():
            id, name = key.split("/", 1)
            self.pinned.setdefault(int(id), {})[name] = tensor
        self.due = {
            id: (when, [EvalResult(**result) for result in results])
            for id, when, results in data["due"]
        }
        self.free_at, self.next_id = data["free_at"], data["next_id"]
        self._phases = [Phase(**phase) for phase in data["phases"]]
