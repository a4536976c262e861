"""Log-probs at the head of an 8B model: against the whole [N, V], its memory and time, and the bits of the product."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from measuring import Found, NotRun, Sizes, apart_one, peak_bytes, timed
from torch import Tensor

from scalerl.logprobs import sampled_logprobs

SEED = 0


@dataclass(frozen=True)
class Head:
    """Inputs of a log-prob whose logits are about N(0, 1), and what flows back into it."""

    hidden_ND: Tensor
    head_VD: Tensor
    token_N: Tensor
    grad_N: Tensor

    @classmethod
    def draw(cls, device: str, sizes: Sizes, n: int, dtype: torch.dtype) -> "Head":
        draw = torch.Generator(device).manual_seed(SEED)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, device=device)

        return cls(
            normal(n, sizes.D).to(dtype).requires_grad_(),
            (normal(sizes.V, sizes.D) * sizes.D**-0.5).to(dtype).requires_grad_(),
            torch.randint(sizes.V, (n,), generator=draw, device=device),
            normal(n),
        )

    def chunked(self, chunk: int) -> dict[str, Tensor]:
        logp_N, _ = sampled_logprobs(
            self.hidden_ND,
            self.head_VD,
            self.token_N,
            head_dtype=torch.float32,
            chunk_tokens=chunk,
        )
        return self._backward(logp_N, self.grad_N)

    def whole(
        self, rows: slice = slice(None), dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        """By the full [N, V] of some rows."""
        z_NV = self.hidden_ND[rows].to(dtype) @ self.head_VD.to(dtype).T
        logp_N = z_NV.log_softmax(-1).gather(1, self.token_N[rows, None])[:, 0]
        del z_NV
        return self._backward(logp_N, self.grad_N[rows])

    def _backward(self, logp_N: Tensor, grad_N: Tensor) -> dict[str, Tensor]:
        self.hidden_ND.grad = self.head_VD.grad = None
        logp_N.backward(grad_N.to(logp_N.dtype))
        assert self.hidden_ND.grad is not None and self.head_VD.grad is not None
        return {
            "log-prob": logp_N.detach(),
            "gradient of hidden": self.hidden_ND.grad,
            "gradient of head": self.head_VD.grad,
        }


def logprobs(device: str, sizes: Sizes) -> Iterator[Found]:
    """bfloat16 hidden states and head, float32 product, in chunks, against the whole on every eighth row."""
    head = Head.draw(device, sizes, sizes.N, torch.bfloat16)
    some = slice(None, None, 8)
    # so that the head's gradient is theirs alone
    head.grad_N[torch.arange(sizes.N, device=device) % 8 != 0] = 0.0
    found, expected = head.chunked(sizes.chunk), head.whole(some)
    logp_N = found["log-prob"][some]
    yield Found("log-prob, of the largest", apart_one(logp_N, expected["log-prob"]), 1e-5)
    for name in ("gradient of hidden", "gradient of head"):
        whole = expected[name].float()
        off = (found[name].float() - whole).norm() / whole.norm()
        yield Found(f"{name}, of its length", off.item(), 1e-3)
    del whole, found, expected
    chunked_s, whole_s = (
        timed(device, run) for run in (lambda: head.chunked(sizes.chunk), head.whole)
    )
    yield Found(
        f"{sizes.N} tokens, {chunked_s:.2f} s against {whole_s:.2f} s", chunked_s / whole_s, 2
    )
    yield memory(device, sizes, sizes.N, 0.5)


def memory_long(device: str, sizes: Sizes) -> Iterator[Found]:
    """Where logits outweigh what is as large as the head: its float32 copy, its gradient, a product on its way."""
    needed = 14 * sizes.N_long * sizes.V  # bytes: [N, V] in float32 three times, and the head's
    if device == "cuda":
        torch.cuda.empty_cache()
        if (free := torch.cuda.mem_get_info()[0]) < needed:
            raise NotRun(
                f"the whole [N, V] needs {needed / 1e9:.0f} GB; {free / 1e9:.0f} GB are free"
            )
    yield memory(device, sizes, sizes.N_long, 0.2)


def memory(device: str, sizes: Sizes, n: int, bar: float) -> Found:
    def peak(run: Callable[[Head], Any]) -> int:
        # anew each time: a run would free the gradients of the one before, and seem to need less
        head = Head.draw(device, sizes, n, torch.bfloat16)
        return peak_bytes(device, lambda: run(head))

    chunked, whole = peak(lambda head: head.chunked(sizes.chunk)), peak(Head.whole)
    what = f"{n} tokens, peak above the inputs {chunked / 1e9:.3g} GB against {whole / 1e9:.3g} GB"
    return Found(what, chunked / whole, bar)


def precision(device: str, sizes: Sizes) -> Iterator[Found]:
    """float32 inputs against float64: with TF32, or fewer bits of any other kind, a thousandth would be off."""
    head = Head.draw(device, sizes, sizes.N // 32, torch.float32)
    found, expected = head.chunked(sizes.chunk), head.whole(dtype=torch.float64)
    for name, value in found.items():
        bar = 5e-6 if name == "log-prob" else 2e-5
        yield Found(f"float32 {name}, of the largest", apart_one(value, expected[name]), bar)
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    before, backend.matmul.fp32_precision = backend.matmul.fp32_precision, "tf32"
    try:
        head.chunked(sizes.chunk)
        went_through = 1
    except RuntimeError as error:
        went_through = 0 if "would be computed in tf32" in str(error) else 1
    finally:
        backend.matmul.fp32_precision = before
    yield Found("log-probs that TF32 was let compute", went_through, 0)
