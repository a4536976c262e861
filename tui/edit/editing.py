"""A recipe while it is edited: a list of knobs read from the schema, what is wrong with them, and what they change.

Nothing here throws at a value out of range: a draft may be invalid for as long as somebody works on it.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from inspect import getdoc
from typing import Any, Literal

import tomli_w

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.settings import (
    NONE,
    Layers,
    Leaf,
    allowed,
    choices,
    leaves,
    limits,
    parse_override,
    put,
    to_toml,
    types_of,
    value_at,
)
from scenarios.scenario import RECIPES, plan
from tui.edit.doubts import doubts
from tui.edit.stepping import Direction, next_float, next_int

PARENT, DRAFT = "the parent", "this draft"


@dataclass(frozen=True)
class Knob:
    """One field of a recipe, as it stands in a draft.

    key: dotted, as on the command line.
    value, before: now, and in the parent; of a kind that the parent does not have, `before` is the default.
        None is "none" where `optional`, and a value still missing where not.
    choices: all values, where they are few.
    number: which numbers it takes, if any.
    help, allowed: what it is, and its range in words.
    """

    key: str
    value: Any
    before: Any
    choices: tuple[Any, ...] | None
    number: Literal["int", "float"] | None
    optional: bool
    inherited: bool  # whether `before` is the parent's
    help: str
    allowed: str

    @property
    def changed(self) -> bool:
        """Whether it differs from `before`."""
        return self.value != self.before

    @property
    def steps(self) -> bool:
        """Whether `Draft.step` moves it."""
        return self.choices is not None or self.number is not None


class Draft:
    """Changes to a recipe. The parent stays as it is; what comes out is a recipe of its own."""

    def __init__(self, parent: Recipe) -> None:
        """`parent` is complete: it has a site."""
        self.parent = parent
        self._parent = parent.model_dump()
        self._values = deepcopy(self._parent)

    # --- reading ---

    def rows(self) -> list[Knob]:
        """Every knob of the kinds chosen now, in the order of the schema: the algorithm, then the site.

        What kind of site it is cannot be turned: another kind is another file (`--on`).
        """
        old = {leaf.key: leaf for leaf in leaves(Recipe, self._parent)}
        found = (self._knob(leaf, old.get(leaf.key)) for leaf in leaves(Recipe, self._values))
        return [
            knob
            for knob in found
            if knob.key != "site.kind" and (knob.choices is None or len(knob.choices) > 1)
        ]

    def knob(self, key: str) -> Knob:
        """One of `rows`; KeyError if no such knob is shown now."""
        for knob in self.rows():
            if knob.key == key:
                return knob
        raise KeyError(key)

    def _knob(self, leaf: Leaf, old: Leaf | None) -> Knob:
        info, kind = leaf.info, leaf.key.endswith(".kind")
        inherited = kind or (old is not None and old.model is leaf.model)
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        types = set(types_of(info.annotation))
        number = "float" if float in types else "int" if int in types else None
        offered = (
            tuple(model.model_fields["kind"].default for model in leaf.among)
            if kind
            else choices(info)
        )
        if offered and leaf.optional:
            offered = (None, *offered)
        return Knob(
            key=leaf.key,
            value=value_at(self._values, leaf.key),
            before=value_at(self._parent, leaf.key) if inherited else default,
            choices=offered or None,
            number=number,
            optional=leaf.optional,
            inherited=inherited,
            help=" ".join((getdoc(leaf.model) or "").split()) if kind else info.description or "",
            allowed=_range(leaf, number, offered),
        )

    # --- editing ---

    def set(self, key: str, value: Any) -> None:
        """Any value, right or wrong; a table is laid over the parent's, as the command line does it.

        A kind brings the parent's values if it is the parent's, and its defaults if not.

        Raises:
            KeyError: there is no such knob now.
            InputError: there is no such kind, so nothing could be shown of it; the draft is as it was.
        """
        knob = self.knob(key)
        value = _as_taken(knob, value)
        if key.endswith(".kind"):
            self._choose(key.removesuffix(".kind"), value, knob)
        elif isinstance(value, Mapping) and isinstance(knob.before, Mapping):
            put(self._values, key, {**knob.before, **value})
        elif value is None and not knob.optional:
            value_at(self._values, key.rpartition(".")[0]).pop(key.rpartition(".")[2], None)
        else:
            put(self._values, key, value)

    def type(self, key: str, text: str) -> None:
        """Set from text as the command line reads it; a knob that takes text takes all text as it is.

        Raises: as `set`.
        """
        knob, text = self.knob(key), text.strip()
        if knob.optional and text == NONE:
            self.set(key, None)
            return
        try:
            value = parse_override(f"{key}={text}")[1]
        except InputError:
            value = text  # `problem` says that it is none of the values that the knob takes
        is_text = knob.number is None and not isinstance(knob.before, Mapping)
        self.set(key, text if is_text and not isinstance(value, str) else value)

    def step(self, key: str, direction: Direction) -> None:
        """The next choice, round the end; the next round number, never across a bound."""
        knob = self.knob(key)
        if knob.choices is not None:
            at = knob.choices.index(knob.value) + direction if knob.value in knob.choices else 0
            self.set(key, knob.choices[at % len(knob.choices)])
        elif knob.number is not None:
            leaf = next(leaf for leaf in leaves(Recipe, self._values) if leaf.key == key)
            bounds = limits(leaf.info)
            if isinstance(knob.value, int) and knob.number == "int":
                self.set(key, next_int(knob.value, direction, bounds))
            elif isinstance(knob.value, int | float) and knob.number == "float":
                self.set(key, next_float(knob.value, direction, bounds))
            else:
                self.revert(key)  # what is no number has no neighbour

    def revert(self, key: str) -> None:
        """Back to the parent's value, or to the default of a kind that the parent does not have."""
        self.set(key, self.knob(key).before)

    def revert_all(self) -> None:
        self._values = deepcopy(self._parent)

    def _choose(self, table: str, kind: Any, knob: Knob) -> None:
        if kind == value_at(self._parent, f"{table}.kind"):
            put(self._values, table, deepcopy(value_at(self._parent, table)))
            return
        if knob.choices is None or kind not in knob.choices:
            raise InputError(f"{knob.key} = {kind!r}: must be {knob.allowed}")
        values = {table: {"kind": kind}}
        for leaf in leaves(Recipe, values):
            if leaf.key.startswith(f"{table}.") and not leaf.info.is_required():
                put(values, leaf.key, leaf.info.get_default(call_default_factory=True))
        put(self._values, table, values[table])

    # --- judging ---

    def recipe(self) -> Recipe:
        """The recipe that the draft describes.

        Raises:
            InputError: it is invalid; `problem` gives the sentence.
        """
        layers = Layers()
        layers.add(self._values, DRAFT)
        layers.origins |= {
            knob.key: PARENT for knob in self.rows() if knob.inherited and not knob.changed
        }
        return layers.build(Recipe)

    def problem(self) -> str | None:
        """The first fault, with key, value and what is allowed; None if there is none."""
        try:
            self.recipe()
        except InputError as error:
            return str(error)
        return None

    def warnings(self) -> list[str]:
        """What is valid and yet likely not meant, each with its reason; empty while there is a problem."""
        return list(doubts(self.recipe())) if self.problem() is None else []

    # --- giving out ---

    def changes(self) -> list[tuple[str, Any, Any]]:
        """(key, before, now) of every knob that differs."""
        return [(knob.key, knob.before, knob.value) for knob in self.rows() if knob.changed]

    def overrides(self) -> list[str]:
        """The changes as KEY=VALUE: laid over the parent they give this recipe."""
        return [
            f"{key}={_as_argument(key, _news(before, now))}"
            for key, before, now in self.changes()
            if now is not None or self.knob(key).optional
        ]

    def differences(self) -> str:
        """The changes as TOML, for the eye."""
        table: dict[str, Any] = {}
        for key, before, now in self.changes():
            put(table, key, NONE if now is None else _news(before, now))
        return to_toml(table)

    def toml(self) -> str:
        """A recipe file: `extends` and what differs if the parent is a shipped recipe or made from one, else all of it.

        A site other than the default one stands there whole, for a file brings all of its site or nothing.

        Raises:
            InputError: the draft is invalid.
        """
        recipe = self.recipe()
        path = RECIPES / f"{self.parent.name}.toml"
        if not path.is_file():
            return to_toml(recipe.model_dump(mode="json"))
        [named] = plan(str(path))
        against = Draft(named.recipe)
        against._values = recipe.model_dump()
        table: dict[str, Any] = {"extends": self.parent.name}
        for key, before, now in against.changes():
            if not key.startswith("site."):
                put(table, key, NONE if now is None else _news(before, now))
        if recipe.site != named.recipe.site and recipe.site is not None:
            table["site"] = recipe.site.model_dump(mode="json")
        return to_toml(table)


