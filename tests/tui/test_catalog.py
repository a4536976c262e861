"""The runs of this machine, told from the ends of their logs: states, half lines, and what must not be deleted."""

import os
from pathlib import Path

import pytest
from logs import (
    done_event,
    eval_event,
    fault_event,
    resume_event,
    update_event,
    whole_run,
    write_log,
)

from scalerl.errors import InputError
from scalerl.events import Event
from scenarios.runs import locked
from tui.watch import catalog
from tui.watch.catalog import GLYPHS, RunSummary, beside, delete, runs, summary

RUN = whole_run(20, planned=100, status=None)
NEXT = len(RUN)  # the next seq


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tiny" / "scalerl" / "seed-0"


def told(folder: Path, *events: Event, tail: str = "") -> RunSummary:
    write_log(folder / "events.jsonl", [*RUN, *events], tail)
    found = summary(folder)
    assert found is not None
    return found


# ---- states ----


def test_done_with_its_ceiling(folder: Path) -> None:
    found = told(folder, done_event(20, seq=NEXT, fit={"A": 0.9256, "B": 2.4}))
    assert (found.status, found.A, found.update, found.updates) == ("done", 0.9256, 20, 100)
    assert found.says == "done   A 0.926"
    assert told(folder, done_event(20, seq=NEXT)).says == "done"


def test_stopped(folder: Path) -> None:
    found = told(folder, done_event(20, "stopped", seq=NEXT))
    assert found.status == "stopped" and found.says == "stopped   update 20/100"


def test_crashed(folder: Path) -> None:
    found = told(folder, fault_event(20, "no room\nleft", seq=NEXT))
    assert (found.status, found.says) == ("crashed", "crashed   update 20: no room?left")


def test_a_lost_request_is_no_crash(folder: Path) -> None:
    assert told(folder, fault_event(20, "engine 3 died", seq=NEXT, group=4)).status == "killed"


def test_killed(folder: Path) -> None:
    found = told(folder)
    assert found.status == "killed" and found.says == "killed   update 20/100"
    assert found.pass_rate == RUN[-2]["pass_rate"]


def test_live_while_a_process_holds_the_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    with locked(folder):
        found = told(folder)
        assert found.status == "live" and found.says.startswith("live   update 20/100  0.")
        # of a run that was taken up, whatever its log ends with
        assert told(folder, done_event(20, "stopped", seq=NEXT)).status == "live"
    assert told(folder).status == "killed"


@pytest.mark.parametrize("content", ["", '{"v":1,"seq":0,"ki', "\n\n", "[1, 2]\n"])
def test_empty(folder: Path, content: str) -> None:
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(content)
    found = summary(folder)
    assert found is not None and (found.status, found.says) == ("empty", "nothing written yet")


def test_every_status_has_a_glyph() -> None:
    assert GLYPHS.keys() == {"live", "done", "stopped", "crashed", "killed", "empty"}


# ---- what a resume voided ----


def test_after_a_resume_only_what_survives_counts(folder: Path) -> None:
    at = next(e["seq"] for e in RUN if e["kind"] == "update" and e["update"] == 17)
    found = told(folder, done_event(20, "stopped", seq=NEXT), resume_event(at, 16))
    assert (found.status, found.update) == ("killed", 16)  # it ended right after it was taken up
    found = told(folder, fault_event(20, seq=NEXT), resume_event(at, 16), update_event(17, seq=at))
    assert (found.status, found.update) == ("killed", 17)


# ---- logs as they are ----


def test_heartbeats_and_half_lines_are_passed_over(folder: Path) -> None:
    heartbeat = '{"v":1,"t":9.0,"clock":0.0,"gpu_h":0.0,"kind":"heartbeat"}\n'
    found = told(folder, done_event(20, seq=NEXT), tail=heartbeat + '{"v":1,"seq":9')
    assert found.status == "done" and found.update == 20


def test_the_middle_of_a_long_log_is_not_read(folder: Path) -> None:
    log = folder / "events.jsonl"
    events = whole_run(3000, planned=5000, every=50, status="stopped")
    write_log(log, events)
    assert log.stat().st_size > 10 * 128 * 1024
    found = summary(folder)
    assert found is not None
    assert (found.status, found.update, found.updates) == ("stopped", 3000, 5000)


