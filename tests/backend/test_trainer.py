"""Two FSDP2 ranks on gloo: the gradient of one process, whatever the split; buckets, probes, checkpoints, failures."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from two_ranks import FOLDER, TwoRanks, apart, log_probs, recipe, rollouts, tied_policy

from backend.policy import load
from backend.probe import hidden_states
from backend.sharding import split_rows
from backend.trainer import Trainer
from backend.wire import free_port
from sandbox.model import load_policy
from scalerl import metrics
from scalerl.batch import TrainBatch
from scalerl.errors import BatchError, CheckpointError, InputError
from scalerl.logprobs import logits
from scalerl.recipe import Recipe
from scalerl.site import Site
from scalerl.update import LossPair, learning_rate, make_optimizer, policy_update, prepare

VERSION = 1
SEED = 2


@pytest.fixture(scope="module")
def ranks() -> Iterator[TwoRanks]:
    two = TwoRanks()
    yield two
    two.close()


def cluster(spec: Recipe) -> Site:
    assert spec.site is not None
    return spec.site


def batch() -> TrainBatch:
    return prepare(rollouts(SEED), recipe())


def split(train: TrainBatch, how: str) -> tuple[TrainBatch, TrainBatch]:
    if how == "balanced":
        first, second = split_rows(train, 2)
        return first, second
    cut = {"uneven": 2, "one idle": train.rows}[how]
    rows = torch.arange(train.rows)
    return train.select(rows[:cut]), train.select(rows[cut:])


def one_process(policy: Any, named: Any) -> tuple[dict[str, metrics.Metric], list[dict[str, Any]]]:
    """Metrics, then gradients and weights by name, of a step of the whole batch."""
    spec, train = recipe(), batch()
    optimizer = make_optimizer(policy.parameters(), cluster(spec).optimizer)
    optimizer.param_groups[0]["lr"] = learning_rate(cluster(spec).optimizer, VERSION)
    found = policy_update(policy, optimizer, train, spec, LossPair.of(spec.loss), version=VERSION)
    parameters = dict(named.named_parameters())
    return found, [
        {name: p.grad for name, p in parameters.items()},
        {name: p.detach() for name, p in parameters.items()},
    ]


def values(found: list[dict[str, metrics.Metric]]) -> dict[str, Any]:
    return {name: metric.value for name, metric in metrics.merge_all(found).items()}


# ---- the update ----


@pytest.mark.parametrize("how", ["balanced", "uneven", "one idle"])
@pytest.mark.parametrize("again", [False, True], ids=["kept", "checkpointed"])
def test_a_step_is_that_of_one_process(how: str, again: bool, ranks: TwoRanks) -> None:
    theirs = load_policy(FOLDER)
    expected, (gradients, weights) = one_process(theirs, theirs)
    ranks.start(recipe({"activation_checkpointing": again, "micro_batch_tokens": 30}))
    found = ranks.trainer_each("update", *((part, VERSION) for part in split(batch(), how)))
    for of_rank in ranks.ask("gradients"):
        assert apart(of_rank, gradients) <= 1e-5
    for of_rank in ranks.ask("weights"):
        assert apart(of_rank, weights) <= 1e-6
    assert found[0]["grad_norm"] == found[1]["grad_norm"]
    assert values(found) == pytest.approx(values([expected]), rel=1e-4)


def test_a_second_step_goes_on_from_the_first(ranks: TwoRanks) -> None:
    """Also when rows and micro-batches of the two ranks change from step to step."""
    spec, policy = recipe({"micro_batch_tokens": 30}), load(FOLDER)
    optimizer = make_optimizer(policy.parameters(), cluster(spec).optimizer)
    ranks.start(spec)
    for version, how in enumerate(["one idle", "uneven", "balanced"]):
        train = prepare(rollouts(version), spec)
        optimizer.param_groups[0]["lr"] = learning_rate(cluster(spec).optimizer, version)
        alone = policy_update(policy, optimizer, train, spec, LossPair.of(spec.loss))
        both = ranks.trainer_each("update", *((part, version) for part in split(train, how)))
        assert both[1]["grad_norm"].value == pytest.approx(alone["grad_norm"].value, rel=1e-3)
    weights = {name: p.detach() for name, p in policy.model.named_parameters()}
    assert apart(ranks.ask("weights")[0], weights) <= 1e-4


def test_a_tied_head(tmp_path: Path, ranks: TwoRanks) -> None:
    """Its gradient is the embedding's and the head's together, and it is pushed once."""
    tied_policy(tmp_path)
    policy = load(tmp_path)
    _, (gradients, _) = one_process(policy, policy.model)
    ranks.start(recipe({"micro_batch_tokens": 40}), tmp_path)
    ranks.trainer_each("update", *((part, VERSION) for part in split(batch(), "uneven")))
    assert apart(ranks.ask("gradients")[1], gradients) <= 1e-5
    assert "lm_head.weight" not in ranks.trainer("layout")[0].names


def test_each_rank_holds_its_slice(ranks: TwoRanks) -> None:
    ranks.start(recipe())
    first, second = ranks.ask("local_shapes")
    for name, parameter in load(FOLDER).model.named_parameters():
        rows, *rest = parameter.shape
        assert first[name] == (-(-rows // 2), *rest)
        assert second[name] == (rows // 2, *rest)


# ---- failures ----


@pytest.mark.parametrize("broken", [0, 1])
def test_a_loss_that_is_no_number_stops_both(broken: int, ranks: TwoRanks) -> None:
    ranks.start(recipe())
    before = ranks.ask("weights")[0]
    parts = list(split(batch(), "uneven"))
    log_BT = parts[broken].behavior_logp_BT
    parts[broken] = replace(parts[broken], behavior_logp_BT=torch.full_like(log_BT, torch.nan))
    for error in ranks.trainer_each("update", *((part, VERSION) for part in parts)):
        assert isinstance(error, BatchError) and "is nan, so nothing was updated" in str(error)
    assert apart(ranks.ask("weights")[0], before) == 0.0
    # and the next batch is trained on as if nothing had happened
    expected = one_process(policy := load(FOLDER), policy.model)[1][0]
    ranks.trainer_each("update", *((part, VERSION) for part in split(batch(), "uneven")))
    assert apart(ranks.ask("gradients")[0], expected) <= 1e-5


def test_code_of_the_users_own_runs_only_when_allowed() -> None:
    spec = recipe(loss={"kind": "custom", "function": "my_loss.py:fn"})
    with pytest.raises(InputError, match="--allow-code"):
        Trainer(spec, FOLDER, rank=0, world_size=2, allow_code=False)


# ---- probes ----


@pytest.mark.parametrize("tokens", [20, 10_000])
def test_log_ratios_are_of_each_row(tokens: int, ranks: TwoRanks) -> None:
    ranks.start(recipe({"micro_batch_tokens": tokens}))
    train = batch()
    expected_BT = log_probs(load_policy(FOLDER), train.token_BT) - train.behavior_logp_BT
    for how in ("uneven", "one idle"):
        parts = split(train, how)
        found = ranks.trainer_each("log_ratios", *((part,) for part in parts))
        rows = [row for of_rank in found for row in of_rank]
        for row, ratio_T, mask_T in zip(rows, expected_BT, train.mask_BT, strict=True):
            assert row == pytest.approx(ratio_T[mask_T].tolist(), abs=2e-5)
        scores = [
            metrics.ratio_stats(np.array([ratio for row in of_rank for ratio in row]))
            for of_rank in found
        ]
        kl = metrics.ratio_stats(expected_BT[train.mask_BT].numpy())["kl"]
        assert values(scores)["kl"] == pytest.approx(kl.value, rel=1e-4)


def test_scoring_between_updates_changes_nothing(ranks: TwoRanks) -> None:
    parts, weights = split(batch(), "uneven"), []
    nothing = batch().select(torch.arange(0))
    for probed in (False, True):
        ranks.start(recipe())
        for version in range(2):
            if probed:
                assert ranks.trainer("log_ratios", nothing) == [[], []]
                ranks.trainer_each("log_ratios", *((part,) for part in parts))
                ranks.trainer("head_probe", 3)
            ranks.trainer_each("update", *((part, version) for part in parts))
        weights.append(ranks.ask("weights")[0])
    assert apart(*weights) == 0.0


@pytest.mark.parametrize("head", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_head_is_rounded_to_the_dtype_of_the_site(
    dtype: str, head: str, ranks: TwoRanks
) -> None:
    """With a float32 head on a bfloat16 site: a float32 product of rounded weights, which is the generator's."""
    ranks.start(recipe({"dtype": dtype}, head_dtype=head))
    of_site, of_head = getattr(torch, dtype), getattr(torch, head)
    for step in range(2):
        head_VD = ranks.ask("weights")[0]["lm_head.weight"].to(of_site)
        expected_NV = logits(hidden_states(7, 8, 32, of_site), head_VD, of_head)
        for found in ranks.trainer("head_probe", 7):
            assert torch.equal(torch.tensor(found), expected_NV)
        ranks.trainer_each("update", *((part, step) for part in split(batch(), "uneven")))


