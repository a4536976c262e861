"""A completion as rows: thinking, a forced interruption, the answer, and by which weights each token was sampled."""

from collections.abc import Sequence

from rich.cells import cell_len

from scalerl.events import Event, is_number
from tui.show.rows import Row, cut, joined, wrapped
from tui.words import printable

# Neighbouring versions differ in colour, and a change is marked with the new version's number.
VERSION_ROLES = ("data", "fit", "pinned", "paper")
END_OF_THINKING, END = "</think>", "<eos>"


def sample_rows(event: Event, place: str, width: int) -> list[Row]:
    """One `sample` event. place: "3 of 28", which of the samples this is."""
    ok = event.get("correct") is True
    verdict = ("● correct", "ok") if ok else ("■ wrong", "danger")
    flags = [
        ("interrupted", "▲ thinking interrupted"),
        ("truncated", "■ truncated: no end inside the budget"),
    ]
    raised: list[Row] = [
        [(text, "watch" if key == "interrupted" else "danger")]
        for key, text in flags
        if event.get(key) is True
    ]
    reward = event.get("reward")
    head: Row = joined(
        [
            [(place, "muted")],
            *raised,
            [verdict],
            [(f"update {printable(str(event.get('update', '?')))}", "")],
            [(f"reward {reward:+.2f}", "muted")] if is_number(reward) else [],
        ]
    )
    rows: list[Row] = [cut(head, width)]
    rows += wrapped(
        "prompt  " + printable(str(event.get("prompt", ""))), width, "muted", indent="        "
    )
    rows += _completion(event, width)
    return rows


def legend(width: int) -> Row:
    """What the marks in a completion mean."""
    return cut(
        [
            ("‹n› from here by weights n  ", "muted"),
            ("[forced]", "watch"),
            (" not sampled", "muted"),
        ],
        width,
    )


def _versions(event: Event) -> list[int]:
    found = event.get("version")
    return [v for v in found if isinstance(v, int)] if isinstance(found, list) else []


def _completion(event: Event, width: int) -> list[Row]:
    """The tokens in order, wrapped; without versions of every token the plain text."""
    words = str(event.get("completion", "")).split(" ")
    versions, sampled = _versions(event), event.get("sampled")
    if len(versions) != len(words) or not isinstance(sampled, list) or len(sampled) != len(words):
        return wrapped(printable(" ".join(words)), width)
    parts: list[tuple[str, str]] = []
    before = None
    for i, (word, version, drawn) in enumerate(zip(words, versions, sampled, strict=True)):
        role = VERSION_ROLES[version % len(VERSION_ROLES)]
        if version != before:
            parts.append((f"‹{version}›", "muted"))
        before = version
        shown = printable(word)
        if not drawn:
            first = i == 0 or sampled[i - 1]
            last = i + 1 == len(words) or sampled[i + 1]
            shown, role = f"{'[' if first else ''}{shown}{']' if last else ''}", "watch"
        elif word in (END_OF_THINKING, END):
            role = "strong"
        parts.append((shown, role))
    return _flowed(parts, width)


def _flowed(parts: Sequence[tuple[str, str]], width: int) -> list[Row]:
    rows: list[Row] = [[]]
    used = 0
    for word, role in parts:
        size = cell_len(word)
        if used and used + 1 + size > width:
            rows.append([])
            used = 0
        if used:
            rows[-1].append((" ", ""))
            used += 1
        rows[-1].append((word, role))
        used += size
    return [cut(row, width) for row in rows]
