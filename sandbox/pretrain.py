"""Supervised pre-training of the start policy, which `scalerl pretrain` repeats.

    1. faultless full-effort traces, from short problems to long ones
    2. all efforts, mostly too small ones
    3. slips: wrong running digits and thinking that stops too early

The last two are what reinforcement has to unlearn. Slips come last: mixed in from the start they keep the tiny
model from learning the arithmetic at all. Number embeddings start as Fourier features of the last digit.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sandbox import vocabulary as words
from sandbox.model import ModelConfig, Policy, save_policy
from sandbox.tasks.digit_sum import LEVELS, think

SHORTEST, LONGEST = LEVELS[0][0], LEVELS[-1][1]


@dataclass(frozen=True)
class Pretraining:
    """What the start policy is shown. Shares are of traces; rates are per number written."""

    steps: int = 4500
    batch: int = 128
    learning_rate: float = 3e-3
    efforts: tuple[float, float, float] = (0.3, 0.4, 0.3)  # high, medium, low
    slip_rate: float = 0.04  # a wrong running digit, from which the trace goes on
    stop_rate: float = 0.02  # thinking closes before the next number


def pretrain(
    spec: Pretraining, seed: int, report: Callable[[int, float], None] = lambda step, loss: None
) -> Policy:
    """Train a start policy; the same seed gives the same weights. `report(step, loss)` is called as it goes."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    policy = Policy(ModelConfig(vocab_size=len(words.WORDS)))
    initialise(policy)
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=spec.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    for step in range(spec.steps):
        done = step / spec.steps
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate * min(1.0, step / 100, max(0.05, (1 - done) / 0.2))
        token_BT, target_BT = batch_of_traces(spec, rng, done)
        mask_BT = target_BT[:, 1:]
        z_NV = policy.hidden(token_BT[:, :-1])[mask_BT] @ policy.head_VD.T
        loss = F.cross_entropy(z_NV, token_BT[:, 1:][mask_BT])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == spec.steps - 1:
            report(step, loss.item())
    return policy


def batch_of_traces(
    spec: Pretraining, rng: np.random.Generator, done: float
) -> tuple[Tensor, Tensor]:
    """Tokens and a mask of those to learn, at `done` (0..1) of the training."""
    longest = min(LONGEST, SHORTEST + int(done / 0.4 * (LONGEST - SHORTEST + 1)))
    efforts = (1.0, 0.0, 0.0) if done < 0.4 else spec.efforts
    noise = min(1.0, max(0.0, (done - 0.75) / 0.125))
    rows = []
    for _ in range(spec.batch):
        numbers = rng.permutation(words.NUMBERS)[: rng.integers(SHORTEST, longest + 1)].tolist()
        prompt = [words.BOS, *(words.FIRST_NUMBER + number for number in numbers), words.THINK]
        stride = int(rng.choice(3, p=efforts)) + 1
        rows.append(
            (prompt, trace(rng, numbers, stride, noise * spec.slip_rate, noise * spec.stop_rate))
        )
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    token_BT, target_BT = (
        torch.zeros(spec.batch, width, dtype=torch.long),
        torch.zeros(spec.batch, width, dtype=torch.bool),
    )
    for i, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        token_BT[i, :end] = torch.tensor(prompt + answer)
        target_BT[i, len(prompt) : end] = True
    return token_BT, target_BT


def trace(
    rng: np.random.Generator, numbers: list[int], stride: int, slip_rate: float, stop_rate: float
) -> list[int]:
    """Thinking of one effort with slips and early stops, then whatever answer it leads to."""
    clean = think(numbers, stride)
    tokens, digit, offset = clean[:1], int(rng.integers(10)), 0
    for place in range(1, len(clean), 2):
        if rng.random() < stop_rate:
            break
        if rng.random() < slip_rate:
            offset = int(rng.integers(10))
        digit = (clean[place + 1] - words.FIRST_DIGIT + offset) % 10
        tokens += [clean[place], words.FIRST_DIGIT + digit]
    return [*tokens, words.CLOSE, words.FIRST_DIGIT + digit, words.EOS]


@torch.no_grad()
def initialise(policy: Policy) -> None:
    """Fan-in scaling, smaller for what is added to the residual stream, and Fourier features for numbers."""
    for name, weight in policy.named_parameters():
        if weight.dim() == 2:
            gain = 0.5 if "o_proj" in name or "down_proj" in name else 1.0
            nn.init.normal_(weight, 0.0, gain / math.sqrt(weight.shape[1]))
    nn.init.normal_(policy.lm_head.weight, 0.0, 0.1)
    embedding_VD = policy.model.embed_tokens.weight
    nn.init.normal_(embedding_VD, 0.0, 0.3)
    for first, count, column in (
        (words.FIRST_NUMBER, words.NUMBERS, 0),
        (words.FIRST_DIGIT, 10, 10),
    ):
        for value in range(count):
            for k in range(1, 6):
                angle = 2 * math.pi * k * value / 10
                embedding_VD[first + value, column + 2 * k - 2] += math.cos(angle)
                embedding_VD[first + value, column + 2 * k - 1] += math.sin(angle)


def save_start_policy(policy: Policy, folder: Path) -> None:
    """A complete Hugging Face folder: config, weights and a tokenizer that splits on spaces."""
    save_policy(policy, folder)
    special = [
        {
            "id": i,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, word in enumerate(words.WORDS[: words.EOS + 1])
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(words.WORDS)},
            "unk_token": "<pad>",
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
