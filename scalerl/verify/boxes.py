r"""The last balanced `\boxed{}` of a completion, found in one pass over its text."""

import re

from scalerl.verify.verdict import Fault, Unreadable

LONGEST = 1_000
DEEPEST = 40
THINK_CLOSE = "</think>"

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_TOKEN = re.compile(
    r"(?P<box>\\(?:boxed|fbox)(?![A-Za-z])\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.S
)
_BARE = re.compile(r"\\(?:boxed|fbox)\s*([0-9A-Za-z])(?![0-9A-Za-z])")
_BRACKET = re.compile(r"\\.|([{(\[])|([})\]])", re.S)


def last_answer(completion: str) -> str | None:
    r"""What stands in the last balanced box after thinking, boxes within boxes unwrapped; None without one.

    Raises Unreadable if it is empty, over 1,000 characters, or nested deeper than 40 brackets.
    """
    said = completion.rpartition(THINK_CLOSE)[2]
    first = _BOX.search(said)
    if first is None:
        return None
    span = _last_span(said, first.start())
    if span is None:
        bare = [match[1] for match in _BARE.finditer(said, first.start())]
        return bare[-1] if bare else None
    start, end = span
    if end - start > LONGEST:
        raise Unreadable(Fault.PREDICTION, f"over {LONGEST} characters")
    answer = said[start:end].strip()
    check_size(answer, Fault.PREDICTION)
    return answer


def check_size(answer: str, whose: Fault) -> None:
    """Raise Unreadable for an answer that is empty, too long, or nested too deep."""
    if not answer.strip():
        raise Unreadable(whose, "empty")
    if len(answer) > LONGEST:
        raise Unreadable(whose, f"over {LONGEST} characters")
    depth = 0
    for match in _BRACKET.finditer(answer):
        depth += (match[1] is not None) - (match[2] is not None)
        if depth > DEEPEST:
            raise Unreadable(whose, f"nested deeper than {DEEPEST}")


def _last_span(text: str, begin: int) -> tuple[int, int] | None:
    """(start, end) of the content of the box that closes last, or of the box that is all of its content."""
    open_braces: list[int | None] = []  # where a box's content starts; None for another brace
    closed: dict[int, int] = {}  # start of a content -> its end
    last: int | None = None
    starts: dict[int, int] = {}  # where a box's command stands -> where its content starts
    for match in _TOKEN.finditer(text, begin):
        if match["box"]:
            starts[match.start()] = match.end()
            open_braces.append(match.end())
        elif match["open"]:
            open_braces.append(None)
        elif match["close"] and open_braces:
            start = open_braces.pop()
            if start is not None:
                closed[start] = match.start()
                last = start
    if last is None:
        return None
    while (inner := starts.get(last)) is not None and closed.get(inner) == closed[last] - 1:
        last = inner
    return last, closed[last]
