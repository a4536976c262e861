"""A run watched without a screen: read and fitted in the background until a test has seen enough."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tui.watch.session import Session
from tui.watch.watching import Watch

PATIENCE = 1000  # turns of 10 ms


def watched(source: Path, then: Callable[[Watch], Awaitable[None]]) -> Watch:
    """Read and fit a source until `then` is through, and see that both still go on; what was watched."""

    async def whole() -> Watch:
        watch = Watch(Session(str(source)), lambda: None)
        tasks = [
            asyncio.create_task(watch.follow(0.01, pytest.fail)),
            asyncio.create_task(watch.fit()),
        ]
        try:
            await then(watch)
            assert not any(task.done() for task in tasks), "reading or fitting broke"
        finally:
            for task in tasks:
                task.cancel()
            watch.session.close()
        return watch

    return asyncio.run(whole())


async def came(true: Callable[[], bool]) -> None:
    """Wait until it is so.

    Raises:
        AssertionError: it does not come.
    """
    for _ in range(PATIENCE):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")
