"""What the ledger of GPU-hours must obey, whatever is booked and whenever it is saved."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.compute import ROLES, Ledger, Phase, Role
from scalerl.errors import LedgerError

HOUR = 3600.0
Gpus = dict[Role, int]
seconds = st.one_of(st.sampled_from([0.0, 0.1, 0.3, 0.7, 17.0, 3600.0]), st.floats(0.0, 1e4))
clusters: st.SearchStrategy[Gpus] = st.fixed_dictionaries(
    {role: st.integers(1, 4) for role in ROLES}
)


@st.composite
def bookings(draw: st.DrawFn) -> tuple[Gpus, list[Phase]]:
    """GPUs of each role, and phases that follow each other on every GPU, which has a timeline of its own."""
    gpus = draw(clusters)
    until: dict[tuple[Role, int], float] = {}
    phases: list[Phase] = []
    for _ in range(draw(st.integers(1, 12))):
        role: Role = draw(st.sampled_from(ROLES))
        n = draw(st.integers(1, gpus[role]))
        index = draw(st.integers(0, gpus[role] - n))
        used: list[tuple[Role, int]] = [(role, i) for i in range(index, index + n)]
        start = max(until.get(key, 0.0) for key in used) + draw(seconds)
        end = start + draw(seconds)
        until.update(dict.fromkeys(used, end))
        what = draw(st.sampled_from(["decode", "push", "update"]))
        phases.append(Phase(role, index, what, start, end, n))
    return gpus, phases


def book(gpus: Gpus, phases: list[Phase]) -> Ledger:
    ledger = Ledger(gpus)
    for phase in phases:
        ledger.add(phase)
    return ledger


def last(phases: list[Phase]) -> float:
    return max(phase.end for phase in phases)


def share_a_gpu(one: Phase, other: Phase) -> bool:
    overlap = min(one.index + one.gpus, other.index + other.gpus) - max(one.index, other.index)
    return one.role == other.role and overlap > 0


def assert_same(left: Ledger, right: Ledger, now: float) -> None:
    """To the rounding of sums that were taken in another order."""
    assert left.until == right.until
    rows, others = left.report(now), right.report(now)
    for role in ROLES:
        assert rows[role] == pytest.approx(others[role], rel=1e-12, abs=1e-9)


@pytest.mark.invariant(
    "N01",
    "The hours of a role, idle ones included, add up to its GPUs times the time it existed.",
    "sum over phases of h(role, phase) = gpus(role) * t / 3600",
    "",
)
@pytest.mark.invariant(
    "N09",
    "No row is negative, and a role that was busy for longer than it existed is refused.",
    "idle >= 0;  busy > gpus * t => LedgerError",
    "",
)
@given(bookings(), seconds, seconds)
def test_every_gpu_second_is_somewhere(
    booked: tuple[Gpus, list[Phase]], later: float, evaluation: float
) -> None:
    gpus, phases = booked
    now = last(phases) + later
    rows = book(gpus, phases).report(now, now + evaluation)
    for role in ROLES:
        time = now + evaluation if role == "evaluator" else now
        assert sum(rows[role].values()) == pytest.approx(
            gpus[role] * time / HOUR, rel=1e-12, abs=1e-9
        )
        assert min(rows[role].values()) >= 0.0
        for what in ("decode", "push", "update"):
            mine = [p for p in phases if (p.role, p.what) == (role, what)]
            busy_s = sum((p.end - p.start) * p.gpus for p in mine)
            assert rows[role].get(what, 0.0) == pytest.approx(busy_s / HOUR, rel=1e-12, abs=1e-12)


@pytest.mark.invariant("N09")
@given(clusters, st.floats(1.0, 1e4), st.floats(0.01, 0.99), st.sampled_from(ROLES))
def test_a_role_busier_than_it_existed(gpus: Gpus, busy: float, share: float, role: Role) -> None:
    ledger = book(gpus, [Phase(role, 0, "decode", 0.0, busy, gpus[role])])
    assert ledger.report(busy)[role] == {
        "decode": pytest.approx(gpus[role] * busy / HOUR),
        "idle": 0.0,
    }
    with pytest.raises(LedgerError, match=f"{role} GPUs were busy for"):
        ledger.report(share * busy)


@pytest.mark.invariant(
    "N02",
    "C counts the GPUs of generators and trainers, busy or idle, and nothing of the evaluators.",
    "C = (gpus(generator) + gpus(trainer)) * t / 3600",
    "",
)
@given(bookings(), seconds, st.integers(1, 9))
def test_C_leaves_evaluation_out(
    booked: tuple[Gpus, list[Phase]], later: float, evaluators: int
) -> None:
    gpus, phases = booked
    now = last(phases) + later
    ledger = book(gpus, phases)
    C = ledger.gpu_hours(now)
    assert C == pytest.approx((gpus["generator"] + gpus["trainer"]) * now / HOUR, rel=1e-12)
    rows = ledger.report(now, now + 1e3)
    inside = [*rows["generator"].values(), *rows["trainer"].values()]
    assert sum(inside) == pytest.approx(C, rel=1e-12, abs=1e-9)
    assert Ledger({**gpus, "evaluator": evaluators}).gpu_hours(now) == C  # nothing booked, either


@pytest.mark.invariant(
    "N03",
    "C grows linearly with time and with GPUs, and is 0 at the start.",
    "C(s + t) = C(s) + C(t);  C(n gpus) = n C(gpus);  C(0) = 0",
    "",
)
@given(clusters, seconds, seconds, st.integers(2, 5))
def test_C_is_linear(gpus: Gpus, s: float, t: float, n: int) -> None:
    ledger = Ledger(gpus)
    assert ledger.gpu_hours(s + t) == pytest.approx(
        ledger.gpu_hours(s) + ledger.gpu_hours(t), rel=1e-12
    )
    many: Gpus = {role: n * count for role, count in gpus.items()}
    assert Ledger(many).gpu_hours(s) == pytest.approx(n * ledger.gpu_hours(s), rel=1e-12)
    assert ledger.gpu_hours(0.0) == 0.0
    # an hour of one generator and one trainer more is two GPU-hours more
    more: Gpus = {**gpus, "generator": gpus["generator"] + 1, "trainer": gpus["trainer"] + 1}
    assert Ledger(more).gpu_hours(HOUR) - ledger.gpu_hours(HOUR) == pytest.approx(2.0, rel=1e-12)


@pytest.mark.invariant(
    "N04",
    "Phases on different GPUs may be booked in any order: only each GPU's own follow its time.",
    "ledger(pi(phases)) = ledger(phases) for every pi that keeps the order on each GPU",
    "",
)
@given(bookings(), st.randoms(use_true_random=False))
def test_the_order_of_booking(booked: tuple[Gpus, list[Phase]], random) -> None:
    gpus, phases = booked
    waiting, shuffled = list(phases), []
    while waiting:
        free = [i for i, p in enumerate(waiting) if not any(share_a_gpu(p, q) for q in waiting[:i])]
        shuffled.append(waiting.pop(random.choice(free)))
    assert_same(book(gpus, shuffled), book(gpus, phases), last(phases))


@st.composite
def clashes(draw: st.DrawFn) -> tuple[Ledger, Phase]:
    """A ledger, and a phase on several GPUs of which one is busy as it begins, and the first often free."""
    gpus, phases = draw(bookings())
    role: Role = draw(st.sampled_from(ROLES))
    gpus[role] += draw(st.integers(1, 3))
    at = draw(st.integers(0, gpus[role] - 1))
    start = last(phases) + draw(seconds)
    busy = Phase(role, at, "decode", start, start + draw(st.floats(1e-2, 1e3)))
    first, end = draw(st.integers(0, at)), draw(st.integers(at + 1, gpus[role]))
    begin = busy.end - draw(st.floats(0.05, 1.0)) * (busy.end - busy.start)
    what = draw(st.sampled_from(["decode", "elsewhere"]))
    clash = Phase(role, first, what, begin, busy.end + 5.0, end - first)
    return book(gpus, [*phases, busy]), clash


@pytest.mark.invariant(
    "N05",
    "A GPU does one thing at a time: a phase that begins before its last one has ended is refused.",
    "start < end of the last phase on any of its GPUs => LedgerError",
    "",
)
@given(clashes())
def test_overlap_is_refused(clash: tuple[Ledger, Phase]) -> None:
    ledger, phase = clash
    with pytest.raises(LedgerError, match="booked twice"):
        ledger.add(phase)


@pytest.mark.invariant(
    "N06",
    "What the ledger refuses leaves no trace in it.",
    "add(phase) raises => ledger after = ledger before",
    "",
)
@given(clashes())
def test_a_refused_phase_leaves_no_trace(clash: tuple[Ledger, Phase]) -> None:
    ledger, phase = clash
    before = json.dumps(ledger.to_json())
    n = ledger.gpus[phase.role]
    refused = [
        phase,
        replace(phase, start=phase.end, end=phase.end - 1e-3),  # ends before it starts
        replace(phase, index=-1, start=1e9, end=1e9),
        replace(phase, index=n - phase.gpus + 1, start=1e9, end=1e9),  # one GPU too many
    ]
    for bad in refused:
        with pytest.raises(LedgerError):
            ledger.add(bad)
        assert json.dumps(ledger.to_json()) == before


@pytest.mark.invariant("N06")
@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 0},
        {"gpus": -1},
        {"start": -2.0, "end": -1.0},
        {"start": math.nan},
        {"end": math.nan},
        {"end": math.inf},
    ],
    ids=str,
)
def test_a_phase_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    ledger = Ledger({"generator": 2, "trainer": 2, "evaluator": 2})
    with pytest.raises(LedgerError):
        ledger.add(replace(Phase("trainer", 1, "update", 1.0, 2.0), **change))
    assert ledger == Ledger(ledger.gpus)


@pytest.mark.invariant(
    "N07",
    "A phase cut in two at any moment books what the whole one books.",
    "add([s, e]) = add([s, m]); add([m, e]) for s <= m <= e",
    "",
)
@given(bookings(), st.floats(0.0, 1.0))
def test_a_phase_cut_in_two(booked: tuple[Gpus, list[Phase]], share: float) -> None:
    gpus, phases = booked
    halves: list[Phase] = []
    for phase in phases:
        middle = min(phase.end, phase.start + share * (phase.end - phase.start))
        halves += [replace(phase, end=middle), replace(phase, start=middle)]
    assert_same(book(gpus, halves), book(gpus, phases), last(phases))


@pytest.mark.invariant(
    "N08",
    "A ledger saved and loaded between any two phases goes on as if nothing had happened.",
    "load(save(ledger)) = ledger, at any point and for all that follows",
    "",
)
@given(bookings(), st.data())
def test_saved_and_loaded_at_any_point(
    booked: tuple[Gpus, list[Phase]], data: st.DataObject
) -> None:
    gpus, phases = booked
    cut = data.draw(st.integers(0, len(phases)))
    straight = book(gpus, phases)
    early = book(gpus, phases[:cut])
    saved = json.dumps(early.to_json())
    resumed = Ledger(gpus)
    resumed.load_json(json.loads(saved))
    assert resumed == early
    for phase in phases[:cut]:  # it knows until when each GPU is busy
        if phase.end > 1e-3:
            with pytest.raises(LedgerError, match="booked twice"):
                resumed.add(replace(phase, start=phase.end - 1e-3, end=phase.end, gpus=1))
    for phase in phases[cut:]:
        resumed.add(phase)
    assert resumed == straight
    assert resumed.report(last(phases)) == straight.report(last(phases))


@pytest.mark.invariant(
    "N10",
    "A phase on n GPUs books n times its duration: it is n phases on one GPU each.",
    "add(index, n gpus) = add(index, 1), ..., add(index + n - 1, 1)",
    "",
)
@given(bookings())
def test_a_phase_on_n_gpus_is_n_phases(booked: tuple[Gpus, list[Phase]]) -> None:
    gpus, phases = booked
    singles = [
        replace(phase, index=i, gpus=1)
        for phase in phases
        for i in range(phase.index, phase.index + phase.gpus)
    ]
    assert_same(book(gpus, singles), book(gpus, phases), last(phases))
