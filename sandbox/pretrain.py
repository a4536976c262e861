"""Supervised pre-training of start policies: what each is shown is in `sandbox.lessons`.

Each shipped policy was made by one command, seed 0, and `--out DIR`:

    digit_sum        scalerl pretrain
    digit_sum_w16    scalerl pretrain --width 16
    digit_sum_w64    scalerl pretrain --width 64 --steps 3000
    three_tasks      scalerl pretrain --task digit_sum+pair_sum+polynomial --width 64 --positions 160 --steps 3000

Number embeddings start as Fourier features of the last digit, and where whole numbers are added too, of the number.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sandbox import vocabulary as words
from sandbox.lessons import Habits, Lesson, lesson_of
from sandbox.model import ModelConfig, Policy, save_policy
from sandbox.tasks.digit_sum import DigitSum
from sandbox.tasks.mixture import Mixture
from scalerl.errors import InputError
from scalerl.task import Task


@dataclass(frozen=True)
class Pretraining:
    """What a start policy learns (the parts of a mixture in turn, row by row), its sizes, and how long it learns."""

    task: Task = field(default_factory=DigitSum)
    steps: int = 4500
    batch: int = 128
    learning_rate: float = 3e-3
    width: int = 32
    layers: int = 2
    positions: int = 128
    habits: Habits = field(default_factory=Habits)

    @property
    def config(self) -> ModelConfig:
        """Feed-forward layers are twice as wide; attention is the same at every width."""
        return ModelConfig(
            vocab_size=self.task.vocab_size,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.layers,
            max_position_embeddings=self.positions,
        )


def pretrain(
    spec: Pretraining, seed: int, report: Callable[[int, float], None] = lambda step, loss: None
) -> Policy:
    """Train a start policy; the same seed gives the same weights. `report(step, loss)` is called as it goes."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    policy = Policy(spec.config)
    initialise(policy)
    parts = spec.task.tasks if isinstance(spec.task, Mixture) else (spec.task,)
    lessons = [lesson_of(task, spec.habits) for task in parts]
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=spec.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    for step in range(spec.steps):
        done = step / spec.steps
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate * min(1.0, step / 100, max(0.05, (1 - done) / 0.2))
        token_BT, target_BT = batch_of_traces(lessons, spec.batch, rng, done)
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


def check_fits(spec: Pretraining) -> None:
    """Raise InputError if a training prompt with its solution is longer than the policy has positions."""
    longest = max(len(p.token_ids) + len(spec.task.solve(p)) for p in spec.task.prompts("train"))
    if longest > spec.positions:
        raise InputError(
            f"a problem of {spec.task.name!r} with its solution takes {longest} positions, the policy has"
            f" {spec.positions}: raise --positions"
        )


def batch_of_traces(
    lessons: Sequence[Lesson], batch: int, rng: np.random.Generator, done: float
) -> tuple[Tensor, Tensor]:
    """Tokens and a mask of those to learn, at `done` (0..1) of the training."""
    rows = [lessons[i % len(lessons)](rng, done) for i in range(batch)]
    width = max(len(prompt) + len(trace) for prompt, trace in rows)
    token_BT = torch.zeros(batch, width, dtype=torch.long)
    target_BT = torch.zeros(batch, width, dtype=torch.bool)
    for i, (prompt, trace) in enumerate(rows):
        end = len(prompt) + len(trace)
        token_BT[i, :end] = torch.tensor(prompt + trace)
        target_BT[i, len(prompt) : end] = True
    return token_BT, target_BT


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
    config = policy.config
    if config.vocab_size >= words.FIRST_DIGIT + 10:
        add_waves(embedding_VD, words.FIRST_NUMBER, words.NUMBERS, 0, 10)
        add_waves(embedding_VD, words.FIRST_DIGIT, 10, min(10, config.hidden_size - 10), 10)
    if config.vocab_size == len(words.WORDS):
        add_waves(embedding_VD, words.FIRST_TARGET, 10, min(10, config.hidden_size - 10), 10)
        if config.hidden_size >= 40:
            add_waves(embedding_VD, words.FIRST_NUMBER, words.NUMBERS, 20, 2 * words.NUMBERS)


def add_waves(embedding_VD: Tensor, first: int, count: int, column: int, period: int) -> None:
    """Add five waves of value / period to the embeddings of `count` values, in ten columns."""
    for value in range(count):
        for k in range(1, 6):
            angle = 2 * math.pi * k * value / period
            embedding_VD[first + value, column + 2 * k - 2] += math.cos(angle)
            embedding_VD[first + value, column + 2 * k - 1] += math.sin(angle)


def save_start_policy(
    policy: Policy, folder: Path, vocabulary: Sequence[str] = words.WORDS
) -> None:
    """A complete Hugging Face folder: config, weights, and a tokenizer that splits on spaces."""
    save_policy(policy, folder)
    known = vocabulary[: policy.config.vocab_size]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": known[words.PAD],
        "bos_token": known[words.BOS],
        "eos_token": known[words.EOS],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(known), indent=1) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def tokenizer(known: Sequence[str]) -> dict[str, Any]:
    """Of Hugging Face: a word between spaces is a token."""
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
        for i, word in enumerate(known[: words.EOS + 1])
    ]
    return {
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
            "vocab": {word: i for i, word in enumerate(known)},
            "unk_token": known[words.PAD],
        },
    }
