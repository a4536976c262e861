"""Reported faults of ratios, clips and losses: their smallest inputs, given to ours. l is log pi, b log mu.

The expected gradients are those of the sum of the terms, dL/dl of each token, with weights of 1.
"""

import math

import numpy as np
import pytest
import torch
from bigram import Bigram, doubled, recipe, rollouts, step
from torch import Tensor

from scalerl.losses import CAPPED, LOSSES
from scalerl.metrics import ratio_stats
from scalerl.reduction import token_weights
from scalerl.update import prepare

f32, f64 = torch.float32, torch.float64
NAN, INF = math.nan, math.inf
KEYWORDS: dict[str, dict[str, float]] = {
    "cispo": {"eps_max": 5.0},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28},
    "grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "gspo": {"clip_low": 0.2, "clip_high": 0.28},
    "reinforce": {},
}
RATIO = ["cispo", "dapo", "grpo", "gspo"]
CLIPPED = ["dapo", "grpo", "gspo"]
Rows = list[list[float]]


def inputs(
    logp: Rows, mu: Rows, A: list[float], m: Rows | None, dtype: torch.dtype
) -> list[Tensor]:
    logp_BT, behavior_BT, adv_B = (torch.tensor(x, dtype=dtype) for x in (logp, mu, A))
    mask_BT = torch.ones_like(logp_BT) if m is None else torch.tensor(m)
    return [logp_BT, behavior_BT, adv_B, mask_BT > 0]


def run(
    kind: str,
    logp: Rows,
    mu: Rows,
    A: list[float],
    m: Rows | None = None,
    dtype: torch.dtype = f64,
) -> tuple[Rows, Rows]:
    """Terms and their gradients in l."""
    logp_BT, *others = inputs(logp, mu, A, m, dtype)
    term_BT = LOSSES[kind](logp_BT.requires_grad_(), *others, **KEYWORDS[kind])
    (grad_BT,) = torch.autograd.grad(term_BT.sum(), logp_BT)
    return term_BT.tolist(), grad_BT.tolist()


def capped(kind: str, logp: Rows, mu: Rows, A: list[float]) -> list[list[bool]]:
    return CAPPED[kind](*inputs(logp, mu, A, None, f64), **KEYWORDS[kind]).tolist()


def at(rho: float, A: float, kind: str) -> tuple[float, float, bool]:
    """Term, gradient and cap of a single token whose ratio is rho, with b = -2."""
    logp, mu = [[math.log(rho) - 2.0]], [[-2.0]]
    term, grad = run(kind, logp, mu, [A])
    return term[0][0], grad[0][0], capped(kind, logp, mu, [A])[0][0]


# ---- gradient and sides of the clip ----


@pytest.mark.report(
    "B40",
    "open-instruct #1269",
    "CISPO without its log-prob: -A times a detached ratio, whose gradient is 0",
)
def test_cispo_has_its_log_prob() -> None:
    term, grad = run("cispo", [[-1.0]], [[-1.0]], [1.0])
    # rho = 1: term -(1 * 1 * -1) = 1, gradient -1
    assert term == [[1.0]] and grad == [[-1.0]]


@pytest.mark.report(
    "B41",
    "tianshou #433; PPOxFamily #95",
    "the second clip of the dual-clip form acts on A > 0, or has a constant below 1",
)
@pytest.mark.parametrize("kind", CLIPPED)
def test_the_objective_on_policy_is_the_advantage(kind: str) -> None:
    """We have no second clip, so the objective of A = 1, rho = 1 cannot become its constant, 3."""
    assert at(1.0, 1.0, kind) == (-1.0, -1.0, False)


@pytest.mark.report(
    "B42", "spinningup #255; GMPO #4", "the clip is taken to act above the band for A < 0 too"
)
@pytest.mark.parametrize("kind", CLIPPED)
@pytest.mark.parametrize(
    ("rho", "A", "is_clipped"),
    [(2.0, -1.0, False), (0.5, 1.0, False), (2.0, 1.0, True), (0.5, -1.0, True)],
)
def test_the_clip_acts_on_one_side(kind: str, rho: float, A: float, is_clipped: bool) -> None:
    """The reported token is the first: A = -1, rho = 2 has the gradient +2. The others are its mirror images."""
    term, grad, is_capped = at(rho, A, kind)
    assert is_capped is is_clipped
    if is_clipped:  # the term stays at the bound, 1.28 or 1.2 above and 0.8 below
        bound = 1 + KEYWORDS[kind]["clip_high"] if A > 0 else 0.8
        assert term == pytest.approx(-bound * A, rel=1e-12) and grad == 0.0
    else:  # -rho A, whose slope in l is itself
        assert term == pytest.approx(-rho * A, rel=1e-12)
        assert grad == pytest.approx(-rho * A, rel=1e-12)


