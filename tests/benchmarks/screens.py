"""`make screens`: pictures of the app for the README, docs/figures/screen-*.svg.

What stands on them is the bundled recording, so that they change only when the screens do.
"""

import asyncio
import os
import tempfile
from pathlib import Path

from screen import settle, until
from textual.pilot import Pilot

from tui.app import ScalerlApp

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
RECORDING = ROOT / "tui" / "recordings" / "tiny.jsonl.gz"
SIZE = (120, 36)
# Picture, and what is pressed with the recording on screen.
PICTURES = {
    "screen-dashboard": ("space", "end"),
    "screen-early": ("space", "home", *["shift+right"] * 9),  # 45 % of the run
    "screen-editor": ("space", "end", "e", "down", "right"),
    "screen-help": ("space", "end", "question_mark"),
}
COMPARED = ["paper:Fig2/ScaleRL", "paper:Fig2/Magistral", "paper:Fig2/Qwen2.5-DAPO"]


async def picture(name: str, keys: tuple[str, ...]) -> None:
    app = ScalerlApp(str(RECORDING), theme="scalerl-dark")
    app.animation_level = "none"
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "REPLAY")
        await pilot.press(*keys)
        await save(pilot, name)


async def comparison() -> None:
    app = ScalerlApp(theme="scalerl-dark")
    app.animation_level = "none"
    async with app.run_test(size=SIZE) as pilot:
        app.compare(COMPARED)
        await until(pilot, "3 curves")
        await save(pilot, "screen-compare")


async def save(pilot: Pilot[None], name: str) -> None:
    await settle(pilot, 1.0)
    (FIGURES / f"{name}.svg").write_text(pilot.app.export_screenshot(title="scalerl"))
    print(f"docs/figures/{name}.svg")


def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        os.environ.pop("NO_COLOR", None)
        for name, keys in PICTURES.items():
            asyncio.run(picture(name, keys))
        asyncio.run(comparison())


if __name__ == "__main__":
    main()
