"""What kind of loss it is: told, or measured on single tokens and on small batches without any ratio.

`factor(x, sign)` is dL/dlogp of one token at log ratio x, in units of -w A: the one curve by which losses differ.

    reinforce   1
    importance  rho
    truncated   min(rho, cap)                            CISPO, TIS
    clipped     A > 0: rho up to 1 + clip_high, then 0   PPO, GRPO, DAPO; GSPO on the sequence ratio
                A < 0: rho down to 1 - clip_low, then 0; with a dual clip 0 above `dual` too
    band        rho inside [1 - clip_low, 1 + clip_high], 0 outside, and there the value is 0 as well (IcePop)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scalerl.invariants.case import Case

Shape = Literal["reinforce", "importance", "truncated", "band", "clipped", "other"]
Level = Literal["token", "sequence", "product"]
"""Whose ratio it is: a token's, the completion's geometric mean, or the plain product over the completion."""
Weights = Literal["prompt_mean", "sample_mean", "token_mean", "constant", "sum", "other"]

KINDS: dict[str, tuple[Shape, Level]] = {
    "reinforce": ("reinforce", "token"),
    "importance": ("importance", "token"),
    "cispo": ("truncated", "token"),
    "tis": ("truncated", "token"),
    "ppo": ("clipped", "token"),
    "grpo": ("clipped", "token"),
    "dapo": ("clipped", "token"),
    "dr-grpo": ("clipped", "token"),
    "dual-clip": ("clipped", "token"),
    "gspo": ("clipped", "sequence"),
    "gspo-token": ("clipped", "sequence"),
    "icepop": ("band", "token"),
    "gmpo": ("other", "sequence"),
}
"""What a loss may be called -> the shape of its gradient, and whether a token or the completion has the ratio."""

_FINE = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05)
_COARSE = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 6.0)
GRID = sorted(sign * x for x in (*_FINE, *_COARSE) for sign in (1, -1))
"""Log ratios at which the curve is measured, in nats."""


@dataclass(frozen=True)
class Traits:
    """What the invariants need to know; `told` names what the author said, the rest was measured."""

    shape: Shape
    level: Level
    weights: Weights
    score: bool  # the value is a weight times log pi, so that the weight can be read off the value
    cap: float = math.inf
    clip_low: float = math.inf  # inf: no such bound
    clip_high: float = math.inf
    dual: float = math.inf
    scale: float = 1.0  # what `relative_weights` are multiplied by
    rtol: float = 1e-6  # that of a loss computing in float64; 1e-4 in float32
    takes_old: bool = False
    shards: bool = False  # calls on rows of a batch add up
    weighed: bool = False  # the suite gives it the token weights
    half: bool = False  # log-probs may come in half precision
    any_mask: bool = False  # the mask may come in another dtype than bool
    told: frozenset[str] = frozenset()

    @property
    def unknown(self) -> bool:
        """Of a shape that nobody named and none here describes: only what every loss obeys is asked of it."""
        return self.shape == "other" and "kind" not in self.told

    def factor(self, log_ratio: Tensor, adv: Tensor) -> Tensor:
        """dL/dlogp in units of -w A, as the shape says; elementwise."""
        rho = log_ratio.clamp(max=700.0).exp()
        low, high = rho < 1.0 - self.clip_low, rho > 1.0 + self.clip_high
        match self.shape:
            case "reinforce":
                return torch.ones_like(rho)
            case "importance" | "truncated":
                return rho.clamp(max=self.cap)
            case "clipped":
                off = torch.where(adv > 0, high, low | (rho > self.dual))
                return torch.where(off, 0.0, rho)
            case "band":
                return torch.where(low | high, 0.0, rho)
        raise ValueError(f"a loss of shape {self.shape!r} has no known factor")

    def bounds(self) -> list[float]:
        """log rho at which the factor has a kink or a step."""
        ratios = [1.0 - self.clip_low, 1.0 + self.clip_high, self.cap, self.dual]
        return [math.log(rho) for rho in ratios if 0.0 < rho < math.inf]

    def near_a_bound(self, case: Case) -> bool:
        """Whether some ratio is so close to a bound that rounding decides on which side it is."""
        x_BT = self.ratio_BT(case)[case.mask_BT]
        return any(bool(((x_BT - bound).abs() < 1e-4).any()) for bound in self.bounds())

    def ratio_BT(self, case: Case) -> Tensor:
        """log rho that the factor is a function of: of the token, or the mean over the completion's."""
        if self.level == "token":
            return case.log_ratio_BT
        count_B = case.tokens_B.clamp(min=1) if self.level == "sequence" else 1
        mean_B = case.log_ratio_BT.sum(dim=1) / count_B
        return torch.where(case.mask_BT, mean_B[:, None], 0.0)

    def weight_BT(self, case: Case) -> Tensor:
        """Weight of each trained token, by the aggregation."""
        return self.scale * relative_weights(case, self.weights)

    def gradient_BT(self, case: Case) -> Tensor:
        """dL/dlogp as the shape, the level and the aggregation say."""
        adv_BT = case.adv_B[:, None].expand(case.shape)
        factor_BT = self.factor(self.ratio_BT(case), adv_BT)
        return torch.where(case.mask_BT, -self.weight_BT(case) * adv_BT * factor_BT, 0.0)


def relative_weights(case: Case, weights: Weights) -> Tensor:
    """Token weights, straight from their definitions (another way than `token_weights` takes)."""
    mask_BT, group = case.mask_BT, case.group_B.tolist()
    tokens = [int(n) for n in case.tokens_B]
    prompts = {g for g, n in zip(group, tokens, strict=True) if n}
    completions = sum(n > 0 for n in tokens)
    of_prompt = {g: sum(n for h, n in zip(group, tokens, strict=True) if h == g) for g in prompts}
    per_row: dict[Weights, Callable[[int], float]] = {
        "prompt_mean": lambda i: 1.0 / (len(prompts) * of_prompt[group[i]]),
        "sample_mean": lambda i: 1.0 / (completions * tokens[i]),
        "token_mean": lambda i: 1.0 / sum(tokens),
        "constant": lambda i: 1.0 / len(tokens),
        "sum": lambda i: 1.0,
    }
    row_weight = [per_row[weights](i) if tokens[i] else 0.0 for i in range(len(tokens))]
    return torch.where(mask_BT, torch.tensor(row_weight, dtype=case.logp_BT.dtype)[:, None], 0.0)
