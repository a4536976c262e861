"""`scalerl fit`: a curve from a run, a CSV or the paper, fitted, drawn, and told with all its doubts."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from scalerl.curves.curve import thinned
from scalerl.curves.sources import Source, published_names, read_source
from scalerl.errors import InputError
from scalerl.fit import Grid, SigmoidFit
from tui.words import page

if TYPE_CHECKING:
    from scalerl.forecast import Forecast

BOOTSTRAP = 1_000
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True)
class FitRequest:
    """What was asked for; each field as the option of its name."""

    source: str
    x: str | None = None
    y: str | None = None
    select: tuple[str, ...] = ()
    unit: str | None = None
    R0: float | None = None
    window: str | None = None
    grid: str | None = None
    at: tuple[float, ...] = ()
    drift: tuple[float, ...] = ()
    extend: float | None = None
    price: float | None = None
    plot: Path | None = None
    register: bool = False
    seed: int = 0


def fit(asked: FitRequest, *, as_json: bool) -> bool:
    """Read, fit and print, and say whether the verdict is ok.

    Raises:
        InputError: no such source or column, a value that is no number, too few points, or a grid without R0.
    """
    if asked.price is not None and asked.extend is None:
        raise InputError("--price says what --extend costs: give both")
    if as_json and (asked.extend is not None or asked.drift):
        raise InputError("--extend and --drift are told in text: leave --json out")
    from tui.watch.analysis import forecast_of

    source = read_source(asked.source, x=asked.x, y=asked.y, select=asked.select, unit=asked.unit)
    made = forecast_of(source, asked.R0, parse_window(asked.window), parse_grid(asked.grid))
    lines = [] if as_json else _report(source, made, asked)  # all refusals before anything is kept
    said: list[str] = []
    if asked.plot is not None:
        from tui.show.figures import save_fit

        save_fit(asked.plot, made, thinned(made.whole), asked.at)
    if asked.register:
        from tui.commands.recording import register

        said = register(asked, made)
    if as_json:
        print(json.dumps(document(made, asked.at), indent=2, allow_nan=False))
        print(page(said), end="", file=sys.stderr)
    else:
        print(page([*lines, "", *said] if said else lines))
    return made.verdict == "ok"


def _report(source: Source, made: "Forecast", asked: FitRequest) -> list[str]:
    from rich.console import Console

    from tui.commands.fit_report import report

    return report(source, made, asked, min(Console().width, 110))


def document(made: "Forecast", at: tuple[float, ...]) -> dict[str, Any]:
    """The fit as JSON. An end of null: the search found none on that side."""
    rates = [(C, made.rate(C)) for C in at]
    return {
        "A": asdict(made.A()),
        "B": asdict(made.B()),
        "C_mid": asdict(made.C_mid()),
        "R0": asdict(made.R0()),
        "rmse": made.fit.rmse,
        "n": made.fit.n,
        "window": [end if math.isfinite(end) else None for end in made.window or ()] or None,
        "unit": made.curve.unit,
        "verdict": made.verdict,
        "forecast": [{"C": C, "R": R.value, "lo": R.lo, "hi": R.hi} for C, R in rates],
        "rivals": [asdict(rival) for rival in made.rivals],
        "alarms": [asdict(alarm) for alarm in made.alarms],
    }


def list_published(*, as_json: bool) -> None:
    """Every curve of the paper that can be named."""
    names = [f"paper:{name}" for name in published_names()]
    print(json.dumps(names, indent=2) if as_json else "\n".join(names))


def parse_window(text: str | None) -> tuple[float, float] | None:
    """LO:HI, either end open."""
    if text is None:
        return None
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return _amount(low or "0"), _amount(high or "inf")
    except ValueError:
        raise InputError(f"--window {text!r} is not LO:HI, e.g. 1500:50k") from None


def parse_grid(name: str | None) -> Grid | None:
    if name is not None and name not in get_args(Grid):
        raise InputError(f"--grid {name!r}: must be one of {', '.join(get_args(Grid))}")
    return cast(Grid | None, name)


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
    if not fit.knee_seen(last_C):
        return f"warning: the last C, {last_C:.4g}, is below twice C_mid: A and any forecast are guesses"
    return None


def amounts(option: str, texts: Sequence[str] | None) -> tuple[float, ...]:
    """Amounts of compute as people type them, and as this program prints them: 5000, 5,000, 5k, 1e6."""
    found = []
    for text in texts or ():
        try:
            C = _amount(text)
        except ValueError:
            raise InputError(
                f"{option} {text!r} is no amount of compute, e.g. 5000 or 5k"
            ) from None
        if not (math.isfinite(C) and C > 0):
            raise InputError(f"{option} {text}: compute is a finite number above 0")
        found.append(C)
    return tuple(found)


def _amount(text: str) -> float:
    plain = text.strip().replace(",", "")
    if plain[-1:] in SUFFIXES:
        return float(plain[:-1]) * SUFFIXES[plain[-1]]
    return float(plain)
