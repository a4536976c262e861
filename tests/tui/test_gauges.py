"""The panels beside the curve: zones of truncation, lags, idle GPUs, at any size and at any update."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import numbered, phase_event, run_event, update_event, whole_run
from spoiled_logs import spoiled

from scalerl.curves.alarms import TRUNCATION, truncation
from scalerl.events import Event
from tui.show.busy import busy_rows
from tui.show.gauges import (
    allowed_lag,
    lag_rows,
    lag_summary,
    sparkline,
    truncation_level,
    truncation_rows,
    truncation_zone,
)
from tui.show.rows import Row, row_width, text, texts
from tui.watch.scene import Scene
from tui.watch.store import RunStore

Panel = Callable[[Scene, int, int], list[Row]]
PANELS: list[Panel] = [truncation_rows, lag_rows, busy_rows]


def scene_of(*events: Event, at: int | None = None) -> Scene:
    store = RunStore()
    store.take(numbered(events))
    return Scene(store.view(), at=at)


def with_k(kind: str, k: int) -> Event:
    return run_event() | {"recipe": {"staleness": {"kind": kind, "k": k}}}


# ---- truncation ----


def test_the_zones_are_those_of_the_alarms() -> None:
    """At a threshold nothing fires; above it the alarm of eight such updates has the same level."""
    for limit, level in TRUNCATION:
        for share in (limit, limit + 1e-6):
            alarm = truncation([update_event(n, truncated=share) for n in range(1, 9)])
            assert truncation_level(share) == (alarm.level if alarm else "ok")
        assert truncation_level(limit + 1e-6) == level
    assert truncation_zone(0.04) == "ok 0-5 %"
    assert truncation_zone(0.07) == "WATCH 5-10 %"
    assert truncation_zone(0.118) == "DANGER 10-15 %"
    assert truncation_zone(0.3) == "UNSTABLE >15 %"


def test_truncation_is_the_mean_of_eight_updates() -> None:
    shares = [0.9, *[0.0] * 4, *[0.2] * 4]  # the first is the ninth from the end: 4 * 0.2 / 8 = 0.1
    scene = scene_of(*(update_event(n, truncated=s) for n, s in enumerate(shares, 1)))
    assert texts(truncation_rows(scene, 30, 1)) == "10.0% ▲ WATCH 5-10 %"
    first = Scene(scene.view, at=0)
    assert texts(truncation_rows(first, 30, 1)) == "90.0% ■ UNSTABLE >15 %"


def test_the_bar_is_full_as_far_as_the_share_and_shows_the_zones_ahead() -> None:
    """40 cells to 20 %: 5 % are 10 cells; ok up to 5 %, watch up to 10 %, danger and unstable after."""
    rows = truncation_rows(scene_of(update_event(1, truncated=0.05)), 40, 7)
    assert text(rows[1]) == "█" * 10 + "▒" * 10 + "▓" * 20
    assert [role for _, role in rows[1]] == ["ok", "watch", "danger"]
    assert text(rows[2]) == "0         5         10        15     20%"
    half = truncation_rows(scene_of(update_event(1, truncated=0.0526)), 40, 7)
    assert text(half[1]).startswith("█" * 10 + "▌")  # 10.52 cells


def test_what_stands_below_the_bar() -> None:
    scene = scene_of(update_event(1), update_event(2, interrupted=0.094, length_mean_tokens=23.2))
    said = texts(truncation_rows(scene, 24, 6)).splitlines()
    assert said[2:] == ["interrupted   9.4%", "zero var.    25.0%", "length        23.2 tok"]


def test_truncation_that_is_not_reported_is_not_0() -> None:
    said = texts(truncation_rows(scene_of(update_event(1, truncated=None)), 40, 6))
    assert said.startswith("truncation is not reported") and "%" not in said.splitlines()[0]


def test_a_sparkline_is_a_mean_of_neighbours() -> None:
    import numpy as np

    assert sparkline(np.array([0.0, 0.25, 0.5, 1.0]), 4, 1.0) == "▁▃▅█"
    assert sparkline(np.array([0.0, 0.5, 1.0, 1.0, np.nan, 0.0, 0.0, 0.5, 0.5]), 4, 1.0) == "▃█▁▅"
    assert sparkline(np.array([0.5]), 8, 1.0) == "" and sparkline(np.ones(9), 3, 1.0) == ""


# ---- lag ----


@pytest.mark.parametrize(
    ("kind", "k", "allowed"),
    [("pipeline", 8, 8), ("ppo_off_policy", 8, 7), ("ppo_off_policy", 1, 0)],
)
def test_the_largest_lag_that_a_recipe_allows(kind: str, k: int, allowed: int) -> None:
    assert allowed_lag(scene_of(with_k(kind, k))) == allowed


def test_lag_in_numbers() -> None:
    """Mean (0 * 50 + 1 * 30 + 3 * 20) / 100 = 0.9; 95 of 100 tokens have a lag of at most 3."""
    scene = scene_of(with_k("pipeline", 4), update_event(1, lag_tokens=[50, 30, 0, 20]))
    assert lag_summary(scene) == (0.9, 3, 3, 4)
    scene = scene_of(update_event(1, lag_tokens=[95, 5]))
    assert lag_summary(scene) == (0.05, 0, 1, None)  # 95 of 100 have lag 0


def test_a_bar_for_each_lag_up_to_k() -> None:
    scene = scene_of(with_k("pipeline", 4), update_event(1, lag_tokens=[50, 30, 0, 20]))
    rows = lag_rows(scene, 29, 8)
    assert texts(rows).splitlines() == [
        "mean 0.9  p95 3  max 3 versi…",
        "0 ██████████ 50%",
        "1 ██████ 30%",
        "2  0%",
        "3 ████ 20%",
        "4  0% ◂ k max 4",
    ]


def test_tokens_beyond_k_are_marked_and_only_they() -> None:
    scene = scene_of(with_k("pipeline", 1), update_event(1, lag_tokens=[60, 20, 0, 20]))
    roles = {text(row)[0]: row[1][1] for row in lag_rows(scene, 40, 9)[1:]}
    assert roles == {"0": "data", "1": "data", "2": "data", "3": "danger"}
    # three rows: 0-1, 2-3; with k = 2 the second holds lag 3, which is too old
    coarse = scene_of(with_k("pipeline", 2), update_event(1, lag_tokens=[60, 20, 0, 20]))
    rows = lag_rows(coarse, 40, 3)
    assert [row[1][1] for row in rows[1:]] == ["data", "danger"]
    assert text(rows[2]).startswith("2-3 ") and "k max 2" in text(rows[2])


@given(
    tokens=st.lists(st.integers(0, 10**6), min_size=1, max_size=60).filter(any),
    height=st.integers(2, 20),
    k=st.integers(0, 40),
)
def test_the_shares_add_up_to_all_tokens(tokens: list[int], height: int, k: int) -> None:
    rows = lag_rows(scene_of(with_k("pipeline", k), update_event(1, lag_tokens=tokens)), 80, height)
    assert len(rows) <= height
    told = [next(part for part, _ in row if part.endswith("%")) for row in rows[1:]]
    shares = [0.5 if each == " <1%" else float(each.strip(" %")) for each in told]
    assert abs(sum(shares) - 100.0) <= 0.5 * len(shares)  # each is rounded
    covered = [name for row in rows[1:] for name in _lags(text(row))]
    assert covered == list(range(max(len(tokens) - 1, k) + 1))


def _lags(row: str) -> range:
    name = row.split()[0].split("-")
    return range(int(name[0]), int(name[-1]) + 1)


def test_a_skipped_update_trained_nothing() -> None:
    scene = scene_of(update_event(1, skipped=True, lag_tokens=[], trained_tokens=0))
    assert texts(lag_rows(scene, 40, 5)) == "nothing trained in this update"


# ---- who is busy ----


def test_idle_shares_and_what_a_cell_shows() -> None:
    """From 90 to 180 s, a cell 4.5 s: trainers work from 120 on, 60 of 90 s, and push in the last 3.

    Cell 6 (117 to 121.5 s) holds 1.5 s of work, so it is idle; the last holds 1.5 of work and 3 of push.
    """
    rows = busy_rows(scene_of(*whole_run(2, status=None)), 40, 6)
    assert texts(rows).splitlines() == [
        "gen x64   " + "█" * 20 + "   0% idle",
        "train x16 " + "·" * 7 + "▚" * 12 + "▒" + "  33% idle",
        "last 90 s  █ generate  ▚ update  ▒ push",
    ]
    assert [row[-1][1] for row in rows[:2]] == ["muted", "watch"]  # above 30 %


def test_gpus_that_report_alone_are_lanes_of_their_own() -> None:
    phases = [
        phase_event("generator", "generate", 30.0, 60.0 + 30.0 * i, index=i) for i in range(2)
    ]
    rows = busy_rows(scene_of(update_event(1), *phases, update_event(1, clock=91.0)), 60, 6)
    said = [text(row) for row in rows]
    # the stretch is at least a minute: 31 .. 91; busy 29 and 59 of 60 s
    assert said[0].startswith("gen 0 ") and said[0].endswith(" 52% idle")
    assert said[1].startswith("gen 1 ") and said[1].endswith("  2% idle")


def test_many_lanes_become_one_bar_and_the_three_that_idle_most() -> None:
    """GPU i of 40 works i / 39 of 90 s: half of all the time."""
    phases = [
        phase_event("generator", "generate", 90.0, 90.0 + 90.0 * i / 39, index=i, clock=180.0)
        for i in range(40)
    ]
    rows = busy_rows(scene_of(update_event(1), *phases, update_event(2)), 60, 8)
    said = [text(row) for row in rows]
    assert said[0] == "gen x40   " + "█" * 20 + "·" * 20 + "  50% idle"
    assert [row.split("█")[0].split("·")[0].strip() for row in said[1:4]] == [
        "gen 0",
        "gen 1",
        "gen 2",
    ]
    assert said[1].endswith("100% idle") and len(said) == 5


def test_an_earlier_update_shows_its_own_time() -> None:
    events = [*whole_run(2, status=None), update_event(3)]  # no phase of the third is there
    now, then = scene_of(*events), scene_of(*events, at=1)
    assert "  33% idle" in texts(busy_rows(then, 40, 6))
    assert "  33% idle" not in texts(busy_rows(now, 40, 6))


@pytest.mark.parametrize("panel", PANELS)
def test_a_run_that_has_not_begun(panel: Panel) -> None:
    assert texts(panel(scene_of(), 40, 6)) == "no update yet"


# ---- any size, any log ----


def check_size(panel: Panel, scene: Scene, width: int, height: int) -> None:
    rows = panel(scene, width, height)
    assert len(rows) <= height
    assert [row for row in rows if row_width(row) > width] == []


RUN = scene_of(*whole_run(30, truncated=0.12, lag_tokens=[9] * 12))
FLEET = scene_of(
    update_event(1),
    *(
        phase_event(role, "a long word", 0.0, 50.0, index=i, clock=90.0)
        for role in ("generator", "漢字漢字漢字")
        for i in range(20)
    ),
    update_event(2),
)


@pytest.mark.parametrize("panel", PANELS)
@given(width=st.integers(10, 120), height=st.integers(1, 20), at=st.sampled_from([None, 0, 17]))
def test_rows_keep_inside_their_pane(panel: Panel, width: int, height: int, at: Any) -> None:
    check_size(panel, Scene(RUN.view, at=at), width, height)
    check_size(panel, FLEET, width, height)


@given(events=st.lists(spoiled(), max_size=10), width=st.integers(10, 90), height=st.integers(1, 9))
def test_no_log_breaks_a_panel(events: list[Event], width: int, height: int) -> None:
    store = RunStore()
    store.take(events)
    for panel in PANELS:
        check_size(panel, Scene(store.view()), width, height)
