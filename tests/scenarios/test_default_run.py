"""The main job, as `make learn` does it: the default run from its console script, without a terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from curve_score import score

from scalerl.events import Event, read_events

SCALERL = Path(sys.executable).with_name("scalerl")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Event]]:
    root = tmp_path_factory.mktemp("default")
    done = subprocess.run(
        [SCALERL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "SCALERL_RUNS": str(root)},
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, read_events(root / "tiny/scalerl/seed-0/events.jsonl")


def test_it_ends_with_the_fitted_curve(printed: tuple[str, list[Event]]) -> None:
    text, events = printed
    for part in ("A 0.", "B ", "C_mid ", "GPU-h", "run folder: ", "┤", "●"):
        assert part in text
    assert events[-1]["kind"] == "done" and events[-1]["fit"]["A"] > 0.8


def test_the_curve_is_worth_looking_at(printed: tuple[str, list[Event]]) -> None:
    found = score(0, printed[1])
    assert found.meets_the_bars(), found
    assert abs(found.forecast_error) < abs(found.carry_error)


def test_it_is_quick(printed: tuple[str, list[Event]]) -> None:
    """Wall seconds on two cores; about half of either bar on a quiet machine."""
    found = score(0, printed[1])
    assert found.first_evaluation_s < 5
    assert found.total_s < 120


def test_thinking_grows(printed: tuple[str, list[Event]]) -> None:
    updates = [event for event in printed[1] if event["kind"] == "update"]
    first, last = (
        sum(e["length_mean_tokens"] for e in part) / 10 for part in (updates[:10], updates[-10:])
    )
    assert last > 1.4 * first
    assert all(event["truncated"] < 0.05 for event in updates)
    # Once thinking is long, the forced interruption acts on the longest of it.
    assert sum(event["interrupted"] for event in updates[-10:]) / 10 > 0.05


def test_out_of_distribution_is_evaluated_too(printed: tuple[str, list[Event]]) -> None:
    ood = [e for e in printed[1] if e["kind"] == "eval" and e["set"] == "ood"]
    assert len(ood) >= 3 and ood[-1]["pass_rate"] > ood[0]["pass_rate"] + 0.1
