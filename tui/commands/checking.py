"""`scalerl check`: the invariants of policy losses, held against a function of the user's own."""

import ast
import contextlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.errors import InputError
from scalerl.user_code import load_function

if TYPE_CHECKING:
    from scalerl.invariants.subject import LossUnderTest


def check_function(
    name: str, keywords: list[str], convention: str | None, *, as_json: bool, **options: Any
) -> bool:
    """Check, print the report, and say whether nothing was violated; `options` are those of `check_loss`.

    Raises:
        InputError: no such function, arguments that fit no adapter, a loss that fails on a plain batch.
    """
    import torch

    from scalerl.invariants import check_loss
    from scalerl.invariants.report import as_json as document
    from scalerl.invariants.report import as_text

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):  # what the loss prints is not the report
        loss = subject(name, keywords, convention, options["aggregation"])
        report = check_loss(loss, **options)
    print(
        json.dumps(document(report), indent=2, allow_nan=False)
        if as_json
        else as_text(report, _width())
    )
    return report.ok


def list_laws() -> None:
    """Id, name and sentence of every law."""
    from scalerl.invariants import CATALOGUE
    from scalerl.invariants.report import wrapped

    for law in CATALOGUE:
        print("\n".join(wrapped(f"{law.id:<4} {law.name}: ", law.statement, _width())))


def _width() -> int:
    return min(100, shutil.get_terminal_size((100, 24)).columns)


def subject(
    name: str, keywords: list[str], convention: str | None, aggregation: str | None
) -> "LossUnderTest":
    """The function, behind the adapter that its convention asks for."""
    from scalerl.invariants.conventions import CONVENTIONS
    from scalerl.invariants.subject import adapt, mean_of

    further = dict(map(_keyword, keywords))
    function = load_function(name, allow_code=True)
    if convention is None:
        found = adapt(function, aggregation=mean_of(aggregation), keywords=further, name=name)
    elif convention in CONVENTIONS:
        found = CONVENTIONS[convention](function, keywords=further, name=name)
    else:
        raise InputError(f"--convention {convention!r} is none of {', '.join(CONVENTIONS)}")
    needed = [line for line in found.imports if not line.endswith("as loss_fn")]
    return replace(found, imports=(*_imports(name), *needed))


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
