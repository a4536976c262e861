"""Faulty policy losses, each with one fault that people make; `BAD` names the law that must be blamed first."""

from typing import Any

import torch

_seen: list[int] = []


def _safe(logp, behavior_logp, mask):
    """Log ratio, log pi, as they should be."""
    x, b = torch.where(mask, logp, 0.0), torch.where(mask, behavior_logp, 0.0)
    return (x - b).clamp(max=20), x


def _ppo(ratio, adv, mask, low=0.8, high=1.28):
    a = torch.where(mask, adv[:, None], 0.0)
    return -torch.minimum(ratio * a, ratio.clamp(low, high) * a)


def _token_mean(term, mask):
    return torch.where(mask, term, 0.0).sum() / mask.sum().clamp(min=1)


def no_stop_gradient(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(-d.exp().clamp(max=5.0) * adv[:, None] * x, mask)


def no_log_prob(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(-d.detach().exp().clamp(max=5.0) * adv[:, None] + 0 * x, mask)


def maximised(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(d.detach().exp().clamp(max=5.0) * adv[:, None] * x, mask)


def ratio_inverted(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(-(-d).detach().exp().clamp(max=5.0) * adv[:, None] * x, mask)


def ratio_always_one(logp, behavior_logp, adv, mask, group_id):
    x = torch.where(mask, logp, 0.0)
    return _token_mean(_ppo((x - x.detach()).exp(), adv, mask), mask)


def lower_cap_in_cispo(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(-d.detach().exp().clamp(0.8, 5.0) * adv[:, None] * x, mask)


def cap_of_one_plus_eps(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(-d.detach().exp().clamp(max=1 + 5.0) * adv[:, None] * x, mask)


def max_for_min(logp, behavior_logp, adv, mask, group_id):
    ratio = _safe(logp, behavior_logp, mask)[0].exp()
    a = torch.where(mask, adv[:, None], 0.0)
    return _token_mean(-torch.maximum(ratio * a, ratio.clamp(0.8, 1.28) * a), mask)


def clip_without_min(logp, behavior_logp, adv, mask, group_id):
    ratio = _safe(logp, behavior_logp, mask)[0].exp()
    return _token_mean(-ratio.clamp(0.8, 1.28) * adv[:, None], mask)


def clips_swapped(logp, behavior_logp, adv, mask, group_id):
    return _token_mean(_ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask, 0.72, 1.2), mask)


def dual_clip_for_both_signs(logp, behavior_logp, adv, mask, group_id):
    term = _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask)
    return _token_mean(torch.minimum(term, -3.0 * adv[:, None]), mask)


def low_clip_for_tokens_to_lower_missing(logp, behavior_logp, adv, mask, group_id):
    ratio = _safe(logp, behavior_logp, mask)[0].exp()
    a = torch.where(mask, adv[:, None], 0.0)
    return _token_mean(
        -torch.where(a > 0, torch.minimum(ratio, ratio.new_tensor(1.28)), ratio) * a, mask
    )


def _sequence(log_s, adv, mask):
    s = log_s.clamp(max=20).exp()
    return (-torch.minimum(s * adv, s.clamp(0.9, 1.1) * adv) * mask.any(1)).sum() / len(adv)


def gspo_sum(logp, behavior_logp, adv, mask, group_id):
    return _sequence(torch.where(mask, logp - behavior_logp, 0.0).sum(1), adv, mask)


def gspo_clamped_tokens(logp, behavior_logp, adv, mask, group_id):
    d = torch.where(mask, logp - behavior_logp, 0.0).clamp(-0.5, 0.5)
    return _sequence(d.sum(1) / mask.sum(1).clamp(min=1), adv, mask)


def gspo_through_the_last_token(logp, behavior_logp, adv, mask, group_id):
    """Value right, gradient on one token: a detach too many."""
    d = torch.where(mask, logp - behavior_logp, 0.0)
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    mean = d.detach().sum(1) / mask.sum(1).clamp(min=1)
    return _sequence(mean + torch.where(last, d - d.detach(), 0.0).sum(1), adv, mask)


def gspo_centred_by_column(logp, behavior_logp, adv, mask, group_id):
    d, _ = _safe(logp, behavior_logp, mask)
    d = torch.where(mask, d - d.mean(0, keepdim=True).detach(), 0.0)
    return _sequence(d.sum(1) / mask.sum(1).clamp(min=1), adv, mask)


def ratios_normalised_over_the_batch(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    w = torch.where(mask, d.detach().exp(), 0.0)
    return _token_mean(-(w / w.sum().clamp(min=1e-9) * mask.sum()) * adv[:, None] * x, mask)


def divided_by_temperature(logp, behavior_logp, adv, mask, group_id):
    _, x = _safe(logp, behavior_logp, mask)
    weight = (x / 0.7 - torch.where(mask, behavior_logp, 0.0)).detach().clamp(max=20).exp()
    return _token_mean(-weight.clamp(max=5.0) * adv[:, None] * x, mask)


def advantages_whitened_again(logp, behavior_logp, adv, mask, group_id):
    a = adv / (adv.square().mean().sqrt() + 1e-8)
    return _token_mean(_ppo(_safe(logp, behavior_logp, mask)[0].exp(), a, mask), mask)


def absolute_advantage(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(-d.detach().exp().clamp(max=5.0) * adv.abs()[:, None] * x, mask)


def kl_inside(logp, behavior_logp, adv, mask, group_id):
    d, _ = _safe(logp, behavior_logp, mask)
    k3 = (-d).clamp(max=20).exp() + d - 1
    return _token_mean(_ppo(d.exp(), adv, mask) + 0.1 * k3, mask)


def multiplied_by_the_mask(logp, behavior_logp, adv, mask, group_id):
    ratio = (logp - behavior_logp).detach().clamp(max=20).exp().clamp(max=5.0)
    return (-ratio * adv[:, None] * logp * mask).sum() / mask.sum().clamp(min=1)


def masked_after_exp(logp, behavior_logp, adv, mask, group_id):
    ratio = (logp - behavior_logp).exp()
    a = adv[:, None]
    return _token_mean(-torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a), mask)


def padded_width(logp, behavior_logp, adv, mask, group_id):
    return _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask).mean(dim=1).mean()


def zero_by_zero(logp, behavior_logp, adv, mask, group_id):
    term = _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask)
    return (term.sum(1) / mask.sum(1)).mean()


def zero_by_zero_batch(logp, behavior_logp, adv, mask, group_id):
    return _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask).sum() / mask.sum()


def groups_by_position(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    term = torch.where(mask, -d.detach().exp().clamp(max=5.0) * adv[:, None] * x, 0.0)
    pairs = [slice(i, i + 2) for i in range(0, len(adv), 2)]
    return torch.stack([term[p].sum() / mask[p].sum().clamp(min=1) for p in pairs]).mean()


def group_ids_as_indices(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    term = torch.where(mask, -d.detach().exp().clamp(max=5.0) * adv[:, None] * x, 0.0)
    share = (group_id.double() - group_id.double().min() + 1).to(term.dtype)
    return (term.sum(1) / share).sum() / mask.sum().clamp(min=1)


def mean_of_chunk_means(logp, behavior_logp, adv, mask, weight):
    """Takes the whole batch's weights, and divides by the shard's own all the same."""
    term = _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask)
    return (weight * term).sum() / weight.sum().clamp(min=1e-9)


def empty_shard_is_nan(logp, behavior_logp, adv, mask, weight):
    term = _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask)
    return (weight * term).sum() + 0 * term.sum() / mask.sum()


def sum_and_root(logp, behavior_logp, adv, mask, group_id):
    term = _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask)
    return term.sum() / mask.sum().clamp(min=1).sqrt()


def sequence_loss_broadcast(logp, behavior_logp, adv, mask, group_id):
    """A (B, 1) mean of each completion broadcast over its tokens, then averaged over tokens: meant as sample_mean."""
    term = _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask)
    per_row = term.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return _token_mean(per_row.expand_as(term), mask)


