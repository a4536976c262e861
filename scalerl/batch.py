"""Rollouts as tensors: what `prepare` reads and what a training shard holds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from scalerl.errors import BatchError
from scalerl.rollout import Completion, Group
from scalerl.shapes import BT, B, IdB, IdBT, MaskB, MaskBT

R = TypeVar("R", bound="_RowTensors")


@dataclass(frozen=True)
class _RowTensors:
    """Tensors whose first axis is the completion."""

    def select(self: R, keep: Tensor) -> R:
        """The rows that a bool mask or an index names, in a new batch."""
        return self._each(lambda part: part[keep])

    def to(self: R, device: torch.device | str) -> R:
        return self._each(lambda part: part.to(device))

    def _each(self: R, change: Callable[[Tensor], Tensor]) -> R:
        return type(self)(**{f.name: change(getattr(self, f.name)) for f in fields(self)})


@dataclass(frozen=True)
class RolloutBatch(_RowTensors):
    """B completions with their prompts, right-padded to T tokens; position t is scored given positions before t.

    Worked row, prompt of two tokens and completion of three, the middle one forced:

        token_BT          [ 1, 40, 41,  5, 2, 0]
        mask_BT           [ F,  F,  T,  F, T, F]      True on sampled tokens only: those that are trained on
        behavior_logp_BT  [ 0,  0, -.7, 0, -.1, 0]    nats, by the policy that sampled; 0.0 where mask is False
        version_BT        [-1, -1,  3,  3, 4, -1]     weights that produced the token; -1 where there are none
    """

    token_BT: IdBT
    mask_BT: MaskBT
    behavior_logp_BT: BT
    version_BT: IdBT
    reward_B: B
    correct_B: MaskB
    group_B: IdB  # same id = same draw of a prompt
    truncated_B: MaskB
    interrupted_B: MaskB

    @classmethod
    def from_groups(cls, groups: Sequence[Group], pad_id: int = 0) -> "RolloutBatch":
        """Pack groups; rows keep their order, and the group id travels with each row."""
        rows = [(group, completion) for group in groups for completion in group.completions]
        _check_records(rows)
        start_B = torch.tensor([len(group.prompt_ids) for group, _ in rows])
        end_B = start_B + torch.tensor([completion.length_tokens for _, completion in rows])
        place_T = torch.arange(int(end_B.max()))
        prompt_BT = place_T < start_B[:, None]
        completion_BT = (place_T < end_B[:, None]) & ~prompt_BT

        def filled(pad: bool | int | float, where_BT: Tensor, parts: Iterable[list[Any]]) -> Tensor:
            # all rows end to end: a tensor for each would cost more than a tiny policy's forward pass
            whole = torch.full(where_BT.shape, pad)
            flat = torch.tensor(list(chain.from_iterable(parts)), dtype=whole.dtype)
            return whole.masked_scatter_(where_BT, flat)

        texts = (part for g, c in rows for part in (g.prompt_ids, c.token_ids))
        mask_BT = filled(False, completion_BT, (c.sampled for _, c in rows))
        logp_BT = filled(0.0, completion_BT, (c.logp for _, c in rows))
        return cls(
            token_BT=filled(pad_id, prompt_BT | completion_BT, texts),
            mask_BT=mask_BT,
            behavior_logp_BT=logp_BT.masked_fill_(~mask_BT, 0.0),
            version_BT=filled(-1, completion_BT, (c.version for _, c in rows)),
            reward_B=torch.tensor([float(completion.reward) for _, completion in rows]),
            correct_B=torch.tensor([completion.correct for _, completion in rows]),
            group_B=torch.tensor([group.request_id for group, _ in rows]),
            truncated_B=torch.tensor([completion.truncated for _, completion in rows]),
            interrupted_B=torch.tensor([completion.interrupted for _, completion in rows]),
        )

    def check(self) -> None:
        """Raise BatchError, naming the row, on anything that must not be averaged into a gradient."""
        if not torch.isfinite(self.reward_B).all():
            row = int((~torch.isfinite(self.reward_B)).nonzero()[0])
            raise BatchError(
                f"row {row} has reward {self.reward_B[row].item()}: a verifier must return a finite number"
            )
        bad_BT = self.mask_BT & ~(
            torch.isfinite(self.behavior_logp_BT) & (self.behavior_logp_BT <= 1e-4)
        )
        if bad_BT.any():
            row, column = bad_BT.nonzero()[0].tolist()
            value = self.behavior_logp_BT[row, column].item()
            raise BatchError(
                f"row {row}, token {column} was sampled with log-prob {value}: "
                "the generator's own, finite and at most 0, is needed"
            )
        if self.mask_BT[:, 0].any():
            row = int(self.mask_BT[:, 0].nonzero()[0])
            raise BatchError(f"row {row} has no prompt: nothing predicts its first token")
        if (self.mask_BT & (self.version_BT < 0)).any():
            raise BatchError("a sampled token has no weight version; its staleness cannot be known")


@dataclass(frozen=True)
class TrainBatch(_RowTensors):
    """What a gradient needs: rows that survived, with advantage and weight already decided on the whole batch.

    `weight_BT` sums to 1 over the whole batch (0 where mask is False), so the losses of any shards add up.
    """

    token_BT: IdBT
    mask_BT: MaskBT
    behavior_logp_BT: BT
    version_BT: IdBT
    adv_B: B
    weight_BT: BT

    @property
    def rows(self) -> int:
        return self.token_BT.shape[0]

    @property
    def tokens(self) -> int:
        """Of prompts and completions, without padding."""
        place_T = torch.arange(1, self.version_BT.shape[1] + 1, device=self.version_BT.device)
        return int(torch.where(self.version_BT >= 0, place_T, 0).amax(1).sum())

    def idle(self) -> "TrainBatch":
        """A shard without a trained token: what a rank runs when the others have more to do."""

        def nothing(part: Tensor) -> Tensor:
            return part.new_zeros((1, 2)[: part.dim()])

        return self._each(nothing)

    def shards(self, max_tokens: int, *, packed: bool = False) -> list["TrainBatch"]:
        """Rows of like length together, each shard at most `max_tokens` tokens, trimmed to its longest row.

        Padding counts as tokens, unless rows are `packed` end to end. A row longer than that is a shard of its own.
        """
        length_B = (self.weight_BT.shape[1] - self.mask_BT.flip(1).int().argmax(1)).masked_fill(
            ~self.mask_BT.any(1), 1
        )
        order = torch.argsort(length_B, stable=True)
        shards: list[TrainBatch] = []
        end = self.rows
        while end > 0:
            width = int(length_B[order[end - 1]])
            if packed:
                total_B = length_B[order[:end]].flip(0).cumsum(0)
                start = end - max(1, int((total_B <= max_tokens).sum()))
            else:
                start = max(0, end - max(1, max_tokens // width))
            rows = order[start:end]
            shards.append(self.select(rows)._trim(width))
            end = start
        return shards

    def _trim(self, width: int) -> "TrainBatch":
        return self._each(lambda part: part[:, :width] if part.dim() == 2 else part)


def _check_records(rows: Sequence[tuple[Group, Completion]]) -> None:
    """Raise BatchError unless each token of each completion has its log-prob, version and mark."""
    for row, (group, completion) in enumerate(rows):
        for name in ("logp", "version", "sampled"):
            if (length := len(getattr(completion, name))) != completion.length_tokens:
                raise BatchError(
                    f"row {row}, of group {group.request_id}, has {completion.length_tokens} tokens "
                    f"and {length} values in {name!r}: each token needs one"
                )
