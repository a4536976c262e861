"""Loops with one fault each, as somebody might write them: the simulation has to find every one."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scalerl.compute import Phase
from scalerl.errors import GeneratorLost
from scalerl.events import EventLog
from scalerl.loop import Loop
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.staleness import PipelineRL, PPOOffPolicy
from scalerl.state import LoopState, PendingEval, Ticket
from scalerl.task import Prompt
from scalerl.world import World
from scenarios.simulation.faults import draw_plan
from scenarios.simulation.shrink import shrink
from scenarios.simulation.simulate import simulate


class LosesGroup(Loop):
    """A request whose engine was lost is forgotten."""

    async def rollout(self, ticket: Ticket) -> None:
        try:
            await super().rollout(ticket)
        except _Forgotten:
            del self.state.in_flight[ticket.ordinal]
            self._slots.set()

    async def _generate(self, ticket: Ticket) -> tuple[Ticket, Group]:
        prompt, n = self.world.train[ticket.prompt], self.recipe.group_size
        try:
            return ticket, await self.world.generate(prompt, n, ticket.ordinal, self.recipe.seed)
        except GeneratorLost as lost:
            self.books.emit("fault", cause=str(lost), error="GeneratorLost", group=ticket.ordinal)
            raise _Forgotten from lost


class _Forgotten(Exception):
    """Of a request."""


class LagOffByOne(Loop):
    """The rule allows k + 1 versions where the recipe says k."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        match self.rule:
            case PipelineRL(k=k, prompts=prompts):
                self.rule = PipelineRL(k + 1, prompts)
            case PPOOffPolicy():
                self.rule = replace(self.rule, k=self.rule.k + 1)


class PushesTwice(Loop):
    """Pushes whether or not the weights are new."""

    async def _push(self) -> None:
        pushed = await self.world.publish(self.state.version)
        self.state.published = pushed.version
        self.state.taken = 0
        self._slots.set()


class PushNotAwaited(Loop):
    """Takes a push for done when it has begun."""

    async def _push(self) -> None:
        if self.state.published < self.state.version:
            self._pushing = asyncio.ensure_future(self.world.publish(self.state.version))
            await asyncio.sleep(0)
            self.state.published = self.state.version
        self.state.taken = 0
        self._slots.set()


class SwallowsException(Loop):
    """A rollout that fails is none of the run's business."""

    async def rollout(self, ticket: Ticket) -> None:
        try:
            await super().rollout(ticket)
        except Exception:
            self._landed.set()


class ResumeSkipsGroup(Loop):
    """A group that waited to be trained on is not there any more after a resume."""

    def __init__(self, recipe: Recipe, world: World, state: LoopState, *a: Any, **how: Any) -> None:
        super().__init__(recipe, world, state, *a, **how)
        if state.finished:
            state.finished.pop(max(state.finished))


class ResumeRepeatsGroup(Loop):
    """What was in flight is drawn anew as well as taken up."""

    def __init__(self, recipe: Recipe, world: World, state: LoopState, *a: Any, **how: Any) -> None:
        super().__init__(recipe, world, state, *a, **how)
        for ticket in list(state.in_flight.values())[:1]:
            again = replace(ticket, ordinal=state.next_ordinal)
            state.in_flight[again.ordinal] = again
            state.next_ordinal += 1


class ResumeForgetsEvaluation(Loop):
    """Evaluations that were under way are not taken up."""

    def __init__(self, recipe: Recipe, world: World, state: LoopState, *a: Any, **how: Any) -> None:
        super().__init__(recipe, world, state, *a, **how)
        state.pending.clear()


class EvaluatesWrongVersion(Loop):
    """Reports the version of the moment when an evaluation ends, not of the weights that were pinned."""

    async def evaluation(self, pending: PendingEval) -> None:
        books = self.books
        emit = books.emit

        def of_now(kind: str, **fields: Any) -> None:
            now = {"version": self.state.version} if kind == "eval" else {}
            emit(kind, **{**fields, **now})

        books.emit = of_now  # type: ignore[method-assign]
        await super().evaluation(pending)


