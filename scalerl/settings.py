"""Settings from layers of TOML: files that extend one another, then dotted keys from the command line.

Every value remembers where it came from, so that an error can name the key, the value, what is allowed, and
the file or argument to mend.
"""

import difflib
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scalerl.errors import InputError
from scalerl.nesting import DEEPEST, levels, too_deep
from scalerl.paths import is_file, regular

M = TypeVar("M", bound=BaseModel)
Table = dict[str, Any]
COMMAND_LINE = "the command line"
DEFAULTS = "the defaults"
SIGNS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
NONE = "none"  # how a person writes None
LARGEST = 1 << 20  # bytes of a settings file: ours have 2 KB
MOST_DOTS = 1000  # a line: a key of ten thousand parts takes the parser seconds


@dataclass
class Layers:
    """A table of values, and the origin of each by dotted key."""

    values: Table = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    last: str = DEFAULTS  # the layer on top: where a key that is missing can be added

    def add(self, values: Mapping[str, Any], origin: str) -> None:
        """Lay a table over what is there; a table of another `kind` replaces the old one instead of mixing with it."""
        self.last = origin
        _merge(self.values, values)
        for key in _leaves(values):
            self.origins[key] = origin

    def origin(self, key: str) -> str:
        """Of a key, or of the nearest table around it that somebody wrote."""
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key, DEFAULTS)

    def build(self, model: type[M]) -> M:
        """Validate; the word "none" is None where a field may be that, as TOML has no word of its own for it.

        Raises:
            InputError: naming key, value, what is allowed, and origin of the first fault.
        """
        values = deepcopy(self.values)
        for leaf in leaves(model, values):
            if leaf.optional and value_at(values, leaf.key) == NONE:
                put(values, leaf.key, None)
        try:
            return model.model_validate(values)
        except ValidationError as error:
            # A key that nobody knows explains the one that is missing.
            faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
            raise InputError(self._explain(model, faults[0])) from None

    def _explain(self, model: type[BaseModel], fault: ErrorDetails) -> str:
        path = [part for part in fault["loc"] if isinstance(part, str)]
        key, info, siblings = _locate(model, path)
        if not key:  # of several settings at once, which the message names
            return _message(fault)
        where = f"(from {self.origin(key)})"
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key.rpartition(".")[2], siblings, n=1, cutoff=0.6)
            prefix = key.rpartition(".")[0]
            full = [f"{prefix}.{name}" if prefix else name for name in siblings]
            elsewhere = [
                k
                for k in _all_keys(model)
                if k != key and k.rpartition(".")[2] == key.rpartition(".")[2]
            ]
            meant = elsewhere[0] if elsewhere else full[siblings.index(near[0])] if near else None
            hint = f"did you mean {meant!r}? " if meant else ""
            return f"unknown key {key!r} {where}: {hint}Valid here: {', '.join(full)}"
        if fault["type"] == "missing":
            origin = self.origin(key)
            return f"{key!r} is missing (from {self.last if origin == DEFAULTS else origin}): {_hint(info)}"
        if fault["type"] == "union_tag_invalid":
            tags = fault.get("ctx", {})
            return f"{key}.kind = {tags.get('tag')!r} {where}: must be one of {tags.get('expected_tags')}"
        if fault["type"] in ("union_tag_not_found", "model_attributes_type"):
            members = models_of(info.annotation) if info is not None else []
            kinds = " | ".join(member.model_fields["kind"].default for member in members)
            return f"{key} = {fault['input']!r} {where}: needs a table with a kind, e.g. {key}.kind={kinds}"
        return f"{key} = {fault['input']!r} {where}: {_reason(fault, info)}"


@dataclass(frozen=True)
class Leaf:
    """A field that holds a value and no table, in the model that the values chose for its table."""

    key: str  # dotted, from the root
    info: FieldInfo
    model: type[BaseModel]
    among: tuple[type[BaseModel], ...]  # what `model` was chosen from, by its kind

    @property
    def optional(self) -> bool:
        """Whether it may be None."""
        return type(None) in types_of(self.info.annotation)


