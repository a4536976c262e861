"""The loop: rollouts() and updates() side by side, over any world.

Staleness, admission, the fate of every group, evaluation cadence, accounting, events, checkpoints and shutdown
are written here once. The first failure of either coroutine, or of any task they start, ends the run.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scalerl.books import Books, Wait, description
from scalerl.checkpoint import hold, save_checkpoint
from scalerl.curriculum import rejected
from scalerl.errors import (
    CurriculumExhausted,
    GeneratorLost,
    GroupRefused,
    NotFinite,
    RunFailed,
    StalenessViolation,
    Stalled,
    first_line,
)
from scalerl.events import Event, EventLog
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.staleness import Waiting, staleness_rule
from scalerl.state import LoopState, PendingEval, Ticket
from scalerl.supervision import Supervisor
from scalerl.world import Handle, UpdateStats, World, untrained

MAX_TRIES = (
    16  # of one group, or of batches in a row: what always fails must end the run, not keep it busy
)


@dataclass
class Control:
    """How the outside speaks to a run; polled between updates, never awaited."""

    stop: bool = False


class Loop:
    """One run of a recipe on its site. Everything that outlives an await is in `state`."""

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        state: LoopState,
        log: EventLog,
        *,
        checkpoints: Path | None = None,
        control: Control | None = None,
        history: Sequence[Event] = (),
    ) -> None:
        """`history`: the surviving events of a run that is taken up."""
        assert recipe.site is not None, "call recipe.on(site) first"
        self.recipe, self.site = recipe, recipe.site
        self.world, self.state, self.log = world, state, log
        supervisor = Supervisor(self.site.supervision)
        supervisor.remember(history)
        self.books = Books(recipe, world, state, log, supervisor)
        self.rule = staleness_rule(recipe)
        self.checkpoints, self.control = checkpoints, control or Control()
        self._slots, self._landed = asyncio.Event(), asyncio.Event()
        self._flights: set[asyncio.Task[None]] = set()
        self._evaluations: set[asyncio.Task[None]] = set()
        self._passed_over = 0  # batches in a row whose loss or gradient was no number

    async def run(self) -> str:
        """Run to the end, or to a stop that was asked for; returns "done", "stopped" or "exhausted".

        Raises:
            RunFailed: the first failure, in one line; the world has been closed.
        """
        try:
            await self.world.start()
            async with asyncio.TaskGroup() as tasks:
                rollouts = tasks.create_task(self.rollouts(tasks))
                service = tasks.create_task(self.world.serve())
                watchdog = tasks.create_task(self.watch())
                for pending in self.state.pending:  # of a resumed run
                    self._evaluate(tasks, pending)
                status = await self.updates(tasks, rollouts)
                self.books.book_phases()
                self.books.ended_at = self.world.clock.now()  # C stands still from here on
                for task in (rollouts, service, *self._flights):
                    task.cancel()
                await asyncio.gather(*self._evaluations)
                watchdog.cancel()
        except* Exception as group:
            cause = _first(group)
            if isinstance(cause, OSError) and not isinstance(cause, ConnectionError | TimeoutError):
                with suppress(OSError):  # the log may be what cannot be written
                    self.books.emit("fault", cause=cannot_write(cause), error=type(cause).__name__)
                raise RunFailed(cannot_write(cause)) from cause
            said = first_line(cause)
            with suppress(OSError):  # a disk that is full too must not hide the cause
                self.books.emit("fault", cause=said, error=type(cause).__name__)
            raise RunFailed(f"{type(cause).__name__}: {said}") from cause
        finally:
            await self.world.close()
        self.books.book_phases()
        return status

    # --- the two coroutines ---

    async def rollouts(self, tasks: asyncio.TaskGroup) -> None:
        """Keep the generators supplied: admit prompts while slots are free."""
        for ticket in self.state.in_flight.values():  # of a resumed run
            self._launch(tasks, ticket)
        while True:
            while self.state.outstanding >= self.rule.capacity:
                self._slots.clear()
                await self._slots.wait()
            try:
                ticket = self.state.admit()
            except CurriculumExhausted as exhausted:
                self.books.emit("warning", what=str(exhausted))
                self._landed.set()  # so that updates() learns that no more will come
                return
            self._launch(tasks, ticket)

    async def updates(self, tasks: asyncio.TaskGroup, rollouts: asyncio.Task[None]) -> str:
        """Take batches as the staleness rule allows, train, push, evaluate, until the budget is spent."""
        state = self.state
        if self.log.seq == 0:
            self.books.emit("run", **description(self.recipe))
            await self._start_evaluation(tasks)
        resumed_at = state.updates  # of which there is a checkpoint, or nothing to save
        while state.updates < self.site.updates:
            if state.updates > resumed_at and (
                self.control.stop or state.updates % self.site.checkpoint_every_updates == 0
            ):
                self._save()
            if self.control.stop:
                return "stopped"
            batch, wait = await self._next_batch(rollouts)
            if batch is None:
                self._save()
                if self.control.stop:
                    return "stopped"
                await self._start_evaluation(tasks, last=True, again=True)
                return "exhausted"
            groups = state.take(batch)
            push_due = self.rule.push_due(*self._starts())
            self._check_lag(groups)
            stats = await self._train(groups)
            if not stats.skipped:
                state.version += 1
            if push_due:
                await self._push()
            await self.world.clock.settle()  # what lands at this instant is in the report
            self.books.report(stats, wait, groups[0])
            await self._start_evaluation(tasks, last=state.updates == self.site.updates)
        self._save()
        return "done"

    async def watch(self) -> None:
        """End a run in which nothing finishes any more.

        Raises:
            Stalled: for `site.stall_s` seconds of the world's clock.
        """
        before = None
        while (progress := self.state.progress) != before:
            before = progress
            await self.world.clock.sleep(self.site.stall_s)
        oldest = sorted(self.state.in_flight.values(), key=lambda t: (t.start, t.ordinal))[:3]
        waiting = ", ".join(f"{t.ordinal} (since version {t.start})" for t in oldest) or "none"
        raise Stalled(
            f"nothing has finished for {self.site.stall_s:g} s (site.stall_s): groups that are out: {waiting}; "
            f"evaluations: {len(self.state.pending)}; raise site.stall_s if they only take long, then resume"
        )

    # --- tasks they start ---

    async def rollout(self, ticket: Ticket) -> None:
        """Generate and score one group."""
        ticket, group = await self._generate(ticket)
        group = await self.world.score(group)
        reject = rejected(group, self.recipe)
        self.state.land(ticket, group, reject=reject)
        self._landed.set()
        if reject:
            self._slots.set()

    async def evaluation(self, pending: PendingEval) -> None:
        """Evaluate weights that `_start_evaluation` pinned, beside the run."""
        results = await self.world.evaluate(Handle(pending.handle, pending.version), pending.sets)
        self.state.pending.remove(pending)
        for result in results:
            self.books.emit(
                "eval",
                version=pending.version,
                C=pending.C,
                pass_rate=result.pass_rate,
                se=result.se,
                n=result.n,
                k=result.k,
                set=result.set,
                passes=result.passes,
            )

    # --- their parts ---

    async def _generate(self, ticket: Ticket) -> tuple[Ticket, Group]:
        """A group of completions; issued again, with a new start, when its engine is lost."""
        prompt, tries = self.world.train[ticket.prompt], 0
        while True:
            try:
                n = self.recipe.group_size
                group = await self.world.generate(prompt, n, ticket.ordinal, self.recipe.seed)
                group.check(ticket.ordinal, prompt, n, ticket.start)
                self._check_future(group)
                return ticket, group
            except (GeneratorLost, GroupRefused) as lost:
                tries += 1
                if tries == MAX_TRIES:
                    raise
                error = type(lost).__name__
                self.books.emit("fault", cause=str(lost), error=error, group=ticket.ordinal)
                self.books.pass_on_notices()
                ticket = replace(ticket, start=self.state.published)
                self.state.in_flight[ticket.ordinal] = ticket

    async def _next_batch(self, rollouts: asyncio.Task[None]) -> tuple[list[int] | None, Wait]:
        """Wait for a batch; None when a stop is asked for, or no more can come from an exhausted curriculum."""
        if (
            self.state.waiting_since is None
        ):  # else it is a resumed run that was stopped as it waited
            self.state.waiting_since = self.world.clock.now()
        stalled_since, straggler = None, None
        while True:
            choice = self.rule.take(self.state.version, *self._starts(), self.state.taken)
            if not isinstance(choice, Waiting):
                break
            if choice.straggler is not None and stalled_since is None:
                stalled_since, straggler = self.world.clock.now(), choice.straggler
            if self.control.stop or (rollouts.done() and not self.state.in_flight):
                return None, Wait()
            self._landed.clear()
            await self._landed.wait()
            await self.world.clock.settle()  # whatever else lands at this instant counts too
        now, began, self.state.waiting_since = (
            self.world.clock.now(),
            self.state.waiting_since,
            None,
        )
        stall_s = 0.0 if stalled_since is None else now - stalled_since
        return choice, Wait(now - began, stall_s, straggler)

    async def _train(self, groups: Sequence[Group]) -> UpdateStats:
        """One update; a batch whose loss or gradient is no number ends the run, or is passed over."""
        try:
            stats = await self.world.update(groups)
        except NotFinite as error:
            self._passed_over += 1
            if self.site.supervision.not_finite == "stop" or self._passed_over == MAX_TRIES:
                raise
            self.books.emit("warning", what=f"update {self.state.updates}: {error}")
            return untrained(groups)
        self._passed_over = 0
        return stats

    async def _push(self) -> None:
        """Send new weights, if there are any, and reopen the slots of what was taken since the last push."""
        if self.state.published < self.state.version:
            pushed = await self.world.publish(self.state.version)
            self.state.published = pushed.version
        self.state.taken = 0
        self._slots.set()

    async def _start_evaluation(
        self, tasks: asyncio.TaskGroup, *, last: bool = False, again: bool = False
    ) -> None:
        """Pin the weights and evaluate them on the sets that are due after this update, if any.

        last: on all sets. again: but those that were due, and have been started.
        """
        cadence = self.site.evaluation.cadence
        on_time = {name: self.state.updates % n == 0 for name, n in cadence.items()}
        sets = [name for name, due in on_time.items() if (due and not again) or (last and not due)]
        if sets:
            handle = await self.world.snapshot()
            pending = PendingEval(handle.id, handle.version, self.books.gpu_h, sets)
            self.state.pending.append(pending)
            self._evaluate(tasks, pending)

    def _evaluate(self, tasks: asyncio.TaskGroup, pending: PendingEval) -> None:
        task = tasks.create_task(self.evaluation(pending))
        self._evaluations.add(task)
        task.add_done_callback(self._evaluations.discard)

    def _launch(self, tasks: asyncio.TaskGroup, ticket: Ticket) -> None:
        task = tasks.create_task(self.rollout(ticket))
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)

    def _starts(self) -> tuple[dict[int, int], dict[int, int]]:
        """Starts of finished and of unfinished groups, by ordinal."""
        finished = {ordinal: done.ticket.start for ordinal, done in self.state.finished.items()}
        return finished, {ordinal: ticket.start for ordinal, ticket in self.state.in_flight.items()}

    def _check_future(self, group: Group) -> None:
        """Before it is kept: a checkpoint that held it would end every resume."""
        if group.newest_version > self.state.version:
            raise StalenessViolation(
                f"group {group.request_id} has a token of version {group.newest_version}; "
                f"the trainer is at {self.state.version}"
            )

    def _check_lag(self, groups: Sequence[Group]) -> None:
        """The backstop: the rule bounds every lag by construction, and this says so if it ever fails."""
        lag = self.state.version - min(group.oldest_version for group in groups)
        if lag > self.rule.max_lag:
            raise StalenessViolation(
                f"update {self.state.updates} took a token of lag {lag}; "
                f"the recipe allows 0 to {self.rule.max_lag}"
            )

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        self.state.next_seq, self.state.clock = self.log.seq, self.world.clock.now()
        identity, keep = self.recipe.algorithm_id(), self.site.keep_checkpoints
        try:
            if self.books.take_troubles():
                hold(self.checkpoints, self.state.updates)  # the last one from before
            self.log.sync()
            save_checkpoint(self.checkpoints, self.state, self.world, identity, keep)
        except Exception as error:
            # so a library in Rust, as safetensors is, tells of a full disk
            if "(os error " in str(error):
                raise OSError(str(error)) from error
            raise


def cannot_write(error: OSError) -> str:
    """What to do when a file of the run cannot be written."""
    where = f" {error.filename}" if error.filename else " the run folder"
    return f"cannot write{where}: {error.strerror or error}: make room or mend that, then resume the run"


def _first(group: BaseExceptionGroup) -> BaseException:
    """The failure that came first: a TaskGroup lists them in order of arrival."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
