"""A run on real vLLM, FSDP2 and Ray, on CPUs: it learns, within the recipe's staleness, and leaves nothing behind.

One run serves all tests of this file, started as a person would start it, in a folder whose `backend` is a decoy.
"""

import json
import math

import pytest
from cluster_runs import ClusterRun
from driving import drive
from screen import until
from textual.pilot import Pilot

from scalerl.checkpoint import newest_checkpoint
from scalerl.events import evaluations
from scenarios.scenario import plan

UPDATES = 24


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ClusterRun:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for decoy in ("backend", "scalerl"):
        (elsewhere / decoy).mkdir()
        (elsewhere / decoy / "__init__.py").write_text("raise ImportError('the decoy')\n")
    folder = tmp_path_factory.mktemp("run") / "seed-0"
    run = ClusterRun.start(
        folder, f"site.updates={UPDATES}", "site.evaluation.every_updates=6", cwd=elsewhere
    )
    run.wait_for("the end", lambda run: run.of("done"), 600.0)
    assert run.finish() == 0, run.output
    return run


def test_the_pass_rate_rises(run: ClusterRun) -> None:
    first, *_, last = evaluations(run.events)
    rise, se = last["pass_rate"] - first["pass_rate"], math.hypot(first["se"], last["se"])
    print(f"{first['pass_rate']:.3f} to {last['pass_rate']:.3f}, standard error {se:.3f}")
    assert last["version"] == UPDATES
    assert rise >= 0.15 and rise >= 3 * se


def test_the_lag_never_passes_k(run: ClusterRun) -> None:
    updates = run.of("update")
    assert [event["update"] for event in updates] == list(range(1, UPDATES + 1))
    assert max(len(event["lag_tokens"]) for event in updates) - 1 <= 8
    assert sum(updates[-1]["lag_tokens"][1:]) > 0  # off-policy it is


def test_completions_span_versions(run: ClusterRun) -> None:
    """Pushes come in mid-generation: some completions are begun by one version and ended by another."""
    batches = [event for event in run.of("update") if event["stale_kv_kl"] is not None]
    checkpoint = newest_checkpoint(run.folder / "checkpoints")
    assert checkpoint is not None
    finished = json.loads((checkpoint / "loop.json").read_text())["state"]["finished"]
    versions = [c["version"] for row in finished for c in row["group"]["completions"]]
    spanning = sum(version[0] != version[-1] for version in versions)
    print(
        f"in {len(batches)} of {UPDATES} batches; of those that wait, {spanning} of {len(versions)}"
    )
    # few: a completion takes a fifth of a second, an update two (3 + 15 and 9 + 17 in two runs)
    assert len(batches) + spanning >= 3
    assert all(version == sorted(version) for version in versions)


def test_generator_and_trainer_agree(run: ClusterRun) -> None:
    kl = [event["mismatch_kl"] for event in run.of("update")]
    assert None not in kl and max(kl) < 1e-3
    assert not run.of("warning") and not run.of("fault")


def test_the_books_add_up(run: ClusterRun) -> None:
    [done] = run.of("done")
    for role, gpus in {"generator": 2, "trainer": 2}.items():
        assert sum(done["gpu_hours"][role].values()) == pytest.approx(gpus * done["gpu_h"] / 4)
    assert (
        done["gpu_hours"]["trainer"]["update"] > 0
        and done["gpu_hours"]["evaluator"]["evaluate"] > 0
    )


def test_it_is_the_algorithm_of_the_sandbox(run: ClusterRun) -> None:
    [sandbox] = plan("tiny")
    [head] = run.of("run")
    assert head["algorithm_id"] == sandbox.recipe.algorithm_id()


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
def test_the_screens_read_it(run: ClusterRun, size: tuple[int, int]) -> None:
    async def look(pilot: Pilot[None]) -> None:
        text = await until(pilot, lambda text: "DONE" in text and "●" in text)
        assert f"update {UPDATES}/{UPDATES}" in text and "GPU-h" in text

    drive(look, run.folder, size=size)


def test_nothing_is_left_behind(run: ClusterRun) -> None:
    assert len(run.seen) >= 8  # five actors, and an engine core for three of them
    assert run.left_over() == []
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "checkpoints", "events.jsonl", "lock", "recipe.toml",
    ]  # fmt: skip
