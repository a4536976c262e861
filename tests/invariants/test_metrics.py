"""What the metrics of shards must obey when they are merged, and which tokens count as clipped."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scalerl.losses import CAPPED, LOSSES
from scalerl.metrics import EffectiveSampleSize, Max, Mean, Metric, Sum, merge_all, ratio_stats

f64 = torch.float64
Item = tuple[int, int, int | None]  # value, weight, something of which the largest counts
Items = list[Item]
items = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(0, 5), st.one_of(st.none(), st.integers(-9, 9))),
    max_size=14,
)
log_rhos = st.lists(
    st.one_of(st.sampled_from([0.0, 0.1, 0.3, -0.7]), st.floats(-8.0, 8.0)), max_size=14
)


@st.composite
def splits(
    draw: st.DrawFn, source: st.SearchStrategy[list[Any]]
) -> tuple[list[Any], list[list[Any]]]:
    """A list, and the same items dealt to up to six shards in any order, some of them empty."""
    whole = draw(source)
    shards: list[list[Any]] = [[] for _ in range(draw(st.integers(1, 6)))]
    for item in draw(st.permutations(whole)):
        shards[draw(st.integers(0, len(shards) - 1))].append(item)
    return whole, shards


def measured(shard: Sequence[Item]) -> dict[str, Metric]:
    """One metric of each type, by its definition over the items: integers, so that sums are exact."""
    found: dict[str, Metric] = {
        "mean": Mean(sum(v * w for v, w, _ in shard), sum(w for _, w, _ in shard)),
        "sum": Sum(sum(v for v, _, _ in shard)),
        "max": Max(max((m for _, _, m in shard if m is not None), default=None)),
        "ess": EffectiveSampleSize(
            sum(abs(v) for v, _, _ in shard), sum(v * v for v, _, _ in shard), len(shard)
        ),
    }
    if len(shard) > 2:
        found["rare"] = Sum(1)  # measured in some shards only
    return found


# ---- merging ----


@pytest.mark.invariant(
    "N20",
    "Merging the shards of any split gives what the whole batch gives: by weight, never shard by shard.",
    "merge(metric(S_1), ..., metric(S_n)) = metric(S_1 + ... + S_n)",
    "TRL #3021, OpenRLHF, open-instruct #1161: mean of micro-batch means",
)
@given(splits(items))
def test_any_split_merges_to_the_whole(case: tuple[Items, list[Items]]) -> None:
    whole, shards = case
    merged = merge_all(measured(shard) for shard in shards)
    weight = sum(w for _, w, _ in whole)
    mean = Fraction(sum(v * w for v, w, _ in whole), weight) if weight else None
    assert merged["mean"].value == (None if mean is None else float(mean))
    assert merged["sum"].value == sum(v for v, _, _ in whole)
    assert merged["max"].value == max((m for *_, m in whole if m is not None), default=None)
    square = sum(v * v for v, _, _ in whole)
    ess = Fraction(sum(abs(v) for v, _, _ in whole) ** 2, len(whole) * square) if square else None
    expected = None if not whole else 0.0 if ess is None else float(ess)
    assert merged["ess"].value == expected
    assert ("rare" in merged) == any(len(shard) > 2 for shard in shards)


@pytest.mark.invariant(
    "N21",
    "Neither the order of the shards nor how they are bracketed matters.",
    "a.b = b.a;  (a.b).c = a.(b.c)",
    "",
)
@given(splits(items), st.randoms(use_true_random=False))
def test_order_and_brackets(case: tuple[Items, list[Items]], random) -> None:
    found = [measured(shard) for shard in case[1]]
    merged = merge_all(found)
    random.shuffle(found)
    assert merge_all(found) == merged
    cut = random.randint(0, len(found))
    assert merge_all([merge_all(found[:cut]), merge_all(found[cut:])]) == merged


@pytest.mark.invariant(
    "N22",
    "A shard with nothing in it, or without a name, leaves the others' values as they are.",
    "merge(a, empty) = merge(empty, a) = a",
    "NeMo-RL #212: an empty micro-batch counted in the divisor",
)
@given(items, st.integers(0, 3))
def test_an_empty_shard_is_neutral(shard: Items, place: int) -> None:
    found = measured(shard)
    for nothing in (measured([]), {}):
        shards: list[dict[str, Metric]] = [nothing] * 3
        shards.insert(place, found)
        assert merge_all(shards) == found | {n: m for n, m in nothing.items() if n not in found}
    assert found == measured(shard)  # merging changes no shard
    assert merge_all([]) == {}


@pytest.mark.invariant(
    "N23",
    "Where nothing was measured the value is none at all: neither NaN nor a 0 that reads as a measurement.",
    "weight = 0 => value = None;  Sum of nothing = 0",
    "prime-rl #798, #808: a padding-only micro-batch gives 0/0",
)
@given(st.integers(1, 6))
def test_nothing_measured_is_none(n: int) -> None:
    merged = merge_all([measured([])] * n)
    assert {name: metric.value for name, metric in merged.items()} == {
        "mean": None,
        "sum": 0,
        "max": None,
        "ess": None,
    }
    stats = merge_all([ratio_stats(np.zeros(0))] * n)
    assert {name: metric.value for name, metric in stats.items()} == {"kl": None, "ess": None}


@pytest.mark.invariant(
    "N24",
    "A value that is not a number survives every merge, wherever it stands.",
    "NaN in any shard => NaN in the merged metric",
    "",
)
@given(splits(items), st.data())
def test_a_fault_is_not_outvoted(case: tuple[Items, list[Items]], data: st.DataObject) -> None:
    shards = [measured(shard) for shard in case[1]]
    nan = math.nan
    bad = {
        "mean": Mean(nan, 1),
        "sum": Sum(nan),
        "max": Max(nan),
        "ess": EffectiveSampleSize(nan, nan, 1),
    }
    shards.insert(data.draw(st.integers(0, len(shards))), bad)
    merged = merge_all(shards)
    for name in bad:
        value = merged[name].value
        assert value is not None and math.isnan(value)


@pytest.mark.invariant(
    "N25",
    "One name has one type: shards that disagree are refused, whichever comes first.",
    "type(a) != type(b) => TypeError",
    "",
)
@given(st.permutations([Mean(2, 1), Sum(2), Max(2), EffectiveSampleSize(2, 4, 1)]))
def test_two_types_under_one_name(metrics: list[Metric]) -> None:
    one, other = metrics[:2]
    with pytest.raises(TypeError, match=f"x: {type(one).__name__} cannot merge with"):
        merge_all([{"x": one}, {"y": one}, {"x": other}])


# ---- statistics of the ratio ----


@pytest.mark.invariant(
    "N26",
    "The KL of the trainer against the generator is the mean of one non-negative term per token, in any split.",
    "kl = mean(rho ln rho - rho + 1) >= 0, 0 iff every rho = 1",
    "",
)
@given(splits(log_rhos))
def test_kl_of_any_split(case: tuple[list[float], list[list[float]]]) -> None:
    whole, shards = case
    merged = merge_all(ratio_stats(np.array(shard, dtype=np.float64)) for shard in shards)
    kl = merged["kl"].value
    if not whole:
        assert kl is None
        return
    terms = [math.exp(d) * d - math.expm1(d) for d in whole]
    assert kl == pytest.approx(math.fsum(terms) / len(whole), rel=1e-9, abs=1e-12)
    assert kl is not None and kl >= 0.0
    if max(map(abs, whole)) > 1e-3:
        assert kl > 0.0


@pytest.mark.invariant(
    "N27",
    "The effective share of tokens lies in 1/N..1, ignores a common factor, and is 1 for equal ratios.",
    "1/N <= ess <= 1;  ess(c rho) = ess(rho);  ess(1, ..., 1) = 1",
    "",
)
@given(splits(log_rhos), st.sampled_from([-3.0, 0.1, 2.0]))
def test_ess_of_any_split(case: tuple[list[float], list[list[float]]], shift: float) -> None:
    whole, shards = case
    merged = merge_all(ratio_stats(np.array(shard, dtype=np.float64)) for shard in shards)
    ess = merged["ess"].value
    if not whole:
        assert ess is None
        return
    rho = [math.exp(d) for d in whole]
    expected = math.fsum(rho) ** 2 / (len(rho) * math.fsum(r * r for r in rho))
    assert ess == pytest.approx(expected, rel=1e-9)
    assert ess is not None and (1 - 1e-9) / len(whole) <= ess <= 1.0
    scaled = ratio_stats(np.array(whole) + shift)["ess"].value
    assert scaled == pytest.approx(ess, rel=1e-9)
    equal = ratio_stats(np.full(len(whole), whole[0]))["ess"].value
    assert equal == pytest.approx(1.0, rel=1e-12)


# ---- which tokens count as clipped ----

BANDS = {"dapo": (0.2, 0.28), "grpo": (0.2, 0.2), "gspo": (3e-3, 4e-3)}
WIDE = [0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.27, 1.29, 4.9, 5.1]
NARROW = [0.994, 0.998, 1.0, 1.002, 1.003, 1.005, 1.006]  # around the bounds of gspo


@st.composite
def ratio_batches(draw: st.DrawFn, ratios: list[float] = WIDE) -> tuple[Tensor, Tensor, Tensor]:
    """Ratios around every bound, advantages of both signs and 0, and a mask with holes and empty rows."""
    B, T = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def pick(values: list[float], *shape: int) -> Tensor:
        chosen = torch.randint(len(values), shape, generator=generator)
        return torch.tensor(values, dtype=f64)[chosen]

    mask_BT = torch.rand(B, T, generator=generator) < draw(st.sampled_from([0.0, 0.5, 0.9]))
    return pick(ratios, B, T), pick([-1.3, -0.1, 0.0, 0.3, 2.0], B), mask_BT


def flags(kind: str, rho_BT: Tensor, adv_B: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens that `CAPPED` marks, and the gradient of the loss's plain sum on every token."""
    keywords = (
        {"eps_max": 5.0}
        if kind == "cispo"
        else dict(zip(("clip_low", "clip_high"), BANDS[kind], strict=True))
    )
    logp_BT = (-2.0 + 0.0 * rho_BT).requires_grad_()
    # masked tokens hold garbage, as padding may
    behavior_BT = torch.where(mask_BT, -2.0 - rho_BT.log(), math.nan)
    marked_BT = CAPPED[kind](logp_BT.detach(), behavior_BT, adv_B, mask_BT, **keywords)
    LOSSES[kind](logp_BT, behavior_BT, adv_B, mask_BT, **keywords).sum().backward()
    assert logp_BT.grad is not None
    return marked_BT, logp_BT.grad