@pytest.mark.report(
    "B47",
    "torchforge #571; TRL #2769; minimind #775",
    "the ratio is exp(l - sg(l)), always 1, although the data are off-policy",
)
def test_the_ratio_is_to_the_recorded_log_prob() -> None:
    # l = -1, b = -2: rho = e = 2.71828, below CISPO's cap of 5; term -rho A l = e
    term, grad = run("cispo", [[-1.0]], [[-2.0]], [1.0])
    assert term[0] == pytest.approx([math.e], rel=1e-12)
    assert grad[0] == pytest.approx([-math.e], rel=1e-12)
    # in bfloat16 e would be 2.71875: log-probs are raised before they are subtracted
    term, _ = run("cispo", [[-1.0]], [[-2.0]], [1.0], dtype=torch.bfloat16)
    assert term[0] == pytest.approx([math.e], rel=1e-6)
    # A = -1, which no upper clip touches: value and gradient e
    for kind in CLIPPED:
        assert run(kind, [[-1.0]], [[-2.0]], [-1.0])[1][0] == pytest.approx([math.e], rel=1e-12)
    # REINFORCE is the one that has no ratio: -A l = 1, gradient -1
    assert run("reinforce", [[-1.0]], [[-2.0]], [1.0]) == ([[1.0]], [[-1.0]])


@pytest.mark.report(
    "B52",
    "Liger #1082, #1088; TRL #6808, #7270, #7009",
    "a second code path silently drops the importance weight, or takes another loss",
)
@pytest.mark.parametrize("kind", RATIO)
def test_a_small_weight_is_not_dropped(kind: str) -> None:
    """Weight 0.01: the ratio of a token with A = 1, which no loss of ours clips from below."""
    _, grad, is_capped = at(0.01, 1.0, kind)
    assert grad == pytest.approx(-0.01, rel=1e-12) and not is_capped


@pytest.mark.report(
    "B55",
    "reasoning-from-scratch #243",
    "the product of a completion's ratios is clipped as if it were one token's",
)
def test_a_hundred_small_ratios_are_not_clipped() -> None:
    logp, mu, A = [[-1.0] * 100], [[-1.01] * 100], [1.0]
    # each ratio is e^0.01 = 1.01005, inside the band; their product is e = 2.718
    for kind in RATIO:
        _, grad = run(kind, logp, mu, A)
        assert grad[0] == pytest.approx([-1.01005] * 100, rel=1e-5), kind
        assert not any(capped(kind, logp, mu, A)[0])


@pytest.mark.report(
    "B56",
    "TRL #3120, #3757",
    "the share of clipped tokens is 0 with one update per batch, and is taken for a fault",
)
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", [*RATIO, "reinforce"])
def test_nothing_is_capped_on_policy(kind: str) -> None:
    for A in (1.0, -1.0):
        assert capped(kind, [[-1.0, -3.0]], [[-1.0, -3.0]], [A]) == [[False, False]]
    # and as the update reports it, b being the policy's own log-probs: 0, and not "unknown"
    spec, policy = recipe(loss={"kind": kind}), Bigram(1)
    train = doubled(prepare(rollouts(1), spec))
    train.behavior_logp_BT.copy_(policy.logp_BT(train.token_BT).detach())
    found = step(policy, train, spec)
    assert found["capped"] == 0.0 and found["kl"] == pytest.approx(0.0, abs=1e-14)


