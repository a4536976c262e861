"""What log-probs must obey: scored at the right place, at the right temperature, in enough digits."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch
from bigram import V, doubled, recipe
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from scalerl.batch import RolloutBatch
from scalerl.errors import BatchError
from scalerl.logprobs import logits, sampled_logprobs
from scalerl.recipe import Recipe
from scalerl.rollout import Completion, Group
from scalerl.update import DTYPES, LossPair, policy_update, prepare

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
seeds = st.integers(0, 2**20)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=f64, generator=torch.Generator().manual_seed(seed))


def by_definition(z_V: Tensor, token: int) -> float:
    """ln(e^z[token] / sum over v of e^z[v]) in float64, shifted by the largest z."""
    z_V = z_V.double() - z_V.max()
    return (z_V[token] - z_V.exp().sum().log()).item()


class PrefixPolicy:
    """The state at t is sum over s <= t of (s + 1) E[token s]: it knows what came before, and where."""

    def __init__(self, seed: int) -> None:
        self.embedding = torch.nn.Parameter(0.5 * normal(seed, V, 3))
        self.head_VD = torch.nn.Parameter(normal(seed + 1, V, 3))

    def hidden(self, token_BT: Tensor) -> Tensor:
        place_T1 = torch.arange(1.0, token_BT.shape[1] + 1, dtype=f64)[:, None]
        return (place_T1 * self.embedding[token_BT]).cumsum(dim=1)

    def parameters(self) -> list[torch.nn.Parameter]:
        return [self.embedding, self.head_VD]

    @torch.no_grad()
    def z_V(self, before: list[int]) -> Tensor:
        """Logits of what follows these tokens, one by one."""
        state_D = torch.zeros(3, dtype=f64)
        for s, token in enumerate(before):
            state_D += (s + 1) * self.embedding[token]
        return self.head_VD @ state_D


@dataclass
class Seen:
    """A loss that notes the log-prob it is given under the generator's, which here names the token."""

    logp: dict[float, float]

    def term(self, logp_BT: Tensor, behavior_BT: Tensor, adv_B: Tensor, mask_BT: Tensor) -> Tensor:
        assert not logp_BT[~mask_BT].any() and not behavior_BT[~mask_BT].any()
        names = behavior_BT[mask_BT].tolist()
        assert not set(names) & set(self.logp)
        self.logp |= dict(zip(names, logp_BT[mask_BT].tolist(), strict=True))
        return 1.0 * logp_BT


def seen_by_update(policy: PrefixPolicy, groups: list[Group], pad: int = 0, **options: Any):
    """Log-prob by name of the token, and the metrics, of an update that leaves the policy alone."""
    spec = recipe(zero_variance="keep", advantage="none")
    train = doubled(prepare(RolloutBatch.from_groups(groups, pad), spec))
    seen = Seen({})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DTYPES, "float32", f64)  # the head in float64
        still = torch.optim.SGD(policy.parameters(), lr=0.0)
        found = policy_update(policy, still, train, spec, LossPair(seen.term, None), **options)
    return seen.logp, found


@st.composite
def named_groups(draw: st.DrawFn) -> list[Group]:
    """Ragged groups, ids in any order, with forced tokens; the recorded log-prob of each token is unlike all others."""
    groups: list[Group] = []
    name = 0
    tokens = st.integers(0, V - 1)
    for request in draw(st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True)):
        prompt = draw(st.lists(tokens, min_size=1, max_size=3))
        rows: list[Completion] = []
        for _ in range(draw(st.integers(1, 3))):
            ids = draw(st.lists(tokens, min_size=1, max_size=5))
            n = len(ids)
            names = [-(name + t + 1) / 8 for t in range(n)]  # exact in float32
            sampled = [True, *draw(st.lists(st.booleans(), min_size=n - 1, max_size=n - 1))]
            rows.append(Completion(ids, names, [0] * n, sampled, reward=1.0, correct=True))
            name += n
        groups.append(Group(request, request, prompt, rows))
    return groups


# ---- the right place ----


