"""Signs that a run is about to break, each with its evidence, its threshold and what to try.

Two kinds. The *curve*: evaluations that fall below what the curve so far predicts. The *updates*:
truncation, entropy, KL, effective sample size and zero-variance groups, from the event stream.
An alarm that fired stays reported after the run has recovered: its evidence says when, and for a
level of the updates also where it stands now.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from scalerl.curves.curve import Curve
from scalerl.curves.region import autocorrelation
from scalerl.curves.uncertainty import Uncertainty
from scalerl.events import Event, is_number, lost_evaluations
from scalerl.fit import FitError, Floats, fit_points

GRAVEST_FIRST = ("collapse", "danger", "watch")

# --- the residual test ---
BASELINE = 8  # points of the first baseline
LEAST_SCATTER = 0.002  # of healthy runs' residuals, published: a smaller drop is none
LEAST_FALL, FALL_LEVEL = 0.01, 0.999
FEWEST_IN_LINES = 18
ALPHA = 0.05  # chance that a healthy run ever fires, for each baseline

# --- the updates ---
TRUNCATION = ((0.05, "watch"), (0.10, "danger"), (0.15, "collapse"))
LOW_ESS = ((0.8, "watch"), (0.5, "danger"))
ZERO_VARIANCE = ((0.6, "watch"), (0.9, "danger"))
MEAN_OF = 8  # updates in a rolling mean
JUMP_OVER = 32  # updates before, that a jump is measured against
JUMP, JUMP_FACTOR = (
    3.0,
    1.5,
)  # robust standard deviations of the logarithm, and at least this factor
LEAST_NATS = 1e-6
MATTERS = {"kl": 0.01, "entropy": 0.1}  # nats; a jump from nothing to less is none
TREND_OF = 24  # updates of a trend
TREND_T = 4.0  # Student's t of its slope


@dataclass(frozen=True)
class Alarm:
    """One row: "residual", "danger", C 8214.0, "R = 0.447 at ...", "p = 0.004 < 0.008", "stop, ...".

    level: "watch", "danger" or "collapse". at: where it first fired, in the unit `of` names
    ("compute" or "update").
    """

    name: str
    level: str
    at: float
    of: str
    evidence: str
    threshold: str
    advice: str


def alarms(
    curve: Curve,
    events: Sequence[Event] = (),
    baseline_C: float | None = None,
    alpha: float = ALPHA,
) -> list[Alarm]:
    """Every alarm of a run, the gravest first; `baseline_C` and `alpha` as in `residual`."""
    updates = [event for event in events if event["kind"] == "update"]
    found = [
        lost(curve, events),
        residual(curve, baseline_C, alpha),
        falling(curve),
        truncation(updates),
        truncation_trend(updates),
        jump(updates, "entropy"),
        jump(updates, "kl"),
        low_ess(updates),
        zero_variance(updates),
    ]
    fired = [each for each in found if each is not None]
    return sorted(fired, key=lambda alarm: GRAVEST_FIRST.index(alarm.level))


# ---- the curve -----------------------------------------------------------------------------------


def lost(curve: Curve, events: Sequence[Event]) -> Alarm | None:
    """Evaluations that gave no number: a run whose rates are NaN has broken, and draws no curve of it."""
    count = lost_evaluations(list(events), curve.evaluation_set)
    if not count:
        return None
    return Alarm(
        "lost evaluations",
        "danger",
        curve.last_C if len(curve.C_N) else 0.0,
        "compute",
        f"{count} evaluations have no number for C or pass_rate, {len(curve.C_N)} have",
        "none should be lost",
        "look at the log where they stand: NaN weights, a verifier that failed, a damaged file",
    )


def residual(curve: Curve, baseline_C: float | None = None, alpha: float = ALPHA) -> Alarm | None:
    """Evaluations below the *predictive* interval of an earlier fit, one after the other.

    A baseline is fitted once and left alone, so that a slow decline cannot drag it down. Late
    evaluation j after it fires when its tail probability under that fit is below

        alpha / (j (j + 1)),   which sums to alpha over however many there will be.

    The prediction counts the ridge of the fit, the scatter of the points and their autocorrelation.

    Args:
        baseline_C: end of the baseline; None takes the first 8, 16, 32, ... evaluations in turn,
            those at which the knee has been seen.
        alpha: chance that a healthy run ever fires, for each baseline.
    """
    n = len(curve.C_N)
    if baseline_C is not None:
        ends = [int(np.searchsorted(curve.C_N, baseline_C, side="right"))]
    else:
        ends = [BASELINE * 2**i for i in range(n.bit_length()) if BASELINE * 2**i < n]
    for start, end in pairwise([*ends, n]):
        known = _known(curve.rows(np.arange(start)))
        if known is None or (baseline_C is None and not known.fit.knee_seen(curve.C_N[start - 1])):
            continue
        for j, i in enumerate(range(start, end), 1):
            tail, limit = _tail(known, curve, i), alpha / (j * (j + 1))
            if tail < limit:
                wanted = float(known.fit.predict(curve.C_N[i]))
                return _below(curve, i, start, wanted, tail, limit, alpha)
    return None


def _known(curve: Curve) -> Uncertainty | None:
    try:
        points = curve.points()
    except FitError:
        return None
    return Uncertainty(points, fit_points(points), curve.R0_se)


def _tail(known: Uncertainty, curve: Curve, i: int) -> float:
    """Probability of an evaluation as low as the i-th, or lower, under a fit."""
    C, R = float(curve.C_N[i]), float(curve.R_N[i])
    predicted, sd = known.rate(C), known.noise.sd
    assert predicted.lo is not None  # a rate always has ends
    if curve.se_N is not None:  # the fit's scatter is that of a point of mean weight 1 / se^2
        sd *= float(curve.se_N[i]) * np.sqrt(known.points.w_N.mean())
    ridge = (predicted.value - predicted.lo) / known.noise.t()
    scatter = max(float(np.hypot(sd, ridge)), LEAST_SCATTER)
    return float(stdtr(known.noise.dof, (R - predicted.value) / scatter))


def _below(
    curve: Curve, i: int, start: int, wanted: float, tail: float, limit: float, alpha: float
) -> Alarm:
    C, R = float(curve.C_N[i]), float(curve.R_N[i])
    return Alarm(
        "residual",
        "danger",
        C,
        "compute",
        f"R = {R:.3f} at {C:,.6g} {curve.unit}, {wanted - R:.3f} below what the first {start}"
        f" evaluations predict",
        f"p = {tail:.1g} < {limit:.1g} (false alarms: {alpha:.2g} for each baseline)",
        "stop extending; look at truncation and KL there, and go back to a checkpoint before it",
    )


def falling(curve: Curve) -> Alarm | None:
    """A curve that ends below where it stood: the mean of its last third against that of its best third.

    For runs that break before there is a curve to leave, where `residual` has nothing to predict
    from.
    """
    n = len(curve.C_N)
    if n < 6:
        return None
    thirds = np.array_split(np.arange(n), 3)
    means = [float(curve.R_N[rows].mean()) for rows in thirds]
    best = int(np.argmax(means[:2]))
    rows, last = thirds[best], thirds[2]
    scatter, dof = _scatter(curve.R_N, thirds)
    spread = scatter * np.sqrt(1.0 / len(rows) + 1.0 / len(last))
    drop = means[best] - means[2]
    limit = max(float(stdtrit(dof, FALL_LEVEL)) * spread, LEAST_FALL)
    if drop <= limit:
        return None
    return Alarm(
        "falling",
        "danger",
        float(curve.C_N[last[0]]),
        "compute",
        f"the last third of the evaluations has mean {means[2]:.3f}, an earlier one {means[best]:.3f}",
        f"a drop of {drop:.3f} > {limit:.3f} (Student's t at {FALL_LEVEL:.1%}, at least {LEAST_FALL})",
        "no rising sigmoid describes this run: look for what broke it, and start again from before",
    )


def _scatter(R_N: Floats, parts: Sequence[NDArray[np.intp]]) -> tuple[float, float]:
    """(sd of a point, degrees of freedom) about a line in each part, or a mean where points are few.

    The sd is that of independent points worth as much as these, which may err together.
    """
    n, degree = len(R_N), 1 if len(R_N) >= FEWEST_IN_LINES else 0
    p = (degree + 1) * len(parts)
    e_N = np.concatenate(
        [R_N[part] - np.polyval(np.polyfit(part, R_N[part], degree), part) for part in parts]
    )
    sse, inflation = float(e_N @ e_N), 1.0
    if degree:
        rho = autocorrelation(e_N, p)
        inflation = (1.0 + rho) / (1.0 - rho)
    variance = inflation * sse / max(n - p * inflation, 0.3 * n)
    return float(np.sqrt(variance)), max((n - p) / inflation, 2.0)


# ---- the updates ---------------------------------------------------------------------------------


def truncation(updates: Sequence[Event]) -> Alarm | None:
    """Truncation above 5, 10 or 15 %, as a mean over eight updates (above 10 to 15 % collapse has followed)."""
    return _level(
        updates,
        "truncated",
        TRUNCATION,
        "completions without an end inside the answer budget",
        "length.kind=interruption, a longer answer budget, or go back to before it rose",
    )


def truncation_trend(updates: Sequence[Event]) -> Alarm | None:
    """Truncation that rises steadily and would reach 10 % within as many updates as the trend is long."""
    at_N, value_N = _series(updates, "truncated")
    for end in range(TREND_OF, len(value_N) + 1):
        y = value_N[end - TREND_OF : end]
        x = np.arange(TREND_OF) - (TREND_OF - 1) / 2.0
        slope = float(x @ y / (x @ x))
        rest = y - y.mean() - slope * x
        se = np.sqrt(max(rest @ rest, 1e-12) / (TREND_OF - 2) / (x @ x))
        ahead = float(y.mean() + slope * 1.5 * TREND_OF)
        if slope > TREND_T * se and ahead >= TRUNCATION[1][0] and y.mean() < TRUNCATION[1][0]:
            return Alarm(
                "truncation trend",
                "watch",
                float(at_N[end - 1]),
                "update",
                f"truncation rises by {100 * slope:.2f} points an update, {ahead:.0%} in {TREND_OF} more",
                f"t = {slope / se:.1f} > {TREND_T:g}, and {TRUNCATION[1][0]:.0%} in sight",
                "read truncated completions; interrupt thinking earlier (length.low, length.high)",
            )
    return None


def jump(updates: Sequence[Event], name: str) -> Alarm | None:
    """A mean over eight updates far above what the 32 before it did, by median and MAD of logarithms.

    KL and entropy are positive and scatter by factors, not by differences.
    """
    at_N, value_N = _series(updates, name)
    for end in range(JUMP_OVER + MEAN_OF, len(value_N) + 1):
        before = np.log(np.maximum(value_N[end - MEAN_OF - JUMP_OVER : end - MEAN_OF], LEAST_NATS))
        now = float(value_N[end - MEAN_OF : end].mean())
        middle = float(np.median(before))
        spread = 1.4826 * float(np.median(np.abs(before - middle)))
        rise = np.log(max(now, LEAST_NATS)) - middle
        if rise > max(JUMP * spread, np.log(JUMP_FACTOR)) and now > MATTERS[name]:
            told = (
                f"{rise / spread:.0f} robust standard deviations" if spread else "nothing like it"
            )
            return Alarm(
                f"{name} jump",
                "watch",
                float(at_N[end - 1]),
                "update",
                f"mean {name} {now:.4g} over {MEAN_OF} updates, {np.exp(middle):.4g} over the"
                f" {JUMP_OVER} before",
                f"{told} > {JUMP:g} (of the logarithm), and a factor above {JUMP_FACTOR:g}",
                "lower the learning rate or k; in one public collapse this came before truncation",
            )
    return None


def low_ess(updates: Sequence[Event]) -> Alarm | None:
    """Effective sample size of the importance weights below 0.8 or 0.5, over eight updates."""
    return _level(
        updates,
        "ess",
        LOW_ESS,
        "effective sample size of the importance weights",
        "a smaller k, a lower learning rate, or a lower cap: stale tokens decide too much",
        below=True,
    )


def zero_variance(updates: Sequence[Event]) -> Alarm | None:
    """Most groups all right or all wrong, over eight updates: compute that teaches nothing."""
    return _level(
        updates,
        "zero_variance",
        ZERO_VARIANCE,
        "groups without a mixed outcome",
        "harder or easier prompts, curriculum.kind=no_positive_resampling, zero_variance=resample",
    )


def _level(
    updates: Sequence[Event],
    name: str,
    levels: Sequence[tuple[float, str]],
    what: str,
    advice: str,
    below: bool = False,
) -> Alarm | None:
    """The gravest level that the rolling mean of a metric ever reached, and when it first did."""
    at_N, value_N = _series(updates, name)
    if len(value_N) < MEAN_OF:
        return None
    rolling_N = np.convolve(value_N, np.full(MEAN_OF, 1.0 / MEAN_OF), mode="valid")
    for limit, level in reversed(levels):
        beyond = np.flatnonzero(rolling_N < limit if below else rolling_N > limit)
        if len(beyond):
            worst = rolling_N.min() if below else rolling_N.max()
            return Alarm(
                name.replace("_", "-"),
                level,
                float(at_N[beyond[0] + MEAN_OF - 1]),
                "update",
                f"{what}: {worst:.1%} at worst, {rolling_N[-1]:.1%} now (means of {MEAN_OF} updates)",
                f"{'below' if below else 'above'} {limit:.0%}",
                advice,
            )
    return None


def _series(updates: Sequence[Event], name: str) -> tuple[Floats, Floats]:
    """(update, value) of a metric, of the updates that have it."""
    rows = [
        (event["update"], event[name])
        for event in updates
        if is_number(event.get("update")) and is_number(event.get(name))
    ]
    table_N2 = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return table_N2[:, 0], table_N2[:, 1]
