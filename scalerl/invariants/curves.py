"""The curve by which losses differ, gradient of a token against its ratio: direction, clip sides, caps, bands."""

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st

from scalerl.invariants.case import Case, f64
from scalerl.invariants.catalogue import (
    Invariant,
    Violation,
    both,
    compare,
    needs_shape,
)
from scalerl.invariants.formulas import TOKEN
from scalerl.invariants.subject import LossUnderTest
from scalerl.invariants.traits import Traits

RATIOS = (
    0.5,
    2.0,
    0.79,
    0.81,
    0.9,
    1.0,
    1.1,
    1.19,
    1.21,
    1.25,
    1.27,
    1.29,
    1.5,
    4.0,
    5.5,
    10.0,
    0.1,
)


def _token(rho: float, adv: float) -> Case:
    return Case.of([[-1.0]], math.log(rho), adv=adv)


def _unit(loss: LossUnderTest, adv: float) -> float | None:
    """Weight of the one token, from the gradient where pi = mu; None if there is none, which A03 is about."""
    weight = -loss.evaluate(_token(1.0, adv)).grad_BT.item() / adv
    return weight if math.isfinite(weight) and weight > 0 else None


def _one(gradient: float) -> torch.Tensor:
    return torch.tensor([[gradient]], dtype=f64)


def direction(loss: LossUnderTest, traits: Traits, sign: float) -> Violation | None:
    """A21: the exponent p of weight = rho^p near rho = 1, which is 1 for a ratio and 0 for REINFORCE."""
    unit = _unit(loss, 1.0)
    if unit is None:
        return _exchanged(loss, traits)
    small, step = Case.of([[-1.0]], sign * 1e-4), sign / 32
    p = _exponent(loss, small, unit)
    if p is None or not _wrong_exponent(traits, p, sign):
        return None
    case = Case.of([[-1.0]], step)
    shown = _exponent(loss, case, unit)
    if shown is None or abs(shown - p) > 0.1:  # a bound lies in between
        case = small
    wanted = 0.0 if traits.shape == "reinforce" else 1.0
    x = case.log_ratio_BT.item()
    return compare(
        loss,
        traits,
        case,
        _one(-unit * math.exp(wanted * x)),
        f"the policy made this token {math.exp(x):.5g} times as likely as the generator did; near 1 the weight goes as "
        f"rho^{p:.3g}, where rho^{wanted:g} is meant",
        rtol=2e-5,
        fix=_exponent_fix(p),
    )


def _exponent(loss: LossUnderTest, case: Case, unit: float) -> float | None:
    weight = -loss.evaluate(case).grad_BT.item() / unit
    return math.log(weight) / case.log_ratio_BT.item() if 0 < weight < math.inf else None


def _wrong_exponent(traits: Traits, p: float, sign: float) -> bool:
    if "kind" in traits.told and traits.shape != "other":
        x = torch.tensor(sign * 1e-4, dtype=f64)
        meant = math.log(traits.factor(x, torch.tensor(1.0)).item() or 1.0) / x.item()
        return abs(p - meant) > 0.02
    ratio_like = traits.shape in ("clipped", "band", "truncated", "importance")
    if ratio_like:
        return min(abs(p), abs(p - 1)) > 0.02
    return abs(p + 1) < 0.02 or abs(p - 2) < 0.02


def _exponent_fix(p: float) -> str:
    if abs(p + 1) < 0.02:
        return "numerator and denominator are exchanged: exp(logp - behavior_logp)"
    if abs(p) < 0.02:
        return "the ratio is always 1, as exp(logp - logp.detach()) is: the generator's log-probs must be in it"
    if abs(p - 2) < 0.02:
        return "the ratio is there twice: as a weight and in what it weighs"
    return f"log-probs are scaled by {p:.3g} before the ratio is taken (a temperature belongs on the logits)"


