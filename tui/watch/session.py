"""A run that is looked at: where its log comes from, what is known of it, and the process behind it."""

import json
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from scalerl.errors import InputError
from scalerl.events import FORMAT, Event
from scalerl.recipe import Recipe
from scalerl.settings import Layers
from scenarios.runs import is_locked, runs_root
from tui.watch.child import ChildRun, last_words
from tui.watch.feeds import LOG_NAME, FileFeed, RecordingFeed, log_of, open_feed, path_of
from tui.watch.follow import Follower, State, how_it_exited
from tui.watch.store import RunStore

VOID: Event = {"v": FORMAT, "kind": "resume", "from_seq": 0, "clock": 0.0, "gpu_h": 0.0}
GONE_S = 8.0  # without a line, heartbeats included, before it is asked who holds the run folder
RUNNING = (State.LIVE, State.STALE, State.SILENT)
BURST_S = 0.012  # of one turn of reading while catching up: keys are answered between two


class Session:
    """One source of events and the store they fill. kind: "local", "remote" or "recording"."""

    def __init__(
        self,
        source: str,
        *,
        child: ChildRun | None = None,
        replay: bool = False,
        record: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open a source: a run folder, a log, a recording, ssh:// or http://.

        replay: read a log to its end and no further, as a recording.

        Raises:
            InputError: the source cannot be what it says it is, or the record cannot be written.
        """
        self.source = source if "://" in source else str(path_of(source))
        source, self.child = self.source, child
        feed = RecordingFeed(log_of(Path(source))) if replay else open_feed(source)
        self.kind = "remote"
        if isinstance(feed, RecordingFeed):
            self.kind = "recording"
        elif isinstance(feed, FileFeed):
            self.kind = "local"
        self.recorded, self._record = record, _opened(record)
        self.follower = Follower(feed, now)
        self.store = RunStore()

    @property
    def folder(self) -> Path | None:
        """The run folder, of a run of this machine; None for a log that stands alone."""
        path = Path(self.source)
        if self.kind != "local" or (path.suffix == ".jsonl" and path.name != LOG_NAME):
            return None
        return path.parent if path.name == LOG_NAME else path

    @property
    def name(self) -> str:
        """What a person calls it."""
        folder = self.folder
        if folder is None:
            return self.source.rpartition("/")[2] if self.kind == "recording" else self.source
        root, place = runs_root().absolute(), folder.absolute()
        return str(place.relative_to(root)) if place.is_relative_to(root) else str(folder)

    def pump(self) -> bool:
        """Read what there is, for a few milliseconds at most; whether anything came.

        Raises:
            InputError: it cannot go on recording; reading can go on.
        """
        if self.child is not None and (code := self.child.exit_code) is not None:
            self.follower.exited(code)
        until = time.monotonic() + BURST_S
        came = False
        while True:
            batch = self.follower.poll()
            if batch.restarted:
                self.store.reset()
                self._keep([VOID])
            self.store.take(batch.events)
            self._keep(batch.events)
            came = came or bool(batch.events) or batch.restarted
            if not self.behind or time.monotonic() > until:
                return came

    @property
    def _unheard(self) -> bool:
        """Whether a child was started and has not said anything yet: what the log says is of another one."""
        return self.child is not None and self.follower.bytes_read <= self.child.began_at

    @property
    def _gone(self) -> bool:
        """Whether the run of this machine has lost its process: no line for long, and nobody holds its folder."""
        if (self.follower.age_s or 0.0) < GONE_S or self.follower.state not in RUNNING:
            return False
        folder = self.folder
        return folder is not None and (folder / "lock").is_file() and not is_locked(folder)

    @property
    def state(self) -> State:
        """How things stand."""
        if self._gone:
            return State.CRASHED
        if self.child is None or not self._unheard:
            return self.follower.state
        code = self.child.exit_code
        return State.WAITING if code is None else State.CRASHED if code else self.follower.state

    @property
    def says(self) -> str:
        """The state in a sentence."""
        code = self.child.exit_code if self.child is not None and self._unheard else None
        if self._gone:
            return "the process that ran it is gone without a last word: it was killed"
        return how_it_exited(code) if code else self.follower.says

    @property
    def behind(self) -> bool:
        """Whether more is there to read at once."""
        return self.follower.state is State.CATCHING_UP

    def _keep(self, events: list[Event]) -> None:
        if self._record is None or not events:
            return
        lines = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        rest = memoryview(lines.encode())
        try:
            while rest:
                rest = rest[self._record.write(rest) :]
        except OSError as error:
            self._record.close()
            target, self._record, self.recorded = self.recorded, None, None
            raise InputError(
                f"cannot go on recording to {target}: {error.strerror}: make room, and press R again"
            ) from None

    def recipe(self) -> Recipe | None:
        """The recipe of the run as its log has it; None before it said so, or if this program cannot read it."""
        head = self.store.head or {}
        layers = Layers()
        values = head.get("recipe")
        if not isinstance(values, dict):
            return None
        try:
            layers.add(_known(values), self.source)
            layers.add(_known({"site": head.get("site")}), self.source)
            return layers.build(Recipe)
        except (InputError, TypeError, AttributeError):
            return None

    def last_words(self) -> list[str]:
        """The last lines that the run's process printed, of a run of this machine."""
        return [] if self.folder is None else last_words(self.folder)

    def close(self) -> None:
        self.follower.close()
        if self._record is not None:
            self._record.close()


def _known(values: dict) -> dict:
    """Without None, for which TOML and recipes have no word."""
    return {
        key: _known(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _opened(path: Path | None) -> FileIO | None:
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb", buffering=0)  # nothing is left to be written when it is closed
    except OSError as error:
        raise InputError(f"cannot record to {path}: {error.strerror}") from None
