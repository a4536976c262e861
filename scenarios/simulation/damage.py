"""What happens to checkpoints between two lives of a run."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

from scalerl.checkpoint import checkpoints, fault_of, load_checkpoint, save_checkpoint
from scalerl.compute import Ledger
from scalerl.curriculum import curriculum_of
from scalerl.state import LoopState
from scalerl.world import World
from scenarios.simulation.setting import Setting
from scenarios.simulation.world import GPUS, SAVED

Stamp = tuple[str, int, int]
FOREIGN = "0123456789ab"  # the algorithm of somebody else's recipe


def stamp(path: Path) -> Stamp:
    """Tells a checkpoint from a later one of the same name."""
    status = path.stat()
    return path.name, status.st_ino, status.st_mtime_ns


def mark_of(path: Path) -> int:
    """The number of a good checkpoint, counted over the whole run."""
    return json.loads((path / SAVED).read_text())["mark"]


def remove(paths: Iterable[Path]) -> None:
    """What a person does about checkpoints that cannot be used."""
    for path in paths:
        shutil.rmtree(path)


def damage(folder: Path, kind: str, random: Random, setting: Setting) -> set[Stamp] | None:
    """Do it to the newest whole checkpoint; the stamps of those that are no good now, None without one."""
    found = [path for path in checkpoints(folder) if fault_of(path) is None]
    if not found:
        return None
    harmed = found[:1]
    match kind:
        case "checkpoint.missing":
            shutil.rmtree(found[0])
            return set()
        case "checkpoint.foreign":
            harmed = [_foreign(folder, found[0], setting)]
        case "checkpoint.all":
            harmed = found
            for path in found:
                _tear(_some_file(path, random), random)
        case "checkpoint.emptied":
            _some_file(found[0], random).unlink()
        case "checkpoint.torn":
            _tear(_some_file(found[0], random), random)
        case "checkpoint.edited":
            _edit(_some_file(found[0], random), random)
    return {stamp(path) for path in harmed}


def _some_file(path: Path, random: Random) -> Path:
    return random.choice(sorted(path.iterdir()))


def _tear(file: Path, random: Random) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: random.randrange(len(data))])


def _edit(file: Path, random: Random) -> None:
    """Another digit in place of one: the file stays what it is, and says something else."""
    data = bytearray(file.read_bytes())
    place = random.choice([i for i, byte in enumerate(data) if chr(byte).isdigit()])
    data[place] = ord("0") + (data[place] - ord("0") + random.randint(1, 9)) % 10
    file.write_bytes(data)


@dataclass
class _Copied:
    """The world of a checkpoint, as far as saving it once more goes."""

    path: Path

    def save(self, folder: Path) -> None:
        shutil.copy(self.path / SAVED, folder / SAVED)


def _foreign(folder: Path, newest: Path, setting: Setting) -> Path:
    """A whole checkpoint of another recipe lies on top."""
    state = LoopState(curriculum_of(setting.recipe, setting.prompts), Ledger(GPUS))
    load_checkpoint(newest, state, setting.recipe.algorithm_id())
    world = cast(World, _Copied(newest))
    return save_checkpoint(folder, state, world, FOREIGN)
