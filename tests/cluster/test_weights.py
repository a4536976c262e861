"""Weights that arrive while an engine generates: when they are in force, what they leave of the caches, what fails."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from one_process import LONG_S, Fed, trainer_logp
from tiny_policies import random_policy, replayed_logp, worst

from backend.completing import Sampled
from sandbox.model import Policy
from sandbox.tasks.digit_sum import DigitSum
from scalerl.errors import PushFailed

PROMPT = list(DigitSum().prompts("validation")[0].token_ids)
LONG_PROMPT = [9 + place * 7 % 40 for place in range(70)]  # two blocks of the KV cache, and some
OLD, NEW = random_policy(1), random_policy(2)
SAME = 1e-4  # nats: float32 on both sides


async def sample(fed: Fed, prompt: list[int] = PROMPT) -> list[Sampled]:
    return await fed.engine.samples(prompt, 16, 30)


def is_of(policy: Policy, samples: list[Sampled], prompt: list[int] = PROMPT) -> bool:
    """Whether these are the policy's log-probs, the whole of each by one forward pass."""
    return all(apart(s.logp, trainer_logp(policy, prompt, s.token_ids)) <= SAME for s in samples)


def apart(found: list[float], expected: list[float]) -> float:
    return worst(found, expected, [True] * len(found))


# ---- when they are in force ----


def test_weights_are_in_force_once_they_are_applied(float32: Fed) -> None:
    async def samples() -> list[list[Sampled]]:
        before = await float32.push(OLD)
        float32.receive(NEW)
        received = await sample(float32)
        await float32.engine.apply(before + 1)
        applied = await sample(float32)
        assert {v for s in received for v in s.version} == {before}
        assert {v for s in applied for v in s.version} == {before + 1}
        return [received, applied]

    received, applied = asyncio.run(samples())
    assert is_of(OLD, received) and not is_of(NEW, received)
    assert is_of(NEW, applied)


def test_generation_goes_on_while_weights_are_received(float32: Fed) -> None:
    arrived = threading.Event()

    async def samples() -> tuple[int, list[Sampled]]:
        version = await float32.push(OLD)
        sending = float32.begin(NEW, before_last=lambda: arrived.wait(LONG_S))
        began = float32.llm.steps
        found = await sample(float32)
        assert not sending.done() and float32.llm.steps >= began + 30
        arrived.set()
        await asyncio.wrap_future(sending)
        await float32.engine.apply(version + 1)
        return version, found

    version, found = asyncio.run(samples())
    assert is_of(OLD, found) and {v for s in found for v in s.version} == {version}


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_a_push_in_mid_generation(float32: Fed, kv: str) -> None:
    """Later tokens are of the new weights, with the keys that the old ones left or with keys computed again."""

    async def samples() -> list[Sampled]:
        await float32.push(OLD)
        with float32.settings(f"kv_on_push={kv}"):
            under_way = asyncio.create_task(sample(float32))
            await float32.llm.until(steps=9)
            await float32.push(NEW)
            return await under_way

    found, new = asyncio.run(samples()), float32.version
    spanning = [s for s in found if s.version[-1] == new]
    assert len(spanning) >= 8
    for s in spanning:
        old = s.version.count(new - 1)
        assert old and s.version == [new - 1] * old + [new] * (len(s.version) - old)
        of_old, of_new = (trainer_logp(policy, PROMPT, s.token_ids) for policy in (OLD, NEW))
        stale = replayed_logp({new - 1: OLD, new: NEW}, PROMPT, s.token_ids, s.version)
        assert apart(s.logp[:old], of_old[:old]) <= SAME
        assert apart(s.logp[old:], (stale if kv == "keep" else of_new)[old:]) <= SAME
        assert apart(stale[old:], of_new[old:]) > 0.01


# ---- the prefix cache ----


def test_a_new_request_never_begins_on_keys_of_older_weights(float32: Fed) -> None:
    async def samples() -> list[Sampled]:
        await float32.push(OLD)
        await sample(float32, LONG_PROMPT)
        await float32.push(NEW)
        float32.llm.cached.clear()
        first = await float32.engine.samples(LONG_PROMPT, 1, 30)
        assert set(float32.llm.cached.values()) == {0}
        later = await float32.engine.samples(LONG_PROMPT, 1, 30)
        assert set(float32.llm.cached.values()) == {0, 64}  # of the same weights it does
        return [*first, *later]

    assert is_of(NEW, asyncio.run(samples()), LONG_PROMPT)


