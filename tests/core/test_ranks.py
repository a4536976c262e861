"""Ranks that share an update: equal counts of backward passes, packed rows, and metrics of the engines themselves."""

from dataclasses import replace

import pytest
import torch
from bigram import Bigram, assert_same, doubled, gradients, recipe, rollouts, still
from torch import Tensor

from scalerl.batch import TrainBatch
from scalerl.errors import BatchError
from scalerl.metrics import ratio_stats
from scalerl.update import (
    LossPair,
    PredictingPolicy,
    Ranks,
    TrainablePolicy,
    policy_update,
    prepare,
)

pytestmark = pytest.mark.usefixtures("exact")
SPEC = recipe(loss={"kind": "cispo", "eps_max": 1.5})


class Busiest(Ranks):
    """Another rank has `count` shards."""

    def __init__(self, count: int) -> None:
        self.count = count

    def most(self, count: int) -> int:
        return max(count, self.count)


class Packed(Bigram):
    """The same policy, which takes whole rows and gives the states that are asked for."""

    hidden = None  # type: ignore[assignment]
    packs_rows = True

    def predicting(self, token_BT: Tensor, mask_BT: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return self.embedding[token_BT[:, :-1]][mask_BT[:, 1:]]


def update(policy: Bigram | Packed, train: TrainBatch, **options: object) -> dict[str, object]:
    found = policy_update(policy, still(policy), train, SPEC, LossPair.of(SPEC.loss), **options)  # type: ignore[arg-type]
    return {name: metric.value for name, metric in found.items()}


def test_idle_passes_change_nothing() -> None:
    policy, train = Bigram(), doubled(prepare(rollouts(0), SPEC))
    alone = update(policy, train)
    expected = gradients(policy)
    assert update(policy, train, ranks=Busiest(5)) == pytest.approx(alone, rel=1e-12)
    assert_same(gradients(policy), expected)


def test_a_rank_without_rows_still_runs_backward() -> None:
    policy, train = Bigram(), doubled(prepare(rollouts(0), SPEC))
    nothing = train.select(torch.zeros(train.rows, dtype=torch.bool))
    found = update(policy, nothing, ranks=Busiest(2))
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters())
    assert found["loss"] == 0.0 and found["kl"] is None and found["grad_norm"] == 0.0


def test_a_packed_policy_takes_the_same_step() -> None:
    plain, packed = Bigram(3), Packed(3)
    assert isinstance(packed, PredictingPolicy) and not isinstance(plain, PredictingPolicy)
    assert isinstance(plain, TrainablePolicy)
    train = doubled(prepare(rollouts(1), SPEC))
    expected = update(plain, train)
    assert update(packed, train, micro_batch_tokens=20) == pytest.approx(expected, rel=1e-10)
    assert packed.calls > 1
    assert_same(gradients(packed), gradients(plain))


def test_no_rank_gives_up_before_the_others_are_done() -> None:
    """A loss that is no number is said only after all passes and the sum of the ranks."""
    seen: list[str] = []

    class Noted(Ranks):
        def reduce_gradients(self) -> None:
            seen.append("summed")

        def norm(self, gradients: list[Tensor]) -> float:
            seen.append("norm")
            return super().norm(gradients)

    policy, train = Bigram(), doubled(prepare(rollouts(0), SPEC))
    train = replace(train, adv_B=train.adv_B.index_fill(0, torch.tensor([0]), float("nan")))
    with pytest.raises(BatchError, match="the loss is nan, so nothing was updated"):
        update(policy, train, micro_batch_tokens=1, ranks=Noted())
    assert seen == ["summed", "norm"]


def test_tokens_of_the_present_version_are_measured_apart() -> None:
    policy, train = Bigram(2), doubled(prepare(rollouts(2), SPEC))
    version_BT = torch.where(train.mask_BT, 4, -1)
    first_B = train.mask_BT.int().argmax(1)
    version_BT[1, first_B[1]] = 3  # row 1 was begun by an older version
    version_BT[2] = torch.where(train.mask_BT[2], 3, -1)  # row 2 is older altogether
    train = replace(train, version_BT=version_BT)
    ratio_BT = policy.logp_BT(train.token_BT).detach() - train.behavior_logp_BT
    fresh_BT = train.mask_BT & (version_BT == 4)
    whole_B = torch.ones(train.rows, dtype=torch.bool).index_fill(0, torch.tensor([1, 2]), False)

    def kl(chosen_BT: Tensor) -> float | None:
        value = ratio_stats(ratio_BT[chosen_BT].numpy())["kl"].value
        assert value is None or value > 0
        return value

    for tokens in (1, 10_000):
        found = update(policy, train, version=4, micro_batch_tokens=tokens)
        assert found["mismatch_kl"] == pytest.approx(kl(fresh_BT & whole_B[:, None]), rel=1e-9)
        assert found["stale_kv_kl"] == pytest.approx(kl(fresh_BT & ~whole_B[:, None]), rel=1e-9)
    older = update(policy, train, version=9)
    assert older["mismatch_kl"] is None and older["stale_kv_kl"] is None
    assert "mismatch_kl" not in update(policy, train)
