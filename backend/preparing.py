"""Before anything is started: what must fit together, and the recipe as the actors need it."""

from pathlib import Path

from transformers import AutoConfig

from backend.completing import Marks
from scalerl.errors import InputError
from scalerl.recipe import CustomLoss, Recipe
from scalerl.site import Cluster
from scalerl.task import Task, check_validation


def for_actors(recipe: Recipe, device: str) -> Recipe:
    """The recipe as actors need it, which work in another directory: the device chosen, a loss by its whole path."""
    values = recipe.model_dump()
    values["site"]["device"] = device
    if isinstance(recipe.loss, CustomLoss):
        place, _, function = recipe.loss.function.rpartition(":")
        if place.endswith(".py"):
            values["loss"]["function"] = f"{Path(place).resolve()}:{function}"
    return Recipe.model_validate(values)


def check_fit(site: Cluster, task: Task, marks: Marks, policy: Path) -> None:
    """Say what does not fit together before anything is started.

    Raises:
        InputError: marks or words that are not the task's, a prompt that is too long, too few prompts.
    """
    if (task.eos_id, task.think_close_id) != (marks.eos_id, marks.close_id):
        raise InputError(
            f"task {task.name!r} ends thinking with token {task.think_close_id} and a completion with {task.eos_id}, "
            f"the policy's tokenizer with {marks.close_id} and {marks.eos_id}"
        )
    config = AutoConfig.from_pretrained(policy, local_files_only=True).get_text_config()
    if (words := config.vocab_size) < task.vocab_size:
        raise InputError(
            f"{policy} has a vocabulary of {words} words, task {task.name!r} one of {task.vocab_size}: set site.policy"
            " to one that knows the task"
        )
    asked = ["train", *(name for name in site.evaluation.cadence if name in task.splits)]
    longest = max(len(p.token_ids) for split in asked for p in task.prompts(split))
    if longest > site.prompt_tokens:
        raise InputError(
            f"site.prompt_tokens = {site.prompt_tokens}: a prompt of task {task.name!r} has {longest}"
        )
    check_validation(task, site.evaluation.prompts)
