"""What a screen remembers of a run: events in, columns out, in memory that does not grow with the log.

`RunStore.take` is given the events of a log in order and honours `resume`. `RunStore.view(until)` is the run
as it stood at a time of the world's clock: live screens look at all of it, a replay at what lies before
its cursor. Tables are capped: of the updates and evaluations of very long runs one in so many is kept,
evenly from the start on, and all of the newest; of phases and samples only the newest. Each evaluation
set has a table of its own, so that thinning does not mix them. (Longer than most
files: one short method a kind of event, and the view over what they kept.)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.curves.curve import VALIDATION
from scalerl.events import Event, is_number
from tui.words import printable

Floats = NDArray[np.float64]

UPDATE_FIELDS = (
    "update", "version", "epoch", "tokens", "t", "gpu_h", "loss", "reward", "pass_rate", "truncated",
    "interrupted", "zero_variance", "length_mean_tokens", "trained_tokens", "entropy", "kl", "mismatch_kl",
    "stale_kv_kl", "ess", "capped", "grad_norm", "stall_s", "skipped",
)  # fmt: skip
PHASE_FIELDS = ("role", "index", "what", "start", "end", "gpus")
NEEDED = {"update": ("update", "gpu_h")}  # without these numbers an event says nothing
LARGEST_COUNT = 2**53
MOST_SETS = 32  # of a mixture of seven tasks, three sets each; what comes beyond is passed over
MOST_UPDATES, MOST_EVALS, MOST_PHASES, MOST_SAMPLES, MOST_NOTICES = (
    20_000,
    2_000,
    40_000,
    400,
    1_000,
)


@dataclass(frozen=True)
class Notice:
    """Something that happened: 4120.0 s, update 311, "watch", "resumed at 57.1 GPU-h"."""

    clock: float
    update: int
    level: str  # ok, watch, danger
    what: str


class Table:
    """Rows of numbers with the `seq` and the clock of their events, which only grow, and how many came before."""

    def __init__(self, columns: Sequence[str], most: int, *, newest_only: bool) -> None:
        self.place = {name: i for i, name in enumerate(columns)}
        self._most, self._newest_only = most, newest_only
        self._rows = np.empty((64, len(columns) + 3))
        self._extra: list[Any] = []
        self._one_in = 1
        self.n = 0

    def append(self, seq: int, clock: float, values: Sequence[float], extra: Any = None) -> None:
        if self.n == len(self._rows):
            if self.n >= self._most:
                self._thin()
            else:
                more = min(self.n, self._most - self.n)
                self._rows = np.concatenate([self._rows, np.empty_like(self._rows[:more])])
        came = self._rows[self.n - 1, 2] + 1 if self.n else 0
        self._rows[self.n] = (seq, clock, came, *values)
        self._extra.append(extra)
        self.n += 1

    def _thin(self) -> None:
        """Keep half the rows: the newest; or the newest eighth, and evenly one in so many of all that came."""
        place = np.arange(self.n)
        keep = place[place >= self.n // 2]
        while not self._newest_only:
            even = self._rows[: self.n, 2] % self._one_in == 0
            keep = place[even | (place >= self.n - self.n // 8)]
            if len(keep) <= self.n // 2:
                break
            self._one_in *= 2
        self._rows[: len(keep)] = self._rows[keep]
        self._extra = [self._extra[i] for i in keep]
        self.n = len(keep)

    def void(self, seq: int) -> None:
        """Forget the rows of events numbered `seq` and above."""
        self.n = int(np.searchsorted(self._rows[: self.n, 0], seq))
        del self._extra[self.n :]

    def count(self, until: float | None) -> int:
        """Rows up to a time."""
        if until is None:
            return self.n
        return int(np.searchsorted(self._rows[: self.n, 1], until, side="right"))

    def column(self, name: str, n: int) -> Floats:
        return self._rows[:n, self.place[name] + 3]

    def clock(self, n: int) -> Floats:
        return self._rows[:n, 1]

    def extra(self, n: int) -> list[Any]:
        return self._extra[:n]


class RunStore:
    """All that is kept of one run. `changes` counts what came in, so that a screen knows when to look."""

    def __init__(self) -> None:
        self.changes = 0
        self._takers = {
            "run": self._run,
            "resume": self._resume,
            "update": self._step,
            "eval": self._eval,
            "phase": self._phase,
            "sample": self._sample,
            "warning": self._warning,
            "fault": self._fault,
            "done": self._done,
        }
        self.reset()

    def reset(self) -> None:
        """Forget the run: its log began anew."""
        self.changes += 1
        self.head: Event | None = None
        self.done: Event | None = None
        self.fault: Event | None = None
        self.resumed = 0
        self.unknown: dict[str, int] = {}
        self._clock = 0.0
        self._seq = -1
        self._update = 0
        self.updates = Table(UPDATE_FIELDS, MOST_UPDATES, newest_only=False)
        self.evals: dict[str, Table] = {}  # by set, in the order in which they came
        self.phases = Table(PHASE_FIELDS, MOST_PHASES, newest_only=True)
        self.samples = Table((), MOST_SAMPLES, newest_only=True)
        self.notices = Table((), MOST_NOTICES, newest_only=True)
        self.lanes: dict[str, set[int]] = {}  # of each role, the GPUs that ever worked
        self._codes: dict[str, int] = {}
        self.words: list[str] = []

    def take(self, events: Iterable[Event]) -> None:
        """Take in events in the order of the log; what is not understood is counted, never fatal."""
        for event in events:
            self.changes += 1
            kind = event["kind"]
            if kind not in self._takers or not _whole(event):
                self.unknown[kind] = self.unknown.get(kind, 0) + 1
                continue
            if kind != "resume":
                self._seq = max(self._seq, event["seq"])
                if is_number(clock := event.get("clock")):
                    self._clock = max(self._clock, float(clock))
            self._takers[kind](event)

    # ---- one method a kind ----

    def _run(self, event: Event) -> None:
        self.head = event
        self.done = self.fault = None
        self._notice("ok", "the run began")

    def _resume(self, event: Event) -> None:
        seq = event.get("from_seq", 0)
        tables = (self.updates, *self.evals.values(), self.phases, self.samples, self.notices)
        for table in tables:
            table.void(seq)
        self.done = self.fault = None
        self.resumed += 1
        self._seq = seq - 1
        said = event.get("clock")
        left = [float(table.clock(table.n)[-1]) for table in tables if table.n]
        self._clock = max([float(said) if is_number(said) else 0.0, *left])
        self._update = (
            int(self.updates.column("update", self.updates.n)[-1]) if self.updates.n else 0
        )
        if seq <= 0:
            self.head = None
        gpu_h = event.get("gpu_h")
        at = f" at {gpu_h:.1f} GPU-h" if is_number(gpu_h) else ""
        self._notice("ok", f"taken up again{at}")

    def _step(self, event: Event) -> None:
        values = [_number(event.get(name)) for name in UPDATE_FIELDS]
        self.updates.append(self._seq, self._clock, values, _counts(event.get("lag_tokens")))
        self._update = int(event["update"])
        if event.get("skipped") is True:
            self._notice("watch", "update skipped: no group of the batch had a mixed outcome")

    def _eval(self, event: Event) -> None:
        name = event.get("set")
        if not isinstance(name, str):
            return
        if name not in self.evals:
            if len(self.evals) == MOST_SETS:
                return
            self.evals[name] = Table((), MOST_EVALS, newest_only=False)
        self.evals[name].append(self._seq, self._clock, (), event)

    def _phase(self, event: Event) -> None:
        role, what = self._code(event.get("role")), self._code(event.get("what"))
        index, start = _number(event.get("index")), _number(event.get("start"))
        end, gpus = _number(event.get("end")), _number(event.get("gpus", 1))
        if not math.isnan(index + start + end + gpus):
            self.lanes.setdefault(self.words[role], set()).add(int(index))
            self.phases.append(self._seq, self._clock, (role, index, what, start, end, gpus))

    def _sample(self, event: Event) -> None:
        self.samples.append(self._seq, self._clock, (), event)

    def _warning(self, event: Event) -> None:
        self._notice("watch", f"warning: {event.get('what', 'without a word')}")

    def _fault(self, event: Event) -> None:
        fatal = "group" not in event
        self._notice("danger" if fatal else "watch", f"fault: {event.get('cause', '?')}")
        if fatal:
            self.fault = event

    def _done(self, event: Event) -> None:
        self.done = event
        said = {
            "done": "the run is done",
            "stopped": "the run was stopped",
            "exhausted": "no prompt is left",
        }
        self._notice("ok", said.get(str(event.get("status")), f"ended: {event.get('status')}"))

    # ---- their parts ----

    def _notice(self, level: str, what: str) -> None:
        notice = Notice(self._clock, self._update, level, printable(what))
        self.notices.append(self._seq, self._clock, (), notice)

    def _code(self, word: Any) -> int:
        word = word if isinstance(word, str) else "?"
        if word not in self._codes:
            self._codes[word] = len(self.words)
            self.words.append(printable(word))
        return self._codes[word]

    # ---- looking ----

    @property
    def clock(self) -> float:
        """The world's clock at the newest event, in seconds."""
        return self._clock

    def view(self, until: float | None = None) -> "RunView":
        """The run as it stood at `until` seconds of the world's clock, or now."""
        return RunView(self, until)


