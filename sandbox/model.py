"""The tiny policy: a standard Qwen3 transformer in a few lines, with Hugging Face tensor names.

RMSNorm, rotary positions, grouped-query attention with per-head query and key norms, SwiGLU. The
same `safetensors` file loads into `transformers`, vLLM and FSDP2, so a recipe can leave the sandbox.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.errors import InputError, first_line


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Qwen3 model; field names are those of its Hugging Face `config.json`.

    `head_dim` is independent of `hidden_size / num_attention_heads`; 32 is the least that vLLM's CPU
    attention takes.
    """

    vocab_size: int
    hidden_size: int = 32
    intermediate_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    num_key_value_heads: int = 1
    head_dim: int = 32
    max_position_embeddings: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0


class Cache:
    """Keys and values of `rows` sequences, of at most `width` tokens each: [L][rows, KV heads, width, head_dim].

    Entries stay as they were computed: after a weight push they are *stale* until overwritten.
    """

    def __init__(
        self, config: ModelConfig, rows: int, width: int, device: torch.device | str
    ) -> None:
        shape = (rows, config.num_key_value_heads, width, config.head_dim)
        self.keys = [torch.zeros(shape, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, device=device) for _ in range(config.num_hidden_layers)]

    def copy_rows(self, source: "Cache", source_rows: Tensor, rows: Tensor, width: int) -> None:
        """Overwrite the first `width` positions of `rows` with those of `source_rows` of `source`."""
        for mine, theirs in zip(self.tensors(), source.tensors(), strict=True):
            mine[rows, :, :width] = theirs[source_rows, :, :width]

    def tensors(self) -> list[Tensor]:
        return [*self.keys, *self.values]


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, h = config.hidden_size, config.head_dim
        self.config = config
        self.q_proj = nn.Linear(d, config.num_attention_heads * h, bias=False)
        self.k_proj = nn.Linear(d, config.num_key_value_heads * h, bias=False)
        self.v_proj = nn.Linear(d, config.num_key_value_heads * h, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * h, d, bias=False)
        self.q_norm = nn.RMSNorm(h, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(h, eps=config.rms_norm_eps)

    def project(self, x_BTD: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: each [B, heads, T, head_dim]."""
        b, t, _ = x_BTD.shape
        q = self.q_norm(self.q_proj(x_BTD).view(b, t, -1, self.config.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x_BTD).view(b, t, -1, self.config.head_dim)).transpose(1, 2)
        v = self.v_proj(x_BTD).view(b, t, -1, self.config.head_dim).transpose(1, 2)
        return rotate(q, rope), rotate(k, rope), v

    def forward(
        self, x_BTD: Tensor, rope: tuple[Tensor, Tensor], cache: Cache | None, layer: int
    ) -> Tensor:
        """Causal attention over whole sequences; with a cache, its first B rows receive keys and values."""
        q, k, v = self.project(x_BTD, rope)
        if cache is not None:
            b, t, _ = x_BTD.shape
            cache.keys[layer][:b, :, :t] = k
            cache.values[layer][:b, :, :t] = v
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def decode(
        self,
        x_BD: Tensor,
        rope: tuple[Tensor, Tensor],
        cache: Cache,
        layer: int,
        position_B: Tensor,
        hidden_BW: Tensor,
    ) -> Tensor:
        """One new token for each of the cache's first B rows, which attends to that row's cached past."""
        b, width = hidden_BW.shape
        q, k, v = self.project(x_BD[:, None], rope)
        rows = torch.arange(b, device=x_BD.device)
        cache.keys[layer][rows, :, position_B] = k[:, :, 0]
        cache.values[layer][rows, :, position_B] = v[:, :, 0]
        keys, values = cache.keys[layer][:b, :, :width], cache.values[layer][:b, :, :width]
        groups = self.config.num_attention_heads // self.config.num_key_value_heads
        q = q.reshape(b, self.config.num_key_value_heads, groups, self.config.head_dim)
        score = (q @ keys.transpose(2, 3)) * self.config.head_dim**-0.5 + hidden_BW[:, None, None]
        out = score.softmax(-1) @ values
        return self.o_proj(out.reshape(b, -1))


class Mlp(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Backbone(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Policy(nn.Module):
    """A causal language model that yields hidden states; the head's product is taken by `scalerl.logprobs`.

    Keeping the head out of `forward` is what lets its precision be a setting, on both sides.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        cos, sin = rope_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def blocks(self) -> list[Layer]:
        return cast(list[Layer], list(self.model.layers))

    @property
    def head_VD(self) -> Tensor:
        return self.lm_head.weight

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    def hidden(self, token_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Final hidden states [B, T, D] of right-padded sequences (padding comes after, so causality hides it)."""
        t = token_BT.shape[1]
        rope = (self.cos[:t], self.sin[:t])
        x = self.model.embed_tokens(token_BT)
        for i, layer in enumerate(self.blocks):
            x = x + layer.self_attn(layer.input_layernorm(x), rope, cache, i)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.norm(x)

    def decode(self, token_B: Tensor, position_B: Tensor, cache: Cache, width: int) -> Tensor:
        """Hidden states [B, D] of one new token a row at `position_B` (< `width`), written into the cache."""
        rope = (self.cos[position_B][:, None, None], self.sin[position_B][:, None, None])
        future = torch.arange(width, device=token_B.device) > position_B[:, None]
        hidden_BW = torch.zeros(future.shape, device=token_B.device).masked_fill_(
            future, -torch.inf
        )
        x = self.model.embed_tokens(token_B)
        for i, layer in enumerate(self.blocks):
            x = x + layer.self_attn.decode(
                layer.input_layernorm(x), rope, cache, i, position_B, hidden_BW
            )
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.norm(x)


def rope_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's rotary angles, [positions, head_dim]."""
    # Inverted after the power, as Hugging Face does: the other way round differs by a rounding, 4e-5 in log-probs.
    exponent = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    inverse = 1.0 / config.rope_theta**exponent
    angle = torch.outer(torch.arange(config.max_position_embeddings).float(), inverse)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding in the half-split layout of Hugging Face."""
    half = x.shape[-1] // 2
    cos, sin = rope
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def save_policy(policy: Policy, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` as `transformers` and vLLM read them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **asdict(policy.config),
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_policy(folder: Path, device: torch.device | str = "cpu") -> Policy:
    """Load a Qwen3 folder with an untied head, of ours or of `transformers`.

    Raises:
        InputError: another architecture, or files that are missing, torn, or do not fit each other.
    """
    try:
        text = json.loads((folder / "config.json").read_text())
        kind, tied = text.get("model_type"), text.get("tie_word_embeddings")
        if kind != "qwen3" or tied:
            raise InputError(
                f"{folder / 'config.json'}: the sandbox runs Qwen3 with an untied head, not "
                f"model_type={kind!r} with tie_word_embeddings={tied!r}"
            )
        # transformers 5 keeps the base in a table of its own
        text.setdefault("rope_theta", text.get("rope_parameters", {}).get("rope_theta", 10_000.0))
        fields = ModelConfig.__dataclass_fields__
        policy = Policy(ModelConfig(**{name: text[name] for name in fields}))
        policy.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError, SafetensorError) as error:
        raise InputError(
            f"cannot load the policy in {folder}: {type(error).__name__}: {first_line(error)}"
        ) from error
    return policy.to(device)
