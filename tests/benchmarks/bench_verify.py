"""Times the verifier: `python tests/benchmarks/bench_verify.py [--rounds 8] [--pairs 120] [--total 10000]`.

Every figure is a ratio of two things measured turn about in one run, in short turns, as the machine may have other
work: bare processes that call math-verify directly, as many as cores; the verifier, free
and beside hostile answers.
"""

import argparse
import itertools
import os
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, perf_counter

from scalerl.verify import Verifier
from scalerl.verify.normal import normalise
from scalerl.verify.worker import judge

Pair = tuple[str, str]
SLOW = "(a+b+c+d+f+g+h)^{60}-(h+x)^{70}+y"


def pairs() -> Iterator[Pair]:
    """Answers that only math-verify decides, each another one: radicals, polynomials, tuples, intervals, matrices."""
    for n in itertools.count(2):
        yield rf"{n}\sqrt{{3}}", rf"\sqrt{{{3 * n * n}}}"
        yield rf"x^2+{2 * n}x+{n * n}", rf"(x+{n})^2"
        yield rf"(\sqrt{{{n}}}, {n}\pi)", rf"({n}^{{1/2}}, \pi\cdot {n})"
        yield rf"[{n}, \sqrt{{{4 * n * n + 1}}})", rf"[{n}, \sqrt{{{2 * n * n}+{2 * n * n + 1}}})"
        yield rf"\frac{{{n}}}{{\sqrt{{2}}}}", rf"\frac{{{n}\sqrt{{2}}}}{{2}}"
        yield (
            rf"\begin{{pmatrix}}{n}&\sqrt{{8}}\end{{pmatrix}}",
            rf"\begin{{bmatrix}}{n}&2\sqrt{{2}}\end{{bmatrix}}",
        )


def judged(some: list[Pair]) -> None:
    """What one bare process does: every pair through math-verify, as a worker would."""
    for gold, said in some:
        assert judge("same", normalise(gold), normalise(said)) == "correct", (gold, said)


def bare(some: list[Pair], processes: int) -> float:
    """Pairs a second of so many processes side by side, each with its share of the pairs and no verifier."""
    began, children = perf_counter(), []
    for share in range(processes):
        if not (pid := os.fork()):
            try:
                judged(some[share::processes])
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    return len(some) / (perf_counter() - began)


def pooled(verifier: Verifier, some: list[Pair]) -> float:
    """The same of the verifier."""
    began = perf_counter()
    verdicts = verifier.verify_all((gold, rf"\boxed{{{said}}}") for gold, said in some)
    seconds = perf_counter() - began
    assert all(verdict.correct for verdict in verdicts), [v for v in verdicts if not v.correct][:3]
    return len(some) / seconds


def disturbed(verifier: Verifier, some: list[Pair], hostile: Iterator[str]) -> float:
    """Pairs a second of the verifier while as many hostile answers as it has workers run, and go on running."""
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            verifier.verify(next(hostile), rf"\boxed{{{SLOW}}}")

    askers = [threading.Thread(target=keep_asking) for _ in range(verifier.workers)]
    for asker in askers:
        asker.start()
    threading.Event().wait(verifier.deadline_s * 0.4)  # until the first are known to be slow
    rate = pooled(verifier, some)
    stop.set()
    for asker in askers:
        asker.join()
    return rate


def rates(rounds: int, count: int, cores: int) -> None:
    stream = pairs()
    hostile = (rf"\sqrt{{x+{n}}}" for n in itertools.count(2))
    rows = []
    judged(list(itertools.islice(stream, 24)))
    with Verifier(cores, deadline_s=5.0) as verifier:
        pooled(verifier, list(itertools.islice(stream, 24)))
        for number in range(rounds):
            turns = [list(itertools.islice(stream, count)) for _ in range(3)]
            direct, free = bare(turns[0], cores), pooled(verifier, turns[1])
            held = disturbed(verifier, turns[2], hostile)
            rows.append((free / direct, held / free))
            print(
                f"turn {number}: {direct:.0f}/s bare, {free:.0f}/s verifier, {held:.0f}/s beside {cores} hostile"
            )
    names = f"verifier / {cores} bare processes", f"beside {cores} hostile answers / without"
    for name, ratios in zip(names, zip(*rows, strict=True), strict=True):
        print(
            f"{name}: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def leaks(total: int, cores: int) -> None:
    """`total` verifications, one in 500 hostile; then no process may be left."""
    stream, seen, began = pairs(), set(), monotonic()
    with Verifier(cores, deadline_s=2.0) as verifier:
        for start in range(0, total, 500):
            batch = [
                (gold, rf"\boxed{{{said}}}") for gold, said in itertools.islice(stream, 200)
            ] * 2
            batch += [(str(n), rf"\boxed{{{n}}}") for n in range(500 - len(batch))]
            batch[::500] = [(rf"\sqrt{{x+{start + n}}}", rf"\boxed{{{SLOW}}}") for n in range(1)]
            verifier.verify_all(batch)
            seen |= set(verifier.process_ids())
        counts, born = verifier.counts(), verifier._lanes.born
    left = [pid for pid in seen if Path(f"/proc/{pid}").exists()]
    print(f"{sum(counts.values())} verifications in {monotonic() - began:.0f} s: {counts}")
    print(f"workers born {born}, processes left after closing: {len(left)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--total", type=int, default=10_000)
    asked = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    rates(asked.rounds, asked.pairs, cores)
    leaks(asked.total, cores)
