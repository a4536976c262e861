"""What a step costs in seconds on a described GPU: the virtual cluster's physics.

First-order roofline costs: decoding is bound by memory (weights and KV cache are read once a step),
prefill and training by arithmetic. The defaults describe an 8B dense model on GB200; the efficiency factors
are set so that a ScaleRL update costs about what the paper's did (1.45 GPU-hours at 768 completions).
"""

from pydantic import BaseModel, ConfigDict, Field


class Hardware(BaseModel):
    """A GPU, the large model that the tiny one stands for, and how efficiently the one runs the other.

    One sandbox token stands for `token_scale` tokens of the large model: the 36 thinking tokens of the default site
    cost what 18,432 real ones do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = "GB200, 8B dense"
    token_scale: float = Field(
        default=512.0,
        gt=0,
        description="tokens of the large model that one sandbox token stands for",
    )
    model_params: float = Field(default=8e9, gt=0, description="parameters of the large model")
    kv_bytes_token: float = Field(
        default=131_072.0,
        ge=0,
        description="KV-cache bytes of one token (32 layers x 8 heads x 128 x 2 x bf16)",
    )
    gpu_flops: float = Field(
        default=2.5e15, gt=0, description="dense bf16 FLOP/s of one GPU (GB200: 2.5e15)"
    )
    gpu_bytes_s: float = Field(
        default=8e12, gt=0, description="memory bytes/s of one GPU (GB200: 8e12)"
    )
    decode_efficiency: float = Field(
        default=0.6, gt=0, le=1, description="share of the memory bandwidth that decoding reaches"
    )
    prefill_efficiency: float = Field(
        default=0.4, gt=0, le=1, description="share of the FLOP/s that prefill reaches"
    )
    train_efficiency: float = Field(
        default=0.2, gt=0, le=1, description="share of the FLOP/s that training reaches"
    )
    optimizer_s: float = Field(
        default=0.5, ge=0, description="seconds of an optimiser step beside its FLOPs"
    )
    push_s: float = Field(
        default=1.0,
        ge=0,
        description="seconds to bring new weights from the trainers to all generators",
    )

    def decode_s(self, rows: float, context_tokens: float) -> float:
        """One decode step of one GPU: `rows` sequences whose sandbox contexts add up to `context_tokens`."""
        weights = 2.0 * self.model_params
        cache = context_tokens * self.token_scale * self.kv_bytes_token
        return (
            self.token_scale * (weights + cache) / (self.gpu_bytes_s * self.decode_efficiency)
            if rows
            else 0.0
        )

    def prefill_s(self, tokens: float) -> float:
        """Prefill of `tokens` sandbox tokens on one GPU (2 N FLOPs a token)."""
        flops = 2.0 * self.model_params * tokens * self.token_scale
        return flops / (self.gpu_flops * self.prefill_efficiency)

    def train_s(self, tokens: float, gpus: int) -> float:
        """One update over `tokens` sandbox tokens on `gpus` GPUs (6 N FLOPs a token)."""
        flops = 6.0 * self.model_params * tokens * self.token_scale
        return self.optimizer_s + flops / (gpus * self.gpu_flops * self.train_efficiency)