def divided_twice(logp, behavior_logp, adv, mask, group_id):
    """By the tokens, then by four accumulation steps."""
    return _token_mean(_ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask), mask) / 4


def longest_row(logp, behavior_logp, adv, mask, group_id):
    """Dr. GRPO with the longest completion of the batch as its constant."""
    term = _ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask)
    return term.sum() / (len(adv) * mask.sum(1).max().clamp(min=1))


def discount_by_position(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    gamma = 0.9 ** torch.arange(logp.shape[1], dtype=x.dtype)
    return _token_mean(-d.detach().exp().clamp(max=5.0) * adv[:, None] * gamma * x, mask)


def exp_overflows(logp, behavior_logp, adv, mask, group_id):
    x, b = torch.where(mask, logp, 0.0), torch.where(mask, behavior_logp, 0.0)
    return _token_mean(_ppo((x - b).exp(), adv, mask), mask)


def half_precision_inside(logp, behavior_logp, adv, mask, group_id):
    d = torch.where(mask, logp, 0.0) - torch.where(mask, behavior_logp, 0.0)
    return _token_mean(_ppo(d.clamp(max=9).exp(), adv, mask), mask)


def counts_in_the_inputs_dtype(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp.float() if logp.dtype != torch.float64 else logp, behavior_logp, mask)
    term = torch.where(mask, -d.detach().exp().clamp(max=5.0) * adv[:, None] * x, 0.0)
    return term.sum() / mask.to(logp.dtype).sum().clamp(min=1)


def negates_an_integer_mask(logp, behavior_logp, adv, mask, group_id):
    d = (logp - behavior_logp).masked_fill((~mask).bool(), 0.0).clamp(max=20)
    x = logp.masked_fill((~mask).bool(), 0.0)
    return -(d.detach().exp().clamp(max=5.0) * adv[:, None] * x).sum() / mask.bool().sum().clamp(
        min=1
    )


def writes_to_its_arguments(logp, behavior_logp, adv, mask, group_id):
    behavior_logp.masked_fill_(~mask, 0.0)
    adv /= 2.0
    d, x = _safe(logp, behavior_logp, mask)
    return _token_mean(-d.detach().exp().clamp(max=5.0) * 2 * adv[:, None] * x, mask)


def keeps_a_running_mean(logp, behavior_logp, adv, mask, group_id):
    _seen.append(1)
    return _token_mean(_ppo(_safe(logp, behavior_logp, mask)[0].exp(), adv, mask), mask) * (
        1 + 1 / len(_seen)
    )


def correction_of_the_current_policy(logp, behavior_logp, adv, mask, group_id, old_logp):
    ratio = torch.where(mask, logp - old_logp, 0.0).clamp(max=20).exp()
    tis = torch.where(mask, logp - behavior_logp, 0.0).detach().clamp(max=20).exp().clamp(max=2.0)
    return _token_mean(_ppo(ratio, adv, mask) * tis, mask)


def correction_inverted(logp, behavior_logp, adv, mask, group_id, old_logp):
    ratio = torch.where(mask, logp - old_logp, 0.0).clamp(max=20).exp()
    tis = torch.where(mask, behavior_logp - old_logp, 0.0).clamp(max=20).exp().clamp(max=2.0)
    return _token_mean(_ppo(ratio, adv, mask) * tis, mask)


def counted_twice(logp, behavior_logp, adv, mask, group_id, old_logp):
    ratio = torch.where(mask, logp - behavior_logp, 0.0).clamp(max=20).exp()
    tis = torch.where(mask, old_logp - behavior_logp, 0.0).clamp(max=20).exp().clamp(max=2.0)
    return _token_mean(_ppo(ratio, adv, mask) * tis, mask)


def rejected_tokens_keep_their_value(logp, behavior_logp, adv, mask, group_id):
    ratio = _safe(logp, behavior_logp, mask)[0].exp()
    inside = (ratio > 0.5) & (ratio < 2.0)
    held = torch.where(inside, ratio, ratio.detach().clamp(0.5, 2.0))
    return _token_mean(-held * adv[:, None], mask)


def rejected_tokens_count_twice(logp, behavior_logp, adv, mask, group_id):
    ratio = _safe(logp, behavior_logp, mask)[0].exp()
    inside = mask & (ratio > 0.5) & (ratio < 2.0)
    term = torch.where(inside, -ratio * adv[:, None], 0.0)
    return term.sum() / (mask.sum() + (mask & ~inside).sum()).clamp(min=1)


class _WrongBackward(torch.autograd.Function):
    """A fused loss whose backward pass forgot the ratio."""

    @staticmethod
    def forward(ctx: Any, d, a):
        ratio = d.exp()
        clipped = ratio.clamp(0.8, 1.28)
        ctx.save_for_backward(a, (ratio * a <= clipped * a).to(d.dtype))
        return -torch.minimum(ratio * a, clipped * a)

    @staticmethod
    def backward(ctx: Any, *grads: Any):
        a, open_ = ctx.saved_tensors
        return -grads[0] * a * open_, None


def fused_with_a_wrong_backward(logp, behavior_logp, adv, mask, group_id):
    d, _ = _safe(logp, behavior_logp, mask)
    return _token_mean(_WrongBackward.apply(d, torch.where(mask, adv[:, None], 0.0)), mask)


def correction_of_another_row(logp, behavior_logp, adv, mask, group_id, old_logp):
    ratio = torch.where(mask, logp - old_logp, 0.0).clamp(max=20).exp()
    tis = torch.where(mask, old_logp - behavior_logp, 0.0).clamp(max=20).exp().clamp(max=2.0)
    return _token_mean(_ppo(ratio, adv, mask) * tis.roll(1, 0), mask)


def bfloat16_inside(logp, behavior_logp, adv, mask, group_id):
    d = torch.where(mask, logp - behavior_logp, 0.0).clamp(max=20).bfloat16()
    return _token_mean(_ppo(d.exp().double(), adv, mask), mask)


def groups_of_two(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    centred = adv.view(-1, 2)  # every prompt has two completions, has it not
    return _token_mean(-d.detach().exp().clamp(max=5.0) * centred.view(-1, 1) * x, mask)


def raises_on_large_ratios(logp, behavior_logp, adv, mask, group_id):
    d, x = _safe(logp, behavior_logp, mask)
    if d.abs().max() > 30:
        raise ValueError("diverged")
    return _token_mean(-d.detach().exp().clamp(max=5.0) * adv[:, None] * x, mask)


BAD: dict[Any, tuple[str, dict[str, Any]]] = {
    groups_of_two: ("D07", {}),
    writes_to_its_arguments: ("H12", {}),
    keeps_a_running_mean: ("H10", {}),
    bfloat16_inside: ("H05", {}),
    groups_by_position: ("D01", {}),
    group_ids_as_indices: ("D02", {}),
    multiplied_by_the_mask: ("D04", {}),
    masked_after_exp: ("D04", {}),
    padded_width: ("D03", {}),
    zero_by_zero: ("D05", {}),
    zero_by_zero_batch: ("D06", {}),
    discount_by_position: ("D10", {}),
    negates_an_integer_mask: ("D08", {"any_mask": True}),
    mean_of_chunk_means: ("E07", {}),
    empty_shard_is_nan: ("E08", {}),
    sum_and_root: ("E14", {}),
    sequence_loss_broadcast: ("E06", {"aggregation": "sample_mean"}),
    divided_twice: ("E01", {"aggregation": "token_mean"}),
    longest_row: ("E16", {"aggregation": "constant"}),
    no_stop_gradient: ("A02", {}),
    ratios_normalised_over_the_batch: ("A18", {}),
    gspo_centred_by_column: ("A18", {}),
    correction_of_another_row: ("D01", {}),
    kl_inside: ("G01", {}),
    divided_by_temperature: ("A10", {}),
    advantages_whitened_again: ("A13", {}),
    maximised: ("A14", {}),
    absolute_advantage: ("A14", {}),
    correction_of_the_current_policy: ("C01", {}),
    correction_inverted: ("C02", {}),
    counted_twice: ("C03", {}),
    ratio_inverted: ("A21", {}),
    ratio_always_one: ("A21", {"kind": "grpo"}),
    gspo_clamped_tokens: ("A07", {}),
    gspo_through_the_last_token: ("A06", {"kind": "gspo"}),
    gspo_sum: ("A05", {"kind": "gspo"}),
    dual_clip_for_both_signs: ("CL6", {}),
    max_for_min: ("CL1", {}),
    clip_without_min: ("CL1", {}),
    clips_swapped: ("CL1", {"kind": "dapo", "clip_low": 0.2, "clip_high": 0.28}),
    low_clip_for_tokens_to_lower_missing: ("CL2", {"kind": "dapo", "clip_low": 0.2}),
    lower_cap_in_cispo: ("A15", {}),
    cap_of_one_plus_eps: ("A15", {"kind": "cispo", "cap": 5.0}),
    rejected_tokens_keep_their_value: ("C04", {"kind": "icepop"}),
    rejected_tokens_count_twice: ("C05", {"kind": "icepop"}),
    fused_with_a_wrong_backward: ("CL1", {}),
    no_log_prob: ("A03", {"kind": "cispo"}),
    exp_overflows: ("H01", {}),
    raises_on_large_ratios: ("H01", {}),
    half_precision_inside: ("H04", {"half": True}),
    counts_in_the_inputs_dtype: ("H06", {"half": True}),
}
"""Loss -> the law blamed first, and what its author says of it."""
