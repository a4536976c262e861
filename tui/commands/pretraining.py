"""`scalerl pretrain`: the supervised start policy, with progress."""

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from scalerl.errors import InputError


def pretrain_with_progress(out: Path, seed: int, steps: int | None) -> None:
    """Train, save as a Hugging Face folder, and say how to run it.

    Raises:
        InputError: `out` is there already, or cannot be made; before any training.
    """
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise InputError(
            f"{out} is there already, and is not overwritten: choose another --out"
        ) from None
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None
    import torch

    from sandbox.pretrain import Pretraining, pretrain, save_start_policy

    torch.set_num_threads(1)
    spec = Pretraining() if steps is None else Pretraining(steps=steps)
    console = Console(highlight=False)
    with Progress(console=console) as progress:
        task = progress.add_task("pre-training", total=spec.steps)
        policy = pretrain(spec, seed, lambda step, loss: progress.update(task, completed=step + 1))
    save_start_policy(policy, out)
    console.print(f"start policy: {out}   try it:  scalerl run tiny site.policy={out}")
