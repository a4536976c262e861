"""The generators as one: who takes a request, who is lost with what, and who comes instead."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from backend.fleet import Fleet
from backend.remote import Gone
from scalerl.clock import WallClock
from scalerl.compute import Ledger
from scalerl.errors import GeneratorLost, WorldFailed


class Engine:
    """A generator whose requests end when the test says so."""

    def __init__(self, name: str) -> None:
        self.name, self.killed = name, 0
        self.open: list[asyncio.Future[str]] = []
        self.limits: list[Sequence[int | None]] = []

    def call(self, method: str, *args: Any) -> Awaitable[Any]:
        assert method == "generate"
        self.open.append(asyncio.get_running_loop().create_future())
        self.limits.append(args[1])
        return self.open[-1]

    def begin(self, method: str, *args: Any) -> Callable[[float], Any]:
        raise NotImplementedError

    def kill(self) -> None:
        self.killed += 1
        for request in self.open:
            if not request.done():
                request.set_exception(Gone(f"{self.name} died"))


def fleet_of(engines: Sequence[Engine], restarts: int = 0) -> Fleet:
    clock = WallClock()
    fleet = Fleet(len(engines), restarts, lambda: clock)
    for slot, engine in enumerate(engines):
        fleet.join(slot, engine, 0)
    return fleet


def ask(fleet: Fleet, completions: int = 1) -> asyncio.Task[Any]:
    return asyncio.ensure_future(fleet.generate([1, 2], [None] * completions))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(5):
            await main
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


def test_requests_go_to_the_least_loaded_by_completions() -> None:
    async def main() -> None:
        a, b = Engine("a"), Engine("b")
        fleet = fleet_of([a, b])
        tasks = []
        for completions in (4, 1, 1, 1, 1, 1):
            tasks.append(ask(fleet, completions))
            await settle()
        assert [len(limits) for limits in a.limits] == [4, 1]  # of equals the first
        assert [len(limits) for limits in b.limits] == [1, 1, 1, 1]
        for request in (*a.open, *b.open):
            request.set_result("done")
        assert await asyncio.gather(*tasks) == ["done"] * 6
        assert [member.load for member in fleet.members.values()] == [0, 0]

    play(main())


def test_a_lost_member_takes_only_its_own_requests_along() -> None:
    async def main() -> None:
        a, b = Engine("a"), Engine("b")
        fleet = fleet_of([a, b], restarts=1)
        tasks = [ask(fleet) for _ in range(4)]
        await settle()
        a.open[0].set_exception(Gone("a died"))
        await settle()
        assert tasks[0].done() and tasks[2].done()  # the second by the kill
        assert not tasks[1].done() and not tasks[3].done() and a.killed == 1
        b.open[0].set_result("first")
        b.open[1].set_result("second")
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[1::2] == ["first", "second"]
        assert all(
            isinstance(error, GeneratorLost) and str(error) == "a died" for error in found[::2]
        )
        assert fleet.notices == [
            "a died; another one is started in its place"
        ]  # once, for two requests
        assert fleet.vacant.qsize() == 1 and fleet.restarts == 0

    play(main())


def test_an_engine_that_says_itself_that_it_is_lost_is_taken_out() -> None:
    async def main() -> None:
        a, b = Engine("a"), Engine("b")
        fleet = fleet_of([a, b])
        task = ask(fleet)
        await settle()
        a.open[0].set_exception(GeneratorLost("the engine of a died"))
        with pytest.raises(GeneratorLost, match="the engine of a died"):
            await task
        assert list(fleet.members) == [1] and a.killed == 1
        assert fleet.notices == [
            "the engine of a died; site.generator_restarts is used up, the others go on"
        ]

    play(main())


def test_another_error_of_an_engine_is_not_a_loss() -> None:
    async def main() -> None:
        a = Engine("a")
        fleet = fleet_of([a])
        task = ask(fleet)
        await settle()
        a.open[0].set_exception(ValueError("a prompt that is too long"))
        with pytest.raises(ValueError, match="too long"):
            await task
        assert list(fleet.members) == [0] and fleet.members[0].load == 0

    play(main())


def test_losing_twice_is_losing_once_and_never_its_successor() -> None:
    async def main() -> None:
        a, b, after = Engine("a"), Engine("b"), Engine("after a")
        fleet = fleet_of([a, b], restarts=5)
        member = fleet.members[0]
        fleet.lose(member, "a died")
        fleet.lose(member, "a died again")
        fleet.join(0, after, 3)
        fleet.lose(member, "a died still")
        assert fleet.members[0].remote is after and fleet.members[0].version == 3
        assert fleet.restarts == 4 and fleet.vacant.qsize() == 1 and len(fleet.notices) == 1
        assert (a.killed, after.killed) == (1, 0)

    play(main())


def test_requests_wait_for_the_one_that_is_joining() -> None:
    async def main() -> None:
        a, after = Engine("a"), Engine("after a")
        fleet = fleet_of([a], restarts=1)
        fleet.lose(fleet.members[0], "a died")
        tasks = [ask(fleet), ask(fleet)]
        await settle()
        assert not any(task.done() for task in tasks)
        fleet.join(await fleet.vacant.get(), after, 2)
        await settle()
        for request in after.open:
            request.set_result("done")
        assert await asyncio.gather(*tasks) == ["done", "done"]
        assert fleet.joining == set()

    play(main())


def test_the_last_words_are_of_the_last_one_lost() -> None:
    async def main() -> None:
        a, b = Engine("a"), Engine("b")
        fleet = fleet_of([a, b], restarts=1)
        fleet.lose(fleet.members[0], "a died")
        fleet.lose(fleet.members[1], "b died")
        waiting = ask(fleet)
        await settle()
        assert not waiting.done()  # somebody is still to come
        fleet.replace(await fleet.vacant.get(), "generator 0 could not be replaced: no GPU")
        with pytest.raises(
            WorldFailed,
            match=r"^no generator is left: generator 0 could not be replaced: no GPU$",
        ):
            await waiting
        with pytest.raises(WorldFailed, match="no generator is left"):
            await fleet.generate([1], [None])

    play(main())


def test_cancelled_requests_leave_no_load() -> None:
    async def main() -> None:
        a = Engine("a")
        fleet = fleet_of([a])
        task = ask(fleet, 3)
        await settle()
        assert fleet.members[0].load == 3
        task.cancel()
        await settle()
        assert fleet.members[0].load == 0 and fleet.members[0].busy_since is None

    play(main())


def test_busy_times_are_booked_once_and_cut_at_now() -> None:
    """Of two overlapping requests one phase; of a generator that dies all up to its death, then its successor's."""

    async def main() -> None:
        a, b, after = Engine("a"), Engine("b"), Engine("after a")
        fleet = fleet_of([a, b], restarts=1)
        tasks = [ask(fleet) for _ in range(4)]
        await asyncio.sleep(0.01)
        phases = fleet.phases()
        await asyncio.sleep(0.01)
        fleet.lose(fleet.members[0], "a died")
        await asyncio.sleep(0.01)
        fleet.join(0, after, 1)
        tasks.append(ask(fleet))
        await asyncio.sleep(0.01)
        for request in (*b.open, *after.open):
            request.set_result("done")
        await asyncio.gather(*tasks, return_exceptions=True)
        phases += fleet.phases()
        assert fleet.phases() == []
        ledger = Ledger({"generator": 2, "trainer": 1, "evaluator": 1})
        for phase in phases:
            ledger.add(phase)  # raises on any overlap
        busy_s = {
            slot: sum(phase.end - phase.start for phase in phases if phase.index == slot)
            for slot in (0, 1)
        }
        assert 0.025 < busy_s[0] < busy_s[1] - 0.005

    play(main())
