"""`bash tests/gpu/smoke.sh`: what one NVIDIA GPU computes of this project, against the CPU and the long way round."""

import argparse
import asyncio
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import head
import torch
from measuring import REHEARSAL, Found, NotRun, Sizes, Step, apart, apart_one, take_all, timed
from torch import Tensor

from sandbox.decoder import sample_all
from sandbox.model import Policy, load_policy
from sandbox.world import SandboxWorld, start_policy
from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.clock import run_virtual
from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.events import Event, EventLog
from scalerl.loop import Loop
from scalerl.losses import LOSSES
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.site import Sandbox
from scalerl.state import LoopState
from scalerl.update import LossPair, make_optimizer, policy_update, prepare
from scenarios.scenario import plan

SKIPPED = 77
FOLDER = start_policy("digit_sum")
SEED = 0


# ---- the update ----


def update(device: str, sizes: Sizes) -> Iterator[Found]:
    """One TrainBatch on both devices, under every loss."""
    for kind in LOSSES:
        recipe = recipe_of(f"loss.kind={kind}")
        train = prepare(rollouts(sizes.prompts), recipe)
        expected, found = (gradients(train, recipe, on) for on in ("cpu", device))
        yield Found(f"gradient under {kind}, from the CPU's", apart(found, expected), 1e-4)


def recipe_of(*overrides: str, site: str | None = None) -> Recipe:
    [only] = plan("tiny", overrides, site=site)
    return only.recipe


@cache
def rollouts(prompts: int) -> RolloutBatch:
    """Completions that the shipped policy samples on the CPU, many of them interrupted, as if an older one had.

    log rho is one of five values, none near a clip of the token ratio: no rounding decides who is clipped.
    """
    world = SandboxWorld(recipe_of("site.device=cpu", "site.thinking_tokens=24"))
    chosen = world.train[:prompts]
    sampled = sample_all(world.pool.decoder, chosen, 16, SEED)
    groups = [
        Group(i, prompt.id, list(prompt.token_ids), completions)
        for i, (prompt, completions) in enumerate(zip(chosen, sampled, strict=True))
    ]
    batch = RolloutBatch.from_groups([asyncio.run(world.score(group)) for group in groups])
    draw = torch.Generator().manual_seed(SEED)
    place_BT = torch.randint(5, batch.mask_BT.shape, generator=draw)
    log_rho_BT = torch.tensor([-0.5, 0.0, 0.5, 1.0, 2.0])[place_BT]
    older_BT = batch.behavior_logp_BT - log_rho_BT
    kept_BT = ~batch.mask_BT | (older_BT > 0)  # no log-prob is above 0
    return replace(batch, behavior_logp_BT=torch.where(kept_BT, batch.behavior_logp_BT, older_BT))


def gradients(train: TrainBatch, recipe: Recipe, device: str) -> dict[str, Tensor]:
    """Of every parameter of the shipped policy, brought to the CPU."""
    policy = load_policy(FOLDER, device)
    still = torch.optim.SGD(policy.parameters(), lr=0.0)
    policy_update(policy, still, train.to(device), recipe, LossPair.of(recipe.loss))
    return {n: p.grad.cpu() for n, p in policy.named_parameters() if p.grad is not None}


# ---- the sandbox ----


def sandbox(device: str, sizes: Sizes) -> Iterator[Found]:
    """A short run on either device: it ends, and starts from the same pass rate."""
    runs = {on: short_run(on, sizes) for on in dict.fromkeys(("cpu", device))}
    for on, events in runs.items():
        updates = [e for e in events if e["kind"] == "update" and not e["skipped"]]
        yield Found(
            f"updates of a run on {on} that were not trained", sizes.updates - len(updates), 0
        )
    cpu, here = (next(e for e in runs[on] if e["kind"] == "eval") for on in ("cpu", device))
    rates = f"{here['pass_rate']:.3f} for the CPU's {cpu['pass_rate']:.3f}"
    yield Found(
        f"start policy passes {rates}, in standard errors of the difference",
        abs(here["pass_rate"] - cpu["pass_rate"]) / math.hypot(here["se"], cpu["se"]),
        4,
    )
    speeds = {on: tokens_per_s(on, sizes.decoded) for on in runs}
    rows = 16 * sizes.decoded
    told = ", ".join(f"{speed:.0f} on {on}" for on, speed in speeds.items())
    yield Found(f"tokens/s of {rows} rows: {told}; times the CPU's", speeds[device] / speeds["cpu"])


