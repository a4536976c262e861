"""`scalerl serve` in a browser: it draws, it takes keys, and nothing stays behind."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from terminal import SCALERL, environment
from tmux import is_alive, until

playwright = pytest.importorskip("playwright.sync_api", reason="extra `e2e`")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process of `scalerl serve --demo`, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*SCALERL, "serve", "--demo", "--port", str(port)],
        env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[0]
        process.kill()


@pytest.fixture
def page(server: tuple["subprocess.Popen[str]", str]) -> Iterator[Any]:
    """The app, drawn."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "apt-get install chromium"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 700})
        assert until(lambda: answers(server[1]), 20.0)
        page.goto(f"{server[1]}/?fontsize=14", wait_until="domcontentloaded")
        page.wait_for_selector("body.-first-byte", timeout=20_000)
        page.click(".textual-terminal")
        yield page
        browser.close()


def answers(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as line:
        return line.connect_ex((host, int(port))) == 0


def picture(page: Any) -> Image.Image:
    return Image.open(BytesIO(page.screenshot())).convert("RGB")


def colours(page: Any) -> int:
    """How many different ones cover at least 20 pixels."""
    counted = picture(page).getcolors(1 << 24) or []
    return sum(pixels >= 20 for pixels, _ in counted)


def below(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for word in words for each in (int(word), *below(int(word)))]


def test_serve_draws_takes_keys_and_ends(
    server: tuple["subprocess.Popen[str]", str], page: Any
) -> None:
    process, _ = server
    assert until(lambda: colours(page) > 20, 20.0)  # blank is one

    page.keyboard.press("Space")  # a replay that stands still

    def still() -> bool:
        before = picture(page)
        page.wait_for_timeout(500)
        return picture(page) == before

    assert until(still, 20.0)
    paused = picture(page)
    page.keyboard.press("5")
    assert until(lambda: picture(page) != paused, 5.0)

    started = below(process.pid)
    assert started  # one app for this tab
    os.kill(process.pid, signal.SIGINT)  # Ctrl-C, with the tab still open
    process.wait(10.0)
    assert until(lambda: not any(map(is_alive, started)), 20.0)
