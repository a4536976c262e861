"""Checks that generator and trainer compute alike: their LM heads on the same states, their log-probs after a push."""

import asyncio
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from backend.remote import Gone, Remote
from scalerl.errors import EngineMismatch, GeneratorLost
from scalerl.metrics import Mean
from scalerl.rollout import Completion, Group
from scalerl.site import Cluster
from scalerl.task import Prompt

ROWS, SEED = 8, 2510_13786
CLOSE = {
    "float32": 2e-3,
    "bfloat16": 2**-6,
}  # of the largest logit: above rounding of that precision


class Probes:
    """After a push each generator samples a few completions; the trainers, still at that version, score them.

    What differs then is the engines' arithmetic, or weights that did not arrive.
    """

    def __init__(self, site: Cluster, prompts: Sequence[Prompt]) -> None:
        self.site, self.prompts = site, prompts
        self._running: dict[int, asyncio.Future[list[Completion]]] = {}
        self._names: dict[int, str] = {}
        self._version = 0

    def start(self, slot: int, remote: Remote, version: int) -> None:
        """Sample beside the run; takes the place of an earlier probe of this generator."""
        self._version, self._names[slot] = version, remote.name
        if slot in self._running:
            self._running[slot].cancel()
        task = asyncio.ensure_future(
            remote.call(
                "probe", self._prompt.token_ids, self.site.probe_completions, self.site.probe_tokens
            )
        )
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # seen, if never collected
        self._running[slot] = task

    def close(self) -> None:
        """Give up what is still running."""
        for task in self._running.values():
            task.cancel()

    @property
    def _prompt(self) -> Prompt:
        return self.prompts[self._version % len(self.prompts)]

    async def collect(self) -> tuple[dict[int, Group], list[str]]:
        """What the generators sampled with the present version alone, by slot; sentences about those that are late.

        Generators that died are left out: whoever waits for their groups says so.
        """
        running, self._running = self._running, {}
        if running:
            _, late = await asyncio.wait(running.values(), timeout=self.site.push_timeout_s)
            for task in late:
                task.cancel()
        found: dict[int, Group] = {}
        missing: list[str] = []
        for slot, task in running.items():
            if not task.done() or task.cancelled():
                missing.append(
                    f"{self._names[slot]} was not probed at version {self._version}: it is late"
                )
                continue
            error = task.exception()
            if error is not None and not isinstance(error, Gone | GeneratorLost):
                raise error
            completions = [] if error else task.result()
            whole = [c for c in completions if set(c.version) == {self._version}]
            if whole:
                found[slot] = Group(slot, self._prompt.id, list(self._prompt.token_ids), whole)
        return found, missing

    def judge(self, found: dict[int, Mean]) -> list[str]:
        """Sentences about generators whose KL is above the alarm.

        Raises:
            EngineMismatch: it is above what ends the run.
        """
        said: list[str] = []
        for slot, kl in found.items():
            value = kl.value
            if value is None or value <= self.site.mismatch_alarm:
                continue
            what = (
                f"{self._names[slot]} and the trainer disagree on tokens of version {self._version}: "
                f"KL = {value:.2g} nats a token over {kl.weight}"
            )
            if not value <= self.site.mismatch_stop:
                raise EngineMismatch(
                    f"{what}, above site.mismatch_stop = {self.site.mismatch_stop:g}: weights that did not arrive, "
                    "or other arithmetic"
                )
            said.append(f"{what}, above site.mismatch_alarm = {self.site.mismatch_alarm:g}")
        return said


def hidden_states(seed: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Random states [rows, width], the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator).to(dtype)


def check_head(
    generator_NV: list[list[float]], trainer_NV: list[list[float]], name: str, head_dtype: str
) -> None:
    """Compare what both sides' LM heads make of the same states.

    Raises:
        EngineMismatch: another precision or other weights on the generator's side.
    """
    theirs_NV = np.array(generator_NV, dtype=np.float32)
    ours_NV = np.array(trainer_NV, dtype=np.float32)
    if theirs_NV.shape != ours_NV.shape:
        raise EngineMismatch(
            f"the LM head of {name} gives logits of shape {theirs_NV.shape}, the trainer's {ours_NV.shape}"
        )
    found = "bfloat16" if is_bfloat16(theirs_NV) else "float32"
    if found != head_dtype:
        raise EngineMismatch(
            f"the LM head of {name} works in {found}, the recipe asks for {head_dtype} on both sides "
            "(set generator_head_dtype to study the difference)"
        )
    apart = float(np.abs(theirs_NV - ours_NV).max() / np.abs(ours_NV).max())
    if not apart <= CLOSE[head_dtype]:
        raise EngineMismatch(
            f"the LM head of {name} differs from the trainer's by {apart:.2g} of the largest logit "
            f"({CLOSE[head_dtype]:.2g} may be rounding): their weights are not the same"
        )


def is_bfloat16(value: np.ndarray) -> bool:
    """Whether every float32 is one that bfloat16 can hold: its lower sixteen bits are zero."""
    return not bool((value.view(np.uint32) & 0xFFFF).any())
