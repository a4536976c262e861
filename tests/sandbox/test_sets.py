"""The tiny world evaluates every set of a task, and of a mixture each part, at the cost of the whole alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import of_kind, quiet_recipe, small_plan, timeline

from sandbox.model import load_policy
from sandbox.tasks.digit_sum import DigitSum
from sandbox.world import SandboxWorld, start_policy
from scalerl.clock import run_virtual
from scalerl.recipe import Recipe
from scalerl.task import Prompt
from scenarios.runs import run

SETS = ("site.evaluation.benchmark_every_updates=4",)


class TwoSources(DigitSum):
    """Digit sums as if two tasks asked them in turn, the second one oftener."""

    def prompts(self, split: str) -> Sequence[Prompt]:
        return [
            replace(prompt, source="few" if prompt.id % 4 == 0 else "many")
            for prompt in super().prompts(split)
        ]


def evaluated(wanted: Recipe, monkeypatch: pytest.MonkeyPatch, task: DigitSum):
    """(results, virtual seconds) of one evaluation of validation and ood."""
    monkeypatch.setattr("sandbox.world.task_of", lambda *_, **__: task)
    world = SandboxWorld(wanted)
    handle = world.evaluator.pin(load_policy(start_policy("digit_sum")), 3)
    results = run_virtual(world.evaluator.evaluate(handle, ["validation", "ood"]))
    return results, world.evaluator.free_at


def test_a_mixture_is_evaluated_once_and_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = quiet_recipe("site.evaluation.prompts=16")
    plain, cost = evaluated(wanted, monkeypatch, DigitSum())
    mixed, same_cost = evaluated(wanted, monkeypatch, TwoSources())
    assert [each.set for each in plain] == ["validation", "ood"]
    assert [(each.set, each.n) for each in mixed] == [
        ("validation", 16),
        ("validation/few", 4),
        ("validation/many", 12),
        ("ood", 16),
        ("ood/few", 4),
        ("ood/many", 12),
    ]
    by_set = {each.set: each for each in mixed}
    for whole in plain:  # the same completions, and nobody waits longer for them
        assert by_set[whole.set] == whole and sum(whole.passes) > 0
        assert by_set[f"{whole.set}/few"].passes == whole.passes[::4]
    assert cost == same_cost > 0.0


def test_a_run_ends_with_an_evaluation_of_every_set_that_has_a_cadence(tmp_path: Path) -> None:
    """Eight updates: validation is due after 0, 3, 6, ood after 0 and 6, the benchmark after 0, 4 and 8."""
    assert run(small_plan(*SETS), tmp_path / "run").status == "done"
    seen = [(e["version"], e["set"]) for e in of_kind(timeline(tmp_path / "run"), "eval")]
    due = {"validation": [0, 3, 6, 8], "ood": [0, 6, 8], "benchmark": [0, 4, 8]}
    assert {name: sorted(v for v, of in seen if of == name) for name in due} == due
    assert len(seen) == 10
