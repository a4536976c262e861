"""Processes that verify: hostile text within its deadline, nobody held up by another, nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from verdicts import hostile_completions

from scalerl.errors import ScaleRLError
from scalerl.verify import Outcome, Verdict, Verifier, VerifierError, births, pool

DEADLINE_S = 1.0
SLACK_S = 1.0  # of a shared machine, between a deadline and its notice
SLOW = r"\boxed{(a+b+c+d+f+g+h)^{60}-(h+x)^{70}+y}"  # expanded for longer than any deadline here
SLOW_GOLD = r"\sqrt{x+7}"
HOSTILE = hostile_completions()
GOLDS = ("7", r"\sqrt{7}", r"x^2+\sqrt{7}")


def slow_pairs(count: int) -> list[tuple[str, str]]:
    """As many different pairs that no deadline is long enough for."""
    return [(rf"\sqrt{{x+{n}}}", SLOW) for n in range(2, 2 + count)]


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = monotonic() + seconds
    while not holds() and monotonic() < end:
        sleep(0.02)
    return holds()


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(2, DEADLINE_S) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def hostile(verifier: Verifier) -> dict[tuple[str, str], tuple[Verdict, float]]:
    """The verdict on every hostile completion for every gold, and the seconds that all but queueing took."""
    found, begun = {}, {}
    for gold in GOLDS:
        for name, completion in HOSTILE.items():
            began = monotonic()
            begun[gold, name] = (*verifier._begin(gold, completion), monotonic() - began)
    for key, (verdict, asked, here) in begun.items():
        reply = asked.result() if asked else None
        found[key] = verifier._end(verdict, reply), here + (reply.seconds if reply else 0.0)
    return found


@pytest.mark.parametrize("gold", GOLDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_returns_within_its_deadline(
    gold: str, name: str, hostile: dict[tuple[str, str], tuple[Verdict, float]]
) -> None:
    verdict, seconds = hostile[gold, name]
    assert seconds < DEADLINE_S + SLACK_S, verdict
    assert not verdict.correct and verdict.reason != "its worker died, twice", verdict
    assert not Path("pwned").exists()


def test_a_hostile_text_holds_up_its_own_worker_only(verifier: Verifier) -> None:
    verdicts: list[Verdict] = []
    held = threading.Thread(target=lambda: verdicts.extend(verifier.verify_all(slow_pairs(2))))
    held.start()
    sleep(0.05)
    others = [(rf"\sqrt{{{n}}}", rf"\boxed{{{n}^{{1/2}}}}") for n in range(11, 31)]
    assert all(verdict.correct for verdict in verifier.verify_all(others))
    held.join()
    assert [verdict.outcome for verdict in verdicts] == [Outcome.TIMEOUT] * 2


def test_equal_answers_of_a_group_are_asked_once(verifier: Verifier) -> None:
    began = monotonic()
    verdicts = verifier.verify_all([(SLOW_GOLD, f"attempt {n}: {SLOW}") for n in range(16)])
    assert {verdict.outcome for verdict in verdicts} == {Outcome.TIMEOUT}
    assert monotonic() - began < 2 * DEADLINE_S + SLACK_S


def test_coroutines_wait_without_holding_up_the_loop(verifier: Verifier) -> None:
    async def ticks_beside(pending: list[asyncio.Task[Verdict]]) -> int:
        ticks = 0
        while not all(task.done() for task in pending):
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    async def main() -> tuple[int, list[Verdict]]:
        pairs = [("7", r"\boxed{7}"), (r"\sqrt{12}", r"\boxed{2\sqrt{3}}"), *slow_pairs(22)[20:]]
        pairs.append(("8", "a" * 1_000_000 + r"\boxed{8}"))
        tasks = [asyncio.create_task(verifier.verify_soon(*pair)) for pair in pairs]
        return await ticks_beside(tasks), [task.result() for task in tasks]

    ticks, verdicts = asyncio.run(main())
    assert [verdict.outcome.value for verdict in verdicts] == [
        "correct", "correct", "timeout", "timeout", "correct",
    ]  # fmt: skip
    assert ticks > 20


def test_a_cancelled_wait_leaves_the_verdict_to_others(verifier: Verifier) -> None:
    async def main() -> Verdict:
        pair = (r"\sqrt{28}", r"\boxed{2\sqrt{7}}")
        task = asyncio.create_task(verifier.verify_soon(*pair))
        await asyncio.sleep(0)
        task.cancel()
        return await verifier.verify_soon(*pair)

    assert asyncio.run(main()).correct


def test_every_verdict_is_counted() -> None:
    with Verifier(1, DEADLINE_S) as verifier:
        pairs = [
            ("7", r"\boxed{7}"),
            ("7", r"\boxed{8}"),
            ("7", "none"),
            (r"\frac{1}{", r"\boxed{\sqrt{2}}"),
        ]
        verifier.verify_all([*pairs, (SLOW_GOLD, SLOW)])
        assert verifier.counts() == {
            "correct": 1, "wrong": 1, "unparsable": 2, "timeout": 1, "crashed": 0, "unparsable_gold": 1,
        }  # fmt: skip


def test_a_job_whose_worker_dies_is_tried_again_and_then_a_crash() -> None:
    with Verifier(1, deadline_s=30.0) as verifier:
        asked: list[Verdict] = []
        thread = threading.Thread(target=lambda: asked.append(verifier.verify(SLOW_GOLD, SLOW)))
        thread.start()
        for _ in range(2):
            sleep(0.3)
            [_, worker, *_] = verifier.process_ids()
            os.kill(worker, signal.SIGKILL)
            assert within(5.0, lambda gone=worker: gone not in verifier.process_ids())
        thread.join(10.0)
        assert asked[0].outcome is Outcome.CRASHED
        assert verifier.verify(r"\sqrt{12}", r"\boxed{2\sqrt{3}}").correct


def test_a_nursery_that_dies_takes_its_workers_along_and_is_replaced() -> None:
    with Verifier(2, deadline_s=4.0) as verifier:
        asked: list[Verdict] = []
        thread = threading.Thread(target=lambda: asked.append(verifier.verify(SLOW_GOLD, SLOW)))
        thread.start()
        sleep(0.3)
        before = verifier.process_ids()
        os.kill(before[0], signal.SIGKILL)
        assert within(10.0, lambda: not any(map(alive, before)))
        assert verifier.verify(r"\sqrt{12}", r"\boxed{2\sqrt{3}}").correct
        thread.join()
        assert asked[0].outcome is Outcome.TIMEOUT


def test_memory_is_bounded() -> None:
    with Verifier(1, deadline_s=20.0, memory_gib=0.3) as verifier:
        verdict = verifier.verify(r"\sqrt{7}", r"\boxed{1.5^{1.5^{1.5^{99}}}}")
        assert (verdict.outcome, verdict.reason) == (Outcome.CRASHED, "out of memory")
        assert verifier.verify(r"\sqrt{12}", r"\boxed{2\sqrt{3}}").correct


def _closed_while_verifying(verifier: Verifier) -> None:
    with pytest.raises(VerifierError, match="closed before"):
        verifier.verify(SLOW_GOLD, SLOW)


def test_no_process_is_left_when_it_closes() -> None:
    verifier = Verifier(3, deadline_s=30.0)
    seen = set(verifier.process_ids())
    for n in range(1_000):
        assert verifier.verify(
            rf"\sqrt{{{n % 50 + 2}}}", rf"\boxed{{\sqrt{{{n % 50 + 2}}}+0}}"
        ).correct
    thread = threading.Thread(target=_closed_while_verifying, args=[verifier])
    thread.start()
    sleep(0.2)
    seen |= set(verifier.process_ids())
    verifier.close()
    thread.join()
    assert not any(map(alive, seen))
    with pytest.raises(VerifierError, match="closed"):
        verifier.verify(r"\sqrt{12}", r"\boxed{2\sqrt{3}}")
    verifier.close()


ORPHAN = """
import sys, threading, time
from scalerl.verify import Verifier
verifier = Verifier(2, deadline_s=600.0)
threading.Thread(target=verifier.verify, args=sys.argv[1:], daemon=True).start()
time.sleep(0.3)
print(*verifier.process_ids(), flush=True)
time.sleep(600)
"""


def test_no_process_is_left_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, SLOW_GOLD, SLOW], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3 and all(map(alive, pids))
    parent.kill()
    parent.wait()
    assert within(5.0, lambda: not any(map(alive, pids)))


def test_the_self_test_refuses_a_math_verify_that_errs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SELF_TEST", [(r"\sqrt{2}", r"\sqrt{3}", "correct")])
    with pytest.raises(VerifierError, match=r"says 'wrong' of .* install math-verify==0\.9\.0"):
        Verifier(1)


def test_a_missing_math_verify_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('no module of that name')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        ScaleRLError, match=r"does not start \(ImportError: .*\): install math-verify"
    ):
        births.Nursery(2**31)


def test_a_worker_knows_no_secret(monkeypatch: pytest.MonkeyPatch, verifier: Verifier) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in str(births._environment())
    for pid in verifier.process_ids():
        assert b"PATH=" in (environ := Path(f"/proc/{pid}/environ").read_bytes())
        assert not any(name in environ for name in (b"TOKEN", b"SECRET", b"HOME="))


def test_importing_the_verifier_imports_nothing_heavy() -> None:
    heavy = "[m for m in ('torch', 'sympy', 'math_verify', 'numpy') if m in sys.modules]"
    code = f"import sys, scalerl.verify; print({heavy})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
