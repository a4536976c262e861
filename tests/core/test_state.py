"""What the loop remembers: no group lost or counted twice, all of it saved."""

import json
import pickle

import pytest
from states import completion, filled, fresh, scored

from scalerl.rollout import Completion, Group
from scalerl.state import Finished, Ticket
from scalerl.world import EvalResult

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


# ---- saved and loaded ----


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