@pytest.mark.invariant(
    "CL4",
    "A token counts as clipped only where the clip took its gradient, and never under the mask.",
    "clipped = (A > 0 and rho > 1 + eps_hi) or (A < 0 and rho < 1 - eps_lo)",
    "spinningup #255, GMPO #4: the harmless side read as clipped",
)
@given(ratio_batches(), st.sampled_from(["dapo", "grpo"]))
def test_clipped_tokens_by_the_sign_of_the_advantage(
    batch: tuple[Tensor, Tensor, Tensor], kind: str
) -> None:
    rho_BT, adv_B, mask_BT = batch
    low, high = BANDS[kind]
    marked_BT, grad_BT = flags(kind, rho_BT, adv_B, mask_BT)
    for i, row in enumerate(rho_BT.tolist()):
        A = adv_B[i].item()
        for t, rho in enumerate(row):
            clipped = (A > 0 and rho > 1 + high) or (A < 0 and rho < 1 - low)
            assert marked_BT[i, t].item() == (clipped and mask_BT[i, t].item())
            if A != 0 and mask_BT[i, t]:
                assert (grad_BT[i, t].item() == 0.0) == clipped


@pytest.mark.invariant("CL4")
@given(ratio_batches(NARROW))
def test_gspo_clips_whole_completions(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    """By the geometric mean of the trained tokens' ratios: all of a completion, or none of it."""
    rho_BT, adv_B, mask_BT = batch
    low, high = BANDS["gspo"]
    marked_BT, _ = flags("gspo", rho_BT, adv_B, mask_BT)
    for i, row in enumerate(rho_BT.tolist()):
        kept = [rho for rho, m in zip(row, mask_BT[i].tolist(), strict=True) if m]
        s = math.prod(kept) ** (1 / len(kept)) if kept else 1.0
        A = adv_B[i].item()
        assert min(abs(s - 1 - high), abs(s - 1 + low)) > 1e-9  # no ratio lies on a bound
        clipped = (A > 0 and s > 1 + high) or (A < 0 and s < 1 - low)
        assert marked_BT[i].tolist() == [clipped and m for m in mask_BT[i].tolist()]


@pytest.mark.invariant("CL4")
@given(ratio_batches())
def test_cispo_caps_from_above_whatever_the_sign(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    """A capped token keeps a gradient of 5 |A|; `reinforce` has nothing that could cap."""
    rho_BT, adv_B, mask_BT = batch
    marked_BT, grad_BT = flags("cispo", rho_BT, adv_B, mask_BT)
    assert torch.equal(marked_BT, mask_BT & (rho_BT > 5.0))
    expected_BT = (-5.0 * adv_B[:, None]).expand_as(rho_BT)
    torch.testing.assert_close(grad_BT[marked_BT], expected_BT[marked_BT], rtol=1e-12, atol=0.0)
    none_BT = CAPPED["reinforce"](rho_BT, 2.0 * rho_BT, adv_B, mask_BT)
    assert none_BT.dtype == torch.bool and not none_BT.any()
