"""One input of a policy loss, small enough to read, and the ways to change it that a loss must not notice."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

f64 = torch.float64


@dataclass(frozen=True)
class Case:
    """B completions of at most T tokens, as a loss sees them. One row, three tokens, the last is padding:

    logp_BT           [[-0.50, -1.25, 0.0]]    log pi(token) in nats, the weights being trained
    behavior_logp_BT  [[-0.75, -1.25, 0.0]]    log mu(token) in nats, recorded when sampling; 0.0 where mask is False
    old_logp_BT       [[-0.75, -1.25, 0.0]]    the trainer's own, before this batch's first step; mostly = behavior
    adv_B             [1.0]
    mask_BT           [[True, True, False]]
    group_B           [7]                      any int64; the same id is the same prompt
    """

    logp_BT: Tensor
    behavior_logp_BT: Tensor
    old_logp_BT: Tensor
    adv_B: Tensor
    mask_BT: Tensor
    group_B: Tensor

    @classmethod
    def of(
        cls,
        logp: Sequence[Sequence[float]],
        log_ratio: Sequence[Sequence[float]] | float = 0.0,
        *,
        adv: Sequence[float] | float = 1.0,
        mask: Sequence[Sequence[bool]] | None = None,
        group: Sequence[int] | None = None,
    ) -> "Case":
        """From lists; the generator's log-prob is `logp - log_ratio`, everything is trained on unless `mask` says."""
        logp_BT = torch.tensor(logp, dtype=f64)
        d_BT = torch.as_tensor(log_ratio, dtype=f64).expand(logp_BT.shape)
        mask_BT = (
            torch.ones(logp_BT.shape, dtype=torch.bool) if mask is None else torch.tensor(mask)
        )
        behavior_BT = (logp_BT - d_BT).masked_fill(~mask_BT, 0.0)
        return cls(
            logp_BT=logp_BT.masked_fill(~mask_BT, 0.0),
            behavior_logp_BT=behavior_BT,
            old_logp_BT=behavior_BT,
            adv_B=torch.as_tensor(adv, dtype=f64).expand(len(logp_BT)).clone(),
            mask_BT=mask_BT,
            group_B=torch.tensor(list(range(len(logp_BT))) if group is None else group),
        )

    @property
    def shape(self) -> torch.Size:
        return self.mask_BT.shape

    @property
    def tokens_B(self) -> Tensor:
        return self.mask_BT.sum(dim=1)

    @property
    def log_ratio_BT(self) -> Tensor:
        """log rho in nats, 0.0 where mask is False."""
        return torch.where(self.mask_BT.bool(), self.logp_BT - self.behavior_logp_BT, 0.0)

    def but(self, **parts: Tensor) -> "Case":
        """With other tensors; a new `behavior_logp_BT` is the new `old_logp_BT` too, unless that is given."""
        if "behavior_logp_BT" in parts:
            parts.setdefault("old_logp_BT", parts["behavior_logp_BT"])
        return replace(self, **parts)

    def rows(self, index: Tensor | Sequence[int]) -> "Case":
        """These rows, in this order; all of them in theirs is the case itself, not a copy."""
        rows = torch.as_tensor(index, dtype=torch.int64)
        if torch.equal(rows, torch.arange(len(self.adv_B))):
            return self
        return self._each(lambda part: part[rows])

    def beside(self, other: "Case") -> "Case":
        """Both, one below the other; of the same width."""
        return Case(
            **{f.name: torch.cat([getattr(c, f.name) for c in (self, other)]) for f in fields(Case)}
        )

    def blank(self) -> "Case":
        """The same rows with nothing to train on, and 0.0 everywhere."""
        return self._each(torch.zeros_like).but(group_B=self.group_B)

    def padded(self, left: int, right: int) -> "Case":
        """With fully masked columns on either side."""
        return self._each(
            lambda part: torch.nn.functional.pad(part, (left, right)) if part.dim() == 2 else part
        )

    def compacted(self) -> "Case":
        """Each row's masked tokens moved behind its trained ones, in order."""
        order_BT = torch.argsort((~self.mask_BT).int(), dim=1, stable=True)
        return self._each(lambda part: part.gather(1, order_BT) if part.dim() == 2 else part)

    def copy(self) -> "Case":
        """On tensors of its own."""
        return self._each(torch.clone)

    def to(self, dtype: torch.dtype) -> "Case":
        return self._each(lambda part: part.to(dtype) if part.is_floating_point() else part)

    def _each(self, change: Any) -> "Case":
        return Case(**{f.name: change(getattr(self, f.name)) for f in fields(Case)})