@pytest.mark.invariant(
    "D12",
    "The state at t scores token t + 1: each trained token is scored given exactly what stands before it.",
    "logp[i, t] = log p(y_t | y_0 ... y_(t-1))",
    "prime-rl #1525: labels shifted left and logits not; verl #3287: the first answer token dropped",
)
@given(named_groups(), seeds, st.sampled_from([1, 9, 16_384]), st.integers(0, V - 1))
def test_the_state_before_a_token_scores_it(
    groups: list[Group], seed: int, micro_batch: int, pad: int
) -> None:
    policy = PrefixPolicy(seed)
    expected: dict[float, float] = {}
    entropy: list[float] = []
    for group, row in ((g, c) for g in groups for c in g.completions):
        for t, token in enumerate(row.token_ids):
            if row.sampled[t]:
                z_V = policy.z_V([*group.prompt_ids, *row.token_ids[:t]])
                expected[row.logp[t]] = by_definition(z_V, token)
                p = [by_definition(z_V, v) for v in range(V)]
                entropy.append(-sum(torch.tensor(x).exp().item() * x for x in p))
    logp, found = seen_by_update(policy, groups, pad, micro_batch_tokens=micro_batch)
    assert logp == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found["entropy"].value == pytest.approx(sum(entropy) / len(entropy), rel=1e-5)


@pytest.mark.invariant("D12")
@given(seeds, st.lists(st.integers(0, V - 1), min_size=1, max_size=3))
def test_probabilities_of_all_completions_add_up_to_one(seed: int, prompt: list[int]) -> None:
    pairs = list(product(range(V), repeat=2))
    rows = [
        Completion([*pair], [-2.0 * i - 1, -2.0 * i - 2], [0, 0], [True, True])
        for i, pair in enumerate(pairs)
    ]
    logp, _ = seen_by_update(PrefixPolicy(seed), [Group(0, 0, prompt, rows)])
    total = sum(
        torch.tensor(logp[-2.0 * i - 1] + logp[-2.0 * i - 2], dtype=f64).exp().item()
        for i in range(len(pairs))
    )
    assert total == pytest.approx(1.0, rel=1e-9)


@pytest.mark.invariant("D12")
@given(named_groups(), st.data())
def test_tokens_without_their_own_values_are_refused(
    groups: list[Group], data: st.DataObject
) -> None:
    g = data.draw(st.integers(0, len(groups) - 1))
    row = data.draw(st.sampled_from(groups[g].completions))
    name = data.draw(st.sampled_from(["logp", "version", "sampled"]))
    values = getattr(row, name)
    extra = data.draw(st.booleans())
    setattr(row, name, [*values, values[-1]] if extra else values[:-1])
    with pytest.raises(BatchError, match=f"of group {groups[g].request_id}, .*'{name}'"):
        RolloutBatch.from_groups(groups)
    setattr(row, name, values)
    groups[g].prompt_ids = []  # nothing would predict the first token
    with pytest.raises(BatchError, match="has no prompt"):
        RolloutBatch.from_groups(groups).check()


# ---- the right distribution ----


