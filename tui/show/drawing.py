"""The file of a figure: SVG, PNG or a page of HTML, the same bytes for the same input, whole or not at all."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from tui.words import printable

SUFFIXES = (".svg", ".png", ".html")
NEEDED = "a figure needs matplotlib: pip install 'scalerl-sandbox[plot]', or leave --plot out"
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "scalerl",
    "svg.fonttype": "path",  # the same everywhere, whatever fonts the reader has
    "text.parse_math": False,  # a name may hold a dollar sign
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.markersize": 5.0,
}
# None leaves the entry out: a date, or the version of matplotlib, would change the bytes.
NO_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 1rem; background: #fff; }} svg {{ max-width: 100%; height: auto; }}</style>
</head>
<body>
{picture}
</body>
</html>
"""


@contextmanager
def drawing(path: Path) -> Iterator[tuple[Any, Callable[[str, str], None]]]:
    """An empty figure and a function to name it; at the end the figure is written to `path`."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"{path}: a figure ends in {', '.join(SUFFIXES)}, not in {path.suffix or 'no suffix'}"
        )
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(NEEDED) from None

    said = {"title": "", "words": ""}
    # A person's own matplotlibrc would change the bytes: start from the defaults, and put it back.
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, lambda title, words: said.update(title=title, words=words)
        kind = "png" if path.suffix == ".png" else "svg"
        stream = BytesIO()
        figure.savefig(stream, format=kind, dpi=150, metadata=NO_METADATA[kind])
    content = stream.getvalue()
    if path.suffix == ".html":
        content = _page(content.decode("utf-8"), **said).encode("utf-8")
    _write(path, content)


def _page(picture: str, title: str, words: str) -> str:
    """The SVG without its XML head, named for those who cannot see it."""
    picture = picture[picture.index("<svg") :]
    title = printable(title)
    label = escape(f"{title}: {printable(words)}", quote=True)
    named = f'<svg role="img" aria-label="{label}"' + picture.removeprefix("<svg").rstrip()
    return PAGE.format(title=escape(title), picture=named)


def _write(path: Path, content: bytes) -> None:
    """The whole file, or the old one."""
    beside = path.with_name(f".{path.name[:40]}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
