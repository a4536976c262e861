"""The one place that opens a world, and so the only one that knows of more than one."""

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.world import World


def open_world(recipe: Recipe, *, allow_code: bool = False) -> World:
    """The world that a recipe's site asks for.

    Raises:
        InputError: no site, or code of the user's own that was not allowed.
    """
    if recipe.site is None:
        raise InputError(
            f"recipe {recipe.name!r} has no site: say where it runs, e.g. --on sandbox"
        )
    import torch

    from sandbox.world import SandboxWorld

    # reproducible, and faster at this size: run two seeds side by side instead
    torch.set_num_threads(1)
    return SandboxWorld(recipe, allow_code=allow_code)
