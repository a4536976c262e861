"""Adapters for losses written to the argument conventions of verl, TRL and prime-rl: their conventions, our words.

What each hands to a policy loss, and who divides, as seen in verl's `core_algos.py`, TRL's `grpo_trainer.py` and
prime-rl's `trainer/rl/loss.py` of 2026:

    verl      old_log_prob, log_prob, advantages [B, T], response_mask, loss_agg_mode, config, rollout_is_weights
              -> (loss, metrics); the loss divides by counts of the whole batch in `config.global_batch_info`
    TRL       per_token_logps, old_per_token_logps, advantages [B], completion_mask, importance_sampling_ratio,
              num_items_in_batch -> loss; TRL has no plug-in of this form: these are the names inside its trainer
    prime-rl  one sequence at a time, an object with trainer_logprobs, inference_logprobs, advantages [T], loss_mask
              -> an object with `loss`, summed over tokens; the trainer divides by the tokens of the whole batch

`old_log_prob` is the case's `old_logp`. A function that takes the correction for the generator (rollout_is_weights,
importance_sampling_ratio) is held to using it: it gets exp(old_logp - behavior_logp), at most CORRECTION_MAX.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from scalerl.errors import InputError
from scalerl.invariants.case import Case
from scalerl.invariants.subject import FUNCTION, LossUnderTest, import_of, tried

CORRECTION_MAX = 2.0


class VerlConfig(SimpleNamespace):
    """The attributes of verl's actor config that a loss reads, also through `.get(name, default)`."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


VERL_DEFAULTS: dict[str, Any] = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
}


def verl(
    function: Callable[..., Any],
    *,
    keywords: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> LossUnderTest:
    """A function of verl's form. `keywords`: its arguments (`loss_agg_mode`), or attributes of its config."""
    takes = _parameters(function)
    own = {k: v for k, v in (keywords or {}).items() if k in takes and k != "config"}
    settings = {**VERL_DEFAULTS, **{k: v for k, v in (keywords or {}).items() if k not in own}}

    def call(case: Case, rows: Tensor) -> Any:
        part = case.rows(rows)
        counts = {
            "dp_size": 1,
            "batch_num_tokens": int(case.mask_BT.sum()),
            "global_batch_size": len(case.adv_B),
            "loss_scale_factor": settings.get("loss_scale_factor"),
        }
        given = {
            "old_log_prob": part.old_logp_BT,
            "log_prob": part.logp_BT,
            "advantages": torch.where(part.mask_BT.bool(), part.adv_B[:, None], 0.0),
            "response_mask": part.mask_BT,
            "loss_agg_mode": "token-mean",
            "config": VerlConfig(**settings, global_batch_info=counts),
            "rollout_is_weights": _correction(part),
            **own,
        }
        out = function(**{key: value for key, value in given.items() if key in takes})
        return out[0] if isinstance(out, tuple) else out

    return _subject(
        function,
        "verl",
        call,
        keywords,
        name,
        needed=("old_log_prob", "log_prob", "advantages", "response_mask"),
        takes_old="rollout_is_weights" in takes,
        shards="config" in takes,
    )


def trl(
    function: Callable[..., Any],
    *,
    keywords: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> LossUnderTest:
    """A function with the names that TRL's trainer uses. `keywords`: further arguments of it."""
    takes = _parameters(function)

    def call(case: Case, rows: Tensor) -> Any:
        part = case.rows(rows)
        given = {
            "per_token_logps": part.logp_BT,
            "old_per_token_logps": part.old_logp_BT,
            "sampling_per_token_logps": part.behavior_logp_BT,
            "advantages": part.adv_B,
            "completion_mask": part.mask_BT.long() if part.mask_BT.dtype == torch.bool else part.mask_BT,
            "importance_sampling_ratio": _correction(part),
            "num_items_in_batch": case.mask_BT.sum(),
            "ref_per_token_logps": None,
            **(keywords or {}),
        }  # fmt: skip
        out = function(**{key: value for key, value in given.items() if key in takes})
        return out[0] if isinstance(out, tuple) else out

    return _subject(
        function,
        "trl",
        call,
        keywords,
        name,
        needed=("per_token_logps", "advantages", "completion_mask"),
        takes_old=bool({"importance_sampling_ratio", "sampling_per_token_logps"} & takes.keys()),
        shards="num_items_in_batch" in takes,
    )


@dataclass
class LossInputs:
    """One sequence, every tensor of length [T]; prompt and padding have `loss_mask` False."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    ref_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None  # its former name
    loss_weights: Tensor | None = None


def prime_rl(
    function: Callable[..., Any],
    *,
    keywords: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> LossUnderTest:
    """A function `loss(inputs, **keywords)` of prime-rl's form."""

    def call(case: Case, rows: Tensor) -> Any:
        total = case.logp_BT.new_zeros(())
        for i in rows.tolist():
            inputs = LossInputs(
                trainer_logprobs=case.logp_BT[i],
                inference_logprobs=case.behavior_logp_BT[i],
                advantages=torch.where(case.mask_BT[i].bool(), case.adv_B[i], 0.0),
                loss_mask=case.mask_BT[i],
            )
            out = function(inputs, **(keywords or {}))
            total = total + getattr(out, "loss", out)
        return total / case.mask_BT.bool().sum().clamp(min=1)

    return _subject(
        function, "prime_rl", call, keywords, name, needed=(), takes_old=False, shards=True
    )


CONVENTIONS: dict[str, Callable[..., LossUnderTest]] = {
    "verl": verl,
    "trl": trl,
    "prime-rl": prime_rl,
}
"""Name on the command line -> adapter."""


def _correction(part: Case) -> Tensor:
    """Token weights of the trainer's old policy over the generator, detached, 0 on padding."""
    log_BT = torch.where(part.mask_BT.bool(), part.old_logp_BT - part.behavior_logp_BT, 0.0)
    return torch.where(part.mask_BT.bool(), log_BT.exp().clamp(max=CORRECTION_MAX), 0.0)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _subject(
    function: Callable[..., Any],
    convention: str,
    call: Callable[[Case, Tensor], Any],
    keywords: Mapping[str, Any] | None,
    name: str | None,
    *,
    needed: tuple[str, ...],
    takes_old: bool,
    shards: bool,
) -> LossUnderTest:
    own_name = str(getattr(function, "__name__", "loss"))
    name = name or own_name
    for argument in needed:
        if argument not in _parameters(function):
            raise InputError(
                f"{name} takes no {argument!r}, which the convention of {convention} has"
            )
    adapter = f"{convention}({FUNCTION}{f', keywords={dict(keywords)!r}' if keywords else ''})"
    return tried(
        name=name,
        call=call,
        takes_old=takes_old,
        shards=shards,
        adapter=adapter,
        expression=f"{adapter}.value(Case(logp, behavior_logp, old_logp, adv, mask, group_id), rows)",
        imports=(
            *import_of(function),
            "from scalerl.invariants import Case",
            f"from scalerl.invariants.conventions import {convention}",
        ),
    )
