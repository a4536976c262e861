"""The audit of a run folder: every file of it cut, edited, missing, of another version; never a traceback."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import whole_run
from tiny_runs import run_with_stops, small_plan

from scalerl.checkpoint import checkpoints, next_seq_of
from scalerl.events import Event, seal
from scalerl.loop import Control
from scenarios.audit import Finding, Status, audit
from scenarios.runs import locked, run

OK, WARNING, BROKEN = Status.OK, Status.WARNING, Status.BROKEN
FILES = [
    "recipe.toml", "events.jsonl", "lock", "checkpoints/update-6/loop.json",
    "checkpoints/update-6/manifest.json", "checkpoints/update-6/world.json",
    "checkpoints/update-6/policy.safetensors",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_with_stops(small_plan(), folder, [6])
    return folder


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight updates that stands after the sixth, with checkpoints of 4 and 6."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    control = Control()

    def listen(event: Event) -> None:
        control.stop |= event["kind"] == "update" and event["update"] >= 6

    assert run(small_plan(), folder, listen=listen, control=control).status == "stopped"
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def of(folder: Path, name: str) -> list[Finding]:
    """The findings under a name, worst first."""
    found = [finding for finding in audit(folder) if finding.name == name]
    return sorted(found, key=lambda finding: list(Status).index(finding.status), reverse=True)


def statuses(folder: Path) -> dict[str, Status]:
    """The worst of each name."""
    return {each.name: of(folder, each.name)[0].status for each in audit(folder)}


def edit_lines(folder: Path, change: Callable[[list[str]], object]) -> None:
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("".join(line + "\n" for line in lines))


def test_a_finished_run(finished: Path) -> None:
    found = audit(finished)
    assert [each.name for each in found] == [
        "recipe", "events", "update-8", "update-6", "update-4", "lock", "resume", "disk",
    ]  # fmt: skip
    assert {each.status for each in found} == {OK}
    assert found[1].found.endswith(", resumed once")
    assert found[2].found.endswith("kB, every digest holds")
    assert found[6].found == "it is finished"


def test_an_audit_writes_nothing(stopped: Path) -> None:
    def look() -> dict[Path, bytes | None]:
        return {p: p.read_bytes() if p.is_file() else None for p in stopped.rglob("*")}

    before = look()
    audit(stopped)
    assert look() == before


def test_a_stopped_run_says_from_where_it_goes_on_and_how(stopped: Path) -> None:
    [resume] = of(stopped, "resume")
    assert resume.found == "it can be resumed from update-6"
    assert resume.way_out == f"scalerl run {stopped}/recipe.toml --out {stopped}"
    assert set(statuses(stopped).values()) == {OK}


def test_a_run_that_goes_on(stopped: Path) -> None:
    """What it is writing now is not torn."""
    with (stopped / "events.jsonl").open("a") as log:
        log.write('{"v":2,"seq"')
    (stopped / "checkpoints" / ".draft").mkdir()
    with locked(stopped):
        [lock], [resume] = of(stopped, "lock"), of(stopped, "resume")
        assert f"process {os.getpid()} runs in it" in lock.found and resume.found == "it goes on"
        assert set(statuses(stopped).values()) == {OK}
    found = statuses(stopped)
    assert found["events"] is found["checkpoints"] is WARNING
    assert BROKEN not in found.values()


# ---- the recipe ----


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:200]),
        lambda path: path.write_text(path.read_text().partition("[site.evaluation]")[0]),
        lambda path: path.write_bytes(b"\0" * 100),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text("a = " + "[" * 10_000),
        lambda path: path.write_text(path.read_text().replace("eps_max = 5.0", "eps_max = 4.0")),
        lambda path: path.write_text("of_the_future = 1\n" + path.read_text()),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
)
def test_a_recipe_that_is_not_the_runs(stopped: Path, spoil: Callable[[Path], object]) -> None:
    spoil(stopped / "recipe.toml")
    found = statuses(stopped)
    assert found["recipe"] is found["resume"] is BROKEN
    assert "\n" not in of(stopped, "recipe")[0].found


# ---- the log ----


def test_an_edited_line_is_named_by_its_place(stopped: Path) -> None:
    offset = 0

    def change(lines: list[str]) -> None:
        nonlocal offset
        lines[5] = lines[5].replace('"kind"', '"Kind"')
        offset = sum(len(line) + 1 for line in lines[:5])

    edit_lines(stopped, change)
    worst = of(stopped, "events")[0]
    assert worst.status is BROKEN
    assert f"line 6 (byte {offset}) was edited: its checksum is " in worst.found
    assert "put the log back from a copy" in worst.way_out


def test_what_a_resume_voids_is_a_warning_only(stopped: Path) -> None:
    """The same edit behind the newest checkpoint; with the checkpoint gone, behind the one before."""
    edit_lines(stopped, lambda lines: lines.__setitem__(-1, lines[-1].replace('"t":', '"T":')))
    assert of(stopped, "events")[0].status is WARNING
    between = next_seq_of(stopped / "checkpoints" / "update-4")[0] + 2
    edit_lines(stopped, lambda lines: lines.__delitem__(between))
    assert of(stopped, "events")[0].status is BROKEN
    shutil.rmtree(stopped / "checkpoints" / "update-6")
    assert of(stopped, "events")[0].status is WARNING
    assert of(stopped, "resume")[0].found == "it can be resumed from update-4"


def test_a_finished_run_loses_no_event_unseen(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    edit_lines(folder, lambda lines: lines.__delitem__(-2))
    worst = of(folder, "events")[0]
    assert worst.status is BROKEN and "events are missing" in worst.found


def test_torn_lines_of_a_kill_are_no_trouble(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))

    def tear(lines: list[str]) -> None:
        place = next(i for i, line in enumerate(lines) if '"kind":"resume"' in line)
        lines.insert(place, lines[place - 1][:40])

    edit_lines(folder, tear)
    [events] = of(folder, "events")
    assert events.status is OK and "1 torn at no loss, as a kill leaves them: line " in events.found


def test_a_log_that_is_behind_its_checkpoint(stopped: Path) -> None:
    edit_lines(stopped, lambda lines: lines.__delitem__(slice(20, None)))
    worst = of(stopped, "events")[0]
    assert worst.status is BROKEN
    assert worst.found.startswith("the log ends before seq 20, a checkpoint goes on at ")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\0" * 5000),
        lambda path: path.write_bytes(b"\n".join([b"junk"] * 100)),
    ],
)
def test_a_log_that_is_none(stopped: Path, spoil: Callable[[Path], object]) -> None:
    spoil(stopped / "events.jsonl")
    assert of(stopped, "events")[0].status is BROKEN
    assert of(stopped, "resume")[0].status is OK  # the checkpoints are whole


def test_a_log_of_format_1_and_one_of_a_later_format(tmp_path: Path) -> None:
    events = whole_run(8)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    [found] = of(tmp_path, "events")
    assert found.status is OK and f"{len(events)} lines of format 1" in found.found
    later = [seal(json.dumps({**event, "v": 3})) + "\n" for event in events]
    path.write_text("".join(later))
    [found, _] = of(tmp_path, "events")
    assert found.status is WARNING and f"{len(events)} lines of a later format" in found.found
    assert found.found.endswith(f"; and {len(events) - 5} more")


# ---- checkpoints ----


def test_every_checkpoint_has_its_line(stopped: Path) -> None:
    folder = stopped / "checkpoints"
    (folder / "update-6" / "policy.safetensors").write_bytes(b"torn")
    (folder / ".old-update-2").mkdir()
    found = {each.name: each for each in audit(stopped)}
    assert found["update-6"].status is BROKEN
    assert "update-6/policy.safetensors is torn or was edited: expected " in found["update-6"].found
    assert found["update-4"].status is OK
    assert found["checkpoints"].status is WARNING and ".old-update-2" in found["checkpoints"].found
    assert found["resume"].found == "it can be resumed from update-4"
    (folder / "update-4" / "loop.json").unlink()
    [resume] = of(stopped, "resume")
    assert resume.status is BROKEN and "no checkpoint can be used" in resume.found


def test_a_checkpoint_of_another_run_or_version(stopped: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    run(small_plan("loss.eps_max=4", "site.updates=4"), other)
    shutil.copytree(other / "checkpoints" / "update-4", stopped / "checkpoints" / "update-4.2")
    found = {each.name: each for each in audit(stopped)}
    assert found["update-4.2"].status is BROKEN and "is of algorithm" in found["update-4.2"].found
    manifest = stopped / "checkpoints" / "update-6" / "manifest.json"
    data = json.loads(manifest.read_text())
    del data["crc"]
    manifest.write_text(seal(json.dumps({**data, "format": 3})))
    [finding] = of(stopped, "update-6")
    assert finding.status is BROKEN and "has checkpoint format 3" in finding.found
    assert finding.way_out == "resume with the version that wrote it"


def test_checkpoints_that_are_no_folder(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    assert of(stopped, "resume")[0].found.startswith("it can be resumed from the start")
    (stopped / "checkpoints").write_text("")
    found = statuses(stopped)
    assert found["checkpoints"] is found["resume"] is BROKEN


# ---- whatever it is ----


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_brings_a_traceback(
    stopped_once: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A cut, a flipped bit, NUL bytes, any bytes, or no file; and it is told, but in the lock, which says little."""
    name = data.draw(st.sampled_from(FILES))
    folder = Path(shutil.copytree(stopped_once, tmp_path_factory.getbasetemp() / "any"))
    path = folder / name
    before = path.read_bytes()
    at = data.draw(st.integers(0, max(len(before) - 2, 0)))
    match data.draw(st.sampled_from(["cut", "flip", "nul", "any", "none"])):
        case "cut":
            path.write_bytes(before[:at])
        case "flip" if before:
            flipped = before[at] ^ (1 << data.draw(st.integers(0, 7)))
            path.write_bytes(before[:at] + bytes([flipped]) + before[at + 1 :])
        case "nul":
            path.write_bytes(before[:at] + b"\0" * 50 + before[at:])
        case "any":
            path.write_bytes(data.draw(st.binary(max_size=200)))
        case _:
            path.unlink()
    start = time.process_time()
    found = audit(folder)
    assert time.process_time() - start < 1
    assert all("\n" not in each.found + each.way_out for each in found)
    told = any(each.status is not OK for each in found)
    assert told or name in ("lock", "recipe.toml") or path.read_bytes() == before
    shutil.rmtree(folder)


def test_ten_thousand_events_take_less_than_a_second(stopped: Path) -> None:
    lines = [seal(json.dumps({**e, "v": 2}, separators=(",", ":"))) for e in whole_run(3000)]
    (stopped / "events.jsonl").write_text("".join(line + "\n" for line in lines))
    assert len(lines) > 10_000 and len(checkpoints(stopped / "checkpoints")) == 2
    start = time.process_time()
    audit(stopped)
    assert time.process_time() - start < 1
