"""Pre-training of the start policy: what it is shown, and that a seed decides everything."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sandbox import vocabulary as words
from sandbox.model import load_policy
from sandbox.pretrain import (
    Pretraining,
    batch_of_traces,
    pretrain,
    save_start_policy,
    trace,
)
from sandbox.tasks.digit_sum import DigitSum, make_prompt, think

TASK = DigitSum()
FEW = Pretraining(steps=5, batch=16)


def test_a_seed_gives_the_same_weights_bit_for_bit() -> None:
    first, again, other = (pretrain(FEW, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_loss_falls() -> None:
    """From about ln 49 = 3.9 nats, a guess among all words, to less than ln 15."""
    losses: dict[int, float] = {}
    pretrain(Pretraining(steps=151, batch=32), 0, lambda step, loss: losses.update({step: loss}))
    assert list(losses) == [0, 50, 100, 150]
    assert 3.5 < losses[0] < 5.0
    assert losses[150] < losses[100] < losses[50] < losses[0]
    assert losses[150] < math.log(15)


def test_the_saved_folder_is_complete(tmp_path: Path) -> None:
    policy = pretrain(FEW, 0)
    save_start_policy(policy, tmp_path / "deep" / "start")
    names = {path.name for path in (tmp_path / "deep" / "start").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    again = load_policy(tmp_path / "deep" / "start")
    assert again.config == policy.config
    for name, weight in policy.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)


# --- what it is shown ---


def rows_of(done: float, batch: int = 400) -> list[tuple[list[int], list[int]]]:
    """Prompt and trace of each row; the mask must be on exactly the trace."""
    token_BT, target_BT = batch_of_traces(
        Pretraining(batch=batch), np.random.default_rng(0), done=done
    )
    rows = []
    for token_T, target_T in zip(token_BT.tolist(), target_BT.tolist(), strict=True):
        start = token_T.index(words.THINK) + 1
        end = token_T.index(words.EOS) + 1
        assert target_T == [start <= t < end for t in range(len(token_T))]
        assert token_T[0] == words.BOS
        assert set(token_T[end:]) <= {words.PAD}
        rows.append((token_T[:start], token_T[start:end]))
    return rows


def numbers_in(prompt: list[int]) -> list[int]:
    return [token - words.FIRST_NUMBER for token in prompt[1:-1]]


@pytest.mark.parametrize(
    ("done", "longest"),
    # 3 + floor(done / 0.4 * 15): the curriculum ends at 17 numbers after 40 % of the steps
    [(0.0, 3), (0.2, 10), (0.39, 17)],
)
def test_first_faultless_full_effort_from_short_to_long(done: float, longest: int) -> None:
    rows = rows_of(done)
    for prompt, shown in rows:
        problem = make_prompt(0, numbers_in(prompt), 1)
        assert shown == TASK.solve(problem)
    lengths = [len(numbers_in(prompt)) for prompt, _ in rows]
    assert (min(lengths), max(lengths)) == (3, longest)


def test_then_mostly_too_little_effort_still_without_slips() -> None:
    rows = rows_of(0.6, batch=1500)
    efforts = {words.HIGH: 0, words.MEDIUM: 0, words.LOW: 0}
    for prompt, shown in rows:
        efforts[shown[0]] += 1
        stride = (words.HIGH, words.MEDIUM, words.LOW).index(shown[0]) + 1
        clean = think(numbers_in(prompt), stride)
        assert shown == [*clean, words.CLOSE, clean[-1], words.EOS]
    # 0.3, 0.4, 0.3 of 1,500; the standard deviation of a count is 18 to 19
    assert efforts[words.HIGH] == pytest.approx(450, abs=75)
    assert efforts[words.MEDIUM] == pytest.approx(600, abs=75)


def test_slips_and_early_stops_come_last() -> None:
    """Right after full noise sets in: 0.02 a number stop, 0.04 slip (nine in ten of them to another digit)."""
    rows = rows_of(0.9, batch=1500)
    written = stopped = slipped = 0
    for prompt, shown in rows:
        stride = (words.HIGH, words.MEDIUM, words.LOW).index(shown[0]) + 1
        numbers = numbers_in(prompt)[::stride]
        thoughts = shown[1:-3]
        assert thoughts[::2] == [words.FIRST_NUMBER + n for n in numbers[: len(thoughts) // 2]]
        stopped += len(thoughts) // 2 < len(numbers)
        before, offset = 0, 0
        for number, said in zip(numbers, thoughts[1::2], strict=False):
            digit = said - words.FIRST_DIGIT
            before += number
            now = (digit - before) % 10
            slipped += now != offset
            offset = now
            written += 1
        if thoughts:
            assert shown[-2] == thoughts[-1], "the answer is where the thinking led"
        assert shown[-3:] == [words.CLOSE, shown[-2], words.EOS]
    assert slipped / written == pytest.approx(0.04 * 0.9, abs=0.006)
    assert stopped / (written + stopped) == pytest.approx(0.02, abs=0.005)


def test_a_slip_is_carried_on() -> None:
    """With a slip at every number the running digit is off, and the answer is off by as much."""
    rng = np.random.default_rng(1)
    numbers, seen = [17, 4, 25, 9], set()
    for _ in range(50):
        tokens = trace(rng, numbers, 1, slip_rate=1.0, stop_rate=0.0)
        assert tokens[-2] == tokens[-4]
        seen.add(tokens[-2] - words.FIRST_DIGIT)
    assert len(seen) > 5
    assert trace(rng, numbers, 1, 0.0, 0.0) == TASK.solve(make_prompt(0, numbers, 1))


def test_a_stop_before_the_first_number_leaves_a_guess() -> None:
    rng = np.random.default_rng(2)
    guesses = set()
    for _ in range(60):
        tokens = trace(rng, [17, 4, 25, 9], 2, slip_rate=0.0, stop_rate=1.0)
        assert [tokens[0], tokens[1], tokens[3]] == [words.MEDIUM, words.CLOSE, words.EOS]
        guesses.add(tokens[2] - words.FIRST_DIGIT)
    assert guesses == set(range(10))
