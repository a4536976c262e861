"""The error that the choice of held-out prompts makes: shared by every evaluation of a run, and by its rivals' too.

Axis letters: N evaluations, P prompts.
"""

import numpy as np

from scalerl.curves.curve import Curve
from scalerl.curves.search import Floats


def between_prompts(curve: Curve, other: Curve | None = None) -> float:
    """Standard error of a pass rate for the choice of its held-out prompts; 0 when passes are unknown.

        sqrt(max(0, var_p(q_p) - mean_p(q_p (1 - q_p) / (m - 1))) / n)

    with q_p the rate of prompt p over the m completions of the last third of the evaluations. With `other`, measured on
    the same prompts, that of the *difference* of the two rates: what both share cancels.
    """
    rates_P, within = _by_prompt(curve)
    if rates_P is None:
        return 0.0
    if other is not None:
        theirs_P, theirs = _by_prompt(other)
        if theirs_P is None or len(theirs_P) != len(rates_P):
            return 0.0
        rates_P, within = rates_P - theirs_P, within + theirs
    return float(np.sqrt(max(np.var(rates_P, ddof=1) - within, 0.0) / len(rates_P)))


def _by_prompt(curve: Curve) -> tuple[Floats | None, float]:
    """Rate of each prompt late in the run, and the variance that its completions alone would give."""
    if curve.passes_NP is None or not len(curve.passes_NP):
        return None, 0.0
    late_NP = curve.passes_NP[-max(1, len(curve.passes_NP) // 3) :]
    total = curve.k * len(late_NP)
    if total < 2:
        return None, 0.0
    q_P = late_NP.sum(axis=0) / total
    return q_P, float(np.mean(q_P * (1.0 - q_P)) / (total - 1))
