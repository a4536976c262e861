"""The task whose answers are formulas: collected ones are compared by value, others do not count."""

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import vocabulary as words
from sandbox.tasks import polynomial
from sandbox.tasks.polynomial import Polynomial, Term, make_prompt, terms_of, think
from scalerl.task import check_task
from scalerl.verify import Verifier

TASK = Polynomial()
PROBLEM: list[Term] = [(3, True), (5, False), (2, True), (4, False)]


def ids(text: str) -> list[int]:
    return [words.WORDS.index(word) for word in text.split()]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What math-verify would be asked; asking fails."""
    questions: list[str] = []

    def ask(self: Verifier, gold: str, completion: str) -> None:
        questions.append(f"{gold} = {completion}")
        raise AssertionError(questions[-1])

    monkeypatch.setattr(polynomial, "_verifier", lambda process: Verifier.__new__(Verifier))
    monkeypatch.setattr(Verifier, "verify", ask)
    polynomial._same.cache_clear()
    return questions


def test_the_contract(asked: list[str]) -> None:
    """No process is needed for plain right and wrong answers."""
    check_task(TASK, sample=2000)
    assert asked == []


@pytest.mark.parametrize(
    ("stride", "text"),
    [
        (1, "high: 3 x: 3 5 1: 5 2 x: 5 4 1: 9"),  # x: 3, 3 + 2; else: 5, 5 + 4
        (2, "medium: 3 x: 3 2 x: 5"),
        (3, "low: 3 x: 3 4 1: 4"),
    ],
)
def test_thinking_by_hand(stride: int, text: str) -> None:
    assert think(PROBLEM, stride) == ids(text)


def test_prompt_and_solution_by_hand() -> None:
    prompt = make_prompt(0, PROBLEM, 1)
    assert list(prompt.token_ids) == ids("<bos> 3 x + 5 + 2 x + 4 <think>")
    assert list(prompt.answer) == ids("5 x + 9")
    assert terms_of(prompt) == PROBLEM
    assert TASK.solve(prompt) == ids("high: 3 x: 3 5 1: 5 2 x: 5 4 1: 9 </think> 5 x + 9 <eos>")


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (True, "high: 3 x: 3 5 1: 5 2 x: 5 4 1: 9 </think> 5 x + 9 <eos>"),
        (True, "</think> 9 + 5 x <eos>"),
        (True, "low: 3 time-is-up </think> 5 x + 9 <eos>"),
        (False, "</think> 4 x + 9 <eos>"),
        (False, "</think> 5 x + 8 <eos>"),
        (False, "</think> 9 x + 5 <eos>"),
        (False, "</think> 5 x <eos>"),
        (False, "</think> 9 <eos>"),
        (False, "</think> 14 <eos>"),
        (False, "</think> 5 + 9 <eos>"),
        (False, "</think> 5 x + 9 x <eos>"),
        (False, "</think> 3 x + 2 x + 9 <eos>"),  # equal, but not collected
        (False, "</think> 3 x + 5 + 2 x + 4 <eos>"),  # the question, copied
        (False, "</think> 5 x + 9 + 0 <eos>"),
        (False, "</think> 5 x + 4 + 5 <eos>"),
        (False, "</think> 5 x + 0 9 <eos>"),
        (False, "</think> 5 x 9 <eos>"),
        (False, "</think> + 5 x + 9 <eos>"),
        (False, "</think> 5 x + + 9 <eos>"),
        (False, "</think> 5 x + =9 <eos>"),
        (False, "</think> 5 x: + 9 <eos>"),
        (False, "</think> 5 x + 9"),
        (False, "</think> 5 x + 9 <eos> <eos>"),
        (False, "5 x + 9 <eos>"),
        (False, "</think> 5 x + 9 </think> 5 x + 9 <eos>"),
        (False, "</think> </think> 5 x + 9 <eos>"),
        (False, "</think> <eos>"),
        (False, "<eos>"),
        (False, ""),
    ],
)
def test_the_verifier_by_hand(right: bool, text: str, asked: list[str]) -> None:
    assert TASK.verify(make_prompt(0, PROBLEM, 1), ids(text)) is right
    assert asked == []


def test_what_is_no_plain_term_is_left_to_math_verify() -> None:
    one = make_prompt(0, [(1, True), (9, False)], 1)
    for right, prompt, said in (
        (True, one, "x + 9"),
        (True, one, "9 + x"),
        (True, one, "1 x + 9"),
        (False, one, "x + 8"),
        (True, make_prompt(0, PROBLEM, 1), "x 5 + 9"),
        (False, make_prompt(0, PROBLEM, 1), "x + 9"),
        (False, make_prompt(0, PROBLEM, 1), "x"),
    ):
        assert TASK.verify(prompt, ids(f"</think> {said} <eos>")) is right, said
    again = polynomial._same.cache_info().hits
    assert TASK.verify(one, ids("</think> x + 9 <eos>"))
    assert polynomial._same.cache_info().hits == again + 1
    assert pickle.loads(pickle.dumps(TASK)) == TASK
    polynomial._verifier(os.getpid()).close()
    polynomial._verifier.cache_clear()


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=3),
    st.lists(st.sampled_from(ids("1 2 5 9 14 x + x: =5 </think>")), max_size=6),
)
def test_whatever_is_said_only_the_two_spellings_of_plain_terms_are_right(
    terms: list[Term], said: list[int]
) -> None:
    of_x = sum(number for number, kind in terms if kind)
    rest = sum(number for number, kind in terms if not kind)
    spelt = {f"{of_x} x + {rest}", f"{rest} + {of_x} x"}
    spelt = {f"{of_x} x"} if not rest else {str(rest)} if not of_x else spelt
    text = words.to_text(said)
    if polynomial.collected(said) and polynomial.plain_terms(said) is None:
        return  # math-verify's
    completion = [words.CLOSE, *said, words.EOS]
    assert TASK.verify(make_prompt(0, terms, 1), completion) is (text in spelt)


def test_levels_are_numbers_of_terms_and_totals_are_words() -> None:
    for split, size in (("train", 1152), ("validation", 512)):
        prompts = TASK.prompts(split)
        assert len(prompts) == size
        for level, counts in ((1, {3, 4}), (2, {5, 6}), (3, {7, 8, 9})):
            assert {len(terms_of(p)) for p in prompts if p.level == level} == counts
    for split in TASK.splits:
        for prompt in TASK.prompts(split):
            terms = terms_of(prompt)
            numbers = [number for number, _ in terms]
            assert 1 <= min(numbers) and max(numbers) <= 15
            assert (len(set(numbers)) < len(numbers)) is (split == "ood")
            totals = [
                sum(number for number, of_x in terms if of_x is kind) for kind in (True, False)
            ]
            assert TASK.to_text(prompt.answer) == f"{totals[0]} x + {totals[1]}"
            assert all(0 < total < 30 for total in totals)


def test_ood_and_benchmark() -> None:
    ood, benchmark = TASK.prompts("ood"), TASK.prompts("benchmark")
    assert (len(ood), {p.level for p in ood}) == (256, {4})
    assert {len(terms_of(p)) for p in ood} == {4, 5, 6, 7}
    assert (len(benchmark), {p.level for p in benchmark}) == (30, {3})
    assert {len(terms_of(p)) for p in benchmark} == {9}


def test_the_hardest_prompts_need_28_thinking_tokens() -> None:
    assert max(len(think(terms_of(p), 1)) for p in TASK.prompts("train")) == 1 + 3 * 9


def test_an_unknown_split_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="train, validation, ood, benchmark"):
        TASK.prompts("test")
