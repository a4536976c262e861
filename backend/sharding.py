"""Rows of a batch to trainer ranks, what a packed row costs, and weights to the buckets of a push."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from backend.wire import Layout
from scalerl.batch import TrainBatch


def packed_length_B(mask_BT: Tensor) -> Tensor:
    """Tokens that predict a marked one, and those before them, [B] int64: 1 for a row without a mark."""
    place_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    return (mask_BT * place_T).amax(1).clamp(min=1)


def split_rows(batch: TrainBatch, ranks: int) -> list[TrainBatch]:
    """Each row to one of `ranks`: the longest first, always to the rank with the fewest tokens so far.

    A rank may get no row. Rows of one rank keep their order, and equal batches are split equally.
    """
    length_B = packed_length_B(batch.mask_BT)
    rows_of: list[list[int]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for row in length_B.argsort(descending=True, stable=True).tolist():
        least = tokens.index(min(tokens))
        rows_of[least].append(row)
        tokens[least] += int(length_B[row])
    return [batch.select(torch.tensor(sorted(rows), dtype=torch.long)) for rows in rows_of]


def fill_buckets(tensors: Iterable[Tensor], layout: Layout) -> Iterator[Tensor]:
    """The flat uint8 buckets of `layout`, each a tensor of its own, from its tensors in order.

    A tensor is taken when the first bucket that holds some of it is due, and kept until the last.
    """
    cuts = iter(layout.buckets())
    bucket, start, stop = torch.empty(0), 0, 0
    for tensor, (place, _) in zip(tensors, layout.spans, strict=True):
        byte_N = tensor.contiguous().view(-1).view(torch.uint8)
        while byte_N.numel():
            if place >= stop:
                if stop:
                    yield bucket
                start, stop = next(cuts)
                bucket = byte_N.new_zeros(stop - start)
            part_N, byte_N = byte_N[: stop - place], byte_N[stop - place :]
            bucket[place - start : place - start + len(part_N)] = part_N
            place += len(part_N)
    if stop:
        yield bucket
