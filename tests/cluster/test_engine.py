"""What an engine samples, and the log-probs that it reports: those of the trainer, under the recipe's LM head."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from one_process import FOLDER, Fed, trainer_logp
from tiny_policies import random_policy, worst

from backend.probe import ROWS, SEED, check_head, hidden_states, is_bfloat16
from sandbox.model import Policy, load_policy
from sandbox.tasks.digit_sum import DigitSum
from sandbox.vocabulary import EOS
from scalerl.errors import EngineMismatch
from scalerl.logprobs import logits
from scalerl.rollout import Completion

PROMPTS = DigitSum().prompts("validation")[:48]


def completions(fed: Fed, policy: Policy) -> list[tuple[Sequence[int], Completion]]:
    """Prompt and completion, interrupted and not, after a push of the policy."""

    async def all_of_them() -> list[list[Completion]]:
        await fed.push(policy)
        return await asyncio.gather(
            *(fed.engine.completions(p.token_ids, [8, 36, None]) for p in PROMPTS)
        )

    found = asyncio.run(all_of_them())
    return [(p.token_ids, c) for p, group in zip(PROMPTS, found, strict=True) for c in group]


# ---- log-probs ----


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_the_trainers(float32: Fed, temperature: float) -> None:
    policy = load_policy(FOLDER)
    with float32.settings(f"site.temperature={temperature}"):
        found = completions(float32, policy)
    assert {c.interrupted for _, c in found} == {True, False}
    for prompt, c in found:
        expected = trainer_logp(policy, prompt, c.token_ids, temperature)
        assert worst(c.logp, expected, c.sampled) <= 1e-4


def test_log_probs_in_bfloat16_differ_by_the_rounding_of_the_body(bfloat16: Fed) -> None:
    """Measured: 0.0016 nats on average and 0.1 at most, as the sandbox's own body in bfloat16; KL = 2e-5."""
    theirs_N, body_N = rounding(bfloat16)
    assert theirs_N.mean() <= 1.2 * body_N.mean()
    assert theirs_N.max() <= 0.3


def test_a_bfloat16_head_adds_to_it(bfloat16_head: Fed) -> None:
    """Measured: 0.0025 nats on average."""
    theirs_N, body_N = rounding(bfloat16_head)
    assert theirs_N.mean() >= 1.25 * body_N.mean()


def rounding(fed: Fed) -> tuple[np.ndarray, np.ndarray]:
    """How far sampled log-probs [N] are from float32's: the engine's, and those of the sandbox's body in bfloat16."""
    policy = load_policy(FOLDER)
    rounded = load_policy(FOLDER).bfloat16()
    policy.load_state_dict(rounded.state_dict())
    pairs: list[tuple[float, float]] = []
    for prompt, c in completions(fed, policy):
        exact = trainer_logp(policy, prompt, c.token_ids)
        body = trainer_logp(rounded, prompt, c.token_ids)
        for theirs, other, logp, sampled in zip(c.logp, body, exact, c.sampled, strict=True):
            if sampled:
                pairs.append((abs(theirs - logp), abs(other - logp)))
    return tuple(np.array(pairs).T)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_drawn_from_the_whole_distribution(float32: Fed, temperature: float) -> None:
    assert_drawn_from(float32, random_policy(1), temperature)


def test_what_a_model_brings_for_sampling_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(FOLDER, folder)
    brought = {
        "do_sample": True,
        "temperature": 0.1,
        "top_k": 1,
        "top_p": 0.1,
        "repetition_penalty": 3.0,
        "eos_token_id": [2, *range(9, 39)],
    }
    (folder / "generation_config.json").write_text(json.dumps(brought))
    fed = Fed("site.dtype=float32", folder=folder)
    assert_drawn_from(fed, random_policy(1), 1.0)
    uncut = [c for _, c in completions(fed, load_policy(FOLDER))][2::3]
    assert all(c.token_ids[-1] == EOS or c.length_tokens == 36 + 4 for c in uncut)


def assert_drawn_from(fed: Fed, policy: Policy, temperature: float) -> None:
    """Each token as often as the policy says, the rare ones too."""
    prompt, draws = list(PROMPTS[2].token_ids), 2000

    async def sample() -> list[list[int]]:
        await fed.push(policy)
        with fed.settings(f"site.temperature={temperature}"):
            return [s.token_ids for s in await fed.engine.samples(prompt, draws, 1)]

    token_N = [tokens[0] for tokens in asyncio.run(sample())]
    share_V = np.bincount(token_N, minlength=49) / draws
    vocabulary = range(49)
    expected_V = np.exp([trainer_logp(policy, prompt, [t], temperature)[0] for t in vocabulary])
    error_V = np.sqrt(expected_V * (1 - expected_V) / draws)
    assert (np.abs(share_V - expected_V) <= 4 * error_V + 2 / draws).all()


# ---- the LM head ----


def trainer_head(policy: Policy, dtype: torch.dtype) -> list[list[float]]:
    """What a trainer in `dtype` with a float32 head makes of the probe's states."""
    hidden_ND = hidden_states(SEED, ROWS, policy.config.hidden_size, dtype)
    return logits(hidden_ND, policy.head_VD.detach().to(dtype), torch.float32).tolist()


def test_a_float32_head_on_a_bfloat16_body_is_accepted(bfloat16: Fed) -> None:
    policy = load_policy(FOLDER)
    asyncio.run(bfloat16.push(policy))
    found = bfloat16.call("weights_head", SEED, ROWS)
    assert not is_bfloat16(np.array(found, dtype=np.float32))
    check_head(found, trainer_head(policy, torch.bfloat16), "generator 0", "float32")


def test_a_float32_head_on_a_float32_body_is_accepted(float32: Fed) -> None:
    policy = load_policy(FOLDER)
    asyncio.run(float32.push(policy))
    found = float32.call("weights_head", SEED, ROWS)
    check_head(found, trainer_head(policy, torch.float32), "generator 0", "float32")


def test_a_bfloat16_head_is_refused(bfloat16_head: Fed) -> None:
    policy = load_policy(FOLDER)
    asyncio.run(bfloat16_head.push(policy))
    found = bfloat16_head.call("weights_head", SEED, ROWS)
    with pytest.raises(EngineMismatch) as refused:
        check_head(found, trainer_head(policy, torch.bfloat16), "generator 0", "float32")
    assert str(refused.value) == (
        "the LM head of generator 0 works in bfloat16, the recipe asks for float32 on both sides "
        "(set generator_head_dtype to study the difference)"
    )


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_other_weights_are_refused(name: str, request: pytest.FixtureRequest) -> None:
    fed: Fed = request.getfixturevalue(name)
    asyncio.run(fed.push(random_policy(1)))
    found = fed.call("weights_head", SEED, ROWS)
    ours = trainer_head(load_policy(FOLDER), getattr(torch, name))
    with pytest.raises(EngineMismatch, match=r"their weights are not the same$"):
        check_head(found, ours, "generator 0", "float32")
