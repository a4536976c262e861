"""A handle on something that runs elsewhere: what the world needs of Ray, and nothing more."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Gone(Exception):
    """The process behind a handle is dead; says which, and how it is known."""


class Remote(Protocol):
    """An actor. Its own errors come back as they are; a dead process is `Gone`."""

    @property
    def name(self) -> str: ...

    def call(self, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method; calls arrive in order."""
        ...

    def begin(self, method: str, *args: Any) -> Callable[[], Any]:
        """Start a call; what is returned waits for its result, without an event loop."""
        ...

    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts actors, on a cluster or in a test."""

    def open(self) -> None: ...

    def generator(self, slot: int, spec: Any) -> Remote: ...

    def evaluator(self, spec: Any, task: Any) -> Remote: ...

    def trainer(self, rank: int, *args: Any) -> Remote: ...

    def close(self) -> None: ...
