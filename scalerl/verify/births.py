"""The parent's end of the nursery: start it, have workers born and ended, close it and leave nothing."""

import os
import select
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scalerl.verify.nursery import END, FORK
from scalerl.verify.verdict import VerifierError

START_S = 60.0
BIRTH_S = 10.0
CLOSE_S = 20.0


@dataclass
class Birth:
    """A worker's process id, and the parent's end of its connection."""

    pid: int
    connection: socket.socket


class Nursery:
    """Not thread-safe: one thread gives the orders. Raises VerifierError if math-verify does not start."""

    def __init__(self, memory_bytes: int) -> None:
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "scalerl.verify.nursery", str(theirs.fileno()), str(memory_bytes)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )  # fmt: skip
        said = self._hear(500, START_S)
        if said != b"ready":
            self.close()
            why = said.decode(errors="replace") or "it ended without a word"
            raise VerifierError(f"math-verify does not start ({why}): install math-verify==0.9.0")

    @property
    def pid(self) -> int:
        return self._process.pid

    def bear(self) -> Birth:
        """A new worker; raises VerifierError if the nursery is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._line, [FORK + bytes(8)], [theirs.fileno()])
            pid = self._hear(8, BIRTH_S)
        except OSError:
            pid = b""
        if len(pid) != 8:
            ours.close()
            raise VerifierError("the verifier's nursery is gone; it is started anew")
        ours.setblocking(False)
        return Birth(int.from_bytes(pid, "big"), ours)

    def end(self, birth: Birth) -> None:
        """Kill a worker; nothing happens if the nursery is gone, as its workers went with it."""
        birth.connection.close()
        try:
            self._line.sendall(END + birth.pid.to_bytes(8, "big"))
        except OSError:
            return

    def close(self) -> None:
        """End the nursery and every worker, and wait for it."""
        self._line.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its workers die with it
            self._process.wait()

    def _hear(self, size: int, seconds: float) -> bytes:
        """What the nursery says; nothing if it is gone or silent for so long."""
        if not select.select([self._line], [], [], seconds)[0]:
            return b""
        return self._line.recv(size)


def _environment() -> dict[str, str]:
    """No variable but those that Python needs: what reads hostile text holds no secret."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
