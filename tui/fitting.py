"""`scalerl fit`: a curve from a run or a CSV, fitted, drawn, and read off at given compute."""

import csv
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast, get_args

from scalerl.errors import InputError
from scalerl.events import evaluations, read_events
from scalerl.fit import FitError, Grid, SigmoidFit, fit_curve
from tui.curve import plot_curve

X_NAMES = ("gpu_hours", "gpu_h", "C", "compute")
Y_NAMES = ("pass_rate", "R", "reward")


@dataclass(frozen=True)
class FittedCurve:
    """Points (C, R), their unit, and the sigmoid through those in the window."""

    points: list[tuple[float, float]]
    unit: str
    window: tuple[float, float] | None
    fit: SigmoidFit
    R0_from: str  # "given", "measured" at C = 0, or "fitted"

    @property
    def last_C(self) -> float:
        """The largest compute that the fit has seen."""
        end = self.window[1] if self.window else math.inf
        return max(C for C, _ in self.points if C <= end)


def fit_source(
    source: Path,
    *,
    x: str | None,
    y: str | None,
    r0: float | None,
    window: str | None,
    grid: str | None,
) -> FittedCurve:
    """Read and fit.

    Raises:
        InputError: no such file or column, a value that is no number, too few points, or a grid without R0.
    """
    points, unit = read_points(source, x, y)
    limits = _window(window) if window else None
    if grid is not None and grid not in get_args(Grid):
        raise InputError(f"--grid {grid!r}: must be one of {', '.join(get_args(Grid))}")
    try:
        fit = fit_curve(points, R0=r0, window=limits, grid=cast(Grid | None, grid))
    except FitError as error:
        raise InputError(f"{source}: {error}") from None
    measured = any(C == 0.0 for C, _ in points)
    R0_from = "given" if r0 is not None else "measured" if measured else "fitted"
    return FittedCurve(points, unit, limits, fit, R0_from)


def read_points(
    source: Path, x: str | None, y: str | None
) -> tuple[list[tuple[float, float]], str]:
    """Points in order of compute, and the unit of compute."""
    log = source / "events.jsonl" if source.is_dir() else source
    if log.suffix == ".jsonl":
        points = [(float(e["C"]), float(e["pass_rate"])) for e in evaluations(read_events(log))]
        if not points:
            raise InputError(f"{log} holds no evaluation yet")
        return points, "GPU-h"
    return _read_csv(source, x, y)


def _read_csv(path: Path, x: str | None, y: str | None) -> tuple[list[tuple[float, float]], str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not rows:
        raise InputError(f"{path} has no rows below its header")
    columns = [name for name in rows[0] if name]
    x, y = (
        x or _default(columns, X_NAMES, "--x", path),
        y or _default(columns, Y_NAMES, "--y", path),
    )
    for name in (x, y):
        if name not in columns:
            raise InputError(f"{path} has no column {name!r}; it has {', '.join(columns)}")
    points = [
        (_number(row[x], x, line, path), _number(row[y], y, line, path))
        for line, row in enumerate(rows, 2)
    ]
    return sorted(points), "GPU-h" if x in X_NAMES else x


def show_fit(curve: FittedCurve, at: list[float], *, as_json: bool) -> None:
    """Print the fitted curve, in text or as one JSON document."""
    fit = curve.fit
    for C in at:
        if not (math.isfinite(C) and C >= 0):
            raise InputError(f"--at {C}: compute is a finite number, 0 or more")
    forecast = [{"C": C, "R": float(fit.predict(C))} for C in at]
    if as_json:
        window = [end if math.isfinite(end) else None for end in curve.window or ()] or None
        about = {
            "window": window,
            "unit": curve.unit,
            "R0_from": curve.R0_from,
            "warning": knee_warning(fit, curve.last_C),
            "forecast": forecast,
        }
        print(json.dumps({**asdict(fit), **about}, indent=2, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        "\n".join(
            plot_curve(curve.points, fit, width=min(console.width, 110), height=20, unit=curve.unit)
        )
    )
    console.print(fit_sentence(fit, curve.unit, curve.R0_from))
    if warning := knee_warning(fit, curve.last_C):
        console.print(warning)
    for row in forecast:
        console.print(f"R({row['C']:g} {curve.unit}) = {row['R']:.3f}")


def fit_sentence(fit: SigmoidFit, unit: str, R0_from: str) -> str:
    """The four numbers of a curve and how well it fits; A and B lie on a ridge, so never B alone."""
    return (
        f"A {fit.A:.3f}   B {fit.B:.2f}   C_mid {fit.C_mid:.1f} {unit}"
        f"   R0 {fit.R0:.3f} ({R0_from})   rmse {fit.rmse:.4f}, n {fit.n}"
    )


def knee_warning(fit: SigmoidFit, last_C: float) -> str | None:
    """Why the ceiling, and any forecast, must not be believed; None if neither reason is there."""
    if fit.at_edge:
        return "warning: a limit of the search chose these numbers: A and any forecast are guesses"
    if last_C < 2 * fit.C_mid:
        return f"warning: the last C, {last_C:.4g}, is below twice C_mid: A and any forecast are guesses"
    return None


def _window(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(low or "-inf"), float(high or "inf")
    except ValueError:
        raise InputError(f"--window {text!r} is not LO:HI, e.g. 1500:50000") from None


def _default(columns: list[str], names: tuple[str, ...], option: str, path: Path) -> str:
    for name in names:
        if name in columns:
            return name
    raise InputError(
        f"{path}: say which column to take with {option}; there are {', '.join(columns)}"
    )


def _number(text: str | None, column: str, line: int, path: Path) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}, line {line}: {column} = {text!r} is not a finite number")
    return value
