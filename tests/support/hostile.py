"""Input that nobody meant: good bytes spoiled, odd things in place of files, text that moves the cursor."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from scalerl.errors import ScaleRLError

MANY = settings(max_examples=200)
PATIENCE_S = 1.0  # for one input of ordinary size
# what a parser, a terminal or a number may choke on, put in the middle of a good file
PIECES = (
    b"1e400", b"-inf", b"nan", b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 10_000, b'{"a":' * 10_000,
    b"a." * 10_000, b"{a=" * 3000, b"\x00", b"\r\n", b"\n", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xff",
    "\u202e".encode(), b"\x1b[2J\x1b]0;title\x07", b"=", b'"', b'"""', b"#", b",", b"[[x]]\n", b"-", b"../",
)  # fmt: skip
# what must not reach a terminal as it is: colours, the title, a link, bidi marks, and the markup of Rich and Textual
NASTY = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202eback\u2066 \r\x08over [/nobody] [bold]loud[/] :smile: $\\frac$"


@st.composite
def spoiled(draw: st.DrawFn, good: Sequence[bytes]) -> bytes:
    """One of some good files with bits turned, pieces put in, taken out, doubled or swapped, or its end cut off."""
    data = bytearray(draw(st.sampled_from(list(good))))
    for _ in range(draw(st.integers(1, 4))):
        place, other = (draw(st.integers(0, len(data))) for _ in range(2))
        first, last = sorted((place, other))
        match draw(st.integers(0, 6)):
            case 0 if place < len(data):
                data[place] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[place:]
            case 2:
                data[place:place] = draw(st.binary(max_size=12))
            case 3 | 4:
                data[place:place] = draw(st.sampled_from(PIECES))
            case 5:
                del data[first:last]
            case _:
                data[other:other] = data[first : min(last, first + 60)]
    return bytes(data)


def texts(*good: str) -> st.SearchStrategy[str]:
    """An argument of the command line: bytes that are no UTF-8 arrive as lone surrogates."""
    return spoiled([each.encode() for each in good]).map(
        lambda data: data.decode("utf-8", "surrogateescape")
    )


def bears(use: Callable[[], Any]) -> None:
    """Assert that a use comes back in time, by one of our own errors if by any."""
    start = time.process_time()
    with suppress(ScaleRLError):
        use()
    assert time.process_time() - start < PATIENCE_S


def unprintable(text: str) -> list[str]:
    """What a terminal would obey instead of showing; line ends are allowed."""
    return sorted({each for each in text if not each.isprintable() and each != "\n"})


def oddities(folder: Path, name: str, content: bytes) -> dict[str, Path]:
    """Things named `name`, each in a folder of its own, that are no good file of that content."""
    made: dict[str, Path] = {}
    for kind in ("folder", "pipe", "loop", "dangling", "empty", "long", "bom", "crlf", "zeros"):
        path = made[kind] = folder / kind / name
        path.parent.mkdir(parents=True)
        match kind:
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "loop":
                path.symlink_to(path)
            case "dangling":
                path.symlink_to(folder / "nowhere")
            case "long":
                with path.open("wb") as file:  # 100 MB of one line
                    file.write(content.rstrip())
                    for _ in range(100):
                        file.write(b"7" * 1_000_000)
            case "bom":
                path.write_bytes(b"\xef\xbb\xbf" + content)
            case "crlf":
                path.write_bytes(content.replace(b"\n", b"\r\n"))
            case _:
                path.write_bytes(b"" if kind == "empty" else bytes(4096))
    return made