@pytest.mark.report("B56")
@pytest.mark.parametrize(
    ("kind", "rho", "A", "is_capped"),
    [
        ("cispo", 5.5, 1.0, True),  # above 5, and below 1 + 5
        ("cispo", 5.5, -1.0, True),
        ("dapo", 1.24, 1.0, False),  # within 0.28, if not within 0.2
        ("grpo", 1.24, 1.0, True),
        ("gspo", 1.24, 1.0, False),
        ("gspo", 1.5, 1.0, True),  # alone; beside a ratio of 1 it is sqrt(1.5) = 1.22
        ("dapo", 2.0, 0.0, False),  # nothing to lose
        ("gspo", 0.5, 0.0, False),
    ],
)
def test_off_policy_the_share_of_capped_tokens_is_not_zero(
    kind: str, rho: float, A: float, is_capped: bool
) -> None:
    assert at(rho, A, kind)[2] is is_capped
    # beside a token of ratio 1: the ratio of the sequence is sqrt(rho), which is inside gspo's band
    both = capped(kind, [[math.log(rho) - 2.0, -2.0]], [[-2.0, -2.0]], [A])
    assert both == [[is_capped and kind != "gspo", False]]


@pytest.mark.report("B56")
def test_a_token_at_the_bound_is_not_capped() -> None:
    """Bounds of 1/2 and 2, which floating point has exactly."""
    for rho, A in ((0.5, -1.0), (2.0, 1.0)):
        token = inputs([[math.log(rho)]], [[0.0]], [A], None, f64)
        assert (token[0] - token[1]).exp().item() == rho
        for kind in CLIPPED:
            assert not CAPPED[kind](*token, clip_low=0.5, clip_high=1.0).any()
        assert not CAPPED["cispo"](*token, eps_max=2.0).any()


# ---- overflow, and what stands under the mask ----


@pytest.mark.report(
    "B44",
    "OpenRLHF #525, #1160, #1335; TRL #3015, #6550, #6637",
    "an exponential overflows, and clipping its output leaves 0 * inf in the backward pass",
)
@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("kind", RATIO)
def test_a_log_ratio_of_a_thousand_has_a_finite_gradient(kind: str, dtype: torch.dtype) -> None:
    far, near = [[-1000.5]], [[-0.5]]
    # rho = e^1000, A = 1: clipped, nothing left; CISPO's is at its cap of 5
    assert run(kind, near, far, [1.0], dtype=dtype)[1] == [[-5.0 if kind == "cispo" else 0.0]]
    # rho = e^-1000 = 0 in either sign of A
    for A in (1.0, -1.0):
        assert run(kind, far, near, [A], dtype=dtype)[1] == [[0.0]]
    # rho = e^1000, A = -1: held at e^40, which is large but a number, whose square is one in float32
    (grad,) = run(kind, near, far, [-1.0], dtype=dtype)[1][0]
    assert grad == pytest.approx(5.0 if kind == "cispo" else math.exp(40.0), rel=2e-5)
    assert torch.isfinite(torch.tensor(grad, dtype=f32).square())
    # the divergence that we report, where ours is the only k3
    for d in (1000.0, -1000.0):
        kl = ratio_stats(np.array([d]))["kl"].value
        assert kl is not None and math.isfinite(kl)


@pytest.mark.report(
    "B45", "prime-rl #2085, #1329", "exp of a huge log-ratio is infinite in float32"
)
@pytest.mark.parametrize("kind", RATIO)
def test_a_log_ratio_of_a_hundred_is_bounded(kind: str) -> None:
    assert torch.tensor(100.0).exp().isinf()
    for A in (1.0, -1.0):
        term, grad = run(kind, [[-0.5]], [[-100.5]], [A], dtype=f32)
        assert math.isfinite(term[0][0]) and math.isfinite(grad[0][0])
        # CISPO: the cap, 5 |A|; its term -5 A l = 2.5 A
        assert kind != "cispo" or (term, grad) == ([[2.5 * A]], [[-5.0 * A]])


@pytest.mark.report(
    "B46",
    "SkyRL #1633; OpenRLHF #1240; verl #6361",
    "a NaN at a masked position survives the multiplication by the mask",
)
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("kind", [*RATIO, "reinforce"])
def test_what_is_masked_has_neither_value_nor_gradient(kind: str, garbage: float) -> None:
    clean = run(kind, [[-1.0]], [[0.0]], [1.0])
    for logp, mu in ([-1.0, -1.0], [0.0, garbage]), ([-1.0, garbage], [0.0, garbage]):
        term, grad = run(kind, [logp], [mu], [1.0], [[1, 0]])
        assert (term[0][1], grad[0][1]) == (0.0, 0.0)
        assert (term[0][:1], grad[0][:1]) == (clean[0][0], clean[1][0])
    # a row without any trained token may have an advantage that is no number
    assert run(kind, [[-1.0]], [[0.0]], [garbage], [[0]]) == ([[0.0]], [[0.0]])