class RunView:
    """A run at one moment. Arrays are views of the store's: read them, and let go."""

    def __init__(self, store: RunStore, until: float | None) -> None:
        self.store, self.until = store, until
        self.clock = store.clock if until is None else min(until, store.clock)
        self.n = store.updates.count(until)
        self._evals = {name: table.count(until) for name, table in store.evals.items()}
        self.ended = until is None or until >= store.clock

    @property
    def head(self) -> Event:
        return self.store.head or {}

    @property
    def done(self) -> Event | None:
        return self.store.done if self.ended else None

    @property
    def fault(self) -> Event | None:
        return self.store.fault if self.ended else None

    def setting(self, key: str, default: Any = None) -> Any:
        """A setting of the run's recipe by dotted key; `site.` reaches the site."""
        top, _, rest = key.partition(".")
        at: Any = self.head.get("site") if top == "site" else self.head.get("recipe")
        for part in (rest if top == "site" else key).split("."):
            at = at.get(part) if isinstance(at, dict) else None
        return default if at is None else at

    def column(self, name: str) -> Floats:
        """A metric at every update; nan where it was not reported."""
        return self.store.updates.column(name, self.n)

    def last(self, name: str, at: int | None = None) -> float | None:
        """A metric at the newest update, or at row `at`; None where there is none."""
        row = self.n - 1 if at is None else at
        value = self.column(name)[row] if 0 <= row < self.n else np.nan
        return None if np.isnan(value) else float(value)

    def lags(self, at: int | None = None) -> NDArray[np.int64]:
        """Trained tokens by lag at the newest update, or at row `at`."""
        row = self.n - 1 if at is None else at
        return self.store.updates.extra(self.n)[row] if 0 <= row < self.n else np.zeros(0, np.int64)

    def row_at(self, gpu_h: float) -> int | None:
        """The row of the last update at or before a compute; None before the first."""
        row = int(np.searchsorted(self.column("gpu_h"), gpu_h * (1 + 1e-9), side="right")) - 1
        return row if row >= 0 else None

    def sets(self) -> list[str]:
        """The sets that have been evaluated by now: validation first, then as they came."""
        found = [name for name, n in self._evals.items() if n]
        return sorted(found, key=lambda name: name != VALIDATION)

    def evals(self, evaluation_set: str = VALIDATION) -> list[Event]:
        """The `eval` events of a set."""
        n = self._evals.get(evaluation_set, 0)
        return self.store.evals[evaluation_set].extra(n) if n else []

    def newest_rate(self, evaluation_set: str) -> float | None:
        """The pass rate of the last evaluation of a set; None where it has none that is a number."""
        rates = [event.get("pass_rate") for event in self.evals(evaluation_set)[-1:]]
        return float(rates[0]) if rates and is_number(rates[0]) else None

    def update_events(self, newest: int) -> list[Event]:
        """The newest updates as events again, as the alarms take them."""
        names = ("update", "truncated", "entropy", "kl", "ess", "zero_variance")
        start = max(self.n - newest, 0)
        rows = zip(*(self.column(name)[start:].tolist() for name in names), strict=True)
        return [{"kind": "update", **dict(zip(names, row, strict=True))} for row in rows]

    def samples(self) -> list[Event]:
        return self.store.samples.extra(self.store.samples.count(self.until))

    def notices(self) -> list[Notice]:
        return self.store.notices.extra(self.store.notices.count(self.until))

    def phases(self, since: float) -> list[tuple[str, int, str, float, float, float]]:
        """(role, index, what, start, end, gpus) of every phase that reaches into since .. now."""
        table = self.store.phases
        n = table.count(self.until)
        first = int(np.searchsorted(table.clock(n), since))
        columns = [table.column(name, n)[first:].tolist() for name in PHASE_FIELDS]
        words = self.store.words
        return [
            (words[int(role)], int(index), words[int(what)], start, end, gpus)
            for role, index, what, start, end, gpus in zip(*columns, strict=True)
            if end > since and start < self.clock
        ]

    def seconds_per_update(self, over: int = 20) -> float | None:
        """Wall seconds an update took of late; None before the third, or across a resume."""
        t = self.column("t")[-over:]
        if len(t) < 3 or np.isnan(t).any() or t[-1] <= t[0]:
            return None
        return float(t[-1] - t[0]) / (len(t) - 1)


def _number(value: Any) -> float:
    if type(value) is float:
        return value if math.isfinite(value) else math.nan
    return float(value) if isinstance(value, bool) or is_number(value) else math.nan


def _whole(event: Event) -> bool:
    """Whether an event has its place in the log, as `read_events` asks, and the numbers it cannot do without."""
    kind = event["kind"]
    place = event.get("from_seq", 0) if kind == "resume" else event.get("seq")
    if not (isinstance(place, int) and is_number(place)):
        return False
    needed = NEEDED.get(kind)
    return needed is None or all(is_number(event.get(name)) for name in needed)


def _counts(tokens: Any) -> NDArray[np.int64]:
    """Tokens by lag; none at all where one of them cannot be a count, for the lags after it would be wrong."""
    ok = isinstance(tokens, list) and all(
        isinstance(n, int) and 0 <= n <= LARGEST_COUNT for n in tokens
    )
    return np.array(tokens if ok else [], dtype=np.int64)
