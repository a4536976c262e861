"""A run that goes on from a checkpoint of another one, with something changed: same seed, same past.

The fork is a run folder of its own. Its log holds the events up to the checkpoint, under a head that names the recipe
it goes on with and where it came from; from there it is taken up like any run.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.books import description
from scalerl.checkpoint import adopt, checkpoints, fault_of, next_seq_of, updates_of
from scalerl.curves.curve import flat
from scalerl.errors import InputError
from scalerl.events import parse_lines, read_events, seal
from scalerl.manifest import sync
from scalerl.recipe import Recipe
from scalerl.timeline import read_timeline, told
from scenarios.runs import attempts, begin, is_begun, recipe_of, writing
from scenarios.scenario import Plan

LOG, CHECKPOINTS = "events.jsonl", "checkpoints"
# What the groups in flight, the caches and the curve so far were made with.
FIXED = (
    "seed",
    "group_size",
    "staleness.kind",
    "site.kind",
    "site.task",
    "site.data.levels",
    "site.policy",
    "site.generators",
    "site.trainers",
    "site.evaluators",
    "site.slots_per_generator",
    "site.sequences_per_generator",
    "site.hardware.",
    "site.thinking_tokens",
    "site.answer_tokens",
    "site.prompt_tokens",
    "site.temperature",
    "site.dtype",
    "site.think_close",
    "site.interruption_phrase",
    "site.evaluation.prompts",
    "site.evaluation.completions",
)
GROW = ("staleness.k", "prompts_per_update")  # what is admitted already keeps to the smaller bound


@dataclass(frozen=True)
class Source:
    """A checkpoint of a run."""

    run: Path
    checkpoint: Path

    @property
    def update(self) -> int:
        return updates_of(self.checkpoint)

    @classmethod
    def of(cls, text: str) -> "Source":
        """From RUN@UPDATE; without an update, the newest whole checkpoint.

        Raises:
            InputError: no run there, or no such whole checkpoint.
        """
        name, at, number = text.rpartition("@")
        if at and not number.isdecimal():  # a folder may have the mark in its name
            name, at = text, ""
        run = Path(name if at else text)
        if not is_begun(run):
            raise InputError(
                f"--from {text}: there is no run in {run} (no recipe.toml): RUN@UPDATE is needed"
            )
        found = checkpoints(run / CHECKPOINTS)
        chosen = [path for path in found if not at or str(updates_of(path)) == number]
        for path in chosen:
            if fault_of(path) is None:
                return cls(run, path)
        have = ", ".join(str(updates_of(path)) for path in reversed(found)) or "none"
        raise InputError(
            f"--from {text}: {run} has no whole checkpoint{f' of update {number}' if at else ''}; it has: {have}"
        )


def forked_recipe(source: Source, overrides: Sequence[str]) -> Recipe:
    """The run's recipe with the overrides.

    Raises:
        InputError: of an override, or of a key that cannot change in the middle of a run.
    """
    recipe = recipe_of(source.run, overrides)
    check_change(recipe_of(source.run), recipe)
    if recipe.site is not None and recipe.site.updates <= source.update:
        raise InputError(
            f"site.updates = {recipe.site.updates}: nothing would be left after update {source.update}"
        )
    return recipe


def changes(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """Dotted key to (value before, value after), of keys that differ."""
    old, new = flat(before.model_dump(mode="json")), flat(after.model_dump(mode="json"))
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys if key != "name"}


def check_change(before: Recipe, after: Recipe) -> None:
    """Raise InputError where a recipe changes what a run under way cannot change."""
    for key, (old, new) in changes(before, after).items():
        if any(key == fixed or (fixed.endswith(".") and key.startswith(fixed)) for fixed in FIXED):
            raise InputError(
                f"{key} = {new!r} cannot change in the middle of a run (it was {old!r}): begin a new one instead"
            )
        if key in GROW and (after.staleness.kind != "pipeline" or new < old):
            raise InputError(
                f"{key} = {new!r} can only grow in the middle of a pipeline run (it was {old!r}): "
                "begin a new one instead"
            )


def forkable(run: Path, recipe: Recipe) -> list[Source]:
    """Checkpoints of a run from which it could go on with another recipe, the newest first; none if it could not."""
    found = [Source(run, path) for path in checkpoints(run / CHECKPOINTS)]
    assert recipe.site is not None
    try:
        check_change(recipe_of(run), recipe)
    except InputError:
        return []
    return [source for source in found if source.update < recipe.site.updates]


def place_of_fork(source: Source) -> Path:
    """A folder beside the run: seed-0@40, then seed-0@40.2, ..."""
    run = source.run.resolve()
    first = run.with_name(f"{run.name}@{source.update}")
    return next(folder for folder in attempts(first) if not folder.exists())


def fork(source: Source, recipe: Recipe, folder: Path) -> Plan:
    """Make the fork's folder, whole or not at all; what is to be run in it.

    Raises:
        InputError: the folder is there already, the checkpoint is damaged, or the events up to it are.
    """
    if fault := fault_of(source.checkpoint):
        raise InputError(f"{source.run}: checkpoint {fault}: choose another one")
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty: choose another --out")
    events = _past(source, recipe)
    lines = [seal(json.dumps(event, separators=(",", ":"))) + "\n" for event in events]
    draft = folder.with_name(f".{folder.name}.draft")
    with writing():
        shutil.rmtree(draft, ignore_errors=True)
        adopt(source.checkpoint, draft / CHECKPOINTS, recipe.algorithm_id())
        (draft / LOG).write_text("".join(lines), encoding="utf-8")
        sync(draft / LOG)
        begin(draft, recipe)
        if folder.exists():
            folder.rmdir()
        draft.rename(folder)
    return Plan(recipe.name, f"{source.run.name}@{source.update}", recipe)


def check_fork(folder: Path, source: Source) -> None:
    """Raise InputError unless a run folder holds a fork of this very checkpoint."""
    head = next(iter(parse_lines(folder / LOG)), {}) if (folder / LOG).is_file() else {}
    made = head.get("fork") or {}
    if (made.get("run"), made.get("update")) != (str(source.run), source.update):
        raise InputError(
            f"{folder} holds another run than a fork of {source.run} at update {source.update}: choose another --out"
        )


def _past(source: Source, recipe: Recipe) -> list[dict[str, Any]]:
    """The surviving events up to the checkpoint, the first with the new recipe and where the fork comes from."""
    next_seq, _ = next_seq_of(source.checkpoint)
    if faults := read_timeline(source.run / LOG).before(next_seq):
        raise InputError(
            f"{source.run / LOG} is damaged: {told(faults)}: scalerl doctor {source.run}"
        )
    events = [e for e in read_events(source.run / LOG) if e["seq"] < next_seq]
    if not events or events[0]["kind"] != "run" or events[-1]["seq"] != next_seq - 1:
        raise InputError(
            f"{source.run / LOG} does not hold the events up to update {source.update}: scalerl doctor {source.run}"
        )
    head = {
        **events[0],
        **description(recipe),
        "fork": {
            "run": str(source.run),
            "update": source.update,
            "algorithm_id": events[0].get("algorithm_id"),
        },
    }
    return [{k: v for k, v in event.items() if k != "crc"} for event in (head, *events[1:])]
