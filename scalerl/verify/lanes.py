"""Jobs over workers: one at a time each, a deadline in the parent, SIGKILL and a new worker when it passes.

A job that is slow is set back in priority and its worker replaced, so that it holds up nobody: neither a place nor, as
far as the scheduler can help it, a core.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from scalerl.verify.births import Birth, Nursery
from scalerl.verify.verdict import VerifierError
from scalerl.verify.worker import LONGEST_LINE, WORDS

SLOW_PART = (
    0.2  # of the deadline: a job that has run for so long, and half of it on a processor, is slow
)
LOOK_PART = 0.05  # of the deadline, from one look at a job that may be slow to the next


@dataclass
class Reply:
    """A word of `worker.WORDS`, or `timeout` or `crashed`; a reason; seconds on the worker."""

    word: str
    reason: str
    seconds: float


@dataclass
class Job:
    """What a worker is asked: `same` of a pair, or `read` of a gold; `tried` once a worker died of it."""

    kind: str
    gold: str
    said: str
    deadline_s: float
    tried: bool = False
    done: "Future[Reply]" = field(default_factory=Future)


@dataclass
class Lane:
    """A worker and what it is at; times as of `monotonic`, in seconds."""

    birth: Birth
    job: Job | None = None
    began: float = 0.0
    looked_at: float = 0.0  # when it will be looked at next
    processor_s: float = 0.0  # what its worker had spent when the job began
    slow: bool = False
    heard: bytes = b""


class Lanes:
    """`workers` lanes that take jobs, and up to as many more that are slow. Runs a thread; `submit` from any."""

    def __init__(self, workers: int, memory_bytes: int) -> None:
        self._workers, self._memory_bytes = workers, memory_bytes
        self._waiting: deque[Job] = deque()
        self._lock = threading.Lock()
        self._closing = False
        self._broken: VerifierError | None = None
        self._nursery = Nursery(memory_bytes)
        self._selector = selectors.DefaultSelector()
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._lanes: list[Lane] = []
        self.born = 0
        self._thread = threading.Thread(target=self._run, name="verifier", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> "Future[Reply]":
        """The reply to a job, to come within the deadline of its start on a worker; VerifierError once closed."""
        with self._lock:
            if self._closing or self._broken:
                raise self._broken or VerifierError("the verifier is closed; make a new one")
            self._waiting.append(job)
        self._ring.send(b"!")
        return job.done

    def pids(self) -> list[int]:
        """Process ids of the nursery and of every worker, for those who count them."""
        return [self._nursery.pid, *(lane.birth.pid for lane in list(self._lanes))]

    def close(self) -> None:
        """End every process and wait for it; jobs that are not done get a VerifierError."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._ring.send(b"!")
        self._thread.join()
        self._ring.close()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._fill()
                for key, _ in self._selector.select(self._patience()):
                    self._hear(key.data)
                self._look_at_the_clock()
        except VerifierError as error:
            self._broken = error
        finally:
            self._shut()

    def _shut(self) -> None:
        with self._lock:
            self._closing = self._closing or self._broken is None
            left = [lane.job for lane in self._lanes if lane.job] + list(self._waiting)
            self._waiting.clear()
        for lane in list(self._lanes):
            self._drop(lane)
        self._nursery.close()
        for job in left:
            job.done.set_exception(
                self._broken or VerifierError("the verifier was closed before its answer")
            )
        self._selector.close()
        self._bell.close()

    def _fill(self) -> None:
        """Bear workers where some are missing, and give the idle ones what waits."""
        slow = sum(lane.slow for lane in self._lanes)
        missing = self._workers + min(slow, self._workers) - len(self._lanes)
        for _ in range(missing):
            lane = Lane(self._born())
            self._lanes.append(lane)
            self._selector.register(lane.birth.connection, selectors.EVENT_READ, lane)
        for lane in self._lanes:
            if lane.job is None and self._waiting:
                self._begin(lane, self._waiting.popleft())

    def _born(self) -> Birth:
        self.born += 1
        try:
            return self._nursery.bear()
        except VerifierError:
            self._nursery.close()
            self._nursery = Nursery(self._memory_bytes)
            return self._nursery.bear()

    def _begin(self, lane: Lane, job: Job) -> None:
        lane.job, lane.began, lane.heard = job, monotonic(), b""
        lane.looked_at = lane.began + job.deadline_s * SLOW_PART
        lane.processor_s = _processor_s(lane.birth.pid)
        with contextlib.suppress(OSError):  # a dead worker is noticed by its closed connection
            lane.birth.connection.sendall(
                f"{json.dumps([job.kind, job.gold, job.said])}\n".encode()
            )

    def _hear(self, lane: Lane | None) -> None:
        if lane is None:
            self._bell.recv(4096)
            return
        try:
            said = lane.birth.connection.recv(LONGEST_LINE)
        except OSError:
            said = b""
        lane.heard += said
        if not said or len(lane.heard) > LONGEST_LINE:
            self._bury(lane)
        elif lane.heard.endswith(b"\n"):
            word, _, reason = lane.heard.decode(errors="replace").strip().partition("\t")
            self._finish(lane, word if word in WORDS else "crashed", reason)

    def _bury(self, lane: Lane) -> None:
        """Give the job of a dead worker to another, once: somebody else may have killed the first."""
        if lane.job is None or lane.job.tried:
            self._finish(lane, "crashed", "its worker died, twice")
            return
        lane.job.tried = True
        self._waiting.appendleft(lane.job)
        lane.job = None
        self._drop(lane)

    def _finish(self, lane: Lane, word: str, reason: str) -> None:
        """Hand on a reply. A worker that was slow, died or ran out of memory makes way for a new one."""
        job, lane.job = lane.job, None
        if lane.slow or word in ("timeout", "crashed", "out of memory"):
            self._drop(lane)
        if job:
            job.done.set_result(Reply(word, reason, monotonic() - lane.began))

    def _drop(self, lane: Lane) -> None:
        self._selector.unregister(lane.birth.connection)
        self._lanes.remove(lane)
        self._nursery.end(lane.birth)

    def _patience(self) -> float | None:
        """Seconds until a running job becomes slow or too late; None while none runs."""
        now = monotonic()
        ends = [
            lane.began + lane.job.deadline_s
            if lane.slow
            else min(lane.looked_at, lane.began + lane.job.deadline_s)
            for lane in self._lanes
            if lane.job
        ]
        return max(0.0, min(ends) - now) if ends else None

    def _look_at_the_clock(self) -> None:
        now = monotonic()
        for lane, job in [(lane, lane.job) for lane in self._lanes if lane.job]:
            if now - lane.began >= job.deadline_s:
                self._finish(lane, "timeout", f"no answer within {job.deadline_s:g} s")
            elif not lane.slow and now >= lane.looked_at:
                spent = _processor_s(lane.birth.pid) - lane.processor_s
                lane.slow = spent >= job.deadline_s * SLOW_PART / 2  # else the machine is slow
                lane.looked_at = now + job.deadline_s * LOOK_PART
                if lane.slow:
                    _set_back(lane.birth.pid)


def _processor_s(pid: int) -> float:
    """Processor seconds that a process has spent; where /proc does not say, the time."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _set_back(pid: int) -> None:
    """Let a process run only on cores that nobody else wants: niceness alone still delays every hand-over of a job."""
    with contextlib.suppress(OSError):  # it is dead, which is noticed elsewhere
        if sys.platform == "linux":
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, 20)
