"""The layers of the policy as few passes over memory, each with a backward of its own.

At widths of 16 to 128 a forward and backward pass in plain operations spends more time on norms, rotations and copies
than on products of matrices. These functions compute the same (a test holds them to plain autograd) in fewer passes.

Axes: B rows, T positions, H query heads, K key-value heads, S = H / K query heads to each of them, h head dimension.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
    return cast(Tensor, _RmsNorm.apply(x, weight_D, eps))


def rotated_heads(
    qkv_BTE: Tensor, weight_Hh: Tensor, rope: tuple[Tensor, Tensor], kv_heads: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, each head normalised and rotated, and values, from their fused projection.

    Args:
        qkv_BTE: [B, T, (H + 2 K) h], query heads first, then keys, then values.
        weight_Hh: [H + K, h], what scales each normalised query and key head.
        rope: cos and signed sin (`rope_table`) of the T positions, [T, h].

    Returns:
        [B K, S T, h] queries, grouped by the key head that they attend with; [B K, T, h] keys and values.
    """
    cos, sin = rope
    return cast(
        tuple[Tensor, Tensor, Tensor],
        _RotatedHeads.apply(qkv_BTE, weight_Hh, cos, sin, kv_heads, eps),
    )


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(h)) v with position t blind to what comes after it; shapes as `rotated_heads` returns.

    PyTorch's fused attention is faster where there is a GPU; at these lengths it is slower than two products on a CPU.
    """
    if q.is_cuda:
        rows, length, dim = k.shape
        grouped = q.view(rows, -1, length, dim)
        k, v = (part[:, None].expand_as(grouped) for part in (k, v))
        return F.scaled_dot_product_attention(grouped, k, v, is_causal=True).flatten(1, 2)
    return cast(Tensor, _CausalAttention.apply(q, k, v))


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, from their fused projection [..., 2 I]."""
    return cast(Tensor, _Gated.apply(gate_up))


def silu_gate(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, without a backward of its own."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout of Hugging Face; `sin` is negative in its first half."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, which stays."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def causal_mask(length: int, repeats: int, like: Tensor) -> Tensor:
    """[repeats * length, length]: minus infinity where a query would see what comes after it."""
    mask = torch.full((length, length), -torch.inf, dtype=like.dtype, device=like.device)
    return mask.triu_(1).repeat(repeats, 1)


def _norm_backward(grad: Tensor, normal: Tensor, weight: Tensor, inverse: Tensor) -> Tensor:
    """d/dx of normal * weight with normal = x * inverse: inverse * (g w - normal * mean(g w normal))."""
    scaled = grad * weight
    share = (scaled * normal).mean(-1, keepdim=True)
    return torch.addcmul(scaled, normal, share, value=-1).mul_(inverse)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = inverse_rms(x, eps)
        normal = x * inverse
        ctx.save_for_backward(normal, weight, inverse)
        return normal * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        normal, weight, inverse = ctx.saved_tensors
        grad_weight = (grad * normal).flatten(0, -2).sum(0)
        return _norm_backward(grad, normal, weight, inverse), grad_weight, None


class _RotatedHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        weight: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_heads: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, dim = weight.shape
        # a table for all heads: broadcast over them, each product would be a loop over `dim` numbers, thrice as slow
        cos, sin = (table[:, None].expand(-1, heads, -1).contiguous() for table in (cos, sin))
        qk, v = qkv.unflatten(-1, (-1, dim)).split((heads, kv_heads), dim=2)
        inverse = inverse_rms(qk, eps)
        normal = qk * inverse
        turned = rotate(normal * weight, cos, sin)
        ctx.save_for_backward(normal, weight, inverse, cos, sin)
        q, k = turned.split((heads - kv_heads, kv_heads), dim=2)
        return to_rows(q, kv_heads), to_rows(k, kv_heads), to_rows(v, kv_heads)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore
        ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor
    ) -> tuple[Tensor | None, ...]:
        normal, weight, inverse, cos, sin = ctx.saved_tensors
        b, t, heads, dim = normal.shape
        kv_heads = grad_k.shape[0] // b
        whole = normal.new_empty(b, t, heads + kv_heads, dim)
        turned = whole[:, :, :heads]
        from_rows(grad_q, turned[:, :, : heads - kv_heads], kv_heads)
        from_rows(grad_k, turned[:, :, heads - kv_heads :], kv_heads)
        from_rows(grad_v, whole[:, :, heads:], kv_heads)
        # a rotation by half of the axis is its own inverse
        half = (turned * sin).roll(dim // 2, -1)
        grad = half.addcmul_(turned, cos)
        grad_weight = (grad * normal).sum((0, 1))
        turned.copy_(_norm_backward(grad, normal, weight, inverse))
        return whole.flatten(2), grad_weight, None, None, None, None


def to_rows(x_BTHh: Tensor, kv_heads: int) -> Tensor:
    """[B, T, K S, h] to [B K, S T, h]."""
    heads = x_BTHh.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)
    return heads.reshape(x_BTHh.shape[0] * kv_heads, -1, x_BTHh.shape[-1])


def from_rows(x: Tensor, out_BTHh: Tensor, kv_heads: int) -> None:
    """[B K, S T, h] into [B, T, K S, h]."""
    b, t, _, dim = out_BTHh.shape
    rows = x.view(b, kv_heads, -1, t, dim).permute(0, 3, 1, 2, 4)
    out_BTHh.unflatten(2, (kv_heads, -1)).copy_(rows)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = causal_mask(k.shape[1], q.shape[1] // k.shape[1], q)
        score = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        p = score.softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        return torch.bmm(p, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        q, k, v, p = ctx.saved_tensors
        grad_v = torch.bmm(p.transpose(1, 2), grad)
        grad_p = torch.bmm(grad, v.transpose(1, 2))
        score = torch.ops.aten._softmax_backward_data(grad_p, p, -1, p.dtype).mul_(
            q.shape[-1] ** -0.5
        )
        return torch.bmm(score, k), torch.bmm(score.transpose(1, 2), q), grad_v


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return silu_gate(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        both = torch.empty_like(gate_up)
        torch.mul(grad, F.silu(gate), out=both[..., up.shape[-1] :])
        both[..., : up.shape[-1]] = torch.ops.aten.silu_backward(grad * up, gate)
        return both
