"""Who listens where: a push channel on its own interface, Ray of this machine and the pages on loopback."""

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from command import refused

from backend.launch import ALONE, LOOPBACK, RayLauncher
from backend.wire import Channel, free_port, rendezvous
from scalerl.site import Cluster
from scenarios.scenario import plan

SOON = timedelta(seconds=5)


def _listening() -> set[str]:
    """Addresses on which this process listens, by the tables of the kernel, as they stand there."""
    own = set()
    for link in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{link}"))
        except OSError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].partition(":")[0])
    return found


V4_LOOPBACK, V4_ANY, V6_ANY = "0100007F", "00000000", "0" * 32
needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")


@needs_proc
def test_the_tables_are_read_right() -> None:
    before = _listening()
    with socket.create_server(("", 0)):
        assert _listening() - before == {V4_ANY}


@needs_proc
def test_a_rendezvous_listens_on_its_own_interface_alone() -> None:
    before = _listening()
    store = rendezvous("127.0.0.1", free_port(), rank=0, size=2, timeout=SOON)
    assert _listening() - before <= {V4_LOOPBACK}
    assert not _listening() & {V4_ANY, V6_ANY}
    del store


@needs_proc
def test_a_channel_on_loopback_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of gloo too, whose interface the environment of the actors names."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK["GLOO_SOCKET_IFNAME"])
    port, ends = free_port(), []

    def open_end(rank: int) -> None:
        end = Channel.open(kind="gloo", host="127.0.0.1", port=port, rank=rank, timeout_s=5.0,
                           peer="peer", device="cpu")  # fmt: skip
        ends.append(end)

    other = threading.Thread(target=open_end, args=(1,))
    other.start()
    open_end(0)
    other.join()
    assert V4_LOOPBACK in _listening() and not _listening() & {V4_ANY, V6_ANY}
    for end in ends:
        end.close()


def test_ray_of_this_machine_is_on_loopback_and_another_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [only] = plan("tiny", site="cpu-cluster")
    assert isinstance(only.recipe.site, Cluster)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert RayLauncher(only.recipe.site, "cpu", tmp_path).exposed == ""
    assert (
        ALONE["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    )  # Ray 2.60: its own servers on 127.0.0.1
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    said = RayLauncher(only.recipe.site, "cpu", tmp_path).exposed
    assert "RAY_ADDRESS=10.1.2.3:6379" in said and "private network" in said


def test_pages_are_served_on_loopback_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import inspect

    from tui import cli_screens
    from tui.commands import serving

    assert inspect.signature(cli_screens.serve_command).parameters["host"].default == "127.0.0.1"
    monkeypatch.setattr(serving.OwnServer, "serve", lambda self: None)
    serving.serve([], "127.0.0.1", 8765)
    told = capsys.readouterr()
    assert "without a password" in told.out and told.err == ""
    serving.serve([], "0.0.0.0", 8765)
    assert "warning: 0.0.0.0 can be reached from other machines" in capsys.readouterr().err


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        from command import scalerl

        result = scalerl("serve", "--port", str(port))
        assert result.exit_code == 2 and "choose another --port" in result.stderr
    assert "must" in refused("run", "tiny", "site.evaluators=0")
