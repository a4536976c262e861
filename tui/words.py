"""Numbers and foreign text as words: what every page and every screen writes the same way."""

from collections.abc import Iterable

from scalerl.curves.curve import amount
from scalerl.curves.uncertainty import Interval

__all__ = ["amount", "duration", "interval", "page", "printable"]


def printable(text: str) -> str:
    """The text in one line: ? for whatever moves the cursor or has no shape."""
    return "".join(each if each.isprintable() else "?" for each in text)


def page(lines: Iterable[str]) -> str:
    """Lines to print, each as `printable` has it."""
    return "\n".join(map(printable, lines))


def interval(found: Interval, form: str = ".3f", factor: float = 1.0) -> str:
    """0.645 [0.625, 0.665]; an end that the search did not find is a question mark.

    form: a format, or "amount" for compute.
    """

    def told(value: float | None) -> str:
        if value is None:
            return "?"
        return amount(value) if form == "amount" else format(value * factor, form)

    return f"{told(found.value)} [{told(found.lo)}, {told(found.hi)}]"


def duration(seconds: float) -> str:
    """12s, 2m10s, 3h05m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
