"""A run as a child process: started, stopped and left running by a screen, and never orphaned.

The child's stdin is its leash. A line `{"cmd": "stop"}` asks it to stop after the update under way; `{"cmd": "detach"}`
cuts the leash, so that it outlives the screen; and when stdin closes without a word (the screen was
killed) it stops as well. What it prints goes to `console.log` in its run folder.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

from scalerl.errors import InputError
from scalerl.loop import Control
from scalerl.recipe import Recipe
from scalerl.user_code import names_code
from scenarios.runs import begin, holder

# Keys are answered first: on two cores this matters as much as the process of its own.
NICENESS = 10
GRACE_S = 60.0  # from a closed stdin to the end of a child that does not stop
CONSOLE = "console.log"
LINE_BYTES = 400  # of a printed line, at most, when the last ones are looked for


class ChildRun:
    """One `scalerl run` in a process of its own. `start_run` makes one."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]", began_at: int = 0) -> None:
        """began_at: bytes that its log held before it: what they say is of an earlier process."""
        self.folder, self._process, self.began_at = folder, process, began_at
        self.stopping = self.detached = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        code = self._process.poll()
        if code is not None:
            self._let_go()
        return code

    def stop(self) -> None:
        """Ask it to stop after the update under way; it saves a checkpoint, and can be taken up again."""
        self.stopping = True
        self._say("stop")

    def detach(self) -> None:
        """Let it go on alone, whatever becomes of this process."""
        self.detached = True
        self._say("detach")
        self._let_go()

    def kill(self) -> None:
        """End it at once; it can be taken up from its last checkpoint."""
        self._process.kill()
        self._process.wait()
        self._let_go()

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or None if it takes longer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exit_code

    def _let_go(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it is gone already
            self._process.stdin.write(json.dumps({"cmd": command}).encode() + b"\n")


def start_run(
    recipe: Recipe,
    folder: Path,
    *,
    no_color: bool = False,
    allow_code: bool = False,
    one_core: bool = False,
) -> ChildRun:
    """Start, or take up, the run of a recipe in its folder, in the background.

    one_core: it shares the machine with others of its kind, and takes one core of it.

    Raises:
        InputError: the run folder cannot be written to, or the recipe names code of the user's own.
    """
    if not allow_code and (named := names_code(recipe)):
        raise InputError(
            f"{named} is code of yours: start the run with `scalerl run ... --allow-code`, and watch it from here"
        )
    # -P: a `tui` folder in the current one must not be taken for ours
    command = [sys.executable, "-P", "-c", "from tui.cli import main; main()"]
    command += ["run", str(folder / "recipe.toml"), "--out", str(folder), "--leash"]
    command += ["--allow-code"] * allow_code + ["--one-core"] * one_core
    quiet = {"OMP_NUM_THREADS": "1"} | ({"NO_COLOR": "1"} if no_color else {})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        begin(folder, recipe)
        log = folder / "events.jsonl"
        began_at = log.stat().st_size if log.exists() else 0
        with (folder / CONSOLE).open("ab") as console:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                bufsize=0,  # a command that nobody reads any more is not tried again later
                stdout=console,
                stderr=console,
                env={**os.environ, **quiet},
                start_new_session=True,  # a terminal that closes ends it by the leash, not in mid-write
            )
    except OSError as error:
        raise InputError(
            f"cannot start a run in {folder}: {error.strerror}: make room, or set SCALERL_RUNS to another folder"
        ) from None
    return ChildRun(folder, process, began_at)


def last_words(folder: Path, lines: int = 5) -> list[str]:
    """The last lines that a run's process printed."""
    try:
        with (folder / CONSOLE).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - lines * LINE_BYTES, 0))
            said = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in said if line.strip()][-lines:]


def ask_to_stop(folder: Path) -> bool:
    """Ask a run of this machine that another process started to stop, saved; False if nobody holds the folder."""
    pid = holder(folder)
    if not pid:
        return False
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError:
        return False
    return True


def obey(control: Control, stdin: int = 0, *, niceness: int = NICENESS) -> None:
    """In the child: follow the commands on stdin in a thread of its own, and end with whoever holds the other end."""
    with suppress(OSError):
        os.nice(niceness)
    # unbuffered: a thread that waits inside a buffered stdin spoils the end of the interpreter
    commands = os.fdopen(stdin, "rb", buffering=0, closefd=False)
    threading.Thread(target=_obey, args=(control, commands), daemon=True).start()


def _obey(control: Control, commands: RawIOBase) -> None:
    for line in iter(commands.readline, b""):
        with suppress(ValueError, AttributeError):
            match json.loads(line).get("cmd"):
                case "stop":
                    control.stop = True
                case "detach":
                    return
    control.stop = True
    time.sleep(GRACE_S)
    os._exit(1)
