"""Recipes for tests: from a shipped file and overrides, on a small site."""

from pathlib import Path
from typing import Any

import pytest

import scalerl
from scalerl.errors import InputError
from scalerl.recipe import (
    Recipe,
)
from scalerl.settings import (
    COMMAND_LINE,
    Layers,
    find,
    override_tables,
    read_layers,
)

RECIPES = Path(scalerl.__file__).parent / "recipes"
SITE: dict[str, Any] = {
    "kind": "sandbox",
    "updates": 3,
    "thinking_tokens": 8,
    "answer_tokens": 2,
    "optimizer": {"learning_rate": 1e-3},
    "evaluation": {"every_updates": 1},
}


def layered(name: str, *overrides: str, site: bool = False) -> Layers:
    layers = read_layers(find(name, RECIPES, "recipe"), RECIPES, "recipe")
    if site:
        layers.add({"site": SITE}, "small.toml")
    for table in override_tables(overrides):
        layers.add(table, COMMAND_LINE)
    return layers


def load(name: str, *overrides: str, site: bool = False) -> Recipe:
    return layered(name, *overrides, site=site).build(Recipe)


def refusal(*overrides: str, name: str = "scalerl") -> str:
    with pytest.raises(InputError) as error:
        load(name, *overrides, site=True)
    return str(error.value)
