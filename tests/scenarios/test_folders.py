"""Run folders: who holds one, which one a run gets, and what stands in it before the first event."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny_runs import small_plan

from scalerl.errors import InputError, RunFailed
from scenarios.runs import (
    begin,
    choose_folder,
    differing_keys,
    holder,
    is_begun,
    is_finished,
    is_locked,
    locked,
    run,
)


def test_who_holds_a_folder(tmp_path: Path) -> None:
    assert holder(tmp_path) is None and holder(tmp_path / "missing") is None
    with locked(tmp_path):
        assert holder(tmp_path) == os.getpid() and is_locked(tmp_path)
    assert (tmp_path / "lock").exists()
    assert holder(tmp_path) is None  # the file stays; the lock went with its holder


HOLD = """
import sys
from pathlib import Path
from scenarios.runs import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert holder(tmp_path) == other.pid
        with (
            pytest.raises(InputError, match="in use by a run that is still going"),
            locked(tmp_path),
        ):
            pass
        assert holder(tmp_path) == other.pid  # the one that was refused did not sign
        other.kill()
        other.wait()
        assert holder(tmp_path) is None


def test_a_holder_that_does_not_say_who_it_is(tmp_path: Path) -> None:
    """As one of an earlier version of this program."""
    with locked(tmp_path):
        for said in ("", "many\n", "-3\n"):
            (tmp_path / "lock").write_text(said)
            assert holder(tmp_path) == 0 and is_locked(tmp_path)


def test_looking_does_not_keep_anyone_out(tmp_path: Path) -> None:
    """Somebody who asks all the time; a run that starts meanwhile is not refused."""
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            holder(tmp_path)
            time.sleep(0.001)

    with locked(tmp_path):
        pass
    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(50):
            with locked(tmp_path):
                pass
    finally:
        over.set()
        looking.join()


def test_a_run_has_begun_once_its_recipe_stands_there(tmp_path: Path) -> None:
    one, other = small_plan().recipe, small_plan("seed=3").recipe
    assert not is_begun(tmp_path)
    begin(tmp_path, one)
    assert is_begun(tmp_path) and differing_keys(tmp_path, one) == []
    begin(tmp_path, other)  # the first one stays
    assert differing_keys(tmp_path, one) == [] and differing_keys(tmp_path, other) == ["seed"]
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_a_folder_that_was_given_away_a_moment_ago_is_not_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path))
    wanted = small_plan()
    first = choose_folder(wanted, 1, None)
    assert first.name == "seed-0" and choose_folder(wanted, 1, None) == first
    assert choose_folder(wanted, 1, None, taken=[first]).name == "seed-0.2"
    taken = {first, first.with_name("seed-0.2")}
    assert choose_folder(wanted, 1, None, taken=taken).name == "seed-0.3"
    begin_in(first)
    assert choose_folder(wanted, 1, None) == first  # an unfinished run of the same recipe
    assert choose_folder(wanted, 1, None, taken={first}).name == "seed-0.2"


def begin_in(folder: Path) -> None:
    folder.mkdir(parents=True)
    begin(folder, small_plan().recipe)


def test_a_recipe_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".recipe.toml").mkdir()  # where its draft goes
    with pytest.raises(RunFailed, match=r"cannot write .*recipe\.toml: Is a directory: make room"):
        run(small_plan(), tmp_path)
    assert not is_locked(tmp_path)


def test_a_log_that_ends_without_a_status_is_finished(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"v":1,"seq":0,"kind":"done"}\n')
    assert is_finished(tmp_path)
