"""`make crashtest`: sandbox runs killed with SIGKILL again and again, each held to a run that was never killed.

A run is killed up to nine times, at instants drawn from the seed: at a random time, or at the nth mark in a place
(`crashing.py`), where a file or line may be left torn, as by a kill in the middle of a write. At its end it must
have the surviving events of the run that was never killed, the last checkpoint to the last byte, and nothing besides.

    python tests/crash/crashtest.py [--kills N] [--seed S] [--jobs N] [--run N] [--faults]
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import chain, count, zip_longest
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

from crashing import FAULTS, PLACES, Blow
from striking import HUNG, KINDS, Life, Mark, Reference, arguments, live

from scalerl.checkpoint import newest_checkpoint
from scalerl.events import parse_lines, read_events
from scenarios.runs import is_finished, is_locked

HOWS = ("time", "mark", "torn")  # as a blow is struck
BLOWS = (3, 9)  # fewest and most of a run
FEWEST = {"checkpoint": 0.1, "push": 0.1, "resume": 0.02}  # of all kills
MOST_RUNS_OF_A_FAULT = 5
TRAINED_PAST_A_CHECKPOINT = Blow("update", 10)  # the fifth is made, the fourth was saved


# ---- one run ----


@dataclass
class Run:
    """What became of one run: how it was killed, and in what it differs from the one that was not."""

    number: int
    reference: Reference
    folder: Path
    kills: list[tuple[Mark, Blow]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{mark.place} ({mark.what}; {blow.how})" for mark, blow in self.kills)
        return f"run {self.number} ({self.reference.kind}), killed {len(self.kills)} times: {kills}"


def crash(run: Run, blows: Iterable[Blow], interrupted: Event, fault: str = "") -> Run:
    """Kill a run at each blow, let it end, and compare."""
    command = arguments(run.reference.kind, run.folder)
    for blow in chain(blows, [None]):
        before = Standing.of(run.folder)
        life = live(run.folder, command, blow, fault, interrupted)
        if interrupted.is_set():
            return run
        if blow is not None and life.killed:
            run.kills.append((life.marks[-1], blow))
        run.problems += after_death(life, run.folder, before)
        if run.problems or is_finished(run.folder):
            break
    run.problems = run.problems or list(differences(run.reference.folder, run.folder))
    return run


@dataclass(frozen=True)
class Standing:
    """How far a run is on disk: updates and events of its newest checkpoint, and from which events it was resumed."""

    updates: int
    next_seq: int
    resumed: list[int]

    @classmethod
    def of(cls, folder: Path) -> "Standing":
        log, path = folder / "events.jsonl", newest_checkpoint(folder / "checkpoints")
        lines = parse_lines(log) if log.exists() else []
        state = json.loads((path / "loop.json").read_text())["state"] if path else {}
        resumed = [event["from_seq"] for event in lines if event["kind"] == "resume"]
        return cls(state.get("updates", 0), state.get("next_seq", 0), resumed)


def after_death(life: Life, folder: Path, before: Standing) -> Iterator[str]:
    """What must not be after any end of a process."""
    if any(mark.what == HUNG for mark in life.marks):
        yield f"it hung: its last marks {life.marks[-3:]}"
    elif life.status != 0 and not life.killed:
        yield f"it failed with status {life.status}: {life.said}"
    if life.orphans:
        yield "processes that it started have outlived it"
    if is_locked(folder):
        yield "its folder is still locked"
    now = Standing.of(folder)
    if now.updates < before.updates:
        yield f"its checkpoint of update {before.updates} is lost, the newest is {now.updates}"
    for seq in now.resumed[len(before.resumed) :]:
        if seq != before.next_seq:
            yield f"it went on from event {seq}, its newest checkpoint from {before.next_seq}"


def differences(whole: Path, killed: Path) -> Iterator[str]:
    """In what a run differs from one that was never killed: events, the last checkpoint, what lies about."""
    one, other = timeline(whole), timeline(killed)
    for place, (expected, found) in enumerate(zip_longest(one, other)):
        if expected != found:
            yield f"first differing event: {place} of {len(one)}\n  {tell(expected, found)}\n  {tell(found, expected)}"
            break
    if not is_finished(killed):
        yield "it is not finished"
    mine, theirs = (newest_checkpoint(folder / "checkpoints") for folder in (whole, killed))
    if mine is None or theirs is None:
        yield "there is no checkpoint"
        return
    expected, found = ({p.name: p.read_bytes() for p in f.iterdir()} for f in (mine, theirs))
    if apart := [n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n)]:
        yield f"its last checkpoint, {theirs.name}, differs in {', '.join(sorted(apart))}"
    left = sorted(set(listing(killed)) - set(listing(whole)))
    if left or len(list(theirs.parent.iterdir())) > len(list(mine.parent.iterdir())):
        yield f"left behind: {', '.join(left)}"


def timeline(folder: Path) -> list[dict[str, Any]]:
    """Surviving events without what may differ: wall time, and the sum over a line that holds it."""
    return [
        {key: value for key, value in event.items() if key not in ("t", "crc")}
        for event in read_events(folder / "events.jsonl")
    ]


def tell(event: dict[str, Any] | None, other: dict[str, Any] | None) -> str:
    """An event by its seq and kind, and the fields in which it differs from another."""
    if event is None:
        return "(no event)"
    apart = {k: v for k, v in event.items() if other is None or k not in other or other[k] != v}
    return f"seq {event['seq']} {event['kind']} {apart}"[:300]


def listing(folder: Path) -> list[str]:
    """What lies in a run folder, checkpoints without the number of their attempt."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return [re.sub(r"(update-\d+)\.\d+", r"\1", str(path)) for path in paths]


