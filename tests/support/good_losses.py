"""Correct policy losses in other styles: batched, packed, chunked, by row, in three frameworks' conventions."""

from types import SimpleNamespace

import torch
from torch import Tensor


def _log_ratio(logp, behavior_logp, mask):
    return torch.where(mask, logp - behavior_logp, 0.0)


def dr_grpo(logp, behavior_logp, adv, mask, group_id):
    """Batched; a constant divisor of 32 tokens."""
    ratio = _log_ratio(logp, behavior_logp, mask).clamp(-20, 20).exp()
    advantage = torch.where(mask, adv.unsqueeze(1), 0.0)
    unclipped, clipped = ratio * advantage, ratio.clamp(0.8, 1.2) * advantage
    return -torch.min(unclipped, clipped).sum() / (logp.shape[0] * 32)


def dual_clip_packed(logp, behavior_logp, adv, mask, group_id):
    """Packed: trained tokens of all completions one behind the other; mean over tokens; dual clip at 3."""
    row = torch.arange(len(adv)).unsqueeze(1).expand_as(mask)[mask]
    ratio = (logp[mask] - behavior_logp[mask]).clamp(max=20).exp()
    a = adv[row]
    pessimistic = torch.maximum(-a * ratio, -a * ratio.clamp(0.8, 1.28))
    held = torch.where(a < 0, torch.minimum(pessimistic, -3.0 * a), pessimistic)
    return held.sum() / max(1, row.numel())


def tis_chunked(logp, behavior_logp, adv, mask, group_id):
    """In chunks of two rows, each divided by the tokens of all; the weight on a surrogate whose value is A."""
    total = mask.sum().clamp(min=1)
    loss = logp.new_zeros((), dtype=torch.float64 if logp.dtype == torch.float64 else torch.float32)
    for start in range(0, len(adv), 2):
        rows = slice(start, start + 2)
        m = mask[rows]
        x = torch.where(m, logp[rows], 0.0).to(loss.dtype)
        weight = (
            (x - torch.where(m, behavior_logp[rows], 0.0).to(loss.dtype))
            .detach()
            .clamp(max=20)
            .exp()
        )
        surrogate = (x - x.detach()).exp()
        term = weight.clamp(max=2.0) * surrogate * torch.where(m, adv[rows, None], 0.0)
        loss = loss - term.masked_select(m).sum() / total
    return loss


def gspo_token(logp, behavior_logp, adv, mask, group_id):
    """The token form: sg(s) exp(log pi - sg(log pi)), clipped; each completion alike."""
    x, b = torch.where(mask, logp, 0.0), torch.where(mask, behavior_logp, 0.0)
    length = mask.sum(1, keepdim=True).clamp(min=1)
    mean = (x - b).sum(1, keepdim=True) / length
    s = (mean.detach().clamp(max=20) + x - x.detach()).exp()
    a = torch.where(mask, adv[:, None], 0.0)
    term = -torch.minimum(s * a, s.clamp(1 - 3e-3, 1 + 4e-3) * a)
    per_row = (term * mask).sum(1) / length.squeeze(1)
    return per_row.mean()


def gspo_loop(logp, behavior_logp, adv, mask, group_id):
    """One completion at a time, on plain indices."""
    losses = []
    for i in range(len(adv)):
        here = mask[i].nonzero().flatten()
        if len(here) == 0:
            losses.append(logp.new_zeros(()))
            continue
        s = (logp[i, here] - behavior_logp[i, here]).mean().clamp(max=20).exp()
        losses.append(-torch.minimum(s * adv[i], s.clamp(0.997, 1.004) * adv[i]))
    return torch.stack(losses).mean()


