"""Policy-gradient losses: one per-token term each, to MINIMISE, unreduced.

    rho = pi / mu = exp(logp - behavior_logp)      pi: weights being trained, mu: the generator

All four share one signature, so a recipe names a function and its keywords. What they have in
common: value and gradient are exactly 0 where `mask_BT` is False, whatever garbage stands there
(inputs are masked before `exp`: masking the output would leave NaN gradients); half-precision
inputs are raised to float32 before they are subtracted, float64 stays; no input is modified. NaN or
infinity on a trained token is not looked for here: it comes out as it went in, and the update
refuses it.

The terms become a loss by the weights of `reduction.py`: `(w_BT * term_BT).sum()`. The *value* of
that sum says little (it is near 0 when pi = mu, for zero-sum advantages); the gradient is what
these functions define.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.shapes import BT, B, MaskBT

LOG_RATIO_MAX = 40.0
"""Where the clipped losses hold log rho, in nats. It matters for A < 0 only, and only a fault gets
there: the square of e^40 = 2.4e17, as it stands in a gradient norm, still fits float32."""


def cispo(logp_BT: BT, behavior_logp_BT: BT, adv_B: B, mask_BT: MaskBT, *, eps_max: float) -> BT:
    """Truncated-importance REINFORCE.

        term = -sg(min(rho, eps_max)) * A * log pi

    A capped token keeps a gradient of size `eps_max * |A|`; a clipped token of PPO keeps none.

    Args:
        logp_BT: log pi(token) in nats under the weights being trained; the only input with a
            gradient.
        behavior_logp_BT: log mu(token) in nats, as the generator recorded it when sampling.
            Recomputing it in the trainer makes rho = 1, and the cap never acts.
        adv_B: advantage of the completion, no gradient.
        mask_BT: True on sampled, trainable tokens.
        eps_max: absolute cap on rho (5.0 caps at 5x; it is not 1 + 5); there is no lower cap.

    Source: arXiv 2510.13786 (ScaleRL); arXiv 2506.13585 (MiniMax-M1).
    """
    rho_BT = log_ratio(logp_BT, behavior_logp_BT, mask_BT).detach().exp()
    adv_BT = _masked(adv_B[:, None], mask_BT)
    return -(rho_BT.clamp(max=eps_max) * adv_BT * _masked(logp_BT, mask_BT))


def clipped_surrogate(
    logp_BT: BT,
    behavior_logp_BT: BT,
    adv_B: B,
    mask_BT: MaskBT,
    *,
    clip_low: float,
    clip_high: float,
) -> BT:
    """PPO's clipped surrogate on the token ratio: GRPO (equal clips), DAPO (a higher upper one).

        term = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)

    The clip acts on one side only, given by the sign of A: a token with A < 0 and rho above `1 +
    clip_high` is *not* clipped, and its gradient `rho * |A|` has no bound short of e^LOG_RATIO_MAX.
    Past that, value and gradient stay at the limit (the gradient is not dropped: this is the token
    that most needs lowering).

    Args:
        logp_BT: log pi(token) in nats; the only input with a gradient.
        behavior_logp_BT: log mu(token) in nats, as the generator recorded it.
        adv_B: advantage of the completion, no gradient.
        mask_BT: True on sampled, trainable tokens.
        clip_low: how far rho may fall below 1 before a token with A < 0 loses its gradient.
        clip_high: how far rho may rise above 1 before a token with A > 0 loses its gradient.

    Source: arXiv 1707.06347 (PPO); arXiv 2402.03300 (GRPO); arXiv 2503.14476 (DAPO).
    """
    log_rho_BT = log_ratio(logp_BT, behavior_logp_BT, mask_BT)
    return _clipped_term(log_rho_BT, _masked(adv_B[:, None], mask_BT), clip_low, clip_high)


def gspo(
    logp_BT: BT,
    behavior_logp_BT: BT,
    adv_B: B,
    mask_BT: MaskBT,
    *,
    clip_low: float,
    clip_high: float,
) -> BT:
    """The clipped surrogate on the length-normalised ratio of the whole completion.

        s    = exp(mean over trained t of log rho_t) = (prod rho_t)^(1 / number of trained t)
        term = -min(s * A, clip(s, 1 - clip_low, 1 + clip_high) * A) on every trained token

    The same number stands on every trained token so that any weights of `reduction.py` apply. A
    row's weights are equal, hence the gradient on each token is `-w * s * A`: uniform along the
    completion. A row must come whole: split across shards by token it would have another s.

    Args:
        logp_BT: log pi(token) in nats; the only input with a gradient.
        behavior_logp_BT: log mu(token) in nats, as the generator recorded it.
        adv_B: advantage of the completion, no gradient.
        mask_BT: True on sampled, trainable tokens; a row without any gives 0.
        clip_low: as in `clipped_surrogate`, about s, hence smaller by orders of magnitude (3e-3).
        clip_high: likewise (4e-3).

    Source: arXiv 2507.18071 (GSPO), the geometric mean of token ratios.
    """
    log_s_BT = _sequence_log_ratio(logp_BT, behavior_logp_BT, mask_BT)
    return _clipped_term(log_s_BT, _masked(adv_B[:, None], mask_BT), clip_low, clip_high)


def reinforce(logp_BT: BT, behavior_logp_BT: BT, adv_B: B, mask_BT: MaskBT) -> BT:
    """REINFORCE without any correction for stale samples.

        term = -A * log pi

    `behavior_logp_BT` is taken for the common signature and not used: off-policy this is biased,
    which is what it is for (the baseline that the other losses coincide with when pi = mu).
    """
    return -(_masked(adv_B[:, None], mask_BT) * _masked(logp_BT, mask_BT))


def cispo_capped(
    logp_BT: BT, behavior_logp_BT: BT, adv_B: B, mask_BT: MaskBT, *, eps_max: float
) -> MaskBT:
    """Trained tokens whose weight in `cispo` is the cap: `rho > eps_max`, for either sign of A."""
    rho_BT = log_ratio(logp_BT, behavior_logp_BT, mask_BT).exp()
    return mask_BT & (rho_BT > eps_max)


def clipped_surrogate_capped(
    logp_BT: BT,
    behavior_logp_BT: BT,
    adv_B: B,
    mask_BT: MaskBT,
    *,
    clip_low: float,
    clip_high: float,
) -> MaskBT:
    """Trained tokens without gradient because of the clip.

        (A > 0 and rho > 1 + clip_high) or (A < 0 and rho < 1 - clip_low)

    A ratio outside the band on the other side is not counted: there `clipped_surrogate` does not
    clip.
    """
    log_rho_BT = log_ratio(logp_BT, behavior_logp_BT, mask_BT)
    return mask_BT & _beyond_clip(log_rho_BT, adv_B, clip_low, clip_high)


def gspo_capped(
    logp_BT: BT,
    behavior_logp_BT: BT,
    adv_B: B,
    mask_BT: MaskBT,
    *,
    clip_low: float,
    clip_high: float,
) -> MaskBT:
    """As `clipped_surrogate_capped` with the sequence ratio s: all of a completion or none."""
    log_s_BT = _sequence_log_ratio(logp_BT, behavior_logp_BT, mask_BT)
    return mask_BT & _beyond_clip(log_s_BT, adv_B, clip_low, clip_high)


def reinforce_capped(logp_BT: BT, behavior_logp_BT: BT, adv_B: B, mask_BT: MaskBT) -> MaskBT:
    """No token: `reinforce` has neither cap nor clip."""
    return torch.zeros_like(mask_BT)


def log_ratio(logp_BT: BT, behavior_logp_BT: BT, mask_BT: MaskBT) -> BT:
    """log rho = log pi - log mu in nats, with the gradient of `logp_BT`; 0.0 where mask is False.

    What `ratio_stats` of `metrics.py` wants, once its trained tokens are selected.
    """
    return _masked(logp_BT, mask_BT) - _masked(behavior_logp_BT, mask_BT)


def _sequence_log_ratio(logp_BT: BT, behavior_logp_BT: BT, mask_BT: MaskBT) -> BT:
    """log s of the completion on each of its trained tokens; 0.0 where mask is False."""
    count_B = mask_BT.sum(dim=1).clamp(min=1)
    log_s_B = log_ratio(logp_BT, behavior_logp_BT, mask_BT).sum(dim=1) / count_B
    return _masked(log_s_B[:, None], mask_BT)


def _clipped_term(log_rho_BT: BT, adv_BT: BT, clip_low: float, clip_high: float) -> BT:
    # exp(1000) = inf, and inf * 0 in the backward of min() is NaN: the exponent is held instead, by
    # subtracting a constant, which leaves the gradient of a held token at its limit.
    excess_BT = (log_rho_BT.detach() - LOG_RATIO_MAX).clamp(min=0.0)
    rho_BT = (log_rho_BT - excess_BT).exp()
    clipped_BT = rho_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(rho_BT * adv_BT, clipped_BT * adv_BT)


def _beyond_clip(log_rho_BT: BT, adv_B: B, clip_low: float, clip_high: float) -> MaskBT:
    rho_BT, adv_B1 = log_rho_BT.exp(), adv_B[:, None]
    too_high_BT = (adv_B1 > 0) & (rho_BT > 1.0 + clip_high)
    too_low_BT = (adv_B1 < 0) & (rho_BT < 1.0 - clip_low)
    return too_high_BT | too_low_BT


def _masked(x: Tensor, mask_BT: MaskBT) -> BT:
    """`x`, [B, T] or [B, 1], in float32 or better; 0.0, without gradient, where mask is False."""
    x = x if x.dtype == torch.float64 else x.float()
    return torch.where(mask_BT, x, 0.0)


LOSSES: dict[str, Callable[..., BT]] = {
    "cispo": cispo,
    "dapo": clipped_surrogate,
    "grpo": clipped_surrogate,
    "gspo": gspo,
    "reinforce": reinforce,
}
"""Kind in a recipe -> its loss. `dapo` and `grpo` differ in their clips only."""

CAPPED: dict[str, Callable[..., MaskBT]] = {
    "cispo": cispo_capped,
    "dapo": clipped_surrogate_capped,
    "grpo": clipped_surrogate_capped,
    "gspo": gspo_capped,
    "reinforce": reinforce_capped,
}
"""Kind -> the tokens on which its cap or clip acts, for metrics: same arguments as the loss."""