def shown(value: Any) -> str:
    """A value as a person writes it; a float with six digits at most."""
    if value is None:
        return NONE
    if isinstance(value, float):
        return re.sub(r"e([-+])0*", lambda m: "e" + m[1].strip("+"), f"{value:.6g}")
    return exact(value)


def exact(value: Any) -> str:
    """A value as text from which `Draft.type` makes the same value."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else _toml_value(value)


def _as_taken(knob: Knob, value: Any) -> Any:
    """1e3 is whole where a whole number is wanted; true equals 1 in Python, and is a word here."""
    if knob.number == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value).lower() if isinstance(value, bool) else value


def _range(leaf: Leaf, number: str | None, offered: tuple[Any, ...]) -> str:
    if offered:
        return " or ".join(shown(choice) for choice in offered)
    noun = {"int": "a whole number", "float": "a number"}.get(number or "", "text")
    return ", ".join(part for part in (noun, allowed(leaf.info)) if part)


def _news(before: Any, now: Any) -> Any:
    """What to lay over `before` to have `now`: of a table only the entries that differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return {key: value for key, value in now.items() if before.get(key) != value}
    return now


def _as_argument(key: str, value: Any) -> str:
    """A value as it stands behind KEY=: a word bare where it reads as itself."""
    if value is None:
        return NONE
    bare = isinstance(value, str) and re.fullmatch(r"[\w.:/+-]+", value) is not None
    if bare and parse_override(f"{key}={value}") == (key, value):
        return value
    return _toml_value(value)


def _toml_value(value: Any) -> str:
    """TOML of one value, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(tomli_w.dumps({k: v}).strip() for k, v in value.items()) + "}"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()