def test_without_the_salt_it_would(float32: Fed, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = float32.llm.generate

    def unsalted(request: dict[str, Any], *arguments: Any, priority: int) -> AsyncIterator[Any]:
        prompt = {"prompt_token_ids": request["prompt_token_ids"]}
        return generate(prompt, *arguments, priority=priority)

    monkeypatch.setattr(float32.llm, "generate", unsalted)

    async def samples() -> list[Sampled]:
        await float32.push(OLD)
        await sample(float32, LONG_PROMPT)
        await float32.push(NEW)
        return await sample(float32, LONG_PROMPT)

    assert not is_of(NEW, asyncio.run(samples()), LONG_PROMPT)


# ---- what fails ----


def test_weights_that_did_not_arrive_are_refused_and_the_engine_goes_on(float32: Fed) -> None:
    async def samples() -> tuple[int, list[Sampled]]:
        version = await float32.push(OLD)
        under_way = asyncio.create_task(sample(float32))
        await float32.llm.until(steps=5)
        with pytest.raises(PushFailed, match=f"^receive version {version + 1}: it was not begun"):
            await float32.engine.apply(version + 1)
        return version, [*await under_way, *await sample(float32)]

    version, found = asyncio.run(samples())
    assert is_of(OLD, found) and {v for s in found for v in s.version} == {version}


def test_a_push_that_breaks_leaves_the_old_weights_and_the_next_one_succeeds(float32: Fed) -> None:
    async def samples() -> tuple[list[Sampled], list[Sampled]]:
        version = await float32.push(OLD)
        sender = float32.sender
        assert sender is not None
        sending = float32.begin(NEW, before_last=lambda: sender.disconnect(0))
        assert "bucket" in str((await asyncio.wrap_future(sending))[0])
        with pytest.raises(PushFailed, match=r"^receive bucket \d+ of \d+: the trainer: "):
            await float32.engine.apply(version + 1)
        broken = await sample(float32)
        float32.connect()
        await float32.push(NEW)
        return broken, await sample(float32)

    broken, after = asyncio.run(samples())
    assert is_of(OLD, broken) and is_of(NEW, after)


# ---- pinned weights ----


def test_pinned_weights_wait_until_they_are_asked_for(float32: Fed, tmp_path: Path) -> None:
    """Two are pinned, saved and loaded in another order; the engine goes on with those it has."""

    async def samples() -> list[list[Sampled]]:
        engine, found = float32.engine, []
        await float32.push(OLD)
        first = float32.receive(NEW)
        await engine.call("weights_pin", first, 7)
        second = float32.receive(random_policy(3))
        await engine.call("weights_pin", second, 8)
        found.append(await sample(float32))
        pinned = await engine.call("weights_save_pinned", str(tmp_path))
        assert pinned == [(7, first), (8, second)]
        for handle in (7, 8):
            await engine.call("weights_release", handle)
        with pytest.raises(KeyError):
            await engine.load_pinned(7, first)
        await engine.call("weights_load_pinned", str(tmp_path), pinned)
        for handle, version in reversed(pinned):
            await engine.load_pinned(handle, version)
            found.append(await sample(float32))
            assert {v for s in found[-1] for v in s.version} == {version}
            await engine.call("weights_release", handle)
        return found

    loaded, second, first = asyncio.run(samples())
    assert is_of(OLD, loaded) and is_of(random_policy(3), second) and is_of(NEW, first)


def test_a_pinned_file_that_is_torn_is_refused(float32: Fed, tmp_path: Path) -> None:
    version = float32.receive(NEW)
    float32.call("weights_pin", version, 9)
    pinned = float32.call("weights_save_pinned", str(tmp_path))
    float32.call("weights_release", 9)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-16])
    with pytest.raises(PushFailed, match=r"pinned-9.bin has \d+ bytes, the model \d+$"):
        float32.call("weights_load_pinned", str(tmp_path), pinned)
