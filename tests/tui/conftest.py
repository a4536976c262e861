"""A place of its own for whoever drives the app: its runs, its memory and its working folder."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # most tests beside this file need no app
    from driving import Clock, FakeStarts


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder: what the app writes lies below it, and its paths are short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALERL_RUNS", "runs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tui.screens.home.REFRESH_S", 0.2)
    for name in ("NO_COLOR", "TEXTUAL_THEME", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def clock(place: Path, monkeypatch: pytest.MonkeyPatch) -> "Clock":
    """The clock that ages of logs are told by."""
    from driving import Clock

    from tui.watch.session import Session

    clock = Clock()
    monkeypatch.setattr("tui.watch.session.Session", partial(Session, now=clock))
    return clock


@pytest.fixture
def starts(place: Path, monkeypatch: pytest.MonkeyPatch) -> "FakeStarts":
    """Runs that are started have no process."""
    from driving import FakeStarts

    starts = FakeStarts()
    monkeypatch.setattr("tui.watch.fleet.start_run", starts)
    return starts
