"""Log-probabilities of sampled tokens from hidden states, with the LM head in a chosen precision.

`logits` is the one place where a hidden state becomes logits, for the generator and the trainer
alike: a head in float32 on one side only is worse than on neither. `sampled_logprobs` never holds
more than `chunk_tokens` rows of logits, forward or backward; the full [N, V] in float32 is what
runs out of memory.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

Hidden = Float[Tensor, "*N D"]
HiddenND = Float[Tensor, "N D"]
HeadVD = Float[Tensor, "V D"]
Logits = Float[Tensor, "*N V"]
TokenN = Int64[Tensor, "N"]
RealN = Float[Tensor, "N"]


def logits(
    hidden_ND: Hidden, head_VD: HeadVD, head_dtype: torch.dtype, temperature: float = 1.0
) -> Logits:
    """Logits of the sampling distribution.

        z = (hidden in head_dtype) @ (head in head_dtype)^T / temperature

    Both factors are first rounded (or raised) to `head_dtype`, the product is taken and rounded in
    it; raising to float32 and dividing come last. The dtype holds under autocast too. Temperature
    divides the logits, not the log-probs.

    Args:
        hidden_ND: last hidden states, after the final norm; any leading axes.
        head_VD: LM-head weight, tied or not.
        head_dtype: float32 (ScaleRL) or bfloat16; float64 for checks.
        temperature: that of sampling, above 0.

    Returns:
        z_NV: float32 (float64 if `head_dtype` is).

    Raises:
        RuntimeError: float32 is asked for while PyTorch may compute it with fewer bits (TF32, bf16
            passes).
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature}: must be above 0")
    z_NV = _product(hidden_ND, head_VD.T, head_dtype).to(_at_least_float32(head_dtype))
    return z_NV if temperature == 1.0 else z_NV / temperature


def sampled_logprobs(
    hidden_ND: HiddenND,
    head_VD: HeadVD,
    token_N: TokenN,
    *,
    head_dtype: torch.dtype,
    temperature: float = 1.0,
    chunk_tokens: int = 4096,
) -> tuple[RealN, RealN]:
    """Log-prob of each sampled token and entropy of its distribution, without the full logits.

        logp = log softmax(z)[token],   H = -sum over V of p log p,   z = logits(hidden, head)

    Row n of `hidden_ND` is the state that *predicts* `token_N[n]`: the one before it in the
    sequence.

    Args:
        hidden_ND: last hidden states of the N tokens wanted, gathered beforehand; gets a gradient.
        head_VD: LM-head weight; gets a gradient.
        token_N: the tokens that were sampled.
        head_dtype: precision of the product, forward and backward; see `logits`.
        temperature: that of sampling; logp is of the sampling distribution.
        chunk_tokens: rows of logits held at a time; memory and speed only, not the result.

    Returns:
        logp_N: nats, float32 (float64 if `head_dtype` is). Its gradients, summed over chunks in
            that dtype, arrive in the dtypes of the inputs.
        entropy_N: nats, same dtype, no gradient.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens = {chunk_tokens}: must be at least 1")
    logp_N, entropy_N = cast(
        tuple[Tensor, Tensor],
        _SampledLogprobs.apply(hidden_ND, head_VD, token_N, head_dtype, temperature, chunk_tokens),
    )
    return logp_N, entropy_N


class _SampledLogprobs(torch.autograd.Function):
    """Keeps the inputs only; backward computes each chunk's logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        token_N: Tensor,
        head_dtype: torch.dtype,
        temperature: float,
        chunk_tokens: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden_ND, head_VD, token_N)
        ctx.settings = head_dtype, temperature, chunk_tokens
        cast_VD = head_VD.to(head_dtype)  # once, not once a chunk
        logp_N = hidden_ND.new_empty(token_N.shape, dtype=_at_least_float32(head_dtype))
        entropy_N = torch.empty_like(logp_N)
        for rows in _chunks(len(token_N), chunk_tokens):
            z_CV = logits(hidden_ND[rows], cast_VD, head_dtype, temperature)
            logp_CV = F.log_softmax(z_CV, dim=-1)
            logp_N[rows] = logp_CV.gather(1, token_N[rows, None]).squeeze(1)
            entropy_N[rows] = torch.special.entr(logp_CV.exp_()).sum(dim=-1)
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_N: Tensor, _grad_entropy_N: Tensor
    ) -> tuple[Tensor | None, ...]:
        """d logp / dz = onehot(token) - p; times the head for hidden, times hidden for the head."""
        hidden_ND, head_VD, token_N = ctx.saved_tensors
        head_dtype, temperature, chunk_tokens = ctx.settings
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        cast_VD = head_VD.to(head_dtype)
        grad_hidden_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        # Thousands of chunks' worth of small numbers: summed in bf16 they would stall.
        total_dtype = _at_least_float32(head_dtype)
        grad_head_VD = torch.zeros_like(head_VD, dtype=total_dtype) if wants_head else None
        for rows in _chunks(len(token_N), chunk_tokens):
            grad_C1 = grad_N[rows, None] / temperature
            z_CV = logits(hidden_ND[rows], cast_VD, head_dtype, temperature)
            grad_z_CV = F.softmax(z_CV, dim=-1).mul_(-grad_C1)
            grad_z_CV.scatter_add_(1, token_N[rows, None], grad_C1)
            if grad_hidden_ND is not None:
                grad_hidden_ND[rows] = _product(grad_z_CV, cast_VD, head_dtype).to(hidden_ND.dtype)
            if grad_head_VD is not None:
                grad_head_VD += _product(grad_z_CV.T, hidden_ND[rows], head_dtype)
        grad_head = None if grad_head_VD is None else grad_head_VD.to(head_VD.dtype)
        return grad_hidden_ND, grad_head, None, None, None, None


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left @ right in exactly `dtype`."""
    backend: Any = torch.backends.cuda if left.is_cuda else torch.backends.mkldnn
    precision = backend.matmul.fp32_precision
    if dtype == torch.float32 and precision not in ("ieee", "none"):
        raise RuntimeError(
            f"a float32 LM head would be computed in {precision}: "
            "call torch.set_float32_matmul_precision('highest')"
        )
    with torch.autocast(left.device.type, enabled=False):
        return left.to(dtype) @ right.to(dtype)


def _chunks(n: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, n, size)]


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
