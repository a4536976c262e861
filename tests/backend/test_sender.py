"""The trainer's side of the weight wire: an engine that dies, hangs or lags is named, the others get everything."""

import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event

import pytest
import torch
from torch import Tensor

from backend.receiver import Receiver
from backend.sender import WAITING_BUCKETS, Sender
from backend.wire import Layout, free_port
from scalerl.errors import PushFailed

LONG_S = 60.0  # a timeout that no test may reach
SOON_S = 2.0  # what counts as at once on a busy machine
FLOATS = 1 << 18  # 1 MiB a tensor and a bucket: more than the sockets' own buffers hold at once


def layout(buckets: int) -> Layout:
    names = tuple(f"layer{i}" for i in range(buckets))
    return Layout(names, ("float32",) * buckets, ((FLOATS,),) * buckets, 4 * FLOATS)


def bytes_of(plan: Layout, seed: int = 0) -> Tensor:
    return torch.randint(
        256, (plan.nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


class Gathered:
    """Buckets as trainer ranks gather them. Counts those taken; `at` is called before bucket `when`, from 1."""

    def __init__(
        self, plan: Layout, flat: Tensor, when: int = 0, at: Callable[[], object] | None = None
    ) -> None:
        self.plan, self.flat, self.when, self.at = plan, flat, when, at
        self.taken, self.ended = 0, False

    def __iter__(self) -> Iterator[Tensor]:
        for number, (start, stop) in enumerate(self.plan.buckets(), 1):
            if number == self.when and self.at is not None:
                self.at()
            self.taken += 1
            yield self.flat[start:stop].clone()
        self.ended = True


def sender(plan: Layout, timeout_s: float = LONG_S) -> Sender:
    return Sender(plan, kind="gloo", timeout_s=timeout_s, device="cpu")


def receiver(plan: Layout) -> Receiver:
    return Receiver(plan, kind="gloo", timeout_s=LONG_S, device="cpu")


def connect(rank: Sender, engine: int, end: Receiver) -> None:
    with ThreadPoolExecutor(1) as aside:
        port = free_port()
        joined = aside.submit(end.connect, "trainer 0", "127.0.0.1", port)
        rank.connect(engine, f"generator {engine}", "127.0.0.1", port)
        joined.result()


def generator(plan: dict, port: int, ready: Event) -> None:
    """A generator in a process of its own, which takes one version after another."""
    end = receiver(Layout.from_json(plan))
    ready.set()
    end.connect("trainer 0", "127.0.0.1", port)
    for version in range(1, 9):
        end.begin(version)
        end.finish(version, LONG_S)


@contextmanager
def engine_process(rank: Sender, number: int) -> Iterator[BaseProcess]:
    spawn, port = get_context("spawn"), free_port()
    ready = spawn.Event()
    process = spawn.Process(
        target=generator, args=(rank.layout.to_json(), port, ready), daemon=True
    )
    process.start()
    try:
        assert ready.wait(LONG_S)
        rank.connect(number, f"generator {number}", "127.0.0.1", port)
        yield process
    finally:
        process.kill()
        process.join()


def signal_to(process: BaseProcess, number: signal.Signals) -> Callable[[], None]:
    def act() -> None:
        assert process.pid is not None
        os.kill(process.pid, number)

    return act


# ---- all is well ----


def test_every_engine_gets_the_same_bytes() -> None:
    plan = layout(5)
    ends = {0: receiver(plan), 2: receiver(plan)}
    with closing(sender(plan)) as rank:
        for engine, end in ends.items():
            connect(rank, engine, end)
        for version in (1, 2):
            flat = bytes_of(plan, version)
            for end in ends.values():
                end.begin(version)
            assert rank.push(version, iter(Gathered(plan, flat)), [0, 2]) == {0: None, 2: None}
            for end in ends.values():
                assert torch.equal(end.finish(version, SOON_S), flat)


def test_a_push_goes_only_to_the_engines_named() -> None:
    plan = layout(2)
    ends = receiver(plan), receiver(plan)
    with closing(sender(plan)) as rank:
        for engine, end in enumerate(ends):
            connect(rank, engine, end)
        ends[1].begin(1)
        assert rank.push(1, iter(Gathered(plan, bytes_of(plan))), {1}) == {1: None}


def test_the_iterator_is_drained_without_engines() -> None:
    plan = layout(3)
    gathered = Gathered(plan, bytes_of(plan))
    assert sender(plan).push(1, iter(gathered), []) == {}
    assert gathered.ended
    gathered = Gathered(plan, bytes_of(plan))
    failures = sender(plan).push(1, iter(gathered), [4])
    assert gathered.ended
    assert failures == {4: "send version 1: there is no channel to the engine: connect it first"}


def test_few_buckets_wait_for_a_slow_engine() -> None:
    plan = layout(12)
    end = receiver(plan)
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def gathered() -> Iterator[Tensor]:
        nonlocal most
        for start, stop in plan.buckets():
            bucket = torch.zeros(stop - start, dtype=torch.uint8)
            alive.append(weakref.ref(bucket))
            most = max(most, sum(one() is not None for one in alive))
            yield bucket

    with closing(sender(plan)) as rank, ThreadPoolExecutor(1) as aside:
        connect(rank, 0, end)
        pushing = aside.submit(rank.push, 1, gathered(), [0])
        time.sleep(0.3)
        assert len(alive) < 12
        end.begin(1)
        assert pushing.result() == {0: None}
    # Those in the queue, the one that is being sent, the one that waits for a place, and the generator's.
    assert most <= WAITING_BUCKETS + 3


# ---- one engine fails ----


def test_an_engine_killed_in_mid_transfer_is_named_at_once_and_the_other_gets_everything() -> None:
    plan = layout(12)
    flat, end = bytes_of(plan), receiver(plan)
    with closing(sender(plan)) as rank, engine_process(rank, 1) as victim:
        connect(rank, 0, end)
        end.begin(1)
        gathered = Gathered(plan, flat, when=6, at=signal_to(victim, signal.SIGKILL))
        start = time.monotonic()
        failures = rank.push(1, iter(gathered), [1, 0])
        assert time.monotonic() - start < SOON_S
        assert failures[0] is None and gathered.ended
        assert failures[1] is not None
        assert failures[1].startswith("send bucket ") and " of 12: generator 1: " in failures[1]
        assert torch.equal(end.finish(1, SOON_S), flat)

        # The next push passes the dead engine by, and a new process takes its place.
        end.begin(2)
        gathered = Gathered(plan, flat)
        again = rank.push(2, iter(gathered), [0, 1])
        assert gathered.ended
        assert again == {0: None, 1: "send bucket 1 of 12: generator 1: the channel is closed"}
        end.finish(2, SOON_S)

        new = receiver(plan)
        connect(rank, 1, new)
        end.begin(3)
        new.begin(3)
        assert rank.push(3, iter(Gathered(plan, flat)), [0, 1]) == {0: None, 1: None}
        assert torch.equal(new.finish(3, SOON_S), flat)


@pytest.mark.parametrize(("buckets", "when", "delay_s"), [(3, 1, 0.0), (16, 4, 2.0)])
def test_an_engine_that_hangs_costs_one_timeout(buckets: int, when: int, delay_s: float) -> None:
    """The other has everything at once if the rest fits into the queue of the one that hangs, else after that."""
    plan = layout(buckets)
    flat, end = bytes_of(plan), receiver(plan)
    with (
        closing(sender(plan, timeout_s=2.0)) as rank,
        engine_process(rank, 1) as victim,
        ThreadPoolExecutor(1) as aside,
    ):
        connect(rank, 0, end)
        end.begin(1)
        gathered = Gathered(plan, flat, when, at=signal_to(victim, signal.SIGSTOP))
        start = time.monotonic()
        pushing = aside.submit(rank.push, 1, iter(gathered), [1, 0])
        assert torch.equal(end.finish(1, LONG_S), flat)
        assert time.monotonic() - start < delay_s + 1.5
        failures = pushing.result()
        assert 2.0 <= time.monotonic() - start < 2.0 + SOON_S
        assert failures[0] is None and gathered.ended
        assert failures[1] is not None and ": generator 1: Timed out waiting 2000ms" in failures[1]


def test_an_engine_with_another_version_is_found_out() -> None:
    plan = layout(3)
    ends = receiver(plan), receiver(plan)
    with closing(sender(plan)) as rank:
        for engine, end in enumerate(ends):
            connect(rank, engine, end)
        ends[0].begin(7)
        ends[1].begin(6)
        assert rank.push(7, iter(Gathered(plan, bytes_of(plan))), [0, 1]) == {
            0: None,
            1: "acknowledge version 7: generator 1: it received version 6",
        }


# ---- the trainer fails ----


def test_an_iterator_that_raises_ends_the_push_for_everybody() -> None:
    plan = layout(6)
    end = receiver(plan)

    def broken() -> None:
        raise ValueError("the gathering broke")

    with closing(sender(plan)) as rank:
        connect(rank, 0, end)
        end.begin(1)
        start = time.monotonic()
        with pytest.raises(ValueError, match="the gathering broke"):
            rank.push(1, iter(Gathered(plan, bytes_of(plan), when=3, at=broken)), [0])
        with pytest.raises(PushFailed, match=r"^receive bucket \d of 6: trainer 0: "):
            end.finish(1, SOON_S)
        assert time.monotonic() - start < SOON_S


def test_connecting_anew_replaces_the_old_channel() -> None:
    plan = layout(2)
    old, new = receiver(plan), receiver(plan)
    with closing(sender(plan)) as rank:
        connect(rank, 0, old)
        old.begin(1)
        connect(rank, 0, new)
        with pytest.raises(PushFailed, match=r"^receive bucket 1 of 2: trainer 0: "):
            old.finish(1, SOON_S)
        new.begin(1)
        assert rank.push(1, iter(Gathered(plan, bytes_of(plan))), [0]) == {0: None}
        rank.disconnect(0)
        new.begin(2)
        with pytest.raises(PushFailed, match="trainer 0"):
            new.finish(2, SOON_S)