def cispo_by_prompt(logp, behavior_logp, adv, mask, group_id):
    """Prompt by prompt, divided by the prompt's tokens."""
    weight = _log_ratio(logp, behavior_logp, mask).detach().exp().clamp(max=5.0)
    term = torch.where(mask, -weight * adv[:, None] * torch.where(mask, logp, 0.0), 0.0)
    prompts = [g for g in group_id.unique() if mask[group_id == g].any()]
    sums = [term[group_id == g].sum() / mask[group_id == g].sum() for g in prompts]
    return torch.stack(sums).mean() if sums else term.sum()


def reinforce_dot(logp, behavior_logp, adv, mask, group_id):
    """As a dot product; a sum, for a trainer that divides."""
    return -(torch.where(mask, logp, 0.0).sum(dim=1) @ adv.to(logp.dtype))


def icepop(logp, behavior_logp, adv, mask, group_id):
    """Tokens outside [0.5, 5] are rejected, and stay in the denominator."""
    ratio = _log_ratio(logp, behavior_logp, mask).clamp(-30, 30).exp()
    inside = mask & (ratio > 0.5) & (ratio < 5.0)
    term = -ratio.detach() * adv[:, None] * torch.where(mask, logp, 0.0)
    return torch.where(inside, term, 0.0).sum() / mask.sum().clamp(min=1)


def icepop_leaving(logp, behavior_logp, adv, mask, group_id):
    """Tokens outside the band leave the denominator too."""
    ratio = _log_ratio(logp, behavior_logp, mask).clamp(-30, 30).exp()
    inside = mask & (ratio > 0.5) & (ratio < 5.0)
    return torch.where(inside, -ratio * adv[:, None], 0.0).sum() / inside.sum().clamp(min=1)


def decoupled_tis(logp, behavior_logp, adv, mask, group_id, old_logp):
    """The clip on the ratio to the old policy, the truncated correction for the generator beside it."""
    ratio = torch.where(mask, logp - old_logp, 0.0).clamp(max=20).exp()
    correction = (
        torch.where(mask, old_logp - behavior_logp, 0.0).detach().clamp(max=20).exp().clamp(max=2.0)
    )
    a = torch.where(mask, adv[:, None], 0.0)
    term = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a) * correction
    return term.sum() / mask.sum().clamp(min=1)


def weighted(logp, behavior_logp, adv, mask, weight):
    """Given the weights of the whole batch."""
    ratio = _log_ratio(logp, behavior_logp, mask).clamp(max=20).exp()
    a = torch.where(mask, adv[:, None], 0.0)
    return (weight * -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)).sum()


def grpo_in_float32(logp, behavior_logp, adv, mask, group_id):
    """Works in float32, whatever comes in."""
    d = torch.where(mask, logp.float() - behavior_logp.float(), 0.0).clamp(-20, 20)
    return _ppo_mean(d.exp(), torch.where(mask, adv.float()[:, None], 0.0), mask)


def _ppo_mean(ratio, a, mask):
    return -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).sum() / mask.sum().clamp(min=1)


def cispo_clamped_both_ways(logp, behavior_logp, adv, mask, group_id):
    """A safety clamp of 10 nats on either side of the log ratio."""
    weight = _log_ratio(logp.detach(), behavior_logp, mask).clamp(-10, 10).exp().clamp(max=5.0)
    term = -weight * torch.where(mask, logp, 0.0) * adv[:, None]
    return torch.where(mask, term, 0.0).sum() / mask.sum().clamp(min=1)


def soft_gate(logp, behavior_logp, adv, mask, group_id):
    """A sigmoid gate around 1 in place of a clip: of no shape that is known."""
    ratio = _log_ratio(logp, behavior_logp, mask).clamp(-20, 20).exp()
    gate = torch.sigmoid(2.0 * (ratio - 1.0)) * 2.0
    return torch.where(mask, -gate * adv[:, None], 0.0).sum() / mask.sum().clamp(min=1)


