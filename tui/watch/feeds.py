"""Where the bytes of an event log come from: a file that grows, a recording, another machine, a web server.

A feed hands out bytes in order and never blocks; `tui/watch/follow.py` makes events of them. What has
to wait (ssh, HTTP) waits in a thread behind a bounded queue, so that a slow reader slows the sender
instead of filling the memory.
"""

import gzip
import os
import re
import stat
import string
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import quote, urlsplit

from scalerl.errors import InputError
from tui.words import printable

LOG_NAME = "events.jsonl"


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


def open_feed(text: str) -> Feed:
    """The feed that a person means, as `opener` reads it."""
    return opener(text)()


def opener(text: str) -> Callable[[], Feed]:
    """What opens the feed that a person means: ssh://HOST/PATH, http(s)://..., a .gz recording, a log, a run folder.

    Over ssh `/~/` is the home folder, and a path that does not end in .jsonl is a run folder. InputError otherwise.
    """
    from tui.watch.remote import HttpFeed, SshFeed  # they bring the web's modules

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
        return partial(HttpFeed, quote(text, safe=string.punctuation, errors="surrogateescape"))
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
