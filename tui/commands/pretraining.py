"""`scalerl pretrain`: a supervised start policy, with progress."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from scalerl.errors import InputError


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
    """Train, save as a Hugging Face folder, and say how to run it.

    Raises:
        InputError: `out` is there already, or cannot be made; no such task; one whose problems do not fit the
            positions. All before any training.
    """
    if out.exists():
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
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None
    torch.set_num_threads(1)
    console = Console(highlight=False)
    with Progress(console=console) as progress:
        bar = progress.add_task("pre-training", total=spec.steps)
        policy = pretrain(spec, seed, lambda step, loss: progress.update(bar, completed=step + 1))
    vocabulary = [spec.task.to_text([id]) for id in range(spec.task.vocab_size)]
    save_start_policy(policy, out, vocabulary)
    on = "" if task == "digit_sum" else f" site.task={task}"
    code = " --allow-code" if allow_code else ""
    console.print(
        f"start policy: {out}   try it:  scalerl run tiny{on} site.policy={out}{code}",
        soft_wrap=True,
    )
