r"""The verifier: is the last `\boxed{}` of a completion the gold answer? Hostile text costs a worker, never the run."""

import asyncio
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Self

from scalerl.verify.boxes import check_size, last_answer
from scalerl.verify.compare import is_exact, same
from scalerl.verify.lanes import Job, Lanes, Reply
from scalerl.verify.normal import normalise
from scalerl.verify.verdict import (
    Fault,
    NeedsAlgebra,
    Outcome,
    Refused,
    Unreadable,
    Verdict,
    VerifierError,
)

MOST_CACHED = 100_000
LONG_TEXT = 20_000  # characters from which a completion is not scanned in the event loop's thread
SELF_TEST = (
    (r"2\sqrt{3}", r"\sqrt{12}", "correct"),
    (r"x^2+2x+1", r"(x+1)^2", "correct"),
    (r"\pi", "3.141593", "correct"),
    (r"x < 3", r"(-\infty, 3)", "correct"),
    (r"\sqrt{2}", r"\sqrt{3}", "wrong"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}", "wrong"),
    (r"x^2 = -1", r"x^2 = -2", "wrong"),
    (r"\sqrt{55}", r"\frac{1}{", "unparsable prediction"),
)
SELF_TEST_S = 30.0

_OUTCOMES = {
    "correct": (Outcome.CORRECT, None),
    "wrong": (Outcome.WRONG, None),
    "unparsable gold": (Outcome.UNPARSABLE, Fault.GOLD),
    "unparsable prediction": (Outcome.UNPARSABLE, Fault.PREDICTION),
    "timeout": (Outcome.TIMEOUT, None),
}  # fmt: skip


class Verifier:
    """Compares completions with gold answers; from any thread, and from coroutines.

    `deadline_s` bounds the wall-clock seconds of one comparison on a worker. Raises VerifierError if math-verify is
    missing or fails the start-up self-test. Close it, or use it in `with`: its processes end with it.
    """

    def __init__(
        self, workers: int | None = None, deadline_s: float = 5.0, *, memory_gib: float = 1.0
    ) -> None:
        self.workers, self.deadline_s = workers or os.cpu_count() or 1, deadline_s
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str, str], Future[Reply]] = OrderedDict()
        self._lanes = Lanes(self.workers, int(memory_gib * 2**30))
        try:
            self._self_test()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, busy or not, and wait for them."""
        self._lanes.close()

    def verify(self, gold: str, completion: str) -> Verdict:
        """The verdict on one completion; waits for it."""
        return self.verify_all([(gold, completion)])[0]

    def verify_all(self, pairs: Iterable[tuple[str, str]]) -> list[Verdict]:
        """The verdicts on (gold, completion) pairs, in their order, computed side by side."""
        begun = [self._begin(gold, completion) for gold, completion in pairs]
        return [self._end(verdict, reply.result() if reply else None) for verdict, reply in begun]

    async def verify_soon(self, gold: str, completion: str) -> Verdict:
        """As `verify`, without holding up the event loop."""
        if len(completion) > LONG_TEXT:
            verdict, reply = await asyncio.to_thread(self._begin, gold, completion)
        else:
            verdict, reply = self._begin(gold, completion)
        if reply is None:
            return self._end(verdict, None)
        return self._end(verdict, await asyncio.shield(asyncio.wrap_future(reply)))

    def unreadable_golds(self, golds: Sequence[str]) -> dict[str, str]:
        """Which golds can never be matched but by their very spelling, and why; ask when a data set is loaded."""
        asked: dict[str, Future[Reply]] = {}
        found: dict[str, str] = {}
        for gold in dict.fromkeys(golds):
            try:
                if not is_exact(read := read_gold(gold)):
                    asked[gold] = self._ask("read", read, "")
            except Unreadable as error:
                found[gold] = str(error)
        for gold, reply in asked.items():
            if (answer := reply.result()).word != "correct":
                found[gold] = answer.reason or answer.word
        return {gold: found[gold] for gold in golds if gold in found}

    def counts(self) -> dict[str, int]:
        """How many verdicts of each outcome so far, and `unparsable_gold`, which is among the unparsable."""
        with self._lock:
            return {str(name): self._counts[name] for name in (*Outcome, "unparsable_gold")}

    def process_ids(self) -> list[int]:
        """Of the nursery, then of every worker."""
        return self._lanes.pids()

    def _begin(self, gold: str, completion: str) -> tuple[Verdict, "Future[Reply] | None"]:
        """A verdict, or what is known of one whose outcome the workers are asked for."""
        expected, answer, said = "", None, ""
        try:
            expected = read_gold(gold)
            answer = last_answer(completion)
            if answer is None:
                return Verdict(Outcome.UNPARSABLE, None, Fault.PREDICTION, "no box"), None
            said = normalise(answer)
            check_size(said, Fault.PREDICTION)
            correct = same(expected, said, _refer)
            return Verdict(Outcome.CORRECT if correct else Outcome.WRONG, answer), None
        except NeedsAlgebra:
            return Verdict(Outcome.CRASHED, answer), self._ask("same", expected, said)
        except Refused as error:
            return Verdict(Outcome.WRONG, answer, reason=str(error)), None
        except Unreadable as error:
            return Verdict(Outcome.UNPARSABLE, answer, error.whose, str(error)), None

    def _ask(self, kind: str, gold: str, said: str) -> "Future[Reply]":
        """The reply to a job: under way, known from before, or asked for now. A crash is asked for again."""
        key = (kind, gold, said)
        with self._lock:
            known = self._known.get(key)
            if known is not None and not (
                known.done() and (known.exception() or _crashed(known.result()))
            ):
                self._known.move_to_end(key)
                return known
            job = Job(kind, gold, said, self.deadline_s)
            self._known[key] = job.done
            if len(self._known) > MOST_CACHED:
                self._known.popitem(last=False)
        return self._lanes.submit(job)

    def _end(self, verdict: Verdict, reply: Reply | None) -> Verdict:
        if reply is not None:
            outcome, fault = _OUTCOMES.get(reply.word, (Outcome.CRASHED, None))
            reason = reply.reason or ("" if reply.word in _OUTCOMES else reply.word)
            verdict = replace(verdict, outcome=outcome, fault=fault, reason=reason)
        with self._lock:
            self._counts[verdict.outcome] += 1
            self._counts["unparsable_gold"] += verdict.fault is Fault.GOLD
        return verdict

    def _self_test(self) -> None:
        """Raise VerifierError unless math-verify, through a worker, says what it must of a handful of pairs."""
        jobs = [
            Job("same", normalise(gold), normalise(said), SELF_TEST_S)
            for gold, said, _ in SELF_TEST
        ]
        replies = [self._lanes.submit(job) for job in jobs]
        for (gold, said, expected), reply in zip(SELF_TEST, replies, strict=True):
            word = reply.result().word
            if word != expected:
                raise VerifierError(
                    f"math-verify, as installed, says {word!r} of {said!r} for {gold!r}, not {expected!r}: "
                    "install math-verify==0.9.0 with sympy 1.14 and without gmpy2"
                )


def read_gold(gold: str) -> str:
    """A gold answer in the spelling that is compared; the content of its box if it has one. Raises Unreadable."""
    try:
        boxed = last_answer(gold)
    except Unreadable as error:
        raise Unreadable(Fault.GOLD, str(error)) from None
    text = normalise(gold[:2_000] if boxed is None else boxed)
    check_size(text, Fault.GOLD)
    return text


def _refer(_gold: str, _said: str) -> bool:
    raise NeedsAlgebra


def _crashed(reply: Reply) -> bool:
    return reply.word in ("crashed", "out of memory")