def test_a_last_line_longer_than_what_is_read(folder: Path) -> None:
    """The run is not taken for one that wrote nothing."""
    found = told(folder, eval_event(40.0, 0.5, seq=NEXT, passes=[0] * 100_000))
    assert (found.status, found.updates) == ("killed", 100)


def test_numbers_that_are_none(folder: Path) -> None:
    found = told(
        folder,
        update_event(21, seq=NEXT, update="21"),
        eval_event(42.0, 0.5, seq=NEXT + 1, pass_rate=None),
        done_event(21, seq=NEXT + 2, fit=["A"]),
    )
    assert (found.update, found.pass_rate, found.A) == (0, None, None)


# ---- the folder of runs ----


def test_all_runs_the_newest_first(tmp_path: Path) -> None:
    ages = {"a/scalerl/seed-0": 30, "b/seed-1": 10, "c": 20, "a/scalerl/seed-0.2": 5}
    for name, age in ages.items():
        log = write_log(tmp_path / name / "events.jsonl", RUN)
        os.utime(log, (log.stat().st_atime - age, log.stat().st_mtime - age))
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "half" / "events.jsonl").mkdir(parents=True)
    write_log(tmp_path / "1/2/3/4/events.jsonl", RUN)  # too deep to be a run
    found = runs(tmp_path)
    assert [run.name for run in found] == [
        "a/scalerl/seed-0.2", "b/seed-1", "c", "a/scalerl/seed-0",
    ]  # fmt: skip
    assert 5.0 <= found[0].age_s < 20.0
    assert runs(tmp_path / "missing") == [] and summary(tmp_path / "missing") is None


def test_deleting(folder: Path) -> None:
    told(folder)
    with locked(folder), pytest.raises(InputError, match="in use by a run that is still going"):
        delete(folder)
    assert folder.exists()
    delete(folder)
    assert not folder.exists()
    with pytest.raises(InputError, match="cannot delete"):
        delete(folder)


def test_a_link_to_a_run_is_not_followed(folder: Path, tmp_path: Path) -> None:
    told(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(InputError, match=r"cannot delete .*link: \S"):
        delete(tmp_path / "link")
    assert (folder / "events.jsonl").exists()


def test_a_new_folder_beside_a_run(tmp_path: Path) -> None:
    first = tmp_path / "seed-0"
    assert beside(first, set()) == tmp_path / "seed-0.2"
    (tmp_path / "seed-0.2").mkdir()
    assert beside(first, set()) == tmp_path / "seed-0.3"
    assert beside(tmp_path / "seed-0.2", {tmp_path / "seed-0.3"}) == tmp_path / "seed-0.4"
    assert beside(tmp_path / "v1.x", set()) == tmp_path / "v1.x.2"


def test_deleting_leaves_what_is_not_of_the_run(folder: Path) -> None:
    """A folder that merely holds a log of that name may hold anything."""
    told(folder)
    (folder / "thesis.tex").write_text("mine")
    (folder / "other" / "seed-1").mkdir(parents=True)
    delete(folder)
    assert {path.name for path in folder.iterdir()} == {"thesis.tex", "other"}


def test_a_pipe_in_place_of_a_log_or_a_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    for name in ("events.jsonl", "lock"):
        (tmp_path / name / "run").mkdir(parents=True)
        os.mkfifo(tmp_path / name / "run" / name)
    write_log(tmp_path / "lock" / "run" / "events.jsonl", whole_run(8))
    assert [run.name for run in runs(tmp_path)] == ["lock/run"]


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    plain = catalog.summary

    def counted(folder: Path, root: Path | None = None) -> RunSummary | None:
        read.append(folder)
        return plain(folder, root)

    monkeypatch.setattr(catalog, "summary", counted)
    for name in ("a", "b"):
        write_log(tmp_path / name / "events.jsonl", whole_run(8))
    runs(tmp_path)
    runs(tmp_path)
    assert len(read) == 2
    write_log(tmp_path / "b" / "events.jsonl", whole_run(12))
    assert {run.update for run in runs(tmp_path)} == {8, 12} and len(read) == 3
