"""`scalerl run --jobs J`: runs side by side, each a process of its own on one core, behind one progress display."""

import os
import shlex
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from scalerl.errors import InputError, RunFailed
from scalerl.events import evaluations, read_events
from scalerl.loop import Control
from scalerl.site import Cluster
from scenarios.runs import (
    RunResult,
    choose_folder,
    differing_keys,
    fit_run,
    is_begun,
    is_finished,
    is_locked,
)
from scenarios.scenario import Plan
from scenarios.worlds import open_world
from tui.commands.board import Board, Job, tally
from tui.commands.running import console_of, how_to_resume, print_json, stop_on_interrupt
from tui.watch.child import ChildRun, last_words, obey, start_run
from tui.watch.follow import how_it_exited
from tui.words import duration

POLL_S = 0.05  # how late the end of a run may be seen: its core is idle until then
REFUSED, INTERRUPTED = 2, 130  # exit statuses of a run


@dataclass(frozen=True)
class Asked:
    """What the command line asked for, to say how to go on with what was left."""

    name: str
    overrides: Sequence[str]
    on: str | None
    out: Path | None
    arm: str | None
    seeds: int | None
    at_once: int
    allow_code: bool


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_side_by_side(
    plans: Sequence[Plan], asked: Asked, *, leash: bool, as_json: bool
) -> list[RunResult]:
    """Every run that was asked for, `asked.at_once` at a time; results in the order of the plans.

    A finished run of the same recipe under `asked.out` is one of them, and is not run again.

    Raises:
        InputError: a run cannot be begun: before the first one starts, where this can be known.
        RunFailed: some failed; the others have gone on to their end.
        KeyboardInterrupt: at the second Ctrl-C; all runs have been ended.
    """
    begun, interrupted = time.monotonic(), False
    refuse_clusters(plans)
    jobs = [job_of(each, len(plans), asked.out) for each in plans]
    check([job for job in jobs if not job.is_done], allow_code=asked.allow_code)
    console = console_of(as_json)
    with stop_on_interrupt(console) as control:
        if leash:
            obey(control)
        with Board(console, jobs, silent=as_json) as board:
            for job in jobs:
                if job.is_done:
                    board.ended(job)
            try:
                work(jobs, asked, board, control)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                _leave_nothing(jobs)
    results = [job.result for job in jobs if job.result is not None]
    if as_json and not interrupted:
        print_json(results)
    if not as_json:
        console.print(f"{tally(jobs)} in {duration(time.monotonic() - begun)}")
    for line in how_to_go_on(jobs, asked):
        console.print(line)
    if interrupted:
        raise KeyboardInterrupt("interrupted")
    _raise_failures(jobs)
    return results


def job_of(plan: Plan, plans: int, out: Path | None) -> Job:
    """Where a plan's run goes, as `choose_folder` has it; one that is finished there is done already.

    Raises:
        InputError: `out` holds a run of another recipe.
    """
    if out is not None:
        folder = _place(out, plan)
        if is_finished(folder) and not differing_keys(folder, plan.recipe):
            return Job(plan, folder, result=result_of(plan, folder))
    return Job(plan, choose_folder(plan, plans, out))


def _place(root: Path, plan: Plan) -> Path:
    """The folder of one of several runs below `--out`."""
    return root / plan.arm / f"seed-{plan.recipe.seed}"


def refuse_clusters(plans: Iterable[Plan]) -> None:
    """Raises InputError: a site is a cluster."""
    for each in plans:
        if isinstance(each.recipe.site, Cluster):
            raise InputError(
                f"site {each.recipe.site.name!r} is a cluster, whose devices its runs share: leave out --jobs,"
                " and they run one after the other"
            )


def check(jobs: Sequence[Job], *, allow_code: bool) -> None:
    """Refuse now what each run would be refused for as it begins; make the folders of all, or of none.

    Raises:
        InputError: a world that cannot be opened, or a folder that is in use or cannot be made.
    """
    for _, same in groupby(jobs, key=lambda job: job.plan.arm):  # all equal but for the seed
        open_world(next(same).plan.recipe, allow_code=allow_code)
    for job in jobs:
        if is_locked(job.folder):
            raise InputError(
                f"{job.folder} is in use by a run that is still going: choose another --out"
            )
    made: list[Path] = []
    for job in jobs:
        above = (job.folder, *job.folder.parents)
        made += reversed([folder for folder in above if not folder.exists()])
        try:
            job.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            for folder in reversed(made):
                with suppress(OSError):  # it was never made
                    folder.rmdir()
            raise InputError(
                f"cannot write to the run folder {job.folder}: {error.strerror}"
            ) from None


