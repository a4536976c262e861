"""Hypothesis strategies: batches as a policy loss meets them, rewards that come before it, shards that come after.

Numbers are multiples of powers of two and of a tenth: arithmetic on most of them is exact, and a failure shrinks to a
few digits. Axis letters: B completions, T tokens.
"""

from typing import Any, Literal

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from scalerl.invariants.case import Case, f64
from scalerl.rollout import Completion, Group

Ratios = Literal["one", "near", "any", "extreme"]
"""How far pi may be from mu: not at all; |log rho| <= 1/8 with many tiny ones; up to 3, now and then 8; up to 1000."""

GROUP_IDS = (0, 7, 3, 1_000_003, -5)
ADVANTAGES = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.3, -1.7)
_NEAR = (0.0, 1e-4, -1e-4, 1 / 1024, -1 / 1024, 1 / 256, -1 / 256, 1 / 32, -1 / 32, 1 / 8, -1 / 8)
_STALE = tuple(x for x in _NEAR if abs(x) <= 1 / 32)
_WIDE = tuple(sign * k / 8 for k in range(1, 25) for sign in (1, -1))
# exp overflows at 88.7 in float32 and at 709.8 in float64
_EXTREME = (0.0, 20.0, -20.0, 88.5, 89.0, -89.0, 709.5, 710.0, -710.0, 1000.0, -1000.0)
_LOG_RATIOS: dict[Ratios, tuple[float, ...]] = {
    "one": (0.0,),
    "near": _NEAR,
    "any": (*_NEAR, *_WIDE, 8.0, -8.0),
    "extreme": _EXTREME,
}
_LOGPS = tuple(-k / 8 for k in range(1, 129))


# One draw a number: what a check costs is mostly its drawing.
def log_ratios(ratios: Ratios = "any") -> SearchStrategy[float]:
    """log rho of a token, in nats."""
    return st.sampled_from(_LOG_RATIOS[ratios])


def logps() -> SearchStrategy[float]:
    """log pi of a token, in nats: -1/8 to -16."""
    return st.sampled_from(_LOGPS)


@composite
def masks(
    draw: DrawFn, rows: int, width: int, *, holes: bool = True, empty: bool = False
) -> torch.Tensor:
    """[rows, width] bool: ragged completions, with forced tokens inside if `holes`, some without any if `empty`."""
    lengths = st.integers(0 if empty else 1, width)
    mask_BT = torch.zeros(rows, width, dtype=torch.bool)
    for i in range(rows):
        length = draw(lengths)
        mask_BT[i, :length] = True
        if holes and length > 1 and draw(st.booleans()):
            mask_BT[i, draw(st.integers(0, length - 2))] = False
    return mask_BT


@composite
def cases(
    draw: DrawFn,
    ratios: Ratios = "any",
    *,
    rows: tuple[int, int] = (1, 5),
    tokens: tuple[int, int] = (1, 5),
    holes: bool = True,
    empty: bool = False,
    zero_advantage: bool = False,
    stale_trainer: bool = False,
) -> Case:
    """A batch for a policy loss, in float64, 0.0 where the mask is False.

    Args:
        ratios: of each token, see `Ratios`.
        rows, tokens: least and largest number.
        holes: masked tokens between trained ones, as a forced phrase leaves them.
        empty: completions without a trained token.
        zero_advantage: some advantages are 0.
        stale_trainer: `old_logp_BT` differs from `behavior_logp_BT`, by up to 1/32.
    """
    B, T = draw(st.integers(*rows)), draw(st.integers(*tokens))
    mask_BT = draw(masks(B, T, holes=holes, empty=empty))

    def table(numbers: SearchStrategy[float]) -> torch.Tensor:
        drawn = [draw(numbers) for _ in range(int(mask_BT.sum()))]
        return torch.zeros(B, T, dtype=f64).masked_scatter(mask_BT, torch.tensor(drawn, dtype=f64))

    logp_BT = table(logps())
    behavior_BT = logp_BT - table(log_ratios(ratios))
    numbers = st.sampled_from((*ADVANTAGES, 0.0) if zero_advantage else ADVANTAGES)
    return Case(
        logp_BT=logp_BT,
        behavior_logp_BT=behavior_BT,
        old_logp_BT=behavior_BT + table(st.sampled_from(_STALE)) if stale_trainer else behavior_BT,
        adv_B=torch.tensor([draw(numbers) for _ in range(B)], dtype=f64),
        mask_BT=mask_BT,
        group_B=torch.tensor(draw(group_ids(B))),
    )


def batches(takes_old: bool, ratios: Ratios = "any", **options: Any) -> SearchStrategy[Case]:
    """`cases`, with a trainer whose old log-probs differ from the generator's if the loss reads them."""
    return cases(ratios, stale_trainer=takes_old, **options)


def group_ids(rows: int) -> SearchStrategy[list[int]]:
    """Prompts of `rows` completions: of any size, in any order, under any ids."""
    return st.lists(st.sampled_from(GROUP_IDS), min_size=rows, max_size=rows)


def garbage() -> SearchStrategy[float]:
    """What may stand where the mask is False."""
    return st.sampled_from((1e30, -1e30, float("nan"), float("inf"), float("-inf")))


def shardings(rows: int, most: int = 4) -> SearchStrategy[list[list[int]]]:
    """Row numbers dealt to up to `most` shards: some may be empty, a prompt may be cut, order is kept within one."""

    def deal(shard_of: list[int]) -> list[list[int]]:
        return [[row for row, s in enumerate(shard_of) if s == shard] for shard in range(most)]

    return st.lists(st.integers(0, most - 1), min_size=rows, max_size=rows).map(deal)


@composite
def rewards(draw: DrawFn, group: list[int]) -> torch.Tensor:
    """[B] float64, one for each entry of `group`: a verifier's, shaped ones, large offsets, and constant groups."""
    numbers = draw(
        st.sampled_from(((1.0, -1.0), (1.0, 0.0), (0.1, 0.3, 0.7), (1e6 + 1.0, 1e6), (5.0,)))
    )
    constant = {g: draw(st.booleans()) and draw(st.booleans()) for g in sorted(set(group))}
    reward = [numbers[0] if constant[g] else draw(st.sampled_from(numbers)) for g in group]
    return torch.tensor(reward, dtype=f64)


@composite
def groups(draw: DrawFn, *, most_groups: int = 3, most_rows: int = 4) -> list[Group]:
    """Finished groups for `RolloutBatch.from_groups`: ragged, with forced tokens, tokens of two weight versions in one
    completion, and prompts that none, some or all completions solve."""
    made: list[Group] = []
    for number in range(draw(st.integers(1, most_groups))):
        solved = draw(st.sampled_from(("none", "some", "all")))
        rows = [draw(_completions(solved)) for _ in range(draw(st.integers(1, most_rows)))]
        made.append(Group(draw(st.integers(0, 5)) * 10 + number, number, [0, 1], rows))
    return made


@composite
def _completions(draw: DrawFn, solved: str) -> Completion:
    n = draw(st.integers(1, 5))
    sampled = [t == 0 or draw(st.booleans()) for t in range(n)]
    correct = solved == "all" or (solved == "some" and draw(st.booleans()))
    version = draw(st.integers(0, 3))
    return Completion(
        token_ids=draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)),
        logp=[draw(logps()) if s else 0.0 for s in sampled],
        version=[version + (t >= n // 2) for t in range(n)],
        sampled=sampled,
        truncated=draw(st.booleans()),
        correct=correct,
        reward=(1.0 - draw(st.sampled_from((0.0, 0.1, 0.3)))) if correct else -1.0,
    )
