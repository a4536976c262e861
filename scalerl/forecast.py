"""What a curve so far says of its end: verdict, intervals, rivals and alarms.

`forecast` puts the fit, its uncertainty, its rivals and its alarms together. In what it reports, A
and every rate beyond the points are known to +-0.02 at best: runs of one recipe differ by as much
(published: three replicates within 0.015), and no single run can say otherwise. Three seeds can.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from scalerl.curves.alarms import ALPHA, GRAVEST_FIRST, Alarm, alarms
from scalerl.curves.curve import Curve, amount, pool, thinned
from scalerl.curves.prompts import between_prompts
from scalerl.curves.region import LEVEL, noise_of, noise_within
from scalerl.curves.rivals import Rival, rivals
from scalerl.curves.search import MIN_GAIN, FoundMany
from scalerl.curves.uncertainty import Interval, Uncertainty
from scalerl.events import Event
from scalerl.fit import FitError, Floats, Grid, Points, Real, SigmoidFit, fit_points

Verdict = Literal["ok", "not_identifiable", "unstable"]

RUN_TO_RUN = 0.02  # half width, at LEVEL, of what another run of the same recipe would give
C_MID_RUN_TO_RUN = 0.05  # sd of ln C_mid from run to run: assumed, nothing is published of it
ENOUGH_SEEDS = 3
NARROWEST = 1.05  # of the last C to the first: below, nothing of the curve can be told
SMALLEST_C = 1e-100
FEWEST_POINTS = 8
# Half width of A, as if the points erred independently, beyond which nothing is claimed of it. The
# autocorrelation is left out here: judged by a width that it enters, runs whose autocorrelation is
# underestimated are the ones believed, and their intervals hold too seldom.
WIDEST = 0.08
Z = float(stdtrit(1e9, 0.5 + LEVEL / 2))


@dataclass(frozen=True)
class Forecast:
    """A fitted curve with all that goes with it. The intervals are at 90 %.

    curve: the points the fit may use; of several seeds, all of theirs. whole: those outside the
    window too, and none averaged. seeds: the fit of each seed, empty for one run. grid: the grid searched.
    why: the verdict's reason in words, "" when it is "ok".
    """

    curve: Curve
    whole: Curve
    fit: SigmoidFit
    grid: Grid | None
    window: tuple[float, float] | None
    uncertainty: Uncertainty
    seeds: tuple[SigmoidFit, ...]
    prompts_se: float
    rivals: list[Rival]
    alarms: list[Alarm]
    verdict: Verdict
    why: str

    @property
    def last_C(self) -> float:
        return self.curve.last_C

    def A(self) -> Interval:
        """The ceiling of another run, for new prompts of the same kind; from three seeds on, of the recipe."""
        return self._as_rate(self.uncertainty.A(), lambda fit: fit.A, ahead=True)

    def R0(self) -> Interval:
        return self.uncertainty.R0()

    def B(self) -> Interval:
        return self._reported(self.uncertainty.B(), lambda fit: fit.B)

    def C_mid(self) -> Interval:
        return self._reported(self.uncertainty.C_mid(), lambda fit: fit.C_mid)

    def compute_to_share(self, q: float) -> Interval:
        found = self.uncertainty.compute_to_share(q)
        return self._reported(found, lambda fit: fit.compute_to_share(q))

    def rate(self, C: float) -> Interval:
        """R(C); beyond the points never known better than +-0.02 from fewer than three seeds."""
        found = self.uncertainty.rate(C)
        return self._as_rate(found, lambda f: float(f.predict(C)), ahead=C > self.last_C)

    def _as_rate(
        self, found: Interval, of: Callable[[SigmoidFit], float], *, ahead: bool
    ) -> Interval:
        """A rate, and ahead of the points the errors between prompts and between runs."""
        found = found.at_least(self._between_seeds(of), 0.0, 1.0)
        if ahead:
            found = found.widened(Z * self.prompts_se, 0.0, 1.0)
            if len(self.seeds) < ENOUGH_SEEDS:
                found = found.at_least(RUN_TO_RUN, 0.0, 1.0)
        return found

    def _reported(self, found: Interval, of: Callable[[SigmoidFit], float]) -> Interval:
        """A positive number: seeds scatter by factors."""
        half = np.exp(self._between_seeds(lambda fit: float(np.log(of(fit)))))
        lo = None if found.lo is None else min(found.lo, found.value / half)
        hi = None if found.hi is None else max(found.hi, found.value * half)
        return Interval(found.value, float(lo) if lo else None, float(hi) if hi else None)

    def _between_seeds(self, of: Callable[[SigmoidFit], float]) -> float:
        """Half width of the t-interval of the seeds' mean; 0 for fewer than three."""
        if len(self.seeds) < ENOUGH_SEEDS:
            return 0.0
        values = np.array([of(fit) for fit in self.seeds])
        t = float(stdtrit(len(values) - 1, 0.5 + LEVEL / 2))
        return float(t * values.std(ddof=1) / np.sqrt(len(values)))

    @property
    def between_runs(self) -> float:
        """Standard deviation of A from run to run: of three seeds or more, else as published."""
        if len(self.seeds) >= ENOUGH_SEEDS:
            return float(np.std([fit.A for fit in self.seeds], ddof=1))
        return RUN_TO_RUN / Z

    def draws(self, D: int, seed: int) -> FoundMany:
        """D curves of the recipe: the ridge, and what this run, or the mean of these seeds, says of it."""
        drawn, rng = self.uncertainty.draws(D, seed), np.random.default_rng([seed, 1])
        by_A, by_lnC = RUN_TO_RUN / Z, C_MID_RUN_TO_RUN
        scatter_2D = rng.standard_normal((2, D)) / np.sqrt(max(len(self.seeds), 1))
        if len(self.seeds) >= ENOUGH_SEEDS:  # what the seeds scatter beyond the ridge
            by_A = _beyond(self._between_seeds(lambda fit: fit.A), drawn.A_S)
            lnC_D = np.log(drawn.C_mid_S)
            by_lnC = _beyond(self._between_seeds(lambda fit: float(np.log(fit.C_mid))), lnC_D)
            scatter_2D = rng.standard_normal((2, D))
        A_S = np.clip(drawn.A_S + by_A * scatter_2D[0], drawn.R0_S + MIN_GAIN, 1.0)
        return drawn._replace(A_S=A_S, C_mid_S=drawn.C_mid_S * np.exp(by_lnC * scatter_2D[1]))


