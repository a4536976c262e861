"""Every set that a run was evaluated on can be fitted, compared and seen: on the command line and on the dashboard."""

import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import printed, refused
from driving import RUN, Clock, board, drive, early, press, write_run
from logs import eval_event, numbered, resume_event, run_event, whole_run
from screen import screen_text, settle, until
from textual.pilot import Pilot
from watching import came, watched

from scalerl.events import Event
from scalerl.fit import sigmoid
from tui.compare.ranking import short_names
from tui.compare.standing import read_entry, standings
from tui.show.fit_layers import other_sets, shown_set
from tui.watch.analysis import NOTHING, Analysis, Stage, analyse, unfitted
from tui.watch.scene import Scene
from tui.watch.store import MOST_EVALS, MOST_SETS, RunStore
from tui.watch.watching import Watch

EASY, HARD, OOD = "validation/easy", "validation/hard", "ood"
LAWS = {EASY: (0.95, 30.0), HARD: (0.70, 60.0), OOD: (0.80, 70.0)}


def mixed(events: list[Event]) -> list[Event]:
    """The run, evaluated on more sets, each on a sigmoid of B = 2.2 from 0.1 to its A; on ood half as often."""
    found: list[Event] = []
    for event in events:
        found.append(event)
        if event["kind"] == "eval":
            C, place = event["C"], len(found)
            for name, (A, C_mid) in LAWS.items():
                if name != OOD or event["version"] % 8 == 0:
                    rate = float(sigmoid(C, R0=0.1, A=A, B=2.2, C_mid=C_mid))
                    found.append(eval_event(C, rate + 0.003 * (-1) ** place, set=name))
    return numbered(found)


def store_of(*events: Event) -> RunStore:
    store = RunStore()
    store.take(events)
    return store


# ---- the command line ----------------------------------------------------------------------------


def test_fit_takes_a_set_of_a_run_and_says_so(place: Path) -> None:
    write_run(events=mixed(whole_run()))
    text = printed("fit", f"{RUN}#{HARD}")
    assert "measured on the set validation/hard, not on validation" in text
    found = json.loads(printed("fit", f"{RUN}#{HARD}", "--json"))
    assert found["A"]["value"] == pytest.approx(0.70, abs=0.01)
    assert found["C_mid"]["value"] == pytest.approx(60.0, rel=0.05)
    assert "measured on the set" not in printed("fit", str(RUN))


def test_two_sets_of_one_run_stand_side_by_side(place: Path) -> None:
    write_run(events=mixed(whole_run()))
    text = printed("compare", f"{RUN}#{EASY}", f"{RUN}#{HARD}")
    assert f"{RUN}#{EASY} less {RUN}#{HARD} at 224 GPU-h: +0.2" in text
    assert "the recipes are the same" in text and "same held-out prompts" not in text
    told = "different evaluation sets: compare shapes, not values"
    assert told in text.splitlines()
    assert told not in printed("compare", f"{RUN}#{EASY}", f"{RUN}#{EASY}")


def test_a_set_that_is_not_there_is_refused_with_those_that_are(place: Path) -> None:
    write_run(events=mixed(whole_run()))
    for command in (["fit", f"{RUN}#odd"], ["compare", str(RUN), f"{RUN}#odd"]):
        said = refused(*command)
        assert "the set 'odd': it has validation, validation/easy, validation/hard, ood" in said


def test_csv_options_beside_a_set_are_for_the_csv_alone(place: Path) -> None:
    write_run(events=mixed(whole_run()))
    rows = [
        f"{C},{float(sigmoid(C, R0=0.1, A=0.6, B=2.0, C_mid=50.0))}" for C in range(10, 300, 10)
    ]
    Path("mine.csv").write_text("\n".join(["C,score", "0,0.1", *rows]) + "\n")
    text = printed("compare", f"{RUN}#{OOD}", "mine.csv", "--y", "score", "--unit", "GPU-h")
    assert f"{RUN}#{OOD} less mine.csv" in text


