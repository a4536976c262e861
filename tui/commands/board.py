"""What is to be seen of runs that go on side by side: a bar for each, and a line when one ends."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from scalerl.events import Event
from scenarios.runs import RunResult
from scenarios.scenario import Plan
from tui.watch.child import ChildRun
from tui.watch.feeds import FileFeed
from tui.watch.follow import LONGEST_LINE, Follower
from tui.words import printable

FOLLOW_S = 0.5  # between two looks into the logs


@dataclass
class Job:
    """One run. It waits without a child, and has ended with a result or with a cause of its failure.

    Done already, it has a result and never a child.
    """

    plan: Plan
    folder: Path
    child: ChildRun | None = None
    result: RunResult | None = None
    cause: str = ""
    refused: bool = False

    @property
    def name(self) -> str:
        return f"{self.plan.name} / {self.plan.arm}, seed {self.plan.recipe.seed}"

    @property
    def updates(self) -> int:
        """How many it is to have in the end."""
        assert self.plan.recipe.site is not None
        return self.plan.recipe.site.updates

    @property
    def is_done(self) -> bool:
        return self.result is not None and self.result.status != "stopped"


@dataclass
class Bar:
    """One run that goes on, as its log tells it."""

    job: Job
    task: TaskID
    log: Follower
    update: int = 0
    rate: str = ""
    spent: str = ""

    def take(self, event: Event) -> None:
        if event["kind"] == "update":
            self.update = event["update"]
            self.spent = f"{event['gpu_h']:.0f} GPU-h"
        elif event["kind"] == "eval" and event["set"] == "validation":
            self.rate = f"pass rate {event['pass_rate']:.3f}"


class Board(Progress):
    """A bar for each run that goes on and one for all of them, below lines about those that have ended.

    Without a terminal there are lines alone, of starts too; silent: of failures alone.
    """

    def __init__(self, console: Console, jobs: Sequence[Job], *, silent: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} updates"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=silent or not console.is_terminal,
        )
        self._jobs, self._silent = jobs, silent
        self._bars: list[Bar] = []
        self._updates = sum(job.updates for job in jobs if job.is_done)  # of runs that have ended
        self._next_look = 0.0
        self._all = self.add_task("all runs", total=sum(job.updates for job in jobs), now="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar of all runs, which was the first, comes last."""
        tasks = self.tasks
        yield self.make_tasks_table([*tasks[1:], *tasks[:1]])

    def stop(self) -> None:
        """Take the display away, and read no log any more."""
        super().stop()
        for bar in self._bars:
            bar.log.close()

    def started(self, job: Job, *, taken_up: bool) -> None:
        """A run has begun, or has been taken up."""
        if not self.disable:
            task = self.add_task(job.name, total=job.updates, now="")
            self._bars.append(Bar(job, task, Follower(FileFeed(job.folder))))
        elif not self._silent:
            how = "taken up" if taken_up else "started"
            self.console.print(f"{job.name}: {how}, run folder {job.folder}")

    def follow(self) -> None:
        """Look into the logs, if it is time to."""
        if self.disable or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + FOLLOW_S
        for bar in self._bars:
            for event in bar.log.poll(LONGEST_LINE).events:
                bar.take(event)
            stopping = bar.job.child is not None and bar.job.child.stopping
            now = "stopping" if stopping else ", ".join(filter(None, (bar.rate, bar.spent)))
            self.update(bar.task, completed=bar.update, now=now)
        updates = self._updates + sum(bar.update for bar in self._bars)
        self.update(self._all, completed=updates, now=tally(self._jobs))
        self.refresh()

    def ended(self, job: Job) -> None:
        """A run has ended, or failed to start."""
        for bar in [each for each in self._bars if each.job is job]:
            self._updates += job.updates if job.is_done else bar.update
            bar.log.close()
            self.remove_task(bar.task)
            self._bars.remove(bar)
        self._next_look = 0.0  # its bar goes at once
        if job.cause or not self._silent:
            self.console.print(printable(f"{job.name}: {how_it_ended(job)}"))


def how_it_ended(job: Job) -> str:
    """done (or done already), pass rate 0.906 ±0.004, A 0.926, 221.3 GPU-h; or why it failed."""
    if job.result is None:
        return f"failed: {job.cause}"
    parts = [job.result.status if job.child is not None else "done already"]
    if job.result.evaluations:
        last = job.result.evaluations[-1]
        parts.append(f"pass rate {last['pass_rate']:.3f} ±{last['se']:.3f}")
    parts.append(f"A {job.result.fit.A:.3f}" if job.result.fit else "no fit")
    spent = sum(sum(job.result.gpu_hours[role].values()) for role in ("generator", "trainer"))
    return ", ".join([*parts, f"{spent:.1f} GPU-h"])


def tally(jobs: Sequence[Job]) -> str:
    """5 of 8 runs done, 1 stopped, 1 failed."""
    stopped = sum(job.result is not None and not job.is_done for job in jobs)
    failed = sum(bool(job.cause) for job in jobs)
    counts = [f"{sum(job.is_done for job in jobs)} of {len(jobs)} runs done"]
    counts += [f"{stopped} stopped"] if stopped else []
    counts += [f"{failed} failed"] if failed else []
    return ", ".join(counts)
