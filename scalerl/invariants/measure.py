"""Find out what kind of loss one has: its curve on single tokens, its weights on small batches with pi = mu."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast, get_args

import torch

from scalerl.errors import InputError
from scalerl.invariants.case import Case
from scalerl.invariants.subject import LossRaised, LossUnderTest, mean_of, plain_case
from scalerl.invariants.traits import (
    GRID,
    KINDS,
    Level,
    Shape,
    Traits,
    Weights,
    relative_weights,
)

SIGNS = (1.0, -1.0)
LOGP, ELSEWHERE = -0.5, -2.5  # log-probs at which the curve is measured; it must be the same
SHIFT = 0.25
SMALL = 1e-4  # a log ratio within the clip even of GSPO


@dataclass(frozen=True)
class Point:
    """One token at a log ratio: gradient and value in units of -w A, and the weight that its value shows.

    `shown` is the change of the value when log pi and log mu move together, per nat: the weight of a loss that is a
    weight times log pi, 0 for a loss of the ratio alone.
    """

    factor: float
    value: float
    shown: float


class Enough(BaseException):
    """Ends a measurement or a search at once; Hypothesis lets it through, where it takes an Exception for a finding."""


class Curve:
    """Points of a loss on one completion of one token, measured when asked for."""

    def __init__(self, loss: LossUnderTest, deadline: float = math.inf, logp: float = LOGP) -> None:
        self._loss, self._deadline, self._logp = loss, deadline, logp
        self._known, self.unit = dict[tuple[float, float], Point](), 1.0
        here = [self.at(0.0, sign) for sign in SIGNS]
        self._known.clear()
        # What the value shows is the better witness: a fault may have spoilt the gradient.
        units = [p.shown if abs(p.shown) > 1e-9 else p.factor for p in here]
        self.unit = next((u for u in units if math.isfinite(u) and u > 0), 1.0)

    def at(self, x: float, sign: float) -> Point:
        """At log ratio x nats, for A = sign."""
        if (x, sign) not in self._known:
            self._known[x, sign] = self._measure(x, sign)
        return self._known[x, sign]

    def _measure(self, x: float, sign: float) -> Point:
        if time.monotonic() > self._deadline:
            raise Enough
        here, moved = (Case.of([[self._logp + c]], x, adv=sign) for c in (0.0, -SHIFT))
        try:
            found, shifted = self._loss.evaluate(here), self._loss.evaluate(moved)
        except LossRaised:
            return Point(math.nan, math.nan, math.nan)
        unit = -sign * self.unit
        return Point(
            found.grad_BT.item() / unit,
            found.value / unit,
            (found.value - shifted.value) / SHIFT / unit,
        )

    def end(self, side: int, sign: float, inside: Callable[[Point, float], bool]) -> float:
        """rho at which `inside` ceases to hold, above (side 1) or below (-1) rho = 1; inf or 0.0 if it never does."""
        grid = [0.0, *sorted((g for g in GRID if g * side > 0), key=abs)]
        good = [g for g in grid if inside(self.at(g, sign), g)]
        bad = [g for g in grid if g not in good]
        if not bad or not good:
            return math.inf if side > 0 else 0.0
        beyond = min(bad, key=abs)
        within = max((g for g in good if abs(g) < abs(beyond)), key=abs, default=0.0)
        for _ in range(30):
            middle = (within + beyond) / 2
            within, beyond = (
                (middle, beyond) if inside(self.at(middle, sign), middle) else (within, middle)
            )
        return math.exp(within)


def measure(
    loss: LossUnderTest,
    *,
    kind: str | None = None,
    weights: str | None = None,
    deadline: float = math.inf,
    **bounds: float,
) -> Traits:
    """Traits of a loss; what is given is taken as the author's word and held against it later.

    Args:
        kind: a name of `KINDS`.
        weights: its aggregation.
        deadline: `time.monotonic()` at which to give up.
        bounds: `cap` (absolute), `clip_low`, `clip_high`, `dual`, where known.

    Raises:
        InputError: an unknown kind or aggregation, or a bound that none can be.
        Enough: at the deadline.
    """
    kind = kind and kind.lower()
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    mean_of(weights)  # a name that there is
    _check_bounds(KINDS[kind][0] if kind else None, bounds)
    curve = Curve(loss, deadline)
    measured_weights, scale = _aggregation(loss)
    if loss.aggregation is not None:  # the suite's own weights
        measured_weights, scale = loss.aggregation, 1.0
    elif weights is not None:
        scale = scale if weights in ("constant", "sum") and weights == measured_weights else 1.0
    dtype = loss.evaluate(plain_case()).dtype
    base = Traits(
        shape="other",
        level=KINDS[kind][1] if kind else _level(loss),
        weights=cast(Weights, weights) if weights else measured_weights,
        score=_is_score(loss, curve),
        scale=scale,
        rtol=1e-6 if dtype == torch.float64 else 1e-4,
        takes_old=loss.takes_old,
        shards=loss.shards,
        weighed=loss.aggregation is not None,
        told=frozenset(bounds)
        | ({"kind"} if kind else set())
        | ({"weights"} if weights else set()),
    )
    if kind:
        shaped = _told(base, curve, KINDS[kind][0])
    else:
        shaped = _found(base, curve, Curve(loss, deadline, logp=ELSEWHERE))
        _check_bounds(shaped.shape, bounds)
    return replace(shaped, **bounds)


def _check_bounds(shape: Shape | None, given: dict[str, float]) -> None:
    """What no bound can be, and what a loss of this shape has not."""
    least = {"cap": 0.0, "clip_low": 0.0, "clip_high": 0.0, "dual": 1.0}
    has = {
        "truncated": {"cap"},
        "clipped": {"clip_low", "clip_high", "dual"},
        "band": {"clip_low", "clip_high"},
    }
    for name, value in given.items():
        if name not in least:
            raise InputError(f"bounds has no {name!r}; it has {', '.join(least)}")
        if not least[name] < value < math.inf or (name == "clip_low" and value > 1):
            top = "1" if name == "clip_low" else "infinity"
            raise InputError(f"{name} = {value:g}: must be above {least[name]:g} and below {top}")
        if shape is not None and name not in has.get(shape, set()):
            raise InputError(
                f"{name} = {value:g}: this loss is {shape}, which has no such bound; kind says what is meant"
            )


def _is_score(loss: LossUnderTest, curve: Curve) -> bool:
    """Whether the value is a weight times -A log pi: in proportion to a common shift, for both signs of A."""
    shown = [curve.at(0.0, sign).shown for sign in SIGNS]
    if not all(math.isfinite(s) and s > 1e-6 for s in shown):
        return False
    values = [loss.value(Case.of([[LOGP - c * SHIFT]])).item() for c in range(3)]
    return math.isclose(values[0] - values[1], values[1] - values[2], rel_tol=1e-3)


def _close(a: float, b: float, rtol: float) -> bool:
    return math.isclose(a, b, rel_tol=10 * rtol, abs_tol=1e-6)


def fits(traits: Traits, curve: Curve, read: Callable[[Point], float] = lambda p: p.factor) -> bool:
    """Whether the curve is that of the traits at every point of the grid, but for those beside a bound."""
    for sign in SIGNS:
        for x in (0.0, *GRID):
            if any(abs(x - bound) < 1e-6 for bound in traits.bounds()):
                continue
            wanted = traits.factor(torch.tensor(x), torch.tensor(sign)).item()
            if not _close(read(curve.at(x, sign)), wanted, 100 * traits.rtol):
                return False
    return True


def _found(base: Traits, curve: Curve, elsewhere: Curve) -> Traits:
    """The shape that the gradient has; else the one that the value shows; else the one that a fault may have spoilt."""
    for shape in get_args(Shape)[:-1]:
        traits = _told(base, curve, shape)
        if fits(traits, curve) and (shape != "band" or _silent_outside(traits, curve)):
            return traits if fits(traits, elsewhere) else base
    if base.score:
        for shape in ("reinforce", "importance"):
            if fits(replace(base, shape=shape), curve, lambda p: p.shown):
                return replace(base, shape=shape)
        cap, other = (curve.at(max(GRID), sign).shown for sign in SIGNS)
        if cap > 0 and _close(cap, other, 1e-4) and _mostly_capped(curve, cap):
            return replace(base, shape="truncated", cap=cap)
    elif _steps_to_zero(curve) or _value_is_clipped(curve):
        return _told(base, curve, "clipped")
    return base


def _mostly_capped(curve: Curve, cap: float) -> bool:
    """Whether the weight that the value shows is min(rho, cap), but for a few points, for both signs of A."""
    hits = [
        _close(curve.at(x, sign).shown, min(math.exp(x), cap), 1e-4) for sign in SIGNS for x in GRID
    ]
    return sum(hits) >= 0.7 * len(hits)


def _steps_to_zero(curve: Curve) -> bool:
    """Whether, for some sign of A and side of 1, the factor is rho up to a bound and exactly 0 from there on."""
    for sign in SIGNS:
        for side in (1, -1):
            factors = [(x, curve.at(x, sign)) for x in sorted(GRID, key=abs) if x * side > 0]
            inside = [x for x, point in factors if _close(point.factor, math.exp(x), 1e-4)]
            beyond = [point for x, point in factors if x not in inside]
            if inside and beyond and all(p.factor == 0 and abs(p.value) > 1e-9 for p in beyond):
                return True
    return False


def _value_is_clipped(curve: Curve) -> bool:
    """Whether the value is that of a clipped loss, whatever the gradient: flat far up for A > 0, far down for A < 0."""
    for sign, side in ((1.0, 1), (-1.0, -1)):
        values = [curve.at(x, sign).value for x in sorted(GRID, key=abs) if x * side > 0]
        flat = _close(values[-1], values[-2], 1e-6) and values[-1] > 0
        if not (flat and _close(values[0], math.exp(1e-4 * side), 1e-6)):
            return False
    return True


def _told(base: Traits, curve: Curve, shape: Shape) -> Traits:
    """With the bounds that a loss of this shape has on the sides where it should have them."""

    def moves(point: Point, x: float) -> bool:
        return _close(point.factor, math.exp(x), 100 * base.rtol)

    if shape == "truncated":
        cap = curve.at(max(GRID), 1.0).factor
        bounded = 0 < cap < math.exp(max(GRID)) * 0.999
        return replace(base, shape=shape, cap=cap if bounded else math.inf)
    if shape == "clipped":
        high, low, dual = (
            curve.end(side, sign, moves) for side, sign in ((1, 1.0), (-1, -1.0), (1, -1.0))
        )
        return replace(base, shape=shape, clip_high=high - 1.0, clip_low=1.0 - low, dual=dual)
    if shape == "band":
        high, low = (curve.end(side, 1.0, moves) for side in (1, -1))
        return replace(base, shape=shape, clip_high=high - 1.0, clip_low=1.0 - low)
    return replace(base, shape=shape)


def _silent_outside(traits: Traits, curve: Curve) -> bool:
    outside = [x for x in GRID if traits.factor(torch.tensor(x), torch.tensor(1.0)) == 0.0]
    return bool(outside) and all(
        abs(curve.at(x, s).value) < 1e-9 and abs(curve.at(x, s).shown) < 1e-9
        for x in outside
        for s in SIGNS
    )


def _level(loss: LossUnderTest) -> Level:
    """Whether the ratio of one token moves the gradient of its neighbour."""
    grads = []
    for x in (0.0, SMALL):
        try:
            grads.append(loss.evaluate(Case.of([[LOGP, LOGP]], [[x, 0.0]])).grad_BT[0, 1].item())
        except LossRaised:
            return "token"
    if grads[0] == 0 or not all(map(math.isfinite, grads)):
        return "token"
    exponent = (grads[1] / grads[0] - 1.0) / SMALL
    if abs(exponent) < 0.02:
        return "token"
    return "product" if abs(abs(exponent) - 1.0) < 0.02 else "sequence"


def _aggregation(loss: LossUnderTest) -> tuple[Weights, float]:
    """Which named aggregation the gradient has when pi = mu, and the sum of its weights."""
    probes = [
        Case.of([[-0.75] * 3] * 3, adv=[1.0, -0.5, 2.0], group=[0, 0, 1],
                mask=[[True] * 3, [True] + [False] * 2, [True] * 2 + [False]]),
        Case.of([[-0.75] * 4] * 4, adv=[0.5, -1.0, 1.0, 2.0], group=[1, 0, 1, 2],
                mask=[[True] * 4, [True] * 3 + [False], [True] + [False] * 3, [True] * 2 + [False] * 2]),
    ]  # fmt: skip
    try:
        found = [-loss.evaluate(probe).grad_BT / probe.adv_B[:, None] for probe in probes]
    except LossRaised:
        return "other", 1.0
    for how in get_args(Weights)[:-1]:
        wanted = [relative_weights(probe, how) for probe in probes]
        scale = (found[0].sum() / wanted[0].sum()).item()
        if scale > 0 and all(
            torch.allclose(f, scale * w, rtol=1e-4, atol=1e-9)
            for f, w in zip(found, wanted, strict=True)
        ):
            return how, scale
    return "other", 1.0