def test_a_forecast_of_a_set_is_scored_on_that_set(place: Path) -> None:
    write_run(events=mixed(early(72)))
    printed("fit", f"{RUN}#{HARD}", "--register", "--at", "200")
    write_run(events=mixed(whole_run()))
    [row] = json.loads(printed("fit", "--record", "--json"))["forecasts"]
    at_200 = float(sigmoid(200.0, R0=0.1, A=0.70, B=2.2, C_mid=60.0))
    assert row["seen"] == pytest.approx(at_200, abs=0.01)
    assert row["promise"]["source"]["text"] == f"{RUN.resolve()}#{HARD}"


# ---- the store -----------------------------------------------------------------------------------


def test_each_set_is_kept_by_itself_and_a_moment_of_the_past_knows_no_later_one() -> None:
    events = [
        eval_event(0.0, 0.2),
        eval_event(0.0, 0.1, set=OOD),
        eval_event(8.0, 0.3),
        eval_event(16.0, 0.4, set=EASY),
        eval_event(16.0, 0.5, set=OOD),
    ]
    store = store_of(*numbered(events))  # 2 GPU-h take 90 s
    view = store.view()
    assert view.sets() == ["validation", OOD, EASY]
    assert [event["pass_rate"] for event in view.evals()] == [0.2, 0.3]
    assert [event["pass_rate"] for event in view.evals(OOD)] == [0.1, 0.5]
    assert view.evals("none") == [] and view.newest_rate("none") is None
    past = store.view(400.0)
    assert past.sets() == ["validation", OOD]
    assert past.newest_rate(OOD) == 0.1 and view.newest_rate(OOD) == 0.5
    store.take([resume_event(3, 4)])
    assert store.view().sets() == ["validation", OOD] and len(store.view().evals(OOD)) == 1


def test_sets_without_a_name_and_too_many_of_them_are_passed_over() -> None:
    events = [eval_event(2.0 * i, 0.5, set=f"set {i}") for i in range(MOST_SETS + 5)]
    store = store_of(*numbered([*events, eval_event(0.0, 0.5, set=["ood"])]))
    assert store.view().sets() == [f"set {i}" for i in range(MOST_SETS)]


def test_one_set_that_comes_often_does_not_thin_another() -> None:
    store = RunStore()
    for i in range(3 * MOST_EVALS):
        name = "validation" if i % 600 == 0 else "often"
        store.take([eval_event(2.0 * i, 0.5, set=name, seq=i)])
    view = store.view()
    assert len(view.evals()) == 10 and len(view.evals("often")) <= MOST_EVALS


# ---- words and the first moment of another set ---------------------------------------------------


def test_the_borders_name_the_set_shown_and_the_others_with_their_newest_rates() -> None:
    events = [
        run_event(),
        eval_event(0.0, 0.2),
        eval_event(0.0, 0.25, set=HARD),
        eval_event(0.0, float("nan"), set="ood\n/x"),
    ]
    only = Scene(store_of(*events[:2]).view())
    assert (shown_set(only), other_sets(only)) == ("", "")
    view = store_of(*numbered(events)).view()
    assert shown_set(Scene(view)) == "validation"
    assert other_sets(Scene(view)) == "h others: hard 0.250  ood?/x -"
    assert other_sets(Scene(view, evaluation_set=HARD)) == "h others: validation 0.200  ood?/x -"
    foreign = Scene(store_of(eval_event(0.0, 0.3, set=OOD)).view())
    assert (shown_set(foreign), other_sets(foreign)) == ("validation", "h others: ood 0.300")


def test_points_are_there_at_once_and_alarms_of_the_updates_stay() -> None:
    events = [
        {**e, "truncated": 0.12} if e["kind"] == "update" and e["update"] > 60 else e
        for e in mixed(whole_run())
    ]
    view = store_of(*events).view()
    old = analyse(view.evals(), view.update_events(1500))
    found = unfitted(view.evals(OOD), "run", OOD, old)
    assert found.stage is Stage.NONE and found.why == "fitting ..."
    assert found.curve is not None and found.curve.last_C == 224.0
    assert len(found.curve.C_N) == 14 and found.curve.evaluation_set == OOD
    assert [alarm.name for alarm in found.alarms] == ["truncated", "truncation trend"]
    spoiled = unfitted([eval_event(2.0, 45.0, set=OOD)], "run", OOD, NOTHING)
    assert spoiled.curve is None and "divide per cent" in spoiled.why


