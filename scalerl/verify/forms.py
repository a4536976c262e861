r"""What kind of thing a normalised answer is (a list, a set, a tuple, an interval, a matrix, ...), and its parts."""

import re
from dataclasses import dataclass
from enum import StrEnum

from scalerl.verify.brackets import matches_end, split_top
from scalerl.verify.exact import quantity

MOST_PARTS = 32


class Kind(StrEnum):
    """What an answer is made of."""

    SCALAR = "scalar"
    LIST = "list"
    SET = "set"
    TUPLE = "tuple"  # (1, 2) is an open interval too
    INTERVAL = "interval"  # [1, 2], (1, 2], [1, 2)
    UNION = "union"
    MATRIX = "matrix"
    RELATION = "relation"  # an inequality, or a chain of them


@dataclass(frozen=True)
class Form:
    """`parts` are normalised texts; `marks` the brackets of an interval, or the width of a matrix."""

    kind: Kind
    text: str
    parts: tuple[str, ...] = ()
    marks: str = ""


INEQUALITY = ("<", ">", r"\le", r"\ge", r"\ne")
_AND = re.compile(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\s*\{pmatrix\}(.*)\\end\s*\{pmatrix\}", re.S)
_NAMED = re.compile(r"^[A-Za-z](?:_\{?[0-9A-Za-z]\}?)?\s*(?:\\in|=)\s*(?=[(\[]|\\\{|\\pm|.*\\cup)")


def read_form(text: str) -> Form:
    """The form of a normalised answer. An answer of one part in no brackets is a scalar."""
    text = text.strip()
    if matrix := _MATRIX.fullmatch(text):
        rows = [[cell.strip() for cell in row.split("&")] for row in _rows(matrix[1])]
        if len({len(row) for row in rows}) == 1:
            return Form(
                Kind.MATRIX, text, tuple(cell for row in rows for cell in row), str(len(rows[0]))
            )
        return Form(Kind.SCALAR, text)
    listed = _AND.sub(",", text)
    parts = split_top(listed, (",", ";")) if quantity(text) is None else [text]
    if len(parts) > 1:
        return Form(Kind.LIST, text, _named_once([part for part in parts if part]))
    text = _NAMED.sub("", text)
    if len(unions := split_top(text, (r"\cup",))) > 1:
        return Form(Kind.UNION, text, tuple(unions))
    if bracketed := _bracketed(text):
        return bracketed
    if len(split_top(text, INEQUALITY)) > 1:
        return Form(Kind.RELATION, text)
    if text.count(r"\pm") == 1:
        sides = text.replace(r"\pm", "+").strip(), text.replace(r"\pm", "-")
        return Form(Kind.LIST, text, (sides[0].removeprefix("+").strip(), sides[1]))
    return Form(Kind.SCALAR, text)


def _rows(inside: str) -> list[str]:
    rows = [row.strip() for row in inside.split("\\\\")]
    return rows if rows[-1] else rows[:-1]


def _bracketed(text: str) -> Form | None:
    if text.startswith(r"\{") and text.endswith(r"\}") and matches_end(text, 0):
        inside = text[2:-2]
        if "|" not in inside and ":" not in inside:
            return Form(Kind.SET, text, tuple(split_top(_AND.sub(",", inside), (",", ";"))))
        return Form(Kind.SCALAR, text)
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and matches_end(text, 0):
        parts = split_top(text[1:-1], (",", ";"))
        if len(parts) > 1:
            marks = text[0] + text[-1]
            interval = len(parts) == 2 and marks != "()"
            return Form(Kind.INTERVAL if interval else Kind.TUPLE, text, tuple(parts), marks)
    return None


def _named_once(parts: list[str]) -> tuple[str, ...]:
    """`n = 2, 3, 4` and `x = 1, x = -2` as the values alone."""
    sides = [split_top(part, "=") for part in parts]
    names = {side[0] for side in sides if len(side) == 2}
    named = [len(side) == 2 for side in sides]
    one_name = len(names) == 1 and (all(named) or (named[0] and not any(named[1:])))
    if one_name and re.fullmatch(r"[A-Za-z](?:_\{?\w\}?)?", names.pop(), flags=re.A):
        return tuple(side[-1] for side in sides)
    return tuple(parts)
