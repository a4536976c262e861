"""The one place that opens a world, and so the only one that knows of more than one."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from scalerl.clock import run_virtual
from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.site import Cluster
from scalerl.world import World

T = TypeVar("T")


def open_world(
    recipe: Recipe,
    *,
    folder: Path = Path(),
    allow_code: bool = False,
    overlap: bool = True,
    tell: Callable[[str], None] = lambda what: None,
) -> World:
    """The world that a recipe's site asks for.

    Args:
        overlap: let a sandbox train on another core while it decodes; the run is the same, byte for byte.
        folder: where the run is written; a cluster's workers are started there.
        tell: is told what goes on while a world starts.

    Raises:
        InputError: no site, or code of the user's own that was not allowed.
    """
    if recipe.site is None:
        raise InputError(
            f"recipe {recipe.name!r} has no site: say where it runs, e.g. --on sandbox"
        )
    import torch

    from sandbox.tasks.registry import task_of
    from sandbox.world import SandboxWorld, device_of, start_policy

    # reproducible, and faster at this size: run two seeds side by side instead
    torch.set_num_threads(1)
    if not isinstance(recipe.site, Cluster):
        return SandboxWorld(recipe, allow_code=allow_code, overlap=overlap)

    from backend.launch import RayLauncher, check_installed

    check_installed()
    from backend.world import ClusterWorld

    # a cluster's head may have no GPU itself
    device = "cuda" if recipe.site.device == "cuda" else device_of(recipe.site.device)
    launcher = RayLauncher(recipe.site, device, folder)
    if launcher.exposed:
        tell(launcher.exposed)
    return ClusterWorld(
        recipe,
        task_of(recipe.site, allow_code=allow_code),
        start_policy(recipe.site.policy).resolve(),
        launcher,
        device=device,
        allow_code=allow_code,
        tell=tell,
    )


def run_world(recipe: Recipe, main: Coroutine[Any, Any, T], start_s: float) -> T:
    """Run a coroutine on the clock of the recipe's world: the sandbox's jumps, the cluster's is the wall's.

    Raises:
        Deadlock: nothing can happen any more, on a virtual clock.
    """
    if isinstance(recipe.site, Cluster):
        return asyncio.run(main)
    return run_virtual(main, start=start_s)