def test_sets_are_no_rivals_and_have_short_names(place: Path) -> None:
    write_run(events=mixed(whole_run()))
    sources = [str(RUN), f"{RUN}#{OOD}", f"{RUN}#{HARD}"]
    found = standings([read_entry(source) for source in sources], str(RUN))
    assert found[str(RUN)].words == "base"
    assert {found[each].words for each in sources[1:]} == {"another set: compare shapes"}
    assert list(short_names(sources).values()) == [
        "scalerl/seed-0",
        "scalerl/seed-0#ood",
        "scalerl/seed-0#validation/hard",
    ]


def test_another_set_is_told_of_points_alone_and_before_the_doubts_of_a_fit(place: Path) -> None:
    """Points of no known task against a set of a run; and a set that has not seen its knee."""
    write_run(events=mixed(early(24)))
    rows = [
        f"{C},{float(sigmoid(C, R0=0.1, A=0.6, B=2.0, C_mid=50.0))}" for C in range(10, 300, 10)
    ]
    Path("mine.csv").write_text("\n".join(["gpu_hours,pass_rate", "0,0.1", *rows]) + "\n")
    young = f"{RUN}#{EASY}"
    entry = read_entry(young)
    assert entry.made is not None and entry.made.verdict != "ok"
    found = standings([read_entry("mine.csv"), entry, read_entry(str(RUN))], "mine.csv")
    assert found[young].words == "another set: compare shapes"
    assert found[str(RUN)].words.startswith("fit: ")  # validation, as far as points alone say


# ---- a run that is watched -----------------------------------------------------------------------


def test_a_fit_of_the_set_before_comes_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_run(tmp_path / "run", mixed(whole_run())) / "events.jsonl"
    asked, go = [], threading.Event()

    def slow(evals: list[Event], *rest: Any) -> Analysis:
        asked.append(rest[-1])
        go.wait(10.0)
        return analyse(evals, *rest)

    monkeypatch.setattr("tui.watch.watching.analyse", slow)

    async def look(watch: Watch) -> None:
        await came(lambda: watch.scene().view.n == 112 and asked == ["validation"])
        watch.choose(HARD)
        watch.scene()
        go.set()
        await came(lambda: watch.analysis.made is not None)
        assert asked == ["validation", HARD]
        assert watch.analysis.curve is not None and watch.analysis.curve.evaluation_set == HARD

    watched(log, look)


def test_a_window_in_a_replay_that_stands(tmp_path: Path) -> None:
    """Another window at the same moment is neither before nor after the last one."""
    source = tmp_path / "run.jsonl.gz"
    lines = "".join(json.dumps(event) + "\n" for event in mixed(whole_run()))
    source.write_bytes(gzip.compress(lines.encode()))

    async def look(watch: Watch) -> None:
        await came(lambda: watch.player is not None)
        assert watch.player is not None
        watch.player.to(watch.player.end)
        await came(lambda: watch.scene().analysis.stage is Stage.FIT)
        for window in ((20.0, float("inf")), (30.0, 200.0), None):
            watch.window = window
            await came(lambda wanted=window: watch.scene().analysis.window == wanted)

    watched(source, look)


# ---- the dashboard -------------------------------------------------------------------------------


def bound(pilot: Pilot[None]) -> bool:
    active = board(pilot).active_bindings.get("h")
    return active is not None and active.enabled


@pytest.mark.usefixtures("clock")
def test_h_goes_through_the_sets_and_the_fit_follows(place: Path) -> None:
    write_run(events=mixed(whole_run()))

    async def look(pilot: Pilot[None]) -> None:
        text = await until(pilot, "A 0.899")
        assert "[1] Scaling fit: validation ─" in text
        # sigmoid at 224 GPU-h: 0.939 and 0.662, of which the last stand 0.003 off
        assert "h others: easy 0.9" in text and "hard 0.6" in text and "ood 0.7" in text
        for name, (A, _) in LAWS.items():
            await press(pilot, "h")
            text = await until(pilot, f"[1] Scaling fit: {name} ─")
            assert "h others: validation 0.8" in text
            await until(pilot, lambda _: board(pilot).scene.analysis.stage is Stage.FIT)
            made = board(pilot).scene.analysis.made
            assert made is not None and made.fit.A == pytest.approx(A, abs=0.01)
        await press(pilot, "h")
        await until(pilot, "[1] Scaling fit: validation ─")

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_a_run_with_validation_alone_has_neither_key_nor_words(place: Path) -> None:
    write_run()

    async def look(pilot: Pilot[None]) -> None:
        text = await until(pilot, "A 0.899")
        assert "[1] Scaling fit ─" in text and "others" not in text and not bound(pilot)
        await press(pilot, "h")
        assert board(pilot).watched.evaluation_set == "validation"

    drive(look, RUN)