def work(jobs: Sequence[Job], asked: Asked, board: Board, control: Control) -> None:
    """Run all jobs to their ends; once a stop is asked for, those that go on are stopped and none is begun."""
    waiting, going = deque(job for job in jobs if not job.is_done), list[tuple[Job, ChildRun]]()
    while going or (waiting and not control.stop):
        while waiting and len(going) < asked.at_once and not control.stop:
            job = waiting.popleft()
            if child := _start(job, asked.allow_code, board):
                going.append((job, child))
        if control.stop:
            for _, child in going:
                if not child.stopping:
                    child.stop()
        time.sleep(POLL_S)
        board.follow()
        for job, child in list(going):
            if (code := child.exit_code) is not None:
                going.remove((job, child))
                _end(job, code)
                board.ended(job)


def _start(job: Job, allow_code: bool, board: Board) -> ChildRun | None:
    taken_up = is_begun(job.folder)
    try:
        job.child = start_run(job.plan.recipe, job.folder, allow_code=allow_code, one_core=True)
    except InputError as error:  # a disk that is full by now
        job.cause = str(error)
        board.ended(job)
    else:
        board.started(job, taken_up=taken_up)
    return job.child


def _end(job: Job, code: int) -> None:
    """Learn how a job ended whose process has, with this exit code."""
    if code in (0, INTERRUPTED):
        job.result = result_of(job.plan, job.folder)
    if job.result is None:
        said = last_words(job.folder)[-1:] if code > 0 else []
        job.cause = said[0].removeprefix("scalerl: ") if said else how_it_exited(code)
        job.refused = code == REFUSED


def _leave_nothing(jobs: Iterable[Job]) -> None:
    """No process, and no folder of a run that was not begun."""
    for job in jobs:
        if job.child is not None:
            job.child.kill()
        else:
            with suppress(OSError):  # one that holds something stays
                job.folder.rmdir()


def result_of(plan: Plan, folder: Path) -> RunResult | None:
    """How a run ended, from its log as `scenarios.runs.run` tells it; None where the log has no end."""
    events = read_events(folder / "events.jsonl")
    if not events or events[-1]["kind"] != "done":
        return None
    points = evaluations(events)
    fit, no_fit = fit_run(points)
    return RunResult(
        name=plan.name,
        arm=plan.arm,
        seed=plan.recipe.seed,
        algorithm_id=plan.recipe.algorithm_id(),
        status=events[-1]["status"],
        folder=folder,
        fit=fit,
        no_fit=no_fit,
        gpu_hours=events[-1]["gpu_hours"],
        evaluations=points,
    )


def how_to_go_on(jobs: Sequence[Job], asked: Asked) -> list[str]:
    """The command that takes up all that is left; where no `--out` names all folders, one for each run and arm."""
    begun = [job for job in jobs if job.child is not None and not job.is_done and not job.refused]
    lines = [how_to_resume(job.folder, asked.allow_code) for job in begun]
    rest = [job for job in jobs if job.child is None and not job.cause and not job.is_done]
    if len(begun + rest) > 1 and (root := _root(jobs)):
        return [f"to go on with all:  {shlex.join(_command(asked, root))}"]
    for arm, same in groupby(rest, key=lambda job: job.plan.arm):
        of_arm = list(same)  # its last seeds, for runs are begun in order
        words = ["scalerl", "run", asked.name, *asked.overrides]
        words += [f"seed={of_arm[0].plan.recipe.seed}", "--seeds", str(len(of_arm)), "--arm", arm]
        words += ["--on", asked.on] if asked.on else []
        if asked.out:  # of a single run it is the folder itself
            words += ["--out", str(asked.out if len(of_arm) > 1 else of_arm[0].folder)]
        words += ["--jobs", str(asked.at_once)] + ["--allow-code"] * asked.allow_code
        lines.append(f"to begin the rest:  {shlex.join(words)}")
    return lines


def _root(jobs: Sequence[Job]) -> Path | None:
    """The folder that as `--out` gives every run the folder it has; None if there is none."""
    root = jobs[0].folder.parent.parent
    return root if all(job.folder == _place(root, job.plan) for job in jobs) else None


def _command(asked: Asked, root: Path) -> list[str]:
    """What was asked for, in folders below `root`."""
    words = ["scalerl", "run", asked.name, *asked.overrides]
    words += ["--seeds", str(asked.seeds)] if asked.seeds is not None else []
    words += ["--arm", asked.arm] if asked.arm else []
    words += ["--on", asked.on] if asked.on else []
    words += ["--out", str(root), "--jobs", str(asked.at_once)]
    return words + ["--allow-code"] * asked.allow_code


def _raise_failures(jobs: Sequence[Job]) -> None:
    failed = [job for job in jobs if job.cause]
    if failed:
        kind = InputError if all(job.refused for job in failed) else RunFailed
        names = "; ".join(job.name for job in failed)
        raise kind(f"{len(failed)} of {len(jobs)} runs failed: {names}")
