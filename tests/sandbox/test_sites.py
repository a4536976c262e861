"""The sites of the tiny world: each opens, and a few updates on it learn from what its task asks."""

from pathlib import Path

import pytest
from tiny_runs import of_kind, timeline

from scalerl.events import evaluations, read_events
from scenarios.runs import run
from scenarios.scenario import plan

QUICK = (
    "site.updates=4",
    "prompts_per_update=12",
    "site.evaluation.prompts=40",
    "site.evaluation.completions=4",
    "site.evaluation.every_updates=4",
)


@pytest.mark.parametrize("site", ["sandbox", "search", "formulas", "mixture"])
def test_a_site_trains_on_its_task(site: str, tmp_path: Path) -> None:
    [only] = plan("scalerl", QUICK, site=site)
    assert run(only, tmp_path).status == "done"
    events = timeline(tmp_path)
    assert not of_kind(events, "fault") and not of_kind(events, "warning")
    assert all(not event["skipped"] for event in of_kind(events, "update"))
    first = evaluations(read_events(tmp_path / "events.jsonl"))[0]
    assert 0.05 < first["pass_rate"] < 0.5, "the start policy knows the task, and has much to learn"


def test_a_mixture_has_a_curve_for_each_task(tmp_path: Path) -> None:
    [only] = plan("scalerl", QUICK, site="mixture")
    run(only, tmp_path)
    found = {event["set"]: event for event in of_kind(timeline(tmp_path), "eval")[:3]}
    whole, one, other = (
        found[name] for name in ("validation", "validation/digit_sum", "validation/polynomial")
    )
    assert one["n"] == other["n"] == whole["n"] / 2 == 20
    assert sum(one["passes"]) + sum(other["passes"]) == sum(whole["passes"])
