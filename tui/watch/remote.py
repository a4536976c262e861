"""Logs that are elsewhere: over ssh and over http. What has to wait waits in a thread behind a bounded queue."""

import http.client
import os
import queue
import re
import selectors
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import Message
from http import HTTPStatus

from scalerl.errors import InputError
from tui.watch.feeds import Restarted

_PIECE = 64 * 1024  # bytes of one piece in a queue
_PIECES = 16  # pieces a queue holds: 1 MiB
_TICK_S = 0.1  # how soon a thread notices that its feed was closed
_TIMEOUT_S = 10.0


class _QueuedFeed:
    """What the two feeds with a thread share. A subclass fills the queue in `_run` until `_closed` is set."""

    ended = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.size: int | None = None
        self.problem: str | None = None
        self._received = 0  # bytes put into the queue since the last restart
        self._queue: queue.Queue[bytes | None] = queue.Queue(_PIECES)  # None: restarted
        self._rest = b""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def read(self, most: int) -> bytes:
        pieces: list[bytes] = []
        left = most
        while left > 0:
            if not self._rest:
                try:
                    piece = self._queue.get_nowait()
                except queue.Empty:
                    break
                if piece is None:
                    raise Restarted
                self._rest = piece
            pieces.append(self._rest[:left])
            self._rest = self._rest[left:]
            left -= len(pieces[-1])
        return b"".join(pieces)

    def close(self) -> None:
        """Ask the thread to end; it is not waited for, since it may hang on a server."""
        self._closed.set()

    def _run(self) -> None:
        raise NotImplementedError

    def _put(self, piece: bytes | None) -> None:
        """Into the queue, as soon as it has room."""
        while not self._closed.is_set():
            try:
                self._queue.put(piece, timeout=_TICK_S)
            except queue.Full:
                continue
            self._received = 0 if piece is None else self._received + len(piece)
            return


SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
# The ends of what `tail -F` says when it starts anew at byte 0; said before the new bytes are.
_STARTS_ANEW = ("file truncated", "following new file", "following end of new file")
_LONGEST_WAIT_S = 30.0
_SETTLED_S = 15.0  # a connection as old as this, without a word of complaint, stands


class SshFeed(_QueuedFeed):
    """A log on another machine, through `ssh HOST tail -F`; after a broken connection it goes on where it was.

    Args:
        host: what ssh calls a destination; one that ssh would take for an option is an InputError.
        path: of the log there; a relative one is seen from the home folder.
        command: what comes before the destination.
        retry_s: wait before the second try; doubled each time, to 30 s, while no byte comes.
    """

    def __init__(
        self, host: str, path: str, command: Sequence[str] = SSH, retry_s: float = 1.0
    ) -> None:
        if not host or host.startswith("-") or not path:
            raise InputError(f"cannot read {path!r} from the host {host!r}: give ssh://HOST/PATH")
        super().__init__(f"{host}:{path}")
        self._host, self._path, self._command, self._retry_s = host, path, command, retry_s
        self._thread.start()

    def _run(self) -> None:
        wait = self._retry_s
        while not self._closed.is_set():
            before = self._received
            try:
                words = self._connect()
            except Restarted:
                words = "the log starts anew"
                self._put(None)
            grew = self._received != before
            wait = self._retry_s if grew else min(2 * wait, _LONGEST_WAIT_S)
            self.problem = f"{words}; next try in {wait:g} s, or try `ssh {self._host}` yourself"
            self._closed.wait(wait)

    def _connect(self) -> str:
        """One connection, to its end; returns the last words about it."""
        tail = f"env LC_ALL=C tail -c +{self._received + 1} -F -- {shlex.quote(self._path)}"
        try:
            child = subprocess.Popen(
                [*self._command, self._host, tail],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # no Ctrl-C of the terminal, no question on it
            )
        except OSError as error:
            return f"cannot start {self._command[0]}: {error.strerror}"
        with child:
            try:
                return self._listen(child) or "the connection ended"
            finally:
                child.kill()

    def _listen(self, child: subprocess.Popen[bytes]) -> str:
        """Take what comes until both pipes end or the feed is closed; the last words. Raises Restarted."""
        assert child.stdout and child.stderr
        words, line = "", b""
        settled = time.monotonic() + _SETTLED_S
        with selectors.DefaultSelector() as pipes:
            pipes.register(child.stdout, selectors.EVENT_READ)
            pipes.register(child.stderr, selectors.EVENT_READ)
            while pipes.get_map() and not self._closed.is_set():
                ready = [key.fileobj for key, _ in pipes.select(_TICK_S)]
                if not words and time.monotonic() > settled:
                    self.problem = None  # of the connection before this one
                # Words first: they say whether the bytes beside them belong to the same file.
                for pipe in sorted(ready, key=lambda pipe: pipe is child.stdout):
                    piece = os.read(pipe.fileno(), _PIECE)  # type: ignore[union-attr]
                    if not piece:
                        pipes.unregister(pipe)
                    elif pipe is child.stdout:
                        self.problem = None
                        self._put(piece)
                    else:
                        *lines, line = (line + piece).split(b"\n")
                        for said in (raw.decode("utf-8", "replace").strip() for raw in lines):
                            self.problem = words = said or words
                            if said.endswith(_STARTS_ANEW) and self._received > 0:
                                raise Restarted
        return line.decode("utf-8", "replace").strip() or words


