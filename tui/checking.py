"""`scalerl check`: the invariants of policy losses, held against a function of the user's own."""

import ast
import contextlib
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.user_code import load_function


@dataclass(frozen=True)
class Asked:
    """What the command line says of a loss; None: to be measured."""

    convention: str | None = None
    kind: str | None = None
    aggregation: str | None = None
    keywords: list[str] = field(default_factory=list)
    bounds: dict[str, float | None] = field(default_factory=dict)
    examples: int = 40
    budget_s: float | None = None
    seed: int = 0
    skip: list[str] = field(default_factory=list)
    half: bool = False
    any_mask: bool = False
    first: bool = False


def check_function(name: str, asked: Asked, *, as_json: bool) -> bool:
    """Check, print the report, and say whether nothing was violated.

    Raises:
        InputError: no such function, arguments that fit no adapter, a loss that fails on a plain batch.
    """
    import torch

    from scalerl.invariants.report import as_json as document
    from scalerl.invariants.report import as_text

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):  # what the loss prints is not the report
        report = _checked(name, asked)
    print(json.dumps(document(report), indent=2, allow_nan=False) if as_json else as_text(report))
    return report.ok


def _checked(name: str, asked: Asked) -> Any:
    from scalerl.invariants import check_loss

    return check_loss(
        subject(name, asked),
        kind=asked.kind,
        aggregation=asked.aggregation,
        bounds={key: value for key, value in asked.bounds.items() if value is not None},
        examples=asked.examples,
        budget_s=asked.budget_s,
        seed=asked.seed,
        skip=asked.skip,
        half=asked.half,
        any_mask=asked.any_mask,
        first=asked.first,
    )


def subject(name: str, asked: Asked) -> Any:
    """The function, behind the adapter that its convention asks for."""
    from scalerl.invariants.conventions import CONVENTIONS
    from scalerl.invariants.subject import adapt, mean_of

    keywords = dict(map(_keyword, asked.keywords))
    function = load_function(name, allow_code=True)
    if asked.convention is None:
        how = mean_of(asked.aggregation)
        found = adapt(function, aggregation=how, keywords=keywords, name=name)
    elif asked.convention in CONVENTIONS:
        found = CONVENTIONS[asked.convention](function, keywords=keywords, name=name)
    else:
        raise InputError(f"--convention {asked.convention!r} is none of {', '.join(CONVENTIONS)}")
    return replace(found, imports=(*found.imports, *_imports(name)))


def _imports(name: str) -> list[str]:
    """How a test beside the file gets the function, as `loss_fn`."""
    place, _, attribute = name.rpartition(":")
    path = Path(place)
    module = path.stem if place.endswith(".py") else place
    if path.parent == Path() and all(part.isidentifier() for part in module.split(".")):
        return [f"from {module} import {attribute} as loss_fn"]
    return [
        "from scalerl.user_code import load_function",
        "",
        f"loss_fn = load_function({name!r}, allow_code=True)",
    ]


def _keyword(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise InputError(f"{text!r} is not KEY=VALUE, an argument of the loss")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
