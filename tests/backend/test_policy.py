"""The trainer's model in one process: the sandbox's numbers, packed rows, and what is refused."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from two_ranks import FOLDER, apart, log_probs, recipe, rollouts, tied_policy

from backend.policy import PolicyModule, build, load
from sandbox.model import load_policy
from scalerl import update
from scalerl.batch import TrainBatch
from scalerl.errors import InputError
from scalerl.update import LossPair, PredictingPolicy, policy_update, prepare, score


def gradients(policy: Any, named: Any, train: TrainBatch, tokens: int) -> dict[str, Tensor]:
    spec = recipe()
    still = torch.optim.SGD(policy.parameters(), lr=0.0)
    loss = LossPair.of(spec.loss)
    policy_update(policy, still, train, spec, loss, micro_batch_tokens=tokens)
    return {name: parameter.grad for name, parameter in named.named_parameters()}


def test_log_probs_are_the_sandboxs() -> None:
    train, policy = prepare(rollouts(), recipe()), load(FOLDER)
    assert isinstance(policy, PredictingPolicy)
    with torch.no_grad():
        logp_N, _ = score(policy, train, recipe(), temperature=1.0)
    expected_N = log_probs(load_policy(FOLDER), train.token_BT)[train.mask_BT]
    torch.testing.assert_close(logp_N, expected_N, atol=1e-5, rtol=1e-6)  # some are -20


@pytest.mark.parametrize("tokens", [1, 30, 10_000])
def test_the_gradient_is_the_sandboxs(tokens: int) -> None:
    train, theirs, ours = prepare(rollouts(2), recipe()), load_policy(FOLDER), load(FOLDER)
    expected = gradients(theirs, theirs, train, 10_000)
    assert apart(gradients(ours, ours.model, train, tokens), expected) <= 1e-5


def test_the_gradient_is_right_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further from the gradient in float64 than a plain float32 model is."""
    train, ours = prepare(rollouts(2), recipe()), load(FOLDER)
    found = gradients(ours, ours.model, train, 10_000)
    monkeypatch.setitem(update.DTYPES, "float32", torch.float64)
    parts = {f.name: getattr(train, f.name) for f in fields(train)}
    train = TrainBatch(**{k: v.double() if v.is_floating_point() else v for k, v in parts.items()})
    exact = load_policy(FOLDER).double()
    assert apart(found, gradients(exact, exact, train, 10_000)) <= 1e-5


def test_packed_rows_do_not_see_each_other() -> None:
    """Whatever is in the other rows, and wherever its own lies: a row's states are those it has alone."""
    policy, batch = load(FOLDER), rollouts(3)
    token_BT, mask_BT = batch.token_BT, batch.mask_BT
    with torch.no_grad():
        packed_ND = policy.predicting(token_BT, mask_BT)
        others_BT = torch.randint(49, token_BT.shape, generator=torch.Generator().manual_seed(0))
        for row, states_ND in enumerate(packed_ND.split(mask_BT.sum(1).tolist())):
            changed_BT = others_BT.clone()
            changed_BT[row] = token_BT[row]
            again_ND = policy.predicting(changed_BT, mask_BT).split(mask_BT.sum(1).tolist())[row]
            assert torch.equal(again_ND, states_ND)
            alone_ND = policy.predicting(token_BT[row : row + 1], mask_BT[row : row + 1])
            torch.testing.assert_close(alone_ND, states_ND, atol=1e-5, rtol=0)


def test_a_row_without_a_mark_runs_its_first_token() -> None:
    policy = load(FOLDER)
    token_BT, mask_BT = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.bool)
    hidden_ND = policy.predicting(token_BT, mask_BT)
    assert hidden_ND.shape == (0, 32)
    hidden_ND.sum().backward()
    for name, parameter in policy.model.base_model.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


def test_the_padding_token_is_learnt() -> None:
    """transformers would leave its embedding without a gradient, although a policy may say it."""
    policy = load(FOLDER)
    token_BT = torch.tensor([[5, 0, 7]])
    policy.predicting(token_BT, torch.tensor([[False, False, True]])).sum().backward()
    embedding: Any = policy.model.get_input_embeddings()
    gradient_VD = embedding.weight.grad
    assert gradient_VD[0].any() and gradient_VD[5].any() and not gradient_VD[7].any()


@torch.no_grad()
def test_a_tied_head_and_several_files(tmp_path: Path) -> None:
    """Rotary frequencies and norms of a model that transformers made and saved in pieces."""
    theirs = tied_policy(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = load(tmp_path)
    assert ours.head_VD is ours.model.get_input_embeddings().weight
    assert [n for n, _ in ours.model.named_parameters()] == [
        n for n, _ in theirs.named_parameters()
    ]
    token_BT = torch.randint(49, (1, 30), generator=torch.Generator().manual_seed(1))
    mask_BT = torch.arange(30)[None] > 0
    expected_ND = theirs.base_model(token_BT).last_hidden_state[0, :-1]
    found_ND = ours.predicting(token_BT, mask_BT)
    torch.testing.assert_close(found_ND, expected_ND, atol=1e-5, rtol=0)


# ---- what is refused ----


@pytest.mark.parametrize("name", ["Qwen3MoeConfig", "MixtralConfig", "DeepseekV3Config"])
def test_a_mixture_of_experts(name: str, tmp_path: Path) -> None:
    getattr(transformers, name)().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"experts = \d+\): router replay is missing"):
        build(tmp_path)


def test_layers_that_do_not_tell_packed_rows_apart(tmp_path: Path) -> None:
    changed(tmp_path, layer_types=["full_attention", "linear_attention"])
    with pytest.raises(InputError, match="linear_attention"):
        build(tmp_path)


@pytest.mark.parametrize("name", ["final_logit_softcapping", "logit_scale", "logits_scaling"])
def test_logits_that_the_head_alone_does_not_give(name: str, tmp_path: Path) -> None:
    changed(tmp_path, **{name: 0.5})
    with pytest.raises(InputError, match=f"{name} = 0.5"):
        build(tmp_path)


@pytest.mark.parametrize("what", ["folder", "weights", "name", "shape", "torn", "kind"])
def test_what_cannot_be_loaded(what: str, tmp_path: Path) -> None:
    changed(tmp_path)
    weights = tmp_path / "model.safetensors"
    if what == "folder":
        (tmp_path / "config.json").unlink()
    elif what == "weights":
        weights.unlink()
    elif what == "name":
        changed(tmp_path, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    elif what == "shape":
        changed(tmp_path, intermediate_size=96)
    elif what == "torn":
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        changed(tmp_path, model_type="nothing_known")
    with pytest.raises(InputError, match="cannot load the policy in") as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)


def changed(folder: Path, **values: Any) -> None:
    """The shipped policy with another configuration."""
    config = json.loads((FOLDER / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    (folder / "model.safetensors").write_bytes((FOLDER / "model.safetensors").read_bytes())


def test_nothing_is_random() -> None:
    policy = build(FOLDER)
    assert isinstance(policy, PolicyModule)
    assert not any(part.training for part in policy.modules())
