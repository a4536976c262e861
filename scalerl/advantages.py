"""Advantages: reward less the mean of its group, in units of a standard deviation."""

from typing import Literal

import torch

from scalerl.shapes import B, IdB

Normalise = Literal["batch", "prompt", "none"]
"""By which standard deviation the centred rewards are divided: of the whole batch (ScaleRL), of the
completion's own group (GRPO), or by none (Dr. GRPO)."""


def advantages(reward_B: B, group_B: IdB, normalise: Normalise) -> B:
    """Centre rewards per group, then normalise.

        C_i = r_i - mean over group(i) of r
        A_i = C_i / std,   std = sqrt(mean of C^2 over all rows: "batch", over group(i): "prompt")

    "batch" takes the std of the *centred* rewards, not of the raw ones, so a shift of one prompt's
    rewards changes nothing. The std is the population's (divided by n, not n - 1). 0/0 is 0, and
    only *exactly* equal rewards (max = min in the group) count as 0: a tiny std is a real one.
    Hence a group of one gives 0.

    Args:
        reward_B: finite rewards in any unit; a group must be complete, so drop rows only
            afterwards.
        group_B: any int64 ids, in any order; rows with the same id are compared with one another.
        normalise: see `Normalise`.

    Returns:
        adv_B: in the dtype of `reward_B`, computed in float64 (an offset of 1e6 on rewards costs
            nothing).

    Raises:
        ValueError: a reward is NaN or infinite; it would move its whole group, so it is never made
            0.
    """
    _check_finite(reward_B)
    if reward_B.numel() == 0:
        return reward_B.clone()
    group_of_B = torch.unique(group_B, return_inverse=True)[1]
    centred_B, spread_B = _centre(reward_B.double(), group_of_B)
    if normalise == "none":
        return centred_B.to(reward_B.dtype)
    if normalise == "batch":
        group_of_B = torch.zeros_like(group_of_B)
        spread_B = spread_B.max().expand_as(spread_B)
    elif normalise != "prompt":
        raise ValueError(f"normalise = {normalise!r}: expected 'batch', 'prompt' or 'none'")
    # A does not depend on the unit of C: in units of the spread no square under- or overflows, and
    # a std of 0 means exactly that every C is 0.
    unit_B = centred_B / torch.where(spread_B > 0, spread_B, 1.0)
    std_B = _group_mean(unit_B.square(), group_of_B).sqrt()
    return (unit_B / torch.where(std_B > 0, std_B, 1.0)).to(reward_B.dtype)


def _centre(reward_B: B, group_of_B: IdB) -> tuple[B, B]:
    """(reward less its group's mean, max - min of the group), exactly 0 if constant."""
    low_B = _group_extreme(reward_B, group_of_B, "amin")
    spread_B = _group_extreme(reward_B, group_of_B, "amax") - low_B
    # The mean of three times 0.1 is not 0.1 in floating point; a constant group is 0 by decree.
    centred_B = reward_B - _group_mean(reward_B, group_of_B)
    return torch.where(spread_B > 0, centred_B, 0.0), spread_B


def _group_mean(x_B: B, group_of_B: IdB) -> B:
    """Mean of each row's group, on each row. `group_of_B` numbers the groups from 0."""
    zeros = x_B.new_zeros(int(group_of_B.max()) + 1)
    total_P = zeros.index_add(0, group_of_B, x_B)
    count_P = zeros.index_add(0, group_of_B, torch.ones_like(x_B))
    return (total_P / count_P)[group_of_B]


def _group_extreme(x_B: B, group_of_B: IdB, reduce: Literal["amin", "amax"]) -> B:
    """Least or largest value of each row's group, on each row."""
    start_P = x_B.new_zeros(int(group_of_B.max()) + 1)
    extreme_P = start_P.scatter_reduce(0, group_of_B, x_B, reduce=reduce, include_self=False)
    return extreme_P[group_of_B]


def _check_finite(reward_B: B) -> None:
    bad = torch.nonzero(~torch.isfinite(reward_B)).flatten().tolist()
    if bad:
        more = f" (and {len(bad) - 1} more rows)" if len(bad) > 1 else ""
        raise ValueError(f"reward_B[{bad[0]}] = {reward_B[bad[0]].item()}: must be finite{more}")
