"""Evaluation on an engine of its own: weights are pinned in its host memory and counted one set after the other.

A pin is a push that is not applied: whatever is being evaluated goes on undisturbed, and training waits for the
transfer alone. Pinned weights are released only when the loop has the result, or a checkpoint could miss them.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.push import Push
from backend.remote import Gone, Remote, in_time
from scalerl.clock import Clock
from scalerl.compute import Phase
from scalerl.errors import GeneratorLost, WorldFailed
from scalerl.site import Cluster
from scalerl.world import EvalResult, Handle

FIRST_PIN = -1  # only shows that the evaluator can be reached


class Evaluations:
    """The evaluator, what is pinned there, and how long it was busy."""

    def __init__(
        self, remote: Remote, push: Push, site: Cluster, clock: Callable[[], Clock]
    ) -> None:
        self.remote, self.push, self.site, self._clock = remote, push, site, clock
        self.channel = site.generators  # those of the generators are numbered from 0
        self._counted: list[int] = []
        self._until = 0.0
        self._phases: list[Phase] = []

    async def start(self, version: int, folder: Path | None, pinned: list[tuple[int, int]]) -> None:
        """Push once, and take over what a checkpoint has pinned."""
        await self.pin(version, FIRST_PIN)
        await self._call("weights_release", FIRST_PIN)
        if pinned:
            await self._call("weights_load_pinned", str(folder), pinned)

    async def pin(self, version: int, handle: int) -> None:
        """A copy of the trainers' weights in the evaluator's host memory."""
        failed = await self.push.send(
            version, {self.channel: self.remote}, lambda remote: remote.call("pin", version, handle)
        )
        for why in failed.values():
            raise _lost(why)
        counted, self._counted = self._counted, []
        for old in counted:
            await self._call("weights_release", old)

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        """What the evaluator counted by pinned weights; waits for evaluations that came before."""
        began = self._clock().now()
        task = asyncio.ensure_future(
            self.remote.call("evaluate", handle.id, handle.version, list(sets))
        )
        try:
            while not (await asyncio.wait([task], timeout=self.site.push_timeout_s))[0]:
                await in_time(self.remote, self.site.push_timeout_s, "version")  # it lives
            results = task.result()
        except (Gone, GeneratorLost) as error:
            raise _lost(error) from error
        finally:
            task.cancel()
        self._counted.append(handle.id)
        start, self._until = max(self._until, began), self._clock().now()
        self._phases.append(Phase("evaluator", 0, "evaluate", start, self._until))
        return results

    def phases(self) -> list[Phase]:
        """Since the last call."""
        phases, self._phases = self._phases, []
        return phases

    def save(self, folder: Path) -> list[tuple[int, int]]:
        """Write what is pinned and not yet counted; returns (handle, version) of each."""
        try:
            while self._counted:
                self._wait("weights_release", self._counted.pop())
            return self._wait("weights_save_pinned", str(folder))
        except (Gone, GeneratorLost) as error:
            raise _lost(error) from error

    def _wait(self, method: str, *args: Any) -> Any:
        return self.remote.begin("call", method, *args)(self.site.step_timeout_s)

    async def _call(self, method: str, *args: Any) -> None:
        try:
            await in_time(self.remote, self.site.push_timeout_s, "call", method, *args)
        except (Gone, GeneratorLost) as error:
            raise _lost(error) from error


def _lost(why: object) -> WorldFailed:
    return WorldFailed(f"{why}: the evaluator cannot be replaced in mid-run, so resume it")
