"""The ledger adds up, whatever is booked; the virtual GPUs cost what their description says."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.compute import ROLES, Ledger, Phase, Role
from scalerl.errors import LedgerError
from scalerl.hardware import Hardware

GPUS: dict[Role, int] = {"generator": 4, "trainer": 2, "evaluator": 1}
HOUR = 3600.0


def ledger(*phases: Phase) -> Ledger:
    book = Ledger(GPUS)
    for phase in phases:
        book.add(phase)
    return book


# ---- the ledger ----


def test_C_counts_generators_and_trainers_busy_or_idle() -> None:
    # (4 + 2) GPUs * 1.5 h; the evaluator is outside C
    assert ledger().gpu_hours(1.5 * HOUR) == 9.0
    assert ledger(Phase("evaluator", 0, "eval", 0, HOUR)).gpu_hours(1.5 * HOUR) == 9.0


def test_report_by_hand() -> None:
    book = ledger(
        Phase("generator", 0, "decode", 0, HOUR),
        Phase("generator", 1, "prefill", 0, 0.5 * HOUR),
        Phase("generator", 1, "decode", HOUR, 2 * HOUR),
        Phase("trainer", 0, "update", 0.5 * HOUR, HOUR, gpus=2),
    )
    # two hours: generators 4 * 2 = 8 = 2 decode + 0.5 prefill + 5.5 idle; trainers 4 = 1 + 3 idle
    assert book.report(2 * HOUR) == {
        "generator": {"decode": 2.0, "prefill": 0.5, "idle": 5.5},
        "trainer": {"update": 1.0, "idle": 3.0},
        "evaluator": {"idle": 2.0},
    }


def test_phases_of_one_gpu_may_touch_and_not_overlap() -> None:
    book = ledger(Phase("trainer", 1, "update", 0, 10))
    book.add(Phase("trainer", 1, "push", 10, 12))
    book.add(Phase("trainer", 0, "push", 3, 5))  # another GPU
    book.add(Phase("generator", 1, "decode", 3, 5))  # another role
    with pytest.raises(LedgerError, match=r"trainer:1 is booked twice: 'update' starts at 11 s, "):
        book.add(Phase("trainer", 1, "update", 11, 13))


def test_a_phase_of_many_gpus_clashes_with_one_on_any_of_them() -> None:
    book = ledger(Phase("generator", 2, "decode", 0, 10))
    with pytest.raises(LedgerError, match="generator:2 is booked twice"):
        book.add(Phase("generator", 0, "push", 9, 11, gpus=4))


def test_rounding_of_a_microsecond_is_not_an_overlap() -> None:
    book = ledger(Phase("trainer", 0, "update", 0, 10))
    book.add(Phase("trainer", 0, "push", 10 - 5e-7, 12))
    with pytest.raises(LedgerError):
        book.add(Phase("trainer", 0, "push", 12 - 2e-6, 13))


@pytest.mark.parametrize(
    "phase",
    [
        Phase("trainer", 2, "update", 0, 1),
        Phase("trainer", 1, "update", 0, 1, gpus=2),
        Phase("trainer", -1, "update", 0, 1),
    ],
)
def test_impossible_phases(phase: Phase) -> None:
    with pytest.raises(LedgerError, match=r"impossible phase .*the run has 2 trainer GPUs"):
        ledger(phase)


@pytest.mark.parametrize(("start", "end"), [(5, 4), (-1, 1), (0, float("inf")), (float("nan"), 1)])
def test_impossible_times(start: float, end: float) -> None:
    with pytest.raises(LedgerError, match=r"impossible phase .*0 <= start <= end < infinity"):
        ledger(Phase("trainer", 0, "update", start, end))


def test_a_role_cannot_be_busy_for_longer_than_it_existed() -> None:
    book = ledger(Phase("trainer", 0, "update", 0, HOUR))
    book.report(0.5 * HOUR)  # two trainers for half an hour: one hour in all, all of it busy
    with pytest.raises(LedgerError, match=r"trainer GPUs were busy for 0\.200000 GPU-hours more"):
        book.report(0.4 * HOUR)


def test_the_tolerance_is_a_microsecond_and_not_a_millionth_of_an_hour() -> None:
    book = ledger(Phase("evaluator", 0, "eval", 0, 10))
    assert book.report(10 - 5e-7)["evaluator"]["idle"] == 0.0
    with pytest.raises(LedgerError):
        book.report(10 - 2e-3)


@st.composite
def bookings(draw: st.DrawFn) -> tuple[list[Phase], float]:
    """Phases that do not overlap, role by role and GPU by GPU, and a time after the last."""
    phases: list[Phase] = []
    for role in ROLES:
        now = 0.0
        for _ in range(draw(st.integers(0, 6))):
            gpus = draw(st.integers(1, GPUS[role]))
            index = draw(st.integers(0, GPUS[role] - gpus))
            start = now + draw(st.floats(0, 1e4))
            now = start + draw(st.floats(0, 1e4))
            what = draw(st.sampled_from(["decode", "update", "push"]))
            phases.append(Phase(role, index, what, start, now, gpus))
    return phases, max((phase.end for phase in phases), default=0.0) + draw(st.floats(0, 1e4))


@settings(max_examples=50, deadline=None)
@given(bookings())
def test_every_gpu_second_is_somewhere(booked: tuple[list[Phase], float]) -> None:
    phases, now = booked
    book = ledger(*phases)
    rows = book.report(now)
    for role, gpus in GPUS.items():
        assert sum(rows[role].values()) == pytest.approx(gpus * now / HOUR, rel=1e-9, abs=1e-9)
        assert min(rows[role].values()) >= 0
        busy = sum((p.end - p.start) * p.gpus for p in phases if p.role == role)
        assert sum(rows[role].values()) - rows[role]["idle"] == pytest.approx(
            busy / HOUR, rel=1e-9, abs=1e-9
        )
    inside = sum(rows["generator"].values()) + sum(rows["trainer"].values())
    assert book.gpu_hours(now) == pytest.approx(inside, rel=1e-9, abs=1e-9)


def test_a_ledger_survives_a_checkpoint() -> None:
    book = ledger(Phase("generator", 0, "decode", 0, 10), Phase("trainer", 0, "update", 2, 4, 2))
    again = Ledger(GPUS)
    again.load_json(json.loads(json.dumps(book.to_json())))
    assert again == book
    with pytest.raises(LedgerError):  # it still knows until when a GPU is busy
        again.add(Phase("generator", 0, "decode", 9, 11))


# ---- what a virtual GPU costs ----

FIELDS: dict[str, Any] = {
    "token_scale": 2.0,
    "model_params": 10.0,
    "kv_bytes_token": 3.0,
    "gpu_flops": 100.0,
    "gpu_bytes_s": 50.0,
    "decode_efficiency": 0.5,
    "prefill_efficiency": 0.25,
    "train_efficiency": 0.2,
    "optimizer_s": 7.0,
}


def test_costs_by_hand() -> None:
    gpu = Hardware(**FIELDS)
    # a step reads 2 B * 10 weights and 5 * 2 * 3 = 30 B of cache, twice (token_scale), at 25 B/s
    assert gpu.decode_s(1, 5) == 2 * (20 + 30) / 25
    # memory-bound: the weights are read once, however many rows share them
    assert gpu.decode_s(8, 5) == gpu.decode_s(1, 5)
    assert gpu.decode_s(1, 0) == 2 * 20 / 25  # even without any cache
    assert gpu.decode_s(0, 0) == 0.0
    # 2 FLOPs * 10 parameters * 3 tokens * 2 = 120, at 25 FLOP/s
    assert gpu.prefill_s(3) == 120 / 25
    # 7 s + 6 * 10 * 3 * 2 = 360 FLOPs on 4 GPUs at 20 FLOP/s each
    assert gpu.train_s(3, 4) == 7 + 360 / 80


def test_default_update_costs_about_what_the_papers_did() -> None:
    """1.45 GPU-hours an update at 768 completions, of which 16 of 80 GPUs train: about 0.3 of an hour by them."""
    gpu, trainers = Hardware(), 16
    # 768 rows of 24 thinking tokens stand for 768 * 12,288 real ones
    trained_gpu_h = trainers * gpu.train_s(768 * 24, trainers) / HOUR
    assert 0.2 < trained_gpu_h < 0.45
