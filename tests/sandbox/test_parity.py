"""The tiny world against plain references: `transformers` for log-probs, autograd over its graph for the update."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policies import VOCABULARY, random_policy
from torch import Tensor

from sandbox.engine import Cache, Engine, rounded
from sandbox.model import Policy, save_policy
from scalerl.batch import RolloutBatch
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.site import Optimizer
from scalerl.update import LossPair, make_optimizer, policy_update, prepare

transformers: Any = pytest.importorskip("transformers")

SIZES: list[dict[str, int]] = [
    {},
    {"hidden_size": 16, "intermediate_size": 32},
    {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    {"num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 3},
    {"num_hidden_layers": 1, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 16},
]
LENGTHS = (31, 17, 17, 5, 30)


def huggingface(policy: Policy, folder: Path) -> Any:
    save_policy(policy, folder)
    return transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def tokens(rows: int, width: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, width), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_padded_packed_and_cached_log_probs_are_those_of_transformers(
    sizes: dict[str, int], tmp_path: Path
) -> None:
    """Three ways to the same numbers: whole padded rows, only what predicts a trained token, and a token at a time."""
    policy = random_policy(seed=11, **sizes)
    theirs, token_BT = huggingface(policy, tmp_path), tokens(len(LENGTHS), max(LENGTHS))
    length_B1 = torch.tensor(LENGTHS)[:, None]
    place_T = torch.arange(token_BT.shape[1])
    valid_BT = place_T < length_B1
    token_BT = token_BT.masked_fill(~valid_BT, 0)
    trained_BT = valid_BT & (place_T > 3)
    z_BTV = theirs(token_BT, attention_mask=valid_BT.long()).logits[:, :-1]
    expected_NV = z_BTV.log_softmax(-1)[trained_BT[:, 1:]]
    assert expected_NV.std() > 0.5, "near-uniform predictions would agree whatever the code does"

    def held(hidden_ND: Tensor) -> None:
        ours_NV = (hidden_ND @ policy.head_VD.T).log_softmax(-1)
        torch.testing.assert_close(ours_NV, expected_NV, atol=1e-5, rtol=0)

    held(policy.hidden(token_BT)[:, :-1][trained_BT[:, 1:]])
    held(policy.predicting(token_BT, trained_BT))
    engine, cache = Engine(policy), Cache(policy.config, len(LENGTHS), max(LENGTHS), "cpu")
    hidden = [engine.prefill(token_BT[:, :2], cache)[:, -1]]
    for place in range(2, max(LENGTHS) - 1):
        position_B = torch.full((len(LENGTHS),), place)
        hidden.append(engine.decode(token_BT[:, place], position_B, cache, place + 1))
    held(torch.stack(hidden, 1)[trained_BT[:, 2:]])


def groups(policy: Policy) -> list[Group]:
    """Six groups of four, of every length, one of them all right; sampled by a policy that is not the trained one."""
    generator = torch.Generator().manual_seed(2)
    found: list[Group] = []
    for id in range(6):
        rows: list[Completion] = []
        for i in range(4):
            n = int(torch.randint(2, 20, (), generator=generator))
            token_ids = torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()
            sampled = [place % 5 != 3 for place in range(n)]
            logp = [-2.0 - place / 10 if sampled[place] else 0.0 for place in range(n)]
            correct = id == 3 or (id + i) % 3 == 0
            reward = 1.0 if correct else -1.0
            rows.append(
                Completion(token_ids, logp, [0] * n, sampled, reward=reward, correct=correct)
            )
        found.append(Group(id, id, [1, 20 + id, 3], rows))
    return found


def plain_loss(model: Any, batch: list[Group]) -> Tensor:
    """SCALERL's objective, row by row: CISPO at 5, prompt mean, advantages over the batch's standard deviation."""
    mixed = [g for g in batch if 0 < g.passes < 4]
    centred = {
        (g.request_id, i): c.reward - sum(d.reward for d in g.completions) / 4
        for g in mixed
        for i, c in enumerate(g.completions)
    }
    std = (sum(a * a for a in centred.values()) / len(centred)) ** 0.5
    total = torch.zeros(())
    for g in mixed:
        trained = sum(sum(c.sampled) for c in g.completions)
        for i, c in enumerate(g.completions):
            row = torch.tensor([[*g.prompt_ids, *c.token_ids]])
            logp_TV = model(row).logits[0, len(g.prompt_ids) - 1 : -1].log_softmax(-1)
            for place, token in enumerate(c.token_ids):
                if c.sampled[place]:
                    rho = (logp_TV[place, token].detach() - c.logp[place]).exp().clamp(max=5.0)
                    advantage = centred[g.request_id, i] / std
                    total = total - rho * advantage * logp_TV[place, token] / (trained * len(mixed))
    return total


@pytest.mark.parametrize("sizes", SIZES[:4], ids=str)
@pytest.mark.parametrize("micro_batch_tokens", [100_000, 60])
def test_an_update_is_that_of_plain_autograd(
    sizes: dict[str, int], micro_batch_tokens: int, tmp_path: Path
) -> None:
    """Every entry of the gradient, whose norm is about 1.6, and every weight after the step, to 1e-6."""
    policy, recipe = random_policy(seed=12, **sizes), Recipe()
    theirs, batch = huggingface(policy, tmp_path), groups(policy)
    # a first step of AdamW is g / (|g| + eps): with a tiny eps it would show the sign of rounding errors
    spec = Optimizer(learning_rate=1e-3, eps=1e-3)
    plain = make_optimizer(theirs.parameters(), spec)
    loss = plain_loss(theirs, batch)
    loss.backward()
    plain.step()

    train = prepare(RolloutBatch.from_groups(batch), recipe)
    optimizer = make_optimizer(policy.parameters(), spec)
    found = policy_update(
        policy,
        optimizer,
        train,
        recipe,
        LossPair.of(recipe.loss),
        micro_batch_tokens=micro_batch_tokens,
    )
    assert found["loss"].value == pytest.approx(loss.item(), rel=1e-5)
    expected = {name: p for name, p in theirs.named_parameters()}
    for name, p in policy.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, expected[name].grad, atol=1e-6, rtol=0, msg=name)
        torch.testing.assert_close(p, expected[name], atol=1e-6, rtol=0, msg=name)


def test_rounding_is_that_of_the_narrower_type() -> None:
    """bfloat16 keeps 8 bits; float8_e4m3 keeps 4 bits of a row that is scaled to end at 448."""
    x = torch.tensor([[1.0, 1.00390625, 448.0], [0.5, 0.53, -1.0]])
    assert rounded(x, "float32") is x
    # 1 + 2^-8 lies halfway between 1 and 1 + 2^-7, and goes to the even one
    assert rounded(x, "bfloat16").tolist() == [[1.0, 1.0, 448.0], [0.5, 0.53125, -1.0]]
    # second row, times 448: 224, 237.44, -448; near 224 the step is 16, so 237.44 goes to 240: 240 / 448
    found = rounded(x, "float8_e4m3")
    torch.testing.assert_close(found[0], torch.tensor([1.0, 1.0, 448.0]))
    torch.testing.assert_close(found[1], torch.tensor([0.5, 240 / 448, -1.0]))


@torch.no_grad()
def test_a_narrower_generator_disagrees_the_more_the_fewer_bits_it_keeps() -> None:
    policy, token_BT = random_policy(seed=13), tokens(40, 30)
    whole = (policy.hidden(token_BT) @ policy.head_VD.T).log_softmax(-1)
    kl: list[float] = []
    for dtype in ("float32", "bfloat16", "float8_e4m3"):
        cache = Cache(policy.config, 40, 30, "cpu")
        hidden = Engine(policy, dtype).prefill(token_BT, cache)  # pyright: ignore[reportArgumentType]
        theirs = (hidden @ policy.head_VD.T).log_softmax(-1)
        kl.append(float((theirs.exp() * (theirs - whole)).sum(-1).mean()))
    head = (Engine(policy).logits(policy.hidden(token_BT), torch.float8_e4m3fn, 1.0)).log_softmax(
        -1
    )
    kl.append(float((head.exp() * (head - whole)).sum(-1).mean()))
    assert abs(kl[0]) < 1e-7
    assert 1e-6 < kl[1] < kl[2] / 10
    assert kl[1] < kl[3] < kl[2], "a float8 head alone errs by less than everything in float8"