@pytest.mark.parametrize(("how", "rounding"), [("one idle", 1e-6), ("uneven", 0.03)])
def test_bfloat16_computes_with_rounded_weights_and_keeps_float32_ones(
    how: str, rounding: float, ranks: TwoRanks
) -> None:
    """The gradient of a model cast to bfloat16; steps too small for a bfloat16 weight are not lost."""
    policy, spec, train = load(FOLDER), recipe(), batch()
    for parameter in policy.parameters():  # not its rotary frequencies
        parameter.data = parameter.data.bfloat16()
    still = torch.optim.SGD(policy.parameters(), lr=0.0)
    expected = policy_update(policy, still, train, spec, LossPair.of(spec.loss))
    gradients = {
        n: p.grad.float() for n, p in policy.model.named_parameters() if p.grad is not None
    }
    ranks.start(recipe({"dtype": "bfloat16", "optimizer": {"learning_rate": 1e-6}}))
    before = ranks.ask("weights")[0]
    found = ranks.trainer_each("update", *((part, 200) for part in split(train, how)))
    for of_rank in ranks.ask("gradients"):
        assert {g.dtype for g in of_rank.values()} == {torch.float32}
        assert apart(of_rank, gradients) <= rounding
    assert values(found)["loss"] == pytest.approx(expected["loss"].value, rel=0.05)
    assert 0 < apart(ranks.ask("weights")[0], before) < 1e-6


