"""The policy update, the same in every world: `prepare` on the whole batch once, `policy_update` on each shard.

prepare        drop zero-variance groups -> advantages -> token weights (over what survives)
policy_update  log-probs -> per-token loss -> sum of weight * loss -> gradients summed -> one AdamW step
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scalerl import metrics
from scalerl.advantages import advantages
from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.errors import BatchError, NotFinite
from scalerl.logprobs import sampled_logprobs
from scalerl.losses import CAPPED, LOSSES, log_ratio
from scalerl.recipe import CustomLoss, Loss, Recipe
from scalerl.reduction import token_weights
from scalerl.shapes import IdB, MaskB
from scalerl.site import Optimizer
from scalerl.user_code import load_function, place_and_text
from scalerl.world import UpdateStats

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LossFn = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@runtime_checkable
class TrainablePolicy(Protocol):
    """A model whose LM head is applied outside it, so that its precision is the recipe's."""

    @property
    def head_VD(self) -> Tensor: ...

    def hidden(self, token_BT: Tensor) -> Tensor: ...

    def parameters(self) -> Iterable[torch.nn.Parameter]: ...


@runtime_checkable
class PredictingPolicy(Protocol):
    """A model that takes whole rows and works out only the states that are asked for."""

    @property
    def head_VD(self) -> Tensor: ...

    @property
    def packs_rows(self) -> bool:
        """Whether it runs rows end to end, so that padding costs nothing."""
        ...

    def predicting(self, token_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Hidden states [N, D] that predict the N tokens which `mask_BT` marks, row by row."""
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]: ...


class Ranks:
    """How the ranks that share an update agree; this one is alone.

    Every rank runs as many backward passes as the busiest, or collectives inside them would wait for ever.
    """

    def most(self, count: int) -> int:
        """The largest of the ranks' counts."""
        return count

    def any(self, flag: bool) -> bool:
        """Whether it is so on some rank."""
        return flag

    def reduce_gradients(self) -> None:
        """Sum the gradients of all ranks, after the last backward pass (where backward has not done so)."""

    def norm(self, gradients: list[Tensor]) -> float:
        """Of the summed gradients of the whole model: the same number on every rank."""
        return torch.nn.utils.get_total_norm(gradients).item()


ALONE = Ranks()


@dataclass(frozen=True)
class LossPair:
    """A loss with its keywords bound, and the function that marks the tokens on which its cap or clip acts."""

    term: LossFn
    capped: LossFn | None  # None: a loss of the user's own, of which we cannot know

    @classmethod
    def of(cls, spec: Loss, *, allow_code: bool = False) -> "LossPair":
        """The functions that a recipe's `loss` names.

        Raises:
            InputError: a custom loss without `allow_code`, or one that cannot be imported.
        """
        if isinstance(spec, CustomLoss):
            function = load_function(spec.function, allow_code=allow_code)
            return cls(_explained(spec.function, partial(function, **spec.keywords)), None)
        keywords = spec.model_dump(exclude={"kind"})
        return cls(partial(LOSSES[spec.kind], **keywords), partial(CAPPED[spec.kind], **keywords))


def mixed_groups(correct_B: MaskB, group_B: IdB) -> MaskB:
    """True on rows whose group has both a pass and a fail: decided on correctness, by exact counts."""
    group_of_B = group_B.unique(return_inverse=True)[1]
    size_P = torch.bincount(group_of_B)
    passes_P = torch.bincount(group_of_B[correct_B], minlength=len(size_P))
    return ((passes_P > 0) & (passes_P < size_P))[group_of_B]


def prepare(batch: RolloutBatch, recipe: Recipe) -> TrainBatch:
    """Decide, on the whole batch and once, which rows are trained on and what each token weighs.

    Dropped groups leave every denominator: the standard deviation of the advantages and the weights are
    taken over what survives, so adding an all-right or all-wrong group changes nothing.

    Raises:
        BatchError: a reward or log-prob that is not a number, or a token without a version.
    """
    batch.check()
    if recipe.zero_variance != "keep":
        batch = batch.select(mixed_groups(batch.correct_B, batch.group_B))
    return TrainBatch(
        token_BT=batch.token_BT,
        mask_BT=batch.mask_BT,
        behavior_logp_BT=batch.behavior_logp_BT,
        version_BT=batch.version_BT,
        adv_B=advantages(batch.reward_B, batch.group_B, recipe.advantage),
        weight_BT=token_weights(batch.mask_BT, batch.group_B, recipe.aggregation),
    )


def make_optimizer(parameters: Iterable[torch.nn.Parameter], spec: Optimizer) -> torch.optim.AdamW:
    """AdamW; `eps` far below any gradient makes its step independent of a constant factor on the loss."""
    betas = (spec.beta1, spec.beta2)
    return torch.optim.AdamW(
        parameters,
        lr=spec.learning_rate,
        betas=betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        foreach=True,
    )


def learning_rate(spec: Optimizer, version: int) -> float:
    """Of the step that turns `version` into the next: linear from 1/warmup to 1, then constant."""
    return spec.learning_rate * min(1.0, (version + 1) / max(1, spec.warmup_updates))


def policy_update(
    policy: TrainablePolicy | PredictingPolicy,
    optimizer: torch.optim.Optimizer,
    batch: TrainBatch,
    recipe: Recipe,
    loss: LossPair,
    *,
    micro_batch_tokens: int = 16_384,
    temperature: float = 1.0,
    version: int | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, metrics.Metric]:
    """One optimiser step on one rank's rows; gradients of micro-batches and ranks are summed, never averaged.

    Args:
        batch: this rank's rows of what `prepare` decided on the whole batch; there may be none.
        micro_batch_tokens: tokens per forward pass, padding included unless the policy packs its rows. The result
            does not depend on it.
        temperature: of sampling; the trainer scores the tempered distribution that was sampled from.
        version: of the policy before the step; with it, tokens of this very version are measured apart.
        ranks: those that share the step.

    Raises:
        NotFinite: the loss or the gradient is not; nothing was updated.
    """
    optimizer.zero_grad(set_to_none=True)
    packed = isinstance(policy, PredictingPolicy) and policy.packs_rows
    shards = batch.shards(micro_batch_tokens, packed=packed)
    shards += [batch.idle()] * (ranks.most(len(shards)) - len(shards))
    merged = metrics.merge_all(
        [_backward(policy, shard, recipe, loss, temperature, version) for shard in shards]
    )
    ranks.reduce_gradients()
    norm = ranks.norm([p.grad for p in policy.parameters() if p.grad is not None])
    # only now: a rank that gave up earlier would leave the others waiting in their collectives
    value = merged["loss"].value if "loss" in merged else 0.0
    found = {"loss": value, "gradient norm": norm}
    bad = [f"the {name} is {x}" for name, x in found.items() if x is None or not math.isfinite(x)]
    if ranks.any(bool(bad)):  # all of them, or slices of the weights would be of different steps
        said = bad[0] if bad else "the loss of another rank is no number"
        raise NotFinite(
            f"{said}, so nothing was updated: look at kl and capped of the last updates"
        )
    optimizer.step()
    return {**merged, "grad_norm": metrics.Max(norm)}


def score(
    policy: TrainablePolicy | PredictingPolicy,
    batch: TrainBatch,
    recipe: Recipe,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every trained token of a batch, [N] each, in row order.

    Differentiable where gradients are on.
    """
    if isinstance(policy, PredictingPolicy):
        hidden_ND = policy.predicting(batch.token_BT, batch.mask_BT)
    else:  # the state at t predicts token t + 1
        hidden_ND = policy.hidden(batch.token_BT[:, :-1])[batch.mask_BT[:, 1:]]
    return sampled_logprobs(
        hidden_ND,
        policy.head_VD,
        batch.token_BT[batch.mask_BT],
        head_dtype=DTYPES[recipe.head_dtype],
        temperature=temperature,
    )


def _backward(
    policy: TrainablePolicy | PredictingPolicy,
    shard: TrainBatch,
    recipe: Recipe,
    loss: LossPair,
    temperature: float,
    version: int | None,
) -> dict[str, metrics.Metric]:
    """Add one micro-batch's gradient to the parameters; its metrics as sums."""
    logp_N, entropy_N = score(policy, shard, recipe, temperature)
    mask_BT = shard.mask_BT[:, 1:]
    behavior_BT = shard.behavior_logp_BT[:, 1:]
    logp_BT = torch.zeros_like(behavior_BT).masked_scatter(mask_BT, logp_N)
    term_BT = loss.term(logp_BT, behavior_BT, shard.adv_B, mask_BT)
    _check_terms(term_BT, mask_BT)
    value = (shard.weight_BT[:, 1:] * term_BT).sum()
    value.backward()
    logp_BT = logp_BT.detach()
    tokens = int(mask_BT.sum())
    log_ratio_N = log_ratio(logp_BT, behavior_BT, mask_BT)[mask_BT].cpu().numpy()
    found: dict[str, metrics.Metric] = {
        "loss": metrics.Sum(value.item()),
        "entropy": metrics.Mean(entropy_N.sum().item(), tokens),
        **metrics.ratio_stats(log_ratio_N),
    }
    if version is not None:
        found |= _same_version(shard, log_ratio_N, version)
    if loss.capped is not None:
        capped = int(loss.capped(logp_BT, behavior_BT, shard.adv_B, mask_BT).sum())
        found["capped"] = metrics.Mean(capped, tokens)
    return found


def _same_version(
    shard: TrainBatch, log_ratio_N: npt.NDArray[np.floating], version: int
) -> dict[str, metrics.Metric]:
    """KL of tokens that the trainer's own version sampled: what is left is a difference between the two engines.

    In completions begun by this version it should be nothing but rounding; in those that older ones began, the
    generator kept keys and values of older weights.
    """
    fresh_BT = shard.version_BT == version
    whole_B1 = (fresh_BT | ~shard.mask_BT).all(1, keepdim=True)
    return {
        name: metrics.ratio_stats(log_ratio_N[chosen_BT[shard.mask_BT].cpu().numpy()])["kl"]
        for name, chosen_BT in (
            ("mismatch_kl", fresh_BT & whole_B1),
            ("stale_kv_kl", fresh_BT & ~whole_B1),
        )
    }


def _explained(name: str, function: LossFn) -> LossFn:
    """A loss of the user's own, whose failures name the line and the shapes it was given."""

    def term(logp_BT: Tensor, behavior_logp_BT: Tensor, adv_B: Tensor, mask_BT: Tensor) -> Any:
        try:
            return function(logp_BT, behavior_logp_BT, adv_B, mask_BT)
        except Exception as error:
            place, said = place_and_text(error)
            raise BatchError(
                f"{name} failed at {place}: {type(error).__name__}: {said} "
                f"(log-probs and mask are [B, T] = {list(logp_BT.shape)}, advantages [B])"
            ) from error

    return term


def _check_terms(term_BT: object, mask_BT: Tensor) -> None:
    """Say what a loss of the user's own got wrong, before autograd does."""
    if not isinstance(term_BT, Tensor):
        raise BatchError(f"the loss returned {type(term_BT).__name__}: a tensor is needed")
    if term_BT.shape != mask_BT.shape:
        raise BatchError(
            f"the loss returned shape {tuple(term_BT.shape)}: "
            f"one term per token, {tuple(mask_BT.shape)}, is needed"
        )
    if not term_BT.requires_grad:
        raise BatchError("the loss returned terms without a gradient: is log pi detached?")


def update_stats(
    batch: RolloutBatch, train: TrainBatch, version: int, found: dict[str, metrics.Metric]
) -> UpdateStats:
    """What an `update` event says of a batch: rates over all of it, lags over its trained tokens."""
    lag_N = version - train.version_BT[train.mask_BT]
    return UpdateStats(
        skipped=train.rows == 0,
        reward=batch.reward_B.mean().item(),
        pass_rate=_share(batch.correct_B),
        truncated=_share(batch.truncated_B),
        interrupted=_share(batch.interrupted_B),
        zero_variance=_zero_variance_share(batch),
        length_mean_tokens=(batch.version_BT >= 0).sum().item() / batch.reward_B.shape[0],
        trained_tokens=lag_N.numel(),
        lag_tokens=torch.bincount(lag_N).tolist() if lag_N.numel() else [],
        **{name: metric.value for name, metric in found.items()},
    )


def _share(flag_B: MaskB) -> float:
    return flag_B.float().mean().item()


def _zero_variance_share(batch: RolloutBatch) -> float:
    """Share of groups, not of rows."""
    mixed_B = mixed_groups(batch.correct_B, batch.group_B)
    groups = batch.group_B.unique().numel()
    return 1.0 - batch.group_B[mixed_B].unique().numel() / groups
