"""Faulty versions of our functions, and which invariants notice: `make mutants`.

Each mutant of `*.toml` beside this file is one replacement in one file of `scalerl/`, made in a copy; its tests run on
the copy. A mutant that no test notices is printed by name, and the exit status is 1. With `--write` the tables of
`docs/invariants.md` are made anew.

    python tests/mutants/mutate.py [--jobs N] [--only TEXT] [--write]
"""

import argparse
import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PAGE = ROOT / "docs/invariants.md"


@dataclass(frozen=True)
class Mutant:
    """`old`, which stands exactly once in `file`, becomes `new`; `tests` must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The faulty text.

        Raises:
            ValueError: `old` does not stand there exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(
                f"{self.name}: the text to replace stands {count} times in {self.file}"
            )
        return text.replace(self.old, self.new)


@dataclass
class Outcome:
    """What became of a mutant: the rows that noticed it, in order of the tests; `broken` if no test could run."""

    mutant: Mutant
    killers: list[str] = field(default_factory=list)
    broken: str = ""
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        return bool(self.killers) and not self.broken


class Recorder:
    """A pytest plugin: which rows' tests failed, and what could not run at all."""

    def __init__(self) -> None:
        self.killers: list[str] = []
        self.ran = 0
        self.broken = ""
        self._rows: dict[str, list[str]] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            self._rows[item.nodeid] = rows_of(item)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken = str(report.longrepr).strip().splitlines()[-1]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call":
            self.ran += 1
        if report.failed:
            names = self._rows[report.nodeid] or [report.nodeid.split("::")[-1].split("[")[0]]
            self.killers += [name for name in names if name not in self.killers]


def rows_of(item: Any) -> list[str]:
    """Ids of the invariants and reports that a test is about."""
    marks = [*item.iter_markers("invariant"), *item.iter_markers("report")]
    return [mark.args[0] for mark in marks]


def mutants() -> Iterator[Mutant]:
    """All of them, by area."""
    for path in sorted(HERE.glob("*.toml")):
        area = tomllib.loads(path.read_text())
        for entry in area["mutant"]:
            tests = tuple(entry.pop("tests", area["tests"]))
            yield Mutant(**entry, tests=tests)


def judge(mutant: Mutant) -> Outcome:
    """Run the tests on a copy of `scalerl/` with the fault in it, in this (forked) process."""
    started = time.monotonic()
    outcome = Outcome(mutant)
    try:
        text = mutant.applied((ROOT / mutant.file).read_text())
    except ValueError as error:
        return Outcome(mutant, broken=str(error))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "scalerl"
        shutil.copytree(ROOT / "scalerl", copy, ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / mutant.file).write_text(text)
        recorder = Recorder()
        _run_pytest(Path(folder), mutant.tests, recorder)
    outcome.killers = recorder.killers
    outcome.broken = recorder.broken or ("" if recorder.ran else "no test ran")
    outcome.seconds = time.monotonic() - started
    return outcome


def _run_pytest(folder: Path, tests: tuple[str, ...], recorder: Recorder) -> None:
    import pytest

    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    quiet = [
        "-q",
        "--tb=no",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile=mutants",
    ]
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        pytest.main([*quiet, *tests], plugins=[recorder])
    tested = sys.modules["scalerl"].__file__ or ""
    assert Path(tested).is_relative_to(folder), f"{tested} was tested, not the copy in {folder}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="mutants whose name or file contains this")
    parser.add_argument(
        "--write", action="store_true", help="write the tables of docs/invariants.md"
    )
    options = parser.parse_args()
    chosen = [m for m in mutants() if options.only in m.name or options.only in m.file]
    import torch  # once, for all forks

    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    outcomes: list[Outcome] = []
    with fork.Pool(options.jobs, maxtasksperchild=1) as pool:
        for outcome in pool.imap(judge, chosen, chunksize=1):
            outcomes.append(outcome)
            print(
                f"{_word(outcome):<9}{outcome.mutant.name}  [{outcome.mutant.file}, {outcome.seconds:.0f} s]"
            )
            print(f"         {outcome.broken or ' '.join(outcome.killers)}", flush=True)
    bad = [outcome for outcome in outcomes if not outcome.killed]
    print(f"\n{len(outcomes) - len(bad)} of {len(outcomes)} mutants killed")
    for outcome in bad:
        print(f"{_word(outcome)}: {outcome.mutant.name} ({outcome.mutant.file}) {outcome.broken}")
    if options.write and not bad and not options.only:
        from invariants_page import write

        write(PAGE, outcomes)
    return 1 if bad else 0


def _word(outcome: Outcome) -> str:
    return "broken" if outcome.broken else "killed" if outcome.killers else "SURVIVED"


if __name__ == "__main__":
    sys.exit(main())
