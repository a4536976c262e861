"""The plot of the compare screen as layers: pass rates in three ways, or a metric of the updates, against compute."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from scalerl.curves.comparison import efficiency
from scalerl.forecast import Forecast
from tui.compare.ranking import Ranking
from tui.compare.standing import Entry
from tui.show.view import Layer, Line, Points

How = Literal["raw", "gain", "efficiency"]
HOWS: tuple[How, ...] = get_args(How)
PASS_RATE = "pass rate"
# What a person calls a metric: its field of the `update` events, and the least height of its plot.
METRICS = {
    PASS_RATE: ("", 0.05),
    "truncated": ("truncated", 0.01),
    "entropy": ("entropy", 1e-3),
    "kl": ("kl", 1e-9),
    "ess": ("ess", 1e-3),
    "reward": ("reward", 0.01),
    "length": ("length_mean_tokens", 0.5),
}
UNITS = {"entropy": "nats", "kl": "nats", "length": "tokens"}
STEPS = 120  # compute values at which a curve is drawn
AHEAD = 4.0  # times its last compute, up to which a fit is drawn beyond its points
GLYPHS_EACH = 6  # glyphs on the line of a metric, to tell lines apart without colour


@dataclass(frozen=True, eq=False)
class Overlay:
    """Layers for a plot, the base's on top.

    least: least height, in the unit of y. notes: what is not drawn, and why.
    """

    layers: list[Layer]
    y_name: str
    unit: str
    least: float
    notes: list[str]


def overlay(ranking: Ranking, metric: str, how: How) -> Overlay:
    """The curves that are shown. `how` matters for the pass rate only."""
    if metric != PASS_RATE:
        return _metric(ranking, metric)
    shown = ranking.drawn()
    last = max((each.made.last_C for each in shown if each.made is not None), default=0.0)
    layers: list[Layer] = []
    dropped = 0
    for entry in shown:
        assert entry.made is not None  # `drawn` has those with a fit only
        glyph, role = ranking.look(entry)
        if how == "efficiency":
            found = efficiency(entry.made)
            dropped += found.dropped
            layers += _line_of_slope_B(entry.made, glyph, role)
        else:
            layers += _curve(entry.made, glyph, role, last, how == "gain")
    notes = []
    if dropped:
        notes.append(f"{dropped} points dropped: R ≥ A or R ≤ R0 has no logarithm")
    told = {
        "raw": "pass rate",
        "gain": "gain R − R0",
        "efficiency": "ln((R − R0) / (A − R)), slope B",
    }
    return Overlay(layers, told[how], ranking.unit(), 0.05, [*notes, *_missing(ranking, shown)])


def _curve(made: Forecast, glyph: str, role: str, last: float, gain: bool) -> list[Layer]:
    """Points and fit, dashed on towards the end of the longest curve."""
    curve, under = made.curve, made.fit.R0 if gain else 0.0
    C_S = np.geomspace(curve.C_N[0], made.last_C, STEPS)
    found: list[Layer] = [Line(C_S, made.fit.predict(C_S) - under, role)]
    if last > made.last_C:
        ahead_S = np.geomspace(made.last_C, min(last, AHEAD * made.last_C), STEPS)
        found.append(Line(ahead_S, made.fit.predict(ahead_S) - under, role, dashed=True))
    return [*found, Points(curve.C_N, curve.R_N - under, glyph, role)]


def _line_of_slope_B(made: Forecast, glyph: str, role: str) -> list[Layer]:
    found = efficiency(made)
    ln_C_S = np.log(np.geomspace(made.curve.C_N[0], made.last_C, STEPS))
    return [
        Line(np.exp(ln_C_S), found.intercept + found.slope * ln_C_S, role),
        Points(np.exp(found.lnC_N), found.logit_N, glyph, role),
    ]


def _metric(ranking: Ranking, metric: str) -> Overlay:
    """A metric at every update, one line a run; of several seeds each."""
    field, least = METRICS[metric]
    order = sorted(reversed(ranking.ordered()), key=lambda entry: entry.source == ranking.base)
    shown = [each for each in order if each.runs and each.source not in ranking.hidden]
    layers: list[Layer] = []
    for entry in shown:
        glyph, role = ranking.look(entry)
        for run in entry.runs:
            C_N, y_N = run.column("gpu_h"), run.column(field)
            layers.append(Line(C_N, y_N, role))
            some_N = np.unique(np.linspace(0, max(run.n - 1, 0), GLYPHS_EACH).astype(int))[: run.n]
            layers.append(Points(C_N[some_N], y_N[some_N], glyph, role))
    notes = [] if shown else ["no run among them: only runs have updates"]
    unit = f", {UNITS[metric]}" if metric in UNITS else ""
    return Overlay(layers, f"{metric}{unit}", "GPU-h", least, notes)


def _missing(ranking: Ranking, shown: list[Entry]) -> list[str]:
    """How many are not drawn, and why."""
    hidden = len([each for each in ranking.entries if each.source in ranking.hidden])
    other = len(
        [
            each
            for each in ranking.entries
            if each.made is not None
            and each.source not in ranking.hidden
            and each.made.curve.unit != ranking.unit()
        ]
    )
    found = [f"{hidden} hidden"] if hidden else []
    return found + ([f"{other} in another unit not drawn"] if other else [])
