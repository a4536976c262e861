"""The four losses: hand-worked gradients, and what must hold for any batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scalerl.losses import CAPPED, LOG_RATIO_MAX, LOSSES, log_ratio

KEYWORDS = {
    "cispo": {"eps_max": 5.0},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28},
    "grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "gspo": {"clip_low": 3e-3, "clip_high": 4e-3},
    "reinforce": {},
}
KINDS = sorted(KEYWORDS)
CLIPPED = ["dapo", "grpo", "gspo"]
f64 = torch.float64


def rows(*values: list[float], dtype: torch.dtype = f64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def trained(logp_BT: Tensor) -> Tensor:
    return torch.ones_like(logp_BT, dtype=torch.bool)


def term_and_grad(kind: str, logp_BT, behavior_BT, adv_B, mask_BT, **keywords):
    """The terms, and the gradient of their plain sum: every token has weight 1."""
    leaf_BT = logp_BT.clone().requires_grad_()
    term_BT = LOSSES[kind](leaf_BT, behavior_BT, adv_B, mask_BT, **(keywords or KEYWORDS[kind]))
    (grad_BT,) = torch.autograd.grad(term_BT.sum(), leaf_BT)
    return term_BT.detach(), grad_BT


def grad_at_ratio(kind: str, rho: float, adv: float) -> float:
    """d term / d logp of a single token with logp = -1 and ratio rho."""
    logp_BT = rows([-1.0])
    behavior_BT = logp_BT - math.log(rho)
    adv_B = torch.tensor([adv], dtype=f64)
    return term_and_grad(kind, logp_BT, behavior_BT, adv_B, trained(logp_BT))[1].item()


@st.composite
def batches(draw, shift: float = 2.0):
    """(logp, behavior, adv, mask) in float64: ragged rows with holes, some rows without tokens."""
    n_rows, n_tokens = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logp_BT = -5 * torch.rand(n_rows, n_tokens, dtype=f64, generator=generator) - 1e-3
    drift_BT = shift * torch.randn(n_rows, n_tokens, dtype=f64, generator=generator)
    adv_B = torch.randn(n_rows, dtype=f64, generator=generator)
    mask_BT = torch.rand(n_rows, n_tokens, generator=generator) < draw(st.sampled_from([0.3, 0.9]))
    return logp_BT, logp_BT - drift_BT, adv_B, mask_BT


# ---- values worked by hand ----


def test_cispo_value_and_gradient_by_hand():
    # rho = e^1 = 2.718, e^2 = 7.389 (capped at 5), e^-1 = 0.368 (no lower cap); A = 2
    logp_BT = rows([-1.0, -1.0, -3.0])
    behavior_BT = rows([-2.0, -3.0, -2.0])
    term_BT, grad_BT = term_and_grad(
        "cispo", logp_BT, behavior_BT, torch.tensor([2.0], dtype=f64), trained(logp_BT)
    )
    e = math.e
    # -min(rho, 5) * 2 * logp = 2e, 5 * 2 = 10, 6/e
    torch.testing.assert_close(term_BT, rows([2 * e, 10.0, 6 / e]))
    torch.testing.assert_close(grad_BT, rows([-2 * e, -10.0, -2 / e]))


def test_cispo_cap_is_absolute():
    # rho = 4.9 is below the cap of 5, rho = 5.5 is below 1 + 5 but capped
    assert grad_at_ratio("cispo", 4.9, 1.0) == pytest.approx(-4.9, rel=1e-12)
    assert grad_at_ratio("cispo", 5.5, 1.0) == pytest.approx(-5.0, rel=1e-12)
    assert grad_at_ratio("cispo", 5.5, -1.0) == pytest.approx(5.0, rel=1e-12)


def test_cispo_weight_carries_no_gradient():
    logp_BT = rows([-1.0, -0.5]).requires_grad_()
    behavior_BT = rows([-1.5, -0.2]).requires_grad_()
    adv_B = torch.tensor([1.0], dtype=f64)
    term_BT = LOSSES["cispo"](logp_BT, behavior_BT, adv_B, trained(logp_BT), eps_max=5.0)
    first, to_behavior = torch.autograd.grad(
        term_BT.sum(), [logp_BT, behavior_BT], allow_unused=True, materialize_grads=True
    )
    assert not first.requires_grad  # constant in logp: no second derivative
    assert to_behavior.eq(0).all()


@pytest.mark.parametrize(
    ("adv", "rho", "expected"),
    [
        # A > 0: clipped above 1.28 only
        (1.0, 0.5, -0.5),
        (1.0, 1.27, -1.27),
        (1.0, 1.29, 0.0),
        (1.0, 2.0, 0.0),
        # A < 0: clipped below 0.8 only
        (-1.0, 0.5, 0.0),
        (-1.0, 0.81, 0.81),
        (-1.0, 1.27, 1.27),
        (-1.0, 1.29, 1.29),
        (-1.0, 2.0, 2.0),
    ],
)
def test_surrogate_clips_the_side_that_the_sign_names(adv, rho, expected):
    assert grad_at_ratio("dapo", rho, adv) == pytest.approx(expected, rel=1e-12, abs=0)


def test_surrogate_value_of_a_clipped_token():
    # A = 1, rho = 2: -min(2, 1.28) = -1.28; A = -1, rho = 0.5: -min(-0.5, -0.8) = 0.8
    logp_BT = rows([-1.0], [-1.0])
    behavior_BT = rows([-1.0 - math.log(2)], [-1.0 + math.log(2)])
    adv_B = torch.tensor([1.0, -1.0], dtype=f64)
    term_BT, _ = term_and_grad("dapo", logp_BT, behavior_BT, adv_B, trained(logp_BT))
    torch.testing.assert_close(term_BT, rows([-1.28], [0.8]))


def test_gspo_takes_the_geometric_mean_over_trained_tokens():
    # log rho = 0.001, 0.003 and a masked 9: mean 0.002, s = e^0.002, inside the band (0.997, 1.004)
    logp_BT = rows([-1.0, -2.0, -3.0])
    behavior_BT = logp_BT - rows([0.001, 0.003, 9.0])
    mask_BT = torch.tensor([[True, True, False]])
    adv_B = torch.tensor([2.0], dtype=f64)
    term_BT, grad_BT = term_and_grad("gspo", logp_BT, behavior_BT, adv_B, mask_BT)
    s = math.exp(0.002)
    torch.testing.assert_close(term_BT, rows([-2 * s, -2 * s, 0.0]))
    # two terms of -2s, each with ds/dlogp = s/2: -2s on each token, not divided by the length again
    torch.testing.assert_close(grad_BT, rows([-2 * s, -2 * s, 0.0]))


def test_gspo_clips_the_whole_completion():
    # log rho = 0.03, 0: mean 0.015, s = 1.0151 > 1.004 with A > 0: no gradient, not even on token 2
    logp_BT = rows([-1.0, -2.0])
    behavior_BT = logp_BT - rows([0.03, 0.0])
    term_BT, grad_BT = term_and_grad(
        "gspo", logp_BT, behavior_BT, torch.tensor([1.0], dtype=f64), trained(logp_BT)
    )
    torch.testing.assert_close(term_BT, rows([-1.004, -1.004]))
    assert grad_BT.eq(0).all()


def test_reinforce_ignores_the_generator():
    logp_BT = rows([-1.0, -3.0])
    term_BT, grad_BT = term_and_grad(
        "reinforce", logp_BT, logp_BT - 4, torch.tensor([-0.5], dtype=f64), trained(logp_BT)
    )
    # -(-0.5) * -1 = -0.5, -(-0.5) * -3 = -1.5
    torch.testing.assert_close(term_BT, rows([-0.5, -1.5]))
    torch.testing.assert_close(grad_BT, rows([0.5, 0.5]))


# ---- properties ----


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(batches())
def test_on_policy_all_losses_have_the_gradient_of_reinforce(kind, batch):
    logp_BT, _, adv_B, mask_BT = batch
    grad_BT = term_and_grad(kind, logp_BT, logp_BT.clone(), adv_B, mask_BT)[1]
    torch.testing.assert_close(grad_BT, -adv_B[:, None] * mask_BT, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(batches(), st.sampled_from([0.0, 1e30, math.nan, math.inf, -math.inf]))
def test_garbage_under_the_mask_changes_no_bit(kind, batch, garbage):
    logp_BT, behavior_BT, adv_B, mask_BT = batch
    spoilt_B = torch.where(mask_BT.any(dim=1), adv_B, garbage)  # a row without tokens has no A
    clean = term_and_grad(kind, logp_BT, behavior_BT, adv_B, mask_BT)
    spoilt = term_and_grad(
        kind,
        torch.where(mask_BT, logp_BT, garbage),
        torch.where(mask_BT, behavior_BT, -garbage),
        spoilt_B,
        mask_BT,
    )
    for clean_BT, spoilt_BT in zip(clean, spoilt, strict=True):
        assert torch.equal(clean_BT, spoilt_BT)
        assert spoilt_BT[~mask_BT].eq(0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, f64])
@pytest.mark.parametrize("adv", [1.0, -1.0])
@pytest.mark.parametrize("shift", [20.0, -20.0, 89.0, -89.0, 710.0, -710.0, 1e3, -1e3])
def test_extreme_log_ratio_gives_the_limit(kind, dtype, adv, shift):
    logp_BT = rows([-1.0], dtype=dtype)
    adv_B = torch.tensor([adv], dtype=dtype)
    term_BT, grad_BT = term_and_grad(kind, logp_BT, logp_BT - shift, adv_B, trained(logp_BT))
    held = math.exp(min(shift, LOG_RATIO_MAX))
    if kind == "reinforce":
        expected = -adv
    elif kind == "cispo":
        expected = -adv * min(held, 5.0)
    elif adv * shift > 0:
        expected = 0.0  # beyond the clip on the side it acts
    else:
        expected = -adv * held
    assert term_BT.isfinite().all()
    # logp - behavior is rounded to 1e3 * 2^-24 = 6e-5 in float32, and exp turns that into a factor
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    assert grad_BT.item() == pytest.approx(expected, rel=tolerance, abs=1e-38)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_raised_before_the_subtraction(kind, dtype):
    # -20.3 and -12.3 are odd multiples of the spacing: a bf16 difference is off by per cents
    logp_BT = rows([-20.3, -12.3, -0.7], dtype=dtype)
    behavior_BT = rows([-19.9, -12.1, -1.1], dtype=dtype)
    adv_B = torch.tensor([0.7], dtype=dtype)
    mask_BT = trained(logp_BT)
    low_BT = LOSSES[kind](logp_BT, behavior_BT, adv_B, mask_BT, **KEYWORDS[kind])
    high_BT = LOSSES[kind](
        logp_BT.float(), behavior_BT.float(), adv_B.float(), mask_BT, **KEYWORDS[kind]
    )
    assert low_BT.dtype == torch.float32
    assert torch.equal(low_BT, high_BT)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(batches())
def test_float64_stays_and_inputs_are_untouched(kind, batch):
    before = [x.clone() for x in batch]
    term_BT, _ = term_and_grad(kind, *batch)
    assert term_BT.dtype == f64
    assert all(torch.equal(x, y) for x, y in zip(batch, before, strict=True))


@settings(max_examples=20, deadline=None)
@given(batches())
def test_cispo_gradient_is_the_truncated_ratio(batch):
    logp_BT, behavior_BT, adv_B, mask_BT = batch
    grad_BT = term_and_grad("cispo", *batch)[1]
    rho_BT = (logp_BT - behavior_BT).exp()
    expected_BT = -adv_B[:, None] * torch.minimum(rho_BT, torch.tensor(5.0, dtype=f64)) * mask_BT
    torch.testing.assert_close(grad_BT, expected_BT, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", CLIPPED)
@settings(max_examples=15, deadline=None)
@given(batches(shift=0.5))
def test_ratio_losses_agree_with_finite_differences(kind, batch):
    logp_BT, behavior_BT, adv_B, mask_BT = batch
    wide = {"clip_low": 0.3, "clip_high": 0.4}
    grad_BT = term_and_grad(kind, *batch, **wide)[1]
    step = 1e-6
    for index in mask_BT.nonzero().tolist():
        nudge_BT = torch.zeros_like(logp_BT)
        nudge_BT[tuple(index)] = step
        up, down = (
            LOSSES[kind](logp_BT + s * nudge_BT, behavior_BT, adv_B, mask_BT, **wide).sum()
            for s in (1, -1)
        )
        # A kink within the step of a random ratio would be a one-in-a-million draw.
        slope = ((up - down) / (2 * step)).item()
        assert grad_BT[tuple(index)].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@settings(max_examples=20, deadline=None)
@given(batches(shift=0.01), st.floats(-50, 50))
def test_gspo_sees_only_the_mean_of_the_log_ratio(batch, z):
    logp_BT, behavior_BT, adv_B, mask_BT = batch
    shift_BT = torch.zeros_like(logp_BT)
    for row, mask_T in enumerate(mask_BT):
        where = mask_T.nonzero().flatten()
        if len(where) >= 2:
            shift_BT[row, where[0]], shift_BT[row, where[-1]] = z, -z
    before = term_and_grad("gspo", *batch)
    after = term_and_grad("gspo", logp_BT, behavior_BT + shift_BT, adv_B, mask_BT)
    for x_BT, y_BT in zip(before, after, strict=True):
        torch.testing.assert_close(x_BT, y_BT, rtol=1e-10, atol=1e-12)
    for grad_T, mask_T in zip(after[1], mask_BT, strict=True):
        assert len(set(grad_T[mask_T].tolist())) <= 1  # uniform along the completion


@pytest.mark.parametrize("kind", KINDS)
def test_log_ratio_in_float32_follows_float64(kind):
    generator = torch.Generator().manual_seed(0)
    logp_BT = -20 * torch.rand(8, 32, dtype=f64, generator=generator)
    behavior_BT = logp_BT - torch.randn(8, 32, dtype=f64, generator=generator)
    adv_B = torch.randn(8, dtype=f64, generator=generator)
    mask_BT = trained(logp_BT)
    fine = term_and_grad(kind, logp_BT, behavior_BT, adv_B, mask_BT)[1]
    coarse = term_and_grad(kind, logp_BT.float(), behavior_BT.float(), adv_B.float(), mask_BT)[1]
    torch.testing.assert_close(coarse.double(), fine, rtol=1e-4, atol=1e-6)


# ---- which tokens are capped ----


def capped(kind: str, logp_BT, behavior_BT, adv_B, mask_BT) -> list[list[bool]]:
    return CAPPED[kind](logp_BT, behavior_BT, adv_B, mask_BT, **KEYWORDS[kind]).tolist()


def test_capped_tokens_by_hand():
    rho_BT = rows([0.5, 0.9, 1.25, 4.0, 6.0, 6.0])
    logp_BT = rows([-1.0] * 6)
    behavior_BT = logp_BT - rho_BT.log()
    mask_BT = torch.tensor([[True, True, True, True, True, False]])
    up_B, down_B = torch.tensor([1.0], dtype=f64), torch.tensor([-1.0], dtype=f64)
    none = [[False] * 6]
    rho_6 = [[False, False, False, False, True, False]]
    assert capped("cispo", logp_BT, behavior_BT, up_B, mask_BT) == rho_6
    assert capped("cispo", logp_BT, behavior_BT, down_B, mask_BT) == rho_6
    # 1.25 is beyond GRPO's 1.2 and within DAPO's 1.28
    above = [[False, False, True, True, True, False]]
    assert capped("grpo", logp_BT, behavior_BT, up_B, mask_BT) == above
    above[0][2] = False
    assert capped("dapo", logp_BT, behavior_BT, up_B, mask_BT) == above
    below = [[True, False, False, False, False, False]]
    assert capped("dapo", logp_BT, behavior_BT, down_B, mask_BT) == below
    assert capped("dapo", logp_BT, behavior_BT, 0 * up_B, mask_BT) == none
    # mean log rho = log(0.5 * 0.9 * 1.25 * 4 * 6) / 5 = log(13.5) / 5 > 0: clipped for A > 0 alone
    assert capped("gspo", logp_BT, behavior_BT, up_B, mask_BT) == mask_BT.tolist()
    assert capped("gspo", logp_BT, behavior_BT, down_B, mask_BT) == none
    assert capped("reinforce", logp_BT, behavior_BT, up_B, mask_BT) == none


@pytest.mark.parametrize("kind", CLIPPED)
@settings(max_examples=20, deadline=None)
@given(batches())
def test_a_token_is_clipped_exactly_if_it_has_no_gradient(kind, batch):
    _, _, adv_B, mask_BT = batch
    grad_BT = term_and_grad(kind, *batch)[1]
    silent_BT = mask_BT & grad_BT.eq(0) & adv_B.ne(0)[:, None]
    assert capped(kind, *batch) == silent_BT.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_under_the_mask_is_never_capped(kind):
    logp_BT = rows([-1.0, math.nan, math.inf])
    behavior_BT = rows([-1.0, -math.inf, -1e30])
    mask_BT = torch.tensor([[True, False, False]])
    assert capped(kind, logp_BT, behavior_BT, torch.ones(1, dtype=f64), mask_BT) == [[False] * 3]


def test_masked_tokens_are_not_capped_by_a_cap_below_one():
    # a masked token stands at rho = 1, above this cap
    one_BT = rows([-1.0, -1.0])
    mask_BT = torch.tensor([[True, False]])
    capped_BT = CAPPED["cispo"](one_BT, one_BT, torch.ones(1, dtype=f64), mask_BT, eps_max=0.5)
    assert capped_BT.tolist() == [[True, False]]


def test_log_ratio_is_trainer_less_generator():
    mask_BT = torch.tensor([[True, False]])
    d_BT = log_ratio(rows([-1.0, math.nan]), rows([-3.0, 7.0]), mask_BT)
    assert d_BT.tolist() == [[2.0, 0.0]]


def test_tables_name_the_same_kinds():
    assert set(LOSSES) == set(CAPPED) == set(KEYWORDS)
    assert LOSSES["dapo"] is LOSSES["grpo"]
