"""The evaluator's actor tells every set whole and by the parts of a mixture, as the tiny world does."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_cluster import cluster_recipe

from backend.actors import EvaluatorActor
from sandbox.tasks.digit_sum import DigitSum
from scalerl.rollout import Completion
from scalerl.task import Prompt
from scalerl.world import EvalResult


class TwoSources(DigitSum):
    def prompts(self, split: str) -> Sequence[Prompt]:
        return [replace(prompt, source="ab"[prompt.id % 2]) for prompt in super().prompts(split)]


class Solver:
    """In the engine's place: solves the prompts of even places, and gives no answer to the others."""

    def __init__(self, task: DigitSum) -> None:
        recipe = cluster_recipe("site.evaluation.prompts=4", "site.evaluation.completions=3")
        self.spec = SimpleNamespace(recipe=recipe, site=recipe.site)
        self.solutions = {p.token_ids: task.solve(p) for p in task.prompts("ood")[::2]}

    async def load_pinned(self, handle: int, version: int) -> None:
        assert (handle, version) == (5, 9)

    async def completions(
        self, prompt: Sequence[int], limits: Sequence[int | None]
    ) -> list[Completion]:
        tokens = self.solutions.get(tuple(prompt), [])
        n = len(tokens)
        return [Completion(tokens, [0.0] * n, [9] * n, [True] * n) for _ in limits]


def test_an_actor_counts_a_set_and_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TwoSources()
    actor = EvaluatorActor.__new__(EvaluatorActor)  # without an engine
    actor.task, actor._one_at_a_time = task, asyncio.Lock()
    monkeypatch.setattr(actor, "engine", Solver(task), raising=False)
    monkeypatch.setattr(actor, "_named", nullcontext)
    assert asyncio.run(actor.evaluate(5, 9, ["ood"])) == [
        EvalResult("ood", 9, 3, [3, 0, 3, 0]),
        EvalResult("ood/a", 9, 3, [3, 3]),
        EvalResult("ood/b", 9, 3, [0, 0]),
    ]
