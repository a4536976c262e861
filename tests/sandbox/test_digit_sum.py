"""The task: its words, its splits, and a verifier that cannot be talked into anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import vocabulary as words
from sandbox.tasks.digit_sum import LEVELS, DigitSum, make_prompt, think
from scalerl.task import check_task

TASK = DigitSum()
NUMBERS = st.lists(st.integers(0, words.NUMBERS - 1), min_size=1, max_size=17)


def ids(text: str) -> list[int]:
    return [words.WORDS.index(word) for word in text.split()]


def numbers_of(token_ids: tuple[int, ...]) -> list[int]:
    return [int(words.WORDS[token]) for token in token_ids[1:-1]]


def test_the_contract() -> None:
    check_task(TASK, sample=2000)


def test_words_are_distinct_and_ids_are_their_places() -> None:
    assert len(set(words.WORDS)) == len(words.WORDS) == 9 + 30 + 10 + 4 + 10
    assert ids("x + x: 1: ?0 ?9") == [49, 50, 51, 52, 53, 62]
    assert ids("<pad> <bos> <eos> <think> </think> time-is-up low: medium: high:") == list(range(9))
    assert TASK.interruption == tuple(ids("time-is-up </think>"))
    assert words.to_text([1, words.FIRST_NUMBER + 17, words.FIRST_DIGIT + 5]) == "<bos> 17 =5"


@pytest.mark.parametrize(
    ("stride", "text"),
    [
        (1, "high: 17 =7 4 =1 25 =6 9 =5"),  # 17, 21, 46, 55
        (2, "medium: 17 =7 25 =2"),  # 17, 42
        (3, "low: 17 =7 9 =6"),  # 17, 26
    ],
)
def test_thinking_by_hand(stride: int, text: str) -> None:
    assert think([17, 4, 25, 9], stride) == ids(text)


def test_prompt_and_solution_by_hand() -> None:
    prompt = make_prompt(0, [17, 4, 25, 9], 1)
    assert list(prompt.token_ids) == ids("<bos> 17 4 25 9 <think>")
    assert list(prompt.answer) == ids("=5")
    assert TASK.solve(prompt) == ids("high: 17 =7 4 =1 25 =6 9 =5 </think> =5 <eos>")


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (True, "high: 17 =7 4 =1 25 =6 9 =5 </think> =5 <eos>"),
        (True, "</think> =5 <eos>"),  # thinking is not asked for, only closing it
        (True, "medium: 17 time-is-up </think> =5 <eos>"),
        (False, "</think> =4 <eos>"),
        (False, "</think> =5"),
        (False, "</think> =5 =5"),
        (False, "=5 <eos>"),
        (False, "high: 17 =5 <eos>"),
        (False, "</think> =5 <eos> <eos>"),
        (False, "</think> =4 =5 <eos>"),
        (False, "</think> =5 </think> =5 <eos>"),
        (False, "</think> </think> =5 <eos>"),
        (False, "</think> 5 <eos>"),  # the number, not the digit
        (False, "</think> <eos> =5 <eos>"),
        (False, "<eos>"),
        (False, ""),
    ],
)
def test_the_verifier_by_hand(right: bool, text: str) -> None:
    """The sum is 55, so the answer is =5."""
    assert TASK.verify(make_prompt(0, [17, 4, 25, 9], 1), ids(text)) is right


@given(NUMBERS, st.data())
def test_one_wrong_token_at_the_end_is_never_right(numbers: list[int], data: st.DataObject) -> None:
    prompt = make_prompt(0, numbers, 1)
    solution = TASK.solve(prompt)
    assert TASK.verify(prompt, solution)
    assert TASK.to_text(solution).split()[-2] == f"={sum(numbers) % 10}"
    place = data.draw(st.integers(-3, -1))
    other = data.draw(st.integers(0, len(words.WORDS) - 1).filter(lambda t: t != solution[place]))
    solution[place] = other
    assert not TASK.verify(prompt, solution)


@given(st.lists(st.integers(0, len(words.WORDS) - 1), max_size=8))
def test_the_verifier_answers_whatever_it_is_given(tokens: list[int]) -> None:
    assert TASK.verify(make_prompt(0, [1, 2], 1), tokens) in (True, False)


def test_train_and_validation_are_one_mixture_of_levels() -> None:
    for split, size in (("train", 1152), ("validation", 512)):
        prompts = TASK.prompts(split)
        assert len(prompts) == size
        for level, (low, high) in enumerate(LEVELS, start=1):
            lengths = [len(numbers_of(p.token_ids)) for p in prompts if p.level == level]
            assert size // 3 <= len(lengths) <= size // 3 + 1
            assert (min(lengths), max(lengths)) == (low, high)
        assert all(len(set(p.token_ids)) == len(p.token_ids) for p in prompts), "a number repeats"


def test_ood_repeats_numbers_and_nothing_else_changes() -> None:
    prompts = TASK.prompts("ood")
    lengths = [len(numbers_of(p.token_ids)) for p in prompts]
    assert len(prompts) == 256
    assert (min(lengths), max(lengths)) == (5, 12)
    assert all(len(set(p.token_ids)) < len(p.token_ids) for p in prompts)
    assert {p.level for p in prompts} == {4}


def test_the_benchmark_is_thirty_of_the_longest_that_stand_nowhere_else() -> None:
    prompts = TASK.prompts("benchmark")
    assert len(prompts) == 30
    assert {len(set(numbers_of(p.token_ids))) for p in prompts} == {17}
    assert {p.level for p in prompts} == {3}


def test_the_shipped_policy_knows_every_word_it_needs() -> None:
    """Words of other tasks come after those 49 that it was made with."""
    assert TASK.vocab_size == 49
    assert max(max(p.token_ids) for split in TASK.splits for p in TASK.prompts(split)) < 49


def test_the_first_prompts_are_those_of_every_run_so_far() -> None:
    first = {split: TASK.to_text(TASK.prompts(split)[0].token_ids) for split in TASK.splits[:3]}
    assert first == {
        "train": "<bos> 25 5 28 1 <think>",
        "validation": "<bos> 18 1 28 29 <think>",
        "ood": "<bos> 9 18 21 23 11 1 26 14 29 5 21 <think>",
    }


def test_every_answer_is_the_last_digit_of_its_sum_and_all_digits_are_asked_for() -> None:
    asked = set()
    for split in TASK.splits:
        for prompt in TASK.prompts(split):
            digit = sum(numbers_of(prompt.token_ids)) % 10
            assert words.to_text(prompt.answer) == f"={digit}"
            asked.add(digit)
    assert asked == set(range(10))


def test_the_hardest_prompts_need_35_thinking_tokens() -> None:
    """Between the earliest cut of the default budget, round(0.8333 * 36) = 30, and the latest, 36."""
    need = [len(TASK.solve(p)) - 3 for p in TASK.prompts("train")]
    assert max(need) == 1 + 2 * 17
    assert min(need) == 1 + 2 * 3


def test_an_unknown_split_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="train, validation, ood"):
        TASK.prompts("test")
