"""The process that bears the workers: it imports math-verify once, then forks a worker in milliseconds when asked.

It has one thread and never looks at an answer, so it is never stuck and may fork. It ends its workers when told to, and
all of them when the process that started it is gone, however that went: it watches both the line and its parent.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys

from scalerl.verify.normal import normalise
from scalerl.verify.worker import confine, judge, serve

PARENT_CHECK_S = 1.0
# An order is 9 bytes: with E the id of a worker, with F a connection and 8 zeros.
FORK, END = b"F", b"E"
SAME = (
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"\frac{a}{\sqrt{2}}", r"\frac{a\sqrt{2}}{2}"),
    (r"(\sqrt{2}, 3\pi)", r"(2^{1/2}, \pi\cdot 3)"),
    (r"[1, \sqrt{5})", r"[1, \sqrt{2+3})"),
    (r"\{1, \sqrt{8}\}", r"\{2\sqrt{2}, 1\}"),
    (r"\begin{pmatrix}2&\sqrt{8}\end{pmatrix}", r"\begin{bmatrix}2&2\sqrt{2}\end{bmatrix}"),
    (r"x < 3", r"(-\infty, 3)"),
    (r"y=2x+1", r"2x-y+1=0"),
    (r"\ln 8", r"3\ln 2"),
    (r"\sin^2 x+\cos^2 x+x", "1+x"),
)


def main(line_fd: int, memory_bytes: int) -> None:
    """Serve orders on an inherited socket until its other end is gone."""
    parent = os.getppid()
    line = socket.socket(fileno=line_fd)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which says what follows
    try:
        _warm()
    except Exception as error:
        line.sendall(f"{type(error).__name__}: {error}".encode()[:500])
        return
    gc.freeze()  # what all workers share stays shared
    line.sendall(b"ready")
    workers: set[int] = set()
    try:
        while os.getppid() == parent and _obey(line, workers, memory_bytes):
            _reap(workers, os.WNOHANG)
    finally:
        for pid in workers:
            _kill(pid)
        _reap(workers, 0)


def _warm() -> None:
    """Import math-verify and compare one pair of each kind, so that every worker is born with grammars and caches."""
    for gold, said in SAME:
        if (word := judge("same", normalise(gold), normalise(said))) != "correct":
            raise RuntimeError(
                f"math-verify says {word!r} of {gold} and {said}, which are the same"
            )


def _obey(line: socket.socket, workers: set[int], memory_bytes: int) -> bool:
    """Carry out one order, if there is one within a second; False when it was the last."""
    if not select.select([line], [], [], PARENT_CHECK_S)[0]:
        return True
    order, descriptors, _, _ = socket.recv_fds(line, 9, 1)
    if order[:1] == FORK:
        pid = _bear(socket.socket(fileno=descriptors[0]), line, memory_bytes)
        workers.add(pid)
        line.sendall(pid.to_bytes(8, "big"))
    elif order[:1] == END and (pid := int.from_bytes(order[1:], "big")) in workers:
        _kill(pid)
    return order[:1] in (FORK, END)


def _bear(connection: socket.socket, line: socket.socket, memory_bytes: int) -> int:
    """Fork a worker on its connection; the worker never returns from here."""
    if pid := os.fork():
        connection.close()
        return pid
    try:
        line.close()
        confine(memory_bytes)
        serve(connection)
    finally:
        os._exit(0)


def _kill(pid: int) -> None:
    """End a child of our own: until it is reaped here, its id belongs to nobody else."""
    if sys.platform == "linux":
        with contextlib.suppress(
            OSError
        ):  # where that is allowed: one set back would be slow to die
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
    os.kill(pid, signal.SIGKILL)


def _reap(workers: set[int], options: int) -> None:
    """Forget the children that are dead; with WNOHANG without waiting for those that are still dying."""
    for pid in list(workers):
        if os.waitpid(pid, options)[0]:
            workers.remove(pid)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
