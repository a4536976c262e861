"""Figures: what the files say, that the same input gives the same bytes, and how they fail."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from scalerl.curves.curve import curve
from scalerl.curves.sources import read_source
from scalerl.errors import InputError
from scalerl.fit import sigmoid
from scalerl.forecast import Forecast, forecast
from tui.show.figures import save_comparison, save_fit

matplotlib = pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
HUNDRED_K = "paper:Fig1a/ScaleRL-bs2048-100k"
EVIL = "<script>alert('x')</script>&\"$\\frac$"
STARTS = {".svg": b"<?xml", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>"}
NAMESPACES = {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}


def _made(name: str, n: int = 12, A: float = 0.61, unit: str = "GPU-h") -> Forecast:
    """A forecast of n points, 500 .. 16,000, off their curve by 0.004 in turns."""
    C_N = np.geomspace(500.0, 16_000.0, n)
    R_N = sigmoid(C_N, R0=0.4, A=A, B=1.9, C_mid=2_500.0) + 0.004 * (-1.0) ** np.arange(n)
    return forecast([curve(np.stack([C_N, R_N], axis=1), name, unit=unit).given(0.4)])


def _said(svg: str) -> list[str]:
    """The texts of a picture: matplotlib writes each into a comment beside its outlines."""
    return re.findall(r"<!-- (.*?) -->", svg)


def _spots(svg: str, style: str) -> np.ndarray:
    """(x, y) of the marks with a style, in points from the top left."""
    found = re.findall(rf'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="{style}"', svg)
    return np.array(found, dtype=np.float64)


def test_the_fit_shows_its_window_its_ceiling_and_the_forecasts(tmp_path):
    source = read_source(HUNDRED_K)
    made = forecast(source.curves, window=(1_500, 50_000))
    whole = source.curves[0]
    save_fit(tmp_path / "fit.svg", made, whole, [0.0, 2e5])
    svg = (tmp_path / "fit.svg").read_text(encoding="utf-8")
    A = made.A()
    assert A.lo is not None and A.hi is not None
    for text in (
        HUNDRED_K,
        "23 points",
        "8 points outside the window",
        f"ceiling A {A.value:.3f} ({A.lo:.3f} .. {A.hi:.3f})",
        "fit, 90 % band, ahead &gt;= +-0.02",
        "C, GPU-h",
        "C_mid, GPU-h",
        f"the fit, B {made.fit.B:.2f}",
        "200k",
    ):
        assert text in _said(svg)
    filled, hollow = (
        _spots(svg, "fill: #0072b2; stroke: #0072b2"),
        _spots(svg, "fill-opacity: 0; stroke: #0072b2"),
    )
    assert (len(filled), len(hollow)) == (23 + 1, 8 + 1)  # each once more in the legend
    # Both in one log-linear picture: x is affine in ln C, y in R, and y points down.
    at = np.concatenate([filled[:23], hollow[:8]])
    assert (whole.C_N[:23] <= 50_000).all() and (whole.C_N[23:] > 50_000).all()
    for values, pixels, sign in ((np.log(whole.C_N), at[:, 0], 1), (whole.R_N, at[:, 1], -1)):
        line = np.polyfit(values, pixels, 1)
        assert np.abs(np.polyval(line, values) - pixels).max() < 0.01 and sign * line[0] > 0
    # one forecast, C = 0 is left out: a diamond with two caps, and the same in the legend
    diamonds = _spots(svg, "fill: #d55e00; stroke: #d55e00; stroke-linejoin: miter")
    caps = _spots(svg, "fill: #d55e00; stroke: #d55e00")
    x = np.polyfit(np.log(whole.C_N), at[:, 0], 1)
    y = np.polyfit(whole.R_N, at[:, 1], 1)
    assert len(diamonds) == 2 and len(caps) == 4
    ends = [end for end in (made.rate(2e5).lo, made.rate(2e5).hi) if end is not None]
    assert caps[:2, 1] == pytest.approx(np.polyval(y, ends), abs=0.01)
    assert diamonds[0, 0] == pytest.approx(np.polyval(x, np.log(2e5)), abs=0.01)
    assert diamonds[0, 1] == pytest.approx(np.polyval(y, float(made.fit.predict(2e5))), abs=0.01)
    ElementTree.fromstring(svg)


def test_without_window_or_forecasts_none_are_named(tmp_path):
    made = _made("a run")
    save_fit(tmp_path / "fit.svg", made, made.curve, [])
    said = _said((tmp_path / "fit.svg").read_text(encoding="utf-8"))
    assert "12 points" in said and "forecast" not in said
    assert not any("outside" in text for text in said)
    why = f": {made.why}" if made.why else ""
    assert f"verdict {made.verdict}{why}" in said


def test_a_ceiling_nobody_knows_leaves_the_points_a_third(tmp_path):
    source = read_source("paper:Fig2/DeepSeek-GRPO")
    made = forecast(source.curves)
    A = made.A()
    assert A.lo is not None and A.hi is not None and A.hi - A.lo > 0.5
    save_fit(tmp_path / "fit.svg", made, made.curve, [1e5])
    svg = (tmp_path / "fit.svg").read_text(encoding="utf-8")
    spots = _spots(svg, "fill: #0072b2; stroke: #0072b2")[:18]
    height = 5.6 * 72  # the picture, in points; the axes take two thirds of it
    assert np.ptp(spots[:, 1]) > 0.25 * height * 2 / 3


def test_the_comparison_counts_the_points_it_drops(tmp_path):
    names = ("paper:Fig2/ScaleRL", "paper:Fig2/DeepSeek-GRPO")
    both = [forecast(read_source(name).curves) for name in names]
    dropped = [int(np.sum((m.curve.R_N <= m.fit.R0) | (m.curve.R_N >= m.fit.A))) for m in both]
    assert dropped[0] == 0 < dropped[1]
    save_comparison(tmp_path / "both.svg", both)
    svg = (tmp_path / "both.svg").read_text(encoding="utf-8")
    A, B = both[0].A(), [made.fit.B for made in both]
    said = _said(svg)
    assert f"{names[0]}: A {A.value:.3f} ({A.lo:.3f} .. {A.hi:.3f})" in said
    assert f"{names[0]}: B {B[0]:.2f}" in said
    assert f"{names[1]}: B {B[1]:.2f}, {dropped[1]} of 18 points not in R0 &lt; R &lt; A" in said
    assert "ln((R - R0) / (A - R))" in said
    # vermilion squares: every point in the curve, and those with a logarithm once more
    squares = "fill: #d55e00; fill-opacity: 0.8; stroke: #d55e00; stroke-opacity: 0.8"
    assert len(_spots(svg, f"{squares}; stroke-linejoin: miter")) == 18 + 18 - dropped[1]


def test_many_curves_with_one_name_and_an_underscore(tmp_path):
    save_comparison(tmp_path / "many.svg", [_made("_same", A=0.5 + 0.01 * i) for i in range(10)])
    said = _said((tmp_path / "many.svg").read_text(encoding="utf-8"))
    assert sum(text.strip().startswith("_same: A 0.") for text in said) == 10


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html"])
def test_the_same_input_gives_the_same_bytes(tmp_path, suffix):
    made = _made("a run")
    before = dict(matplotlib.rcParams)
    for i in (0, 1):
        with matplotlib.rc_context({"lines.linewidth": 1.0 + i, "svg.hashsalt": f"{i}"}):
            save_fit(tmp_path / f"fit{i}{suffix}", made, made.curve, [1e5])
            if suffix == ".svg":  # what is drawn is the same in all three
                save_comparison(tmp_path / f"both{i}{suffix}", [made, _made("another", A=0.55)])
    assert dict(matplotlib.rcParams) == before
    names = ("fit", "both") if suffix == ".svg" else ("fit",)
    for name in names:
        first, second = ((tmp_path / f"{name}{i}{suffix}").read_bytes() for i in (0, 1))
        assert first == second
        assert len(first) > 10_000 and first.startswith(STARTS[suffix])
    assert sorted(os.listdir(tmp_path)) == sorted(
        f"{name}{i}{suffix}" for name in names for i in (0, 1)
    )


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.label: str | None = None
        self.title = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "svg":
            self.label = dict(attrs)["aria-label"]
            assert dict(attrs)["role"] == "img"

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "title":
            self.title += data


@pytest.mark.parametrize("compared", [False, True])
def test_the_page_stands_alone_and_escapes_names(tmp_path, compared):
    made, path = _made(EVIL), tmp_path / "page.html"
    if compared:
        save_comparison(path, [made, _made("b")])
    else:
        save_fit(path, made, made.curve, [1e5])
    text = path.read_text(encoding="utf-8")
    page = _Page(text)
    assert "script" not in page.tags and page.tags.count("svg") == page.tags.count("title") == 1
    assert EVIL in page.title.strip() and page.label is not None and EVIL in page.label
    assert "<script" not in text and "<?xml" not in text and "<!DOCTYPE svg" not in text
    assert set(re.findall(r'https?://[^"]*', text)) == NAMESPACES
    assert not re.search(r'(?:src|href)="(?!#|data:image/png;base64,)|url\((?!#)|@import', text)
    A = made.A()
    assert f"({A.lo:.3f} .. {A.hi:.3f})" in page.label


def test_a_name_that_no_encoding_has_is_shown_with_a_question_mark(tmp_path):
    made = _made("run-\udcff\x07")
    save_fit(tmp_path / "page.html", made, made.curve, [])
    page = _Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.title.strip().endswith("run-??")


@pytest.mark.parametrize("name", ["fit.pdf", "fit", "fit.SVG"])
def test_other_suffixes_are_refused(tmp_path, name):
    made = _made("a")
    for save in (lambda p: save_fit(p, made, made.curve, []), lambda p: save_comparison(p, [made])):
        with pytest.raises(InputError, match=r"\.svg, \.png, \.html") as refused:
            save(tmp_path / name)
        assert (Path(name).suffix or "no suffix") in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_way_out_is_named(tmp_path, monkeypatch):
    made = _made("a")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'scalerl-sandbox\[plot\]', or leave --plot"):
        save_fit(tmp_path / "fit.svg", made, made.curve, [])


def test_a_failed_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    made, path = _made("a"), tmp_path / "fit.svg"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"cannot write .*fit\.svg: No space left"):
        save_fit(path, made, made.curve, [])
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["fit.svg"]


def test_a_path_that_cannot_be_written(tmp_path):
    made = _made("a")
    with pytest.raises(InputError, match=r"cannot write .*nowhere.*: No such file"):
        save_fit(tmp_path / "nowhere" / "fit.svg", made, made.curve, [])
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*folder\.svg"):
        save_comparison(tmp_path / "folder.svg", [made])
    assert os.listdir(tmp_path) == ["folder.svg"]


def test_curves_that_share_no_axis(tmp_path):
    with pytest.raises(InputError, match=r"one unit of compute, not \['GPU-h', 'steps'\]"):
        save_comparison(tmp_path / "a.svg", [_made("a"), _made("b", unit="steps")])
    with pytest.raises(InputError, match="not none"):
        save_comparison(tmp_path / "a.svg", [])
    made = _made("a")
    for C in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match=f"forecast at {C}"):
            save_fit(tmp_path / "a.svg", made, made.curve, [C])


def test_matplotlib_is_loaded_when_a_figure_is_made_and_pyplot_never(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from scalerl.curves.sources import read_source\n"
        "from scalerl.forecast import forecast\n"
        "from tui.show.figures import save_comparison\n"
        "print('matplotlib' in sys.modules)\n"
        f"made = forecast(read_source({HUNDRED_K!r}).curves)\n"
        "save_comparison(pathlib.Path(sys.argv[1]), [made])\n"
        "print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "False"], done.stderr
