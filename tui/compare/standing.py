"""One curve against a base: what was read of it, and where it stands.

A curve is compared with the base by its ceiling. Where the ceilings are the same as far as single
runs can say, the one that gets to a pass rate on less compute is the better. Where one run is much
longer than the other its ceiling rests on compute that the other has not seen: then the two are
compared at the compute that both have.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.curves.alarms import MEAN_OF
from scalerl.curves.comparison import SHARES, Comparison, exponent_at
from scalerl.curves.curve import VALIDATION
from scalerl.curves.search import TINY
from scalerl.curves.sources import PAPER, published_names, read_source
from scalerl.curves.uncertainty import Interval
from scalerl.errors import InputError
from scalerl.events import Event
from scalerl.fit import Floats
from scalerl.forecast import C_MID_RUN_TO_RUN, Forecast, Z
from scenarios.runs import runs_root
from tui.show.canvas import short
from tui.watch.analysis import forecast_of
from tui.watch.store import RunStore, RunView

MATCHED = 2.5  # factor between two last C, from which curves are compared at the smaller
PACE_DRAWS = 1_000


@dataclass(frozen=True, eq=False)
class Entry:
    """One curve of the screen. made: None where it cannot be fitted, and then `why` says why.

    runs: of each seed, what its log says of its updates; empty for points alone.
    """

    source: str
    made: Forecast | None
    runs: tuple[RunView, ...] = ()
    why: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether a run of it had not ended when it was read."""
        return any(run.store.done is None and run.store.fault is None for run in self.runs)

    @property
    def last_C(self) -> float | None:
        return None if self.made is None else self.made.last_C

    def truncated(self) -> float | None:
        """Share of completions cut off, 0..1: mean of the last updates of each seed; None without any."""
        late = [run.column("truncated")[-MEAN_OF:] for run in self.runs]
        values = np.concatenate(late) if late else np.zeros(0)
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else None

    def lag_p95(self) -> int | None:
        """Versions that 95 % of the tokens trained in the last updates lag behind at most; None without any."""
        lags = [run.lags(row) for run in self.runs for row in range(max(run.n - MEAN_OF, 0), run.n)]
        total = np.zeros(max(map(len, lags), default=0))
        for each in lags:
            total[: len(each)] += each
        if not total.sum():
            return None
        return int(np.searchsorted(np.cumsum(total), 0.95 * total.sum()))


def read_entry(source: str) -> Entry:
    """Read and forecast one source; whatever a person can mend becomes the entry's `why`."""
    runs: tuple[RunView, ...] = ()
    try:
        found = read_source(source)
        runs = tuple(_run(events) for events in found.events)
        return Entry(source, forecast_of(found, None, None, None), runs)
    except InputError as error:
        return Entry(source, None, runs, str(error).removeprefix(f"{source}: "))
    except OSError as error:
        return Entry(source, None, runs, error.strerror or str(error))


def _run(events: Sequence[Event]) -> RunView:
    store = RunStore()
    store.take(events)
    return store.view()


