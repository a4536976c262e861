"""A handle on something that runs elsewhere: what the world needs of Ray, and nothing more."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from scalerl.errors import GeneratorLost


class Gone(Exception):
    """The process behind a handle is dead; says which, and how it is known."""


class Remote(Protocol):
    """An actor. Its own errors come back as they are; a dead process is `Gone`."""

    @property
    def name(self) -> str: ...

    def call(self, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method; calls arrive in order."""
        ...

    def begin(self, method: str, *args: Any) -> Callable[[float], Any]:
        """Start a call; what is returned waits so many seconds for its result, without an event loop.

        Raises (on waiting):
            GeneratorLost: it did not come.
        """
        ...

    def kill(self) -> None: ...


async def in_time(remote: Remote, seconds: float, method: str, *args: Any) -> Any:
    """Call a method of an engine.

    Raises:
        GeneratorLost: it did not answer in time.
    """
    try:
        return await asyncio.wait_for(remote.call(method, *args), seconds)
    except TimeoutError:
        raise silent(remote, method, seconds) from None


def silent(remote: Remote, method: str, seconds: float) -> GeneratorLost:
    """The error for an actor that did not answer."""
    return GeneratorLost(f"{remote.name} did not answer to {method!r} for {seconds:g} s")


class Launcher(Protocol):
    """Starts actors, on a cluster or in a test."""

    def open(self) -> None: ...

    def generator(self, slot: int, spec: Any) -> Remote: ...

    def evaluator(self, spec: Any, task: Any) -> Remote: ...

    def trainer(self, rank: int, *args: Any) -> Remote: ...

    def close(self) -> None: ...
