"""The crash test at a small size, and that it notices what a faulty resume does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from crashing import FAULTS

HERE = Path(__file__).parent
SMALL = ("--kills", "5", "--kinds", "1", "--seed", "4", "--faults")


@pytest.fixture(scope="module")
def said() -> str:
    """What the crash test prints; each fault is tried against the run that is never killed of the same call."""
    done = subprocess.run(
        [sys.executable, str(HERE / "crashtest.py"), *SMALL],
        env={**os.environ, "PYTHONPATH": str(HERE.parent / "support")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_runs_end_as_one_that_was_never_killed(said: str) -> None:
    [(kills, runs, same)] = re.findall(r"(\d+) kills in (\d+) runs; (\d+) of these", said)
    assert int(kills) >= 5
    assert runs == same
    assert "DIFFERS" not in said


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_resume_is_noticed(said: str, fault: str) -> None:
    assert re.search(rf"^{fault}: noticed after \d+ kills: ", said, flags=re.MULTILINE), said
