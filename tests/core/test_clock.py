"""Clocks: virtual time jumps exactly, in order, and a wait for nothing is an error."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalerl.clock import VirtualClock, VirtualLoop, WallClock, run_virtual
from scalerl.errors import Deadlock

DAY = 86_400.0


@contextmanager
def no_hang(seconds: float = 5.0) -> Iterator[None]:
    """Turn a loop that spins for ever into a failure."""

    def ring(*_: object) -> None:
        raise AssertionError(f"still going after {seconds} s of wall time")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("days", [1, 100, 3650, 10**9])
def test_virtual_time_passes_without_waiting(days: int) -> None:
    """Beyond 194 days the spacing of floats exceeds asyncio's timer resolution of 1 ns, which must not matter."""
    clock = VirtualClock()

    async def main() -> list[float]:
        times = [clock.now()]
        for _ in range(2):
            await clock.sleep(days * DAY)
            times.append(clock.now())
        return times

    with no_hang():
        assert run_virtual(main()) == [0.0, days * DAY, 2 * days * DAY]


def test_virtual_time_starts_where_it_is_told() -> None:
    async def main() -> float:
        await VirtualClock().sleep(2.5)
        return VirtualClock().now()

    assert run_virtual(main(), start=100.0) == 102.5


def test_time_stands_still_while_code_runs() -> None:
    clock = VirtualClock()

    async def main() -> set[float]:
        seen = set()
        for _ in range(100):
            await asyncio.sleep(0)
            seen.add(clock.now())
        return seen

    assert run_virtual(main()) == {0.0}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=12))
@example([1.0, 1.0 + 1e-10])  # closer than asyncio's timer resolution of 1 ns
def test_sleepers_wake_in_order_at_exactly_their_second(seconds: list[float]) -> None:
    clock = VirtualClock()
    woken: list[tuple[float, float]] = []

    async def sleeper(when: float) -> None:
        await clock.sleep_until(when)
        woken.append((when, clock.now()))

    async def main() -> None:
        await asyncio.gather(*(sleeper(when) for when in seconds))

    with no_hang():
        run_virtual(main())
    assert woken == [(when, when) for when in sorted(seconds)]


def test_sleep_until_does_not_round() -> None:
    # now + (when - now) misses `when` here by 4.4e-16
    clock = VirtualClock()

    async def main() -> tuple[float, float]:
        await clock.sleep_until(0.7)
        await clock.sleep_until(3.6)
        at = clock.now()
        await clock.sleep_until(0.3)  # in the past: at once
        return at, clock.now()

    assert 0.7 + (3.6 - 0.7) != 3.6
    assert run_virtual(main()) == (3.6, 3.6)


def test_a_cancelled_timer_is_not_jumped_to() -> None:
    clock = VirtualClock()

    async def main() -> float:
        long = asyncio.ensure_future(clock.sleep_until(1000.0))
        short = asyncio.ensure_future(clock.sleep(500.0))
        await clock.sleep(1.0)
        long.cancel()
        short.cancel()
        await clock.sleep(1.0)
        return clock.now()

    assert run_virtual(main()) == 2.0


def test_a_cancelled_sleep_is_nothing_to_wait_for() -> None:
    clock = VirtualClock()
    ended: list[float] = []

    async def main() -> None:
        sleeper = asyncio.ensure_future(clock.sleep_until(1000.0))
        await clock.sleep(1.0)
        sleeper.cancel()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(clock.now())

    with pytest.raises(Deadlock):
        run_virtual(main())
    assert ended == [1.0]


def test_a_timeout_is_virtual_too() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.Event().wait()
        return VirtualClock().now()

    assert run_virtual(main()) == 30.0


def test_two_runs_interleave_alike() -> None:
    def order() -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []

        async def worker(i: int) -> None:
            for step in range(5):
                await VirtualClock().sleep(1.0 + (i * step) % 3)
                seen.append((i, VirtualClock().now()))

        async def main() -> None:
            async with asyncio.TaskGroup() as tasks:
                for i in range(4):
                    tasks.create_task(worker(i))

        run_virtual(main())
        return seen

    assert order() == order()


# ---- nothing left to wait for ----


def test_a_wait_for_nothing_is_a_deadlock() -> None:
    async def main() -> None:
        await VirtualClock().sleep(5.0)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer is set"):
        run_virtual(main())


def test_a_deadlock_lets_the_run_clean_up() -> None:
    closed: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await VirtualClock().sleep(1.0)  # closing may take (virtual) time
            closed.append("closed")

    with pytest.raises(Deadlock):
        run_virtual(main())
    assert closed == ["closed"]


def test_a_run_that_ignores_its_cancellation_does_not_spin() -> None:
    async def main() -> None:
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(Deadlock, match="ignored its cancellation"):
        run_virtual(main())


def test_errors_and_cancellation_of_the_run_come_out_as_they_are() -> None:
    async def failing() -> None:
        raise ZeroDivisionError("mine")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ZeroDivisionError, match="mine"):
        run_virtual(failing())
    with pytest.raises(asyncio.CancelledError):
        run_virtual(cancelled())


def test_a_loop_without_a_watcher_does_not_fail_on_a_deadlock() -> None:
    """Nobody asked to be told: a callback set from outside still gets its turn."""
    loop = VirtualLoop(start=3.0)
    try:
        loop.deadlock()
        fired: list[float] = []
        loop.call_at(10.0, lambda: (fired.append(loop.time()), loop.stop()))
        loop.run_forever()
        assert fired == [10.0]
    finally:
        loop.close()


# ---- the wall ----


def test_wall_clock_counts_on_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def monotonic() -> float:
        return now

    monkeypatch.setattr("scalerl.clock.time", _Time(monotonic))
    clock = WallClock(start=50.0)
    assert clock.now() == 50.0
    now = 1007.5
    assert clock.now() == 57.5
    assert WallClock().now() == 0.0


def test_wall_clock_sleeps() -> None:
    clock = WallClock()
    asyncio.run(clock.sleep(0.02))
    assert clock.now() >= 0.02


class _Time:
    """The one function of `time` that the clock reads."""

    def __init__(self, monotonic: Callable[[], Any]) -> None:
        self.monotonic = monotonic
