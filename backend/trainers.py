"""The trainer ranks as one: they start, step, send and save together."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from backend.remote import Gone, Remote
from backend.sharding import split_rows
from scalerl.batch import TrainBatch
from scalerl.errors import WorldFailed
from scalerl.metrics import Mean, Metric, merge_all, ratio_stats

T = TypeVar("T")


class Trainers:
    """All ranks; a call is made on every one of them, as each takes part in the others' collectives."""

    def __init__(self, ranks: list[Remote]) -> None:
        self.ranks = ranks
        self.layout: dict[str, Any] = {}
        self.kind = ""

    async def start(self, checkpoint: Path | None) -> None:
        """Bring the ranks up, with the start policy or with what a checkpoint holds."""
        address = await self._first([self.ranks[0].call("address")])
        found = await self._all("start", address[0])
        self.layout, self.kind = found[0]["layout"], found[0]["kind"]
        if checkpoint is not None:
            await self._all("load", checkpoint)

    async def update(self, batch: TrainBatch, version: int) -> dict[str, Metric]:
        """One optimiser step over all ranks."""
        rows = await asyncio.to_thread(split_rows, batch, len(self.ranks))
        return merge_all(await self._each("update", [(part, version) for part in rows]))

    async def divergence(self, batches: Mapping[int, TrainBatch]) -> dict[int, Mean]:
        """KL(trainer || generator) of each generator's own tokens, by its slot."""
        found: dict[int, Mean] = {}
        for slot, batch in batches.items():
            parts = split_rows(batch, len(self.ranks))
            ratios = await self._each("log_ratios", [(part,) for part in parts])
            log_ratio_N = np.array([ratio for rank in ratios for row in rank for ratio in row])
            kl = ratio_stats(log_ratio_N)["kl"]
            assert isinstance(kl, Mean)
            found[slot] = kl
        return found

    async def head(self, seed: int, rows: int) -> list[list[float]]:
        """Logits of seeded states; every rank has the same head."""
        return (await self._all("head", seed, rows))[0]

    async def push(self, version: int, engines: Collection[int]) -> dict[int, str | None]:
        """Send the weights to engines; the sentence why not, for each that did not acknowledge."""
        shares = [
            ([e for e in sorted(engines) if e % len(self.ranks) == rank],)
            for rank in range(len(self.ranks))
        ]
        sent = await self._each("push", [(version, *share) for share in shares])
        return {engine: why for rank in sent for engine, why in rank.items()}

    async def connect(self, engine: int, remote: Remote) -> None:
        """Open the channel between an engine and the rank that feeds it."""
        rank = self.ranks[engine % len(self.ranks)]
        [(host, port)] = await self._first([rank.call("endpoint")])
        ours = self._first([rank.call("connect", engine, remote.name, host, port)])
        theirs = remote.call("connect", self.layout, self.kind, host, port)
        ends = [asyncio.ensure_future(ours), asyncio.ensure_future(theirs)]
        try:
            await asyncio.gather(*ends)
        finally:
            for end in ends:  # the one that hears nothing of the other's failure
                end.cancel()

    async def disconnect(self, engine: int) -> None:
        await self._first([self.ranks[engine % len(self.ranks)].call("disconnect", engine)])

    def save(self, folder: Path) -> None:
        """Write model and moments, each rank its own part; waits for it."""
        try:
            for result in [rank.begin("save", folder) for rank in self.ranks]:
                result()
        except Gone as error:
            raise _unreplaced(error) from error

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return await self._each(method, [args] * len(self.ranks))

    async def _each(self, method: str, args: list[tuple[Any, ...]]) -> list[Any]:
        pairs = zip(self.ranks, args, strict=True)
        return await self._first([rank.call(method, *given) for rank, given in pairs])

    async def _first(self, calls: list[Any]) -> list[Any]:
        """All results, or the first failure at once: the other ranks may be waiting for the one that failed."""
        tasks = [asyncio.ensure_future(_awaited(call)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        except Gone as error:
            raise _unreplaced(error) from error
        finally:
            for task in tasks:
                task.cancel()


def _unreplaced(error: Gone) -> WorldFailed:
    return WorldFailed(f"{error}: a trainer cannot be replaced in mid-run, so resume it")


async def _awaited(call: Any) -> Any:
    return await call
