"""A run that is looked at: where it comes from, what is read and recorded of it, and what the app remembers."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from logs import recipe_of, resume_event, whole_run, write_log
from spoiled_logs import JSON

from scalerl.errors import InputError
from scalerl.events import read_events
from scenarios.runs import locked
from tui.watch.child import ChildRun
from tui.watch.follow import State
from tui.watch.memory import MOST_RECENT, Memory, place, remembered
from tui.watch.session import Session
from tui.watch.store import RunStore

RUN = whole_run(6, every=2)


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Session]]:
    """What is in the list is closed; the current folder is the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALERL_RUNS", "runs")
    opened: list[Session] = []
    yield opened
    for session in opened:
        session.close()


def open_(sessions: list[Session], source: str, **how: Any) -> Session:
    sessions.append(Session(source, **how))
    return sessions[-1]


# ---- where it comes from ----


def test_a_run_folder_its_log_and_a_recording(sessions: list[Session]) -> None:
    log = write_log(Path("runs/tiny/seed-0/events.jsonl"), RUN)
    folder = open_(sessions, "runs/tiny/seed-0")
    assert (folder.kind, folder.folder, folder.name) == ("local", log.parent, "tiny/seed-0")
    of_log = open_(sessions, str(log))
    assert (of_log.kind, of_log.folder, of_log.name) == ("local", log.parent, "tiny/seed-0")
    Path("a.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
    for recording in (open_(sessions, "a.jsonl.gz"), open_(sessions, str(log), replay=True)):
        assert (recording.kind, recording.folder) == ("recording", None)
        while recording.pump():
            pass
        assert recording.store.view().n == 6 and recording.follower.state is State.FINISHED
    assert sessions[2].name == "a.jsonl.gz"


def test_a_run_outside_the_runs_folder_goes_by_its_path(sessions: list[Session]) -> None:
    write_log(Path("elsewhere/x/events.jsonl"), RUN)
    assert open_(sessions, "elsewhere/x").name == "elsewhere/x"


def test_a_folder_that_does_not_exist_yet_is_waited_for(sessions: list[Session]) -> None:
    session = open_(sessions, "runs/tiny/seed-7")
    assert session.pump() is False and session.follower.state is State.WAITING
    assert session.store.view().n == 0 and session.recipe() is None and session.last_words() == []
    write_log(Path("runs/tiny/seed-7/events.jsonl"), RUN)
    assert session.pump() is True and session.store.view().n == 6


def test_a_source_that_cannot_be_one_is_refused(sessions: list[Session]) -> None:
    with pytest.raises(InputError, match="not ssh://"):
        Session("ftp://host/log")
    with pytest.raises(InputError):
        Session("missing.jsonl.gz")


# ---- reading ----


def test_what_comes_is_read_once(sessions: list[Session]) -> None:
    log = write_log(Path("run/events.jsonl"), RUN[:10], tail=json.dumps(RUN[10])[:9])
    session = open_(sessions, "run")
    assert session.pump() and not session.pump()
    before = session.store.changes
    with log.open("a") as file:  # the rest of the line, and all others
        file.write(json.dumps(RUN[10])[9:] + "\n")
        file.write("".join(json.dumps(event) + "\n" for event in RUN[11:]))
    assert session.pump()
    assert session.store.changes == before + len(RUN) - 10
    assert session.store.view().done is not None


def test_a_log_that_began_anew(sessions: list[Session]) -> None:
    write_log(Path("run/events.jsonl"), RUN)
    session = open_(sessions, "run")
    session.pump()
    write_log(Path("run/events.jsonl"), whole_run(2, status=None))
    assert session.pump()
    session.pump()
    assert session.store.view().n == 2 and session.store.view().done is None


def test_a_long_log_is_read_in_turns(sessions: list[Session]) -> None:
    write_log(Path("run/events.jsonl"), whole_run(3000, every=10))
    session = open_(sessions, "run")
    assert session.pump() and session.behind and 0 < session.store.view().n < 3000
    while session.store.view().done is None:
        assert session.pump()
    assert session.store.view().n == 3000 and not session.behind


# ---- recipe ----


def test_the_recipe_of_a_log(sessions: list[Session]) -> None:
    recipe = recipe_of(6, "loss.kind=dapo", "staleness.k=3")
    write_log(Path("run/events.jsonl"), whole_run(6, recipe=recipe))
    session = open_(sessions, "run")
    assert session.recipe() is None
    session.pump()
    assert session.recipe() == recipe


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=JSON, site=JSON)
def test_a_recipe_of_another_program_is_none(
    sessions: list[Session], recipe: object, site: object
) -> None:
    session = Session("nowhere")
    session.store.take([{"kind": "run", "seq": 0, "recipe": recipe, "site": site}])
    assert session.recipe() is None or not any(recipe.values())  # type: ignore[union-attr]


# ---- recording ----


