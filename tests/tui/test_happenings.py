"""What just happened: notices and alarms in one list, the newest first, with evidence and advice."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from logs import numbered, run_event, update_event

from scalerl.curves.alarms import Alarm
from tui.show.happenings import happening_rows
from tui.show.rows import row_width, text, texts
from tui.watch.analysis import NOTHING
from tui.watch.happenings import Happening, gravest, happenings
from tui.watch.scene import Scene
from tui.watch.store import RunStore

HIGH = Alarm("truncated", "danger", 2.0, "update", "12.0% at worst", "above 10%", "interrupt")
LOW = Alarm("residual", "danger", 6.5, "compute", "R = 0.4", "p = 0.001", "stop")


def scene(*alarms: Alarm) -> Scene:
    """Four updates, at 90, 180, 270, 360 s and 2, 4, 6, 8 GPU-h."""
    store = RunStore()
    store.take(numbered([run_event(), *(update_event(n, skipped=n == 4) for n in range(1, 5))]))
    return Scene(store.view(), replace(NOTHING, alarms=alarms))


def test_notices_and_alarms_the_newest_first() -> None:
    found = happenings(scene(HIGH, LOW))
    assert [(each.update, each.clock, each.level) for each in found] == [
        (4, 360.0, "watch"),  # skipped
        (3, 270.0, "danger"),  # the last update before 6.5 GPU-h
        (2, 180.0, "danger"),
        (0, 0.0, "ok"),
    ]
    assert found[1].what == "DANGER: residual at 6.5 GPU-h" and found[1].term == "verdict"
    assert (
        found[2].what == "DANGER: truncated" and found[2].evidence == "12.0% at worst (above 10%)"
    )


def test_an_alarm_of_a_run_without_updates() -> None:
    empty = Scene(RunStore().view(), replace(NOTHING, alarms=(HIGH, LOW)))
    assert [(each.update, each.clock) for each in happenings(empty)] == [(2, 0.0), (0, 0.0)]


def test_the_one_to_read_first_is_the_newest_alarm() -> None:
    assert gravest([]) == 0
    found = happenings(scene(HIGH, LOW))
    assert found[gravest(found)].what.startswith("DANGER")


def test_the_chosen_one_says_why_and_what_to_try() -> None:
    found = happenings(scene(HIGH))
    said = texts(happening_rows(found, 1, 60, 8))
    assert "DANGER: truncated" in said
    assert "12.0% at worst (above 10%)" in said and "try: interrupt" in said
    assert "try:" not in texts(happening_rows(found, 0, 60, 8))
    assert texts(happening_rows([], 0, 60, 8)) == "nothing yet"


def test_a_cause_of_several_lines_is_one_line() -> None:
    [row] = happening_rows([Happening(1, "danger", "fault: a\nb\x1b[2J")], 0, 60, 1)
    assert "\n" not in text(row) and "\x1b" not in text(row)


@given(chosen=st.integers(0, 3), width=st.integers(10, 120), height=st.integers(1, 20))
def test_the_list_keeps_inside_its_pane(chosen: int, width: int, height: int) -> None:
    rows = happening_rows(happenings(scene(HIGH, LOW)), chosen, width, height)
    assert 1 <= len(rows) <= height
    assert [row for row in rows if row_width(row) > width] == []
