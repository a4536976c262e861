"""Token weights: what weighs the same, and that any split of a batch adds up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.reduction import token_weights

HOWS = ["prompt_mean", "sample_mean", "token_mean"]


def weights(mask: list[list[int]], groups: list[int], how) -> list[list[float]]:
    return token_weights(torch.tensor(mask, dtype=torch.bool), torch.tensor(groups), how).tolist()


@st.composite
def masks(draw):
    n_rows, n_tokens = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    mask_BT = torch.rand(n_rows, n_tokens, generator=generator) < draw(st.sampled_from([0.15, 0.8]))
    ids = draw(st.lists(st.sampled_from([5, -2, 10**14]), min_size=n_rows, max_size=n_rows))
    return mask_BT, torch.tensor(ids)


def test_three_means_by_hand():
    # rows of 1, 3 and 2 tokens; the first two are one prompt
    mask = [[1, 0, 0], [1, 1, 1], [0, 1, 1]]
    groups = [8, 8, 3]
    third = pytest.approx(1 / 3)
    # P = 2 prompts of 4 and 2 tokens: 1/8, 1/8, 1/4
    assert weights(mask, groups, "prompt_mean") == [
        [0.125, 0, 0],
        [0.125, 0.125, 0.125],
        [0, 0.25, 0.25],
    ]
    # N = 3 completions: 1/3, 1/9, 1/6
    sample = weights(mask, groups, "sample_mean")
    assert sample[0] == [third, 0, 0]
    assert sample[1] == pytest.approx([1 / 9] * 3)
    assert sample[2] == pytest.approx([0, 1 / 6, 1 / 6])
    # 6 tokens
    assert weights(mask, groups, "token_mean")[1] == pytest.approx([1 / 6] * 3)


@pytest.mark.parametrize(
    ("how", "groups", "expected"),
    [
        ("sample_mean", [0, 1], 2.0),  # (4/1 + 0/3) / 2
        ("prompt_mean", [0, 1], 2.0),
        ("token_mean", [0, 1], 1.0),  # 4 / 4
        ("prompt_mean", [0, 0], 1.0),
    ],
)
def test_unequal_lengths_tell_the_modes_apart(how, groups, expected):
    # one row of 1 token with term 4, one of 3 tokens with term 0
    mask_BT = torch.tensor([[True, False, False], [True, True, True]])
    term_BT = torch.tensor([[4.0, 9.0, 9.0], [0.0, 0.0, 0.0]])
    w_BT = token_weights(mask_BT, torch.tensor(groups), how)
    assert (w_BT * term_BT).sum().item() == expected


def test_rows_and_prompts_without_tokens_are_in_no_denominator():
    # rows 1 and 2 have no token; row 2 is all there is of its prompt
    mask = [[1, 1], [0, 0], [0, 0], [1, 0]]
    groups = [0, 0, 1, 2]
    # N = 2: 1/4 and 1/2; P = 2: the same
    for how in ("sample_mean", "prompt_mean"):
        assert weights(mask, groups, how) == [[0.25, 0.25], [0, 0], [0, 0], [0.5, 0]]


@pytest.mark.parametrize("how", HOWS)
def test_nothing_trained_gives_zeros(how):
    assert weights([[0, 0], [0, 0]], [0, 1], how) == [[0, 0], [0, 0]]
    w_BT = token_weights(
        torch.zeros(0, 3, dtype=torch.bool), torch.zeros(0, dtype=torch.int64), how
    )
    assert w_BT.shape == (0, 3)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=25, deadline=None)
@given(masks())
def test_sums_to_one_on_trained_tokens_alone(how, batch):
    mask_BT, group_B = batch
    w_BT = token_weights(mask_BT, group_B, how)
    assert w_BT.dtype == torch.float32
    assert w_BT[~mask_BT].eq(0).all()
    assert w_BT[mask_BT].gt(0).all()
    expected = 1.0 if mask_BT.any() else 0.0
    assert w_BT.double().sum().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=25, deadline=None)
@given(masks(), st.randoms(use_true_random=False))
def test_order_names_and_padding_do_not_matter(how, batch, random):
    mask_BT, group_B = batch
    w_BT = token_weights(mask_BT, group_B, how)
    order = list(range(len(group_B)))
    random.shuffle(order)
    assert torch.equal(token_weights(mask_BT[order], group_B[order], how), w_BT[order])
    assert torch.equal(token_weights(mask_BT, 7 - group_B, how), w_BT)
    padded_BT = torch.nn.functional.pad(mask_BT, (0, 4))
    assert torch.equal(token_weights(padded_BT, group_B, how)[:, : mask_BT.shape[1]], w_BT)


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=25, deadline=None)
@given(masks())
def test_a_copy_of_the_batch_halves_every_weight(how, batch):
    mask_BT, group_B = batch
    w_BT = token_weights(mask_BT, group_B, how)
    twice_BT = token_weights(mask_BT.repeat(2, 1), torch.cat([group_B, group_B + 1]), how)
    torch.testing.assert_close(twice_BT, (w_BT / 2).repeat(2, 1))


@settings(max_examples=20, deadline=None)
@given(masks())
def test_where_the_means_coincide(batch):
    mask_BT, group_B = batch
    one_prompt, own_prompt = torch.zeros_like(group_B), torch.arange(len(group_B))
    token_BT = token_weights(mask_BT, group_B, "token_mean")
    sample_BT = token_weights(mask_BT, group_B, "sample_mean")
    assert torch.equal(token_weights(mask_BT, one_prompt, "prompt_mean"), token_BT)
    assert torch.equal(token_weights(mask_BT, own_prompt, "prompt_mean"), sample_BT)


def test_counts_stay_exact_on_long_rows():
    # 70,000 tokens overflow float16, and stall a bf16 count at 256
    w_BT = token_weights(torch.ones(1, 70_000, dtype=torch.bool), torch.tensor([0]), "prompt_mean")
    assert w_BT[0, 0].item() == pytest.approx(1 / 70_000, rel=1e-7)
