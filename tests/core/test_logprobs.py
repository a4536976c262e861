"""Chunked log-probs against plain autograd, their precision and their peak memory."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scalerl.logprobs import logits, sampled_logprobs

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16


def problem(n: int, v: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden_ND = torch.randn(n, d, dtype=f64, generator=generator).to(dtype).requires_grad_()
    head_VD = torch.randn(v, d, dtype=f64, generator=generator).to(dtype).requires_grad_()
    return hidden_ND, head_VD, torch.randint(v, (n,), generator=generator)


def plain(hidden_ND, head_VD, token_N, temperature: float) -> tuple[Tensor, Tensor]:
    """The textbook way, in float64 and all at once."""
    logp_NV = F.log_softmax(hidden_ND.double() @ head_VD.double().T / temperature, dim=-1)
    entropy_N = -(logp_NV.exp() * logp_NV).sum(dim=-1)
    return logp_NV.gather(1, token_N[:, None])[:, 0], entropy_N


def test_log_prob_and_entropy_by_hand():
    # head rows 2 and 0, hidden 1: z = (2, 0); at temperature 0.5 z = (4, 0)
    hidden_ND, head_VD = torch.ones(1, 1), torch.tensor([[2.0], [0.0]])
    token_N = torch.tensor([0])
    logp_N, entropy_N = sampled_logprobs(
        hidden_ND, head_VD, token_N, head_dtype=f32, temperature=0.5
    )
    # -ln(1 + e^-4) = -0.018150; dividing the log-prob instead would give -0.253856
    assert logp_N.item() == pytest.approx(-0.018150, abs=1e-6)
    # p = 0.982014, 0.017986: 0.982014 * 0.018150 + 0.017986 * 4.018150 = 0.090095
    assert entropy_N.item() == pytest.approx(0.090095, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 5, 4096])
def test_equals_plain_autograd(temperature, chunk_tokens):
    hidden_ND, head_VD, token_N = problem(n=10, v=7, d=4, dtype=f32)
    weight_N = torch.linspace(-1, 2, 10)
    logp_N, entropy_N = sampled_logprobs(
        hidden_ND,
        head_VD,
        token_N,
        head_dtype=f32,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    expected_N, expected_entropy_N = plain(hidden_ND, head_VD, token_N, temperature)
    assert logp_N.dtype == entropy_N.dtype == f32
    torch.testing.assert_close(logp_N.double(), expected_N, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy_N.double(), expected_entropy_N, rtol=0, atol=1e-5)
    grads = torch.autograd.grad((weight_N * logp_N).sum(), [hidden_ND, head_VD])
    expected = torch.autograd.grad((weight_N * expected_N).sum(), [hidden_ND, head_VD])
    for grad, wanted in zip(grads, expected, strict=True):
        assert grad.dtype == f32
        torch.testing.assert_close(grad, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("chunk_tokens", [2, 100])
def test_gradcheck(chunk_tokens):
    hidden_ND, head_VD, token_N = problem(n=5, v=6, d=3, dtype=f64)

    def logp(hidden: Tensor, head: Tensor) -> Tensor:
        return sampled_logprobs(
            hidden, head, token_N, head_dtype=f64, temperature=0.8, chunk_tokens=chunk_tokens
        )[0]

    assert torch.autograd.gradcheck(logp, (hidden_ND, head_VD))


def test_bf16_inputs_with_a_float32_head_lose_nothing():
    # the product is of the bf16-rounded values, taken in float32: within 1e-5 of float64
    hidden_ND, head_VD, token_N = problem(n=16, v=50, d=32, dtype=bf16)
    logp_N, _ = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32)
    expected_N, _ = plain(hidden_ND, head_VD, token_N, 1.0)
    torch.testing.assert_close(logp_N.double(), expected_N, rtol=0, atol=1e-5)
    grads = torch.autograd.grad(logp_N.sum(), [hidden_ND, head_VD])
    expected = torch.autograd.grad(expected_N.sum(), [hidden_ND, head_VD])
    for grad, wanted in zip(grads, expected, strict=True):
        assert grad.dtype == bf16
        # one rounding to bf16, 2^-8, at the very end
        torch.testing.assert_close(grad, wanted, rtol=2**-7, atol=1e-3)


def test_bf16_head_rounds_factors_and_product():
    hidden_ND, head_VD, token_N = problem(n=16, v=50, d=32, dtype=f32)
    z_NV = (hidden_ND.to(bf16) @ head_VD.to(bf16).T).float()
    expected_N = F.log_softmax(z_NV / 0.9, dim=-1).gather(1, token_N[:, None])[:, 0]
    logp_N, _ = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=bf16, temperature=0.9)
    assert logp_N.dtype == f32
    torch.testing.assert_close(logp_N, expected_N, rtol=0, atol=1e-6)
    exact_N, _ = plain(hidden_ND, head_VD, token_N, 0.9)
    assert (logp_N.double() - exact_N).abs().max().item() > 1e-3  # it is a bf16 head
    (grad_VD,) = torch.autograd.grad(logp_N.sum(), head_VD)
    (wanted_VD,) = torch.autograd.grad(expected_N.sum(), head_VD)
    torch.testing.assert_close(grad_VD, wanted_VD, rtol=2**-6, atol=0.05)


def test_head_gradient_adds_chunks_in_float32():
    # hidden = 1, two equal rows of the head: each token 0 adds +1/2 to row 0. 2,000 chunks
    # of one token make 1,000; a running bf16 sum of halves stalls at 128.
    n = 2000
    hidden_ND = torch.ones(n, 1, dtype=bf16)
    head_VD = torch.zeros(2, 1, dtype=bf16, requires_grad=True)
    token_N = torch.zeros(n, dtype=torch.int64)
    logp_N, _ = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=bf16, chunk_tokens=1)
    logp_N.sum().backward()
    assert head_VD.grad is not None
    assert head_VD.grad.tolist() == [[1000.0], [-1000.0]]


def test_entropy_carries_no_gradient():
    hidden_ND, head_VD, token_N = problem(n=3, v=4, d=2, dtype=f32)
    logp_N, entropy_N = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32)
    assert logp_N.requires_grad and not entropy_N.requires_grad


def test_only_wanted_gradients_are_returned():
    hidden_ND, head_VD, token_N = problem(n=3, v=4, d=2, dtype=f32)
    frozen_VD = head_VD.detach()
    logp_N, _ = sampled_logprobs(hidden_ND, frozen_VD, token_N, head_dtype=f32)
    logp_N.sum().backward()
    assert hidden_ND.grad is not None and frozen_VD.grad is None


def test_extreme_logits_stay_finite():
    # z = (1e4, -1e4): p = (1, 0) exactly
    hidden_ND = torch.ones(2, 1, requires_grad=True)
    head_VD = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    logp_N, entropy_N = sampled_logprobs(hidden_ND, head_VD, torch.tensor([0, 1]), head_dtype=f32)
    assert logp_N.tolist() == [0.0, -2e4]
    assert entropy_N.tolist() == [0.0, 0.0]
    logp_N.sum().backward()
    # token 1: onehot - p = (-1, 1), times the head: -1e4 - 1e4; token 0: nothing left to raise
    assert hidden_ND.grad is not None and hidden_ND.grad.tolist() == [[0.0], [-2e4]]


def test_no_tokens():
    hidden_ND, head_VD, token_N = problem(n=0, v=4, d=2, dtype=f32)
    logp_N, entropy_N = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32)
    assert logp_N.shape == entropy_N.shape == (0,)
    logp_N.sum().backward()
    assert hidden_ND.grad is not None and hidden_ND.grad.shape == (0, 2)
    assert head_VD.grad is not None and head_VD.grad.eq(0).all()


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.numel())
        return out


def test_full_logits_never_exist():
    n, v, d, chunk = 64, 100, 3, 8
    hidden_ND, head_VD, token_N = problem(n, v, d, bf16)
    with Largest() as largest:
        logp_N, _ = sampled_logprobs(
            hidden_ND, head_VD, token_N, head_dtype=f32, temperature=0.9, chunk_tokens=chunk
        )
        logp_N.sum().backward()
    # chunk * v = 800 is above n * d = 192 and v * d = 300, and far below n * v = 6,400
    assert largest.elements == chunk * v
    with Largest() as largest:
        plain(hidden_ND, head_VD, token_N, 0.9)
    assert largest.elements == n * v  # the probe does see full logits


def test_the_generator_computes_the_same_logits():
    hidden_ND, head_VD, token_N = problem(n=6, v=9, d=4, dtype=bf16)
    z_NV = logits(hidden_ND[None], head_VD, f32, 0.7)[0]
    logp_N, _ = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32, temperature=0.7)
    assert z_NV.dtype == f32
    assert torch.equal(F.log_softmax(z_NV, dim=-1).gather(1, token_N[:, None])[:, 0], logp_N)


def test_head_dtype_holds_under_autocast():
    hidden_ND, head_VD, token_N = problem(n=6, v=9, d=4, dtype=f32)
    outside_N, _ = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32)
    outside = torch.autograd.grad(outside_N.sum(), [hidden_ND, head_VD])
    with torch.autocast("cpu", dtype=bf16):
        inside_N, _ = sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32)
        inside = torch.autograd.grad(inside_N.sum(), [hidden_ND, head_VD])
    assert torch.equal(inside_N, outside_N)
    assert all(torch.equal(x, y) for x, y in zip(inside, outside, strict=True))


def test_float32_with_fewer_bits_is_refused():
    hidden_ND, head_VD, _ = problem(n=2, v=3, d=2, dtype=f32)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(RuntimeError, match="float32 LM head would be computed in bf16"):
            logits(hidden_ND, head_VD, f32)
        logits(hidden_ND, head_VD, bf16)  # asked for
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_bad_temperature_is_named(temperature):
    hidden_ND, head_VD, token_N = problem(n=2, v=3, d=2, dtype=f32)
    with pytest.raises(ValueError, match="temperature"):
        sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32, temperature=temperature)


def test_bad_chunk_is_named():
    hidden_ND, head_VD, token_N = problem(n=2, v=3, d=2, dtype=f32)
    with pytest.raises(ValueError, match="chunk_tokens = 0"):
        sampled_logprobs(hidden_ND, head_VD, token_N, head_dtype=f32, chunk_tokens=0)
