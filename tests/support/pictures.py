"""Screens as pictures: SVG files that are compared to the letter, and taken anew with SCALERL_PICTURES=update.

pytest-textual-snapshot does the same for pytest 8 only.
"""

import os
from pathlib import Path

from textual.app import App

PICTURES = Path(__file__).parents[1] / "tui" / "pictures"


def compare_picture(app: App[None], name: str, beside: Path) -> None:
    """The screen as it stands is the picture of that name; a new one is laid `beside` to be looked at.

    Raises:
        AssertionError: it differs, or there is no such picture.
    """
    taken = app.export_screenshot(title=name)
    kept = PICTURES / f"{name}.svg"
    if os.environ.get("SCALERL_PICTURES") == "update":
        PICTURES.mkdir(exist_ok=True)
        kept.write_text(taken, encoding="utf-8")
    new = beside / f"{name}.svg"
    new.write_text(taken, encoding="utf-8")
    same = kept.exists() and kept.read_text(encoding="utf-8") == taken
    assert same, f"look at {new} beside {kept}; if it is as it should be: SCALERL_PICTURES=update"
