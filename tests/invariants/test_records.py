"""Records of completions on their way to the trainer: versions, log-probs and marks, token by token."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_policies import random_policy

from sandbox.decoder import Decoder
from sandbox.rows import Sampling
from sandbox.tasks.digit_sum import DigitSum, make_prompt
from sandbox.vocabulary import EOS
from scalerl.batch import RolloutBatch
from scalerl.errors import BatchError
from scalerl.recipe import NoLengthControl
from scalerl.rollout import Completion, Group


def packed(completions: list[Completion], pad_id: int = 0) -> RolloutBatch:
    return RolloutBatch.from_groups([Group(3, 0, [1], completions)], pad_id)


def hexed(values: list[float]) -> list[str]:
    return [value.hex() for value in values]


@pytest.mark.invariant("K11")
@given(st.lists(st.integers(0, 2), min_size=9, max_size=9), st.integers(0, 99))
def test_sandbox_stamps_what_sampled(steps_apart: list[int], seed: int) -> None:
    """Rows seated at different steps; before step i the version rises by steps_apart[i]."""
    how = Sampling(NoLengthControl(), 6, 2, 1.0, torch.float32)
    decoder = Decoder(random_policy(1), DigitSum(), how, 3, widest_prompt=4)
    versions, seated = [], {}
    for step, rise in enumerate([*steps_apart, *[0] * 3]):
        if step < 3:
            decoder.seat(make_prompt(0, [1, 2], 1), step, range(1), seed)
            seated[step] = step
        decoder.version += rise
        versions.append(decoder.version)
        for done in decoder.step() if decoder.rows.count else []:
            first = seated[done.key]
            expected = versions[first : first + done.completion.length_tokens]
            assert done.completion.version == expected


@pytest.mark.invariant("K10")
@given(
    st.lists(
        st.floats(-50, 0, width=32) | st.sampled_from([-0.0, -(2.0**-149)]), min_size=1, max_size=5
    )
)
def test_log_probs_of_a_float32_head_reach_the_tensor(logp: list[float]) -> None:
    n = len(logp)
    group = Group(0, 0, [1], [Completion([5] * n, logp, [0] * n, [True] * n)])
    again = Group.from_json(json.loads(json.dumps(group.to_json())))
    assert hexed(again.completions[0].logp) == hexed(logp)
    assert hexed(RolloutBatch.from_groups([again]).behavior_logp_BT[0, 1:].tolist()) == hexed(logp)


@pytest.mark.invariant("D09")
def test_the_reported_row_has_three_trained_tokens() -> None:
    row = Completion([5, 6, EOS], [-0.5] * 3, [0] * 3, [True] * 3)
    longer = Completion([5] * 5, [-0.5] * 5, [0] * 5, [True] * 5)
    assert packed([row, longer], pad_id=EOS).mask_BT.sum(1).tolist() == [3, 5]


@pytest.mark.invariant("D15")
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(["logp", "version", "sampled"]),
    st.sampled_from([-1, 1]),
)
def test_records_of_unequal_length_are_refused(
    lengths: list[int], data: st.DataObject, name: str, change: int
) -> None:
    completions = [Completion([5] * n, [-0.5] * n, [0] * n, [True] * n) for n in lengths]
    assert packed(completions).mask_BT.sum(1).tolist() == lengths
    bad = completions[data.draw(st.integers(0, len(lengths) - 1))]
    values = getattr(bad, name)
    setattr(bad, name, values[:-1] if change < 0 else [*values, values[-1]])
    with pytest.raises(BatchError, match=f"values in '{name}'"):
        packed(completions)
