"""A run on disk: checkpoints that are whole or not there, and whose every file is held to its digest.

A checkpoint is a folder `update-<n>` (`update-<n>.<i>` if there was one of that update, from before a resume) of JSON
and tensors. Its `manifest.json` names each file with its bytes and its BLAKE2b digest; format 1 had none, and is read.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scalerl.errors import CheckpointError
from scalerl.manifest import (
    FORMAT,
    LOOP,
    MANIFEST,
    CannotTell,
    fault_of_file,
    read_loop,
    read_manifest,
    said_by,
    sync,
    write_manifest,
)
from scalerl.state import LoopState
from scalerl.world import World

HELD = "held"  # a file in a checkpoint that stays, however many follow
MOST_HELD = 3
DRAFT, OLD = ".draft", ".old-"  # what a killed process may leave: half written, half removed
_NAME = re.compile(r"update-([0-9]+)(?:\.([0-9]+))?")


def save_checkpoint(
    folder: Path, state: LoopState, world: World, algorithm_id: str, keep: int = 3
) -> Path:
    """Write beside its final name, sync, rename, sync: at every moment the newest whole checkpoint can be found.

    keep: how many stay, at least 2; older ones go once the new one stands.

    Raises:
        OSError: it cannot be written; then there is none of it.
    """
    _sweep(folder)
    draft = folder / DRAFT
    draft.mkdir(parents=True)
    try:
        world.save(draft)
        loop = {"format": FORMAT, "algorithm_id": algorithm_id, "state": state.to_json()}
        target = _complete(draft, loop, state.updates)
    except Exception:
        shutil.rmtree(draft, ignore_errors=True)  # on a full disk: room for what the log has to say
        raise
    _remove_old(folder, target, keep)
    return target


def newest_checkpoint(folder: Path, tell: Callable[[str], None] = lambda what: None) -> Path | None:
    """The newest whole checkpoint, of the most updates, of those the last written; None if there is none at all.

    tell: is told, in a sentence each, which newer ones were passed over, and why.

    Raises:
        CheckpointError: there are some but none is whole, or it cannot be told whether the newest is.
    """
    passed: list[str] = []
    for path in checkpoints(folder):
        if (fault := fault_of(path)) is None:
            for what in passed:
                tell(f"checkpoint {what}: passed over, the run goes on from {path.name}")
            return path
        passed.append(fault)
    if passed:
        more = f"; and {len(passed) - 3} more" if len(passed) > 3 else ""
        raise CheckpointError(
            f"no checkpoint in {folder} is whole ({'; '.join(passed[:3])}{more}): put one back from a copy, "
            "or move them away to begin the run anew"
        )
    return None


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a folder, whole or not, the newest first; drafts are none."""
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(found, key=_age, reverse=True)


def fault_of(path: Path, *, digests: bool = True) -> str | None:
    """What is wrong with a checkpoint, beginning with its name; None if it is whole.

    digests: read every file; otherwise names and sizes are compared alone.

    Raises:
        CannotTell: it has a format of a later version, or cannot be read just now.
    """
    try:
        manifest = read_manifest(path)
        if manifest is None:
            return None
        if manifest.updates != _age(path)[0]:
            return f"{path.name} holds update {manifest.updates}: somebody renamed it"
        faults = (fault_of_file(path, entry, digests=digests) for entry in manifest.files)
        return next((fault for fault in faults if fault), None)
    except CannotTell:
        raise
    except FileNotFoundError:
        return f"{path.name} is being removed"
    except OSError as error:
        raise CannotTell(
            f"{path} cannot be read: {error.strerror}: mend that, then resume"
        ) from error
    except CheckpointError as error:
        return str(error)


def load_checkpoint(path: Path, state: LoopState, algorithm_id: str) -> None:
    """Fill `state` from a checkpoint; the world loads its own part from the same folder.

    Raises:
        CheckpointError: its loop.json is torn or edited, of another format, or of another algorithm.
    """
    try:
        manifest = read_manifest(path)
        entries = manifest.files if manifest else []
        for fault in (fault_of_file(path, each) for each in entries if each.name == LOOP):
            if fault:
                raise CheckpointError(fault)
        data = read_loop(path)
        if data["algorithm_id"] != algorithm_id:
            raise _of_another(path, data["algorithm_id"], algorithm_id)
        state.load_json(data["state"])
    except CheckpointError as error:
        if str(error).startswith(f"{path.name}/"):
            raise CheckpointError(f"cannot read the checkpoint {path.parent}/{error}") from None
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {said_by(error)}") from None


