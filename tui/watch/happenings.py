"""What just happened in a run: its notices and its alarms, each alarm with its reason and what to try."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalerl.curves.alarms import GRAVEST_FIRST, Alarm
from tui.watch.scene import Scene
from tui.words import amount

INDENT = 9

# Where the glossary explains an alarm.
TERMS = {
    "truncation trend": "truncated",
    "truncated": "truncated",
    "entropy jump": "entropy",
    "kl jump": "kl",
    "ess": "ess",
    "zero-variance": "zero_variance",
    "residual": "verdict",
    "falling": "verdict",
    "lost evaluations": "verdict",
}


@dataclass(frozen=True)
class Happening:
    """One line of the list: update 311, "danger", "truncated", "completions without an end ...", "length.kind=..."."""

    update: int
    level: str
    what: str
    evidence: str = ""
    advice: str = ""
    term: str = ""
    clock: float = 0.0


def happenings(scene: Scene) -> list[Happening]:
    """Newest first."""
    view = scene.view
    found = [Happening(n.update, n.level, n.what, clock=n.clock) for n in view.notices()]
    found += [_of_alarm(scene, alarm) for alarm in scene.analysis.alarms]
    return sorted(found, key=lambda each: each.clock, reverse=True)


def _of_alarm(scene: Scene, alarm: Alarm) -> Happening:
    """An alarm at the update it fired at; one of the curve says its compute, which is looked up."""
    view = scene.view
    if alarm.of == "update":
        update, row = int(alarm.at), _row_of(scene, alarm.at)
    else:
        row = view.row_at(alarm.at)
        update = int(view.column("update")[row]) if row is not None else 0
    clock = float(view.store.updates.clock(view.n)[row]) if row is not None and view.n else 0.0
    at = f" at {amount(alarm.at)} GPU-h" if alarm.of == "compute" else ""
    return Happening(
        update,
        alarm.level,
        f"{alarm.level.upper()}: {alarm.name}{at}",
        f"{alarm.evidence} ({alarm.threshold})",
        alarm.advice,
        TERMS.get(alarm.name, ""),
        clock,
    )


def _row_of(scene: Scene, update: float) -> int | None:
    numbers = scene.view.column("update")
    found = int(numbers.searchsorted(update))
    return min(found, len(numbers) - 1) if len(numbers) else None


def gravest(found: Sequence[Happening]) -> int:
    """The place of the gravest alarm, the newest of several, to be read first; 0 where there is none."""
    order = {level: i for i, level in enumerate(reversed(GRAVEST_FIRST))}
    places = [i for i, each in enumerate(found) if each.evidence]
    return max(places, key=lambda i: (order[found[i].level], -i), default=0)
