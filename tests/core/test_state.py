"""What the loop remembers: no group lost or counted twice, and checkpoints that are whole or not there."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from scripted import Script, ScriptedWorld, scripted_recipe

from scalerl.compute import Ledger, Phase, Role
from scalerl.curriculum import Curriculum
from scalerl.errors import CheckpointError
from scalerl.rollout import Completion, Group
from scalerl.state import (
    Finished,
    LoopState,
    PendingEval,
    Ticket,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from scalerl.world import EvalResult

GPUS: dict[Role, int] = {"generator": 4, "trainer": 2, "evaluator": 1}
ID = "0123456789ab"


def completion(correct: bool, *version: int) -> Completion:
    n = len(version)
    return Completion(
        [5] * n,
        [-0.1] * n,
        list(version),
        [True] * n,
        correct=correct,
        reward=1.0 if correct else -1.0,
    )


def fresh() -> LoopState:
    return LoopState(Curriculum(10, 3), Ledger(GPUS))


def scored(ticket: Ticket, *correct: bool) -> Group:
    return Group(ticket.ordinal, ticket.prompt, [1], [completion(c, 0, 0) for c in correct])


def filled() -> LoopState:
    """A state in which every field has a value of its own."""
    state = fresh()
    state.ledger.add(Phase("trainer", 0, "update", 0.0, 1.5, gpus=2))
    state.version, state.published = 7, 6
    for ordinal in range(5):
        assert state.admit().ordinal == ordinal
    for ordinal in (3, 0, 1):
        state.land(
            state.in_flight[ordinal],
            scored(state.in_flight[ordinal], True, False),
            reject=ordinal == 1,
        )
    state.take([3])
    state.pending.append(PendingEval(12, 5, 0.25, ["validation", "ood"]))
    state.next_seq, state.clock = 31, 0.1 + 0.2
    return state


def world() -> ScriptedWorld:
    return ScriptedWorld(scripted_recipe(), Script(), version=7, published=6)


# ---- the life of a ticket ----


def test_a_ticket_goes_from_admission_to_a_batch() -> None:
    state = fresh()
    state.published = 4
    first, second = state.admit(), state.admit()
    assert (first.ordinal, second.ordinal, second.start) == (0, 1, 4)
    assert first.prompt != second.prompt and state.outstanding == 2
    state.land(first, scored(first, True, False), reject=False)
    assert set(state.in_flight) == {1} and set(state.finished) == {0} and state.outstanding == 2
    groups = state.take([0])
    assert [group.request_id for group in groups] == [0]
    # consumed, but its slot stays closed until the push; four tokens of two completions
    assert (state.taken, state.updates, state.tokens, state.outstanding) == (1, 1, 4, 2)
    state.taken = 0
    assert state.outstanding == 1


def test_a_batch_is_taken_in_the_order_asked_for() -> None:
    state = fresh()
    tickets = [state.admit() for _ in range(3)]
    for ticket in tickets:
        state.land(ticket, scored(ticket, True), reject=False)
    assert [group.request_id for group in state.take([2, 0])] == [2, 0]
    assert set(state.finished) == {1}
    state.take([1])
    assert (state.taken, state.updates, state.tokens) == (3, 2, 6)  # of two batches, before a push


def test_history_counts_rejected_groups_too() -> None:
    state = fresh()
    ticket = state.admit()
    state.land(ticket, scored(ticket, True, True), reject=True)
    assert (state.rejected, state.outstanding, state.finished) == (1, 0, {})
    assert state.curriculum.passes[ticket.prompt] == 2
    assert state.curriculum.completions[ticket.prompt] == 2
    assert sum(state.curriculum.completions) == 2


def test_a_group_delivered_twice_is_not_counted_twice() -> None:
    state = fresh()
    ticket = state.admit()
    group = scored(ticket, True, False)
    state.land(ticket, group, reject=False)
    with pytest.raises(KeyError):
        state.land(ticket, group, reject=False)
    assert sum(state.curriculum.completions) == 2


# ---- rollouts ----


def test_a_group_by_hand() -> None:
    group = Group(5, 2, [1, 40], [completion(True, 3, 3, 4), completion(False, 2, 6)])
    assert (group.passes, group.tokens, group.oldest_version) == (1, 5, 2)
    assert not group.zero_variance
    assert Group(5, 2, [1], [completion(True, 1)] * 2).zero_variance
    assert Group(5, 2, [1], [completion(False, 1)] * 2).zero_variance


def test_forced_tokens_count_for_length() -> None:
    cut = Completion([41, 5, 4, 2], [-0.7, 0, 0, -0.1], [3] * 4, [True, False, False, True])
    assert cut.length_tokens == 4


def test_groups_pickle_and_survive_json() -> None:
    group = Group(5, 2, [1, 40], [completion(True, 3, 3, 4), completion(False, 2, 6)])
    group.completions[0].logp = [-0.1, -1e-30, -(0.1 + 0.2)]  # bit for bit: these anchor the ratio
    group.completions[1].truncated = group.completions[1].interrupted = True
    assert pickle.loads(pickle.dumps(group)) == group
    assert Group.from_json(json.loads(json.dumps(group.to_json()))) == group


def test_evaluation_by_hand() -> None:
    # k = 4, passes 4, 2, 0: rates 1, 1/2, 0; sum of q (1 - q) = 1/4; / (k - 1) = 1/12; root / n
    result = EvalResult("validation", 3, 4, [4, 2, 0])
    assert result.n == 3 and result.pass_rate == 0.5
    assert result.se == pytest.approx((1 / 12) ** 0.5 / 3, rel=1e-12)
    # prompts that are all right or all wrong leave no doubt, whatever the binomial formula says
    assert EvalResult("validation", 3, 4, [4, 0]).se == 0.0


# ---- checkpoints ----


def test_a_state_survives_json() -> None:
    state, again = filled(), fresh()
    again.load_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    assert again.in_flight == {2: state.in_flight[2], 4: state.in_flight[4]}
    assert again.finished == {
        0: Finished(Ticket(0, state.finished[0].ticket.prompt, 6), state.finished[0].group)
    }
    assert again.curriculum.draw() == state.curriculum.draw()
    # every counter has a value that a forgotten one would not have
    plain = fresh()
    for name in ("version", "published", "updates", "next_ordinal", "taken", "rejected", "tokens"):
        assert getattr(state, name) != getattr(plain, name), name


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


def test_only_the_newest_stays(tmp_path: Path) -> None:
    state = filled()
    for updates in (9, 10):  # by number and not by name: "update-9" sorts after "update-10"
        state.updates = updates
        save_checkpoint(tmp_path, state, world(), ID)
    assert [path.name for path in tmp_path.iterdir()] == ["update-10"]


def test_newest_is_by_number(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "absent") is None
    for name in ("update-9", "update-10", "update-11", ".update-12.draft"):
        (tmp_path / name).mkdir()
    for name in ("update-9", "update-10", ".update-12.draft"):
        (tmp_path / name / "loop.json").touch()
    assert newest_checkpoint(tmp_path) == tmp_path / "update-10"  # 11 has no loop.json


class Killed(BaseException):
    """The process ends here."""


def test_killed_while_the_world_saves(tmp_path: Path) -> None:
    state = filled()
    save_checkpoint(tmp_path, state, world(), ID)
    state.updates = 2

    class Dying(ScriptedWorld):
        def save(self, folder: Path) -> None:
            (folder / "half").touch()
            raise Killed

    with pytest.raises(Killed):
        save_checkpoint(tmp_path, state, Dying(scripted_recipe(), Script()), ID)
    assert newest_checkpoint(tmp_path) == tmp_path / "update-1"
    # the next attempt starts clean
    path = save_checkpoint(tmp_path, state, world(), ID)
    assert not (path / "half").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["update-2"]


@pytest.mark.parametrize("updates", [1, 2])
def test_killed_at_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: int
) -> None:
    """There is a checkpoint at every moment, also when one of the same update is written again (after a resume)."""
    state = filled()
    save_checkpoint(tmp_path, state, world(), ID)
    state.updates = updates

    def die(self: Path, target: Path) -> Path:
        raise Killed

    monkeypatch.setattr(Path, "rename", die)
    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(Killed):
        save_checkpoint(tmp_path, state, world(), ID)
    monkeypatch.undo()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    load_checkpoint(newest, fresh(), ID)


def test_written_again_at_the_same_update(tmp_path: Path) -> None:
    state = filled()
    save_checkpoint(tmp_path, state, world(), ID)
    state.next_seq = 99
    path = save_checkpoint(tmp_path, state, world(), ID)
    again = fresh()
    load_checkpoint(path, again, ID)
    assert again.next_seq == 99
    assert newest_checkpoint(tmp_path) == path


def test_killed_before_the_older_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two checkpoints of one update, the one that was written last is the newest."""
    state = filled()
    save_checkpoint(tmp_path, state, world(), ID)
    state.next_seq = 99
    remove = shutil.rmtree

    def die(path: Path, ignore_errors: bool = False) -> None:
        if path.exists():
            raise Killed
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr("scalerl.state.shutil.rmtree", die)
    with pytest.raises(Killed):
        save_checkpoint(tmp_path, state, world(), ID)
    monkeypatch.undo()
    newest, again = newest_checkpoint(tmp_path), fresh()
    assert newest is not None
    load_checkpoint(newest, again, ID)
    assert again.next_seq == 99


def test_a_torn_loop_json_is_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, filled(), world(), ID)
    text = (path / "loop.json").read_text()
    (path / "loop.json").write_text(text[: len(text) // 2])
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*update-1"):
        load_checkpoint(path, fresh(), ID)
    (path / "loop.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read the checkpoint .*update-1"):
        load_checkpoint(path, fresh(), ID)


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, filled(), world(), ID)
    data = json.loads((path / "loop.json").read_text())
    (path / "loop.json").write_text(json.dumps({**data, "format": 0}))
    with pytest.raises(CheckpointError, match="has checkpoint format 0; this version reads 1"):
        load_checkpoint(path, fresh(), ID)


def test_another_algorithm_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, filled(), world(), ID)
    state = fresh()
    with pytest.raises(CheckpointError, match=f"belongs to algorithm {ID}, the recipe is ffff"):
        load_checkpoint(path, state, "ffff")
    assert state == fresh()
