"""The store of a run: columns, what a resume voids, any moment of the past, bounded memory, and hostile logs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import (
    eval_event,
    fault_event,
    numbered,
    phase_event,
    resume_event,
    run_event,
    sample_event,
    update_event,
    whole_run,
)
from spoiled_logs import spoiled

from scalerl.events import Event, surviving
from tui.watch.store import MOST_EVALS, MOST_PHASES, MOST_SAMPLES, MOST_UPDATES, RunStore, RunView


def store_of(*events: Event) -> RunStore:
    store = RunStore()
    store.take(events)
    return store


# ---- what is kept ----


def test_a_run_as_columns() -> None:
    view = store_of(*whole_run(12, every=4)).view()
    assert view.n == 12 and view.column("update").tolist() == list(range(1, 13))
    assert view.last("gpu_h") == 24.0  # 12 updates of (64 + 16) * 90 / 3600
    assert view.last("tokens", at=0) == 2000.0
    assert [event["C"] for event in view.evals()] == [0.0, 8.0, 16.0, 24.0]
    assert [event["update"] for event in view.samples()] == [4, 8, 12]
    assert view.setting("loss.kind") == "cispo" and view.setting("site.updates") == 12
    assert view.setting("loss.none") is None and view.setting("loss.kind.more", 3) == 3
    assert view.done is not None and view.done["status"] == "done"


def test_a_metric_that_was_not_reported_is_none_and_not_0() -> None:
    view = store_of(*numbered([update_event(1, loss=None), update_event(2, kl="0.5")])).view()
    assert view.last("loss", at=0) is None and view.last("loss") == -0.02
    assert view.last("kl", at=0) == 1e-4 and view.last("kl") is None
    assert view.last("loss", at=7) is None


def test_the_row_at_a_compute_is_the_last_update_before_it() -> None:
    view = store_of(*(update_event(n) for n in range(1, 5))).view()  # at 2, 4, 6, 8 GPU-h
    assert [view.row_at(C) for C in (1.9, 2.0, 3.0, 6.0, 100.0)] == [None, 0, 0, 2, 3]


def test_phases_that_reach_into_a_stretch() -> None:
    events = [
        phase_event("trainer", "update", start, start + 50.0, seq=i)
        for i, start in enumerate((0.0, 100.0, 200.0))
    ]
    view = store_of(*events).view()  # the clock is 250
    assert [start for *_, start, _, _ in view.phases(120.0)] == [100.0, 200.0]
    assert [start for *_, start, _, _ in view.phases(150.0)] == [200.0]
    assert view.phases(250.0) == []
    assert view.phases(0.0)[0] == ("trainer", 0, "update", 0.0, 50.0, 1.0)


def test_the_pace_is_of_the_newest_updates_and_not_across_a_resume() -> None:
    events = numbered(update_event(n) for n in range(1, 11))  # half a wall second each
    assert store_of(*events).view().seconds_per_update() == 0.5
    assert store_of(*events[:2]).view().seconds_per_update() is None
    taken_up = [*events, resume_event(10, 10), update_event(11, seq=10, t=0.4)]
    assert store_of(*taken_up).view().seconds_per_update() is None  # t began anew


def test_what_happened_in_words() -> None:
    view = store_of(
        *numbered(
            [
                run_event(),
                update_event(1, skipped=True),
                fault_event(1, "engine 3 died", group=7),
                {**update_event(1), "kind": "warning", "what": "every prompt\nwas excluded"},
                fault_event(2),
            ]
        )
    ).view()
    assert [(n.update, n.level, n.what.partition(":")[0]) for n in view.notices()] == [
        (0, "ok", "the run began"),
        (1, "watch", "update skipped"),
        (1, "watch", "fault"),
        (1, "watch", "warning"),
        (1, "danger", "fault"),
    ]
    assert view.notices()[3].what == "warning: every prompt?was excluded"  # one line on a screen
    assert view.fault is not None and view.fault["cause"] == "the loss is nan"


# ---- resume ----


def test_a_resume_voids_what_has_its_seq_or_more() -> None:
    events = whole_run(12, every=4, status="stopped")
    at = next(e["seq"] for e in events if e["kind"] == "update" and e["update"] == 9)
    store = store_of(*events, resume_event(at, 8))
    view = store.view()
    assert view.column("update").tolist() == list(range(1, 9))
    assert [event["C"] for event in view.evals()] == [0.0, 8.0, 16.0]
    assert [event["update"] for event in view.samples()] == [4, 8]
    assert view.done is None and view.head and store.resumed == 1
    assert store.clock == 8 * 90.0 and max(end for *_, end, _ in view.phases(0.0)) == 8 * 90.0
    assert view.notices()[-1].what == "taken up again at 16.0 GPU-h"
    assert view.notices()[-1].update == 8


def test_a_run_killed_before_its_first_checkpoint_begins_anew() -> None:
    store = store_of(*whole_run(3, status=None), resume_event(0, 0), run_event(seed=5))
    assert store.view().n == 0 and store.view().head["seed"] == 5
    assert len(store.view().notices()) == 2  # taken up, began


def test_a_resume_voids_a_fault() -> None:
    events = numbered([run_event(), update_event(1), fault_event(1)])
    assert store_of(*events).view().fault is not None
    assert store_of(*events, resume_event(2, 1)).view().fault is None


def test_a_log_that_began_anew_is_another_run() -> None:
    store = store_of(*whole_run(3))
    before = store.changes
    store.reset()
    assert store.changes > before
    assert store.view().n == 0 and store.view().head == {} and store.clock == 0.0


# ---- any moment ----


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """What a writer leaves that is stopped and taken up at any of its events."""
    events: list[Event] = []
    alive: list[Event] = []
    clock = 0.0
    for _ in range(draw(st.integers(1, 40))):
        kind = draw(
            st.sampled_from(["update", "update", "eval", "sample", "phase", "warning", "resume"])
        )
        clock += draw(st.sampled_from([0.0, 1.0, 2.5]))
        common = {"seq": len(alive), "clock": clock, "gpu_h": clock / 45.0}
        n = len(alive) + 1
        if kind == "resume" and alive:
            keep = draw(st.integers(0, len(alive)))
            clock = alive[keep - 1]["clock"] if keep else 0.0
            alive = alive[:keep]
            events.append(resume_event(keep, 0, clock=clock))
            continue
        made = {
            "update": lambda n=n: update_event(n, lag_tokens=[n]),
            "eval": lambda n=n: eval_event(float(n), 0.5),
            "sample": lambda n=n: sample_event(n),
            "phase": lambda n=n, clock=clock: phase_event("trainer", "update", clock - 10.0, clock, index=n),
        }.get(kind, lambda n=n: {"kind": "warning", "what": str(n)})()  # fmt: skip
        alive.append(made | common)
        events.append(alive[-1])
    return events


def seen(view: RunView) -> dict[str, Any]:
    return {
        "updates": view.column("update").tolist(),
        "gpu_h": view.column("gpu_h").tolist(),
        "lags": [view.lags(row).tolist() for row in range(view.n)],
        "evals": view.evals(),
        "samples": view.samples(),
        "phases": view.phases(-20.0),
        "warnings": [n for n in view.notices() if n.what.startswith("warning")],
        "alarms": view.update_events(5),
    }


@given(log=logs())
def test_the_past_looks_as_it_did(log: list[Event]) -> None:
    """At every moment the view is that of a store which has seen no more than what survives from before it."""
    store = store_of(*log)
    left = surviving(log)
    for until in sorted({e["clock"] + by for e in left for by in (-0.1, 0.0)}):
        fresh = store_of(*(event for event in left if event["clock"] <= until))
        assert seen(store.view(until)) == seen(fresh.view())
    assert seen(store.view()) == seen(store_of(*left).view())


def test_the_end_of_a_run_is_not_known_before_it() -> None:
    store = store_of(*whole_run(3))
    assert store.view(269.9).done is None and store.view(270.0).done is not None
    assert store.view(100.0).clock == 100.0 and store.view(1e9).clock == 270.0


# ---- memory ----


def endless(kind: str, n: int) -> Iterator[Event]:
    for i in range(n):
        yield {
            "kind": kind, "seq": i, "clock": float(i), "update": i, "gpu_h": i / 2, "what": "update",
            "role": "trainer", "index": 0, "start": float(i), "end": i + 1.0, "set": "validation",
            "lag_tokens": [i],
        }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "most"), [("update", MOST_UPDATES), ("eval", MOST_EVALS)], ids=["updates", "evals"]
)
def test_of_very_many_some_are_kept_evenly_and_all_of_the_newest(kind: str, most: int) -> None:
    store = RunStore()
    store.take(endless(kind, 200_000))
    table = store.updates if kind == "update" else store.evals["validation"]
    clocks = table.clock(table.n)
    assert most / 4 < table.n <= most and len(table.extra(table.n)) == table.n
    assert clocks[0] == 0.0 and clocks[-1] == 199_999.0
    assert np.all(np.diff(clocks) > 0.0)
    assert np.diff(clocks).max() <= 2_000.0  # no stretch of more than 1 % is left out
    assert np.all(np.diff(clocks)[-most // 16 :] == 1.0)  # the newest are all there
    if kind == "update":
        assert store.view().lags(7).tolist() == [int(clocks[7])]  # still beside their rows
    at = int(clocks[table.n // 2])
    store.take([resume_event(at, 0, clock=float(at))])
    assert table.clock(table.n)[-1] < at


@pytest.mark.parametrize(
    ("kind", "most"), [("phase", MOST_PHASES), ("sample", MOST_SAMPLES)], ids=["phases", "samples"]
)
def test_of_very_many_the_newest_are_kept(kind: str, most: int) -> None:
    store = RunStore()
    store.take(endless(kind, 200_000))
    table = store.phases if kind == "phase" else store.samples
    assert most / 4 < table.n <= most
    clocks = table.clock(table.n)
    assert clocks.tolist() == list(range(200_000 - table.n, 200_000))


# ---- hostile logs ----


@given(events=st.lists(spoiled(), max_size=12))
def test_no_event_is_fatal(events: list[Event]) -> None:
    store = store_of(*events)
    for view in (store.view(), store.view(100.0), store.view(-1.0)):
        tables = (store.updates, store.phases, store.samples, store.notices)
        for table in (*tables, *store.evals.values()):
            clocks = table.clock(table.n)
            assert np.all(np.diff(clocks) >= 0.0)
        assert not np.isinf(view.column("loss")).any()
        assert np.isfinite(view.column("gpu_h")).all()
        assert all((view.lags(row) >= 0).all() for row in range(view.n))
        assert view.row_at(3.0) is None or view.n
        for look in (view.notices, view.samples, view.evals, view.seconds_per_update):
            look()
        assert len(view.update_events(5)) <= 5 and isinstance(view.phases(0.0), list)


def test_lags_with_a_hole_are_not_told_at_all() -> None:
    """Without the second the third would stand as lag 1."""
    for rubbish in ([500, None, 300], [500, "1", 300], [1.5], [-1], [10**30], "500", {"0": 5}):
        view = store_of(update_event(1, lag_tokens=rubbish)).view()
        assert view.n == 1 and view.lags().tolist() == []


@pytest.mark.parametrize("damage", [{"update": None}, {"gpu_h": "2"}, {"seq": None}, {"seq": True}])
def test_an_update_that_does_not_say_which_or_where_is_counted_and_passed_over(
    damage: dict[str, Any],
) -> None:
    store = store_of(update_event(1), update_event(2) | damage)
    assert store.view().n == 1 and store.unknown == {"update": 1}


def test_a_clock_that_goes_back_does_not_reorder_a_run() -> None:
    store = store_of(
        update_event(1, clock=100.0), update_event(2, clock=50.0), update_event(3, clock=None)
    )
    assert store.updates.clock(3).tolist() == [100.0, 100.0, 100.0]
    assert store.view(99.0).n == 0 and store.view(100.0).n == 3


def test_a_resume_cannot_set_the_clock_before_what_survives_it() -> None:
    store = store_of(*numbered(update_event(n) for n in (1, 2, 3)), resume_event(2, 0, clock=None))
    assert store.clock == 180.0 and store.view(100.0).n == 1


def test_kinds_of_a_later_version_are_counted() -> None:
    store = store_of(
        {"kind": "gradient", "seq": 1}, {"kind": "gradient", "seq": 2}, update_event(3)
    )
    assert store.unknown == {"gradient": 2} and store.view().n == 1