def test_a_recording_holds_what_was_read(sessions: list[Session]) -> None:
    log = write_log(Path("run/events.jsonl"), RUN, tail='{"kind": "heartbeat"}\n{torn')
    session = open_(sessions, "run", record=Path("recordings/run.jsonl"))
    session.pump()
    assert read_events(Path("recordings/run.jsonl")) == RUN
    with log.open("a") as file:
        file.write('\n{"kind":"new","seq":99}\n')
    session.pump()
    lines = Path("recordings/run.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [*RUN, {"kind": "new", "seq": 99}]
    with pytest.raises(InputError, match=r"cannot record to recordings/run\.jsonl"):
        Session("run", record=Path("recordings/run.jsonl"))  # never over another


def test_a_recording_of_a_log_that_began_anew_is_of_the_new_run(sessions: list[Session]) -> None:
    write_log(Path("run/events.jsonl"), RUN)
    session = open_(sessions, "run", record=Path("rec.jsonl"))
    session.pump()
    short = whole_run(2, status=None)
    write_log(Path("run/events.jsonl"), short)
    session.pump()
    session.pump()
    assert read_events(Path("rec.jsonl")) == short
    again = open_(sessions, "rec.jsonl", replay=True)
    while again.pump():
        pass
    assert again.store.view().n == 2


def test_a_recording_keeps_what_a_resume_voided(sessions: list[Session]) -> None:
    events = [*RUN[:-1], resume_event(4, 1), {**RUN[4]}]
    write_log(Path("run/events.jsonl"), events)
    session = open_(sessions, "run", record=Path("rec.jsonl"))
    session.pump()
    played, read = RunStore(), RunStore()
    played.take(events)
    read.take(json.loads(line) for line in Path("rec.jsonl").read_text().splitlines())
    assert read.view().column("update").tolist() == played.view().column("update").tolist()
    assert read.resumed == 1


class FullDisk:
    """A file that takes so many bytes and no more."""

    def __init__(self, room: int) -> None:
        self.room, self.taken, self.closed = room, b"", False

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        part = bytes(data[: self.room])
        self.taken += part
        self.room -= len(part)
        return len(part)

    def close(self) -> None:
        self.closed = True


def test_a_disk_that_is_full_ends_the_recording_and_not_the_watching(
    sessions: list[Session],
) -> None:
    write_log(Path("run/events.jsonl"), RUN)
    session = open_(sessions, "run", record=Path("rec.jsonl"))
    assert session._record is not None
    session._record.close()
    disk: Any = FullDisk(1000)
    session._record = disk
    with pytest.raises(InputError, match=r"cannot go on recording to rec.jsonl: No space left"):
        session.pump()
    assert disk.closed and len(disk.taken) == 1000
    assert session.store.view().n == 6  # all was taken in before
    assert session.pump() is False


# ---- memory ----


def test_what_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert remembered() == Memory(None, [])
    memory = Memory("scalerl-light")
    for i in range(20):
        memory.attached(f"run-{i}")
    memory.attached("run-15")
    again = remembered()
    assert again.theme == "scalerl-light"
    assert again.recent[:3] == ["run-15", "run-19", "run-18"] and len(again.recent) == MOST_RECENT


@pytest.mark.parametrize("said", ["", "[]", '{"theme": 3, "recent": [1, "a"]}', "null", "{"])
def test_a_memory_that_was_spoiled(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place().parent.mkdir()
    place().write_text(said)
    assert remembered().theme is None and remembered().recent in ([], ["a"])


def test_a_memory_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scalerl").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Memory("x").attached("run")
    assert remembered() == Memory()


def test_the_home_folder_is_meant_by_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_log(tmp_path / "r" / "events.jsonl", whole_run(8))
    session = Session("~/r")
    session.pump()
    assert session.folder == tmp_path / "r" and session.store.updates.n == 8
    session.close()


def test_a_run_of_this_machine_without_its_process_is_gone(tmp_path: Path) -> None:
    """Not at once: between two heartbeats nobody asks."""
    now = [0.0]
    write_log(tmp_path / "events.jsonl", whole_run(8, status=None))
    (tmp_path / "lock").touch()
    session = Session(str(tmp_path), now=lambda: now[0])
    session.pump()
    assert session.state is State.LIVE
    now[0] = 9.0
    assert session.state is State.CRASHED and "killed" in session.says
    with locked(tmp_path):
        assert session.state is State.LIVE
    session.close()


def test_what_an_old_log_says_is_not_of_the_process_that_was_just_started(tmp_path: Path) -> None:
    log = write_log(tmp_path / "events.jsonl", whole_run(8, planned=16, status="stopped"))
    child = SimpleNamespace(exit_code=None, began_at=log.stat().st_size, stopping=False)
    session = Session(str(tmp_path), child=cast(ChildRun, child))
    session.pump()
    assert session.state is State.WAITING  # it is starting
    child.exit_code = 1
    session.pump()
    assert session.state is State.CRASHED and "exit code 1" in session.says
    session.close()