def hold(folder: Path, updates: int) -> None:
    """Keep the newest whole checkpoint of at most so many updates: something went wrong after it. Three at most."""
    there = [path for path in checkpoints(folder) if updates_of(path) <= updates]
    good = next((path for path in there if _seems_whole(path)), None)
    if good is not None and sum((path / HELD).exists() for path in there) < MOST_HELD:
        (good / HELD).touch()


def adopt(source: Path, folder: Path, algorithm_id: str) -> Path:
    """A copy of a whole checkpoint for another run, which goes on from it with another algorithm."""
    target = folder / f"update-{updates_of(source)}"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(MANIFEST, HELD))
    loop = read_loop(target) | {"format": FORMAT, "algorithm_id": algorithm_id}
    (target / LOOP).write_text(json.dumps(loop, separators=(",", ":")))
    write_manifest(target, algorithm_id, updates_of(source))
    return target


def algorithm_of(path: Path) -> str:
    """The algorithm id that a whole checkpoint belongs to."""
    manifest = read_manifest(path)
    return manifest.algorithm_id if manifest else str(read_loop(path).get("algorithm_id"))


def next_seq_of(path: Path) -> tuple[int, bool]:
    """The number of the event at which a resume from a whole checkpoint goes on; whether it has digests."""
    try:
        return int(read_loop(path)["state"]["next_seq"]), (path / MANIFEST).is_file()
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name}/{LOOP} is not of a run: {said_by(error)}") from None


def _complete(draft: Path, loop: dict[str, Any], updates: int) -> Path:
    """Add the loop's part and the manifest to the world's, and give a draft its name."""
    (draft / LOOP).write_text(json.dumps(loop, separators=(",", ":")))
    write_manifest(draft, loop["algorithm_id"], updates)
    target = _free_name(draft.parent, updates)
    draft.rename(target)
    sync(draft.parent)
    return target


def _of_another(path: Path, theirs: object, ours: str) -> CheckpointError:
    return CheckpointError(
        f"{path} belongs to algorithm {theirs}, the recipe is {ours}: "
        "resume with the recipe.toml of the run, or start a new run"
    )


def _free_name(folder: Path, updates: int) -> Path:
    target, attempt = folder / f"update-{updates}", 1
    while target.exists():
        attempt += 1
        target = folder / f"update-{updates}.{attempt}"
    return target


def updates_of(path: Path) -> int:
    """The update that a checkpoint was written after, by its name."""
    return _age(path)[0]


def _age(path: Path) -> tuple[int, int]:
    """(updates, attempt) by its name."""
    found = _NAME.fullmatch(path.name)
    assert found is not None, path
    return int(found[1]), int(found[2] or 1)


def leftovers(folder: Path) -> Iterator[Path]:
    """What a killed process left half written or half removed."""
    yield from folder.glob(DRAFT)
    yield from folder.glob(f"{OLD}*")


def _sweep(folder: Path) -> None:
    for path in leftovers(folder):
        shutil.rmtree(path)


def _remove_old(folder: Path, newest: Path, keep: int) -> None:
    """Keep the last written of each update, `keep` in all, whole by names and sizes, and those that are held.

    Those of more updates are of a timeline that a resume has voided: it went on from an older one, as they were torn.
    """
    kept: list[int] = []
    for path in checkpoints(folder):
        updates, age = _age(path)[0], _age(path)
        good = age <= _age(newest) and updates not in kept and _seems_whole(path)
        if good and (path / HELD).exists():
            continue
        if good and len(kept) < keep:
            kept.append(updates)
        else:
            path.rename(old := folder / f"{OLD}{path.name}")  # a kill leaves no half checkpoint
            shutil.rmtree(old)


def _seems_whole(path: Path) -> bool:
    try:
        return fault_of(path, digests=False) is None
    except CannotTell:
        return True
