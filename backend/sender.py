"""The weight wire, trainer side: one rank pushes each version to the engines that it feeds, all at once."""

from collections.abc import Callable, Collection, Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread

import torch
from torch import Tensor

from backend.wire import Channel, Kind, Layout
from scalerl.errors import PushFailed

WAITING_BUCKETS = 2  # per engine, beside the one that is being sent


class Sender:
    """The channels of one trainer rank, by the number of the engine. A push that fails ends that engine's channel."""

    def __init__(
        self, layout: Layout, *, kind: Kind, timeout_s: float, device: torch.device | str
    ) -> None:
        """`timeout_s` is for each bucket and each engine; `device` is that of the buckets."""
        self.layout = layout
        self._kind: Kind = kind
        self._timeout_s, self._device = timeout_s, device
        self._channels: dict[int, Channel] = {}

    def connect(self, engine: int, name: str, host: str, port: int) -> None:
        """Host a channel at host:port and wait for the engine, `name` in messages; ends an older one.

        Raises:
            PushFailed: of phase "connect".
        """
        self.disconnect(engine)
        self._channels[engine] = Channel.open(
            kind=self._kind,
            host=host,
            port=port,
            rank=0,
            timeout_s=self._timeout_s,
            peer=name,
            device=self._device,
        )

    def disconnect(self, engine: int) -> None:
        """End the channel to an engine, if there is one."""
        channel = self._channels.pop(engine, None)
        if channel is not None:
            channel.close()

    def push(
        self, version: int, buckets: Iterator[Tensor], engines: Collection[int]
    ) -> dict[int, str | None]:
        """Send the buckets of `layout`, as they come, to each of `engines`; says of each why not, None if acknowledged.

        The iterator is drained to its end whatever fails, because other ranks gather along with it. A bucket that it
        yields is the sender's to keep: it must not write there again. At most three buckets wait for an engine, so a
        slow one slows the iterator, and one that hangs does so for `timeout_s`, once.

        If the iterator raises, all these channels are closed and its error goes on.
        """
        feeds = {
            engine: _Feed(self._channels[engine], version, len(self.layout.buckets()))
            for engine in engines
            if engine in self._channels
        }
        try:
            for bucket in buckets:
                for feed in feeds.values():
                    feed.put(bucket)
        except BaseException:
            for feed in feeds.values():
                feed.channel.close()
            raise
        finally:
            for feed in feeds.values():
                feed.end()
            failures = {engine: feed.failure() for engine, feed in feeds.items()}
        unconnected = f"send version {version}: there is no channel to the engine: connect it first"
        return {engine: failures.get(engine, unconnected) for engine in engines}

    def close(self) -> None:
        """End all channels."""
        for engine in list(self._channels):
            self.disconnect(engine)


class _Feed:
    """One version on its way to one engine: a thread that always empties its queue, also after a failure."""

    def __init__(self, channel: Channel, version: int, count: int) -> None:
        self.channel, self._version, self._count = channel, version, count
        self._room, self._queue = Semaphore(WAITING_BUCKETS), SimpleQueue[Tensor | None]()
        self._failure: str | None = None
        self._thread = Thread(target=self._run, daemon=True, name=f"push to {channel.peer}")
        self._thread.start()

    def put(self, bucket: Tensor) -> None:
        """Waits for room."""
        self._room.acquire()
        self._queue.put(bucket)

    def end(self) -> None:
        """No more buckets; never waits, so that no engine's acknowledgement waits for another engine."""
        self._queue.put(None)

    def failure(self) -> str | None:
        """Waits for the acknowledgement, and says why it did not come."""
        self._thread.join()
        return self._failure

    def _run(self) -> None:
        number = 0
        while (bucket := self._queue.get()) is not None:
            self._room.release()
            number += 1
            if self._failure is None:
                self._attempt(self.channel.send, bucket, f"bucket {number} of {self._count}")
        if self._failure is None:
            self._attempt(self.channel.await_acknowledgement, self._version)

    def _attempt(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except PushFailed as error:
            self._failure = str(error)
