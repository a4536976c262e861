"""Time for the loop: the wall's, or a virtual one that jumps to the next timer.

On the virtual clock a run of a hundred GPU-hours takes as long as its arithmetic, every sleep ends at exactly
the second it was set for, and "nothing will ever happen again" is an error instead of a hang.
"""

import asyncio
import heapq
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from scalerl.errors import Deadlock

T = TypeVar("T")


class Clock(Protocol):
    """Seconds since the run began, and a way to let them pass."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    async def settle(self) -> None:
        """Let everything happen that happens at this instant."""
        ...


class WallClock:
    """Real time, counted on from `start` seconds (a resumed run goes on where its clock stood)."""

    def __init__(self, start: float = 0.0) -> None:
        self._zero = time.monotonic() - start

    def now(self) -> float:
        return time.monotonic() - self._zero

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def settle(self) -> None:
        await asyncio.sleep(0)


class VirtualClock:
    """The time of the running `VirtualLoop`."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def settle(self) -> None:
        # The clock moves only when all wait, so the least step forward comes after all that is due now:
        # what ends at the same instant is then in the same order in every run, a resumed one too.
        await self.sleep_until(math.nextafter(self.now(), math.inf))

    async def sleep_until(self, when: float) -> None:
        """Wake at exactly `when`, without the rounding of `now + (when - now)`."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        timer = loop.call_at(when, lambda: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock stands still while code runs and jumps to the next timer when all wait."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.on_deadlock: Callable[[], None] | None = None
        super().__init__(_JumpingSelector(self))
        self._set(start)

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        heapq.heappush(self._timers, (when, id(handle), handle))
        return handle

    def jump(self) -> None:
        """Move the clock to the next timer that is still set; nothing runs in between."""
        while self._timers:
            when, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled() and when > self._now:
                self._set(when)
                return

    def _set(self, now: float) -> None:
        self._now = now
        # asyncio runs the timers before now + resolution. Its fixed 1e-9 s is lost in rounding once the clock
        # stands at half a year: the timer that is due would never be.
        self._clock_resolution = math.ulp(now)

    def deadlock(self) -> None:
        if self.on_deadlock is not None:
            self.on_deadlock()


class _JumpingSelector(selectors.SelectSelector):
    """Never blocks: a time-out moves the virtual clock; none at all means that nothing is left to wait for."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            self._loop.deadlock()
        elif timeout > 0:
            self._loop.jump()
        return super().select(0)


def run_virtual(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """Run a coroutine on a virtual clock that starts at `start` seconds.

    Raises:
        Deadlock: every coroutine waits and no timer is set.
    """
    stuck = False

    async def watched() -> T:
        task = asyncio.ensure_future(main)

        def wake() -> None:
            nonlocal stuck
            if stuck:  # cancelling did not help: leave the loop by force rather than spin
                raise Deadlock("the run ignored its cancellation after a deadlock")
            stuck = True
            task.cancel()

        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.on_deadlock = wake
        return await task

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        try:
            return runner.run(watched())
        except asyncio.CancelledError:
            if stuck:
                raise Deadlock(
                    "every coroutine waits and no timer is set: nothing can happen any more"
                ) from None
            raise
