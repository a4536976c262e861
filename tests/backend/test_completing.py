"""One completion by requests to an engine: what the sandbox's decoder would make of the same tokens, and the marks."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.completing import Budget, Marks, Sampled, complete
from sandbox import vocabulary as words
from sandbox.rows import NEVER, Rows, Sampling
from sandbox.tasks.digit_sum import DigitSum
from scalerl.errors import InputError
from scalerl.recipe import Interruption, NoLengthControl
from scalerl.rollout import Completion
from scalerl.site import PHRASE

CLOSE, EOS, LOW, UP = words.CLOSE, words.EOS, words.LOW, words.TIME_UP
FOLDER = Path(words.__file__).parent / "policies/digit_sum"
MARKS = Marks(EOS, CLOSE, words.INTERRUPTION)
PROMPT = [words.BOS, words.THINK]
LONG = 40  # more tokens than any completion here has


class Stream:
    """An engine that would go on for ever: thinking, and an answer after a close; a request gets what comes next."""

    def __init__(self, thinking: Sequence[int], answer: Sequence[int]) -> None:
        self.thinking, self.answer = [*thinking, *[LOW] * LONG], [*answer, *[LOW] * LONG]
        self.asked: list[tuple[list[int], int]] = []

    def following(self, completion: Sequence[int]) -> int:
        """The token after a completion so far: thinking up to the first close, the answer from there on."""
        if CLOSE in completion:
            return self.answer[len(completion) - 1 - completion.index(CLOSE)]
        return self.thinking[len(completion)]

    async def sample(self, prompt: list[int], most: int) -> Sampled:
        assert prompt[: len(PROMPT)] == PROMPT and most > 0
        self.asked.append((prompt, most))
        found, so_far = Sampled(), prompt[len(PROMPT) :]
        while len(found.token_ids) < most and (not found.token_ids or found.token_ids[-1] != EOS):
            found.token_ids.append(self.following([*so_far, *found.token_ids]))
            place = len(so_far) + len(found.token_ids)
            found.logp.append(-0.1 * place)
            found.version.append(len(self.asked))
        return found


def completed(stream: Stream, budget: Budget, marks: Marks = MARKS) -> Completion:
    return asyncio.run(complete(stream.sample, list(PROMPT), marks, budget))


def decoded(stream: Stream, budget: Budget) -> Completion:
    """The same stream through the sandbox's rows, a token at a time."""
    length = NoLengthControl() if budget.limit is None else Interruption()
    how = Sampling(length, budget.thinking_tokens, budget.answer_tokens, 1.0, torch.float32)
    task = DigitSum()
    rows = Rows(1, LONG)
    limit = NEVER if budget.limit is None else budget.limit
    rows.add(0, 0, 0, len(PROMPT), limit, np.zeros(LONG, dtype=np.float32))
    ended = np.array([False])
    while not ended[0]:
        so_far = rows.token[0, : rows.length[0]].tolist()
        token, logp = stream.following(so_far), -0.1 * (len(so_far) + 1)
        ended = rows.append(np.array([token]), np.array([logp]), 1, task, how)
    return rows.take(ended, task)[0].completion


