"""`scalerl pretrain`: a supervised start policy, with progress."""

import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from scalerl.errors import InputError, TaskError, first_line
from scalerl.settings import read_layers
from scalerl.task import Task
from scenarios.scenario import DEFAULT_SITE, SITES

MIXTURE = "mixture"  # the site of our own mixture
SOLVED = 200  # training prompts whose solutions say what budgets a task needs


def pretrain_with_progress(
    out: Path,
    seed: int,
    steps: int | None,
    *,
    task: str,
    width: int,
    layers: int,
    positions: int,
    allow_code: bool,
) -> None:
    """Train, save as a Hugging Face folder, and say how to run it. Without an end to the training no folder is left.

    Raises:
        InputError: `out` holds something, or cannot be made; no such task; one whose problems do not fit the
            positions. TaskError: a token that the task cannot tell. All before any training.
    """
    if not is_free(out):
        raise InputError(f"{out} is there already, and is not overwritten: choose another --out")
    import torch

    from sandbox.pretrain import Pretraining, check_fits, pretrain, save_start_policy
    from sandbox.tasks.registry import make_task

    spec = Pretraining(
        make_task(task, allow_code=allow_code), width=width, layers=layers, positions=positions
    )
    if steps is not None:
        spec = replace(spec, steps=steps)
    check_fits(spec)
    vocabulary = words_of(spec.task)
    made = make_folder(out)
    torch.set_num_threads(1)
    console = Console(highlight=False)
    try:
        with Progress(console=console) as progress:
            bar = progress.add_task("pre-training", total=spec.steps)
            policy = pretrain(
                spec, seed, lambda step, loss: progress.update(bar, completed=step + 1)
            )
    except BaseException:
        if made:
            with suppress(OSError):
                out.rmdir()
        raise
    save_start_policy(policy, out, vocabulary)
    how = how_to_run(spec.task, task, out, allow_code)
    console.print(f"start policy: {out}   try it:  {how}", soft_wrap=True)


def is_free(out: Path) -> bool:
    """Whether there is nothing at a place, or an empty folder."""
    try:
        return not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError:  # a folder that cannot be looked into
        return False


def make_folder(out: Path) -> bool:
    """Make a folder unless an empty one is there; whether it was made.

    Raises:
        InputError: it cannot be made, or the one that is there cannot be written to.
    """
    if out.exists():
        if not os.access(out, os.W_OK | os.X_OK):
            raise InputError(f"cannot write to the folder {out}: choose another --out")
        return False
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None
    return True


def words_of(task: Task) -> list[str]:
    """The word of each token id below `vocab_size`. Raises TaskError: the task cannot tell one."""
    words: list[str] = []
    for id in range(task.vocab_size):
        try:
            word = task.to_text([id])
        except Exception as error:
            raise TaskError(
                f"task {task.name!r}: to_text raises {type(error).__name__} ({first_line(error)}) for the token {id}:"
                f" it must tell every token below vocab_size = {task.vocab_size}"
            ) from error
        if not isinstance(word, str):
            raise TaskError(
                f"task {task.name!r}: to_text returns {word!r}, no text, for the token {id}"
            )
        words.append(word)
    return words


def how_to_run(task: Task, name: str, out: Path, allow_code: bool) -> str:
    """The command that trains the policy in `out` on the task of that name, with budgets that its solutions fit."""
    sites = {site: read_layers(SITES / f"{site}.toml", SITES, "site").values
             for site in (DEFAULT_SITE, MIXTURE)}  # fmt: skip
    site = MIXTURE if name == sites[MIXTURE]["task"] else DEFAULT_SITE
    words = ["scalerl", "run", "tiny"] + (["--on", site] if site != DEFAULT_SITE else [])
    words += [f"site.task={name}"] if name != sites[site]["task"] else []
    for key, needed in budgets(task).items():
        words += [f"site.{key}={needed}"] if needed > sites[site][key] else []
    words += [f"site.policy={out}"] + ["--allow-code"] * allow_code
    return shlex.join(words)


def budgets(task: Task) -> dict[str, int]:
    """Most tokens up to the one that closes thinking, and most after it, of the first solutions."""
    thinking, answer = 1, 2
    for prompt in task.prompts("train")[:SOLVED]:
        solution = task.solve(prompt)
        close = task.think_close_id
        closed = solution.index(close) + 1 if close in solution else len(solution)
        thinking, answer = max(thinking, closed), max(answer, len(solution) - closed)
    return {"thinking_tokens": thinking, "answer_tokens": answer}
