"""What may be shown of a fit as a run goes on, and why; and what is remembered of alarms."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from logs import eval_event, whole_run

from scalerl.curves.alarms import Alarm
from scalerl.events import Event
from tui.watch.analysis import (
    NOTHING,
    Analysis,
    Stage,
    analyse,
    remembered,
    sampled,
    shown_points,
    warm_up,
)
from tui.watch.store import RunStore


@cache
def run() -> RunStore:
    """Evaluations every 8 GPU-h up to 224, A = 0.9, C_mid = 50."""
    store = RunStore()
    store.take(whole_run())
    return store


def at(gpu_h: float, window: tuple[float, float] | None = None) -> Analysis:
    view = run().view(gpu_h / 2.0 * 90.0)
    return analyse(view.evals(), view.update_events(1500), "tiny", window)


def test_before_the_first_evaluation() -> None:
    assert analyse([], [], "tiny").stage is Stage.NONE
    assert NOTHING.stage is Stage.NONE and NOTHING.why == "no evaluation yet"


def test_too_few_points_are_counted() -> None:
    found = at(40.0)  # at 8, 16, 24, 32, 40; the one at 0 is R0
    assert found.stage is Stage.NONE and found.made is None and found.curve is not None
    assert found.why == "the fit needs 8 evaluations: 5 so far and the one before training"


def test_before_the_knee_no_curve_is_drawn() -> None:
    found = at(72.0)  # nine points, below twice C_mid
    assert found.stage is Stage.BAND and found.made is not None
    assert "the ceiling has not been seen" in found.why


def test_with_the_knee_seen_there_is_a_fit() -> None:
    found = at(224.0)
    assert (found.stage, found.why) == (Stage.FIT, "")
    assert found.made is not None and found.made.A().value == pytest.approx(0.9, abs=0.02)


def test_stages_come_in_order() -> None:
    order = [Stage.NONE, Stage.BAND, Stage.FIT]
    stages = [order.index(at(C).stage) for C in range(8, 232, 24)]
    assert stages == sorted(stages) and set(stages) == {0, 1, 2}


def fallen() -> list[Event]:
    """The run, and from 160 GPU-h on 0.2 below it."""
    events = [dict(event) for event in whole_run() if event["kind"] == "eval"]
    for event in events:
        event["pass_rate"] -= 0.2 if event["C"] >= 160.0 else 0.0
    return events


def named(found: Analysis, name: str) -> Alarm | None:
    return next((alarm for alarm in found.alarms if alarm.name == name), None)


def test_a_run_that_leaves_its_curve_is_broken() -> None:
    found = analyse(fallen(), [], "tiny")
    assert found.stage is Stage.BROKEN and "below what the first" in found.why
    alarm = named(found, "residual")
    assert alarm is not None and 160.0 <= alarm.at <= 184.0
    assert named(found, "kl jump") is None


def test_evaluations_that_were_lost_break_a_curve_even_where_it_has_no_fit() -> None:
    lost = [eval_event(C, float("nan")) for C in (8.0, 16.0)]
    found = analyse([eval_event(0.0, 0.2), *lost], [], "tiny")
    assert found.stage is Stage.NONE and named(found, "lost evaluations") is not None


def test_evaluations_that_make_no_sense_are_told_and_not_drawn() -> None:
    found = analyse([eval_event(8.0, 1.7)], [], "tiny")
    assert found.stage is Stage.NONE and found.curve is None and "1.7" in found.why


def test_a_window_leaves_points_out_and_says_so() -> None:
    found = at(224.0, window=(60.0, np.inf))
    assert found.made is not None and found.made.fit.n == 21  # 64 .. 224 by 8
    assert warm_up(found.curve, found.window) == (8.0, 60.0)
    assert warm_up(found.curve, None) is None and warm_up(found.curve, (4.0, 99.0)) is None
    few = at(224.0, window=(200.0, np.inf))
    assert few.stage is Stage.NONE and "8 evaluations in the window: 4 so far" in few.why


def test_the_start_is_drawn_at_0() -> None:
    found = at(40.0)
    assert found.curve is not None
    C, R = shown_points(found.curve)
    assert C == [0.0, 8.0, 16.0, 24.0, 32.0, 40.0] and R[0] == found.curve.R0
    assert shown_points(replace(found.curve, R0=None))[0][0] == 8.0


def test_the_band_holds_the_curve_and_widens_ahead() -> None:
    C_M, R_M, lower, upper = sampled(at(224.0), 8.0, 1000.0, n=20)
    assert C_M[0] == pytest.approx(8.0) and C_M[-1] == pytest.approx(1000.0)
    assert np.all(lower <= R_M) and np.all(R_M <= upper)
    inside = C_M < 224.0
    assert (upper - lower)[~inside].min() > np.median((upper - lower)[inside])


# ---- alarms of a long run ----


def alarm(name: str, level: str, at_update: float, of: str = "update") -> Alarm:
    return Alarm(name, level, at_update, of, f"evidence at {at_update}", "threshold", "advice")


def told(new: list[Alarm], old: list[Alarm]) -> list[tuple[str, str, float]]:
    found = remembered(
        replace(NOTHING, alarms=tuple(new)), replace(NOTHING, alarms=tuple(old))
    ).alarms
    return [(each.name, each.level, each.at) for each in found]


def test_an_alarm_outlives_the_updates_it_was_seen_in() -> None:
    old = [alarm("ess", "watch", 40.0)]
    assert told([], old) == [("ess", "watch", 40.0)]
    assert told([alarm("kl jump", "watch", 3000.0)], old) == [
        ("ess", "watch", 40.0), ("kl jump", "watch", 3000.0),
    ]  # fmt: skip


def test_the_graver_of_two_stays() -> None:
    grave, mild = alarm("truncated", "collapse", 40.0), alarm("truncated", "watch", 2000.0)
    assert told([mild], [grave]) == [("truncated", "collapse", 40.0)]
    assert told([grave], [mild]) == [("truncated", "collapse", 40.0)]


def test_of_two_alike_the_new_one_since_the_old_one_fired() -> None:
    new, old = alarm("ess", "watch", 2000.0), alarm("ess", "watch", 40.0)
    assert told([new], [old]) == [("ess", "watch", 40.0)]
    found = remembered(replace(NOTHING, alarms=(new,)), replace(NOTHING, alarms=(old,)))
    assert found.alarms[0].evidence == "evidence at 2000.0"


def test_an_alarm_of_the_curve_is_judged_anew_each_time() -> None:
    assert told([], [alarm("falling", "danger", 90.0, of="compute")]) == []


def test_the_gravest_comes_first() -> None:
    assert [name for name, *_ in told([alarm("ess", "watch", 9.0)], [alarm("truncated", "danger", 8.0)])] == [
        "truncated", "ess",
    ]  # fmt: skip
