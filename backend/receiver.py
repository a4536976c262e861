"""The weight wire, engine side: a staging buffer that fills while the engine generates."""

from threading import Thread

import torch
from torch import Tensor

from backend.wire import Channel, Kind, Layout
from scalerl.errors import PushFailed


class Receiver:
    """Engine side: takes new weights into a staging buffer, in a thread, while the engine generates with the old ones.

    `connect` once, then for every version `begin`, and `finish` when the sender reports it acknowledged. After a
    failure, `connect` again.
    """

    def __init__(
        self, layout: Layout, *, kind: Kind, timeout_s: float, device: torch.device | str
    ) -> None:
        """Allocates the staging buffer, `layout.nbytes` on `device`, once; `timeout_s` is for each bucket."""
        self.layout = layout
        self._kind: Kind = kind
        self._timeout_s, self._device = timeout_s, device
        self._staging = torch.empty(layout.nbytes, dtype=torch.uint8, device=device)
        self._channel: Channel | None = None
        self._thread: Thread | None = None
        self._version: int | None = None
        self._failure: str | None = None

    def connect(self, peer: str, host: str, port: int) -> None:
        """Open the channel to the trainer rank that hosts it there; ends an older channel and what it was receiving.

        Raises:
            PushFailed: of phase "connect".
        """
        self.close()
        self._channel = Channel.open(
            kind=self._kind,
            host=host,
            port=port,
            rank=1,
            timeout_s=self._timeout_s,
            peer=peer,
            device=self._device,
        )

    def begin(self, version: int) -> None:
        """Start to receive `version`; returns at once. The staging buffer of the version before is no longer valid.

        Raises:
            PushFailed: not connected, or another version is under way.
        """
        phase = f"receive version {version}"
        if self._channel is None:
            raise PushFailed(f"{phase}: there is no channel to a trainer: connect first")
        if self._thread is not None and self._thread.is_alive():
            raise PushFailed(
                f"{phase}: {self._channel.peer}: version {self._version} is still under way: finish it first"
            )
        self._version, self._failure = version, None
        self._thread = Thread(
            target=self._receive, args=(self._channel, version), daemon=True, name=phase
        )
        self._thread.start()

    def finish(self, version: int, timeout_s: float) -> Tensor:
        """Wait for `version`; gives the staging buffer, uint8 of `layout.nbytes`, valid until the next `begin`.

        Raises:
            PushFailed: what ended the receiving; or it is still going on after `timeout_s`, and goes on; or the last
                version begun is another one, or was finished before.
        """
        if self._thread is None or self._version != version:
            raise PushFailed(
                f"receive version {version}: it was not begun, or finished before: the last is {self._version}"
            )
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise PushFailed(f"receive version {version}: still under way after {timeout_s:g} s")
        self._thread = None
        if self._failure is not None:
            raise PushFailed(self._failure)
        return self._staging

    def close(self) -> None:
        """End the channel, and what is under way on it."""
        if self._channel is not None:
            self._channel.close()
        if self._thread is not None:
            self._thread.join()
        self._channel = self._thread = None

    def _receive(self, channel: Channel, version: int) -> None:
        ranges = self.layout.buckets()
        try:
            for number, (start, stop) in enumerate(ranges, 1):
                channel.receive(self._staging[start:stop], f"bucket {number} of {len(ranges)}")
            channel.acknowledge(version)
        except PushFailed as error:
            self._failure = str(error)
