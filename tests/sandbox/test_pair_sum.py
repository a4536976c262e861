"""The task of search: any right pair is right, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import vocabulary as words
from sandbox.tasks.pair_sum import PairSum, make_prompt, numbers_of, right_pairs
from scalerl.task import Prompt, check_task

TASK = PairSum()


def ids(text: str) -> list[int]:
    return [words.WORDS.index(word) for word in text.split()]


def target_of(prompt: Prompt) -> int:
    return int(words.WORDS[prompt.token_ids[-2]].removeprefix("?"))


def test_the_contract() -> None:
    check_task(TASK, sample=2000)


def test_prompt_and_solution_by_hand() -> None:
    """17 + 4 = 21, 17 + 25 = 42, 17 + 9 = 26: the third pair from the left is the first right one."""
    prompt = make_prompt(0, [17, 4, 25, 9, 12], 6, 2)
    assert list(prompt.token_ids) == ids("<bos> 17 4 25 9 12 ?6 <think>")
    assert list(prompt.answer) == ids("17 9")
    assert TASK.solve(prompt) == ids("17 4 =1 17 25 =2 17 9 =6 </think> 17 9 <eos>")


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (True, "17 4 =1 17 9 =6 </think> 17 9 <eos>"),
        (True, "</think> 9 17 <eos>"),  # in either order, thinking is not asked for
        (True, "17 4 =1 </think> 4 12 <eos>"),  # another right pair, never tried
        (True, "17 9 =6 17 time-is-up </think> 12 4 <eos>"),
        (False, "</think> 17 4 <eos>"),
        (False, "</think> 13 13 <eos>"),  # not in the prompt
        (False, "</think> 3 3 <eos>"),
        (False, "</think> 1 5 <eos>"),  # their sum ends in 6, but they are not in the prompt
        (False, "</think> 17 9"),
        (False, "17 9 <eos>"),
        (False, "</think> 17 9 <eos> <eos>"),
        (False, "</think> 17 9 4 <eos>"),
        (False, "</think> </think> 17 9 <eos>"),
        (False, "</think> 17 9 </think> 17 9 <eos>"),
        (False, "</think> 17 =9 <eos>"),
        (False, "</think> =6 <bos> <eos>"),
        (False, "<eos>"),
        (False, ""),
    ],
)
def test_the_verifier_by_hand(right: bool, text: str) -> None:
    """Of 17 4 25 9 12 the sums 26 and 16 end in 6: 17 + 9 and 4 + 12."""
    assert TASK.verify(make_prompt(0, [17, 4, 25, 9, 12], 6, 2), ids(text)) is right


def test_one_number_twice_is_no_pair() -> None:
    """3 + 3 = 6 would do."""
    prompt = make_prompt(0, [3, 17, 9], 6, 3)
    assert not TASK.verify(prompt, ids("</think> 3 3 <eos>"))
    assert TASK.verify(prompt, ids("</think> 9 17 <eos>"))


@given(st.permutations(range(30)), st.integers(2, 8), st.integers(0, 9), st.data())
def test_exactly_the_right_pairs_verify(
    order: list[int], size: int, target: int, data: st.DataObject
) -> None:
    numbers = order[:size]
    if not right_pairs(numbers, target):
        return
    prompt = make_prompt(0, numbers, target, 1)
    a, b = data.draw(st.integers(0, 29)), data.draw(st.integers(0, 29))
    right = a != b and a in numbers and b in numbers and (a + b) % 10 == target
    assert TASK.verify(prompt, ids(f"</think> {a} {b} <eos>")) is right


@given(st.lists(st.integers(0, len(words.WORDS) - 1), max_size=8))
def test_the_verifier_answers_whatever_it_is_given(tokens: list[int]) -> None:
    assert TASK.verify(make_prompt(0, [1, 2], 3, 1), tokens) in (True, False)


def test_levels_are_how_many_pairs_are_right() -> None:
    for split, size in (("train", 1152), ("validation", 512)):
        prompts = TASK.prompts(split)
        assert len(prompts) == size
        assert {len(numbers_of(p)) for p in prompts} == {5, 6, 7, 8}
        for prompt in prompts:
            numbers = numbers_of(prompt)
            assert len(set(numbers)) == len(numbers)
            count = len(right_pairs(numbers, target_of(prompt)))
            assert prompt.level == {2: 2, 1: 3}.get(count, 1)
            assert count >= 1
        assert [sum(p.level == level for p in prompts) for level in (1, 2, 3)] == [
            (size + 2) // 3,
            (size + 1) // 3,
            size // 3,
        ]


def test_ood_has_more_numbers_and_the_benchmark_the_most_of_those_seen() -> None:
    ood, benchmark = TASK.prompts("ood"), TASK.prompts("benchmark")
    assert (len(ood), len(benchmark)) == (256, 30)
    assert {len(numbers_of(p)) for p in ood} == {9, 10, 11}
    assert {len(numbers_of(p)) for p in benchmark} == {8}
    for prompt in (*ood, *benchmark):
        assert len(right_pairs(numbers_of(prompt), target_of(prompt))) == 1
    assert {p.level for p in ood} == {4}
    assert {p.level for p in benchmark} == {3}


def test_an_unknown_split_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="train, validation, ood, benchmark"):
        TASK.prompts("test")
