"""The weight wire: where each byte lies, that it arrives, and how each thing that can break says so in time."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend.receiver import Receiver
from backend.wire import Channel, Layout, free_port
from scalerl.errors import PushFailed

LONG_S = 60.0  # a timeout that no test may reach
SOON_S = 2.0  # what counts as at once on a busy machine
LAYOUT = Layout(
    names=("norm", "head", "bias"),
    dtypes=("bfloat16", "float32", "bfloat16"),
    shapes=((5,), (6, 16), ()),
    bucket_bytes=128,
)


def bytes_of(nbytes: int, seed: int = 0) -> Tensor:
    return torch.randint(
        256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def open_end(rank: int, port: int, timeout_s: float = LONG_S) -> Channel:
    return Channel.open(
        kind="gloo",
        host="127.0.0.1",
        port=port,
        rank=rank,
        timeout_s=timeout_s,
        peer=("generator 1", "trainer 0")[rank],
        device="cpu",
    )


def receiver(timeout_s: float = LONG_S) -> Receiver:
    return Receiver(LAYOUT, kind="gloo", timeout_s=timeout_s, device="cpu")


@contextmanager
def both_ends(timeout_s: float = LONG_S) -> Iterator[tuple[Channel, Channel, ThreadPoolExecutor]]:
    """The sending and the receiving end, and a thread to use one of them from."""
    with ThreadPoolExecutor(1) as aside:
        port = free_port()
        sending = aside.submit(open_end, 0, port, timeout_s)
        ends = open_end(1, port, timeout_s), sending.result()
        yield ends[1], ends[0], aside
        for end in ends:
            end.close()


@contextmanager
def fed(end: Receiver) -> Iterator[tuple[Channel, ThreadPoolExecutor]]:
    """The channel on which a trainer feeds the receiver, and a thread to send from."""
    with ThreadPoolExecutor(1) as aside:
        port = free_port()
        sending = aside.submit(open_end, 0, port)
        end.connect("trainer 0", "127.0.0.1", port)
        channel = sending.result()
        yield channel, aside
        channel.close()


def send_all(channel: Channel, flat: Tensor, version: int) -> None:
    for start, stop in LAYOUT.buckets():
        channel.send(flat[start:stop])
    channel.await_acknowledgement(version)


# ---- the layout ----


def test_the_worked_layout() -> None:
    layout = Layout(("norm", "head"), ("bfloat16", "float32"), ((1,), (3, 4)), bucket_bytes=32)
    assert layout.spans == (
        (0, 2),
        (16, 64),
    )  # 1 * 2 bytes; 12 * 4 bytes from the next multiple of 16
    assert layout.nbytes == 64
    assert layout.buckets() == [(0, 16), (16, 48), (48, 64)]  # the head, of 48 bytes, is cut


def test_small_tensors_share_a_bucket_and_are_not_cut() -> None:
    layout = Layout(tuple("abc"), ("float32",) * 3, ((4,), (4,), (8,)), bucket_bytes=48)
    assert layout.buckets() == [(0, 32), (32, 64)]  # 16 + 16, then 32: all three would be 64


def test_no_tensors_are_no_bytes() -> None:
    assert Layout((), (), (), 16).buckets() == []
    assert Layout((), (), (), 16).nbytes == 0


tensors = st.lists(
    st.tuples(st.sampled_from(["bfloat16", "float32"]), st.lists(st.integers(0, 5), max_size=3)),
    max_size=6,
)


@given(tensors, st.integers(1, 8))
def test_views_and_buckets_of_any_layout(tensors: list, sixteens: int) -> None:
    layout = Layout(
        names=tuple(f"t{i}" for i in range(len(tensors))),
        dtypes=tuple(dtype for dtype, _ in tensors),
        shapes=tuple(tuple(shape) for _, shape in tensors),
        bucket_bytes=16 * sixteens,
    )
    assert Layout.from_json(layout.to_json()) == layout
    values = {
        name: torch.randn(shape).to(getattr(torch, dtype))
        for name, (dtype, shape) in zip(layout.names, tensors, strict=True)
    }
    sent, arrived = (torch.zeros(layout.nbytes, dtype=torch.uint8) for _ in range(2))
    for name, view in layout.views(sent):
        view.copy_(values[name])
    edges = [0]
    for start, stop in layout.buckets():
        assert start == edges[-1] and 0 < stop - start <= layout.bucket_bytes
        edges.append(stop)
        arrived[start:stop] = sent[start:stop]
    assert edges[-1] == layout.nbytes
    assert [name for name, _ in layout.views(arrived)] == list(layout.names)
    for name, view in layout.views(arrived):
        assert view.dtype == values[name].dtype and torch.equal(view, values[name])
    for start, stop in layout.spans:
        cut = any(start < edge < stop for edge in edges)
        assert cut == (stop - start > layout.bucket_bytes)


# ---- the channel ----


def test_bytes_arrive_equal() -> None:
    flat, arrived = bytes_of(LAYOUT.nbytes), torch.zeros(LAYOUT.nbytes, dtype=torch.uint8)
    with both_ends() as (sending, receiving, aside):
        for version in (1, 2):
            sent = aside.submit(send_all, sending, flat, version)
            for start, stop in LAYOUT.buckets():
                receiving.receive(arrived[start:stop])
            receiving.acknowledge(version)
            sent.result()
            assert torch.equal(arrived, flat)


def test_acknowledging_another_version_fails_and_ends_the_channel() -> None:
    with both_ends() as (sending, receiving, aside):
        waiting = aside.submit(sending.await_acknowledgement, 12)
        receiving.acknowledge(11)
        with pytest.raises(
            PushFailed, match=r"^acknowledge version 12: generator 1: it received version 11$"
        ):
            waiting.result()
        with pytest.raises(PushFailed, match=r"^receive bucket 1 of 9: trainer 0: "):
            receiving.receive(bytes_of(8), "bucket 1 of 9")


@pytest.mark.parametrize(("rank", "peer"), [(0, "generator 1"), (1, "trainer 0")])
def test_nobody_there_fails_in_time_and_by_name(
    rank: int, peer: str, capfd: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    with pytest.raises(PushFailed, match=rf"^connect: {peer} at 127.0.0.1:\d+: "):
        open_end(rank, free_port(), timeout_s=0.5)
    assert 0.4 < time.monotonic() - start < 0.5 + SOON_S
    assert "TCPStore.cpp" not in capfd.readouterr().err  # whose log of a refusal is 30 lines


def test_a_host_that_hangs_fails_in_time() -> None:
    """torch's own client would wait for ever: the kernel accepts for a stopped process."""
    mute = socket.create_server(("127.0.0.1", 0))
    port, start = mute.getsockname()[1], time.monotonic()
    mute.detach()  # stays open as long as the process, or torch's client would log its end at length
    with pytest.raises(PushFailed, match=r"^connect: trainer 0 .* no answer within 0.5 s$"):
        open_end(1, port, timeout_s=0.5)
    assert time.monotonic() - start < 0.5 + SOON_S


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            PushFailed, match=rf"^connect: generator 1 .*{port}.*[Aa]ddress already"
        ):
            open_end(0, port)