@pytest.mark.report("B46")
@pytest.mark.parametrize("kind", RATIO)
def test_what_is_masked_is_not_capped(kind: str) -> None:
    arguments = inputs([[-1.0, -1.0]], [[-9.0, -9.0]], [1.0], [[1, 0]], f64)
    assert CAPPED[kind](*arguments, **KEYWORDS[kind]).tolist() == [[True, False]]


# ---- the ratio of a sequence ----


@pytest.mark.report(
    "B43",
    "TRL #3823; EasyR1 #596",
    "the loss of a sequence is spread over its tokens and then averaged over tokens",
)
def test_a_sequence_loss_keeps_its_weight_under_the_sample_mean() -> None:
    nothing, mask = [[-1.0] * 3] * 2, [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    # s = 1 in both rows: -s A is 4 on one token, and 0 on three
    term, _ = run("gspo", nothing, nothing, [-4.0, 0.0], mask)
    assert term == [[4.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    term_BT, mask_BT = torch.tensor(term), torch.tensor(mask) > 0
    w_BT = token_weights(mask_BT, torch.tensor([0, 1]), "sample_mean")
    # (4 + 0) / 2 = 2; a mean over tokens says 4 / 4 = 1
    assert (w_BT * term_BT).sum().item() == pytest.approx(2.0, rel=1e-6)


@pytest.mark.report(
    "B48",
    "Soup #723, #744",
    "log-ratios are centred for each column over the batch, masked ones included",
)
def test_a_masked_log_ratio_is_in_no_mean() -> None:
    def both(masked: float) -> tuple[Rows, Rows]:
        logp = [[-1.0, -1.0], [-1.0, masked]]
        return run("gspo", logp, [[-1.1, -0.9], [-1.2, -1.0]], [-1.0, -1.0], [[1, 1], [1, 0]])

    assert both(-1.0) == both(-7.0)
    # row 0: mean of 0.1 and -0.1 is 0, s = 1 on both; row 1: s = e^0.2 on its one token
    term, grad = both(-7.0)
    assert [*term[0], *term[1]] == pytest.approx([1.0, 1.0, math.exp(0.2), 0.0], rel=1e-12)
    # each of two tokens carries half of s, twice over (both terms): 1; the third e^0.2
    assert [*grad[0], *grad[1]] == pytest.approx([1.0, 1.0, math.exp(0.2), 0.0], rel=1e-12)


@pytest.mark.report("B49", "AReaL #1346", "the mean of a sequence takes its padding in")
def test_padding_is_in_no_mean_of_a_sequence() -> None:
    """In the report advantages are averaged; ours is one per row, so the log-ratio is what has a mean."""
    term, grad = run("gspo", [[-1.0] * 4], [[-3.0, -3.0, -9.0, -9.0]], [-1.0], [[1, 1, 0, 0]])
    # log-ratios 2, 2 | 8, 8: the mean of the trained ones is 2, and not 5
    assert term[0] == pytest.approx([math.exp(2.0), math.exp(2.0), 0.0, 0.0], rel=1e-12)
    # two terms, in each of which a token has a share of 1/2
    assert grad[0] == pytest.approx([math.exp(2.0), math.exp(2.0), 0.0, 0.0], rel=1e-12)


@pytest.mark.report(
    "B50",
    "NeMo-RL #2269; TRL #5814, #5815",
    "the correction of a sequence is exp of a sum, which shrinks with its length",
)
def test_a_long_sequence_has_the_ratio_of_its_mean() -> None:
    logp, mu = [[-1.003] * 1000], [[-1.0] * 1000]
    term, grad = run("gspo", logp, mu, [1.0])
    # e^-0.003 = 0.9970; the sum would give e^-3 = 0.0498
    assert term[0] == pytest.approx([-0.9970045] * 1000, rel=1e-6)
    # 1000 terms, in each of which a token has a share of 1/1000
    assert grad[0] == pytest.approx([-0.9970045] * 1000, rel=1e-6)
    # for A < 0 the sum would be far below 1 - 0.2 and count as clipped
    assert not any(capped("gspo", logp, mu, [-1.0])[0])
