"""Replay: a cursor that steps, jumps and plays between the start of a recording and its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.show.rows import row_width, text, texts
from tui.show.scrub import column_time, scrub_rows
from tui.watch.happenings import Happening
from tui.watch.player import FULL_S, Player, clock


def player(cursor: float = 0.0) -> Player:
    return Player(times=[100.0, 200.0, 300.0], end=400.0, cursor=cursor, playing=False)


def test_a_recording_plays_through_in_the_same_time_whatever_its_length() -> None:
    for end in (10.0, 400.0, 1e6):
        run = Player([1.0], end)
        assert run.playing and run.tick(FULL_S / 2)
        assert run.cursor == pytest.approx(end / 2)
        assert run.tick(FULL_S) and run.cursor == end
        assert not run.playing and not run.tick(1.0)


def test_steps_go_from_update_to_update_and_to_the_ends() -> None:
    run = player()
    places = []
    for by in (1, 1, 1, 1, 1, -1, -1, -1, -1, -1):
        run.step(by)
        places.append(run.cursor)
    assert places == [100.0, 200.0, 300.0, 400.0, 400.0, 300.0, 200.0, 100.0, 0.0, 0.0]


def test_a_step_between_updates_goes_to_the_nearest_and_pauses() -> None:
    run = player(cursor=150.0)
    run.playing = True
    run.step(1)
    assert run.cursor == 200.0 and not run.playing
    run.cursor = 150.0
    run.step(-1)
    assert run.cursor == 100.0


def test_jumps_stay_inside() -> None:
    run = player(cursor=390.0)
    run.jump(0.05)
    assert run.cursor == 400.0
    run.jump(-0.05)
    assert run.cursor == 380.0
    run.jump(-2.0)
    assert run.cursor == 0.0
    run.to(1e9)
    assert run.cursor == 400.0


def test_to_the_marks_before_and_after() -> None:
    run, marks = player(cursor=200.0), [250.0, 50.0, 200.0, 350.0, 150.0]
    run.toward(marks, 1)
    assert run.cursor == 250.0
    run.toward(marks, -1)
    run.toward(marks, -1)
    assert run.cursor == 150.0
    run.toward([], 1)
    run.toward([120.0], 1)  # none after
    assert run.cursor == 150.0


def test_play_at_the_end_begins_again() -> None:
    run = player(cursor=400.0)
    run.toggle()
    assert run.playing and run.cursor == 0.0
    run.toggle()
    assert not run.playing and run.cursor == 0.0
    run.cursor = 400.0
    run.playing = True
    run.toggle()  # a pause in the last moment
    assert not run.playing and run.cursor == 400.0


def test_faster_and_slower() -> None:
    run = player()
    first = run.speed
    run.faster(1)
    assert run.speed == 2 * first
    run.faster(-2)
    assert run.speed == first / 2
    run.playing = True
    run.tick(1.0)
    assert run.cursor == pytest.approx(400.0 / FULL_S / 2)


def test_a_recording_of_no_length() -> None:
    run = Player([], 0.0)
    run.tick(1.0)
    run.step(1)
    run.step(-1)
    run.toggle()
    assert run.cursor == 0.0
    assert text(scrub_rows(run, [], 40)[0]).startswith("├┃")


def test_the_bar_shows_cursor_and_marks() -> None:
    """27 of 40 cells for 400 s ("├" and "┤" beside them): 200 s are cell 13, 300 s cell 20."""
    found = [
        Happening(3, "danger", "DANGER: truncated", clock=300.0),
        Happening(1, "ok", "the run began", clock=0.0),
        Happening(9, "watch", "later than the end", clock=500.0),
    ]
    bar, words = scrub_rows(player(cursor=200.0), found, 43)
    label = " 3m20s / 6m40s"
    assert text(bar) == "├" + "─" * 13 + "┃" + "─" * 6 + "■" + "─" * 6 + "┤" + label
    # a click on the first column of the bar is the start, one on the mark within a cell of its time
    assert column_time(player(200.0), 1, 43) == 0.0
    assert 0.0 <= 300.0 - column_time(player(200.0), 1 + 20, 43) < 400.0 / 27
    assert text(words).rstrip() == " marks: ■ DANGER: truncated @5m00s"
    assert "no alarm" in texts(scrub_rows(player(), [], 60))


def test_a_mark_under_the_cursor_gives_way_to_it() -> None:
    bar, _ = scrub_rows(player(cursor=400.0), [Happening(4, "danger", "x", clock=400.0)], 50)
    assert "┃┤" in text(bar) and "■" not in text(bar)


def test_the_clock_of_long_runs_is_in_hours() -> None:
    assert [clock(s) for s in (59.0, 3599.0, 36_000.0, 90_000.0)] == [
        "59s",
        "59m59s",
        "10.0 h",
        "25.0 h",
    ]


@given(width=st.integers(10, 120), cursor=st.floats(0.0, 400.0))
def test_the_bar_keeps_inside_the_screen(width: int, cursor: float) -> None:
    found = [
        Happening(1, "watch", "a long warning 漢字 " * 3, clock=at) for at in (1.0, 200.0, 400.0)
    ]
    assert all(row_width(row) <= width for row in scrub_rows(player(cursor), found, width))
