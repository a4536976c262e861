"""Advantages: centring by group id, three normalisations, and what counts as zero."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scalerl.advantages import advantages

f64 = torch.float64
MODES = ["batch", "prompt", "none"]


def adv(rewards: list[float], groups: list[int], mode, dtype: torch.dtype = f64) -> Tensor:
    return advantages(torch.tensor(rewards, dtype=dtype), torch.tensor(groups), mode)


def assert_adv(actual_B: Tensor, expected: list[float], rtol: float = 1e-12) -> None:
    torch.testing.assert_close(
        actual_B, torch.tensor(expected, dtype=actual_B.dtype), rtol=rtol, atol=1e-14
    )


@st.composite
def reward_batches(draw):
    """(reward, group) in float64: odd group sizes, interleaved ids, some constant groups."""
    values = draw(st.sampled_from([(-1.0, 1.0), (0.0, 1.0), (0.1, 0.3, 0.7), (1.0,)]))
    ids = draw(st.lists(st.sampled_from([7, -3, 10**15, 0]), min_size=1, max_size=12))
    rewards = draw(
        st.lists(st.sampled_from(values), min_size=len(ids), max_size=len(ids)),
    )
    return torch.tensor(rewards, dtype=f64), torch.tensor(ids)


def test_batch_divides_by_the_std_of_all_centred_rewards():
    # centred +-0.5 and +-5; std = sqrt((0.25 + 0.25 + 25 + 25) / 4) = sqrt(12.625) = 3.55317
    std = math.sqrt(12.625)
    expected = [0.5 / std, -0.5 / std, 5 / std, -5 / std]
    assert_adv(adv([1, 0, 10, 0], [5, 5, 9, 9], "batch"), expected)


def test_prompt_divides_by_the_std_of_the_group():
    # each group is +- its own std
    assert_adv(adv([1, 0, 10, 0], [5, 5, 9, 9], "prompt"), [1, -1, 1, -1])


def test_none_only_centres():
    assert_adv(adv([1, 0, 1, 1], [2, 2, 2, 2], "none"), [0.25, -0.75, 0.25, 0.25])


def test_std_is_of_the_population():
    # {+1, -1}: std 1 over n, sqrt(2) over n - 1
    for mode in ("batch", "prompt"):
        assert_adv(adv([1, -1], [0, 0], mode), [1, -1])


@pytest.mark.parametrize("passes", [1, 3, 5])
def test_prompt_closed_form_for_a_binary_reward(passes):
    # k of G pass: sqrt((G - k) / k) for a pass, -sqrt(k / (G - k)) for a fail
    size = 6
    high, low = math.sqrt((size - passes) / passes), -math.sqrt(passes / (size - passes))
    rewards = [1.0] * passes + [-1.0] * (size - passes)
    expected = [high] * passes + [low] * (size - passes)
    assert_adv(adv(rewards, [4] * size, "prompt"), expected)


def test_constant_group_counts_in_the_batch_std():
    # centred 0, 0, 0.5, -0.5; std = sqrt(0.5 / 4) = sqrt(0.125); `prepare` may drop it before
    expected = [0, 0, 0.5 / math.sqrt(0.125), -0.5 / math.sqrt(0.125)]
    assert_adv(adv([1, 1, 1, 0], [0, 0, 1, 1], "batch"), expected)


@pytest.mark.parametrize("mode", MODES)
def test_interleaved_ids_are_grouped_by_id(mode):
    # p all 1, q all 0, order p, q, p, q: grouped by position it would be +-0.5
    assert adv([1, 0, 1, 0], [10**12, -4, 10**12, -4], mode).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, f64])
def test_constant_group_is_exactly_zero(mode, dtype):
    # the float64 mean of several 0.1 is not 0.1: a std of 1e-17 must not be divided by
    for size in (3, 6, 10):
        assert adv([0.1] * size, [3] * size, mode, dtype).tolist() == [0.0] * size


@pytest.mark.parametrize("mode", MODES)
def test_singleton_is_zero(mode):
    assert adv([7.0, 1.0, -1.0], [1, 2, 2], mode)[0].item() == 0.0


@pytest.mark.parametrize("tiny", [1e-9, 1e-200])
def test_a_tiny_spread_is_a_real_one(tiny):
    # decided by max == min, not by the size of the std; nor may its square underflow
    for mode in ("batch", "prompt"):
        assert_adv(adv([tiny, 0, 0, tiny], [0, 0, 0, 0], mode), [1, -1, -1, 1])


@pytest.mark.parametrize("mode", MODES)
def test_large_offset_in_float32(mode):
    # 1e6 + {0, 1} are exact in float32, their squares are not
    plain = adv([0, 1, 1, 0, 0, 1], [0, 0, 0, 1, 1, 1], mode, f64)
    offset = adv(
        [1e6, 1e6 + 1, 1e6 + 1, 1e6, 1e6, 1e6 + 1], [0, 0, 0, 1, 1, 1], mode, torch.float32
    )
    torch.testing.assert_close(offset.double(), plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, f64])
def test_dtype_is_that_of_the_reward(dtype):
    assert adv([1, -1], [0, 0], "batch", dtype).dtype == dtype


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", MODES)
def test_a_reward_that_is_no_number_is_named(bad, mode):
    with pytest.raises(ValueError, match=rf"reward_B\[2\] = {bad}: .*\(and 1 more"):
        adv([1.0, 0.0, bad, bad], [0, 0, 1, 1], mode)


@pytest.mark.parametrize("mode", MODES)
def test_empty_batch(mode):
    empty_B = advantages(torch.zeros(0), torch.zeros(0, dtype=torch.int64), mode)
    assert empty_B.shape == (0,)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None)
@given(reward_batches(), st.floats(0.5, 3.0), st.sampled_from([0.0, 0.25, -8.0]))
def test_shift_scale_negation_and_group_sum(mode, batch, scale, shift):
    reward_B, group_B = batch
    adv_B = advantages(reward_B, group_B, mode)
    for group in group_B.unique():
        assert abs(adv_B[group_B == group].sum().item()) < 1e-11
    torch.testing.assert_close(advantages(-reward_B, group_B, mode), -adv_B)
    # another shift for every prompt
    moved_B = advantages(reward_B + shift * (group_B % 5), group_B, mode)
    factor = scale if mode == "none" else 1.0
    torch.testing.assert_close(moved_B, adv_B, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(advantages(scale * reward_B, group_B, mode), factor * adv_B)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None)
@given(reward_batches(), st.randoms(use_true_random=False))
def test_order_of_rows_and_names_of_groups_do_not_matter(mode, batch, random):
    reward_B, group_B = batch
    adv_B = advantages(reward_B, group_B, mode)
    order = list(range(len(reward_B)))
    random.shuffle(order)
    torch.testing.assert_close(advantages(reward_B[order], group_B[order], mode), adv_B[order])
    torch.testing.assert_close(advantages(reward_B, -3 * group_B + 11, mode), adv_B)


@settings(max_examples=25, deadline=None)
@given(reward_batches())
def test_batch_has_unit_std_and_survives_replication(batch):
    reward_B, group_B = batch
    adv_B = advantages(reward_B, group_B, "batch")
    if adv_B.any():
        assert adv_B.square().mean().item() == pytest.approx(1.0, rel=1e-10)
    twice_B = advantages(reward_B.repeat(2), torch.cat([group_B, group_B + 1]), "batch")
    # Only with n, not n - 1, in the std. The ids + 1 are new: no id is another's successor.
    torch.testing.assert_close(twice_B, adv_B.repeat(2), rtol=1e-10, atol=1e-12)
