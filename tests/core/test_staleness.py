"""Staleness rules as pure functions: the wait worked by hand, and the bound under random interleavings."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scalerl.recipe import Recipe
from scalerl.staleness import PipelineRL, PPOOffPolicy, Starts, Waiting, staleness_rule


def pipeline_take(
    version: int, finished: Starts, unfinished: Starts, *, k: int, prompts: int
) -> list[int] | Waiting:
    return PipelineRL(k, prompts).take(version, finished, unfinished, 0)


# ---- the rule that a recipe names ----


def test_a_recipe_names_its_rule() -> None:
    assert staleness_rule(Recipe()) == PipelineRL(8, 48)
    off_policy = Recipe.model_validate(
        {"staleness": {"kind": "ppo_off_policy", "k": 3}, "prompts_per_update": 5, "seed": 7}
    )
    assert staleness_rule(off_policy) == PPOOffPolicy(3, 5, 7)


def test_capacity() -> None:
    # ScaleRL: (8 + 1) * 48; k = 0 is the one batch of the synchronous loop
    assert PipelineRL(8, 48).capacity == 432
    assert PipelineRL(0, 48).capacity == 48
    assert PPOOffPolicy(8, 48, 0).capacity == 384
    assert PPOOffPolicy(1, 48, 0).capacity == 48


# ---- PipelineRL by hand ----


def test_pipeline_waits_for_a_whole_batch_and_blames_nobody() -> None:
    assert pipeline_take(0, {}, {0: 0, 1: 0}, k=1, prompts=2) == Waiting(None)
    assert pipeline_take(0, {1: 0}, {0: 0}, k=1, prompts=2) == Waiting(None)


def test_pipeline_takes_the_smallest_starts_then_the_smallest_ordinals() -> None:
    # starts 4, 2, 3, 2: oldest first are 5 and 9 (start 2), whatever the order in which they finished
    finished = {3: 4, 9: 2, 7: 3, 5: 2}
    assert pipeline_take(4, finished, {}, k=8, prompts=2) == [5, 9]
    assert pipeline_take(4, finished, {}, k=8, prompts=3) == [5, 9, 7]


@pytest.mark.parametrize(
    ("version", "finished", "unfinished", "expected"),
    [
        # k = 1, P = 2. At version 1, after taking two:
        #   j = 0: at most 0 groups of start <= 0;   j = 1: at most 2 groups of start <= 1
        (1, {0: 0, 1: 0}, {2: 1, 3: 1}, [0, 1]),
        (1, {0: 0, 1: 0}, {2: 0, 3: 1}, Waiting(2)),  # 2 has start 0 and would be taken at lag 2
        (1, {0: 0, 1: 0, 2: 1}, {3: 1}, [0, 1]),
        (
            1,
            {0: 0, 1: 0, 4: 1},
            {2: 1, 3: 1},
            Waiting(2),
        ),  # j = 1: three of start <= 1, two allowed
        # A group that is finished but not in the batch counts like one that is not.
        (1, {0: 0, 1: 0, 2: 1, 4: 1}, {3: 1}, Waiting(3)),
        # At version 0 nothing has a start below 0: j = 0 asks for start <= -1, j = 1 for start <= 0.
        (0, {0: 0, 1: 0}, {2: 0, 3: 0}, [0, 1]),
        (0, {0: 0, 1: 0}, {2: 0, 3: 0, 4: 0}, Waiting(2)),
        # Several late groups: the one of smallest start is to blame, then of smallest ordinal.
        (2, {5: 1, 6: 1}, {3: 1, 8: 0, 7: 0}, Waiting(7)),
        (2, {5: 1, 6: 1}, {9: 1, 3: 1, 8: 2}, Waiting(3)),
    ],
)
def test_pipeline_wait_by_hand(
    version: int, finished: Starts, unfinished: Starts, expected: list[int] | Waiting
) -> None:
    assert pipeline_take(version, finished, unfinished, k=1, prompts=2) == expected


def test_synchronous_at_k_0_needs_everything_finished() -> None:
    # k = 0, P = 2: j = 0 allows no other group of start <= version at all
    assert pipeline_take(3, {6: 3, 7: 3}, {}, k=0, prompts=2) == [6, 7]
    assert pipeline_take(3, {6: 3, 7: 3}, {8: 3}, k=0, prompts=2) == Waiting(8)


def test_a_slot_budget_alone_would_let_a_straggler_grow_old() -> None:
    """One group of start 0 never finishes while two at a time overtake it; k = 2, P = 2."""
    # v = 2: j = 0 forbids start <= 0 after the take, so the trainer stops here: the straggler's lag
    # is 2 when it is taken at last. Budget (k + 1) P = 6 is not even used up.
    assert pipeline_take(1, {1: 0, 2: 0}, {0: 0, 3: 1}, k=2, prompts=2) == [1, 2]
    assert pipeline_take(2, {3: 1, 4: 1}, {0: 0, 5: 2}, k=2, prompts=2) == Waiting(0)
    assert pipeline_take(2, {0: 0, 3: 1, 4: 1}, {5: 2}, k=2, prompts=2) == [0, 3]


def test_pipeline_pushes_after_every_batch() -> None:
    assert PipelineRL(2, 2).push_due({1: 0}, {2: 0}) and PipelineRL(2, 2).push_due({}, {})


# ---- PPO-off-policy by hand ----


def test_off_policy_waits_for_the_whole_phase() -> None:
    rule = PPOOffPolicy(2, 2, 0)
    phase = {0: 0, 1: 0, 2: 0, 3: 0}
    assert rule.take(0, {0: 0, 1: 0, 2: 0}, {3: 0}, 0) == Waiting(None)  # one is still generated
    assert rule.take(0, {0: 0, 1: 0, 2: 0}, {}, 0) == Waiting(None)  # one is not yet admitted
    first = rule.take(0, phase, {}, 0)
    assert isinstance(first, list) and len(first) == 2
    rest = {ordinal: 0 for ordinal in phase if ordinal not in first}
    second = rule.take(1, rest, {}, 2)  # two are taken: their slots are closed, the phase is whole
    assert isinstance(second, list) and sorted(first + second) == [0, 1, 2, 3]
    assert rule.take(1, rest, {}, 0) == Waiting(None)  # the same two, but as part of a new phase


def test_off_policy_pushes_when_the_phase_is_used_up() -> None:
    rule = PPOOffPolicy(2, 2, 0)
    assert not rule.push_due({2: 0, 3: 0}, {})
    assert not rule.push_due({}, {4: 0})
    assert rule.push_due({}, {})


def test_off_policy_order_is_by_seed_and_not_by_arrival() -> None:
    starts = dict.fromkeys(range(40), 0)
    shuffled = dict.fromkeys(Random(5).sample(range(40), 40), 0)
    order = PPOOffPolicy(1, 40, 3).take(0, starts, {}, 0)
    assert order == PPOOffPolicy(1, 40, 3).take(0, shuffled, {}, 0)
    assert order != PPOOffPolicy(1, 40, 4).take(0, starts, {}, 0)
    assert order != list(range(40)) and isinstance(order, list) and sorted(order) == [*range(40)]


# ---- under every interleaving: lag at most k, and somebody can always go on ----


class PipelineMachine(RuleBasedStateMachine):
    """Groups finish in any order, engines die, updates are skipped; the rule decides what is trained.

    The lag is counted from the start, which is at most the version of the oldest token: the bound on it is the
    stronger one.
    """

    k, prompts = 2, 2

    def __init__(self) -> None:
        super().__init__()
        self.rule = PipelineRL(self.k, self.prompts)
        self.version = 0
        self.next_ordinal = 0
        self.finished: dict[int, int] = {}
        self.unfinished: dict[int, int] = {}
        self.fill()

    def fill(self) -> None:
        while len(self.finished) + len(self.unfinished) < self.rule.capacity:
            self.unfinished[self.next_ordinal] = self.version
            self.next_ordinal += 1

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def a_group_finishes(self, data: st.DataObject) -> None:
        ordinal = data.draw(st.sampled_from(sorted(self.unfinished)))
        self.finished[ordinal] = self.unfinished.pop(ordinal)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def an_engine_dies(self, data: st.DataObject) -> None:
        self.unfinished[data.draw(st.sampled_from(sorted(self.unfinished)))] = self.version

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def a_group_is_rejected(self, data: st.DataObject) -> None:
        """Dynamic sampling: its slot reopens at once."""
        del self.finished[data.draw(st.sampled_from(sorted(self.finished)))]
        self.fill()

    @rule(skipped=st.booleans())
    def the_trainer_takes(self, skipped: bool) -> None:
        choice = self.rule.take(self.version, self.finished, self.unfinished, 0)
        if isinstance(choice, Waiting):
            return
        assert len(choice) == self.prompts
        for ordinal in choice:
            assert 0 <= self.version - self.finished.pop(ordinal) <= self.k
        if not skipped:
            self.version += 1
        self.fill()

    @invariant()
    def waiting_has_a_cause_that_can_end(self) -> None:
        choice = self.rule.take(self.version, self.finished, self.unfinished, 0)
        if isinstance(choice, Waiting):
            assert self.unfinished
            assert choice.straggler is None or choice.straggler in self.unfinished


TestPipelineMachine = PipelineMachine.TestCase
TestPipelineMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_bound_is_reached_and_never_passed(k: int, prompts: int, random: Random) -> None:
    """Forty updates, greedily taken: every lag is at most k, each group is trained once, none is lost."""
    rule = PipelineRL(k, prompts)
    version, admitted = 0, 0
    finished: dict[int, int] = {}
    unfinished: dict[int, int] = {}
    lags: list[int] = []
    while version < 40:
        while len(finished) + len(unfinished) < rule.capacity:
            unfinished[admitted] = version
            admitted += 1
        choice = rule.take(version, finished, unfinished, 0)
        if isinstance(choice, list):
            lags += [version - finished.pop(ordinal) for ordinal in choice]
            version += 1
        else:  # late groups tend to be the last to finish
            ordinal = max(random.sample(sorted(unfinished), min(3, len(unfinished))))
            finished[ordinal] = unfinished.pop(ordinal)
    assert max(lags) == k and min(lags) >= 0
    assert len(lags) + len(finished) + len(unfinished) == admitted