@pytest.mark.parametrize("operation", ["send", "receive"])
def test_silence_costs_one_timeout(operation: str) -> None:
    with both_ends(timeout_s=0.4) as (sending, receiving, _):
        end, peer = (sending, "generator 1") if operation == "send" else (receiving, "trainer 0")
        start = time.monotonic()
        with pytest.raises(
            PushFailed, match=rf"^{operation} bucket 3 of 7: {peer}: Timed out waiting 400ms for"
        ):
            getattr(end, operation)(bytes_of(8), "bucket 3 of 7")
        assert 0.4 <= time.monotonic() - start < 0.4 + SOON_S
        with pytest.raises(PushFailed, match=r"the channel is closed$"):
            end.acknowledge(1)


def test_closing_ends_what_both_sides_wait_for() -> None:
    with both_ends() as (sending, receiving, aside), ThreadPoolExecutor(1) as other:
        waits = [
            aside.submit(sending.await_acknowledgement, 1),
            other.submit(receiving.receive, bytes_of(8)),
        ]
        time.sleep(0.2)
        start = time.monotonic()
        sending.close()
        with pytest.raises(PushFailed, match=r"generator 1: the channel was closed$"):
            waits[0].result()
        with pytest.raises(PushFailed, match=r"trainer 0: .*[Cc]onnection"):
            waits[1].result()
        assert time.monotonic() - start < SOON_S