class HttpFeed(_QueuedFeed):
    """A log behind http(s), asked every `every_s` seconds for what is new; a server without ranges sends it whole."""

    def __init__(self, url: str, every_s: float = 1.0) -> None:
        super().__init__(url)
        self._every_s = every_s
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._fetch()
                self.problem = None
            except (OSError, ValueError, http.client.HTTPException) as error:
                self.problem = f"{_why_no_answer(error)}; asked again every {self._every_s:g} s"
            self._closed.wait(self._every_s)

    def _fetch(self) -> None:
        """What lies beyond the bytes received so far."""
        ask = urllib.request.Request(self.name, headers={"Range": f"bytes={self._received}-"})
        try:
            with urllib.request.urlopen(ask, timeout=_TIMEOUT_S) as answer:
                if answer.status == HTTPStatus.PARTIAL_CONTENT:
                    self.size = _total(answer.headers)
                    self._take(
                        answer, skip=max(self._received - _start(answer.headers, self._received), 0)
                    )
                else:
                    length = answer.headers.get("Content-Length")
                    self.size = int(length) if length else None
                    self._take(answer, skip=self._received)
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                self.size = _total(error.headers)  # nothing new, or less than there was
                if self.size is not None and self.size < self._received:
                    self._put(None)

    def _take(self, answer: http.client.HTTPResponse, skip: int) -> None:
        if self.size is not None and self.size <= self._received:
            if self.size < self._received:
                self._put(None)
            return
        while not self._closed.is_set() and (piece := answer.read1(_PIECE)):
            new, skip = piece[skip:], max(skip - len(piece), 0)
            if new:
                self._put(new)
        if skip and self.size is None:  # the whole file is shorter than what was read of it
            self._put(None)


def _why_no_answer(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        way_out = ": check the address" if error.code == HTTPStatus.NOT_FOUND else ""
        return f"HTTP {error.code} {error.reason}{way_out}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {_TIMEOUT_S:g} s"
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or repr(cause)


def _total(headers: Message) -> int | None:
    """Size of the whole file: 120 of `bytes 100-119/120` and of `bytes */120`."""
    total = headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdecimal() and total.isascii() else None


def _start(headers: Message, asked: int) -> int:
    """Where a part begins: 100 of `bytes 100-119/120`; as asked, where it does not say."""
    said = re.match(r"bytes ([0-9]+)-", headers.get("Content-Range", ""))
    return int(said[1]) if said else asked
