"""A weight push over many engines: who has the weights afterwards, who is named, and how long it takes."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from fake_cluster import FakeLauncher, FakeRemote, Fault, Script, cluster_recipe, engine_spec

import backend.push
from backend.push import Push
from backend.trainers import Trainers
from scalerl.errors import PushFailed, WorldFailed

TIMEOUT_S = 0.4


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.push, "ALIVE_S", 0.05)


@dataclass
class Pushed:
    """Two versions were sent, the second under faults: what was said of it, and what the engines have then."""

    failed: dict[int, str]
    engines: list[FakeRemote]
    seconds: float

    @property
    def versions(self) -> list[int]:
        return [engine.actor.weights for engine in self.engines]


def push(*faults: Fault, engines: int = 3, ranks: int = 2, send_s: float = 0.001) -> Pushed:
    async def main() -> Pushed:
        launcher = FakeLauncher(Script(faults, send_s=send_s))
        recipe = cluster_recipe(f"site.push_timeout_s={TIMEOUT_S}", f"site.trainers={ranks}")
        trainers = Trainers(
            [launcher.trainer(r, recipe, None, r, ranks, False) for r in range(ranks)], 5.0
        )
        await trainers.start(None)
        remotes = [
            launcher.generator(i, engine_spec(recipe, f"generator {i}")) for i in range(engines)
        ]
        for channel, remote in enumerate(remotes):
            await trainers.connect(channel, remote)
        sender = Push(trainers, TIMEOUT_S)
        assert await _send(sender, 0, remotes) == {}
        for rank in trainers.ranks:
            rank.actor.version = 1  # type: ignore[attr-defined]
        began = time.monotonic()
        try:
            failed = await _send(sender, 1, remotes)
            return Pushed(failed, remotes, time.monotonic() - began)
        finally:
            launcher.close()

    return asyncio.run(asyncio.wait_for(main(), 10))


async def _send(sender: Push, version: int, remotes: Sequence[FakeRemote]) -> dict[int, str]:
    return await sender.send(
        version, dict(enumerate(remotes)), lambda remote: remote.call("apply", version)
    )


@pytest.mark.parametrize(("engines", "ranks"), [(1, 1), (3, 2), (5, 2), (1, 3)])
def test_every_engine_gets_the_weights_of_the_rank_that_feeds_it(engines: int, ranks: int) -> None:
    done = push(engines=engines, ranks=ranks)
    assert done.failed == {} and done.versions == [1] * engines


def test_engines_are_sent_to_at_the_same_time() -> None:
    assert push(engines=8, send_s=0.05).seconds < 4 * 0.05


@pytest.mark.parametrize("when", ["receive", "send", "apply"])
def test_a_dead_engine_is_named_and_the_others_have_the_weights_in_time(when: str) -> None:
    done = push(Fault("generator 1", when, "die", call=2))
    assert list(done.failed) == [1] and "generator 1" in done.failed[1]
    assert done.versions[::2] == [1, 1] and done.seconds < TIMEOUT_S


@pytest.mark.parametrize("when", ["receive", "send", "apply"])
def test_an_engine_that_hangs_costs_one_timeout(when: str) -> None:
    done = push(Fault("generator 1", when, "hang", call=2))
    assert list(done.failed) == [1] and "generator 1" in done.failed[1]
    assert done.versions[::2] == [1, 1]
    assert done.seconds < 1.75 * TIMEOUT_S


def test_two_of_them_cost_no_more() -> None:
    done = push(Fault("generator 1", "apply", "hang", 2), Fault("generator 2", "apply", "hang", 2))
    assert sorted(done.failed) == [1, 2] and done.versions[0] == 1
    assert done.seconds < 1.75 * TIMEOUT_S


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("receive", "receive version 1: version 0 is still under way"),
        ("apply", "receive version 1: bucket 2 of 9: the channel was closed"),
    ],
)
def test_a_living_engine_that_refuses_ends_it(when: str, said: str) -> None:
    with pytest.raises(PushFailed) as error:
        push(Fault("generator 2", when, PushFailed(said), call=2))
    assert str(error.value) == f"{said}; generator 2 lives, so the run stops here"


def test_a_living_engine_that_did_not_acknowledge_ends_it() -> None:
    with pytest.raises(PushFailed, match=r"^send version 1: generator 0 .*generator 0 lives"):
        push(Fault("generator 0", "send", PushFailed("reset by peer"), call=2))


def test_any_other_error_of_a_living_engine_names_it() -> None:
    with pytest.raises(PushFailed, match=r"^generator 0: no such parameter; generator 0 lives"):
        push(Fault("generator 0", "apply", RuntimeError("no such parameter\nat line 3"), call=2))


def test_a_living_engine_that_takes_too_long_ends_it() -> None:
    with pytest.raises(PushFailed, match=r"generator 1 did not answer .*generator 1 lives"):
        push(Fault("generator 1", "apply", "stall", call=2))


def test_a_trainer_that_dies_ends_it_at_once() -> None:
    with pytest.raises(WorldFailed, match=r"^trainer rank 1 died: .* resume it$"):
        push(Fault("trainer rank 1", "push", "die", call=2))
