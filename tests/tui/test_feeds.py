"""Where bytes come from: files that appear, grow, shrink and are replaced; archives; a fake ssh; a real web server."""

import gzip
import json
import os
import socket
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scalerl.errors import InputError
from tui.watch.feeds import Feed, FileFeed, RecordingFeed, Restarted, open_feed
from tui.watch.follow import Follower, State
from tui.watch.remote import HttpFeed, SshFeed


def until(true: Callable[[], bool]) -> None:
    """Wait for a thread; fails after ten seconds."""
    end = time.monotonic() + 10.0
    while not true():
        assert time.monotonic() < end, "nothing came"
        threading.Event().wait(0.005)


def received(feed: Feed, many: int, step: int = 10_007) -> bytes:
    """The next `many` bytes of a feed with a thread, read in steps; a restart is written as `!`."""
    got = bytearray()

    def enough() -> bool:
        try:
            while piece := feed.read(min(step, many - len(got))):
                got.extend(piece)
        except Restarted:
            got.extend(b"!")
        return len(got) >= many

    until(enough)
    return bytes(got)


# ---- a local file ----


def test_a_file_is_read_as_it_appears_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    feed = FileFeed(path)
    assert feed.read(10) == b"" and feed.size is None
    assert feed.problem == "the file does not exist yet; it is read as soon as it does"
    path.write_bytes(b"abc")
    assert (feed.read(2), feed.problem, feed.size) == (b"ab", None, 3)
    with path.open("ab") as file:
        file.write(b"de")
    assert (feed.read(10), feed.size) == (b"cde", 5)
    assert feed.read(10) == b"" and not feed.ended
    feed.close()


def test_a_run_folder_means_its_log(tmp_path: Path) -> None:
    run = tmp_path / "seed-0"
    feed = FileFeed(run)
    assert feed.read(10) == b""
    run.mkdir()
    (run / "events.jsonl").write_bytes(b"abc")
    assert feed.read(10) == b"abc"
    assert feed.name == str(run / "events.jsonl")
    feed.close()


def test_a_truncated_file_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"abcdef")
    feed = FileFeed(path)
    feed.read(10)
    path.write_bytes(b"xyz")
    with pytest.raises(Restarted):
        feed.read(10)
    assert feed.read(10) == b"xyz"
    feed.close()


def test_a_replaced_file_starts_anew_even_if_it_is_longer(tmp_path: Path) -> None:
    path, new = tmp_path / "log", tmp_path / "new"
    path.write_bytes(b"abc")
    feed = FileFeed(path)
    feed.read(10)
    new.write_bytes(b"uvwxyz")
    os.replace(new, path)
    with pytest.raises(Restarted):
        feed.read(10)
    assert feed.read(10) == b"uvwxyz"
    feed.close()


def test_a_file_that_goes_and_comes_again_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"abc")
    feed = FileFeed(path)
    feed.read(10)
    path.unlink()
    assert feed.read(10) == b"" and feed.problem is not None
    assert feed.problem.startswith("the file is gone")
    path.write_bytes(b"uvwxyz")
    with pytest.raises(Restarted):
        feed.read(10)
    assert (feed.read(10), feed.problem) == (b"uvwxyz", None)
    feed.close()


def test_a_pipe_is_a_problem_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    feed = FileFeed(tmp_path / "log")
    assert feed.read(10) == b""
    assert feed.problem == "it cannot be read (not a regular file); tried again all the time"


def test_a_follower_sees_a_file_grow_shrink_and_grow(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(FileFeed(path))
    follower.poll()
    assert follower.state is State.WAITING
    path.write_bytes(b'{"kind":"a","seq":0}\n{"kind":')
    assert follower.poll().events == [{"kind": "a", "seq": 0}]
    path.write_bytes(b'{"kind":"b"}\n')
    assert follower.poll().restarted
    assert follower.poll().events == [{"kind": "b"}]
    with path.open("ab") as file:
        file.write(b'{"kind":"c"}\n')
    assert follower.poll().events == [{"kind": "c"}]
    assert (follower.resets, follower.bytes_read) == (1, 26)
    follower.close()


# ---- a recording ----


def test_a_plain_recording_ends_where_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"abcdef")
    feed = RecordingFeed(path)
    assert (feed.read(4), feed.ended) == (b"abcd", False)
    assert (feed.read(4), feed.ended, feed.size) == (b"ef", True, 6)
    assert feed.read(4) == b"" and feed.problem is None
    feed.close()