def leaves(model: type[BaseModel], values: Mapping[str, Any], prefix: str = "") -> Iterator[Leaf]:
    """Every leaf of a model in schema order; of a union only the kind that `values` name."""
    yield from _leaves_of(model, values, prefix, (model,))


def _leaves_of(
    model: type[BaseModel],
    values: Mapping[str, Any],
    prefix: str,
    among: tuple[type[BaseModel], ...],
) -> Iterator[Leaf]:
    for name, info in model.model_fields.items():
        inner, value = tuple(models_of(info.annotation)), values.get(name)
        if not inner:
            yield Leaf(prefix + name, info, model, among)
        elif isinstance(value, Mapping):
            chosen = inner[0] if len(inner) == 1 else member(info, value.get("kind"))
            if chosen is not None:
                yield from _leaves_of(chosen, value, f"{prefix}{name}.", inner)


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    found: Any = values
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def put(values: Table, key: str, value: Any) -> None:
    """Set a dotted key, making the tables around it."""
    *tables, name = key.split(".")
    for part in tables:
        values = values.setdefault(part, {})
    values[name] = value


def parse_override(argument: str) -> tuple[str, Any]:
    """KEY=VALUE with the value in TOML; a bare word is taken for a string."""
    key, equals, text = argument.partition("=")
    if not equals or not key.strip():
        raise InputError(f"{argument!r} is not KEY=VALUE, e.g. loss.eps_max=4")
    if any("\ud800" <= each <= "\udfff" for each in argument):  # bytes that are no UTF-8
        raise InputError(f"{argument!r} (from {COMMAND_LINE}): not UTF-8 text")
    try:
        if key.count(".") > DEEPEST:
            raise ValueError
        return key.strip(), _parsed(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text
    except (ValueError, RecursionError):
        shown = f"{key.strip()[:80]} = {text[:24]}..."
        raise InputError(f"{shown} (from {COMMAND_LINE}): too long or too deep to read") from None


def override_tables(arguments: Sequence[str]) -> list[Table]:
    """One nested table for each KEY=VALUE; outer keys and kinds first, so that inner keys can stand anywhere."""
    pairs = [parse_override(argument) for argument in arguments]
    pairs.sort(key=lambda pair: (pair[0].count("."), not pair[0].endswith(".kind")))
    tables: list[Table] = []
    for key, value in pairs:
        tables.append(table := {})
        put(table, key, value)
    return tables


def read_toml(path: Path) -> Table:
    """A TOML file as nested tables; InputError names the file and, where it can, the line."""
    try:
        if (size := regular(path).stat().st_size) > LARGEST:
            raise OSError(0, f"it has {size:,} bytes, settings have at most {LARGEST:,}")
        return _parsed(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def _parsed(text: str) -> Table:
    """TOML within bounds: what passes can be walked, printed and saved.

    Raises:
        ValueError: no TOML, an integer beyond 64 bits, or tables in tables in tables. RecursionError: the same.
    """
    if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"one of its lines has more than {MOST_DOTS} dots")
    values = tomllib.loads(text)
    if too_deep(values):
        raise ValueError(f"its tables are more than {DEEPEST} deep")
    if any(isinstance(e, int) and e.bit_length() > 64 for level in levels(values) for e in level):
        raise ValueError("it holds an integer of more than 64 bits")
    return values


def read_layers(path: Path, folder: Path, what: str) -> Layers:
    """A file and, below it, the chain of files of `folder` that it extends by name."""
    chain: list[tuple[Path, Table]] = []
    while True:
        values = read_toml(path)
        chain.append((path, values))
        parent = values.pop("extends", None)
        if parent is None:
            break
        beside = path.parent / str(parent)
        path = find(str(beside) if is_file(beside) else str(parent), folder, what)
        if path.resolve() in [seen.resolve() for seen, _ in chain]:
            raise InputError(f"{what} {chain[0][0].stem!r} extends itself through {path.name}")
    layers = Layers()
    for file, values in reversed(chain):
        layers.add(values, file.name)
    return layers


def find(name: str, folder: Path, what: str) -> Path:
    """A TOML file by path, or by the name of a shipped one."""
    path = Path(name)
    if path.suffix == ".toml" and is_file(path):
        return path
    if is_file(shipped := folder / f"{name}.toml"):
        return shipped
    raise unknown(what, name, (file.stem for file in folder.glob("*.toml")))


def unknown(what: str, name: str, names: Iterable[str]) -> InputError:
    """The error for a name that is not among `names`, with the nearest that is."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(
        f"there is no {what} {name!r}: {hint}Known: {', '.join(known)}, or give a .toml file"
    )


def to_toml(values: Mapping[str, Any]) -> str:
    """Nested tables as TOML text; None is left out, as TOML has no word for it."""
    return tomli_w.dumps(_without_none(values))


def _without_none(values: Mapping[str, Any]) -> Table:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _merge(base: Table, new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        old = base.get(key)
        if isinstance(value, Mapping):
            if not isinstance(old, dict) or value.get("kind", old.get("kind")) != old.get("kind"):
                base[key] = {}
            _merge(base[key], value)
        else:
            base[key] = value


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        yield prefix + key


def _locate(model: type[BaseModel], path: Sequence[str]) -> tuple[str, FieldInfo | None, list[str]]:
    """The dotted key of a fault, its field if it has one, and the valid keys beside it.

    Pydantic names the member of a union in the path by its kind; people do not write that.
    """
    key: list[str] = []
    info: FieldInfo | None = None
    current: type[BaseModel] | None = model
    siblings = list(model.model_fields)
    for part in path:
        if info is not None and get_origin(info.annotation) is dict:
            key.append(part)  # a name of the user's own choice
            current, info = _only(models_of(get_args(info.annotation)[1])), None
        elif info is not None and current is None and (named := member(info, part)):
            current = named
        else:
            if current is not None:
                siblings = list(current.model_fields)
                info = current.model_fields.get(part)
                current = _only(models_of(info.annotation)) if info is not None else None
            key.append(part)
    return ".".join(key), info, siblings


def types_of(annotation: Any) -> Iterator[Any]:
    """The types that an annotation admits, unions and Annotated taken apart."""
    if get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from types_of(argument)
    elif get_origin(annotation) is Annotated:
        yield from types_of(get_args(annotation)[0])
    else:
        yield annotation


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation admits: several in a union, none for a plain value."""
    found = types_of(annotation)
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _only(models: list[type[BaseModel]]) -> type[BaseModel] | None:
    return models[0] if len(models) == 1 else None


def member(info: FieldInfo, kind: Any) -> type[BaseModel] | None:
    """The model of a union whose `kind` this is."""
    members = models_of(info.annotation)
    return next((m for m in members if m.model_fields["kind"].default == kind), None)


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key that a model can have, members of unions included."""
    for name, info in model.model_fields.items():
        yield prefix + name
        for member in models_of(info.annotation):
            yield from _all_keys(member, f"{prefix}{name}.")


def limits(info: FieldInfo) -> dict[str, float]:
    """The bounds of a field by pydantic's names: gt, ge, lt, le."""
    return {name: getattr(m, name) for m in info.metadata for name in SIGNS if hasattr(m, name)}


def choices(info: FieldInfo) -> tuple[Any, ...]:
    """The values of a Literal; empty for any other type."""
    literals = [kind for kind in types_of(info.annotation) if get_origin(kind) is Literal]
    return tuple(choice for kind in literals for choice in get_args(kind))


def allowed(info: FieldInfo) -> str:
    """The range that a field imposes, in words; empty if it imposes none."""
    bounds = [f"{SIGNS[name]} {bound}" for name, bound in limits(info).items()]
    return " and ".join(bounds) or " or ".join(map(repr, choices(info)))


def _hint(info: FieldInfo | None) -> str:
    """What a field may be, with its description."""
    if info is None:
        return "see the documentation"
    must = f"must be {allowed(info)}" if allowed(info) else ""
    return "; ".join(part for part in (must, info.description or "") if part)


def _message(fault: ErrorDetails) -> str:
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"


def _reason(fault: ErrorDetails, info: FieldInfo | None) -> str:
    hint = _hint(info)
    if fault["type"] in (
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "literal_error",
    ):
        return hint
    return _message(fault) + (f" ({hint})" if hint else "")
