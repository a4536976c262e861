"""What ends and what does not end a run: processes killed with SIGKILL, and a run that is stopped and taken up."""

import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import psutil
from cluster_runs import ClusterRun

SHORT = ("site.evaluation.every_updates=100", "site.evaluation.prompts=32", "prompts_per_update=16")


def updates(run: ClusterRun) -> int:
    return len(run.of("update"))


def generators(run: ClusterRun) -> list[tuple[psutil.Process, psutil.Process]]:
    """Engine core and actor of each generator."""
    pairs = [(core, core.parent()) for core in run.processes("VLLM::EngineCore")]
    return [
        (core, actor)
        for core, actor in pairs
        if actor is not None and actor.cmdline()[0].startswith("ray::GeneratorActor")
    ]


def test_a_killed_generator_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    """Its groups are issued again; the other generator works on meanwhile; the new one joins with present weights."""
    run = ClusterRun.start(
        tmp_path / "seed-0", "site.updates=400", "site.push_timeout_s=10", *SHORT
    )
    run.wait_for("some updates", lambda run: updates(run) >= 4)
    core, actor = generators(run)[0]
    actor.send_signal(signal.SIGKILL)
    run.wait_for("the loss", lambda run: run.of("fault"))
    at = updates(run)
    core.wait(30.0)  # its engine goes with it, and gives its memory back
    run.wait_for("updates without it", lambda run: updates(run) >= at + 3)
    run.wait_for("the new one", lambda run: any("joined" in e["what"] for e in run.of("warning")))
    joined = updates(run)
    run.wait_for("updates with it", lambda run: updates(run) >= joined + 3)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 130, run.output
    faults, warnings = run.of("fault"), run.of("warning")
    lost = {event["group"] for event in faults}
    assert lost and all(event["error"] == "GeneratorLost" for event in faults)
    assert "died" in faults[0]["cause"] and "another one is started" in warnings[0]["what"]
    # nobody waited for the dead one longer than a timeout
    clocks = [event["clock"] for event in run.of("update")]
    assert max(b - a for a, b in pairwise(clocks)) < 10.0 + 15.0
    assert run.left_over() == []


def test_the_last_engine_that_dies_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    alone = ("site.updates=400", "site.generators=1", "site.generator_restarts=0")
    run = ClusterRun.start(tmp_path / "seed-0", *alone, *SHORT)
    run.wait_for("an update", lambda run: updates(run) >= 1)
    [(core, _)] = generators(run)
    core.send_signal(signal.SIGKILL)
    assert run.finish(120.0) == 1, run.output
    said = run.output.splitlines()[-1]
    assert "no generator is left" in said and "died" in said and "Traceback" not in run.output
    assert run.left_over() == []


def test_a_trainer_that_dies_ends_it_and_the_run_is_taken_up(tmp_path: Path) -> None:
    """From the last checkpoint: every prompt has its turn once on the timeline that survives."""
    folder = tmp_path / "seed-0"
    relative = Path(os.path.relpath(folder))  # as a person would write it; actors work elsewhere
    settings = ("site.updates=8", "site.checkpoint_every_updates=3", *SHORT)
    run = ClusterRun.start(relative, *settings)
    run.wait_for("a checkpoint", lambda run: updates(run) >= 5)
    trainer = run.processes("ray::TrainerActor")[1]
    trainer.send_signal(signal.SIGKILL)
    assert run.finish(120.0) == 1, run.output
    said = run.output.splitlines()[-1]
    assert "trainer rank" in said and "died" in said and "Traceback" not in run.output
    again = ClusterRun.start(relative, *settings)
    assert again.finish() == 0, again.output
    assert [event["update"] for event in again.of("update")] == list(range(1, 9))
    lines = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    [resumed] = [event for event in lines if event["kind"] == "resume"]
    assert resumed["from_seq"] > 0
    assert again.of("done") and run.left_over() == [] and again.left_over() == []