def test_the_key_comes_with_the_second_set(place: Path, clock: Clock) -> None:
    events = mixed(whole_run(16, planned=112, status=None))
    first = next(i for i, event in enumerate(events) if event.get("set") == EASY)
    log = write_run(events=events[:first]) / "events.jsonl"

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "no fit yet")
        assert not bound(pilot)
        with log.open("a") as file:
            file.write(json.dumps(events[first]) + "\n")
        await until(pilot, "h others: easy")
        await until(pilot, lambda _: bound(pilot))

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_a_window_and_a_zoom_are_of_one_set(place: Path) -> None:
    write_run(events=mixed(whole_run()))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press(pilot, "w right right right plus")  # to the fourth point, at 32 GPU-h
        await until(pilot, "fit 32-end")
        await press(pilot, "h")
        assert not board(pilot).fit.windowing and board(pilot).fit.view is None
        assert board(pilot).watched.window is None
        await until(pilot, lambda _: board(pilot).scene.analysis.stage is Stage.FIT)
        await press(pilot, "w right")  # from the first of its own points on
        await until(pilot, "fit 16-end")

    drive(look, RUN)


@pytest.mark.usefixtures("clock")
def test_a_pinned_set_stands_behind_the_others_of_its_run_and_is_compared(place: Path) -> None:
    write_run(events=mixed(whole_run()))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press(pilot, "p")
        assert board(pilot).fit.ghosts == []
        await press(pilot, "h")
        assert [ghost.name for ghost in board(pilot).fit.ghosts] == ["tiny/scalerl/seed-0"]
        await until(pilot, lambda _: board(pilot).scene.analysis.stage is Stage.FIT)
        await press(pilot, "p h")
        names = [ghost.name for ghost in board(pilot).fit.ghosts]
        assert names == ["tiny/scalerl/seed-0", f"tiny/scalerl/seed-0#{EASY}"]
        await press(pilot, "c")
        await until(pilot, "3 curves")
        await until(pilot, "another set: compare shapes")
        await press(pilot, "enter")  # the first row is a set of the run: its dashboard opens
        await until(pilot, f"[1] Scaling fit: {HARD} ─")  # as one had left it

    drive(look, RUN)


def test_a_replay_has_the_sets_that_lie_before_its_cursor(place: Path) -> None:
    events = mixed(whole_run())
    late: Callable[[Event], bool] = lambda e: e.get("set") != OOD or e["C"] >= 100.0  # noqa: E731
    Path("recorded.jsonl").write_text(
        "".join(json.dumps(event) + "\n" for event in numbered(filter(late, events)))
    )

    async def look(pilot: Pilot[None]) -> None:
        pilot.app.show_run("recorded.jsonl", replay=True)  # type: ignore[attr-defined]
        await until(pilot, "REPLAY")
        await press(pilot, "space end h h h")
        await until(pilot, "[1] Scaling fit: ood ─")
        assert board(pilot).scene.view.sets() == ["validation", EASY, HARD, OOD]
        await press(pilot, "home shift+right")
        await until(pilot, "no evaluation yet")
        await press(pilot, "h")
        await until(pilot, "[1] Scaling fit: validation ─")
        assert "ood" not in screen_text(pilot.app)

    drive(look)


@pytest.mark.usefixtures("clock")
def test_help_and_a_narrow_screen_know_the_set(place: Path) -> None:
    write_run(events=mixed(whole_run()))

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "A 0.899")
        await press(pilot, "h")
        text = await until(pilot, f"[1] Scaling fit: {EASY} ─")
        assert "h others: validation 0.8" in text
        await settle(pilot)
        await press(pilot, "question_mark")
        await until(pilot, f"evaluation set  {EASY}")
        await press(pilot, "slash s e t s")
        await until(pilot, "the next of the")

    drive(look, RUN, size=(80, 24))
