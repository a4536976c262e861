"""Pre-training of the start policy: what it is shown, and that a seed decides everything."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from sandbox import vocabulary as words
from sandbox.lessons import (
    Habits,
    digit_sum_trace,
    lesson_of,
    pair_sum_trace,
    polynomial_trace,
)
from sandbox.model import load_policy
from sandbox.pretrain import (
    Pretraining,
    batch_of_traces,
    check_fits,
    pretrain,
    save_start_policy,
)
from sandbox.tasks import polynomial
from sandbox.tasks.digit_sum import DigitSum, make_prompt, think
from sandbox.tasks.mixture import Mixture
from sandbox.tasks.pair_sum import PairSum
from sandbox.tasks.polynomial import Polynomial, terms_of
from sandbox.tasks.polynomial import make_prompt as make_polynomial
from sandbox.tasks.polynomial import think as think_polynomial
from scalerl.errors import InputError
from scalerl.task import Prompt, Task

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
    tokenizer = json.loads((tmp_path / "deep" / "start" / "tokenizer.json").read_text())
    assert tokenizer["model"]["vocab"] == {word: i for i, word in enumerate(words.WORDS[:49])}
    assert [special["content"] for special in tokenizer["added_tokens"]] == [
        "<pad>",
        "<bos>",
        "<eos>",
    ]


def test_sizes_are_as_asked_and_the_vocabulary_is_the_widest_task_s() -> None:
    mixture = Mixture((DigitSum(), PairSum(), Polynomial()))
    config = Pretraining(mixture, width=64, layers=1, positions=160).config
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (63, 64, 128)
    assert (config.num_hidden_layers, config.max_position_embeddings) == (1, 160)
    assert Pretraining().config.vocab_size == 49


@pytest.mark.parametrize("width", [16, 48])
def test_other_widths_learn_too(width: int) -> None:
    losses: list[float] = []
    spec = Pretraining(Polynomial(), steps=52, batch=8, width=width)
    pretrain(spec, 0, lambda step, loss: losses.append(loss))
    assert losses[-1] < losses[0] - 0.3


def test_too_few_positions_are_refused_before_training() -> None:
    """17 numbers and 2 tokens around them; 35 of thinking and 3 more: 57."""
    check_fits(Pretraining(positions=57))
    with pytest.raises(InputError, match="takes 57 positions, the policy has 56"):
        check_fits(Pretraining(positions=56))


# --- what it is shown ---


def rows_of(done: float, batch: int = 400, *tasks: Task) -> list[tuple[list[int], list[int]]]:
    """Prompt and trace of each row; the mask must be on exactly the trace."""
    lessons = [lesson_of(task, Habits()) for task in tasks or (TASK,)]
    token_BT, target_BT = batch_of_traces(lessons, batch, np.random.default_rng(0), done)
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
        tokens = digit_sum_trace(rng, numbers, 1, slip_rate=1.0, stop_rate=0.0)
        assert tokens[-2] == tokens[-4]
        seen.add(tokens[-2] - words.FIRST_DIGIT)
    assert len(seen) > 5
    assert digit_sum_trace(rng, numbers, 1, 0.0, 0.0) == TASK.solve(make_prompt(0, numbers, 1))


def test_a_stop_before_the_first_number_leaves_a_guess() -> None:
    rng = np.random.default_rng(2)
    guesses = set()
    for _ in range(60):
        tokens = digit_sum_trace(rng, [17, 4, 25, 9], 2, slip_rate=0.0, stop_rate=1.0)
        assert [tokens[0], tokens[1], tokens[3]] == [words.MEDIUM, words.CLOSE, words.EOS]
        guesses.add(tokens[2] - words.FIRST_DIGIT)
    assert guesses == set(range(10))


def test_tasks_of_a_mixture_take_turns() -> None:
    rows = rows_of(0.2, 9, DigitSum(), PairSum(), Polynomial())
    is_sum = [words.X not in prompt and prompt[-2] < words.FIRST_DIGIT for prompt, _ in rows]
    is_pair = [prompt[-2] >= words.FIRST_DIGIT and words.X not in prompt for prompt, _ in rows]
    is_polynomial = [words.X in prompt for prompt, _ in rows]
    assert is_sum == [True, False, False] * 3
    assert is_pair == [False, True, False] * 3
    assert is_polynomial == [False, False, True] * 3


@pytest.mark.parametrize("task", [PairSum(), Polynomial()])
def test_first_faultless_work_of_the_other_tasks(task: Task) -> None:
    """Every one of the first traces verifies, but for searches that end at the 14th try."""
    rows = rows_of(0.3, 400, task)
    right = [
        task.verify(Prompt(0, tuple(prompt), answer_to(task, prompt), 1), shown)
        for prompt, shown in rows
    ]
    tried = [len(shown) - 4 for _, shown in rows]
    if task.name == "polynomial":
        assert all(right)
    else:
        assert all(ok or thinking == 14 * 3 for ok, thinking in zip(right, tried, strict=True))
        assert np.mean(right) > 0.6


def answer_to(task: Task, prompt: list[int]) -> tuple[int, ...]:
    if task.name == "pair_sum":
        return ()
    return make_polynomial(0, terms_of(Prompt(0, tuple(prompt), (), 1)), 1).answer


def test_a_search_is_given_up_after_a_miss_or_goes_on_to_the_last_try() -> None:
    """4 + 12 is the only pair of these whose sum ends in 6."""
    rng, numbers = np.random.default_rng(3), [17, 4, 25, 12]
    lengths = []
    for _ in range(200):
        tokens = pair_sum_trace(rng, numbers, 6, give_up_rate=0.0, slip_rate=0.0)
        thinking, answer = tokens[:-4], tokens[-3:-1]
        assert tokens[-4] == words.CLOSE and tokens[-1] == words.EOS
        assert thinking[-3:-1] == answer
        hits = [digit == words.FIRST_DIGIT + 6 for digit in thinking[2::3]]
        assert not any(hits[:-1])
        assert hits[-1] or len(hits) == 14
        lengths.append(len(hits))
    assert np.mean(lengths) == pytest.approx(5.6, abs=1.0)  # one of 6 pairs: (1 - (5/6)^14) * 6
    once = [len(pair_sum_trace(rng, numbers, 6, 1.0, 0.0)) for _ in range(20)]
    assert once == [3 + 4] * 20


def test_a_slip_of_the_search_is_a_wrong_sum_that_is_believed() -> None:
    rng, false_hits = np.random.default_rng(4), 0
    for _ in range(100):
        tokens = pair_sum_trace(rng, [1, 2], 9, give_up_rate=0.0, slip_rate=1.0)
        false_hits += tokens[-5] == words.FIRST_DIGIT + 9
    assert false_hits > 50  # 1 - 0.9^14 = 0.77 of 100


def test_polynomials_are_collected_from_what_was_thought_of() -> None:
    rng, terms = np.random.default_rng(5), [(3, True), (5, False), (2, True), (4, False)]
    for stride, answer in ((1, "5 x + 9"), (2, "5 x"), (3, "3 x + 4")):
        shown = polynomial_trace(rng, terms, stride, 0.0, 0.0)
        end = [words.CLOSE, *(words.WORDS.index(word) for word in answer.split()), words.EOS]
        assert shown == [*think_polynomial(terms, stride), *end]
    slipped = {
        tuple(polynomial_trace(rng, terms, 1, slip_rate=1.0, stop_rate=0.0)) for _ in range(300)
    }
    assert len(slipped) > 250
    for tokens in slipped:
        totals = [token - words.FIRST_NUMBER for token in tokens[3:-6:3]]
        assert len(totals) == 4
        assert all(0 < total < words.NUMBERS for total in totals), "a slip runs out of words"
        assert tokens[-5:-1] == tuple(polynomial.answer_of(totals[2], totals[3]))
    assert polynomial_trace(rng, terms, 1, 0.0, stop_rate=1.0) == [
        words.HIGH,
        words.CLOSE,
        words.EOS,
    ]


# --- a task of the user's own, known by its solutions alone ---


@dataclass(frozen=True)
class Echo:
    """Say the word of the prompt again; thinking says it three times."""

    name: str = "echo"
    splits: tuple[str, ...] = ("train", "validation")
    vocab_size: int = 24
    eos_id: int = 2
    think_close_id: int = 4
    interruption: tuple[int, ...] = (4,)

    def prompts(self, split: str) -> list[Prompt]:
        of = range(5, 15) if split == "train" else range(15, 24)
        return [Prompt(i, (1, word), (word,), 1 + i % 2) for i, word in enumerate(of)]

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        return list(token_ids[-3:]) == [4, *prompt.answer, 2]

    def solve(self, prompt: Prompt) -> list[int]:
        return [*prompt.answer * 3, 4, *prompt.answer, 2]

    def to_text(self, token_ids: Sequence[int]) -> str:
        return " ".join(f"w{token}" for token in token_ids)


def test_any_task_is_learned_from_its_solutions(tmp_path: Path) -> None:
    task = Echo()
    assert all(task.verify(Prompt(0, tuple(p), (p[1],), 1), shown) for p, shown in lone(task, 0.5))
    first = {prompt[1] for prompt, _ in lone(task, 0.0)}
    assert first == {5}, "the easiest tenth"
    early = [len(shown) < 6 for _, shown in lone(task, 0.9)]
    assert np.mean(early) == pytest.approx(0.5 * 3 / 4, abs=0.08)  # a cut at 3 of 3 is none
    policy = pretrain(Pretraining(task, steps=3, batch=4), 0)
    save_start_policy(policy, tmp_path / "echo", [f"w{id}" for id in range(24)])
    assert load_policy(tmp_path / "echo").config.vocab_size == 24
    tokenizer = json.loads((tmp_path / "echo" / "tokenizer.json").read_text())
    assert tokenizer["model"]["vocab"]["w23"] == 23


def lone(task: Task, done: float) -> list[tuple[list[int], list[int]]]:
    rng, lesson = np.random.default_rng(0), lesson_of(task, Habits())
    return [lesson(rng, done) for _ in range(400)]
