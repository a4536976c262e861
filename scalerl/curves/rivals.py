"""The sigmoid's rivals, each fitted by least squares to the same points, and which predicts best.

Every law but one is a straight line in a share s(C; theta) of a single shape number theta, so theta
alone is searched and the rest follows in closed form:

    power law               R = A - D C^-b               A <= 1
    power law, no offset    R = 1 - D C^-b
    exponential             R = R0 + (A - R0) (1 - exp(-C / tau))
    logit-linear            ln(R / (1 - R)) = a + b ln C
    last value              R = mean of the last three points: no law at all

The error that counts is on points that the fit has not seen: the last third, in order of compute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize_scalar

from scalerl.curves.search import Line
from scalerl.fit import MIN_POINTS, FitError, Floats, Points, fit_points

SHAPES = 60  # grid values of a shape number before it is refined
Law = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Rival:
    """One law. One row: "power law", "A - D C^-b", A 0.719, rmse 0.006, held_out_rmse 0.041.

    A: its ceiling as C grows without bound; None where it has none of its own.
    rmse: over all points, fitted to all. held_out_rmse: over the last third, fitted to the rest;
        None where the rest is too short to be fitted.
    """

    name: str
    formula: str
    A: float | None
    rmse: float | None
    held_out_rmse: float | None


def rivals(points: Points) -> list[Rival]:
    """The sigmoid and its rivals, best predictor of the last third first."""
    n = len(points.C_N)
    kept = n - n // 3
    early = Points(points.C_N[:kept], points.R_N[:kept], points.w_N[:kept], points.R0)
    rows = [_rival(name, formula, fit, points, early) for name, formula, fit in LAWS]
    return sorted(rows, key=lambda row: np.inf if row.held_out_rmse is None else row.held_out_rmse)


def _rival(
    name: str,
    formula: str,
    fit: Callable[[Points], tuple[Law, float | None]],
    points: Points,
    early: Points,
) -> Rival:
    whole, A = _tried(fit, points)
    first, _ = _tried(fit, early)
    late = slice(len(early.C_N), None)
    return Rival(
        name,
        formula,
        A,
        None if whole is None else _rmse(whole(points.C_N) - points.R_N),
        None if first is None else _rmse(first(points.C_N[late]) - points.R_N[late]),
    )


def _tried(
    fit: Callable[[Points], tuple[Law, float | None]], points: Points
) -> tuple[Law | None, float | None]:
    if len(points.C_N) < MIN_POINTS:
        return None, None
    try:
        return fit(points)
    except FitError:  # too few distinct values
        return None, None


def _rmse(error_N: Floats) -> float:
    return float(np.sqrt(np.mean(error_N**2)))


def sigmoid_law(points: Points) -> tuple[Law, float | None]:
    """The law of the paper, by the relative grid."""
    fit = fit_points(points)
    return fit.predict, fit.A


def power_law(points: Points) -> tuple[Law, float | None]:
    """R = A - D C^-b, A <= 1; its exponent is searched in 0.01 .. 10."""
    first_C = points.C_N[points.C_N > 0.0][0]

    def share(C_N: Floats, ln_b: float) -> Floats:
        return 1.0 - _decay(C_N / first_C, ln_b)

    line = Line(points.R_N, _weights(points), None)
    ln_b = _best(line, lambda theta: share(points.C_N, theta), np.log(0.01), np.log(10.0))
    a, g, _ = line.solve(share(points.C_N, ln_b)[None])
    return lambda C_N: a[0] + g[0] * share(C_N, ln_b), float(a[0] + g[0])


def power_law_to_one(points: Points) -> tuple[Law, float | None]:
    """R = 1 - D C^-b: the error rate falls to nothing, without an offset."""
    first_C = points.C_N[points.C_N > 0.0][0]
    line = Line(1.0 - points.R_N, _weights(points), 0.0)
    ln_b = _best(
        line, lambda theta: _decay(points.C_N / first_C, theta), np.log(1e-3), np.log(10.0)
    )
    _, D, _ = line.solve(_decay(points.C_N / first_C, ln_b)[None])
    return lambda C_N: 1.0 - D[0] * _decay(C_N / first_C, ln_b), 1.0


def exponential(points: Points) -> tuple[Law, float | None]:
    """R = R0 + (A - R0) (1 - exp(-C / tau)), tau within thirtyfold of the points."""

    def share(C_N: Floats, ln_tau: float) -> Floats:
        return -np.expm1(-C_N / np.exp(ln_tau))

    seen = points.C_N[points.C_N > 0.0]
    line = Line(points.R_N, _weights(points), points.R0)
    ends = np.log(seen[0] / 30.0), np.log(seen[-1] * 30.0)
    ln_tau = _best(line, lambda theta: share(points.C_N, theta), *ends)
    a, g, _ = line.solve(share(points.C_N, ln_tau)[None])
    return lambda C_N: a[0] + g[0] * share(C_N, ln_tau), float(a[0] + g[0])


def logit_linear(points: Points) -> tuple[Law, float | None]:
    """ln(R / (1 - R)) = a + b ln C, fitted in R: in logits a point near 0 or 1 would rule alone."""
    keep_N = points.C_N > 0.0
    x_N, R_N = np.log(points.C_N[keep_N]), points.R_N[keep_N]
    inner_N = np.clip(R_N, 0.01, 0.99)
    b, a = np.polyfit(x_N, np.log(inner_N / (1.0 - inner_N)), 1)

    def law(x_N: Floats, a: float, b: float) -> Floats:
        return 1.0 / (1.0 + np.exp(-np.clip(a + b * x_N, -500.0, 500.0)))

    root_N = np.sqrt(points.w_N[keep_N] / points.w_N.mean())
    found = least_squares(lambda theta: root_N * (law(x_N, *theta) - R_N), (a, b))
    a, b = found.x

    def predict(C_N: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return law(np.log(C_N), a, b)

    return predict, 1.0 if b > 0.0 else 0.0


def last_value(points: Points) -> tuple[Law, float | None]:
    """The mean of the last three points, whatever C: what a law must beat to be worth having."""
    mean = float(points.R_N[-3:].mean())
    return lambda C_N: np.full(np.shape(C_N), mean), None


def _decay(C_N: Floats, ln_b: float) -> Floats:
    with np.errstate(divide="ignore"):
        return np.minimum(C_N ** -np.exp(ln_b), 1e6)  # C = 0 is far above, not infinitely


def _weights(points: Points) -> Floats:
    return points.w_N / points.w_N.sum()


def _best(line: Line, share: Callable[[float], Floats], lo: float, hi: float) -> float:
    """The shape number of least squares: the best of a grid, then refined between its neighbours."""
    grid = np.linspace(lo, hi, SHAPES)

    def sse(theta: float) -> float:
        s_N = share(theta)
        a, g, _ = line.solve(s_N[None])
        return float((a[0] + g[0] * s_N - line.y) ** 2 @ line.w_N)

    best = int(np.argmin([sse(theta) for theta in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, SHAPES - 1)]
    found: Any = minimize_scalar(sse, bounds=ends, method="bounded", options={"xatol": 1e-9})
    return float(found.x)


LAWS = (
    ("sigmoid", "R0 + (A - R0) / (1 + (C_mid / C)^B)", sigmoid_law),
    ("power law", "A - D C^-b", power_law),
    ("power law, no offset", "1 - D C^-b", power_law_to_one),
    ("exponential", "R0 + (A - R0) (1 - exp(-C / tau))", exponential),
    ("logit-linear", "1 / (1 + exp(-(a + b ln C)))", logit_linear),
    ("last value", "mean of the last three points", last_value),
)
