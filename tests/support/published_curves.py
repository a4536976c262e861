"""The paper's curves, the ones that are the same run drawn again, and how our fit does on them."""

from dataclasses import dataclass

import numpy as np

from scalerl.curves.sources import published, published_names
from scalerl.forecast import Forecast, forecast

BROKEN = "Fig2/DeepSeek-GRPO"
FEWEST_FITTED, FEWEST_EXTENDED = 8, 3
# One run each, in several figures: which markers are hidden differs.
DRAWINGS = (
    (
        "Fig2/ScaleRL",
        "Fig1a/size/8B-dense",
        "Fig11(math)/math-only",
        "Fig17a(gens)/16gen",
        "Fig15a(loo)/ScaleRL",
        "Fig15b(loo)/ScaleRL",
        "Fig15c(loo)/ScaleRL",
    ),
    ("Fig1a/ScaleRL-bs2048-100k", "Fig10a(batch)/bs2048"),
)


@dataclass(frozen=True)
class Extended:
    """The forecast of a run's last dotted point, made from its solid ones."""

    name: str
    n: int
    last_C: float
    C: float
    drawn: float
    R: float
    lo: float
    hi: float
    verdict: str

    @property
    def width(self) -> float:
        return self.hi - self.lo

    @property
    def held(self) -> bool:
        return self.lo <= self.drawn <= self.hi


def counts(name: str) -> tuple[int, int]:
    """Solid and dotted points of a curve."""
    source = published(name)
    [curve] = source.curves
    assert source.fit_end is not None
    solid = int((curve.C_N <= source.fit_end).sum())
    return solid, len(curve.C_N) - solid


def stable() -> list[str]:
    """Runs that went on as they had begun, with enough of both kinds of points to tell."""
    return [
        name
        for name in published_names()
        if name != BROKEN
        and counts(name)[0] >= FEWEST_FITTED
        and counts(name)[1] >= FEWEST_EXTENDED
    ]


STABLE = stable()


def drawn_once() -> list[str]:
    """The same with one drawing of each run: the one with most solid points, the first of equals."""
    left_out = set()
    for drawings in DRAWINGS:
        most = max(counts(name)[0] for name in drawings)
        kept = next(name for name in drawings if counts(name)[0] == most)
        left_out |= set(drawings) - {kept}
    return [name for name in STABLE if name not in left_out]


def solid(name: str) -> Forecast:
    """The forecast from the solid points; the dotted ones are there to be watched."""
    source = published(name)
    return forecast(source.curves, window=(0.0, source.fit_end or np.inf))


def extended(name: str) -> Extended:
    """What the solid points say of the last dotted one."""
    made = solid(name)
    C, drawn = float(made.whole.C_N[-1]), float(made.whole.R_N[-1])
    R = made.rate(C)
    assert R.lo is not None and R.hi is not None
    return Extended(name, made.fit.n, made.last_C, C, drawn, R.value, R.lo, R.hi, made.verdict)


def ceilings(fewest: int = 15) -> dict[str, float]:
    """Fitted less published ceiling of every curve with that many points."""
    errors = {}
    for name in published_names():
        source = published(name)
        if len(source.curves[0].C_N) >= fewest and source.published is not None:
            errors[name] = forecast(source.curves).fit.A - source.published[0]
    return errors
