"""Brackets of a normalised answer: where they close, and what stands between signs outside of them."""

import re

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.S)
_OPEN = {"(": 1, "[": 1, "{": 1, r"\{": 1, r"\lfloor": 1, r"\lceil": 1, r"\begin": 1}
_CLOSE = {")": 1, "]": 1, "}": 1, r"\}": 1, r"\rfloor": 1, r"\rceil": 1, r"\end": 1}


def matches_end(text: str, start: int, *, anywhere: bool = False) -> int:
    """The place after the bracket that closes the one at `start`; 0 if it is not the text's last, unless `anywhere`."""
    depth = 0
    for match in _TOKEN.finditer(text, start):
        depth += _OPEN.get(match[0], 0) - _CLOSE.get(match[0], 0)
        if depth == 0:
            return match.end() if anywhere or match.end() == len(text) else 0
    return 0


def split_top(text: str, signs: str | tuple[str, ...]) -> list[str]:
    """The parts of a text between any of `signs` (characters or commands) that stand outside all brackets."""
    parts, depth, begin = [], 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth += _OPEN.get(token, 0) - _CLOSE.get(token, 0)
        if depth == 0 and token in signs:
            parts.append(text[begin : match.start()].strip())
            begin = match.end()
    return [*parts, text[begin:].strip()]