@pytest.mark.invariant(
    "D13",
    "Temperature divides the logits before they are normalised, and a constant added to them changes nothing.",
    "logp = log softmax(z / tau)[token];  z -> z + c leaves it;  tau = 0.5, z = (2, 0): -0.018150",
    "prime-rl #697: the log-prob divided by the temperature; TRL #4159: one side scaled only",
)
@given(seeds, st.integers(0, 6), st.sampled_from([0.3, 0.7, 1.0, 1.5]), st.integers(1, 7))
def test_temperature_divides_logits(seed: int, n: int, tau: float, chunk: int) -> None:
    hidden_ND, head_VD = normal(seed, n, 4), normal(seed + 1, V, 4)
    token_N = torch.arange(seed, seed + n) % V
    options: dict[str, Any] = {"head_dtype": f64, "temperature": tau, "chunk_tokens": chunk}
    logp_N, entropy_N = sampled_logprobs(hidden_ND, head_VD, token_N, **options)
    z_NV = hidden_ND @ head_VD.T / tau
    expected = [by_definition(z_V, t) for z_V, t in zip(z_NV, token_N.tolist(), strict=True)]
    assert logp_N.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-13)
    torch.testing.assert_close(logits(hidden_ND, head_VD, f64, tau), z_NV, rtol=1e-12, atol=1e-13)
    # adding one vector to every row of the head adds a constant to each position's logits, here
    # thousands: e^z alone would overflow
    shift_D = 1e3 * normal(seed + 2, 4)
    again = sampled_logprobs(hidden_ND, head_VD + shift_D, token_N, **options)
    torch.testing.assert_close(again[0], logp_N, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(again[1], entropy_N, rtol=1e-10, atol=1e-10)


@pytest.mark.invariant("D13")
@given(seeds, st.integers(0, 6), st.sampled_from([0.3, 0.7, 1.0, 1.5]), st.integers(1, 7))
def test_temperature_divides_the_gradient_too(seed: int, n: int, tau: float, chunk: int) -> None:
    """d logp / dz = onehot - p, by the chain rule through z = h W^T / tau, in any chunks."""
    hidden_ND, head_VD = normal(seed, n, 4), normal(seed + 1, V, 4)
    token_N, weight_N = torch.arange(seed, seed + n) % V, normal(seed + 2, n)
    grad_z_NV = torch.eye(V, dtype=f64)[token_N] - (hidden_ND @ head_VD.T / tau).softmax(1)
    grad_z_NV *= weight_N[:, None] / tau
    leaves = hidden_ND.clone().requires_grad_(), head_VD.clone().requires_grad_()
    logp_N, _ = sampled_logprobs(
        *leaves, token_N, head_dtype=f64, temperature=tau, chunk_tokens=chunk
    )
    to_hidden_ND, to_head_VD = torch.autograd.grad((weight_N * logp_N).sum(), leaves)
    torch.testing.assert_close(to_hidden_ND, grad_z_NV @ head_VD, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(to_head_VD, grad_z_NV.T @ hidden_ND, rtol=1e-11, atol=1e-12)


@pytest.mark.invariant("D13")
@pytest.mark.parametrize("dtype", [f32, f64])
def test_temperature_by_hand(dtype: torch.dtype) -> None:
    # z = (2, 0) at tau = 0.5 is (4, 0): -ln(1 + e^-4) = -0.018150
    logp_N, _ = sampled_logprobs(
        torch.ones(1, 1, dtype=dtype),
        torch.tensor([[2.0], [0.0]], dtype=dtype),
        torch.tensor([0]),
        head_dtype=dtype,
        temperature=0.5,
    )
    assert logp_N.item() == pytest.approx(-0.018150, abs=1e-6)


@pytest.mark.invariant("D13")
@given(named_groups(), seeds, st.sampled_from([0.3, 0.7, 1.5]))
def test_the_update_scores_the_tempered_distribution(
    groups: list[Group], seed: int, tau: float
) -> None:
    """Dividing the head by tau beforehand must give the same."""
    policy, cooled = PrefixPolicy(seed), PrefixPolicy(seed)
    with torch.no_grad():
        cooled.head_VD.div_(tau)
    logp, _ = seen_by_update(policy, groups, temperature=tau)
    expected, _ = seen_by_update(cooled, groups)
    assert logp == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.invariant(
    "D14",
    "The whole vocabulary is the support: probabilities add up to 1, and no recipe can ask for less.",
    "sum over v of exp logp(v) = 1;  top_p, top_k, min_p are refused",
    "",
)
@given(seeds, st.sampled_from([0.3, 1.0, 1.5]), st.sampled_from(["top_p", "top_k", "min_p"]))
def test_no_token_is_cut_off(seed: int, tau: float, name: str) -> None:
    hidden_D, head_VD = 3.0 * normal(seed, 4), normal(seed + 1, V, 4)
    logp_V, entropy_V = sampled_logprobs(
        hidden_D.expand(V, 4), head_VD, torch.arange(V), head_dtype=f64, temperature=tau
    )
    assert logp_V.exp().sum().item() == pytest.approx(1.0, rel=1e-12)
    assert torch.isfinite(logp_V).all()
    assert entropy_V[0].item() == pytest.approx(-(logp_V.exp() * logp_V).sum().item(), rel=1e-9)
    with pytest.raises(ValidationError, match=name):
        Recipe.model_validate({name: 1})


# ---- enough digits ----


@pytest.mark.invariant(
    "H07",
    "A float32 head loses nothing of bf16 states, and no log-prob is above 0 in any precision.",
    "|logp(float32 head) - logp(float64)| <= 1e-5 (1 + |logp|);  logp <= 0",
    "OpenRLHF #634, TRL #4303: a bf16 head; maxtext #5231: logp slightly above 0",
)
@given(seeds, st.sampled_from([0.5, 2.0, 4.0]), st.sampled_from([0.7, 1.0]), st.integers(1, 9))
def test_a_float32_head_keeps_the_digits(seed: int, scale: float, tau: float, chunk: int) -> None:
    hidden_ND = (scale * normal(seed, 8, 16)).to(bf16)
    head_VD, token_N = normal(seed + 1, 12, 16).to(bf16), torch.arange(8)
    z_NV = hidden_ND.double() @ head_VD.double().T / tau
    exact_N = torch.tensor([by_definition(z, t) for t, z in enumerate(z_NV)], dtype=f64)
    for dtype in (bf16, f32, f64):
        logp_N, entropy_N = sampled_logprobs(
            hidden_ND, head_VD, token_N, head_dtype=dtype, temperature=tau, chunk_tokens=chunk
        )
        assert logp_N.dtype == (f64 if dtype == f64 else f32)
        assert (logp_N <= 0.0).all() and (entropy_N >= 0.0).all()
        if dtype != bf16:
            torch.testing.assert_close(logp_N.double(), exact_N, rtol=1e-5, atol=1e-5)


@pytest.mark.invariant("H07")
@given(named_groups(), st.floats(2e-4, 10.0), st.data())
def test_a_recorded_log_prob_above_zero_is_flagged(
    groups: list[Group], value: float, data: st.DataObject
) -> None:
    """Up to 1e-4 it is rounding; on tokens that are not trained on it is nothing at all."""
    batch = RolloutBatch.from_groups(groups)
    row, column = data.draw(st.sampled_from(batch.mask_BT.nonzero().tolist()))
    changed_BT = batch.behavior_logp_BT.clone()
    changed_BT[row, column] = 5e-5
    changed_BT[~batch.mask_BT] = value
    replace(batch, behavior_logp_BT=changed_BT).check()
    changed_BT[row, column] = value
    with pytest.raises(BatchError, match=f"row {row}, token {column} "):
        replace(batch, behavior_logp_BT=changed_BT).check()


@pytest.mark.invariant(
    "H09",
    "Tokens whose logit is -inf drop out: the others score as if alone, entropy and gradients stay finite.",
    "z_v = -inf => p_v ln p_v = 0 and d logp / dz_v = 0",
    "TRL #7221, #7251: 0 * (-inf) in the entropy, NaN in its backward; SkyRL #2259",
)
@given(seeds, st.sets(st.integers(1, V - 1), min_size=1, max_size=V - 1), st.integers(1, 5))
def test_masked_vocabulary(seed: int, dead: set[int], chunk: int) -> None:
    hidden_ND = (2.0 + normal(seed, 4, 2).abs()).float().requires_grad_()
    head_VD = normal(seed + 1, V, 2).float()
    head_VD[sorted(dead)] = -3e38  # times a state above 2 this is -inf in float32
    alive = [v for v in range(V) if v not in dead]
    head_VD.requires_grad_()
    z_NV = logits(hidden_ND, head_VD, f32).detach()
    assert torch.isneginf(z_NV[:, sorted(dead)]).all()
    token_N = torch.tensor(alive * 4)[:4]
    logp_N, entropy_N = sampled_logprobs(
        hidden_ND, head_VD, token_N, head_dtype=f32, chunk_tokens=chunk
    )
    for n, token in enumerate(token_N.tolist()):
        z_V = hidden_ND[n].detach().double() @ head_VD.detach()[alive].double().T
        alone = [by_definition(z_V, v) for v in range(len(alive))]
        assert logp_N[n].item() == pytest.approx(alone[alive.index(token)], abs=1e-5)
        entropy = -sum(torch.tensor(x).exp().item() * x for x in alone)
        assert entropy_N[n].item() == pytest.approx(entropy, abs=1e-5)
    logp_N.sum().backward()
    assert hidden_ND.grad is not None and head_VD.grad is not None
    assert torch.isfinite(hidden_ND.grad).all() and torch.isfinite(head_VD.grad).all()
    assert not head_VD.grad[sorted(dead)].any()
