"""A program in a terminal of its own, its screen as text, and the moment at which something appears on it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SCALERL = [sys.executable, "-P", "-c", "from tui.cli import main; main()"]

# What Textual writes: where to go on, how, and what. All else (modes, titles) leaves the text as it is.
_SEQUENCE = re.compile(
    rb"\x1b\[(?P<place>[\d;]*)H"
    rb"|\x1b\[(?P<style>[\d;]*)m"
    rb"|\x1b\[[<-?]?[\d;]*\$?[A-Za-z~]"
    rb"|\x1b\][^\x07]*\x07"
    rb"|(?P<turn>[\r\n])"
    rb"|(?P<text>[^\x1b\r\n]+)"
)
# The start of a sequence or of a character, the rest of which has not come.
_TORN = re.compile(
    rb"(?:\x1b(?:\[[<-?]?[\d;]*\$?|\][^\x07]*)?"
    rb"|[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})$"
)


class Screen:
    """The cells of a terminal that Textual draws on; every character is taken to be one cell wide."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._styles = [[b""] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._style = b""
        self._torn = b""

    def feed(self, data: bytes) -> None:
        """Take what the program wrote."""
        data = self._torn + data
        torn = _TORN.search(data)
        self._torn = torn[0] if torn else b""
        for found in _SEQUENCE.finditer(data[: len(data) - len(self._torn)]):
            if (place := found["place"]) is not None:
                row, _, column = place.partition(b";")
                self._y, self._x = int(row or 1) - 1, int(column or 1) - 1
            elif found["style"] is not None:
                self._style = found["style"]
            elif found["turn"]:
                self._x = 0
                self._y += found["turn"] == b"\n"
            elif found["text"]:
                self._put(found["text"].decode("utf-8", "replace"))

    def _put(self, text: str) -> None:
        if self._y < self._rows:
            text = text[: self._columns - self._x]
            end = self._x + len(text)
            self._cells[self._y][self._x : end] = text
            self._styles[self._y][self._x : end] = [self._style] * len(text)
            self._x = end

    def line(self, y: int) -> str:
        return "".join(self._cells[y])

    @property
    def text(self) -> str:
        return "\n".join(self.line(y) for y in range(self._rows))

    def style(self, x: int, y: int) -> bytes:
        """The parameters of the SGR sequence that a cell was drawn with."""
        return self._styles[y][x]


class Terminal:
    """A program on a pty. Times are of `time.monotonic`: when its bytes could be read."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        columns: int = 120,
        rows: int = 36,
    ) -> None:
        self.screen = Screen(columns, rows)
        self.started = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # nothing but this between fork and exec
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execvpe(command[0], list(command), {**env, "TERM": "xterm-256color"})

    def send(self, keys: str) -> float:
        """Press keys; when that was."""
        now = time.monotonic()
        os.write(self._fd, keys.encode())
        return now

    def wait(self, seen: Callable[[Screen], bool], seconds: float) -> float | None:
        """When the screen first was as wanted; None if it is not within so many seconds, or the program ended."""
        until = now = time.monotonic()
        until += seconds
        while not seen(self.screen):
            if not select.select([self._fd], [], [], max(until - time.monotonic(), 0.0))[0]:
                return None
            now = time.monotonic()
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # Linux says so where others read nothing
                return None
            if not data:
                return None
            self.screen.feed(data)
        return now

    def expect(self, words: str, seconds: float) -> float:
        """When the words stood on the screen. Raises AssertionError with the screen if they do not come."""
        found = self.wait(lambda screen: words in screen.text, seconds)
        assert found is not None, (
            f"{words!r} did not appear within {seconds:g} s:\n{self.screen.text}"
        )
        return found

    def idle(self, seconds: float) -> None:
        """Keep reading, as a terminal does."""
        self.wait(lambda _: False, seconds)

    def close(self) -> None:
        """End the program, at once."""
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._fd)


def environment(place: Path) -> dict[str, str]:
    """Of a program with a home and a runs folder of its own, and nothing else of whoever runs this."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        "LANG": "C.UTF-8", **kept, "HOME": str(place), "XDG_STATE_HOME": str(place / "state"),
        "SCALERL_RUNS": str(place / "runs"), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