# ---- what is pushed and what is saved ----


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mib", [0.004, 512.0])
def test_buckets_are_the_weights(dtype: str, mib: float, ranks: TwoRanks) -> None:
    ranks.start(recipe({"dtype": dtype, "push_bucket_mib": mib}))
    parts = split(batch(), "uneven")
    ranks.trainer_each("update", *((part, VERSION) for part in parts))
    ranks.trainer_each("log_ratios", *((part,) for part in parts))  # leaves no weight gathered
    weights = ranks.ask("weights")[0]
    for layout, buckets in ranks.ask("buckets"):
        assert (len(buckets) > 10) == (mib < 1)
        assert max(len(bucket) for bucket in buckets) <= max(mib * 2**20, 16)
        views = dict(layout.views(torch.cat(buckets)))
        assert list(views) == list(weights)
        for name, view in views.items():
            assert torch.equal(view, weights[name].to(getattr(torch, dtype))), name


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path: Path, ranks: TwoRanks) -> None:
    parts = split(batch(), "uneven")

    def update(version: int) -> None:
        ranks.trainer_each("update", *((part, version) for part in parts))

    def state() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return ranks.ask("weights")[1], ranks.ask("gradients")[0]

    ranks.start(recipe())
    assert ranks.trainer("save", tmp_path / "0") == [None, None]
    update(0)
    update(1)
    assert ranks.trainer("save", tmp_path / "2") == [None, None]
    update(2)
    expected = state()

    for version in (2, 0):  # by trainers that have gone on, then by new ones
        assert ranks.trainer("load", tmp_path / str(version)) == [None, None]
        for step in range(version, 3):
            update(step)
        assert all(apart(*pair) == 0.0 for pair in zip(state(), expected, strict=True))
    ranks.start(recipe())
    assert ranks.trainer("load", tmp_path / "2") == [None, None]
    update(2)
    assert all(apart(*pair) == 0.0 for pair in zip(state(), expected, strict=True))


def test_a_checkpoint_is_taken_up_by_another_number_of_ranks(
    tmp_path: Path, ranks: TwoRanks
) -> None:
    ranks.start(recipe())
    parts = split(batch(), "uneven")
    ranks.trainer_each("update", *((part, 0) for part in parts))
    ranks.trainer("save", tmp_path)
    ranks.trainer_each("update", *((part, 1) for part in parts))
    alone = Trainer(recipe(), FOLDER, rank=0, world_size=1, allow_code=False)
    alone.start(f"127.0.0.1:{free_port()}")
    try:
        alone.load(tmp_path)
        alone.update(batch(), 1)
        buckets = torch.cat(list(alone.gather_buckets(alone.layout())))
        found = dict(alone.layout().views(buckets))
    finally:
        alone.close()
    assert apart(found, ranks.ask("weights")[0]) <= 1e-5


@pytest.mark.parametrize("what", ["nothing", "torn", "another policy"])
def test_a_checkpoint_that_cannot_be_used(what: str, tmp_path: Path, ranks: TwoRanks) -> None:
    ranks.start(recipe())
    if what != "nothing":
        ranks.trainer("save", tmp_path)
    if what == "torn":
        for path in tmp_path.glob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:100])
    if what == "another policy":
        tied_policy(tmp_path / "tied")
        ranks.start(recipe(), tmp_path / "tied")
    for error in ranks.trainer("load", tmp_path):
        assert isinstance(error, CheckpointError) and "checkpoint" in str(error)
        assert "\n" not in str(error)
