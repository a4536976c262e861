"""What the generator records of a completion: the cut, the forced phrase, the end, and the masks made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_policies import chain_policy

from sandbox import vocabulary as words
from sandbox.decoder import Decoder, sample_all
from sandbox.model import Policy
from sandbox.rows import Sampling
from sandbox.tasks.digit_sum import DigitSum, make_prompt
from scalerl.batch import RolloutBatch
from scalerl.length import draw_limit
from scalerl.recipe import Interruption, Length, NoLengthControl, OverlongPenalty, Recipe
from scalerl.rollout import Completion, Group
from scalerl.update import prepare, update_stats

UP, CLOSE = words.TIME_UP, words.CLOSE
PROMPT = make_prompt(0, [1, 2], 1)
N = 6  # completions a draw
KEEP = Recipe(zero_variance="keep")


@dataclass(frozen=True)
class Setting:
    """A task with a phrase and an end of its own, budgets, and how soon the policy tends to close and to end."""

    task: DigitSum
    how: Sampling
    seed: int
    close: float
    end: float

    @property
    def cuts(self) -> list[int] | None:
        """Where each completion is interrupted if it still thinks then; None: nowhere."""
        if not isinstance(self.how.length, Interruption):
            return None
        low, high = self.how.length.low, self.how.length.high
        budget = self.how.thinking_tokens
        ends = (max(1, round(low * budget)), max(1, round(high * budget)))
        return [draw_limit(ends, self.seed, 0, index) for index in range(N)]

    def decoder(self) -> Decoder:
        return Decoder(policy(self), self.task, self.how, N, len(PROMPT.token_ids))

    def sample(self) -> list[Completion]:
        return sample_all(self.decoder(), [PROMPT], N, self.seed)[0]


def policy(setting: Setting) -> Policy:
    """Logits that hang on the last token only: noise, plus a push towards closing and towards ending."""
    policy = chain_policy({})
    noise = torch.Generator().manual_seed(setting.seed)
    with torch.no_grad():
        head_VD = 0.2 * torch.randn(policy.lm_head.weight.shape, generator=noise)
        head_VD[CLOSE] += setting.close
        head_VD[setting.task.eos_id] += setting.end
        policy.lm_head.weight.copy_(head_VD)
    return policy


@st.composite
def settings_of(draw: st.DrawFn, lengths: st.SearchStrategy[Length] | None = None) -> Setting:
    ends = sorted(draw(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1))))
    cut = st.just(Interruption(low=ends[0], high=ends[1]))
    phrase = draw(st.sampled_from([(UP, CLOSE), (UP, UP, words.LOW, CLOSE), (CLOSE,)]))
    eos = draw(st.sampled_from([words.EOS, words.PAD, words.FIRST_DIGIT + 3]))
    how = Sampling(
        draw(cut if lengths is None else lengths),
        draw(st.integers(1, 8)),
        draw(st.integers(2, 5)),
        1.0,
        torch.float32,
    )
    rates = st.sampled_from([-1.0, 0.3, 0.5, 0.6])
    return Setting(
        DigitSum(eos_id=eos, interruption=phrase),
        how,
        draw(st.integers(0, 10**6)),
        draw(rates),
        draw(rates),
    )


UNCUT = st.sampled_from([NoLengthControl(), OverlongPenalty()])
interrupted = settings_of()
anyhow = st.one_of(settings_of(), settings_of(UNCUT))


def packed(completions: Sequence[Completion], **how: Any) -> RolloutBatch:
    return RolloutBatch.from_groups([Group(3, 0, list(PROMPT.token_ids), list(completions))], **how)


def after_prompt(batch: RolloutBatch, row: int, length: int) -> list[bool]:
    start = len(PROMPT.token_ids)
    assert not batch.mask_BT[row, :start].any() and not batch.mask_BT[row, start + length :].any()
    return batch.mask_BT[row, start : start + length].tolist()


# ---- where the phrase comes ----


@pytest.mark.invariant("I06")
@given(interrupted)
def test_phrase_stands_at_the_drawn_position(setting: Setting) -> None:
    phrase, cuts = list(setting.task.interruption), setting.cuts
    assert cuts is not None
    for cut, c in zip(cuts, setting.sample(), strict=True):
        assert cut <= max(1, round(setting.how.thinking_tokens))
        forced = [place for place, sampled in enumerate(c.sampled) if not sampled]
        assert c.interrupted is bool(forced)
        if forced:
            assert forced == list(range(cut, cut + len(phrase)))
            assert c.token_ids[cut : cut + len(phrase)] == phrase


@pytest.mark.invariant(
    "I09",
    "Thinking that has closed, or a completion that has ended, before the drawn position is not interrupted.",
    "interrupted  <=>  neither </think> nor <eos> among the first `limit` tokens",
    "",
)
@given(interrupted)
def test_interrupted_only_while_still_thinking(setting: Setting) -> None:
    cuts = setting.cuts
    assert cuts is not None
    for cut, c in zip(cuts, setting.sample(), strict=True):
        still_thinking = not {CLOSE, setting.task.eos_id} & set(c.token_ids[:cut])
        assert c.interrupted is still_thinking
        assert still_thinking or all(c.sampled)


# ---- forced tokens ----


@pytest.mark.invariant(
    "I07",
    "The forced phrase is never trained on, whatever stands there; what was sampled before and after it is.",
    "m_t = 0 on the phrase, m_t = 1 on every other token after the prompt",
    "prime-rl #393: the forced end of thinking was trained with another token's log-prob; vllm #54864",
)
@given(interrupted, st.sampled_from([float("nan"), float("inf"), -1e30, 0.5]))
def test_forced_tokens_are_masked_and_may_hold_anything(setting: Setting, junk: float) -> None:
    completions = setting.sample()
    batch = packed(completions)
    for row, c in enumerate(completions):
        assert after_prompt(batch, row, c.length_tokens) == c.sampled
        recorded = zip(c.logp, c.sampled, strict=True)
        assert all(logp == 0.0 if not sampled else logp <= 0.0 for logp, sampled in recorded)
    other = [
        replace(
            c,
            token_ids=[t if s else 7 for t, s in zip(c.token_ids, c.sampled, strict=True)],
            logp=[b if s else junk for b, s in zip(c.logp, c.sampled, strict=True)],
        )
        for c in completions
    ]
    changed = packed(other)
    for name in ("mask_BT", "behavior_logp_BT", "version_BT"):
        assert torch.equal(getattr(changed, name), getattr(batch, name))
    changed.check()
    assert torch.equal(prepare(changed, KEEP).weight_BT, prepare(batch, KEEP).weight_BT)


@pytest.mark.invariant(
    "I08",
    "Trained tokens exclude the forced ones; the length that budgets and penalties count includes them.",
    "T_i = sum_t m_it = |y_i| - forced_i",
    "",
)
@given(anyhow)
def test_forced_tokens_count_for_length_and_not_for_training(setting: Setting) -> None:
    completions = setting.sample()
    trained_B = packed(completions).mask_BT.sum(1).tolist()
    for c, trained in zip(completions, trained_B, strict=True):
        forced = len(setting.task.interruption) if c.interrupted else 0
        assert trained == len(c.token_ids) - forced
        assert c.length_tokens == len(c.token_ids)


# ---- the end ----


@pytest.mark.invariant(
    "I10",
    "No completion is longer than the thinking budget, the phrase and the answer budget together.",
    "|y| <= thinking + |phrase| + answer;  |y| <= thinking + answer without a cut",
    "",
)
@given(anyhow)
def test_length_is_bounded(setting: Setting) -> None:
    how, cuts = setting.how, setting.cuts
    for index, c in enumerate(setting.sample()):
        if cuts is None:
            assert c.length_tokens <= how.thinking_tokens + how.answer_tokens
            continue
        phrase = len(setting.task.interruption)
        assert c.length_tokens <= cuts[index] + phrase + how.answer_tokens
        assert c.length_tokens <= how.thinking_tokens + phrase + how.answer_tokens
        if (
            CLOSE in c.token_ids
        ):  # the answer has a budget of its own, which a second </think> does not renew
            assert c.length_tokens <= c.token_ids.index(CLOSE) + 1 + how.answer_tokens


@pytest.mark.invariant(
    "I11",
    "A completion is truncated exactly when it has no end of sequence; truncated rows are trained on as any other.",
    "truncated  <=>  last sampled token is not <eos>;  m, N, T and std do not read the flag",
    "OpenRLHF #1327: the flag was lost over several turns; "
    "TRL #6369: truncated rows masked in the numerator, counted in the denominator",
)
@given(anyhow)
def test_truncated_means_no_end_in_time(setting: Setting) -> None:
    how, eos = setting.how, setting.task.eos_id
    completions = setting.sample()
    for c in completions:
        ended = c.token_ids[-1] == eos and c.sampled[-1]
        assert c.truncated is not ended
        if c.truncated:  # and only because a budget was spent
            closed = c.token_ids.index(CLOSE) + 1 if setting.cuts is not None else 0
            budget = how.answer_tokens + (how.thinking_tokens if setting.cuts is None else 0)
            assert c.length_tokens == closed + budget
    for place, c in enumerate(completions):
        c.correct, c.reward = place % 2 == 0, [0.7, -1.0, 0.1][place % 3]
    flipped = [replace(c, truncated=not c.truncated) for c in completions]
    for aggregation in ("prompt_mean", "sample_mean", "token_mean"):
        recipe = Recipe(aggregation=aggregation)
        plain, other = prepare(packed(completions), recipe), prepare(packed(flipped), recipe)
        for name in ("mask_BT", "weight_BT", "adv_B"):
            assert torch.equal(getattr(plain, name), getattr(other, name))


@pytest.mark.invariant(
    "I12",
    "Mean length and the truncated and interrupted shares are of all that was generated, not of what is trained.",
    "length = sum_i |y_i| / N, forced tokens and dropped rows included",
    "TRL #4976: a length read off a loss mask changed when a row was masked",
)
@given(anyhow, st.lists(st.booleans(), min_size=N, max_size=N))
def test_reported_length_is_of_generated_tokens(setting: Setting, correct: list[bool]) -> None:
    completions = setting.sample()
    for c, passed in zip(completions, correct, strict=True):
        c.correct, c.reward = passed, 1.0 if passed else -1.0
    batch = packed(completions)
    stats = update_stats(batch, prepare(batch, Recipe()), 0, {})
    assert stats.length_mean_tokens == sum(len(c.token_ids) for c in completions) / N
    assert stats.truncated == pytest.approx(sum(c.truncated for c in completions) / N)
    assert stats.interrupted == pytest.approx(sum(c.interrupted for c in completions) / N)
    mixed = len(set(correct)) == 2
    assert stats.trained_tokens == mixed * sum(sum(c.sampled) for c in completions)


@pytest.mark.invariant(
    "I13",
    "Whatever token the task calls its end, it ends the sequence at once and is trained on.",
    "y_t = <eos>, sampled  =>  |y| = t and m_t = 1",
    "TRL #4970: several end tokens, of which the mask knew one",
)
@given(anyhow)
def test_end_of_sequence_ends_it_and_is_trained(setting: Setting) -> None:
    completions, eos = setting.sample(), setting.task.eos_id
    batch = packed(completions, pad_id=eos)
    for row, c in enumerate(completions):
        assert eos not in c.token_ids[:-1]
        if c.token_ids[-1] == eos:
            assert after_prompt(batch, row, c.length_tokens)[-1]


# ---- masks and records ----


@pytest.mark.invariant(
    "D09",
    "Masks come from what was sampled, never from ids: padding with the end token hides no end and trains no padding.",
    "m(pad_id = eos) = m(pad_id = other)",
    "TRL #4970: pad = eos, so the real end was masked (ids [5, 6, 2]: T = 2 for 3)",
)
@given(anyhow, st.sampled_from([words.PAD, words.EOS, CLOSE, words.FIRST_DIGIT + 3]))
def test_padding_id_does_not_change_a_mask(setting: Setting, pad_id: int) -> None:
    completions = setting.sample()
    plain, other = packed(completions, pad_id=words.MEDIUM), packed(completions, pad_id=pad_id)
    assert torch.equal(plain.mask_BT, other.mask_BT)
    assert torch.equal(plain.behavior_logp_BT, other.behavior_logp_BT)
    weights = [prepare(batch, KEEP).weight_BT for batch in (plain, other)]
    assert torch.equal(*weights)
    assert [sum(c.sampled) for c in completions] == other.mask_BT.sum(1).tolist()


@pytest.mark.invariant(
    "D15",
    "Every token has a log-prob, a version and a mark, also after a generator was saved in the middle of it.",
    "len(tokens) = len(b) = len(version) = len(sampled)",
    "slime #1440: a resumed response grew and its mask did not",
)
@given(anyhow, st.integers(1, 12))
def test_records_agree_in_length_over_a_resume(setting: Setting, steps: int) -> None:
    running = setting.decoder()
    running.seat(PROMPT, 0, range(N), setting.seed)
    found = [done for _ in range(steps) if running.rows.count for done in running.step()]
    again = setting.decoder()
    again.restore(running.save(), {0: PROMPT})
    again.version = 1
    while again.rows.count:
        found += again.step()
    completions = [done.completion for done in sorted(found, key=lambda done: done.number)]
    assert len(completions) == N
    for c in completions:
        lengths = {len(c.token_ids), len(c.logp), len(c.version), len(c.sampled)}
        assert lengths == {len(c.token_ids)}
        assert c.version == [0] * min(steps, len(c.token_ids)) + [1] * (len(c.token_ids) - steps)
    assert [c.token_ids for c in completions] == [c.token_ids for c in setting.sample()]
