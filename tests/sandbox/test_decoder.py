"""Sampling: whose distribution it is, what is recorded of it, and where a completion ends."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tiny_policies import chain, chain_policy, full_logp, random_policy

from sandbox import vocabulary as words
from sandbox.decoder import Decoder, sample_all
from sandbox.model import Policy
from sandbox.rows import Done, Sampling
from sandbox.tasks.digit_sum import DigitSum, make_prompt
from scalerl.length import draw_limit
from scalerl.recipe import Interruption, Length, NoLengthControl, OverlongPenalty
from scalerl.rollout import Completion
from scalerl.task import Prompt

TASK = DigitSum()
PROMPTS = TASK.prompts("validation")
ONE, TWO, THREE = words.FIRST_NUMBER + 1, words.FIRST_NUMBER + 2, words.FIRST_NUMBER + 3
D1, D2, D3 = words.FIRST_DIGIT + 1, words.FIRST_DIGIT + 2, words.FIRST_DIGIT + 3
CLOSE, EOS, UP, THINK = words.CLOSE, words.EOS, words.TIME_UP, words.THINK
SAMPLING = Sampling(Interruption(), 36, 4, 1.0, torch.float32)
AT_THE_END = Interruption(low=1.0, high=1.0)  # the cut comes at the whole thinking budget


def sampling(length: Length, thinking: int, answer: int) -> Sampling:
    return Sampling(length, thinking, answer, 1.0, torch.float32)


def decoder(policy: Policy, how: Sampling = SAMPLING, rows: int = 64) -> Decoder:
    return Decoder(policy, TASK, how, rows, widest_prompt=19)


def drain(running: Decoder) -> list[Done]:
    done: list[Done] = []
    while running.rows.count:
        done += running.step()
    return done


def one(policy: Policy, how: Sampling) -> Completion:
    return sample_all(decoder(policy, how, 1), [make_prompt(0, [1, 2], 1)], 1, seed=0)[0][0]


def check_recorded(policy: Policy, prompt: Prompt, completion: Completion, how: Sampling) -> None:
    """Every sampled token has the log-prob that one forward pass over the finished sequence gives it."""
    expected = full_logp(
        policy, list(prompt.token_ids), completion.token_ids, how.temperature, how.head_dtype
    )
    for recorded, truth, was_sampled in zip(
        completion.logp, expected, completion.sampled, strict=True
    ):
        assert recorded == (pytest.approx(truth, abs=1e-5) if was_sampled else 0.0)


# --- the distribution ---


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_first_and_second_tokens_have_the_policys_distribution(temperature: float) -> None:
    """Chi-square over 6,000 rows of one prompt; rare tokens are pooled so that each cell expects ten or more."""
    n, policy = 6000, random_policy(seed=1, spread=1.5)
    prompt = make_prompt(0, [3, 7, 11], 1)
    how = replace(sampling(NoLengthControl(), 1, 2), temperature=temperature)
    running = Decoder(policy, TASK, how, n, widest_prompt=5)
    running.seat(prompt, 0, range(n), seed=0)
    ended = Counter(d.completion.token_ids[0] for d in running.step())
    assert set(ended) == {EOS}
    first = ended + Counter(running.rows.token[: running.rows.count, 0].tolist())
    assert _p_value(policy, list(prompt.token_ids), first, temperature) > 1e-3
    commonest, count = first.most_common(1)[0]
    second = Counter(
        d.completion.token_ids[1] for d in drain(running) if d.completion.token_ids[0] == commonest
    )
    assert sum(second.values()) == count > 300
    assert _p_value(policy, [*prompt.token_ids, commonest], second, temperature) > 1e-3


@torch.no_grad()
def _p_value(policy: Policy, context: list[int], seen: Counter[int], temperature: float) -> float:
    z_V = policy.hidden(torch.tensor([context]))[0, -1] @ policy.head_VD.T / temperature
    expected_V = z_V.double().softmax(-1).numpy() * sum(seen.values())
    seen_V = np.array([seen[token] for token in range(len(expected_V))])
    big_V = expected_V >= 10
    assert big_V.sum() > 5
    cells = [np.append(x[big_V], x[~big_V].sum()) for x in (seen_V, expected_V)]
    return float(chisquare(cells[0], cells[1]).pvalue)


# --- what is recorded ---


def variants() -> list[Sampling]:
    return [
        SAMPLING,
        replace(SAMPLING, temperature=0.7),
        sampling(AT_THE_END, 6, 3),
        sampling(NoLengthControl(), 9, 3),
    ]


@pytest.mark.parametrize("how", variants(), ids=range(4))
def test_recorded_log_probs_are_those_of_a_full_pass(how: Sampling) -> None:
    policy = random_policy(seed=2)
    groups = sample_all(decoder(policy, how), PROMPTS[:8], 4, seed=5)
    for prompt, group in zip(PROMPTS, groups, strict=False):
        for completion in group:
            check_recorded(policy, prompt, completion, how)
    assert len({tuple(c.token_ids) for group in groups for c in group}) > 25


def test_a_bfloat16_head_changes_log_probs_a_little() -> None:
    """By a hundredth of a nat or so on average; what is recorded is what the coarse head sampled from."""
    policy, coarse = random_policy(seed=2), replace(SAMPLING, head_dtype=torch.bfloat16)
    groups = sample_all(decoder(policy, coarse), PROMPTS[:8], 4, seed=5)
    to_fine, to_coarse = [
        np.array(
            [
                abs(recorded - expected)
                for prompt, group in zip(PROMPTS, groups, strict=False)
                for c in group
                for recorded, expected, sampled in zip(
                    c.logp,
                    full_logp(policy, list(prompt.token_ids), c.token_ids, head_dtype=head_dtype),
                    c.sampled,
                    strict=True,
                )
                if sampled
            ]
        )
        for head_dtype in (torch.float32, torch.bfloat16)
    ]
    assert 1e-3 < to_fine.mean() < to_fine.max() < 0.1
    # Hidden states that differ in the last bit of float32 now and then round to neighbouring bfloat16 numbers.
    assert np.median(to_coarse) < 1e-5 and to_coarse.max() < 0.01
    assert to_coarse.mean() < 0.1 * to_fine.mean()


# --- company ---


def tokens_of(done: Sequence[Done], key: int, index: int) -> list[int]:
    (found,) = [d.completion for d in done if (d.key, d.number) == (key, index)]
    return found.token_ids


def test_company_and_timing_do_not_change_what_is_sampled() -> None:
    """Completion 2 of request 7: alone, in a crowd, behind it, or seated late and apart from its group."""
    policy, prompt, seen = random_policy(seed=3), PROMPTS[5], []
    alone = decoder(policy)
    alone.seat(prompt, 7, range(2, 3), seed=11)
    seen.append(tokens_of(drain(alone), 7, 2))

    crowd = decoder(policy)
    crowd.seat(PROMPTS[0], 1, range(9), seed=11)
    crowd.seat(prompt, 7, range(4), seed=11)
    crowd.seat(PROMPTS[2], 3, range(9), seed=11)
    seen.append(tokens_of(drain(crowd), 7, 2))

    late = decoder(policy)
    late.seat(PROMPTS[1], 4, range(12), seed=11)
    done = [*late.step(), *late.step()]
    late.seat(prompt, 7, range(2), seed=11)
    done += [*late.step(), *late.step(), *late.step()]
    late.seat(prompt, 7, range(2, 4), seed=11)
    seen.append(tokens_of(done + drain(late), 7, 2))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) > 5


def test_rows_that_become_free_are_seated_anew_and_change_nothing() -> None:
    """Twelve prompts of three through five, sixteen and all rows at once."""
    policy = random_policy(seed=3)
    found = [
        sample_all(Decoder(policy, TASK, SAMPLING, rows, 20), PROMPTS[:12], 3, seed=5)
        for rows in (5, 16, 36)
    ]
    tokens = [[c.token_ids for group in groups for c in group] for groups in found]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len(set(map(tuple, tokens[0]))) > 30


@pytest.mark.parametrize("change", ["seed", "key", "index"])
def test_seed_request_and_index_each_change_what_is_sampled(change: str) -> None:
    policy, seen = random_policy(seed=3), []
    for value in range(4):
        seed, key, index = (value if change == name else 5 for name in ("seed", "key", "index"))
        running = decoder(policy)
        running.seat(PROMPTS[5], key, range(index, index + 1), seed=seed)
        seen.append(tuple(tokens_of(drain(running), key, index)))
    assert len(set(seen)) == 4


def test_rows_that_end_make_room_and_the_rest_go_on_unharmed() -> None:
    """Six seats for thirty completions of unequal length, refilled after every step; each is as it is alone."""
    policy = random_policy(seed=9)
    waiting = [(key, index) for key in range(10) for index in range(3)]
    running, done = decoder(policy, rows=6), []
    while waiting or running.rows.count:
        while waiting and running.rows.count < 6:
            key, index = waiting.pop(0)
            running.seat(PROMPTS[key], key, range(index, index + 1), seed=1)
        done += running.step()
    assert len({d.completion.length_tokens for d in done}) > 5
    assert len(done) == 30
    assert not running.prompts, "a request that has ended is forgotten"
    for key in range(10):
        together = decoder(policy, rows=3)
        together.seat(PROMPTS[key], key, range(3), seed=1)
        rest = drain(together)
        for index in range(3):
            assert tokens_of(done, key, index) == tokens_of(rest, key, index)
    for d in done:
        check_recorded(policy, PROMPTS[d.key], d.completion, SAMPLING)


# --- interruption ---


def test_the_phrase_comes_exactly_at_the_drawn_limit() -> None:
    """A policy that thinks for ever, =1 after what is forced: L thinking tokens, phrase, answer."""
    policy = chain_policy({THINK: ONE, ONE: ONE, CLOSE: D1, D1: EOS})
    completions = sample_all(decoder(policy, SAMPLING), [make_prompt(0, [1, 2], 1)], 30, seed=4)[0]
    limits = set()
    for index, completion in enumerate(completions):
        limit = draw_limit((30, 36), 4, 0, index)  # round(0.8333 * 36) = 30
        limits.add(limit)
        assert completion.token_ids == [ONE] * limit + [UP, CLOSE, D1, EOS]
        assert completion.sampled == [True] * limit + [False, False, True, True]
        assert all(
            (logp == 0.0) != sampled
            for logp, sampled in zip(completion.logp, completion.sampled, strict=True)
        )
        assert (completion.interrupted, completion.truncated) == (True, False)
    assert limits == set(range(30, 37))


@pytest.mark.parametrize(
    ("thoughts", "budget", "cut"),
    [
        ([ONE, TWO], 3, False),  # closes as its third token: within the budget
        ([ONE, TWO, THREE], 3, True),
        ([], 1, False),
    ],
)
def test_thinking_that_closes_in_time_is_not_cut(
    thoughts: list[int], budget: int, cut: bool
) -> None:
    completion = one(chain(*thoughts, CLOSE, D1, EOS), sampling(AT_THE_END, budget, 2))
    phrase = [UP] if cut else []
    assert completion.token_ids == [*thoughts, *phrase, CLOSE, D1, EOS]
    assert completion.interrupted is cut
    assert completion.truncated is False


def test_end_of_sequence_while_thinking_ends_it() -> None:
    completion = one(chain(ONE, TWO, EOS), sampling(AT_THE_END, 6, 2))
    assert completion.token_ids == [ONE, TWO, EOS]
    assert (completion.interrupted, completion.truncated) == (False, False)
    assert not TASK.verify(make_prompt(0, [1, 2], 1), completion.token_ids)


def test_the_phrase_replaces_an_end_of_sequence_sampled_at_the_limit() -> None:
    """The budget is what counts, not what would have come: no token is sampled where one is forced."""
    completion = one(chain(ONE, TWO, EOS), sampling(AT_THE_END, 2, 3))
    assert completion.token_ids[:4] == [ONE, TWO, UP, CLOSE]
    assert len(completion.token_ids) == 2 + 2 + 3
    assert (
        completion.truncated is True
    )  # nothing follows </think> in this chain, least of all <eos>


# --- the answer's budget ---


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("answer", "truncated"),
    [
        ([D1, EOS], False),
        ([D1, D2, EOS], False),  # the third of three: just in time
        ([D1, D2, D3, EOS], True),
    ],
)
def test_truncation_is_no_end_in_the_answer_budget(
    answer: list[int], truncated: bool, cut: bool
) -> None:
    """Counted from after </think>, whether it was sampled or forced, end of sequence included."""
    thoughts = [ONE, TWO, THREE]
    how = sampling(AT_THE_END, 3 if cut else 8, 3)
    completion = one(chain(*thoughts, CLOSE, *answer), how)
    expected = [*thoughts, *([UP] if cut else []), CLOSE, *answer[:3]]
    assert completion.token_ids == expected
    assert completion.truncated is truncated
    assert completion.interrupted is cut
    assert len(completion.token_ids) <= how.longest(TASK)


def test_closing_thinking_a_second_time_does_not_renew_the_answer_budget() -> None:
    policy = chain_policy({THINK: CLOSE, CLOSE: D1, D1: CLOSE})
    completion = one(policy, sampling(AT_THE_END, 8, 5))
    assert completion.token_ids == [CLOSE, D1, CLOSE, D1, CLOSE, D1]
    assert completion.truncated is True


# --- without interruption: the two budgets are one ---

UNLIMITED = [NoLengthControl(), OverlongPenalty()]


@pytest.mark.parametrize("length", UNLIMITED, ids=["none", "overlong_penalty"])
def test_endless_thinking_is_truncated_at_both_budgets_together(length: Length) -> None:
    completion = one(chain_policy({THINK: ONE, ONE: ONE}), sampling(length, 6, 3))
    assert completion.token_ids == [ONE] * 9
    assert (completion.truncated, completion.interrupted) == (True, False)
    assert all(completion.sampled)


@pytest.mark.parametrize("length", UNLIMITED, ids=["none", "overlong_penalty"])
def test_an_end_as_the_last_token_of_both_budgets_is_in_time(length: Length) -> None:
    policy = chain(ONE, TWO, THREE, D1, D2, D3, CLOSE, words.FIRST_DIGIT, EOS)
    assert one(policy, sampling(length, 6, 3)).truncated is False
    assert one(policy, sampling(length, 6, 2)).truncated is True


@pytest.mark.parametrize("length", UNLIMITED, ids=["none", "overlong_penalty"])
@pytest.mark.parametrize("thoughts", [0, 2, 5, 6, 7, 8])
def test_wherever_thinking_closes_the_two_budgets_together_are_the_limit(
    length: Length, thoughts: int
) -> None:
    """6 + 3 tokens and not one more, even if thinking closes with the last of them (8 thoughts and </think>)."""
    thinking = [THREE, TWO, ONE, D1, D2, D3, words.HIGH, words.LOW][:thoughts]
    zero = words.FIRST_DIGIT
    policy = chain_policy(
        {**dict(zip([THINK, *thinking], [*thinking, CLOSE], strict=True)), CLOSE: zero, zero: zero}
    )
    completion = one(policy, sampling(length, 6, 3))
    assert completion.token_ids == [*thinking, CLOSE, *[zero] * (8 - thoughts)]
    assert completion.truncated is True
