"""Metrics that carry their reduction: how two shards' values merge is a matter of type, not name.

Each holds global sums, so that a batch split into any shards and merged gives what the whole batch
gives. `.value` is what is written to an event: a number, or None where there was nothing to measure
(JSON null: not NaN, and not a 0 that reads as a measurement). No torch here: readers of events,
which do without it, may import this.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Number = int | float


@dataclass(frozen=True)
class Mean:
    """Weighted mean: `total / weight`, None if weight is 0.

    `total` is the weighted *sum*, not the mean: three tokens of entropy 0.5 are `Mean(1.5, 3)`.
    """

    total: Number
    weight: Number

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise ValueError(f"Mean.weight = {self.weight}: must be 0 or more")

    @property
    def value(self) -> float | None:
        """The mean, None if nothing was weighed."""
        return self.total / self.weight if self.weight else None

    def merge(self, other: "Mean") -> "Mean":
        """Of both shards' items together."""
        return Mean(self.total + other.total, self.weight + other.weight)


@dataclass(frozen=True)
class Max:
    """Largest value, None if there was none. NaN wins over any number: a fault is not outvoted."""

    value: Number | None

    def merge(self, other: "Max") -> "Max":
        """Of both shards' items together."""
        present = [x for x in (self.value, other.value) if x is not None]
        if any(math.isnan(x) for x in present):
            return Max(math.nan)
        return Max(max(present, default=None))


@dataclass(frozen=True)
class Sum:
    """Total over all shards; 0 if there was nothing (which is then a measurement)."""

    value: Number

    def merge(self, other: "Sum") -> "Sum":
        """Of both shards' items together."""
        return Sum(self.value + other.value)


@dataclass(frozen=True)
class EffectiveSampleSize:
    """Share of the tokens that importance weights rho leave effective, in 0..1; None if count is 0.

        ess = (sum rho)^2 / (count * sum rho^2)

    1 when all rho are equal (even if they equal 5), 1/count when one token outweighs all others.
    The shards' values cannot be averaged: the three sums are what merges.
    """

    rho_sum: Number
    rho_square_sum: Number
    count: int

    @property
    def value(self) -> float | None:
        """The share, None if there was no token, 0.0 if every rho is too small to be squared."""
        if self.count == 0:
            return None
        if self.rho_square_sum == 0:
            return 0.0
        share = self.rho_sum * self.rho_sum / (self.count * self.rho_square_sum)
        # Rounding can put equal weights a bit above 1. Not min(1.0, share): it turns NaN into 1.
        return 1.0 if share > 1.0 else share

    def merge(self, other: "EffectiveSampleSize") -> "EffectiveSampleSize":
        """Of both shards' items together."""
        return EffectiveSampleSize(
            self.rho_sum + other.rho_sum,
            self.rho_square_sum + other.rho_square_sum,
            self.count + other.count,
        )


Metric = Mean | Max | Sum | EffectiveSampleSize
"""Any of the above: `merge(other)` of the same type, `value` a number or None."""


def merge_all(shards: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Merge the shards' metrics by name.

    A name missing in a shard had nothing to measure there, and the others' value stands.

    Raises:
        TypeError: one name has two types.
    """
    merged: dict[str, Metric] = {}
    for shard in shards:
        for name, metric in shard.items():
            merged[name] = _merge(merged[name], metric, name) if name in merged else metric
    return merged


LOG_RATIO_LIMIT = 300.0
"""Where `ratio_stats` holds log rho, in nats: e^600 still fits float64. Only a fault gets there."""


def ratio_stats(log_ratio_N: npt.NDArray[np.floating]) -> dict[str, Metric]:
    """How far the trained weights pi are from those mu that sampled the tokens.

        rho = pi / mu,  kl = mean of rho * log rho - rho + 1, ess = (sum rho)^2 / (N sum rho^2)

    `kl` estimates KL(pi || mu), trainer against generator, per token, from tokens that the
    *generator* sampled: under mu, E[rho * log rho] is that divergence and E[1 - rho] = 0 makes each
    term non-negative. The mean of -log rho, often logged under the same name, is KL(mu || pi).

    Args:
        log_ratio_N: log pi - log mu in nats of the trained tokens only (no masked ones, no
            padding), a numpy array: from a tensor, `log_ratio.detach().cpu().numpy()`.

    Returns:
        "kl": `Mean` in nats, "ess": `EffectiveSampleSize`; both values are None if N = 0. NaN
            comes out as NaN.
    """
    log_rho_N = np.minimum(log_ratio_N.astype(np.float64), LOG_RATIO_LIMIT)
    rho_N = np.exp(log_rho_N)
    # Near rho = 1 a term is about (log rho)^2 / 2, and the plain rho - 1 leaves no digit of it.
    with np.errstate(invalid="ignore"):  # rho = 0 with a log of -inf: NaN, as it should be
        kl_N = np.maximum(rho_N * log_rho_N - np.expm1(log_rho_N), 0.0)
    return {
        "kl": Mean(float(kl_N.sum()), log_rho_N.size),
        "ess": EffectiveSampleSize(
            float(rho_N.sum()), float(np.square(rho_N).sum()), log_rho_N.size
        ),
    }


def _merge(left: Metric, right: Metric, name: str) -> Metric:
    match left, right:
        case Mean(), Mean():
            return left.merge(right)
        case Max(), Max():
            return left.merge(right)
        case Sum(), Sum():
            return left.merge(right)
        case EffectiveSampleSize(), EffectiveSampleSize():
            return left.merge(right)
    raise TypeError(f"{name}: {type(left).__name__} cannot merge with {type(right).__name__}")
