"""A run looks after itself: what has gone wrong with it, from its own events, and whether that ends it.

Everything here follows from the surviving events alone, so a resumed run says the same as one never killed.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from scalerl.curves.alarms import MEAN_OF, falling, zero_variance
from scalerl.curves.curve import curve_of_run
from scalerl.errors import InputError
from scalerl.events import Event, is_number
from scalerl.fit import FitError
from scalerl.site import Supervision

SLOWER = 10.0  # times the median update: starved
PACE_OF = 32  # updates of that median, and at least `MEAN_OF` of them


@dataclass(frozen=True)
class Trouble:
    """Something that has gone wrong. `name` is the field of `Supervision` that says what then."""

    name: str
    what: str  # a sentence


@dataclass
class Supervisor:
    """Reads every event of a run in order; says each trouble once, and again only after it had passed."""

    policy: Supervision
    _updates: deque[Event] = field(default_factory=lambda: deque(maxlen=PACE_OF + 1))
    _evaluations: list[Event] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)

    def remember(self, events: Iterable[Event]) -> None:
        """What a run had written before it was resumed."""
        for event in events:
            self.look(event)

    def look(self, event: Event) -> list[Trouble]:
        """Troubles that begin with this event."""
        if event["kind"] == "update":
            if not all(is_number(event.get(name)) for name in ("clock", "update", "wait_s")):
                return []  # of a log that was damaged, or of a format that knew none
            self._updates.append(event)
            found = {"no_variance": self._no_variance(), "starved": self._starved()}
        elif event["kind"] == "eval" and event.get("set") == "validation":
            self._evaluations.append(event)
            found = {"not_learning": self._not_learning()}
        else:
            return []
        begun = [Trouble(n, what) for n, what in found.items() if what and n not in self._known]
        self._known -= {name for name, what in found.items() if not what}
        self._known |= {trouble.name for trouble in begun}
        return begun

    def ends(self, trouble: Trouble) -> bool:
        """Whether the run is to end for it."""
        return getattr(self.policy, trouble.name) == "stop"

    def _no_variance(self) -> str | None:
        last = list(self._updates)[-MEAN_OF:]
        if len(last) == MEAN_OF and all(event.get("skipped") for event in last):
            return f"{MEAN_OF} updates in a row trained nothing: look at zero_variance, and at what was passed over"
        alarm = zero_variance(last)
        if alarm is None or alarm.level == "watch":
            return None
        return f"the batches lose their variance: {alarm.evidence}, {alarm.threshold}; try {alarm.advice}"

    def _starved(self) -> str | None:
        clock = [event["clock"] for event in self._updates]
        paces = [after - before for before, after in pairwise(clock)]
        last = self._updates[-1]
        if len(paces) <= MEAN_OF or last["wait_s"] <= SLOWER * (usual := median(paces[:-1])):
            return None
        return (
            f"the trainer starved: it waited {last['wait_s']:.4g} s for the batch of update {last['update']}, "
            f"where a whole update took {usual:.4g} s: look at stall_group, truncation and lost generators"
        )

    def _not_learning(self) -> str | None:
        if not all(is_number(self._evaluations[-1].get(name)) for name in ("C", "pass_rate")):
            return "the last evaluation has no number: the weights, or the verifier, have failed"
        try:
            alarm = falling(curve_of_run(self._evaluations, "run"))
        except (InputError, FitError):
            return None
        if alarm is None:
            return None
        return f"the run no longer learns: {alarm.evidence}; {alarm.advice}"
