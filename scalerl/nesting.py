"""How deep foreign data is nested: what is deeper than Python's stack can be read, but not walked, shown or saved."""

from collections.abc import Iterator
from typing import Any

DEEPEST = 16  # tables or lists in one another; ours have four


def levels(value: Any) -> Iterator[list[Any]]:
    """What lies side by side on each level of nested tables and lists, the value itself first; DEEPEST + 1 at most."""
    inside = [value]
    for _ in range(DEEPEST + 1):
        yield inside
        inside = [
            inner
            for each in inside
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not inside:
            return


def too_deep(value: Any) -> bool:
    """Whether tables or lists are nested more than DEEPEST deep."""
    return len(found := list(levels(value))) > DEEPEST and any(
        isinstance(each, dict | list) for each in found[-1]
    )
