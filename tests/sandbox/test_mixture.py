"""Several tasks as one: shares, order, and who verifies what."""

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from sandbox.tasks.digit_sum import DigitSum
from sandbox.tasks.mixture import Mixture, interleaved
from sandbox.tasks.pair_sum import PairSum
from sandbox.tasks.registry import make_task
from scalerl.errors import InputError
from scalerl.task import Prompt, Task, check_task

DIGITS, PAIRS = DigitSum(), PairSum()
BOTH = Mixture((DIGITS, PAIRS))


@dataclass(frozen=True)
class Small(DigitSum):
    """The digit sum with a name, a size and an extra split of its own."""

    name: str = "small"
    splits: tuple[str, ...] = ("train", "validation", "extra")
    train_prompts: int = 100


def sources(task: Task, split: str) -> list[str]:
    return [prompt.source for prompt in task.prompts(split)]


def test_it_keeps_the_contract() -> None:
    check_task(BOTH)
    assert BOTH.name == "digit_sum+pair_sum"
    assert BOTH.vocab_size == max(DIGITS.vocab_size, PAIRS.vocab_size)


def test_places_are_spread_evenly() -> None:
    assert interleaved([2, 2]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    # 4 and 2: at 1/8 3/8 5/8 7/8 and at 1/4 3/4
    assert interleaved([4, 2]) == [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (3, 0)]


@pytest.mark.parametrize("split", ["validation", "ood", "benchmark"])
def test_evaluation_asks_every_task_equally_often_in_every_prefix(split: str) -> None:
    weighted = Mixture((DIGITS, PAIRS), (Fraction(5), Fraction(1)))
    asked = sources(weighted, split)
    assert asked[::2] == ["digit_sum"] * (len(asked) // 2)
    assert asked[1::2] == ["pair_sum"] * (len(asked) // 2)
    assert len(asked) == 2 * len(DIGITS.prompts(split))


def test_weights_are_shares_of_the_training_prompts() -> None:
    twice = Mixture((DIGITS, PAIRS), (Fraction(2), Fraction(1)))
    assert twice.name == "2*digit_sum+pair_sum"
    assert Counter(sources(twice, "train")) == {"digit_sum": 1152, "pair_sum": 576}
    assert Counter(sources(twice, "train")[:300]) == {"digit_sum": 200, "pair_sum": 100}
    half = Mixture((DIGITS, PAIRS), (Fraction(1, 2), Fraction(1)))
    assert Counter(sources(half, "train")) == {"digit_sum": 576, "pair_sum": 1152}


def test_the_longer_part_is_cut_and_none_is_repeated() -> None:
    mixed = Mixture((Small(), PAIRS))
    assert Counter(sources(mixed, "train")) == {"small": 100, "pair_sum": 100}
    assert mixed.splits == ("train", "validation")  # only what both have
    assert len({prompt.token_ids for prompt in mixed.prompts("train")}) == 200


def test_prompts_are_those_of_the_parts_with_new_numbers() -> None:
    train = BOTH.prompts("train")
    assert [prompt.id for prompt in train] == list(range(2304))
    assert train[6] == replace(DIGITS.prompts("train")[3], id=6, source="digit_sum")
    assert train[7] == replace(PAIRS.prompts("train")[3], id=7, source="pair_sum")


class Nobody(PairSum):
    """Takes nothing, under another name."""

    def __init__(self) -> None:
        super().__init__(name="nobody")

    def verify(self, prompt: Prompt, token_ids: object) -> bool:
        assert prompt.source == ""  # a part never sees that it is mixed
        return False


def test_each_completion_is_verified_by_the_task_of_its_prompt() -> None:
    mixed = Mixture((DIGITS, Nobody()))
    ours, theirs = mixed.prompts("validation")[:2]
    assert mixed.verify(ours, mixed.solve(ours)) and not mixed.verify(theirs, mixed.solve(theirs))


@pytest.mark.parametrize(
    ("tasks", "weights", "said"),
    [
        ((DIGITS,), (), "needs two or more different tasks, not digit_sum"),
        ((DIGITS, PAIRS, DIGITS), (), "not digit_sum \\+ pair_sum \\+ digit_sum"),
        ((DIGITS, BOTH), (), "'digit_sum\\+pair_sum' is a mixture already: name its parts"),
        ((DIGITS, PairSum(eos_id=1)), (), "'digit_sum' and 'pair_sum' cannot be mixed: eos_id is 2 and 1"),
        ((DIGITS, PairSum(interruption=(4,))), (), "interruption is \\(5, 4\\) and \\(4,\\)"),
        ((DIGITS, PAIRS), (Fraction(1), Fraction(0)), "as many weights, all above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed(
    tasks: tuple[Task, ...], weights: tuple[Fraction, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        Mixture(tasks, weights)


def test_a_weight_that_leaves_nothing() -> None:
    with pytest.raises(InputError, match=r"no prompt is left"):
        make_task("0.0001*digit_sum+pair_sum").prompts("train")


def test_by_name() -> None:
    named = make_task("digit_sum + 2*pair_sum")
    assert named == Mixture((DIGITS, PAIRS), (Fraction(1), Fraction(2)))
    assert make_task("digit_sum+pair_sum") == make_task("3*digit_sum+3*pair_sum") == BOTH
