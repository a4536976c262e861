"""One completion by requests to an engine: thinking, a forced interruption if it runs out of budget, the answer.

The interruption is the client's: generate up to the drawn budget, append the phrase if thinking is still open,
generate again. That behaves alike on every runner of vLLM, whose own thinking budget does not, and marks forced tokens.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from scalerl.errors import InputError, first_line
from scalerl.rollout import Completion


@dataclass(frozen=True)
class Marks:
    """The token ids that structure a completion."""

    eos_id: int
    close_id: int  # ends thinking
    phrase: tuple[int, ...]  # what is forced when thinking is cut; its last token is `close_id`

    @classmethod
    def of(cls, folder: Path, *, phrase: str, close: str) -> "Marks":
        """From the tokenizer beside a model.

        Raises:
            InputError: no tokenizer, a mark of several tokens, or a phrase with words that it does not know.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            said = first_line(error)
            raise InputError(f"cannot load the tokenizer in {folder}: {said}") from error
        closing = tokenizer.encode(close, add_special_tokens=False)
        tokens = tokenizer.encode(phrase, add_special_tokens=False)
        if len(closing) != 1:
            raise InputError(
                f"site.think_close = {close!r} is {len(closing)} tokens of {folder}: one is needed"
            )
        unknown = {tokenizer.unk_token_id, tokenizer.pad_token_id} - {None}
        if unknown & set(tokens) or tokens[-1:] != closing:
            raise InputError(
                f"site.interruption_phrase = {phrase!r} has words that the tokenizer of {folder} does not know"
            )
        if tokenizer.eos_token_id is None:
            raise InputError(f"the tokenizer in {folder} has no end of sequence")
        return cls(tokenizer.eos_token_id, closing[0], tuple(tokens))


@dataclass(frozen=True)
class Budget:
    """Tokens that a completion may have. `limit`: of thinking, before it is cut; None: it is not cut."""

    limit: int | None
    thinking_tokens: int
    answer_tokens: int


@dataclass
class Sampled:
    """What one request brought: tokens with the log-prob and the weight version of each."""

    token_ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)

    def cut(self, length: int) -> "Sampled":
        return Sampled(self.token_ids[:length], self.logp[:length], self.version[:length])


Sample = Callable[[list[int], int], Awaitable[Sampled]]
"""(prompt, most tokens) -> what was sampled, up to and including the end of sequence."""


async def complete(sample: Sample, prompt: list[int], marks: Marks, budget: Budget) -> Completion:
    """A completion under a budget; the same lengths, marks and flags as the sandbox's decoder gives.

    With a limit the answer has a budget of its own, which begins where thinking closes; without one, thinking and
    answer share theirs.
    """
    if budget.limit is None:
        first = await sample(prompt, budget.thinking_tokens + budget.answer_tokens)
        return _joined(marks, first)
    first = await sample(prompt, budget.limit)
    if marks.close_id in first.token_ids:
        answer = first.token_ids.index(marks.close_id) + 1
        first = first.cut(answer + budget.answer_tokens)
        left = answer + budget.answer_tokens - len(first.token_ids)
        if first.token_ids[-1] == marks.eos_id or not left:
            return _joined(marks, first)
        return _joined(marks, first, (), await sample(prompt + first.token_ids, left))
    if first.token_ids[-1] == marks.eos_id:
        return _joined(marks, first)
    cut = prompt + first.token_ids + list(marks.phrase)
    return _joined(marks, first, marks.phrase, await sample(cut, budget.answer_tokens))


def _joined(
    marks: Marks, first: Sampled, forced: tuple[int, ...] = (), second: Sampled | None = None
) -> Completion:
    """Both parts with what was forced between them; forced tokens carry the version that went on from them."""
    second = second or Sampled()
    versions = [(second.version or first.version[-1:])[0]] * len(forced)
    tokens = [*first.token_ids, *forced, *second.token_ids]
    return Completion(
        token_ids=tokens,
        logp=[*first.logp, *(0.0 for _ in forced), *second.logp],
        version=[*first.version, *versions, *second.version],
        sampled=[True] * len(first.token_ids)
        + [False] * len(forced)
        + [True] * len(second.token_ids),
        truncated=tokens[-1] != marks.eos_id,
        interrupted=bool(forced),
    )
