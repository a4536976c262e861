"""Recipes that are valid and yet likely not meant: each with its reason."""

from collections.abc import Iterator

from scalerl.forecast import FEWEST_POINTS
from scalerl.recipe import PipelineRLSpec, Recipe, Reinforce
from scalerl.user_code import names_code

SMALL_BATCH = 128  # completions; the smallest of the paper's batches has 512
PAPER_LAG = 8  # the largest k that did no harm in the paper


def doubts(recipe: Recipe) -> Iterator[str]:
    """What is valid and yet likely not meant, one sentence each, the keys first; the recipe has a site."""
    yield from _of_algorithm(recipe)
    yield from _of_run(recipe)


def _of_algorithm(recipe: Recipe) -> Iterator[str]:
    staleness = recipe.staleness
    pipeline = isinstance(staleness, PipelineRLSpec)
    lag = staleness.k if pipeline else staleness.k - 1
    if named := names_code(recipe):
        yield f"{named}: runs code of your own, so it starts only with --allow-code"
    if isinstance(recipe.loss, Reinforce) and lag > 0:
        yield f"loss.kind = reinforce: has no ratio, so tokens up to {lag} versions old bias it"
    if lag == 0:
        yield (
            f"staleness.k = {staleness.k}: synchronous, so generators idle while the trainers work, and the other way "
            "round; in the paper PPO-off-policy-1 took 3 times the compute of PipelineRL-8 to a pass rate of 0.50"
        )
    if pipeline and lag > PAPER_LAG:
        yield (
            f"staleness.k = {lag}: in the paper 4 and {PAPER_LAG} ended alike (A 0.520) and 12 lower (0.490)"
        )
    # With a length penalty the correct completions of a group differ in reward, and it has a gradient.
    if (
        recipe.zero_variance == "keep"
        and recipe.advantage != "batch"
        and recipe.length.kind != "overlong_penalty"
    ):
        yield (
            f"zero_variance = keep with advantage = {recipe.advantage}: groups all right or all wrong have no gradient "
            "and yet count in the mean, so the step's gradient shrinks as they become more"
        )
    if recipe.generator_head_dtype not in (None, recipe.head_dtype):
        yield (
            f"generator_head_dtype = {recipe.generator_head_dtype}: not the trainer's ({recipe.head_dtype}), so the "
            "two disagree on log-probs and rho is not 1 even without lag; float32 on one side is worse than on none"
        )


def _of_run(recipe: Recipe) -> Iterator[str]:
    site = recipe.site
    assert site is not None
    if recipe.length.kind == "none":
        yield (
            f"length.kind = none: nothing ends thinking early; a completion that fills the {site.thinking_tokens} + "
            f"{site.answer_tokens} tokens is truncated, and above 10 to 15 % of those collapse has followed"
        )
    if (completions := recipe.prompts_per_update * recipe.group_size) < SMALL_BATCH:
        yield (
            f"prompts_per_update x group_size = {completions} completions: a noisy gradient; "
            "the paper's smallest batch has 512"
        )
    evaluations = site.updates // site.evaluation.every_updates
    if evaluations < FEWEST_POINTS:
        yield (
            f"site.evaluation.every_updates = {site.evaluation.every_updates}: {evaluations} evaluations in "
            f"{site.updates} updates; below {FEWEST_POINTS} points no curve can be believed"
        )
    if site.optimizer.warmup_updates > site.updates:
        yield (
            f"site.optimizer.warmup_updates = {site.optimizer.warmup_updates}: the run ends after {site.updates} "
            "updates, before the learning rate has been reached"
        )
