"""The manifest of a checkpoint: each file with its bytes and its BLAKE2b digest. Format 1 had none, and is read."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalerl.errors import CheckpointError
from scalerl.events import seal, seals
from scalerl.spec import Spec

FORMAT = 2
MANIFEST, LOOP = "manifest.json", "loop.json"


class Entry(Spec):
    """A file of a checkpoint: its name below the folder, its size, its digest in hex."""

    name: str
    bytes: int
    blake2b: str


class Manifest(Spec):
    """What a checkpoint consists of."""

    format: int
    algorithm_id: str
    updates: int
    files: list[Entry]


class CannotTell(CheckpointError):
    """Whether a checkpoint is whole is not known, so it is neither used nor passed over nor removed."""


class NewerFormat(CannotTell):
    """A checkpoint of a later version of this program: whole perhaps, but not ours to read or to pass over."""


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of a checkpoint; None of one of format 1, which has none.

    Raises:
        CheckpointError: it is missing where the format asks for one, torn, edited, or of a later version.
    """
    file = path / MANIFEST
    if not file.is_file():
        if read_loop(path)["format"] == 1:
            return None
        raise CheckpointError(f"{path.name}/{MANIFEST} is missing")
    text = _read(file)
    said, found = seals(text)
    if not said or said != found:
        raise CheckpointError(
            f"{path.name}/{MANIFEST} is torn or was edited: "
            + (f"its checksum is {said}, its bytes give {found}" if said else "no checksum ends it")
            + f" ({len(text)} bytes)"
        )
    try:
        data = json.loads(text)
        del data["crc"]
        _check_format(path, data["format"])
        return Manifest.model_validate(data)
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        raise CheckpointError(f"{path.name}/{MANIFEST} is no manifest: {said_by(error)}") from None


def read_loop(path: Path) -> dict[str, Any]:
    """The loop's part of a checkpoint, by whatever is in it.

    Raises:
        CheckpointError: it is missing, torn, or of a later version.
    """
    file = path / LOOP
    if not file.is_file():
        raise CheckpointError(f"{path.name}/{LOOP} is missing")
    text = _read(file)
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it is not a table")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name}/{LOOP} is torn or was edited: {said_by(error)} ({len(text)} bytes)"
        ) from None
    _check_format(path, data.get("format"))
    return data


def _check_format(path: Path, format: object) -> None:
    if format not in range(1, FORMAT + 1):
        raise NewerFormat(
            f"{path} has checkpoint format {format!r}; this version reads 1 and {FORMAT}: "
            "resume with the version that wrote it"
        )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CannotTell(
            f"{file} cannot be read: {error.strerror}: mend that, then resume"
        ) from None


def said_by(error: Exception) -> str:
    """Where and why JSON, or what it holds, is not as it should be, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]


def fault_of_file(path: Path, entry: Entry, *, digests: bool = True) -> str | None:
    """What is wrong with one file of a checkpoint; None if it is as its entry says."""
    file, name = path / entry.name, f"{path.name}/{entry.name}"
    if Path(entry.name).is_absolute() or ".." in Path(entry.name).parts:
        return f"{name} lies outside the checkpoint"
    if not file.is_file():
        return f"{name} is missing"
    size = file.stat().st_size
    if size != entry.bytes:
        return f"{name} is torn or was edited: expected {entry.bytes} bytes, has {size}"
    if digests and (found := _digest(file)) != entry.blake2b:
        return (
            f"{name} was edited or damaged: its BLAKE2b is {found[:16]}..., "
            f"the manifest says {entry.blake2b[:16]}..."
        )
    return None


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, hashlib.blake2b).hexdigest()


# --- writing ---


def write_manifest(draft: Path, algorithm_id: str, updates: int) -> None:
    """Sync every file, name it with size and digest, sync the folders."""
    files = sorted(path for path in draft.rglob("*") if path.is_file())
    entries = []
    for file in files:
        sync(file)
        name = file.relative_to(draft).as_posix()
        entries.append(Entry(name=name, bytes=file.stat().st_size, blake2b=_digest(file)))
    manifest = Manifest(
        format=FORMAT, algorithm_id=algorithm_id, updates=updates, files=entries
    ).model_dump()
    (draft / MANIFEST).write_text(seal(json.dumps(manifest, separators=(",", ":"))))
    sync(draft / MANIFEST)
    for folder in (*(path for path in draft.rglob("*") if path.is_dir()), draft):
        sync(folder)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
