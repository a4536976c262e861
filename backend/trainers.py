"""The trainer ranks as one: they start, step, send and save together."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backend.remote import Gone, Remote
from backend.sharding import split_rows
from scalerl.batch import RolloutBatch, TrainBatch
from scalerl.errors import GeneratorLost, WorldFailed
from scalerl.metrics import Mean, Metric, merge_all, ratio_stats
from scalerl.rollout import Group


class Trainers:
    """All ranks; a call is made on every one of them, as each takes part in the others' collectives."""

    def __init__(self, ranks: list[Remote], timeout_s: float) -> None:
        """`timeout_s`: most seconds of one call, a step or a checkpoint."""
        self.ranks, self.timeout_s = ranks, timeout_s
        self.layout: dict[str, Any] = {}
        self.kind = ""

    async def start(self, checkpoint: Path | None) -> None:
        """Bring the ranks up, with the start policy or with what a checkpoint holds."""
        address = await self._ask(self.ranks[:1], "address", [()])
        found = await self._all("start", address[0])
        self.layout, self.kind = found[0]["layout"], found[0]["kind"]
        if checkpoint is not None:
            await self._all("load", checkpoint)

    async def update(self, batch: TrainBatch, version: int) -> dict[str, Metric]:
        """One optimiser step over all ranks."""
        rows = await asyncio.to_thread(split_rows, batch, len(self.ranks))
        return merge_all(await self._each("update", [(part, version) for part in rows]))

    async def divergence(self, groups: Mapping[int, Group]) -> dict[int, Mean]:
        """KL(trainer || generator) of what each generator sampled, by its slot."""
        if not groups:
            return {}
        parts = split_rows(_to_score(groups), len(self.ranks))
        ratios = await self._each("log_ratios", [(part,) for part in parts])
        by_slot: dict[int, list[float]] = {slot: [] for slot in groups}
        for part, rows in zip(parts, ratios, strict=True):
            for slot, row in zip(part.adv_B.long().tolist(), rows, strict=True):
                by_slot[slot] += row
        return {slot: _kl(of_slot) for slot, of_slot in by_slot.items()}

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
        [(host, port)] = await self._ask([rank], "endpoint", [()])
        ours = self._ask([rank], "connect", [(engine, remote.name, host, port)])
        theirs = remote.call("connect", self.layout, self.kind, host, port)
        ends = [asyncio.ensure_future(ours), asyncio.ensure_future(theirs)]
        try:
            await asyncio.gather(*ends)
        finally:
            for end in ends:  # the one that hears nothing of the other's failure
                end.cancel()

    def save(self, folder: Path) -> None:
        """Write model and moments, each rank its own part; waits for it."""
        try:
            for result in [rank.begin("save", folder) for rank in self.ranks]:
                result(self.timeout_s)
        except (Gone, GeneratorLost) as error:
            raise _unreplaced(error) from error

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return await self._each(method, [args] * len(self.ranks))

    async def _each(self, method: str, args: list[tuple[Any, ...]]) -> list[Any]:
        return await self._ask(self.ranks, method, args)

    async def _ask(
        self, ranks: list[Remote], method: str, args: list[tuple[Any, ...]]
    ) -> list[Any]:
        """All answers, or the first failure at once: the other ranks may be waiting for the one that failed."""
        tasks = [
            asyncio.ensure_future(rank.call(method, *given))
            for rank, given in zip(ranks, args, strict=True)
        ]
        try:
            done, late = await asyncio.wait(
                tasks, timeout=self.timeout_s, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            if late:
                silent = [
                    rank.name for rank, task in zip(ranks, tasks, strict=True) if task in late
                ]
                raise WorldFailed(
                    f"{' and '.join(silent)} did not answer for site.step_timeout_s = {self.timeout_s:g} s"
                )
            return [task.result() for task in tasks]
        except Gone as error:
            raise _unreplaced(error) from error
        finally:
            for task in tasks:
                task.cancel()


def _unreplaced(error: Exception) -> WorldFailed:
    return WorldFailed(f"{error}: a trainer cannot be replaced in mid-run, so resume it")


def _kl(log_ratios: list[float]) -> Mean:
    kl = ratio_stats(np.array(log_ratios))["kl"]
    assert isinstance(kl, Mean)
    return kl


def _to_score(groups: Mapping[int, Group]) -> TrainBatch:
    """Rows of which only log-probs are wanted; their generator's slot stands where advantages do."""
    batch = RolloutBatch.from_groups(list(groups.values()))
    slots = [slot for slot, group in groups.items() for _ in group.completions]
    return TrainBatch(
        token_BT=batch.token_BT,
        mask_BT=batch.mask_BT,
        behavior_logp_BT=batch.behavior_logp_BT,
        version_BT=batch.version_BT,
        adv_B=torch.tensor(slots, dtype=torch.float32),
        weight_BT=batch.mask_BT.float(),
    )