def _beyond(half: float, values_D: Floats) -> float:
    """Standard deviation that widens draws to a half width at LEVEL; 0 if they are as wide already."""
    return float(np.sqrt(max((half / Z) ** 2 - np.var(values_D), 0.0)))


def forecast(
    curves: Sequence[Curve],
    *,
    R0: Real | None = None,
    window: tuple[float, float] | None = None,
    grid: Grid | None = None,
    events: Sequence[Sequence[Event]] = (),
    name: str | None = None,
) -> Forecast:
    """Fit one run, or several seeds of one recipe, and say what it is worth.

    Args:
        curves: one curve per seed.
        R0, window, grid: as in `fit_sigmoid`; a measured R0 is used unless one is given.
        events: of each run, for the alarms of its updates.

    Raises:
        FitError: points that no curve can be fitted to.
    """
    if not curves:
        raise FitError("no curve to forecast from")
    curves = [each.given(R0) for each in curves]
    whole = pool(curves, name or curves[0].name)
    inside = thinned(whole.within(window))
    _refuse(whole, inside, R0)
    points = inside.points()
    fit = fit_points(points, grid)
    R0_se = whole.R0_se
    if whole.R0_from == "measured" and not R0_se:  # as well as any other evaluation
        R0_se = noise_of(points, fit).sd
    parts = _seed_fits(curves, window, grid)
    uncertainty = Uncertainty(points, fit, R0_se, noise_within(parts) if parts else None)
    # A window that leaves late points out asks whether they follow.
    ends_early = window is not None and window[1] < whole.last_C
    start = window[0] if window else 0.0
    watched = [thinned(each.within((start, np.inf))) for each in curves]
    found = _alarms(watched, events, inside.last_C if ends_early else None)
    verdict, why = judge(inside, uncertainty, found)
    return Forecast(
        curve=inside,
        whole=whole,
        fit=fit,
        grid=grid,
        window=window,
        uncertainty=uncertainty,
        seeds=tuple(of_seed for _, of_seed in parts),
        prompts_se=between_prompts(whole),
        rivals=rivals(points),
        alarms=found,
        verdict=verdict,
        why=why,
    )