def _exchanged(loss: LossUnderTest, traits: Traits) -> Violation | None:
    """A loss of the ratio alone whose value is right at rho = 1 and whose gradient is that of 1 / rho."""
    case = _token(1.0, 1.0)
    found, moved = loss.evaluate(case), loss.value(Case.of([[-1.5]])).item()
    gradient = found.grad_BT.item()
    if not (gradient > 0 and math.isclose(found.value, moved, rel_tol=1e-6) and found.value < 0):
        return None
    return compare(
        loss,
        traits,
        case,
        _one(-gradient),
        "the value is -A at rho = 1 and depends on the ratio alone, but rises with log pi",
        fix=_exponent_fix(-1.0),
    )


def both_signs(loss: LossUnderTest, traits: Traits, adv: float) -> Violation | None:
    """CL6."""
    unit = _unit(loss, -adv)
    if unit is None:
        return None
    return compare(
        loss,
        traits,
        _token(1.0, adv),
        _one(-adv * unit),
        "at rho = 1 no clip acts, whatever the sign of A",
        fix="the dual clip max(clipped, c A) belongs to A < 0 alone, and c must be above 1",
    )


def clip_sides(loss: LossUnderTest, traits: Traits, drawn: tuple[float, float]) -> Violation | None:
    """CL1, CL2: the bound on the side where a clip belongs was measured or told; on the other side there is none."""
    rho, adv = drawn
    honest = traits.dual > 1.05 * (1.0 + traits.clip_high)
    dual = traits.dual if honest or "dual" in traits.told else math.inf
    if traits.near_a_bound(_token(rho, adv)):
        return None
    stopped = rho > 1.0 + traits.clip_high if adv > 0 else rho < 1.0 - traits.clip_low or rho > dual
    unit = _unit(loss, adv)
    if unit is None:
        return None
    return compare(
        loss,
        traits,
        _token(rho, adv),
        _one(0.0 if stopped else -unit * adv * rho),
        _side(rho, adv, stopped),
        fix="" if stopped else _clip_fix(rho, adv),
    )


def _side(rho: float, adv: float, stopped: bool) -> str:
    if stopped:
        return f"rho = {rho:g} has moved far enough in the direction that A = {adv:g} asks for: clipped, no gradient"
    return (
        f"rho = {rho:g} is not clipped for A = {adv:g}: "
        + (
            "it is within the bounds"
            if (rho > 1) == (adv > 0)
            else "it moved against A, and must be brought back"
        )
    )  # fmt: skip


def _clip_fix(rho: float, adv: float) -> str:
    if (rho > 1) == (adv > 0):
        return ""
    return (
        "the clip acts on the wrong side: take min(rho A, clip(rho) A), and not max, nor clip(rho) A alone; "
        "in a loss to be minimised, -min(a, b) = max(-a, -b)"
    )


def curve(loss: LossUnderTest, traits: Traits, drawn: tuple[float, float]) -> Violation | None:
    """A15, C04, A17: the factor on one token, as the shape says."""
    rho, adv = drawn
    case, unit = _token(rho, adv), _unit(loss, adv)
    if unit is None or traits.near_a_bound(case):
        return None
    factor = traits.factor(torch.tensor(math.log(rho)).double(), torch.tensor(adv)).item()
    silent = traits.shape == "band" and factor == 0.0
    return compare(
        loss,
        traits,
        case,
        _one(-unit * adv * factor),
        f"the weight of a token at rho = {rho:g} is {factor:g}",
        expected=0.0 if silent else None,
        fix=lambda grad_BT, value: _cap_fix(traits, rho, grad_BT.item()),
    )


def _cap_fix(traits: Traits, rho: float, grad: float) -> str:
    if traits.shape != "truncated":
        return ""
    if grad == 0.0:
        return "a capped token of CISPO keeps its gradient; PPO's clip takes it: clamp the detached ratio, times log pi"
    if rho < 1.0:
        return "there is no lower cap: torch.clamp(ratio, max=eps_max)"
    return "the cap is absolute: eps_max, not 1 + eps_max"


