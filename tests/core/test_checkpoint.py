"""Checkpoints: whole or not there, every file held to its digest, the newest good one found, older formats read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Script, ScriptedWorld, scripted_recipe
from states import ID, filled, fresh, world

from scalerl.checkpoint import (
    adopt,
    algorithm_of,
    checkpoints,
    fault_of,
    load_checkpoint,
    newest_checkpoint,
    next_seq_of,
    save_checkpoint,
    updates_of,
)
from scalerl.errors import CheckpointError
from scalerl.events import seal
from scalerl.manifest import CannotTell, NewerFormat

FILES = ("loop.json", "manifest.json", "scripted.json")


def saved(folder: Path, *updates: int, keep: int = 3) -> list[Path]:
    """Checkpoints of these updates, as one run writes them; `next_seq` is ten times as many."""
    state, paths = filled(), []
    for state.updates in updates:
        state.next_seq = 10 * state.updates
        paths.append(save_checkpoint(folder, state, world(), ID, keep))
    return paths


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def edit_json(path: Path, change: Callable[[dict], None], *, sealed: bool = False) -> None:
    """Change a file as somebody who knows JSON would; `sealed`: and the checksum at its end."""
    data = json.loads(path.read_text())
    change(data)
    data.pop("crc", None) if sealed else None
    text = json.dumps(data, separators=(",", ":"))
    path.write_text(seal(text) if sealed else text)


def as_format_1(path: Path) -> Path:
    """A checkpoint as earlier versions wrote it."""
    (path / "manifest.json").unlink()
    edit_json(path / "loop.json", lambda data: data.update(format=1))
    return path


# ---- written ----


def test_save_and_load(tmp_path: Path) -> None:
    state = filled()
    path = save_checkpoint(tmp_path / "checkpoints", state, world(), ID)
    assert path == tmp_path / "checkpoints" / "update-1" == newest_checkpoint(path.parent)
    again = fresh()
    load_checkpoint(path, again, ID)
    assert again == state
    other = ScriptedWorld(scripted_recipe(), Script())
    other.load(path)
    assert (other.version, other.published) == (7, 6)
    assert (algorithm_of(path), next_seq_of(path)) == (ID, (31, True))


def test_the_manifest_names_every_file_below_it(tmp_path: Path) -> None:
    class Deep(ScriptedWorld):
        def save(self, folder: Path) -> None:
            super().save(folder)
            (folder / "trainers").mkdir()
            (folder / "trainers" / ".metadata").write_bytes(b"\0" * 5)

    path = save_checkpoint(tmp_path, filled(), Deep(scripted_recipe(), Script()), ID)
    manifest = json.loads((path / "manifest.json").read_text())
    sizes = {entry["name"]: entry["bytes"] for entry in manifest["files"]}
    assert set(sizes) == {"loop.json", "scripted.json", "trainers/.metadata"}
    assert sizes["trainers/.metadata"] == 5
    assert (manifest["format"], manifest["algorithm_id"], manifest["updates"]) == (2, ID, 1)
    (path / "trainers" / ".metadata").write_bytes(b"\0\0\1\0\0")
    assert "update-1/trainers/.metadata was edited or damaged" in str(fault_of(path))


@pytest.mark.parametrize("keep", [2, 3, 5])
def test_the_newest_few_stay(tmp_path: Path, keep: int) -> None:
    updates = (8, 9, 10, 11)  # by number and not by name: "update-9" sorts after "update-10"
    saved(tmp_path, *updates, keep=keep)
    assert names(tmp_path) == sorted(f"update-{n}" for n in updates[-keep:])
    assert [path.name for path in checkpoints(tmp_path)][:2] == ["update-11", "update-10"]


def test_what_is_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "absent") is None
    for name in (".draft", ".old-update-3", "update-", "update-x", "update-7.bak", "other"):
        (tmp_path / name).mkdir()
    assert newest_checkpoint(tmp_path) is None and checkpoints(tmp_path) == []


def test_all_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file, then the manifest, then the folder; after the rename, the folder around it."""
    order: list[str] = []
    sync, rename = os.fsync, Path.rename

    def told(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        order.append(f"{self.name} -> {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", told)
    monkeypatch.setattr(Path, "rename", renamed)
    save_checkpoint(tmp_path, filled(), world(), ID)
    assert order == [
        "loop.json", "scripted.json", "manifest.json", ".draft", ".draft -> update-1", tmp_path.name,
    ]  # fmt: skip


def test_written_again_at_the_same_update(tmp_path: Path) -> None:
    """The last written stands for its update, and counts as one."""
    saved(tmp_path, 1, 2)
    state = filled()
    state.updates, state.next_seq = 2, 99
    path = save_checkpoint(tmp_path, state, world(), ID)
    again = fresh()
    load_checkpoint(path, again, ID)
    assert again.next_seq == 99
    assert newest_checkpoint(tmp_path) == path
    assert names(tmp_path) == ["update-1", "update-2.2"]


# ---- killed ----


class Killed(BaseException):
    """The process ends here."""


class Dying(ScriptedWorld):
    """Dies with half of its part written."""

    def save(self, folder: Path) -> None:
        (folder / "half").touch()
        raise Killed


def test_killed_while_the_world_saves(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    state = filled()
    state.updates = 2
    with pytest.raises(Killed):
        save_checkpoint(tmp_path, state, Dying(scripted_recipe(), Script()), ID)
    assert newest_checkpoint(tmp_path) == tmp_path / "update-1"
    assert names(tmp_path) == [".draft", "update-1"]
    # the next attempt starts clean
    path = save_checkpoint(tmp_path, state, world(), ID)
    assert not (path / "half").exists()
    assert names(tmp_path) == ["update-1", "update-2"]


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("step", range(6))
def test_killed_at_any_sync_or_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int, step: int
) -> None:
    """There is a checkpoint at every moment, also when one of the same update is written again (after a resume)."""
    saved(tmp_path, 1)
    state, left = filled(), step
    state.updates = updates

    def dying(act: Callable) -> Callable:
        def act_or_die(*arguments: object) -> object:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return act(*arguments)

        return act_or_die

    monkeypatch.setattr(os, "fsync", dying(os.fsync))
    monkeypatch.setattr(Path, "rename", dying(Path.rename))
    with pytest.raises(Killed):
        save_checkpoint(tmp_path, state, world(), ID)
    monkeypatch.undo()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and (newest.name != "update-1") is (step == 5)
    load_checkpoint(newest, fresh(), ID)
    save_checkpoint(tmp_path, state, world(), ID)
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_killed_while_an_older_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has lost its name by then: no half checkpoint is left, and of two of one update the last written is newest."""
    saved(tmp_path, 1)
    state = filled()
    state.next_seq = 99

    def die(path: Path, ignore_errors: bool = False) -> None:
        (path / "loop.json").unlink()
        raise Killed

    monkeypatch.setattr("scalerl.checkpoint.shutil.rmtree", die)
    with pytest.raises(Killed):
        save_checkpoint(tmp_path, state, world(), ID)
    monkeypatch.undo()
    assert names(tmp_path) == [".old-update-1", "update-1.2"]
    newest, again = newest_checkpoint(tmp_path), fresh()
    assert newest is not None
    load_checkpoint(newest, again, ID)
    assert again.next_seq == 99
    saved(tmp_path, 2)
    assert names(tmp_path) == ["update-1.2", "update-2"]


def test_what_a_full_disk_refuses_leaves_its_room(tmp_path: Path) -> None:
    saved(tmp_path, 1)

    class Full(ScriptedWorld):
        def save(self, folder: Path) -> None:
            (folder / "half").touch()
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, filled(), Full(scripted_recipe(), Script()), ID)
    assert names(tmp_path) == ["update-1"]


# ---- damaged ----


def passed_over(folder: Path) -> tuple[Path | None, list[str]]:
    said: list[str] = []
    return newest_checkpoint(folder, said.append), said


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("cut", [0, 1, 0.5, -1])
def test_a_torn_file_is_named_and_the_one_before_is_taken(
    tmp_path: Path, file: str, cut: float
) -> None:
    older, newer = saved(tmp_path, 1, 2)
    whole = (newer / file).read_bytes()
    size = int(cut * len(whole)) if isinstance(cut, float) else len(whole[:cut])
    (newer / file).write_bytes(whole[:size])
    found, [said] = passed_over(tmp_path)
    assert found == older
    assert said.startswith(f"checkpoint update-2/{file} is torn or was edited: ")
    assert said.endswith("passed over, the run goes on from update-1")
    assert f"expected {len(whole)} bytes, has {size}" in said or f"({size} bytes)" in said


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    older, newer = saved(tmp_path, 1, 2)
    (newer / file).unlink()
    assert passed_over(tmp_path) == (
        older,
        [
            f"checkpoint update-2/{file} is missing: passed over, the run goes on from update-1",
        ],
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_flipped_bit_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Wherever it is; and no file of any bytes brings a traceback."""
    folder = tmp_path_factory.mktemp("bits")
    older, newer = saved(folder, 1, 2)
    path = newer / data.draw(st.sampled_from(FILES))
    spoiled = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        spoiled = bytearray(data.draw(st.binary(max_size=40)))
    path.write_bytes(spoiled)
    found, [said] = passed_over(folder)
    assert found == older and f"update-2/{path.name}" in said and "\n" not in said
    shutil.rmtree(folder)


def test_nul_bytes_and_deep_nesting(tmp_path: Path) -> None:
    older, newer = saved(tmp_path, 1, 2)
    for text in (b"\0" * 300, b"[" * 100_000, seal('{"format":2}').encode(), seal("[1]").encode()):
        for file in FILES:
            before = (newer / file).read_bytes()
            (newer / file).write_bytes(text)
            assert passed_over(tmp_path)[0] == older
            (newer / file).write_bytes(before)
    assert passed_over(tmp_path) == (newer, [])


def test_a_manifest_that_was_edited_with_care(tmp_path: Path) -> None:
    """Checksum and all: a file outside, a number for a list, another name of the folder."""
    older, newer = saved(tmp_path, 1, 2)
    manifest = newer / "manifest.json"
    before = manifest.read_bytes()
    entry = {"name": "../update-1/loop.json", "bytes": 3, "blake2b": "0"}
    for change, said in (
        (lambda data: data.update(files=[entry]), "update-2/../update-1/loop.json lies outside"),
        (lambda data: data.update(files=[{**entry, "name": "/etc/passwd"}]), "lies outside"),
        (lambda data: data.update(files=3), "update-2/manifest.json is no manifest: files: "),
        (lambda data: data.pop("updates"), "update-2/manifest.json is no manifest: updates: "),
        (lambda data: data.pop("format"), "update-2/manifest.json is no manifest: no 'format'"),
        (lambda data: data.update(updates=7), "update-2 holds update 7: somebody renamed it"),
    ):
        edit_json(manifest, change, sealed=True)
        assert said in str(fault_of(newer)) and newest_checkpoint(tmp_path) == older
        manifest.write_bytes(before)
    assert fault_of(newer) is None


def test_none_that_is_good_is_an_error_and_nothing_is_touched(tmp_path: Path) -> None:
    paths = saved(tmp_path, 1, 2)
    for path in paths:
        (path / "scripted.json").unlink()
    before = names(tmp_path)
    said = (
        r"no checkpoint in .* is whole \(update-2/scripted.json is missing; update-1/.* from a copy"
    )
    with pytest.raises(CheckpointError, match=said):
        newest_checkpoint(tmp_path)
    assert names(tmp_path) == before


def test_one_that_was_passed_over_is_gone_once_another_stands(tmp_path: Path) -> None:
    """A file that could not be read for a while must not bring back a timeline that is void."""
    _, older, newer = saved(tmp_path, 3, 6, 9)
    (newer / "scripted.json").rename(tmp_path / "aside")
    assert newest_checkpoint(tmp_path) == older
    saved(tmp_path, 7)
    assert names(tmp_path) == ["aside", "update-3", "update-6", "update-7"]


def test_a_torn_one_is_not_counted_among_those_that_stay(tmp_path: Path) -> None:
    saved(tmp_path, 3, 6, 9)
    (tmp_path / "update-9" / "scripted.json").write_text("{")
    saved(tmp_path, 12, keep=2)
    assert names(tmp_path) == ["update-12", "update-6"]


# ---- of other versions, of other recipes ----


def test_format_1_is_read(tmp_path: Path) -> None:
    path = as_format_1(saved(tmp_path, 4)[0])
    assert passed_over(tmp_path) == (path, []) and fault_of(path) is None
    again = fresh()
    load_checkpoint(path, again, ID)
    assert again.next_seq == 40
    assert (algorithm_of(path), next_seq_of(path)) == (ID, (40, False))
    saved(tmp_path, 8)
    assert names(tmp_path) == ["update-4", "update-8"]


def test_a_torn_one_of_format_1(tmp_path: Path) -> None:
    path = as_format_1(saved(tmp_path, 1)[0])
    text = (path / "loop.json").read_text()
    (path / "loop.json").write_text(text[: len(text) // 2])
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*update-1.*char \d+"):
        load_checkpoint(path, fresh(), ID)
    (path / "loop.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*update-1"):
        load_checkpoint(path, fresh(), ID)


@pytest.mark.parametrize("spoil", [{"state": 3}, {"state": {}}, {"algorithm_id": ID, "state": []}])
def test_an_edited_one_of_format_1(tmp_path: Path, spoil: dict) -> None:
    path = as_format_1(saved(tmp_path, 1)[0])
    edit_json(path / "loop.json", lambda data: data.update(spoil))
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*update-1: "):
        load_checkpoint(path, fresh(), ID)


@pytest.mark.parametrize("place", ["loop.json", "manifest.json"])
def test_a_later_format_is_neither_read_nor_passed_over(tmp_path: Path, place: str) -> None:
    """A checkpoint of a later version is whole: to go on from an older one would throw it away."""
    newer = saved(tmp_path, 1, 2)[1]
    if place == "loop.json":
        (newer / "manifest.json").unlink()
    edit_json(newer / place, lambda data: data.update(format=3), sealed=place == "manifest.json")
    said = "update-2 has checkpoint format 3; this version reads 1 and 2: resume with the version"
    for act in (
        lambda: newest_checkpoint(tmp_path),
        lambda: load_checkpoint(newer, fresh(), ID),
        lambda: fault_of(newer),
    ):
        with pytest.raises(NewerFormat, match=said):
            act()


@pytest.mark.parametrize("file", ["loop.json", "scripted.json", "manifest.json"])
def test_one_that_cannot_be_read_just_now_is_neither_passed_over_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """A disk or a share that fails for a while says nothing of a checkpoint."""
    newest = saved(tmp_path, 1, 2)[1]

    def failing(path: Path, *arguments: object, honest: Callable = Path.open) -> object:
        if path == newest / file:
            raise OSError(5, "Input/output error")
        return honest(path, *arguments)

    def whole(path: Path) -> bytes:
        with path.open("rb") as stream:
            return stream.read()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        patch.setattr(Path, "read_bytes", whole)
        with pytest.raises(
            CannotTell, match=rf"{file if file == 'manifest.json' else 'update-2'} .*error: mend"
        ):
            newest_checkpoint(tmp_path)
    assert newest_checkpoint(tmp_path) == newest and len(names(tmp_path)) == 2


@pytest.mark.parametrize("first", [False, True], ids=["format 2", "format 1"])
def test_one_that_another_run_adopts(tmp_path: Path, first: bool) -> None:
    """The same state and the same files under another algorithm; the one it is from stays as it is."""
    [path] = saved(tmp_path / "old", 4)
    path = as_format_1(path) if first else path
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    copy = adopt(path, tmp_path / "new" / "checkpoints", "ffff")
    assert newest_checkpoint(copy.parent) == copy and (copy.name, updates_of(copy)) == (
        "update-4",
        4,
    )
    one, other = fresh(), fresh()
    load_checkpoint(path, one, ID)
    load_checkpoint(copy, other, "ffff")
    assert one == other and algorithm_of(copy) == "ffff"
    assert before == {file.name: file.read_bytes() for file in path.iterdir()}


def test_another_algorithm_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    [path] = saved(tmp_path, 1)
    state = fresh()
    with pytest.raises(CheckpointError, match=f"belongs to algorithm {ID}, the recipe is ffff"):
        load_checkpoint(path, state, "ffff")
    assert state == fresh()


def test_a_loop_json_that_was_edited_is_not_loaded(tmp_path: Path) -> None:
    [path] = saved(tmp_path, 1)
    text = (path / "loop.json").read_text()
    (path / "loop.json").write_text(text.replace('"version":7', '"version":6'))
    state = fresh()
    with pytest.raises(
        CheckpointError, match=r"cannot read the checkpoint .*was edited or damaged"
    ):
        load_checkpoint(path, state, ID)
    assert state == fresh()
