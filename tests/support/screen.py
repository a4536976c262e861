"""What a Textual app shows, as text and colours, and the moment at which it shows something."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.color import Color
from rich.color_triplet import ColorTriplet
from textual.app import App
from textual.pilot import Pilot

PATIENCE_S = 20.0  # the other core may be busy
_GREY_NUMBERS = {0, 7, 8, 15}  # black, white and their bright kinds


def screen_text(app: App) -> str:
    """The screen's lines as they stand, colours left out: for assertions that outlive themes and versions."""
    return "\n".join(
        "".join(segment.text for segment in strip)
        for strip in app.screen._compositor.render_strips()
    )


async def until(pilot: Pilot[Any], wanted: str | Callable[[str], bool]) -> str:
    """The screen's text once it holds the words, on one line or on two, or is as wanted.

    Raises:
        AssertionError: with the screen, if that does not come.
    """
    last = time.monotonic() + PATIENCE_S
    while True:  # not `pilot.pause`, which waits for an app that never rests
        text = screen_text(pilot.app)
        if wanted(text) if callable(wanted) else wanted in text or wanted in " ".join(text.split()):
            return text
        assert time.monotonic() < last, f"{wanted!r} did not come:\n{text}"
        await asyncio.sleep(0.005)


async def settle(pilot: Pilot[Any], seconds: float = 0.3) -> None:
    """Until the screen has been the same for so long: footers and fits are made beside it."""
    text, since = screen_text(pilot.app), time.monotonic()
    while time.monotonic() - since < seconds:
        await asyncio.sleep(0.02)
        if (now := screen_text(pilot.app)) != text:
            text, since = now, time.monotonic()


def chromatic(app: App) -> set[str]:
    """Every colour on the screen that is neither grey nor the terminal's own."""
    return {f"{colour.name} on {text!r}" for colour, text in _colours(app) if not _is_grey(colour)}


def _colours(app: App) -> Iterator[tuple[Color, str]]:
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            style = segment.style
            for colour in (style.color, style.bgcolor) if style else ():
                if colour is not None:
                    yield colour, segment.text


def _is_grey(colour: Color) -> bool:
    if colour.triplet is not None:
        red, green, blue = colour.triplet
        return ColorTriplet(red, green, blue) == ColorTriplet(red, red, red)
    return colour.number is None or colour.number in _GREY_NUMBERS