# ---- all of them ----


@dataclass
class Crashtest:
    """Runs dealt out over `args.jobs` processes until there have been enough kills, or one run differs."""

    args: argparse.Namespace
    root: Path
    interrupted: Event = field(default_factory=Event)
    references: list[Reference] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def prepare(self, pool: ThreadPoolExecutor) -> None:
        """The runs that are never killed, one of each kind."""

        def refer(kind: str) -> Reference:
            return Reference(kind, self.root / f"whole {kind}", self.interrupted)

        self.references = list(pool.map(refer, list(KINDS)[: self.args.kinds]))

    def run(self, number: int, fault: str = "") -> Run:
        reference = self.references[number % len(self.references)]
        folder = self.root / f"{fault or 'run'}-{number}"
        random = Random(f"{self.args.seed}:{number}")
        # drawn one by one: which are possible depends on how far the run has come
        blows = (
            reference.blow(random, (folder / "recipe.toml").exists())
            for _ in range(random.randint(*BLOWS))
        )
        if fault and number == 0:
            blows = [TRAINED_PAST_A_CHECKPOINT]
        return crash(Run(number, reference, folder), blows, self.interrupted, fault)

    def deal(self, pool: ThreadPoolExecutor) -> None:
        numbers = count() if self.args.run is None else iter([self.args.run])
        going: set[Future[Run]] = set()
        while True:
            while len(going) < self.args.jobs and not self.enough:
                if (number := next(numbers, None)) is None:
                    break
                going.add(pool.submit(self.run, number))
            if not going:
                return
            ended, going = wait(going, return_when=FIRST_COMPLETED)
            for future in ended:
                self.take(future.result())

    def take(self, run: Run) -> None:
        self.runs.append(run)
        kills = sum(len(run.kills) for run in self.runs)
        verdict = "DIFFERS" if run.problems else "the same"
        print(f"{kills:4d} of {self.args.kills} kills; {run}: {verdict}", flush=True)
        if run.problems:
            print("", *run.problems, f"its folder: {run.folder}", sep="\n")
            print(f"again: crashtest.py --seed {self.args.seed} --run {run.number}", flush=True)
        else:
            shutil.rmtree(run.folder)

    @property
    def failed(self) -> bool:
        return any(run.problems for run in self.runs)

    @property
    def enough(self) -> bool:
        places = Counter(mark.place for run in self.runs for mark, _ in run.kills)
        few = [place for place in FEWEST if places[place] < int(FEWEST[place] * self.args.kills)]
        return self.failed or (places.total() >= self.args.kills and not few)

    def try_faults(self, pool: ThreadPoolExecutor) -> list[str]:
        """Faults that no run notices, of those that we know how to make."""

        def notice(fault: str) -> str:
            for number in range(MOST_RUNS_OF_A_FAULT):
                run = self.run(number, fault)
                if run.problems:
                    what = run.problems[0].splitlines()[0]
                    print(f"{fault}: noticed after {len(run.kills)} kills: {what}", flush=True)
                    return ""
            print(f"{fault}: NOT NOTICED", flush=True)
            return fault

        return [fault for fault in pool.map(notice, FAULTS) if fault]


def table(runs: list[Run], seconds: float) -> str:
    """Where the kills hit, and how their instant was chosen."""
    hits = Counter((mark.place, blow.how) for run in runs for mark, blow in run.kills)
    rows = ["| killed during | at a random time | at a random mark | after a torn write | all |"]
    rows.append("|---|---|---|---|---|")
    for place in (place for place in PLACES if place != "exit"):
        cells = [hits[place, how] for how in HOWS]
        rows.append(f"| {place} | {' | '.join(map(str, cells))} | {sum(cells)} |")
    columns = [sum(n for (_, how), n in hits.items() if how == each) for each in HOWS]
    rows.append(f"| **all** | {' | '.join(map(str, columns))} | {hits.total()} |")
    same = sum(not run.problems for run in runs)
    rows.append(f"\n{hits.total()} kills in {len(runs)} runs; {same} of these ended the same")
    return "\n".join([*rows, f"{seconds:.0f} s"])


def main() -> int:
    args = parse()
    root = Path(tempfile.mkdtemp(prefix="crashtest-")).resolve()
    test, started, missed = Crashtest(args, root), time.monotonic(), list[str]()
    try:
        with ThreadPoolExecutor(args.jobs) as pool:
            try:
                test.prepare(pool)
                test.deal(pool)
                if args.faults and not test.failed:
                    missed = test.try_faults(pool)
            except KeyboardInterrupt:
                test.interrupted.set()
                print("\ninterrupted; so far:")
        print(table(test.runs, time.monotonic() - started))
    finally:
        if not test.failed:
            shutil.rmtree(root)
    return 130 if test.interrupted.is_set() else int(test.failed or bool(missed))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--kills", type=int, default=200, help="at least so many SIGKILLs")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="so many kinds of recipes")
    parser.add_argument("--run", type=int, help="only the run of this number")
    parser.add_argument("--faults", action="store_true", help="then break it, and see it noticed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
