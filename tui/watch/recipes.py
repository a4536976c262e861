"""A recipe in a few words: in what it differs from ScaleRL as the scenario `tiny` runs it."""

from functools import lru_cache
from typing import Any

from scalerl.curves.curve import NO_SETTING, flat
from scalerl.events import Event
from tui.words import printable

STANDARD = "ScaleRL"
# What tells how long and how closely a run is looked at, not what it does.
NO_EFFECT = (
    "site.updates",
    "site.evaluation.",
    "site.checkpoint_every",
    "site.keep_checkpoints",
    "site.stall_s",
    "site.supervision.",
    "site.micro_batch",
    "site.device",
)
MOST = 3  # differences that are told one by one


def recipe_told(head: Event) -> str:
    """Of a log's `run` event: "ScaleRL", or "ppo_off_policy, thinking_tokens=24"; "" without a recipe."""
    recipe = flat(head.get("recipe"))
    if not recipe:
        return ""
    site = flat(head.get("site"), "site.")
    standard = _standard()
    if site.get("site.kind") == standard["site.kind"]:
        recipe |= site  # other kinds of site differ in everything
    kinds = {
        key.removesuffix(".kind") for key in _changed(recipe, standard) if key.endswith(".kind")
    }
    told = [
        str(recipe[key]) if key.endswith(".kind") else f"{key.removeprefix('site.')}={recipe[key]}"
        for key in _changed(recipe, standard)
        # what belongs to another kind differs with it
        if key.endswith(".kind") or key.partition(".")[0] not in kinds
    ]
    if len(told) > MOST:
        told = [*told[:MOST], f"{len(told) - MOST} more"]
    return printable(", ".join(told)) or STANDARD


def _changed(recipe: dict[str, Any], standard: dict[str, Any]) -> list[str]:
    return [
        key
        for key in recipe
        if key not in NO_SETTING
        and not key.startswith(NO_EFFECT)
        and recipe[key] != standard.get(key)
    ]


@lru_cache
def _standard() -> dict[str, Any]:
    from scenarios.scenario import plan

    (only,) = plan("tiny")
    return flat(only.recipe.model_dump(mode="json"))
