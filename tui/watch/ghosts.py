"""Curves from elsewhere that stand behind a run's own: pinned runs, and curves of the paper."""

from dataclasses import dataclass

from scalerl.curves.curve import Curve
from scalerl.curves.sources import read_source
from tui.watch.analysis import Analysis, of_curve

APART = (
    10.0  # factor between its C_mid and the run's last C from which a curve of the paper is scaled
)


@dataclass(frozen=True)
class Ghost:
    """A curve from elsewhere behind the run's own: a pinned run, or one of the paper."""

    name: str
    curve: Curve
    analysis: Analysis | None
    role: str
    glyph: str
    scale: float = 1.0  # its compute is multiplied by this


def paper_ghost(name: str, found: Analysis) -> Ghost:
    """A published curve to stand behind a run; where its compute is of another size, scaled to meet its C_mid.

    Raises:
        InputError: there is no such curve.
    """
    curve = read_source(name).curves[0]
    theirs = of_curve(curve)
    scale = 1.0
    if theirs.made is not None and found.curve is not None and len(found.curve.C_N):
        last, middle = found.curve.last_C, theirs.made.fit.C_mid
        if max(middle / last, last / middle) > APART:
            ours = found.made.fit.C_mid if found.made is not None else last / 2
            scale = ours / middle
    return Ghost(name, curve, theirs, "paper", "✚", scale)