# ---- the receiver ----


def test_a_receiver_takes_one_version_after_another() -> None:
    end = receiver()
    with fed(end) as (channel, aside):
        for version in (3, 4):
            flat = bytes_of(LAYOUT.nbytes, version)
            end.begin(version)
            sent = aside.submit(send_all, channel, flat, version)
            assert torch.equal(end.finish(version, LONG_S), flat)
            sent.result()
        with pytest.raises(PushFailed, match=r"^receive version 4: .* finished before"):
            end.finish(4, LONG_S)
        end.close()


def test_the_generator_computes_on_while_it_waits_for_buckets() -> None:
    """In one process: were the GIL held in a wait, nothing here could go on to send what is waited for."""
    end, flat = receiver(), bytes_of(LAYOUT.nbytes)
    with fed(end) as (channel, _):
        end.begin(1)  # returns, although nothing has been sent
        for start, stop in LAYOUT.buckets():
            for _ in range(100):
                torch.mm(torch.ones(8, 8), torch.ones(8, 8))
            channel.send(flat[start:stop])
        channel.await_acknowledgement(1)
        assert torch.equal(end.finish(1, LONG_S), flat)
        end.close()


def test_one_version_at_a_time_and_that_one_only() -> None:
    end = receiver()
    with pytest.raises(PushFailed, match=r"^receive version 1: .* connect first$"):
        end.begin(1)
    with fed(end) as (channel, aside):
        end.begin(1)
        with pytest.raises(PushFailed, match=r"^receive version 2: .* 1 is still under way"):
            end.begin(2)
        with pytest.raises(PushFailed, match=r"^receive version 2: it was not begun"):
            end.finish(2, LONG_S)
        with pytest.raises(PushFailed, match=r"^receive version 1: still under way after 0.1 s$"):
            end.finish(1, 0.1)
        sent = aside.submit(send_all, channel, bytes_of(LAYOUT.nbytes), 1)
        end.finish(1, LONG_S)
        sent.result()
        end.close()


def test_a_failed_receiver_works_again_after_a_new_connect() -> None:
    end, flat = receiver(), bytes_of(LAYOUT.nbytes)
    with fed(end) as (channel, _):
        end.begin(1)
        channel.send(flat[slice(*LAYOUT.buckets()[0])])
        channel.close()
        with pytest.raises(PushFailed, match=r"^receive bucket 2 of 5: trainer 0: "):
            end.finish(1, SOON_S)
        end.begin(2)
        with pytest.raises(PushFailed, match=r"the channel is closed$"):
            end.finish(2, SOON_S)
    with fed(end) as (channel, aside):
        end.begin(2)
        sent = aside.submit(send_all, channel, flat, 2)
        assert torch.equal(end.finish(2, LONG_S), flat)
        sent.result()
        end.close()


def test_a_new_connect_ends_what_the_old_channel_waits_for() -> None:
    end = receiver()
    with fed(end):
        end.begin(1)
        start = time.monotonic()
        with fed(end) as (channel, aside):
            assert time.monotonic() - start < SOON_S
            end.begin(1)
            sent = aside.submit(send_all, channel, bytes_of(LAYOUT.nbytes), 1)
            end.finish(1, LONG_S)
            sent.result()
            end.close()


def trainer(port: int) -> None:
    """In a process of its own: sends the first bucket and no other."""
    channel = open_end(0, port)
    channel.send(bytes_of(LAYOUT.nbytes)[slice(*LAYOUT.buckets()[0])])
    channel.await_acknowledgement(1)


def test_a_trainer_killed_in_mid_transfer_is_noticed_at_once() -> None:
    end, port = receiver(), free_port()
    process = get_context("spawn").Process(target=trainer, args=(port,), daemon=True)
    process.start()
    end.connect("trainer 0", "127.0.0.1", port)
    end.begin(1)
    with pytest.raises(PushFailed, match="still under way"):
        end.finish(1, 0.3)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(PushFailed, match=r"^receive bucket 2 of 5: trainer 0: "):
        end.finish(1, SOON_S)
    process.join()
    end.close()
