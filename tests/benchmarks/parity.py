"""`make parity`: one recipe in both worlds. The same batch gives the same gradient; three seeds climb the same curve.

Both worlds compute in float32 from the shipped policy. The sandbox's virtual trainers are slowed until they are what
the run waits for, as the real ones are on two cores: then both train on tokens of the same age.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from scalerl.events import evaluations, read_events

SEEDS = (0, 1, 2)
PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
SCALERL = Path(sys.executable).parent / "scalerl"
TIGHT = 1e-5
COMMON = (
    "site.updates=32",
    "site.thinking_tokens=36",
    "site.answer_tokens=4",
    "site.optimizer.learning_rate=4e-4",
    "site.optimizer.warmup_updates=4",
    "site.optimizer.beta2=0.95",
    "site.evaluation.every_updates=4",
    "site.evaluation.prompts=256",
    "site.evaluation.completions=8",
    "site.evaluation.ood_every_updates=0",
)
WORLDS = {
    "sandbox": ("site.device=cpu", "site.hardware.train_efficiency=0.002"),
    "cpu-cluster": ("site.dtype=float32", "site.sequences_per_generator=128"),
}


def gradients() -> dict[str, float]:
    """Largest difference of any parameter's gradient, over the largest gradient: sandbox against FSDP2."""
    from two_ranks import FOLDER, recipe, rollouts

    from backend.trainer import Trainer
    from backend.wire import free_port
    from sandbox.model import load_policy
    from scalerl.update import LossPair, policy_update, prepare

    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for seed in SEEDS:
        spec = recipe()
        train = prepare(rollouts(seed, groups=12, size=8), spec)
        policy = load_policy(FOLDER)
        still = torch.optim.SGD(policy.parameters(), lr=0.0)
        policy_update(policy, still, train, spec, LossPair.of(spec.loss))
        ours = {name: p.grad for name, p in policy.named_parameters()}
        trainer = Trainer(spec, FOLDER, rank=0, world_size=1, allow_code=False)
        trainer.start(f"127.0.0.1:{free_port()}")
        trainer.update(train, 0)
        theirs = {
            name: p.grad.full_tensor()  # type: ignore[union-attr]
            for name, p in trainer.policy.model.named_parameters()
        }
        trainer.close()
        largest = max(float(g.abs().max()) for g in ours.values() if g is not None)
        apart = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)  # type: ignore[operator]
        found[f"seed {seed}"] = apart / largest
    return found


def curves(world: str, seed: int, folder: Path) -> tuple[list[float], str, float]:
    """Pass rates of the evaluations of one run, its algorithm, and the mean lag of its trained tokens."""
    out = folder / f"{world}-{seed}"
    settings = (*COMMON, *WORLDS[world], f"seed={seed}")
    subprocess.run(
        [str(SCALERL), "run", "scalerl", *settings, "--on", world, "--out", str(out)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    events = read_events(out / "events.jsonl")
    lags = [event["lag_tokens"] for event in events if event["kind"] == "update"]
    tokens = sum(map(sum, lags))
    lag = sum(i * n for each in lags for i, n in enumerate(each)) / tokens
    rates = [event["pass_rate"] for event in evaluations(events)]
    [head] = [event for event in events if event["kind"] == "run"]
    return rates, head["algorithm_id"], lag


def compare(found: dict[str, list[list[float]]]) -> tuple[float, float]:
    """Difference of the two worlds' mean pass rates over all evaluations after the first, and its standard error.

    Each seed's mean counts once, so the error has the seeds' variance in it as well as that of sampling.
    """
    levels = {world: [mean(rates[1:]) for rates in runs] for world, runs in found.items()}
    one, other = levels.values()
    se = math.sqrt(stdev(one) ** 2 / len(one) + stdev(other) ** 2 / len(other))
    return mean(other) - mean(one), se


def report(apart: dict[str, float], runs: dict[str, list[Any]]) -> tuple[str, bool]:
    """The page, and whether all of it holds."""
    rates = {world: [run[0] for run in of_world] for world, of_world in runs.items()}
    difference, se = compare(rates)
    ids = {run[1] for of_world in runs.values() for run in of_world}
    holds = max(apart.values()) <= TIGHT and abs(difference) <= 2 * se and len(ids) == 1
    every = 4
    lines = [
        "# One recipe, two worlds",
        "",
        "Made by `make parity`. The same checkpoint and recipe, in float32, in the sandbox and on `cpu-cluster`"
        " (vLLM, FSDP2 on two ranks, Ray).",
        "",
        f"**Gradient** of one saved batch, sandbox against FSDP2: largest difference over largest gradient "
        f"{', '.join(f'{value:.1e}' for value in apart.values())} (three batches; at most {TIGHT:.0e}).",
        "",
        f"**Algorithm**: {' and '.join(sorted(ids))} in all runs.",
        "",
        f"**Curves**: the mean pass rate after the first evaluation differs by {difference:+.4f}, standard error over"
        f" three seeds each {se:.4f}: {abs(difference) / se:.1f} of them (at most 2).",
        "",
        "| world | seed | " + " | ".join(f"v{every * i}" for i in range(len(rates["sandbox"][0]))) + " | mean lag |",
        "|---|---|" + "---|" * (len(rates["sandbox"][0]) + 1),
    ]  # fmt: skip
    for world, of_world in runs.items():
        for seed, (of_run, _, lag) in zip(SEEDS, of_world, strict=True):
            cells = " | ".join(f"{rate:.3f}" for rate in of_run)
            lines.append(f"| {world} | {seed} | {cells} | {lag:.1f} |")
    return "\n".join(lines) + "\n", holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    write = parser.parse_args().write
    apart = gradients()
    print(json.dumps(apart), flush=True)
    runs: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        for world in WORLDS:
            for seed in SEEDS:
                runs.setdefault(world, []).append(curves(world, seed, Path(name)))
                print(world, seed, runs[world][-1], flush=True)
    page, holds = report(apart, runs)
    print(page)
    if write:
        PAGE.write_text(page, encoding="utf-8")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
