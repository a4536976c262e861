"""Interrupted thinking on a real engine: where it is cut, what is marked, and that the sandbox samples the same."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from one_process import FOLDER, Fed, trainer_logp
from tiny_policies import worst

from sandbox.decoder import Decoder, sample_all
from sandbox.model import load_policy
from sandbox.rows import Sampling
from sandbox.tasks.digit_sum import DigitSum
from scalerl.length import draw_limit, thinking_limits
from scalerl.rollout import Completion

TASK, SEED = DigitSum(), 7
PROMPTS = TASK.prompts("validation")[:64]
EACH = 16  # completions of a prompt


def by_engine(fed: Fed, limits: Sequence[Sequence[int | None]]) -> list[list[Completion]]:
    """Completions of the start policy to each prompt, one for each of its limits."""

    async def all_of_them() -> list[list[Completion]]:
        await fed.push(load_policy(FOLDER))
        pairs = zip(PROMPTS, limits, strict=True)
        return await asyncio.gather(*(fed.engine.completions(p.token_ids, at) for p, at in pairs))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("limit", [1, 4, 12])
def test_thinking_is_cut_exactly_at_the_limit_and_nowhere_else(float32: Fed, limit: int) -> None:
    site, phrase = float32.engine.spec.site, list(TASK.interruption)
    found = [c for group in by_engine(float32, [[limit] * 4] * len(PROMPTS)) for c in group]
    for c in found:
        thought = c.token_ids[:limit]
        ended = {TASK.think_close_id, TASK.eos_id} & set(thought)
        assert c.interrupted == (not ended)
        forced = range(limit, limit + len(phrase)) if c.interrupted else ()
        assert [place for place, sampled in enumerate(c.sampled) if not sampled] == list(forced)
        assert [c.token_ids[place] for place in forced] == (phrase if c.interrupted else [])
        assert all(c.logp[place] == 0.0 for place in forced)
        if TASK.think_close_id in c.token_ids:
            answer = c.token_ids[c.token_ids.index(TASK.think_close_id) + 1 :]
            assert len(answer) <= site.answer_tokens
            assert c.truncated == (TASK.eos_id not in answer)
            assert not c.truncated or len(answer) == site.answer_tokens
        else:
            assert c.token_ids[-1] == TASK.eos_id and c.length_tokens <= limit and not c.truncated
    assert any(c.interrupted for c in found)
    assert limit == 1 or any(not c.interrupted for c in found)


def test_the_second_request_continues_the_first(float32: Fed) -> None:
    policy, found = load_policy(FOLDER), by_engine(float32, [[6, 12]] * len(PROMPTS))
    for prompt, group in zip(PROMPTS, found, strict=True):
        for c in group:
            expected = trainer_logp(policy, prompt.token_ids, c.token_ids)
            assert worst(c.logp, expected, c.sampled) <= 1e-4


def test_without_a_limit_nothing_is_cut_and_the_budgets_are_one(float32: Fed) -> None:
    with float32.settings("site.thinking_tokens=8", "site.answer_tokens=2"):
        found = [c for group in by_engine(float32, [[None] * 4] * len(PROMPTS)) for c in group]
    assert not any(c.interrupted for c in found) and all(all(c.sampled) for c in found)
    assert {c.length_tokens for c in found if c.truncated} == {10}
    assert any(not c.truncated for c in found) and all(c.length_tokens <= 10 for c in found)


@pytest.mark.parametrize(("low", "high"), [(0.8333, 1.0), (0.2, 0.5)])
def test_the_sandbox_samples_alike(float32: Fed, low: float, high: float) -> None:
    """1024 completions of each: lengths, correctness and flags agree within 4 standard errors."""
    changes = f"length.low={low}", f"length.high={high}"
    with float32.settings(*changes):
        recipe, site = float32.engine.spec.recipe, float32.engine.spec.site
    limits = thinking_limits(recipe.length, site.thinking_tokens)
    assert limits is not None
    drawn = [[draw_limit(limits, SEED, p.id, row) for row in range(EACH)] for p in PROMPTS]
    ours = by_engine(float32, drawn)
    budgets = site.thinking_tokens, site.answer_tokens
    sampling = Sampling(recipe.length, *budgets, site.temperature, torch.float32)
    decoder = Decoder(load_policy(FOLDER), TASK, sampling, len(PROMPTS) * EACH, widest_prompt=20)
    theirs = sample_all(decoder, PROMPTS, EACH, SEED)
    ours_FN, theirs_FN = features(ours), features(theirs)
    n = ours_FN.shape[1]
    error_F = np.sqrt((ours_FN.var(1) + theirs_FN.var(1)) / n)
    apart_F = np.abs(ours_FN.mean(1) - theirs_FN.mean(1))
    assert (apart_F <= 4 * error_F + 1e-9).all()


def features(groups: list[list[Completion]]) -> np.ndarray:
    """Length, its distribution function at every fourth token, correctness and flags, [features, completions]."""
    rows = [
        [
            c.length_tokens,
            *(c.length_tokens <= most for most in range(4, 44, 4)),
            TASK.verify(prompt, c.token_ids),
            c.interrupted,
            c.truncated,
        ]
        for prompt, group in zip(PROMPTS, groups, strict=True)
        for c in group
    ]
    return np.array(rows, dtype=float).T
