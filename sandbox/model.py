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

from sandbox.kernels import causal_attention, gated, rms_norm, rotated_heads
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

    def fused_weights(self) -> tuple[Tensor, Tensor]:
        """Query, key and value projections as one, [(H + 2 K) h, D]; the norms of query and key heads, [H + K, h]."""
        projections = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        norms = (self.q_norm.weight.expand(self.config.num_attention_heads, -1),)
        norms += (self.k_norm.weight.expand(self.config.num_key_value_heads, -1),)
        return projections, torch.cat(norms)

    def forward(self, x_BTD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """What every position gathers from those up to it, [B, T, H h], before the output projection."""
        b, t, _ = x_BTD.shape
        weight_ED, norms_Hh = self.fused_weights()
        kv_heads, eps = self.config.num_key_value_heads, self.config.rms_norm_eps
        q, k, v = rotated_heads(F.linear(x_BTD, weight_ED), norms_Hh, rope, kv_heads, eps)
        out = causal_attention(q, k, v).view(b, -1, t, self.config.head_dim)
        return out.transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def fused_weight(self) -> Tensor:
        """Gate and up projections as one, [2 I, D]."""
        return torch.cat((self.gate_proj.weight, self.up_proj.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gated(F.linear(x, self.fused_weight())))


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

    packs_rows = False
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

    def hidden(self, token_BT: Tensor) -> Tensor:
        """Final hidden states [B, T, D] of right-padded sequences (padding comes after, so causality hides it)."""
        return self._run(token_BT, None).view(*token_BT.shape, -1)

    def predicting(self, token_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Hidden states [N, D] that predict the N tokens which `mask_BT` marks, row by row."""
        return self._run(token_BT[:, :-1], mask_BT[:, 1:])

    def _run(self, token_BT: Tensor, wanted_BT: Tensor | None) -> Tensor:
        """Final hidden states [N, D] of the wanted positions, or of all.

        After the last attention no position looks at another any more: what is not wanted ends there.
        """
        t, eps = token_BT.shape[1], self.config.rms_norm_eps
        rope = (self.cos[:t], self.sin[:t])
        x = self.model.embed_tokens(token_BT)
        for layer in self.blocks:
            seen = layer.self_attn(rms_norm(x, layer.input_layernorm.weight, eps), rope)
            if layer is self.blocks[-1] and wanted_BT is not None:
                x, seen = x[wanted_BT], seen[wanted_BT]
            x = x + layer.self_attn.o_proj(seen)
            x = x + layer.mlp(rms_norm(x, layer.post_attention_layernorm.weight, eps))
        return rms_norm(x, self.model.norm.weight, eps)


def rope_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's rotary angles, [positions, head_dim]; sin is negative in its first half."""
    # Inverted after the power, as Hugging Face does: the other way round differs by a rounding, 4e-5 in log-probs.
    exponent = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    inverse = 1.0 / config.rope_theta**exponent
    angle = torch.outer(torch.arange(config.max_position_embeddings).float(), inverse)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


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
