"""The little that the app remembers from one start to the next: the theme, and what was attached to lately."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

MOST_RECENT = 12


@dataclass
class Memory:
    """What is remembered. A file that cannot be read or written is no error: nothing is remembered then."""

    theme: str | None = None
    recent: list[str] = field(default_factory=list)

    def attached(self, source: str) -> None:
        """Put a source first among the recent ones."""
        self.recent = [source, *(each for each in self.recent if each != source)][:MOST_RECENT]
        self.save()

    def save(self) -> None:
        path = place()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def place() -> Path:
    """`scalerl/tui.json` in the user's folder for state."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "scalerl" / "tui.json"


def remembered() -> Memory:
    """What was saved last."""
    with suppress(OSError, ValueError, AttributeError):
        said = json.loads(place().read_text(encoding="utf-8"))
        theme, recent = said.get("theme"), said.get("recent")
        return Memory(
            theme if isinstance(theme, str) else None,
            [each for each in recent if isinstance(each, str)] if isinstance(recent, list) else [],
        )
    return Memory()