def _refuse(whole: Curve, inside: Curve, R0: Real | None) -> None:
    """What a fit would take, and make nonsense of."""
    if not len(inside.C_N) and len(whole.C_N):
        first, last = f"{whole.C_N[0]:,.6g}", f"{whole.last_C:,.6g} {whole.unit}"
        raise FitError(f"no point is in the window: they run from {first} to {last}")
    if len(inside.C_N) > 1 and inside.last_C < NARROWEST * inside.C_N[0]:
        raise FitError(
            f"compute runs from {inside.C_N[0]:,.9g} to {inside.last_C:,.9g} only: is it a time of day,"
            " or does it begin at an offset? Subtract that"
        )
    if len(inside.C_N) and not SMALLEST_C < inside.C_N[0] <= inside.last_C < 1.0 / SMALLEST_C:
        raise FitError(f"compute beyond {SMALLEST_C:g} .. {1 / SMALLEST_C:g}: choose another unit")
    if R0 is not None and len(whole.R_N) and whole.R_N.max() <= R0:
        raise FitError(f"R0 = {R0} is above every point: a curve that rises from there meets none")


def _alarms(
    curves: Sequence[Curve], events: Sequence[Sequence[Event]], baseline_C: float | None
) -> list[Alarm]:
    """Those of every seed; of several, each says whose it is."""
    found: list[Alarm] = []
    for i, each in enumerate(curves):
        of_run = events[i] if i < len(events) else ()
        mine = alarms(each, of_run, baseline_C, ALPHA / len(curves))
        if len(curves) > 1:
            mine = [replace(alarm, evidence=f"{each.name}: {alarm.evidence}") for alarm in mine]
        found += mine
    return sorted(found, key=lambda alarm: GRAVEST_FIRST.index(alarm.level))


def _seed_fits(
    curves: Sequence[Curve], window: tuple[float, float] | None, grid: Grid | None
) -> list[tuple[Points, SigmoidFit]]:
    """Each seed's points and fit; empty for one run."""
    if len(curves) == 1:
        return []
    parts = []
    for each in curves:
        try:
            points = thinned(each.within(window)).points()
            parts.append((points, fit_points(points, grid)))
        except FitError as error:
            raise FitError(f"{each.name}: {error}; leave that seed out, or wait") from None
    return parts


BREAKS = ("residual", "falling", "lost evaluations")  # alarms after which a fit says nothing


def judge(curve: Curve, known: Uncertainty, found: Sequence[Alarm]) -> tuple[Verdict, str]:
    """Whether the fit may be believed, and if not why not."""
    fit, n = known.fit, len(curve.C_N)
    broken = [alarm for alarm in found if alarm.name in BREAKS]
    if broken:
        return "unstable", broken[0].evidence
    if n < FEWEST_POINTS:
        return "not_identifiable", f"{n} points: below {FEWEST_POINTS} A, B and C_mid are guesses"
    if fit.at_edge:
        return "not_identifiable", "a limit of the search chose A, B or C_mid, not the points"
    if not fit.knee_seen(curve.last_C):
        last = f"the last C, {amount(curve.last_C)} {curve.unit}"
        return "not_identifiable", f"{last}, is below twice C_mid: the ceiling has not been seen"
    if fit.C_mid < curve.C_N[0]:
        first = f"the first C, {amount(float(curve.C_N[0]))} {curve.unit}"
        return "not_identifiable", f"{first}, is above C_mid: the rise has not been seen"
    A = known.A()
    assert A.lo is not None and A.hi is not None  # a ceiling always has ends
    if A.hi - A.lo > 2 * WIDEST * np.sqrt(known.noise.inflation):
        return "not_identifiable", f"A lies anywhere in {A.lo:.3f} .. {A.hi:.3f}"
    return "ok", ""
