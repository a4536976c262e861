"""Token weights: how the per-token terms of a batch add up to one loss."""

from typing import Literal

import torch

from scalerl.shapes import BT, IdB, MaskBT

Aggregation = Literal["prompt_mean", "sample_mean", "token_mean"]
"""What weighs the same in the loss: every prompt (ScaleRL), completion (GRPO) or token."""


def token_weights(mask_BT: MaskBT, group_B: IdB, how: Aggregation) -> BT:
    """Weight of each trained token, so that the loss is `(w_BT * term_BT).sum()`.

        prompt_mean   w = 1 / (P * tokens of the prompt)          P prompts with a trained token
        sample_mean   w = 1 / (N * tokens of the completion)      N completions with a trained token
        token_mean    w = 1 / (tokens of the batch)

    Call it once on the *whole* batch, before any split: the shards' losses and gradients are then
    summed, never averaged, and any split gives the same result. Only trained tokens are counted,
    and a prompt or completion without any is in no denominator.

    Args:
        mask_BT: True on sampled, trainable tokens.
        group_B: any int64 ids, in any order; the same id is the same prompt draw.
        how: see `Aggregation`.

    Returns:
        w_BT: float32, computed in float64. Sums to 1; 0.0 where mask is False, everywhere if all of
            it is.
    """
    tokens_B = mask_BT.sum(dim=1)
    if how == "token_mean":
        denominator_B = tokens_B.sum().expand_as(tokens_B)
    elif how == "sample_mean":
        denominator_B = (tokens_B > 0).sum() * tokens_B
    elif how == "prompt_mean":
        ids_P, group_of_B = torch.unique(group_B, return_inverse=True)
        tokens_P = torch.zeros_like(ids_P).index_add(0, group_of_B, tokens_B)
        denominator_B = (tokens_P > 0).sum() * tokens_P[group_of_B]
    else:
        raise ValueError(f"how = {how!r}: expected 'prompt_mean', 'sample_mean' or 'token_mean'")
    w_B = 1.0 / denominator_B.clamp(min=1).double()  # a denominator of 0 has no token to weigh
    return torch.where(mask_BT, w_B[:, None], 0.0).float()
