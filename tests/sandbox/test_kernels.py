"""The fused layers against plain autograd: values and gradients, in float64, where only the formulas can differ."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sandbox.kernels import causal_attention, gated, rms_norm, rotated_heads
from sandbox.model import ModelConfig, rope_table

ROWS, LENGTH, DIM = 3, 7, 8
HEADS = [(1, 1), (4, 1), (4, 2), (3, 3)]  # query heads, key-value heads


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x.requires_grad_()


def same(
    ours: Callable[..., tuple[Tensor, ...]],
    plain: Callable[..., tuple[Tensor, ...]],
    *inputs: Tensor,
) -> None:
    """Outputs agree, and so do the gradients of a random weighting of them."""
    found, expected = ours(*inputs), plain(*inputs)
    weights = [random(*part.shape, seed=90 + i).detach() for i, part in enumerate(expected)]
    grads = []
    for parts in (found, expected):
        total = sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True))
        assert isinstance(total, Tensor)
        grads.append(torch.autograd.grad(total, inputs))
    for mine, theirs in zip((*found, *grads[0]), (*expected, *grads[1]), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


def test_rms_norm() -> None:
    x, weight = random(ROWS, LENGTH, DIM, seed=1), random(DIM, seed=2)
    same(
        lambda x, w: (rms_norm(x, w, 1e-6),),
        lambda x, w: (F.rms_norm(x, (DIM,), w, 1e-6),),
        x,
        weight,
    )


def test_gated() -> None:
    def plain(both: Tensor) -> tuple[Tensor, ...]:
        gate, up = both.chunk(2, -1)
        return (F.silu(gate) * up,)

    same(lambda both: (gated(both),), plain, random(ROWS, LENGTH, 2 * DIM, seed=3))


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_rotated_heads(heads: int, kv_heads: int) -> None:
    """Written out: normalise each head, turn each pair (i, i + h/2) by its angle, line heads up with their keys."""
    cos, sin = (x[:LENGTH].double() for x in rope_table(ModelConfig(9, head_dim=DIM)))
    qkv = random(ROWS, LENGTH, (heads + 2 * kv_heads) * DIM, seed=4)
    norms = random(heads + kv_heads, DIM, seed=5)
    angle_cos, angle_sin = cos[:, : DIM // 2], sin[:, DIM // 2 :]

    def plain(qkv: Tensor, norms: Tensor) -> tuple[Tensor, ...]:
        each = qkv.view(ROWS, LENGTH, -1, DIM).unbind(2)
        turned: list[Tensor] = []
        for head in range(heads + kv_heads):
            y = F.rms_norm(each[head], (DIM,), norms[head], 1e-6)
            a, b = y.chunk(2, -1)
            turned.append(
                torch.cat((a * angle_cos - b * angle_sin, b * angle_cos + a * angle_sin), -1)
            )
        group = heads // kv_heads
        q = [torch.cat(turned[i * group : (i + 1) * group], 1) for i in range(kv_heads)]
        parts = q, turned[heads:], each[heads + kv_heads :]
        return tuple(torch.stack(list(part), 1).flatten(0, 1) for part in parts)

    same(lambda x, w: rotated_heads(x, w, (cos, sin), kv_heads, 1e-6), plain, qkv, norms)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_causal_attention(group: int) -> None:
    q = random(ROWS, group * LENGTH, DIM, seed=6)
    k, v = random(ROWS, LENGTH, DIM, seed=7), random(ROWS, LENGTH, DIM, seed=8)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out: list[Tensor] = []
        for place in range(group * LENGTH):
            seen = place % LENGTH + 1
            score = torch.einsum("bh,bth->bt", q[:, place], k[:, :seen]) / DIM**0.5
            out.append(torch.einsum("bt,bth->bh", score.softmax(-1), v[:, :seen]))
        return (torch.stack(out, 1),)

    same(lambda *qkv: (causal_attention(*qkv),), plain, q, k, v)
