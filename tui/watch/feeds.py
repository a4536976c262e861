"""Where the bytes of an event log come from: a file that grows, a recording, another machine, a web server.

A feed hands out bytes in order and never blocks; `tui/watch/follow.py` makes events of them. What has
to wait (ssh, HTTP) waits in a thread behind a bounded queue, so that a slow reader slows the sender
instead of filling the memory.
"""

import gzip
import http.client
import os
import queue
import re
import selectors
import shlex
import stat
import string
import subprocess
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from email.message import Message
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import quote, urlsplit

from scalerl.errors import InputError
from tui.words import printable

LOG_NAME = "events.jsonl"
_PIECE = 64 * 1024  # bytes of one piece in a queue
_PIECES = 16  # pieces a queue holds: 1 MiB
_TICK_S = 0.1  # how soon a thread notices that its feed was closed
_TIMEOUT_S = 10.0


class Restarted(Exception):
    """The log was truncated or replaced: what was read is void, and the next read starts at byte 0."""


class Feed(Protocol):
    """Bytes of one log, in order. One replaced by a longer one unseen is not told from one that grew."""

    name: str  # shown to a person: a path or an address
    size: int | None  # bytes known to be there, of an archive an estimate; None where nobody knows
    problem: str | None  # why nothing comes, and the way out; None if all is well
    ended: bool  # nothing more can ever come

    def read(self, most: int) -> bytes:
        """The next bytes, at most `most`; b"" when there are none now. Raises Restarted."""
        ...

    def close(self) -> None:
        """Let go of files, threads and processes; the feed is of no use afterwards."""
        ...


class FileFeed:
    """A local log that a run writes, or will write; of a run folder its `events.jsonl`."""

    ended = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self.name = str(path)
        self.size: int | None = None
        self.problem: str | None = None

    def read(self, most: int) -> bytes:
        path = log_of(self._path)
        self.name = str(path)
        try:
            now = path.stat()
            if not stat.S_ISREG(now.st_mode):  # opening a pipe would block
                raise OSError(0, "not a regular file")
            file = self._file or path.open("rb", buffering=0)
        except OSError as error:
            self.size, self.problem = None, _why_no_file(error, seen=self._file is not None)
            return b""
        self._file, self.size, self.problem = file, now.st_size, None
        if not os.path.samestat(now, os.fstat(file.fileno())) or now.st_size < file.tell():
            self.close()
            raise Restarted
        try:
            return file.read(most)
        except OSError as error:
            self.problem = _why_no_file(error, seen=True)
            return b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class RecordingFeed:
    """A log that is complete, plain or gzip (a name in .gz), unpacked piece by piece; ended where it ends.

    Raises InputError if it cannot be opened. A damaged archive gives what can be read of it, and a problem.
    """

    def __init__(self, path: Path) -> None:
        path = log_of(path)
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
                raise OSError(0, "not a regular file")
            self._raw = path.open("rb")
        except OSError as error:
            raise InputError(f"cannot open the recording {path}: {error.strerror}") from None
        packed = path.suffix == ".gz"
        self._stream = gzip.GzipFile(fileobj=self._raw) if packed else self._raw
        self._stored, self._given = path.stat().st_size, 0
        self.name = str(path)
        self.size: int | None = None
        self.problem: str | None = None
        self.ended = False

    def read(self, most: int) -> bytes:
        pieces: list[bytes] = []
        left = most
        while left > 0 and not self.ended:
            try:
                piece = self._stream.read1(left)
            except (OSError, EOFError, zlib.error) as error:
                self.problem = f"cut off or damaged ({error}): only what comes before is shown"
                piece = b""
            self.ended = not piece
            pieces.append(piece)
            left -= len(piece)
        self._given += most - left
        # What an archive holds is known at its end only: until then, as much a byte as so far.
        self.size = round(self._given * self._stored / max(self._raw.tell(), 1))
        return b"".join(pieces)

    def close(self) -> None:
        self._stream.close()
        self._raw.close()


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


def open_feed(text: str) -> Feed:
    """The feed that a person means, as `opener` reads it."""
    return opener(text)()


def opener(text: str) -> Callable[[], Feed]:
    """What opens the feed that a person means: ssh://HOST/PATH, http(s)://..., a .gz recording, a log, a run folder.

    Over ssh `/~/` is the home folder, and a path that does not end in .jsonl is a run folder. InputError otherwise.
    """
    text = text.strip()
    if not text:
        raise InputError("no log given: a path, a run folder, ssh://HOST/PATH or http://...")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    if scheme is None:
        path = path_of(text)
        return partial(RecordingFeed if path.suffix == ".gz" else FileFeed, path)
    kind = scheme[1].lower()
    if kind not in ("ssh", "http", "https"):
        raise InputError(f"cannot read {text}: {kind}:// is not ssh://, http:// or https://")
    if text.endswith(".gz"):
        raise InputError(f"cannot follow {text}: copy the recording here and open the copy")
    try:
        url = urlsplit(text)
        port, host = url.port, url.hostname
    except ValueError as error:
        raise InputError(f"cannot read {text}: {error}") from None
    if not host or not url.path.strip("/"):
        raise InputError(f"cannot read {text}: give {kind}://HOST/PATH")
    if kind != "ssh":
        return partial(HttpFeed, quote(text, safe=string.punctuation))
    path = url.path.removeprefix("/~/").rstrip("/")
    path = path if path.endswith(".jsonl") else f"{path}/{LOG_NAME}"
    return partial(SshFeed, f"ssh://{url.netloc}" if port else url.netloc, path)


def path_of(text: str) -> Path:
    """A path as a person types it, `~` expanded; InputError where it can be none."""
    try:
        path = Path(text).expanduser()
        if "\0" in text:
            raise ValueError("a NUL in it")
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{printable(text)} is no path: {error}") from None
    return path


def log_of(path: Path) -> Path:
    """The log itself where a run folder is given."""
    try:
        return path / LOG_NAME if path.is_dir() else path
    except OSError:  # too long, or in a folder that may not be looked into
        return path


def _why_no_file(error: OSError, *, seen: bool) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"it cannot be read ({error.strerror}); tried again all the time"
    if seen:
        return "the file is gone; it is read anew as soon as there is one again"
    return "the file does not exist yet; it is read as soon as it does"


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
