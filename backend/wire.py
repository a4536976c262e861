"""The weight wire, what both sides share: one flat buffer, cut into buckets, over a channel of two.

Each engine has a channel of its own, a process group of the one trainer rank that feeds it and of the engine's
worker, beside every other group of these processes: an engine that dies breaks its own channel and no other.
NCCL's branch follows torch's headers and has not been run.
"""

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from itertools import pairwise
from math import prod
from threading import Thread
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from scalerl.errors import PushFailed

ALIGNMENT = 16  # bytes; every element type divides it
Kind = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class Layout:
    """Where each tensor lies in one flat uint8 buffer, and in which buckets of at most `bucket_bytes` that travels.

    `bucket_bytes` is a positive multiple of 16. Worked layout of 32, with 14 bytes of padding after the first tensor:

        names    ("norm",     "head")
        dtypes   ("bfloat16", "float32")
        shapes   ((1,),       (3, 4))
        spans    ((0, 2),     (16, 64))
        buckets  [(0, 16), (16, 48), (48, 64)]
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]  # torch's names: "bfloat16", "float32"
    shapes: tuple[tuple[int, ...], ...]
    bucket_bytes: int

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) of each tensor in bytes; starts are multiples of 16."""
        spans, stop = [], 0
        for dtype, shape in zip(self.dtypes, self.shapes, strict=True):
            start = -(-stop // ALIGNMENT) * ALIGNMENT
            stop = start + prod(shape) * getattr(torch, dtype).itemsize
            spans.append((start, stop))
        return tuple(spans)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer, padding included."""
        return self.spans[-1][1] if self.spans else 0

    def views(self, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and typed view of each tensor in a uint8 buffer of `nbytes`; nothing is copied."""
        for name, dtype, shape, (start, stop) in zip(
            self.names, self.dtypes, self.shapes, self.spans, strict=True
        ):
            yield name, buffer[start:stop].view(getattr(torch, dtype)).view(shape)

    def buckets(self) -> list[tuple[int, int]]:
        """(start, stop) byte ranges that tile the buffer in order; only a tensor larger than a bucket is cut."""
        cuts = [0]
        for start, stop in self.spans:
            if stop - cuts[-1] > self.bucket_bytes and start > cuts[-1]:
                cuts.append(start)
            while stop - cuts[-1] > self.bucket_bytes:
                cuts.append(cuts[-1] + self.bucket_bytes)
        if self.nbytes > cuts[-1]:
            cuts.append(self.nbytes)
        return list(pairwise(cuts))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Layout":
        return cls(
            names=tuple(data["names"]),
            dtypes=tuple(data["dtypes"]),
            shapes=tuple(tuple(shape) for shape in data["shapes"]),
            bucket_bytes=data["bucket_bytes"],
        )


def free_port() -> int:
    """A TCP port that nobody listens on now; whoever hosts a channel should take it soon."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class Channel:
    """Two processes and the bytes between them: rank 0 sends weights, rank 1 receives and acknowledges them.

    Every operation blocks with the GIL released, for at most `timeout_s`. The first failure closes the channel, which
    the other side sees at once; a closed channel is not opened again, another one takes its place.
    """

    def __init__(self, group: Any, rank: int, peer: str, timeout_s: float, device: Any) -> None:
        """Made by `open`; `device` is a CUDA device on NCCL and None on gloo."""
        self._group, self._other, self.peer = group, 1 - rank, peer
        self._timeout_s, self._device = timeout_s, device
        self._stream = device and torch.cuda.Stream(device)

    @classmethod
    def open(
        cls,
        *,
        kind: Kind,
        host: str,
        port: int,
        rank: int,
        timeout_s: float,
        peer: str,
        device: torch.device | str,
    ) -> "Channel":
        """Meet the peer at host:port, where rank 0 hosts the rendezvous; `peer` is its name in messages.

        Raises:
            PushFailed: of phase "connect", within `timeout_s`.
        """
        outcome: Future[Channel | str] = Future()
        deadline = time.monotonic() + timeout_s

        def meet() -> None:
            try:
                if rank == 1:
                    _await_listener(host, port, deadline)
                group = _group(kind, host, port, rank, timeout_s)
                channel = cls(group, rank, peer, timeout_s, device if kind == "nccl" else None)
                channel._first_contact(rank)
                outcome.set_result(channel)
            except Exception as error:  # of sockets, torch or NCCL: all of them mean no channel
                outcome.set_result(_reason(error))

        # In a thread, because torch's own limits do not hold here: a client of a stopped host waits for ever.
        Thread(target=meet, daemon=True, name=f"connect to {peer}").start()
        try:
            found = outcome.result(timeout_s)
        except TimeoutError:
            found = f"no answer within {timeout_s:g} s"
        if isinstance(found, str):
            raise PushFailed(f"connect: {peer} at {host}:{port}: {found}")
        return found

    def send(self, bucket: Tensor, name: str = "bucket") -> None:
        """Send a flat uint8 tensor, once the peer receives one of that size.

        Raises:
            PushFailed: of phase "send <name>".
        """
        self._transfer("send", bucket, f"send {name}")

    def receive(self, bucket: Tensor, name: str = "bucket") -> None:
        """Fill a flat uint8 tensor.

        Raises:
            PushFailed: of phase "receive <name>".
        """
        self._transfer("recv", bucket, f"receive {name}")

    def acknowledge(self, version: int) -> None:
        """Tell the sender that all buckets of `version` are here."""
        said = torch.tensor([version], device=self._device)
        self._transfer("send", said, f"acknowledge version {version}")

    def await_acknowledgement(self, version: int) -> None:
        """Wait until the receiver says that it has all buckets of exactly `version`.

        Raises:
            PushFailed: of phase "acknowledge version <version>"; also if the receiver names another one.
        """
        heard = torch.empty(1, dtype=torch.int64, device=self._device)
        self._transfer("recv", heard, f"acknowledge version {version}")
        if heard.item() != version:
            self.close()
            raise PushFailed(
                f"acknowledge version {version}: {self.peer}: it received version {heard.item()}"
            )

    def close(self) -> None:
        """End the channel; an operation under way in another thread fails at once, and so does the peer's."""
        group, self._group = self._group, None
        if group is None:
            return
        group.abort()
        if self._stream is None:  # gloo's abort() ends no wait that has begun; a timeout ends all
            with suppress(RuntimeError):
                group.recv([torch.empty(1)], self._other, 1).wait(timedelta(milliseconds=1))

    def _first_contact(self, rank: int) -> None:
        """NCCL connects at the first operation: here, not in the middle of a push."""
        if rank == 0:
            self.acknowledge(0)
        else:
            self.await_acknowledgement(0)

    def _transfer(self, operation: str, data: Tensor, phase: str) -> None:
        group = self._group
        if group is None:
            raise PushFailed(f"{phase}: {self.peer}: the channel is closed")
        try:
            with _beside(self._stream):
                work = getattr(group, operation)([data], self._other, 0)
                work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            reason = _reason(error) if self._group else "the channel was closed"
            self.close()
            raise PushFailed(f"{phase}: {self.peer}: {reason}") from None


def rendezvous(
    host: str, port: int, *, rank: int, size: int, timeout: timedelta, wait: bool = False
) -> Any:
    """torch's store in which the members of a group find one another; rank 0 listens, on the interface of `host` alone.

    torch's own socket would listen on every interface. wait: until all are there.
    """
    given = None
    if rank == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        given = socket.create_server((host, port), family=family).detach()
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, size, rank == 0, timeout, wait_for_workers=wait, master_listen_fd=given
    )


def _group(kind: Kind, host: str, port: int, rank: int, timeout_s: float) -> Any:
    timeout = timedelta(seconds=timeout_s)
    store = rendezvous(host, port, rank=rank, size=2, timeout=timeout)
    if kind == "gloo":
        return dist.ProcessGroupGloo(store, rank, 2, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = 2 * timeout  # when its watchdog ends the process: our waits give up before
    return dist.ProcessGroupNCCL(store, rank, 2, options)


def _await_listener(host: str, port: int, deadline: float) -> None:
    """TCPStore's client waits up to twice its timeout for a host that does not listen, and logs at length."""
    while True:
        try:
            socket.create_connection((host, port), max(0.1, deadline - time.monotonic())).close()
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.02)


@contextmanager
def _beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """On its own stream, after what the default stream was given so far, and without holding up what comes later."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.default_stream(stream.device))
    with torch.cuda.stream(stream):
        yield


def _reason(error: Exception) -> str:
    """The first line of an error, without the C++ file that it came from and torch's general advice."""
    first = str(error).partition("\n")[0].partition(". This is typically")[0]
    return re.sub(r"^\[\S+\.cc:\d+\] ", "", first)
