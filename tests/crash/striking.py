"""The parent of a run that dies: strikes it when the time has come, and listens until its last mark."""

import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Event

import crashing
from crashing import OPENING, PLACES, Blow
from tiny_runs import SMALL

HANGS_AFTER_S, HUNG = 300.0, "nothing more: it hung"
MARKS_OF_A_RESUME = 24
SITE = (*SMALL, "site.checkpoint_every_updates=2", "site.device=cpu")
KINDS = {
    "pipeline, cache kept": ("staleness.k=4",),
    "alternating": ("staleness.kind=ppo_off_policy", "staleness.k=3", "kv_on_push=recompute"),
    "resampling, cache recomputed": (
        "staleness.k=2",
        "kv_on_push=recompute",
        "zero_variance=resample",
    ),
}
# (place, how): "anywhere" is any moment of the loop, "opening" start-up or resume
WEIGHTS = {
    ("anywhere", "time"): 6.0,
    ("checkpoint", "time"): 2.0,
    ("checkpoint", "mark"): 3.0,
    ("checkpoint", "torn"): 1.0,
    ("push", "time"): 2.0,
    ("push", "mark"): 4.0,
    ("opening", "time"): 1.5,
    ("opening", "mark"): 1.0,
    ("opening", "torn"): 0.5,
    ("log", "torn"): 1.0,
    ("ending", "mark"): 0.5,
}


@dataclass(frozen=True)
class Mark:
    """When the parent heard it, in seconds since the child was started; where, and what."""

    t: float
    place: str
    what: str


@dataclass
class Life:
    """One process of a run, from its start to its end: killed, or not."""

    blow: Blow | None
    marks: list[Mark]
    status: int
    said: str  # its last line on stderr
    orphans: bool

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


def live(
    folder: Path, arguments: list[str], blow: Blow | None, fault: str, interrupted: Event
) -> Life:
    """`scalerl ARGUMENTS`, with its run in `folder`, until it ends or the blow ends it."""
    order = {
        "folder": str(folder),
        "arguments": arguments,
        "blow": asdict(blow) if blow else None,
        "fault": fault,
    }
    ours, theirs = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, crashing.__file__, str(theirs), json.dumps(order)],
            pass_fds=[theirs],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        os.close(theirs)
        marks = list(_follow(ours, child, blow, interrupted))
        os.close(ours)
        status = child.wait()
        said.seek(0)
        last = (said.read().decode(errors="replace").splitlines() or [""])[-1]
    return Life(blow, marks, status, last, _kill_group(child.pid))


def _follow(
    pipe: int, child: "subprocess.Popen[bytes]", blow: Blow | None, interrupted: Event
) -> Iterator[Mark]:
    """The marks of a child until it has ended; kills it when the time of a blow has come, or when it hangs."""
    started, rest, place = time.monotonic(), b"", ""
    due, hangs_at = math.inf, started + HANGS_AFTER_S
    left = blow.nth if blow is not None and blow.delay_s is not None else 0
    while True:
        patience = min(due - time.monotonic(), 0.5)
        ready, _, _ = select.select([pipe], [], [], max(patience, 0.0))
        now = time.monotonic()
        if now >= hangs_at or interrupted.is_set():
            child.kill()
            hangs_at = math.inf
            yield Mark(now - started, place, HUNG)
        elif now >= due:
            due = math.inf
            if place != "exit":  # else the run is over: too late
                child.kill()
        if not ready:
            continue
        data = os.read(pipe, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            place, _, what = line.decode().partition("\t")
            yield Mark(now - started, place, what)
            if left and blow is not None and blow.is_in(place):
                left -= 1
                if left == 0:
                    due = now + (blow.delay_s or 0.0)


def _kill_group(pid: int) -> bool:
    """Whether a dead child has left processes behind; if so they are killed."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Reference:
    """A run that was never killed: what it left in its folder, how often and how long it was in each place."""

    def __init__(self, kind: str, folder: Path, interrupted: Event) -> None:
        self.kind, self.folder = kind, folder
        life = live(folder, arguments(kind, folder), None, "", interrupted)
        if life.status != 0 and not interrupted.is_set():
            raise SystemExit(f"the run that is never killed has failed: {life.said}")
        self.marks = Counter(mark.place for mark in life.marks)
        self.seconds: dict[str, float] = dict.fromkeys(PLACES, 0.0)
        self.visits: Counter[str] = Counter()
        for here, after in pairwise(life.marks):
            self.seconds[here.place] += after.t - here.t
            self.visits[here.place] += here.place != after.place

    def blow(self, random: Random, begun: bool) -> Blow:
        """One kill, for a run that has been begun, or not yet."""
        place, how = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        opening = place == "opening"
        place = OPENING[begun] if opening else place
        if place == "anywhere":
            loop_s = sum(s for place, s in self.seconds.items() if place not in OPENING)
            return Blow(place, 1, delay_s=random.uniform(0, 0.7 * loop_s))
        if how == "time":
            like = OPENING[0] if opening else place
            once_s = self.seconds[like] / max(self.visits[like], 1)
            nth = 1 if opening else random.randint(1, self.marks[place] // 2)
            return Blow(place, nth, delay_s=random.uniform(0, once_s))
        if how == "torn" and place != "start-up":  # which tears nothing
            return Blow(place, random.randint(1, 1 if opening else 24), torn=random.random())
        most = MARKS_OF_A_RESUME if place == "resume" else self.marks[place]
        return Blow(place, random.randint(1, most if opening else most // 2))


def arguments(kind: str, folder: Path) -> list[str]:
    return ["run", "scalerl", *SITE, *KINDS[kind], "--out", str(folder), "--json"]
