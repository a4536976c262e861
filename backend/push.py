"""A weight push: every engine receives beside its work, then goes on with the new weights, or is named as failed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from backend.remote import Gone, Remote, in_time
from backend.trainers import Trainers
from scalerl.errors import GeneratorLost, PushFailed, first_line

ALIVE_S = 5.0  # an engine that answers within this lives
Finish = Callable[[Remote], Awaitable[Any]]


class Push:
    """From the trainer ranks to engines, each over a channel of its own; one that fails does not hold up the others."""

    def __init__(self, trainers: Trainers, timeout_s: float) -> None:
        self.trainers, self.timeout_s = trainers, timeout_s

    async def send(
        self, version: int, engines: Mapping[int, Remote], finish: Finish
    ) -> dict[int, str]:
        """Send one version to engines by channel; `finish` is what each does with it once it has arrived.

        Returns the channels whose engine is dead or silent, with how that is known.

        Raises:
            PushFailed: an engine that lives did not take the weights.
        """
        # Each engine now waits up to timeout_s for its first bucket: one that is silent must not use that up.
        failed = await self._each(
            engines, lambda remote: remote.call("receive", version), self.timeout_s / 2
        )
        begun = {channel: remote for channel, remote in engines.items() if channel not in failed}
        sent = await self.trainers.push(version, begun)
        failed |= {channel: why for channel, why in sent.items() if why is not None}
        arrived = {channel: remote for channel, remote in begun.items() if channel not in failed}
        failed |= await self._each(arrived, finish, self.timeout_s)
        alive = await asyncio.gather(*(self._lives(engines[channel]) for channel in failed))
        for (channel, why), lives in zip(failed.items(), alive, strict=True):
            if lives:
                raise PushFailed(f"{why}; {engines[channel].name} lives, so the run stops here")
        return failed

    async def _each(
        self, engines: Mapping[int, Remote], do: Finish, timeout_s: float
    ) -> dict[int, str]:
        """Do it on all at once; the channels on which it failed, with the reason."""
        results = await asyncio.gather(
            *(asyncio.wait_for(do(remote), timeout_s) for remote in engines.values()),
            return_exceptions=True,
        )
        failed: dict[int, str] = {}
        for (channel, remote), result in zip(engines.items(), results, strict=True):
            match result:
                case TimeoutError():
                    failed[channel] = (
                        f"{remote.name} did not answer for {timeout_s:g} s "
                        f"(site.push_timeout_s = {self.timeout_s:g})"
                    )
                case Gone() | GeneratorLost() | PushFailed():
                    failed[channel] = str(result)
                case Exception():
                    failed[channel] = f"{remote.name}: {first_line(result)}"
                case BaseException():
                    raise result
        return failed

    async def _lives(self, remote: Remote) -> bool:
        try:
            await in_time(remote, ALIVE_S, "version")
            return True
        except (Gone, GeneratorLost):
            return False
