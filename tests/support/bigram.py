"""A policy of two small tables, for which every gradient can be checked, and ragged rollouts for it."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.update import (
    LossPair,
    Ranks,
    policy_update,
)

V, D = 6, 3
NAN = float("nan")
f64 = torch.float64
Params = list[Tensor]
LOSSES: dict[str, dict[str, Any]] = {
    "cispo": {"kind": "cispo", "eps_max": 1.5},
    "dapo": {"kind": "dapo"},
    "grpo": {"kind": "grpo"},
    "gspo": {"kind": "gspo", "clip_low": 0.3, "clip_high": 0.5},
    "reinforce": {"kind": "reinforce"},
}
"""Each loss as a recipe's spec, with bounds that random rollouts reach."""


class Bigram:
    """log p(next | token) = log softmax(E[token] H^T): a policy of two small tables, for which all can be checked."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = f64) -> None:
        generator = torch.Generator().manual_seed(seed)
        draw = [torch.randn(V, D, generator=generator, dtype=f64).to(dtype) for _ in range(2)]
        self.embedding, self.head = (torch.nn.Parameter(table) for table in draw)

    @property
    def head_VD(self) -> Tensor:
        return self.head

    def hidden(self, token_BT: Tensor) -> Tensor:
        return self.embedding[token_BT]

    def parameters(self) -> list[torch.nn.Parameter]:
        return [self.embedding, self.head]

    def logp_BT(self, token_BT: Tensor, temperature: float = 1.0) -> Tensor:
        """log p of every token given the one before it, 0 for the first: plain autograd."""
        z_BTV = self.embedding[token_BT[:, :-1]] @ self.head.T / temperature
        logp_BTV = torch.log_softmax(z_BTV, dim=-1)
        logp_BT = logp_BTV.gather(2, token_BT[:, 1:, None])[..., 0]
        return torch.nn.functional.pad(logp_BT, (1, 0))


class WithOthers(Ranks):
    """A rank that the others' gradients reach."""

    def __init__(self, policy: Bigram, others: Params) -> None:
        self.policy, self.others = policy, others

    def reduce_gradients(self) -> None:
        for p, g in zip(self.policy.parameters(), self.others, strict=True):
            p.grad = g if p.grad is None else p.grad + g


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(changes)


def still(policy: Bigram) -> torch.optim.Optimizer:
    """An optimiser that leaves the parameters, and their gradients, where they are."""
    return torch.optim.SGD(policy.parameters(), lr=0.0)


def doubled(batch: TrainBatch) -> TrainBatch:
    parts = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return TrainBatch(**{k: v.double() if v.is_floating_point() else v for k, v in parts.items()})


def rollouts(seed: int, groups: int = 3, size: int = 4, constant: int = 0) -> RolloutBatch:
    """Ragged groups with forced tokens in between; the last `constant` are all right. In float64."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    made: list[Group] = []
    for number in range(groups):
        rows: list[Completion] = []
        for row in range(size):
            n = integer(1, 7)
            row_correct = (
                number >= groups - constant or row == 0 or (row > 1 and integer(0, 1) == 1)
            )
            rows.append(
                Completion(
                    token_ids=[integer(0, V - 1) for _ in range(n)],
                    logp=[-3 * float(torch.rand((), generator=generator)) for _ in range(n)],
                    version=[4 + integer(0, 2)] * n,
                    sampled=[t == 0 or integer(0, 3) > 0 for t in range(n)],
                    truncated=integer(0, 3) == 0,
                    interrupted=integer(0, 3) == 0,
                    correct=row_correct,
                    reward=(1.0 if row_correct else -1.0) - 0.1 * integer(0, 2) * row_correct,
                )
            )
        made.append(Group(100 - number, number, [0] * integer(1, 3), rows))
    return RolloutBatch.from_groups(made)


def gradients(policy: Bigram) -> Params:
    return [p.grad.clone() for p in policy.parameters() if p.grad is not None]


def step(policy: Bigram, batch: TrainBatch, spec: Recipe, **options: Any) -> dict[str, Any]:
    found = policy_update(policy, still(policy), batch, spec, LossPair.of(spec.loss), **options)
    return {name: metric.value for name, metric in found.items()}


def assert_same(left: Params, right: Params, rel: float = 1e-10, abs: float = 1e-13) -> None:
    assert len(left) == len(right) == 2
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=rel, atol=abs)