def check(stream: Stream, budget: Budget) -> Completion:
    """Equal to the sandbox's in all but the versions, which are those of the requests."""
    found, expected = completed(stream, budget), decoded(stream, budget)
    for name in ("token_ids", "sampled", "truncated", "interrupted"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.logp == pytest.approx(expected.logp)
    lengths = {len(getattr(found, name)) for name in ("token_ids", "logp", "version", "sampled")}
    assert lengths == {found.length_tokens}
    assert found.version == sorted(found.version) and len(stream.asked) <= 2
    return found


thinking = st.lists(st.sampled_from([LOW, UP, words.FIRST_DIGIT, CLOSE, EOS]), max_size=10)
answers = st.lists(st.sampled_from([LOW, words.FIRST_DIGIT, CLOSE, EOS]), max_size=7)


@given(thinking, answers, st.none() | st.integers(1, 8), st.integers(0, 3), st.integers(2, 5))
def test_the_sandbox_makes_the_same_of_any_stream(
    first: list[int], then: list[int], limit: int | None, slack: int, answer_tokens: int
) -> None:
    budget = Budget(limit, (limit or 5) + slack, answer_tokens)
    check(Stream(first, then), budget)


@given(st.integers(0, 10), st.integers(0, 7), st.integers(1, 8), st.integers(2, 5))
def test_closing_and_answering_around_every_limit(
    closes: int, answers_in: int, limit: int, answer_tokens: int
) -> None:
    """Thinking that closes before, at and after its limit; answers that fit, just fit and do not."""
    stream = Stream([LOW] * closes + [CLOSE], [words.FIRST_DIGIT] * answers_in + [EOS])
    found = check(stream, Budget(limit, 8, answer_tokens))
    assert found.interrupted == (closes + 1 > limit)
    assert found.truncated == (answers_in + 1 > answer_tokens)


def test_forced_tokens_have_no_log_prob_and_the_version_that_goes_on_from_them() -> None:
    found = check(Stream([LOW] * 9, [words.FIRST_DIGIT, EOS]), Budget(3, 8, 4))
    assert found.token_ids == [LOW, LOW, LOW, UP, CLOSE, words.FIRST_DIGIT, EOS]
    assert found.sampled == [True] * 3 + [False] * 2 + [True] * 2
    assert found.logp[3:5] == [0.0, 0.0]
    assert found.version == [1, 1, 1, 2, 2, 2, 2]
    assert found.interrupted and not found.truncated


def test_nothing_is_forced_once_thinking_has_closed_by_itself() -> None:
    """At the limit to the token: the answer is asked for, without the phrase."""
    stream = Stream([LOW, LOW, CLOSE], [words.FIRST_DIGIT, EOS])
    found = check(stream, Budget(3, 8, 4))
    assert found.token_ids == [LOW, LOW, CLOSE, words.FIRST_DIGIT, EOS]
    assert all(found.sampled) and not found.interrupted
    assert stream.asked == [(PROMPT, 3), ([*PROMPT, LOW, LOW, CLOSE], 4)]


def test_an_answer_that_began_early_gets_what_is_left_of_its_own_budget() -> None:
    stream = Stream([CLOSE], [LOW] * 9)
    found = check(stream, Budget(3, 8, 4))
    assert [most for _, most in stream.asked] == [3, 2]
    assert found.length_tokens == 5 and found.truncated


def test_an_answer_that_outgrew_its_budget_within_the_first_request_is_cut() -> None:
    stream = Stream([CLOSE], [LOW] * 5 + [EOS])
    found = check(stream, Budget(8, 8, 4))
    assert found.token_ids == [CLOSE, LOW, LOW, LOW, LOW] and found.truncated
    assert len(stream.asked) == 1


def test_without_a_limit_there_is_one_request_for_both_budgets() -> None:
    stream = Stream([LOW] * 30, [])
    found = check(stream, Budget(None, 8, 4))
    assert [most for _, most in stream.asked] == [12]
    assert found.truncated and not found.interrupted


# --- marks ---


def marks(folder: Path = FOLDER, phrase: str = "time-is-up </think>", close: str = "</think>"):
    return Marks.of(folder, phrase=phrase, close=close)


def test_marks_of_the_shipped_policy_are_those_of_its_task() -> None:
    assert marks() == Marks(EOS, CLOSE, words.INTERRUPTION)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot load the tokenizer in") as error:
        marks(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("phrase", [PHRASE, "time-is-up", "</think> time-is-up"])
def test_a_phrase_that_the_policy_does_not_know_or_that_leaves_thinking_open(phrase: str) -> None:
    with pytest.raises(InputError, match=r"site\.interruption_phrase = ") as error:
        marks(phrase=phrase)
    assert repr(phrase) in str(error.value)


def test_a_mark_of_several_tokens() -> None:
    with pytest.raises(InputError, match=r"site\.think_close = 'low: </think>' is 2 tokens"):
        marks(close="low: </think>")


def test_a_tokenizer_without_an_end(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(FOLDER, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({key: value for key, value in settings.items() if key != "eos_token"})
    )
    with pytest.raises(InputError, match="has no end of sequence"):
        marks(folder)
