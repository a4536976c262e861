"""Scenarios: questions one can run. A question has arms (recipes with overrides), a site and seeds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

import scalerl
from scalerl.errors import InputError
from scalerl.paths import is_file
from scalerl.recipe import SEEDS, Recipe
from scalerl.settings import (
    COMMAND_LINE,
    Layers,
    find,
    override_tables,
    read_layers,
    read_toml,
    unknown,
)
from scalerl.spec import Spec

HERE = Path(__file__).parent
SITES = HERE / "sites"
RECIPES = Path(scalerl.__file__).parent / "recipes"
DEFAULT_SITE = "sandbox"
BATCH_KEYS = ("prompts_per_update", "group_size")
LONGEST_NAME = 60  # characters; a folder's name has 255 bytes
# names become folders: no separators, and nothing that climbs out
NAME = rf"^\w[\w.-]{{0,{LONGEST_NAME - 1}}}$"
MOST_SEEDS = 1000  # of one arm; each is a run


class Arm(Spec):
    """One recipe of a scenario."""

    recipe: str = Field(description="a named recipe or a recipe file")
    set: dict[str, Any] = Field(default={}, description="overrides, as a table of recipe keys")


class Scenario(Spec):
    """A question one can run."""

    name: str = Field(pattern=NAME)
    question: str = Field(description="what one learns from it, in one sentence")
    site: str = DEFAULT_SITE
    seeds: int = Field(
        default=1, gt=0, le=MOST_SEEDS, description="seeds 0 .. seeds - 1 of every arm"
    )
    arms: dict[Annotated[str, Field(pattern=NAME)], Arm] = Field(min_length=1)


@dataclass(frozen=True)
class Plan:
    """One run that has been asked for: its recipe is complete, site and seed included."""

    name: str
    arm: str
    recipe: Recipe
    overrides: tuple[str, ...] = ()  # as they were asked for, to be shown


def names() -> dict[str, str]:
    """Everything that `scalerl run` takes by name, each with a line about it."""
    scenarios = {path.stem: _scenario(path).question for path in sorted(HERE.glob("*.toml"))}
    return scenarios | {path.stem: _comment(path) for path in sorted(RECIPES.glob("*.toml"))}


def plan(
    name: str,
    overrides: Sequence[str] = (),
    *,
    site: str | None = None,
    arm: str | None = None,
    seeds: int | None = None,
) -> list[Plan]:
    """Every run of a scenario, a named recipe or a recipe file, validated before the first one starts.

    Raises:
        InputError: an unknown name, key or arm, or a value out of range.
    """
    scenario = _named(name)
    if arm is not None and arm not in scenario.arms:
        raise InputError(
            f"scenario {scenario.name!r} has no arm {arm!r}; it has {', '.join(scenario.arms)}"
        )
    chosen = {arm: scenario.arms[arm]} if arm else scenario.arms
    plans: list[Plan] = []
    for label, spec in chosen.items():
        recipe = _resolve(spec, site, scenario.site, overrides, scenario.name)
        first = recipe.seed
        count = seeds if seeds is not None else scenario.seeds
        if count > MOST_SEEDS or first + count > SEEDS:
            raise InputError(
                f"{count} seeds from {first} on: an arm has at most {MOST_SEEDS}, all below {SEEDS}"
            )
        plans += [
            Plan(scenario.name, label, recipe.with_seed(first + i), tuple(overrides))
            for i in range(count)
        ]
    return plans


def _named(name: str) -> Scenario:
    """A scenario as it is; a recipe as a scenario of one arm."""
    if is_file(path := HERE / f"{name}.toml"):
        return _scenario(path)
    if name.endswith(".toml"):
        path = Path(name)
        values = read_toml(path)
        if "arms" in values:
            return _scenario(path)
        label = _folder_name(str(values.get("name", path.stem)))
        return Scenario(name=label, question=_comment(path), arms={label: Arm(recipe=name)})
    if not is_file(path := RECIPES / f"{name}.toml"):
        raise unknown("scenario or recipe", name, names())
    return Scenario(name=name, question=_comment(path), arms={name: Arm(recipe=name)})


def _folder_name(text: str) -> str:
    """A recipe may be called anything, a folder may not: the nearest that it may."""
    plain = (each if each.isalpha() or each.isdecimal() or each in "_.-" else " " for each in text)
    return re.sub(r" +|^[.-]+", "_", "".join(plain))[:LONGEST_NAME] or "recipe"


def _resolve(
    arm: Arm, site: str | None, default_site: str, overrides: Sequence[str], scenario: str
) -> Recipe:
    """Recipe file, then site (unless the file brings its own), then the arm's settings, then the command line's."""
    layers = read_layers(find(arm.recipe, RECIPES, "recipe"), RECIPES, "recipe")
    if site is not None or "site" not in layers.values:
        path = find(site or default_site, SITES, "site")
        table = read_layers(path, SITES, "site").values
        layers.values.pop("site", None)
        layers.add(_batch_of(table.pop("recipe", {}), path), path.name)
        layers.add({"site": table}, path.name)
    layers.add(arm.set, f"{scenario}.toml")
    for table in override_tables(overrides):
        layers.add(table, COMMAND_LINE)
    return layers.build(Recipe)


def _batch_of(table: Any, path: Path) -> dict[str, Any]:
    """What a site says of the batch, which grows with it; all else of the algorithm is the recipe's."""
    if not isinstance(table, dict) or set(table) - set(BATCH_KEYS):
        raise InputError(f"{path}: [recipe] of a site may hold {' and '.join(BATCH_KEYS)} alone")
    return table


def _scenario(path: Path) -> Scenario:
    layers = Layers()
    layers.add(read_toml(path), path.name)
    return layers.build(Scenario)


def _comment(path: Path) -> str:
    """The first line of a file, without its mark: what it is for."""
    with path.open(encoding="utf-8-sig") as file:
        return file.readline().lstrip("# ").strip()