# ---- one curve against the base ------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A curve against the base: "slower: 1.89x compute", role "watch".

    gap: its ceiling less the base's, at 90 %; at `matched` compute, where that is not None, its pass
    rate less the base's. pace: as `pace_of` has it, where the ceilings are the same; below 1 the curve
    is the faster. paired: measured on the same held-out prompts. ahead: chance to stand higher.
    """

    words: str
    role: str = ""
    gap: Interval | None = None
    matched: float | None = None
    pace: Interval | None = None
    paired: bool = False
    ahead: float | None = None


def standings(entries: Sequence[Entry], base: str) -> dict[str, Standing]:
    """How every entry stands against the one whose source is `base`, by source."""
    of_base = next((entry for entry in entries if entry.source == base), None)
    against = None if of_base is None else of_base.made
    if against is None:
        return {entry.source: Standing("no base to compare with", "muted") for entry in entries}
    unit = against.curve.unit
    made = {e.source: e.made for e in entries if e.made is not None and e.made.curve.unit == unit}
    places, both = list(made), Comparison(list(made.values()))
    found = {}
    for entry in entries:
        if entry.made is None:
            found[entry.source] = Standing("no fit", "muted")
        elif entry.source not in made:
            found[entry.source] = Standing(
                f"not comparable: in {entry.made.curve.unit}, not {unit}", "muted"
            )
        else:
            i, j = places.index(entry.source), places.index(base)
            no_rival = None if i == j else _other_task(entry, of_base)
            found[entry.source] = (
                no_rival
                or _believed(entry.made)
                or (Standing("base") if i == j else _stands(both, i, j))
            )
    return found


def _other_task(entry: Entry, base: Entry | None) -> Standing | None:
    """Pass rates and hours of two tasks, or of two sets of one, are no rivals."""
    both = [each for each in (entry, base) if each is not None]
    tasks, sets = {task_of(each) for each in both}, {_set_of(each) for each in both}
    if len(tasks) > 1 and None not in tasks:
        return Standing("another task: compare shapes", "muted")
    return Standing("another set: compare shapes", "muted") if len(sets) > 1 else None


def _set_of(entry: Entry) -> str:
    return VALIDATION if entry.made is None else entry.made.curve.evaluation_set


def task_of(entry: Entry) -> str | None:
    """What a curve was measured on, as far as it is known."""
    recipe = entry.made.whole.recipe if entry.made is not None else None
    if recipe is not None:
        return str(recipe.get("site.task"))
    return "the paper's" if entry.source.startswith(PAPER) else None


def _believed(made: Forecast) -> Standing | None:
    words = made.verdict.replace("_", " ")
    return None if made.verdict == "ok" else Standing(f"fit: {words}", "watch")


def _stands(both: Comparison, i: int, j: int) -> Standing:
    """Curve i against the base j."""
    one, base = both.forecasts[i], both.forecasts[j]
    if base.verdict != "ok":
        return Standing(f"base: {base.verdict.replace('_', ' ')}", "muted")
    matched = min(one.last_C, base.last_C)
    same = both.same_ceiling(i, j)
    pace = pace_of(one, base) if same else None
    if max(one.last_C, base.last_C) > MATCHED * matched:
        sign = "<" if one.last_C < base.last_C else ">"
        words = f"not comparable: {short_C(one.last_C)} {sign} {short_C(base.last_C)} {both.unit}"
        duel = both.duel(i, j, matched)
        return Standing(words, "muted", duel.difference, matched, pace, duel.paired, duel.ahead)
    with np.errstate(invalid="ignore"):  # ln inf times a slope of 0; no rate comes of it
        duel = both.duel(i, j, math.inf)
    words, role = _verdict(duel.difference, same, pace)
    return Standing(words, role, duel.difference, None, pace, duel.paired, duel.ahead)


def _verdict(gap: Interval, same: bool, pace: Interval | None) -> tuple[str, str]:
    """Words for a difference of ceilings, from where its interval lies; (words, role)."""
    assert gap.lo is not None and gap.hi is not None  # of draws, which always have ends
    if not same and gap.lo > 0.0:
        return "higher ceiling", "ok"
    if not same and gap.hi < 0.0:
        return "lower ceiling", "danger"
    if not same:
        return f"{'higher' if gap.value > 0 else 'lower'}? intervals overlap", ""
    if pace is not None and pace.hi is not None and pace.hi < 1.0:
        return f"faster: {pace.value:.2f}× compute", "ok"
    if pace is not None and pace.lo is not None and pace.lo > 1.0:
        return f"slower: {pace.value:.2f}× compute", "watch"
    return "≈ same ceiling", ""


def pace_of(one: Forecast, base: Forecast) -> Interval | None:
    """Compute of one curve to 80 % of the gain as a multiple of the base's, both held at the ceiling between theirs.

    Left free, a higher ceiling goes with a later rise, and which of two is the faster drowns in that.
    The interval, at 90 %, has what the points leave open once the ceiling is given, and what runs of
    one recipe differ by. None where a curve with that ceiling misses the points.
    """
    ceiling = (one.fit.A + base.fit.A) / 2.0
    mine, its = exponent_at(one, ceiling), exponent_at(base, ceiling)
    if mine is None or its is None:
        return None
    apart = float(_ln_compute(*mine) - _ln_compute(*its))
    half = Z * math.hypot(_spread(one), _spread(base))
    return Interval(math.exp(apart), math.exp(apart - half), math.exp(apart + half))


def _ln_compute(B: Floats | float, C_mid: Floats | float) -> Floats | float:
    """ln of the compute to the share of the gain that speeds are compared at."""
    q = SHARES[1]
    return np.log(C_mid) + math.log(q / (1.0 - q)) / B


def _spread(made: Forecast) -> float:
    """Standard deviation of that logarithm at a given ceiling, from the points and from run to run."""
    drawn = made.uncertainty.draws(PACE_DRAWS, 0)
    ln_C_D, A_D = np.asarray(_ln_compute(drawn.B_S, drawn.C_mid_S)), drawn.A_S - drawn.A_S.mean()
    slope = A_D @ ln_C_D / max(float(A_D @ A_D), TINY)
    between_runs = C_MID_RUN_TO_RUN / math.sqrt(max(len(made.seeds), 1))
    return math.hypot(float(np.std(ln_C_D - slope * A_D)), between_runs)


def short_C(C: float) -> str:
    """Compute in few cells: 3.1k, 221."""
    return short(float(f"{C:.2g}")) if C >= 1000 else f"{C:.3g}"


def known_sources() -> list[str]:
    """What can be added by name: every run, every folder of several seeds, every curve of the paper."""
    folders = sorted(log.parent for log in runs_root().glob("*/*/*/events.jsonl"))
    arms = [arm for arm in dict.fromkeys(folder.parent for folder in folders)
            if sum(folder.parent == arm for folder in folders) > 1]  # fmt: skip
    return [*map(str, arms), *map(str, folders), *(f"{PAPER}{name}" for name in published_names())]