def asymmetric_tis(logp, behavior_logp, adv, mask, group_id):
    """A cap of 4 where A > 0, of 1 where A < 0."""
    ratio = _log_ratio(logp, behavior_logp, mask).detach().clamp(max=20).exp()
    weight = torch.where(adv[:, None] > 0, ratio.clamp(max=4.0), ratio.clamp(max=1.0))
    term = -weight * torch.where(mask, logp, 0.0) * adv[:, None]
    return torch.where(mask, term, 0.0).sum() / mask.sum().clamp(min=1)


def product_of_ratios(logp, behavior_logp, adv, mask, group_id):
    """The plain sequence ratio, importance-weighted, each completion alike."""
    d = _log_ratio(logp, behavior_logp, mask).sum(dim=1).clamp(max=20)
    s = torch.where(mask.any(dim=1), d.exp(), 0.0)
    return -(s * adv).sum() / len(adv)


def rejected_above_two(logp, behavior_logp, adv, mask, group_id):
    """A band with an upper end only."""
    ratio = _log_ratio(logp, behavior_logp, mask).clamp(max=20).exp()
    kept = mask & (ratio <= 2.0)
    return torch.where(kept, -ratio * adv[:, None], 0.0).sum() / mask.sum().clamp(min=1)


def correction_capped_at_one(logp, behavior_logp, adv, mask, group_id, old_logp):
    """A correction that only ever lowers, over the whole completion, beside a token ratio."""
    ratio = torch.where(mask, logp - old_logp, 0.0).clamp(max=20).exp()
    d = torch.where(mask, old_logp - behavior_logp, 0.0).sum(dim=1, keepdim=True)
    weighted = torch.where(mask, adv[:, None], 0.0) * d.detach().clamp(max=0.0).exp()
    return _ppo_mean(ratio, weighted, mask)


def old_is_the_generator(logp, old_logp, adv, mask):
    """Calls the generator's log-probs old, and knows no others."""
    ratio = torch.where(mask, logp - old_logp, 0.0).clamp(max=20).exp()
    return _ppo_mean(ratio, torch.where(mask, adv[:, None], 0.0), mask)


def verl_style(
    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
):
    """verl's arguments: clip-higher, dual clip, rollout correction, normalised by the counts of the whole batch."""
    mask = response_mask.bool()
    ratio = torch.where(mask, log_prob - old_log_prob, 0.0).clamp(-20, 20).exp()
    a = torch.where(mask, advantages, 0.0)
    low, high = 1 - config.clip_ratio_low, 1 + config.clip_ratio_high
    loss = torch.maximum(-a * ratio, -a * ratio.clamp(low, high))
    loss = torch.where(a < 0, torch.minimum(loss, -a * config.get("clip_ratio_c", 3.0)), loss)
    loss = torch.where(mask, loss * rollout_is_weights, 0.0)
    assert loss_agg_mode == "token-mean"
    tokens = max(1, config.global_batch_info["batch_num_tokens"])
    return loss.sum() / tokens * config.global_batch_info["dp_size"], {"actor/ppo_kl": 0.0}


def trl_style(
    per_token_logps, advantages, completion_mask, old_per_token_logps, num_items_in_batch
):
    """TRL's names: CISPO, divided by the tokens of all processes."""
    keep = completion_mask.bool()
    weight = (
        torch.where(keep, per_token_logps - old_per_token_logps, 0.0).detach().exp().clamp(max=5.0)
    )
    per_token_loss = -weight * torch.where(
        keep, advantages.unsqueeze(1) * per_token_logps.nan_to_num(), 0.0
    )
    return torch.where(keep, per_token_loss, 0.0).sum() / num_items_in_batch.clamp(min=1)


def prime_rl_style(inputs, cap=4.0):
    """prime-rl's one sequence: a sum over its trained tokens."""
    keep = inputs.loss_mask.bool()
    logp, mu = inputs.trainer_logprobs[keep], inputs.inference_logprobs[keep]
    weight = (logp - mu).detach().clamp(max=20).exp().clamp(max=cap)
    loss: Tensor = -(weight * inputs.advantages[keep] * logp).sum()
    return SimpleNamespace(loss=loss, metrics={})