def short_run(device: str, sizes: Sizes) -> list[Event]:
    """Events of scenario tiny, for a few updates of 128 completions.

    Raises:
        AssertionError: the run did not end as done.
    """
    recipe = recipe_of(
        f"site.device={device}",
        f"site.updates={sizes.updates}",
        "site.generators=16",
        "site.slots_per_generator=16",
        "prompts_per_update=16",
        "group_size=8",
        f"site.evaluation.prompts={2 * sizes.prompts}",
        "site.evaluation.every_updates=1000",
        "site.evaluation.ood_every_updates=0",
    )
    world, events = SandboxWorld(recipe), []
    state = LoopState(curriculum_of(recipe, len(world.train)), Ledger(world.gpus))
    status = run_virtual(Loop(recipe, world, state, EventLog(listen=events.append)).run())
    assert status == "done", f"the run on {device} ended as {status}"
    return events


def tokens_per_s(device: str, prompts: int) -> float:
    """Decoding of 16 completions of each of so many prompts at once."""
    world = SandboxWorld(recipe_of(f"site.device={device}"))
    tokens = 0

    def decode() -> None:
        nonlocal tokens
        done = sample_all(world.pool.decoder, world.train[:prompts], 16, SEED)
        tokens = sum(c.length_tokens for group in done for c in group)

    seconds = timed(device, decode)
    return tokens / seconds


def parity(device: str, sizes: Sizes) -> Iterator[Found]:
    """The same RolloutBatch, prepared and trained on once on either device."""
    (train, metrics, moved), (train_here, metrics_here, moved_here) = (
        one_step(rollouts(sizes.prompts), on) for on in ("cpu", device)
    )
    for name in ("adv_B", "weight_BT"):
        theirs, ours = getattr(train_here, name).cpu(), getattr(train, name)
        yield Found(f"{name}, of the largest", apart_one(theirs, ours), 1e-6)
    for name, value in metrics.items():
        yield Found(f"{name} {value:.3g}, from the CPU's", abs(metrics_here[name] - value), 1e-4)
    yield Found(
        "what AdamW moved, of its length", ((moved_here - moved).norm() / moved.norm()).item(), 0.02
    )


def one_step(batch: RolloutBatch, device: str) -> tuple[TrainBatch, dict[str, float], Tensor]:
    """The batch as prepared, the update's metrics, and all weights' changes end to end."""
    recipe, policy = recipe_of(), load_policy(FOLDER, device)
    assert isinstance(recipe.site, Sandbox)
    before = flat(policy)
    optimizer = make_optimizer(policy.parameters(), recipe.site.optimizer)
    train = prepare(batch.to(device), recipe)
    found = policy_update(policy, optimizer, train, recipe, LossPair.of(recipe.loss))
    values = {name: float(metric.value or 0.0) for name, metric in found.items()}
    return train, values, flat(policy) - before


def flat(policy: Policy) -> Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in policy.parameters()])


# ---- the backend's trainer ----


def trainer(device: str, sizes: Sizes) -> Iterator[Found]:
    """One FSDP2 rank, on NCCL where there is a GPU, against the sandbox's model on the CPU."""
    if find_spec("transformers") is None:
        raise NotRun("transformers is missing")
    from backend.trainer import Trainer
    from backend.wire import free_port

    recipe = recipe_of("site.dtype=float32", f"site.device={device}", site="cpu-cluster")
    train = prepare(rollouts(sizes.prompts), recipe)
    rank = Trainer(recipe, FOLDER, rank=0, world_size=1, allow_code=False)
    rank.start(f"127.0.0.1:{free_port()}")
    rank.update(train, 0)
    found = {
        name: p.grad.full_tensor().cpu()  # type: ignore[union-attr]
        for name, p in rank.policy.model.named_parameters()
    }
    rank.close()
    yield Found("gradient, from the sandbox's", apart(found, gradients(train, recipe, "cpu")), 1e-4)


# ---- all of them ----

STEPS: dict[str, Step] = {
    "update": update,
    "logprobs": head.logprobs,
    "memory": head.memory_long,
    "precision": head.precision,
    "sandbox": sandbox,
    "parity": parity,
    "fsdp2": trainer,
}


def register(folder: Path) -> None:
    """A run writes the project's version: where only its checkout is, give it one."""
    try:
        version("scalerl-sandbox")
    except PackageNotFoundError:
        info = folder / "scalerl_sandbox-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scalerl-sandbox\nVersion: 0\n")
        sys.path.append(str(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strict", action="store_true", help=f"exit status {SKIPPED} if skipped")
    strict = parser.parse_args().strict
    device = os.environ.get("SCALERL_SMOKE_DEVICE", "cuda")
    if device not in ("cuda", "cpu"):
        parser.error(f"SCALERL_SMOKE_DEVICE = {device!r}: take cuda or cpu")
    if device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device, so nothing was checked")
        return SKIPPED if strict else 0
    where = torch.cuda.get_device_name() if device == "cuda" else "the CPU, as a rehearsal"
    print(f"torch {torch.__version__} on {where}")
    with tempfile.TemporaryDirectory() as folder:
        register(Path(folder))
        return take_all(STEPS, device, Sizes() if device == "cuda" else REHEARSAL)


if __name__ == "__main__":
    sys.exit(main())
