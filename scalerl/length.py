"""Length control: where thinking is cut, when a completion is truncated, and what too long a completion costs."""

from collections.abc import Iterable
from hashlib import blake2b

from scalerl.recipe import Interruption, Length, NoLengthControl, OverlongPenalty, Recipe
from scalerl.rollout import Group
from scalerl.task import Prompt, Task


def thinking_limits(length: Length, thinking_tokens: int) -> tuple[int, int] | None:
    """Earliest and latest number of thinking tokens at which thinking is interrupted; None: never."""
    match length:
        case Interruption(low=low, high=high):
            return max(1, round(low * thinking_tokens)), max(1, round(high * thinking_tokens))
        case OverlongPenalty() | NoLengthControl():
            return None


def draw_limit(limits: tuple[int, int], seed: int, request_id: int, row: int) -> int:
    """The thinking tokens after which a completion is interrupted: uniform on `limits`, ends included.

    A pure function of (seed, request, row), so that neither scheduling nor a resume can change it.
    """
    low, high = limits
    digest = blake2b(f"{seed}:{request_id}:{row}".encode(), digest_size=8).digest()
    return low + int.from_bytes(digest, "big") % (high - low + 1)


def draw_limits(
    length: Length, thinking_tokens: int, seed: int, request_id: int, rows: Iterable[int]
) -> list[int | None]:
    """`draw_limit` for rows of a request; None for each where thinking is not interrupted."""
    limits = thinking_limits(length, thinking_tokens)
    return [None if limits is None else draw_limit(limits, seed, request_id, row) for row in rows]


def overlong_penalty(length_tokens: int, *, max_tokens: float, cache_tokens: float) -> float:
    """clip((L_max - length) / L_cache - 1, -1, 0): 0 up to L_max - L_cache, -1 from L_max on.

    The length counts every token after the prompt. Source: arXiv 2503.14476 (DAPO); here on correct completions only.
    """
    return min(0.0, max(-1.0, (max_tokens - length_tokens) / cache_tokens - 1.0))


def shaped_reward(correct: bool, length_tokens: int, length: Length, budget_tokens: int) -> float:
    """+1 or -1; a correct completion may lose up to 1 to the penalty, so it never scores below a wrong one."""
    if not correct:
        return -1.0
    match length:
        case OverlongPenalty(cache=cache):
            return 1.0 + overlong_penalty(
                length_tokens, max_tokens=budget_tokens, cache_tokens=cache * budget_tokens
            )
        case _:
            return 1.0


def score_group(group: Group, prompt: Prompt, task: Task, recipe: Recipe) -> Group:
    """Fill in correctness and reward of every completion, by the task's verifier and the recipe's length control."""
    assert recipe.site is not None
    budget = recipe.site.thinking_tokens + recipe.site.answer_tokens
    for completion in group.completions:
        completion.correct = task.verify(prompt, completion.token_ids)
        completion.reward = shaped_reward(
            completion.correct, completion.length_tokens, recipe.length, budget
        )
    return group
