"""A program in tmux, as a person has it: keys by name, the pane as text."""

import itertools
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOOK_EVERY_S = 0.1
_numbers = itertools.count()


class Tmux:
    """One pane on a tmux server of its own."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], columns: int = 100, rows: int = 30
    ) -> None:
        self._socket = f"scalerl-{os.getpid()}-{next(_numbers)}"
        self._env = dict(env)
        size = ["-x", str(columns), "-y", str(rows)]
        self._tmux("-f", os.devnull, "new-session", "-d", *size, f"exec {shlex.join(command)}")
        self.pid = int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def _tmux(self, *words: str, check: bool = True) -> str:
        command = ["tmux", "-L", self._socket, *words]
        return subprocess.run(
            command, env=self._env, text=True, capture_output=True, check=check
        ).stdout

    def send(self, *keys: str) -> None:
        """Press keys, named as tmux names them."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    @property
    def text(self) -> str:
        """The pane as it stands; nothing once the program has ended."""
        return self._tmux("capture-pane", "-p", check=False)

    @property
    def alive(self) -> bool:
        return bool(self._tmux("list-panes", check=False))

    def expect(self, *words: str, seconds: float = 20.0) -> str:
        """The pane, once all the words stand in it. Raises AssertionError with the pane if they do not come."""
        said = ""

        def there() -> bool:
            nonlocal said
            said = self.text
            return all(each in said for each in words)

        assert until(there, seconds), f"not all of {words} within {seconds:g} s:\n{said}"
        return said

    def close(self) -> None:
        """End the program and its tmux."""
        self._tmux("kill-server", check=False)


def until(true: Callable[[], bool], seconds: float) -> bool:
    """Whether it becomes so within that time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def runs_of(place: Path) -> list[int]:
    """Processes that run something in a folder below `place`: its name is among their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if any(word.startswith(os.fsencode(place)) for word in words):
            found.append(int(process.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is there and not merely unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