class LedgerForgets(Loop):
    """Phases that are too short to matter are not booked."""

    def __init__(self, recipe: Recipe, world: World, state: LoopState, *a: Any, **how: Any) -> None:
        super().__init__(recipe, world, state, *a, **how)
        add = state.ledger.add

        def long_ones(phase: Phase) -> None:
            if phase.end - phase.start > 0.1:
                add(phase)

        state.ledger.add = long_ones  # type: ignore[method-assign]


class SeqRepeats(Loop):
    """The number of an event is given once more when a group is issued again."""

    def __init__(
        self, recipe: Recipe, world: World, state: LoopState, log: EventLog, **how: Any
    ) -> None:
        super().__init__(recipe, world, state, log, **how)
        emit = log.emit

        def again(kind: str, **fields: Any) -> None:
            emit(kind, **fields)
            if kind == "fault":
                log.seq -= 1

        log.emit = again  # type: ignore[method-assign]


class LeaksSlot(Loop):
    """One slot of every batch is not given back."""

    async def _push(self) -> None:
        await super()._push()
        self.state.taken = min(1, self.state.updates)


class Gullible(Group):
    """A group that answers whatever was asked."""

    def check(self, ordinal: int, prompt: Prompt, n: int, start: int) -> None: ...


class TakesAnyAnswer(Loop):
    """What a generator sends is what was asked for."""

    def __init__(self, recipe: Recipe, world: World, state: LoopState, *a: Any, **how: Any) -> None:
        super().__init__(recipe, world, state, *a, **how)
        generate = world.generate

        async def believed(*asked: Any) -> Group:
            return Gullible(**vars(await generate(*asked)))

        world.generate = believed  # type: ignore[method-assign]


class HidesCause(Loop):
    """Says that something failed, and not what."""

    async def run(self) -> str:
        try:
            return await super().run()
        except Exception as error:
            raise type(error)("the run failed") from error


class LeavesWorldOpen(Loop):
    """Closes the world when all went well."""

    async def run(self) -> str:
        close = self.world.close

        async def not_yet() -> None: ...

        self.world.close = not_yet  # type: ignore[method-assign]
        status = await super().run()
        await close()
        return status


class SavesTooEarly(Loop):
    """A checkpoint says that the log is longer than it is."""

    def _save(self) -> None:
        self.log.seq += 1
        super()._save()
        self.log.seq -= 1


BROKEN: Sequence[type[Loop]] = (
    LosesGroup,
    LagOffByOne,
    PushesTwice,
    PushNotAwaited,
    SwallowsException,
    ResumeSkipsGroup,
    ResumeRepeatsGroup,
    ResumeForgetsEvaluation,
    EvaluatesWrongVersion,
    LedgerForgets,
    SeqRepeats,
    LeaksSlot,
    TakesAnyAnswer,
    HidesCause,
    LeavesWorldOpen,
    SavesTooEarly,
)

MOST_SEEDS = 500


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_every_broken_loop_is_found(broken: type[Loop], capsys: pytest.CaptureFixture[str]) -> None:
    """Within so many seeds; and what is left of the plan still shows it, when it is played again."""
    for seed in range(MOST_SEEDS):
        outcome = simulate(draw_plan(seed), loop_class=broken)
        if outcome.violation is not None:
            break
    else:
        pytest.fail(f"{broken.__name__} passed {MOST_SEEDS} seeds")
    least = shrink(outcome, broken)
    with capsys.disabled():
        print(
            f"\n{broken.__name__}: seed {seed}, {outcome.violation}: {least.what}\n  {least.plan}"
        )
    again = simulate(least.plan, loop_class=broken)
    assert (again.violation, again.what) == (outcome.violation, least.what)
    assert len(least.plan.faults) <= 2
    assert simulate(least.plan).violation is None, "it is the loop that is broken, not the check"