def _points(adv: tuple[float, ...] = (1.0, -1.0)) -> Callable[[Traits], st.SearchStrategy]:
    """(rho, A): round ratios, and some just inside and outside the bounds."""

    def inputs(traits: Traits) -> st.SearchStrategy:
        close = [r for b in traits.bounds() for r in (math.exp(b * 0.9), math.exp(b * 1.1))]
        return st.tuples(st.sampled_from((*RATIOS, *close)), st.sampled_from(adv))

    return inputs


INVARIANTS = [
    Invariant(
        id="A21",
        name="direction of the ratio",
        statement=(
            "The ratio is above 1 exactly if the policy being trained gives the token more "
            "probability than the generator did."
        ),
        formula="rho = exp(logp - behavior_logp)",
        inputs=lambda traits: st.sampled_from((1.0, -1.0)),
        check=direction,
        means=(
            "numerator and denominator are exchanged, the ratio is always 1 (exp(logp - "
            "logp.detach())), or it is applied twice"
        ),
        fault="torchforge #571, TRL #2769: a ratio that is always 1 on off-policy data",
    ),
    Invariant(
        id="CL6",
        name="dual clip",
        statement="At rho = 1 no clip acts; the dual clip c > 1 holds tokens with A < 0 alone.",
        formula="rho = 1  =>  dL/dlogp = -w A",
        inputs=lambda traits: st.sampled_from((1.0, -1.0)),
        check=both_signs,
        means="the dual clip is applied for A > 0 too",
        applies=both(TOKEN, needs_shape("clipped")),
        fault="tianshou #433, PPOxFamily #95",
    ),
    Invariant(
        id="CL1",
        name="clip of tokens to be raised",
        statement="A token with A > 0 is clipped above 1 + clip_high and nowhere else.",
        formula="A > 0:  dL/dlogp = -w A rho if rho <= 1 + clip_high else 0",
        inputs=_points((1.0,)),
        check=clip_sides,
        means=(
            "minimum and maximum are exchanged, clip_low and clip_high are, or the clip acts on"
            " both sides"
        ),
        applies=both(TOKEN, needs_shape("clipped")),
    ),
    Invariant(
        id="CL2",
        name="clip of tokens to be lowered",
        statement=(
            "A token with A < 0 is clipped below 1 - clip_low and nowhere else, short of a dual"
            " clip far above."
        ),
        formula="A < 0:  dL/dlogp = -w A rho if rho >= 1 - clip_low else 0",
        inputs=_points((-1.0,)),
        check=clip_sides,
        means="minimum and maximum are exchanged, or the ratio is clipped whatever the sign of A",
        applies=both(TOKEN, needs_shape("clipped")),
        fault="spinningup #255, GMPO #4: the side for A < 0 misread",
    ),
    Invariant(
        id="A15",
        name="the truncated weight",
        statement=(
            "The weight rises with the ratio up to the cap and stays there: never 0, no lower cap."
        ),
        formula="dL/dlogp = -w A min(rho, cap)",
        inputs=_points(),
        check=curve,
        means=(
            "a lower clip has slipped in, the cap is 1 + eps, or PPO's clip stands where a cap "
            "is meant"
        ),
        applies=both(TOKEN, needs_shape("truncated")),
    ),
    Invariant(
        id="C04",
        name="band",
        statement=(
            "Outside its band a token's term and gradient are exactly 0; inside, the weight is "
            "the ratio."
        ),
        formula="dL/dlogp = -w A rho in the band, else 0, and the value is 0 too",
        inputs=_points(),
        check=curve,
        means="rejected tokens still count in the value or keep a gradient",
        applies=both(TOKEN, needs_shape("band")),
    ),
    Invariant(
        id="A17",
        name="importance sampling",
        statement="Without a cap or clip the weight is the ratio.",
        formula="dL/dlogp = -w A rho",
        inputs=_points(),
        check=curve,
        means="a bound acts where none is meant",
        applies=both(TOKEN, needs_shape("importance")),
    ),
]