def test_an_archive_of_two_parts_is_one_recording(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b"abc\n" * 50_000) + gzip.compress(b"end\n"))
    feed = RecordingFeed(path)
    got = feed.read(10)
    assert got == b"abc\nabc\nab" and not feed.ended
    while not feed.ended:
        got += feed.read(4096)
    assert got == b"abc\n" * 50_000 + b"end\n"
    assert feed.size == 200_004 and feed.problem is None
    feed.close()


def test_of_a_torn_archive_comes_what_can_be_read(tmp_path: Path) -> None:
    whole = b"".join(b'{"kind":"update","seq":%d}\n' % i for i in range(20_000))
    packed = gzip.compress(whole)
    path = tmp_path / "log.jsonl.gz"
    half = packed[: len(packed) // 2]
    path.write_bytes(half)
    readable = zlib.decompressobj(31).decompress(half)
    follower = Follower(RecordingFeed(path))
    seqs: list[int] = []
    while follower.state is not State.FINISHED:
        seqs += [event["seq"] for event in follower.poll(4096).events]
    assert seqs == list(range(readable.count(b"\n")))
    assert follower.problem is not None and follower.problem.startswith("cut off or damaged")
    assert follower.says.startswith("cut off or damaged")
    follower.close()


def test_what_is_no_archive_is_a_problem_and_what_is_not_there_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(b"not packed")
    feed = RecordingFeed(path)
    assert (feed.read(10), feed.ended) == (b"", True)
    assert feed.problem is not None and "Not a gzipped file" in feed.problem
    feed.close()
    with pytest.raises(InputError, match=r"cannot open the recording .*No such file"):
        RecordingFeed(tmp_path / "other.gz")


def test_a_big_archive_is_read_with_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(b'{"kind":"update","seq":1}\n' * 40_000)  # 1.04 MB
    feed, count = RecordingFeed(path), 0
    tracemalloc.start()
    while not feed.ended:
        count += len(feed.read(256 * 1024))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20 * 40_000 * 26
    assert peak < 2e6
    feed.close()


def test_the_progress_of_an_archive_is_estimated(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    rows = [json.dumps({"kind": "update", "seq": i, "x": i * 7919 % 10_007}) for i in range(40_000)]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    follower = Follower(RecordingFeed(path))
    total = sum(map(len, rows)) + len(rows) - 1
    for _ in range(15):
        follower.poll(65_536)
    assert follower.state is State.CATCHING_UP
    assert follower.progress == pytest.approx(15 * 65_536 / total, rel=0.15)
    follower.close()


# ---- ssh ----

# Plays `ssh HOST COMMAND` for a list of connections: words on stderr, the log as it stood then, whether to hang.
FAKE_SSH = """
import json, os, pathlib, re, sys, time
here = pathlib.Path(__file__).parent
(here / "pid").write_text(str(os.getpid()))
host, command = sys.argv[-2:]
with (here / "asked").open("a") as file:
    print(host, command, file=file)
turn = len((here / "asked").read_text().splitlines()) - 1
turns = json.loads((here / "turns").read_text())
words, log, hang = turns[min(turn, len(turns) - 1)]
start = int(re.search(r"-c \\+(\\d+) ", command)[1]) - 1
print(words, end="\\r\\n" if words else "", file=sys.stderr, flush=True)
sys.stdout.write(log[start:])
sys.stdout.flush()
if hang:
    time.sleep(600)
"""


class FakeSsh:
    def __init__(self, folder: Path, *turns: tuple[str, str, bool]) -> None:
        self.folder = folder
        (folder / "ssh.py").write_text(FAKE_SSH)
        (folder / "turns").write_text(json.dumps(turns))
        self.feed = SshFeed(
            "me@login1", "runs/a b/events.jsonl", [sys.executable, str(folder / "ssh.py")], 0.01
        )

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


def test_ssh_asks_tail_for_the_file_and_goes_on_where_a_connection_broke(tmp_path: Path) -> None:
    ssh = FakeSsh(tmp_path, ("", "abc", False), ("", "abcdef", True))
    assert received(ssh.feed, 6) == b"abcdef"
    assert ssh.asked() == [
        "me@login1 env LC_ALL=C tail -c +1 -F -- 'runs/a b/events.jsonl'",
        "me@login1 env LC_ALL=C tail -c +4 -F -- 'runs/a b/events.jsonl'",
    ]
    assert ssh.feed.problem is None and not ssh.feed.ended
    assert ssh.feed.name == "me@login1:runs/a b/events.jsonl"
    ssh.feed.close()


def test_the_last_words_of_ssh_are_the_problem_until_bytes_come(tmp_path: Path) -> None:
    lost = "ssh: Could not resolve hostname login1: Name or service not known"
    ssh = FakeSsh(tmp_path, (lost, "", False))
    until(lambda: ssh.feed.problem is not None and "next try" in ssh.feed.problem)
    assert ssh.feed.problem is not None and ssh.feed.problem.startswith(f"{lost}; next try in 0.0")
    assert ssh.feed.problem.endswith("or try `ssh me@login1` yourself")
    (tmp_path / "turns").write_text(json.dumps([("", "abc", True)]))
    assert received(ssh.feed, 3) == b"abc"
    assert ssh.feed.problem is None
    ssh.feed.close()


def test_a_file_that_tail_finds_truncated_is_read_from_its_start(tmp_path: Path) -> None:
    said = "tail: log: file truncated"
    ssh = FakeSsh(tmp_path, ("", "abcdef", False), (said, "", True), ("", "xyz", True))
    assert received(ssh.feed, 10) == b"abcdef!xyz"
    assert [line.split()[5] for line in ssh.asked()] == ["+1", "+7", "+1"]
    ssh.feed.close()


def test_a_file_that_appears_for_the_first_time_is_no_restart(tmp_path: Path) -> None:
    said = "tail: 'log' has appeared;  following new file"
    ssh = FakeSsh(tmp_path, (said, "abc", True))
    assert received(ssh.feed, 3) == b"abc"
    ssh.feed.close()


def test_closing_ends_the_child_and_the_thread(tmp_path: Path) -> None:
    ssh = FakeSsh(tmp_path, ("", "abc", True))
    received(ssh.feed, 3)
    ssh.feed.close()
    until(lambda: not ssh.feed._thread.is_alive())
    with pytest.raises(ProcessLookupError):  # not running, and not left for somebody to reap
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_reader_that_is_away_holds_the_sender_back(tmp_path: Path) -> None:
    """5 MB are written; the queue holds 1 MiB, and all of it arrives once it is read."""
    ssh = FakeSsh(tmp_path, ("", "0123456789" * 500_000, True))
    until(ssh.feed._queue.full)
    assert ssh.feed._received <= 17 * 65_536
    assert received(ssh.feed, 5_000_000) == b"0123456789" * 500_000
    ssh.feed.close()


def test_a_closed_feed_whose_queue_is_full_ends_too(tmp_path: Path) -> None:
    ssh = FakeSsh(tmp_path, ("", "0123456789" * 500_000, True))
    until(ssh.feed._queue.full)
    ssh.feed.close()
    until(lambda: not ssh.feed._thread.is_alive())


def test_a_missing_ssh_is_a_problem(tmp_path: Path) -> None:
    feed = SshFeed("login1", "log.jsonl", [str(tmp_path / "no-ssh")])
    until(lambda: feed.problem is not None)
    assert feed.problem is not None and "no-ssh: No such file or directory" in feed.problem
    feed.close()


@pytest.mark.parametrize("host", ["-oProxyCommand=evil", ""])
def test_a_host_that_ssh_would_take_for_an_option_is_refused(host: str) -> None:
    with pytest.raises(InputError, match="give ssh://HOST/PATH"):
        SshFeed(host, "log.jsonl")


# ---- http ----


class Site(ThreadingHTTPServer):
    """Serves one log, with ranges, without, or with neither ranges nor a length; and what it was asked."""

    daemon_threads = False
    body, ranges, length, status = b"", True, True, 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.asked: list[str] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/events.jsonl"


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site = self.server
        assert isinstance(site, Site)
        body = site.body
        site.asked.append(self.headers["Range"])
        start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if site.status != 200:
            return self.send_error(site.status)
        if not site.ranges:
            self.send_response(200)
        elif start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            body = b""
        else:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            body = body[start:]
        if site.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("ranges", "length"), [(True, True), (False, True), (False, False)], ids=str
)
def test_a_log_behind_http_is_read_as_it_grows_and_starts_anew(
    site: Site, ranges: bool, length: bool
) -> None:
    site.body, site.ranges, site.length = b"abc", ranges, length
    feed = HttpFeed(site.url, every_s=0.01)
    assert received(feed, 3) == b"abc"
    asked = len(site.asked)
    until(lambda: len(site.asked) > asked + 2)  # nothing new
    assert feed.read(10) == b"" and feed.problem is None
    site.body = b"abcdef"
    assert received(feed, 3) == b"def"
    assert feed.size == (6 if ranges or length else None)
    site.body = b"xy"
    assert received(feed, 3) == b"!xy"
    assert set(site.asked) >= {"bytes=0-", "bytes=3-", "bytes=6-"}
    feed.close()


def test_a_page_that_is_not_there_is_a_problem_until_it_is(site: Site) -> None:
    site.status = 404
    feed = HttpFeed(site.url, every_s=0.01)
    until(lambda: feed.problem is not None)
    assert feed.problem == "HTTP 404 Not Found: check the address; asked again every 0.01 s"
    site.body, site.status = b"abc", 200
    assert received(feed, 3) == b"abc"
    until(lambda: feed.problem is None)
    feed.close()


def test_an_empty_log_behind_http_is_no_problem(site: Site) -> None:
    feed = HttpFeed(site.url, every_s=0.01)
    until(lambda: len(site.asked) > 2)
    assert feed.read(10) == b"" and feed.problem is None and feed.size == 0
    feed.close()


def test_a_server_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        feed = HttpFeed(f"http://127.0.0.1:{taken.getsockname()[1]}/log", every_s=0.01)
        until(lambda: feed.problem is not None)
        feed.close()
    assert feed.problem == "Connection refused; asked again every 0.01 s"


# ---- what a person types ----


def test_a_path_is_a_file_and_a_gz_a_recording(tmp_path: Path) -> None:
    assert isinstance(open_feed(f" {tmp_path}/runs/a "), FileFeed)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"abc"))
    feed = open_feed(str(path))
    assert isinstance(feed, RecordingFeed) and feed.read(10) == b"abc"
    feed.close()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ssh://login1/scratch/8b/events.jsonl", "login1:/scratch/8b/events.jsonl"),
        ("ssh://me@login1/scratch/8b/", "me@login1:/scratch/8b/events.jsonl"),
        ("ssh://login1/~/runs/seed-0.2", "login1:runs/seed-0.2/events.jsonl"),
        ("ssh://me@login1:2222/a.jsonl", "ssh://me@login1:2222:/a.jsonl"),
    ],
)
def test_an_ssh_address_is_a_host_and_a_path(
    text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda thread: None)
    assert open_feed(text).name == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no log given"),
        ("ftp://host/log", "ftp:// is not ssh://, http:// or https://"),
        ("ssh://login1", "give ssh://HOST/PATH"),
        ("ssh:///log.jsonl", "give ssh://HOST/PATH"),
        ("http://", "give http://HOST/PATH"),
        ("http://host:port/log", "Port could not be cast"),
        ("ssh://-oProxyCommand=x/log.jsonl", "give ssh://HOST/PATH"),
        ("https://host/log.jsonl.gz", "copy the recording here"),
    ],
)
def test_what_cannot_be_a_log_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        open_feed(text)


@pytest.mark.parametrize("text", ["~nobodyhere/x", "a\0b"])
def test_a_path_that_can_be_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no path"):
        open_feed(text)


def test_a_name_too_long_is_a_problem_and_no_crash() -> None:
    feed = open_feed("x" * 5000)
    assert feed.read(10) == b"" and feed.problem is not None and "too long" in feed.problem
    with pytest.raises(InputError, match="too long"):
        open_feed("x" * 300 + ".gz")


def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gz")
    with pytest.raises(InputError, match="not a regular file"):
        open_feed(str(tmp_path / "a.gz"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/l\u00e4ufe/events.jsonl", "http://a..b/x"])
def test_an_address_that_cannot_be_asked_is_told(url: str) -> None:
    feed = HttpFeed(url, every_s=0.01) if ".." in url else open_feed(url)
    try:
        last = time.monotonic() + 5.0
        while feed.problem is None and time.monotonic() < last:
            time.sleep(0.01)
        assert feed.problem is not None and "asked again" in feed.problem
    finally:
        feed.close()
