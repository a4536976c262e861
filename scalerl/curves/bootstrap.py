"""The block bootstrap: a second opinion on the uncertainty of a fit, by refitting what might have been measured.

Axis letters: N points, D draws.
"""

import numpy as np

from scalerl.curves.search import FoundMany, fit_many, log_compute
from scalerl.fit import Points, SigmoidFit


def block_bootstrap(points: Points, fit: SigmoidFit, D: int, seed: int) -> FoundMany:
    """D refits to the fitted curve plus blocks of consecutive residuals, drawn with replacement.

    The usual second opinion. Blocks keep some of the autocorrelation; the intervals come out too
    narrow all the same (`docs/forecasting.md` has the coverage), so nothing here is reported alone.

    A block is n^(1/3) points, rounded up, around a circle.
    """
    n = len(points.C_N)
    length = int(np.ceil(n ** (1 / 3)))
    w_N = points.w_N / points.w_N.mean()
    fitted_N = fit.predict(points.C_N)
    e_N = np.sqrt(w_N) * (points.R_N - fitted_N) * np.sqrt(n / max(n - fit.parameters, 1))
    e_N = e_N - e_N.mean()
    starts = np.random.default_rng(seed).integers(0, n, size=(D, -(-n // length)))
    rows_DN = ((starts[:, :, None] + np.arange(length)) % n).reshape(D, -1)[:, :n]
    R_DN = np.clip(fitted_N + e_N[rows_DN] / np.sqrt(w_N), 0.0, 1.0)
    R0_D = np.full(D, float(points.R0)) if points.R0 is not None else None
    return fit_many(log_compute(points.C_N), R_DN, points.w_N, R0_D)
