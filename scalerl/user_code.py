"""The one door through which code of the user's own comes in: a function named FILE.py:FN or MODULE:FN.

Recipes and sites are data; a recipe that names code runs only when the caller has said so (`--allow-code`).
"""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, first_line
from scalerl.recipe import CustomLoss, Recipe

OWN = "_scalerl_"  # how the modules of files begin; no other process can import them by name
# an environment by its id alone imports none
REGISTERED = re.compile(r"(?:\d+(?:\.\d+)?\*)?gym:[^:]+")


def names_code(recipe: Recipe) -> str | None:
    """The setting, as KEY = VALUE, by which a recipe names code of the user's own; None if it names none."""
    if isinstance(recipe.loss, CustomLoss):
        return f"loss.function = {recipe.loss.function!r}"
    task = "" if recipe.site is None else recipe.site.task
    parts = [part.strip() for part in task.split("+")]
    if any(":" in part and not REGISTERED.fullmatch(part) for part in parts):
        return f"site.task = {task!r}"
    return None


def load_function(name: str, *, allow_code: bool) -> Callable[..., Any]:
    """Import a file or module and return the function it holds.

    Raises:
        InputError: not allowed, no such file or module, an error while importing it, or no such function.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise InputError(f"{name!r} is not FILE.py:FUNCTION or MODULE:FUNCTION")
    if not allow_code:
        raise InputError(f"{name!r} is code of your own: add --allow-code to run it")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else load_module(place)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a script may end itself
        raise InputError(f"importing {place!r} failed: {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(f"{place!r} has no function {attribute!r}")
    return function


def place_and_text(error: BaseException) -> tuple[str, str]:
    """FILE:LINE where a user's function failed ("" if nowhere), and the first line of what the error says."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return place, first_line(error)


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path} (looked for from {Path.cwd().name or '/'}/)")
    _append_to_path(path.resolve().parent)  # its neighbours can be imported
    unique = blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    spec = importlib.util.spec_from_file_location(f"{OWN}{path.stem}_{unique}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up by name
    spec.loader.exec_module(module)
    return module


def load_module(name: str) -> Any:
    """An installed module, or one of the current folder."""
    _append_to_path(Path.cwd())
    return importlib.import_module(name)


def _append_to_path(folder: Path) -> None:
    # Appended, never put first: a file of the user's must not shadow an installed module.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
