"""Rows to ranks, and tensors to buckets."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.sharding import fill_buckets, packed_length_B, split_rows
from backend.wire import Layout
from scalerl.batch import TrainBatch


def batch(lengths: list[int]) -> TrainBatch:
    """Rows whose last mark is at that place, 0 for none; the advantage is the row's number."""
    shape = (len(lengths), 12)
    mask_BT = torch.zeros(shape, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask_BT[row, max(1, length - 2) : length + 1] = length > 0
    return TrainBatch(
        token_BT=torch.zeros(shape, dtype=torch.long),
        mask_BT=mask_BT,
        behavior_logp_BT=torch.zeros(shape),
        version_BT=torch.zeros(shape, dtype=torch.long),
        adv_B=torch.arange(len(lengths)).float(),
        weight_BT=mask_BT.float(),
    )


LENGTHS = st.lists(st.integers(0, 11), max_size=30)
RANKS = st.integers(1, 6)


def test_a_packed_row_ends_with_what_predicts_its_last_mark() -> None:
    assert packed_length_B(batch([0, 1, 5, 11]).mask_BT).tolist() == [1, 1, 5, 11]


@given(LENGTHS, RANKS)
def test_every_row_is_on_one_rank(lengths: list[int], ranks: int) -> None:
    whole = batch(lengths)
    parts = split_rows(whole, ranks)
    assert len(parts) == ranks
    rows = [int(row) for part in parts for row in part.adv_B]
    assert sorted(rows) == list(range(whole.rows))
    for part in parts:
        assert part.adv_B.tolist() == sorted(part.adv_B.tolist())
        assert torch.equal(part.mask_BT, whole.mask_BT[part.adv_B.long()])


@given(LENGTHS, RANKS)
def test_ranks_differ_by_no_more_than_one_row(lengths: list[int], ranks: int) -> None:
    tokens = [
        int(packed_length_B(part.mask_BT).sum()) for part in split_rows(batch(lengths), ranks)
    ]
    longest = max((max(1, length) for length in lengths), default=0)
    assert max(tokens) - min(tokens) <= longest


@given(LENGTHS, RANKS)
def test_equal_batches_are_split_equally(lengths: list[int], ranks: int) -> None:
    first, second = (
        [part.adv_B.tolist() for part in split_rows(batch(lengths), ranks)] for _ in range(2)
    )
    assert first == second


SHAPES = st.lists(
    st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6
)


@given(SHAPES, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 20), st.data())
def test_buckets_hold_every_tensor(
    shapes: list[tuple[int, ...]], dtype: str, units: int, data: st.DataObject
) -> None:
    names = tuple(f"w{i}" for i in range(len(shapes)))
    layout = Layout(names, (dtype,) * len(shapes), tuple(shapes), 16 * units)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    tensors = [torch.randn(s, generator=generator).to(getattr(torch, dtype)) for s in shapes]
    buckets = list(fill_buckets(iter(tensors), layout))
    assert [len(b) for b in buckets] == [stop - start for start, stop in layout.buckets()]
    whole = torch.cat([torch.empty(0, dtype=torch.uint8), *buckets])
    for (name, view), wanted, expected in zip(layout.views(whole), names, tensors, strict=True):
        assert name == wanted and torch.equal(view, expected)


def test_a_tensor_is_taken_when_its_bucket_is_due() -> None:
    taken: list[int] = []

    def tensors():
        for i in range(4):
            taken.append(i)
            yield torch.full((8,), float(i))

    layout = Layout(("a", "b", "c", "d"), ("float32",) * 4, ((8,),) * 4, 64)
    seen = [(len(bucket), len(taken)) for bucket in fill_buckets(tensors(), layout)]
    assert seen == [(64, 3), (64, 4)]
