"""A run is watched without a screen: what is asked for, and when."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest
from logs import resume_event, whole_run, write_log
from watching import came, watched

from scalerl.events import Event
from tui.watch.analysis import NOTHING, Stage
from tui.watch.watching import Watch


def recorded(path: Path, events: list[Event]) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(e) + "\n" for e in events).encode()))
    return path


def test_a_fit_comes_of_a_scene_that_was_asked_for(tmp_path: Path) -> None:
    log = write_log(tmp_path / "events.jsonl", whole_run())

    async def look(watch: Watch) -> None:
        await came(lambda: watch.scene().view.n == 112)
        assert watch.analysis is NOTHING  # asked for just now
        await came(lambda: watch.analysis.stage is Stage.FIT)
        first = watch.analysis
        watch.scene()
        await asyncio.sleep(0.05)
        assert watch.analysis is first  # nothing new to fit
        watch.window = (20.0, float("inf"))
        await came(lambda: watch.scene().analysis.window == (20.0, float("inf")))

    watched(log, look)


def test_a_frozen_view_stands_while_the_log_grows(tmp_path: Path) -> None:
    whole = whole_run()
    half = next(i for i, e in enumerate(whole) if e.get("update") == 57)
    log = write_log(tmp_path / "events.jsonl", whole[:half])

    async def look(watch: Watch) -> None:
        await came(lambda: watch.scene().view.n == 56)
        watch.freeze()
        write_log(log, whole)
        await came(lambda: watch.session.store.updates.n == 112)
        assert watch.scene().view.n == 56
        watch.freeze()
        assert watch.scene().view.n == 112

    watched(log, look)


def test_what_was_known_before_a_resume_is_void(tmp_path: Path) -> None:
    whole = whole_run(status=None)
    log = write_log(tmp_path / "events.jsonl", whole)

    async def look(watch: Watch) -> None:
        await came(lambda: watch.scene().view.n == 112 and watch.analysis is not NOTHING)
        seq = next(e["seq"] for e in whole if e.get("update") == 9)
        write_log(log, [*whole, resume_event(seq, 8)])
        await came(lambda: watch.session.store.resumed == 1)
        assert watch.scene().analysis is NOTHING
        await came(lambda: "so far" in watch.scene().analysis.why)

    watched(log, look)


def test_a_recording_is_played_once_it_is_whole_and_its_alarms_are_marked(tmp_path: Path) -> None:
    """However few bytes a turn brings: a player over a part would end there."""
    events = [
        {**e, "truncated": 0.12} if e["kind"] == "update" and e["update"] > 60 else e
        for e in whole_run()
    ]
    source = recorded(tmp_path / "run.jsonl.gz", events)

    async def look(watch: Watch) -> None:
        await came(lambda: watch.player is not None)
        assert watch.player is not None and watch.player.end == watch.session.store.clock
        assert len(watch.player.times) == 112
        await came(lambda: bool(watch.marks))
        assert {mark.what for mark in watch.marks} == {
            "DANGER: truncated",
            "WATCH: truncation trend",
        }
        assert watch.scene().view.n == 0  # it stands at its start
        watch.player.to(90.0 * 61)
        assert watch.scene().view.n == 61

    watched(source, look)


def test_a_log_that_no_fit_can_read_is_told_of_and_watched_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of a strange log")

    monkeypatch.setattr("tui.watch.watching.analyse", broken)
    log = write_log(tmp_path / "events.jsonl", whole_run())

    async def look(watch: Watch) -> None:
        await came(lambda: "ZeroDivisionError" in watch.scene().analysis.why)

    watched(log, look)


def test_a_replay_that_goes_back_knows_nothing_of_what_comes(tmp_path: Path) -> None:
    source = recorded(tmp_path / "run.jsonl.gz", whole_run())

    async def look(watch: Watch) -> None:
        await came(lambda: watch.player is not None)
        assert watch.player is not None
        watch.player.to(watch.player.end)
        await came(lambda: watch.scene().analysis.stage is Stage.FIT)
        watch.player.to(90.0 * 40)  # 40 updates, 80 GPU-h
        at_once = watch.scene().analysis
        assert at_once.made is None and at_once.curve is not None
        assert at_once.curve.last_C == 80.0
        await came(lambda: watch.scene().analysis.made is not None)
        assert watch.scene().analysis.curve is not None
        now = watch.scene().analysis.curve
        assert now is not None and now.last_C == 80.0

    watched(source, look)


def test_a_frozen_view_of_a_log_that_began_anew_follows_again(tmp_path: Path) -> None:
    log = write_log(tmp_path / "events.jsonl", whole_run())

    async def look(watch: Watch) -> None:
        await came(lambda: watch.scene().view.n == 112)
        watch.freeze()
        write_log(log, whole_run(8))
        await came(lambda: watch.session.follower.resets == 1)
        await came(lambda: watch.scene().view.n == 8)
        assert watch.frozen_at is None

    watched(log, look)
