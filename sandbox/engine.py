"""A policy as the generators run it: projections fused, keys and values cached, and rounded where a site says so."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sandbox.kernels import causal_attention, inverse_rms, rotate, silu_gate, to_rows
from sandbox.model import ModelConfig, Policy
from scalerl.logprobs import logits
from scalerl.site import Rounding

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Cache:
    """Keys and values of `rows` sequences, of at most `width` tokens each: [L][width, rows, KV heads, head_dim].

    Entries stay as they were computed: after a weight push they are *stale* until overwritten. Positions come first
    because one query against each row's past is then read a third faster than with rows first.
    """

    def __init__(
        self, config: ModelConfig, rows: int, width: int, device: torch.device | str
    ) -> None:
        shape = (width, rows, config.num_key_value_heads, config.head_dim)
        self.keys = [torch.zeros(shape, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, device=device) for _ in range(config.num_hidden_layers)]

    def copy_rows(self, source: "Cache", source_rows: Tensor, rows: Tensor, width: int) -> None:
        """Overwrite the first `width` positions of `rows` with those of `source_rows` of `source`."""
        for mine, theirs in zip(self.tensors(), source.tensors(), strict=True):
            mine[:width].index_copy_(1, rows, theirs[:width].index_select(1, source_rows))

    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values]


@dataclass(frozen=True)
class _Layer:
    """Weights of a layer, fused as `Attention.fused_weights` and `Mlp.fused_weight` say; projections transposed."""

    norm_D: Tensor
    qkv_DE: Tensor
    norms_Hh: Tensor
    out_ED: Tensor
    mlp_norm_D: Tensor
    gate_up_DI: Tensor
    down_ID: Tensor


class Engine:
    """Final hidden states of prompts and of new tokens, by the weights that `policy` had at the last `refresh`."""

    def __init__(self, policy: Policy, dtype: Rounding = "float32") -> None:
        self.policy, self.config = policy, policy.config
        self.dtype: Rounding = dtype
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's present weights."""
        self._layers = []
        for block in self.policy.blocks:
            qkv_ED, norms_Hh = block.self_attn.fused_weights()
            weights = (
                qkv_ED,
                block.self_attn.o_proj.weight,
                block.mlp.fused_weight(),
                block.mlp.down_proj.weight,
            )
            qkv, out, gate_up, down = (rounded(w, self.dtype).T.contiguous() for w in weights)
            norms = (block.input_layernorm.weight, block.post_attention_layernorm.weight)
            self._layers.append(
                _Layer(norms[0].clone(), qkv, norms_Hh, out, norms[1].clone(), gate_up, down)
            )
        self._embedding_VD = self.policy.model.embed_tokens.weight.clone()
        self._norm_D = self.policy.model.norm.weight.clone()
        self._head_VD = self.policy.head_VD.detach().clone()

    @torch.no_grad()
    def prefill(self, token_BT: Tensor, cache: Cache) -> Tensor:
        """Hidden states [B, T, D] of right-padded sequences, whose keys and values fill the cache's first B rows."""
        b, t = token_BT.shape
        kv, dim = self.config.num_key_value_heads, self.config.head_dim

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = (part.view(b, t, kv, dim) for part in (k, v))
            cache.keys[layer][:t, :b] = k.transpose(0, 1)
            cache.values[layer][:t, :b] = v.transpose(0, 1)
            q, k, v = (to_rows(part, kv) for part in (q.view(b, t, -1, dim), k, v))
            out = causal_attention(q, k, v)
            return out.view(b, -1, t, dim).transpose(1, 2).reshape(b * t, -1)

        position_N = torch.arange(t, device=token_BT.device).repeat(b)
        return self._run(token_BT.flatten(), position_N, attend).view(b, t, -1)

    @torch.no_grad()
    def decode(self, token_B: Tensor, position_B: Tensor, cache: Cache, width: int) -> Tensor:
        """Hidden states [B, D] of one new token a row at `position_B` (< `width`), written into the cache."""
        b, kv, dim = len(token_B), self.config.num_key_value_heads, self.config.head_dim
        device = token_B.device
        rows = cache.keys[0].shape[1]
        # where each row's keys go when positions, rows and heads of the cache are one axis
        place = torch.arange(b * kv, device=device).view(b, kv) + position_B[:, None] * rows * kv
        place = place.flatten()
        future = torch.arange(width, device=device) > position_B[:, None]
        mask = torch.zeros(future.shape, device=device).masked_fill_(future, -torch.inf)
        mask = mask[:, None].expand(-1, kv, -1).reshape(b * kv, 1, width)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.keys[layer], cache.values[layer]
            keys.view(-1, dim).index_copy_(0, place, k.reshape(b * kv, dim))
            values.view(-1, dim).index_copy_(0, place, v.reshape(b * kv, dim))
            # [b KV heads, width, head_dim]
            keys, values = (
                part[:width].flatten(1, 2)[:, : b * kv].transpose(0, 1) for part in (keys, values)
            )
            q = q.reshape(b * kv, -1, dim)
            score = torch.baddbmm(
                mask.expand(-1, q.shape[1], -1), q, keys.transpose(1, 2), alpha=dim**-0.5
            )
            return torch.bmm(score.softmax(-1), values).view(b, -1)

        return self._run(token_B, position_B, attend)

    def logits(self, hidden_ND: Tensor, head_dtype: torch.dtype, temperature: float) -> Tensor:
        """As `scalerl.logprobs.logits`; of a float8 head both factors are rounded, and multiplied in float32."""
        head_VD = self._head_VD
        if head_dtype == torch.float8_e4m3fn:
            hidden_ND, head_VD = (rounded(x, "float8_e4m3") for x in (hidden_ND, head_VD))
            head_dtype = torch.float32
        return logits(hidden_ND, head_VD, head_dtype, temperature)

    def _run(self, token_N: Tensor, position_N: Tensor, attend: Attend) -> Tensor:
        """Hidden states [N, D]; `attend(layer, q, k, v)` mixes in what each token may see, [N, H h]."""
        config, dtype = self.config, self.dtype
        heads, kv = config.num_attention_heads, config.num_key_value_heads
        eps = config.rms_norm_eps
        cos, sin = (table[position_N][:, None] for table in (self.policy.cos, self.policy.sin))
        x = self._embedding_VD[token_N]
        for i, layer in enumerate(self._layers):
            seen = rounded(normed(x, layer.norm_D, eps), dtype)
            qkv = (seen @ layer.qkv_DE).unflatten(-1, (-1, config.head_dim))
            qk = rotate(normed(qkv[:, : heads + kv], layer.norms_Hh, eps), cos, sin)
            out = attend(
                i,
                qk[:, :heads],
                rounded(qk[:, heads:], dtype),
                rounded(qkv[:, heads + kv :], dtype),
            )
            x = torch.addmm(x, rounded(out, dtype), layer.out_ED)
            seen = rounded(normed(x, layer.mlp_norm_D, eps), dtype)
            inside = silu_gate(seen @ layer.gate_up_DI)
            x = torch.addmm(x, rounded(inside, dtype), layer.down_ID)
        return normed(x, self._norm_D, eps)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last axis."""
    return (x * inverse_rms(x, eps)).mul_(weight)


def rounded(x: Tensor, dtype: Rounding) -> Tensor:
    """x to the nearest value of a narrower type, as float32: what a product in that type gets to see of it.

    Sums, norms, softmax and the residual stream stay in float32, which a real bfloat16 engine does not grant: the
    mismatch of one is about three times that of this emulation (measured on the start policy: KL 2.6e-4 and 9.0e-5).

    float8_e4m3 has 3 bits of mantissa and reaches 448; each row of the last axis is scaled so that its largest value
    does, as engines do for activations (per token) and weights (per output channel).
    """
    if dtype == "float32":
        return x
    if dtype == "bfloat16":
        return x.bfloat16().float()
    scale = x.abs().amax(-1, keepdim=True).div_(448.0).clamp_(min=1e-12)
    return (x / scale).to(torch.float8_e4m3fn).float().mul_(scale)
