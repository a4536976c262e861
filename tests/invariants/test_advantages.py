"""Advantages: what centring and the three normalisations promise, against sums in exact fractions."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scalerl.advantages import Normalise, advantages
from scalerl.update import mixed_groups

f64 = torch.float64
MODES: list[Normalise] = ["batch", "prompt", "none"]
IDS: tuple[int, ...] = (7, -3, 10**15, 0)
CODES = ((-1.0, 1.0), (0.0, 1.0), (0.1, 0.3, 0.7), (-1.0, 0.0, 0.35, 1.0), (0.1,))
every_mode = pytest.mark.parametrize("mode", MODES)

Scored = list[tuple[int, float]]  # (group, reward) of every row


@st.composite
def scored(draw: st.DrawFn, codes: tuple[tuple[float, ...], ...] = CODES) -> Scored:
    """Rows of up to four interleaved groups of any sizes, each with its own coding: some constant, some single."""
    ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=14))
    code = {i: draw(st.sampled_from(codes)) for i in sorted(set(ids))}
    return [(i, draw(st.sampled_from(code[i]))) for i in ids]


def adv(rows: Scored, mode: Normalise) -> list[float]:
    return advantages(rewards(rows), groups(rows), mode).tolist()


def rewards(rows: Scored) -> Tensor:
    return torch.tensor([r for _, r in rows], dtype=f64)


def groups(rows: Scored) -> Tensor:
    return torch.tensor([g for g, _ in rows])


def exact(rows: Scored, mode: Normalise) -> list[float]:
    """The definition in fractions: no rounding until the root of the variance."""

    def mean(xs: list[Fraction]) -> Fraction:
        return sum(xs, Fraction(0)) / len(xs)

    group = {g: mean([Fraction(r) for h, r in rows if h == g]) for g, _ in rows}
    centred = [Fraction(r) - group[g] for g, r in rows]
    found: list[float] = []
    for (g, _), c in zip(rows, centred, strict=True):
        peers = [d for (h, _), d in zip(rows, centred, strict=True) if mode == "batch" or h == g]
        variance = Fraction(1) if mode == "none" else mean([d * d for d in peers])
        found.append(float(c) / math.sqrt(variance) if variance else 0.0)
    return found


def near(expected: list[float], rel: float = 1e-12) -> Any:
    return pytest.approx(expected, rel=rel, abs=1e-13)


# ---- centring ----


@pytest.mark.invariant(
    "F01",
    "The advantages of a prompt's completions add up to zero, in every normalisation.",
    "sum over i in g of A_i = 0,   A_i = (r_i - mean_g r) / std",
    "PipelineRL #54: mean and std of the first rollout only; open-r1 #67: statistics of the batch, not of the group",
)
@every_mode
@given(scored())
def test_groups_add_up_to_zero(mode: Normalise, rows: Scored) -> None:
    found = adv(rows, mode)
    assert found == near(exact(rows, mode))
    for g in {g for g, _ in rows}:
        mine = [a for (h, _), a in zip(rows, found, strict=True) if h == g]
        assert abs(sum(mine)) <= 1e-12 * max(1.0, sum(map(abs, mine)))


@pytest.mark.invariant("F01")
@every_mode
def test_one_pass_each_end(mode: Normalise) -> None:
    # mean 1/2; the std of +-1/2 is 1/2
    expected = [0.5, -0.5, -0.5, 0.5] if mode == "none" else [1, -1, -1, 1]
    assert adv([(0, 1.0), (0, 0.0), (0, 0.0), (0, 1.0)], mode) == expected


@pytest.mark.invariant(
    "F02",
    "A constant of its own on every prompt's rewards changes no advantage: batch std is of the centred rewards.",
    "A(r + c_g) = A(r)",
    "TRL #3991 and others: batch std over raw rewards mixes the prompts' difficulty into the scale",
)
@every_mode
@given(scored(CODES), st.lists(st.sampled_from([0.0, 0.25, -8.0, 1000.0]), min_size=4, max_size=4))
def test_a_shift_of_a_prompt_changes_nothing(
    mode: Normalise, rows: Scored, shift: list[float]
) -> None:
    moved = [(g, r + shift[IDS.index(g)]) for g, r in rows]
    assert adv(moved, mode) == near(exact(rows, mode), rel=1e-10)


# ---- units and codings ----


@pytest.mark.invariant(
    "F03",
    "A positive factor on all rewards scales the advantages without normalisation, and cancels with it at any size.",
    "A(a r) = a A(r) for none, A(r) for prompt and batch, a > 0 (no eps)",
    "",
)
@every_mode
@given(scored(), st.integers(-300, 300), st.floats(0.01, 100.0))
def test_the_unit_of_rewards_cancels(mode: Normalise, rows: Scored, k: int, a: float) -> None:
    plain = adv(rows, mode)
    # a power of two commutes with every rounding
    assert adv([(g, r * 2.0**k) for g, r in rows], mode) == [
        x * 2.0**k if mode == "none" else x for x in plain
    ]
    scaled = [(g, r * a) for g, r in rows]
    assert adv(scaled, mode) == near(exact(scaled, mode))


@pytest.mark.invariant("F03")
@pytest.mark.parametrize("mode", ["batch", "prompt"])
@pytest.mark.parametrize("unit", [1e-9, 1e-200, 1e200])
def test_a_tiny_spread_is_a_real_one(mode: Normalise, unit: float) -> None:
    assert adv([(0, unit), (0, 0.0), (0, 0.0), (0, unit)], mode) == near([1, -1, -1, 1])


@pytest.mark.invariant(
    "F04", "Rewards of the other sign give advantages of the other sign.", "A(-r) = -A(r)", ""
)
@every_mode
@given(scored())
def test_negation(mode: Normalise, rows: Scored) -> None:
    assert adv([(g, -r) for g, r in rows], mode) == [-a for a in adv(rows, mode)]


@pytest.mark.invariant(
    "F05",
    "Coding right and wrong as +1 and -1 or as 1 and 0 is the same for prompt and batch, and a factor of 2 for none.",
    "A(2 r - 1) = A(r) for prompt and batch, 2 A(r) for none,   r in {0, 1}",
    "",
)
@every_mode
@given(scored(((0.0, 1.0), (1.0,))))
def test_the_coding_of_rewards(mode: Normalise, rows: Scored) -> None:
    factor = 2.0 if mode == "none" else 1.0
    signed = adv([(g, 2 * r - 1) for g, r in rows], mode)
    assert signed == near([factor * a for a in exact(rows, mode)])


@pytest.mark.invariant(
    "F06",
    "Rows are grouped by their id and nothing else: any order of rows, any name of a group.",
    "A(P r, P g) = P A(r, g) for a permutation P;  A(r, f(g)) = A(r, g) for a bijection f",
    "prime-rl #600, VLM-R1 #129: prompts tiled p, q, p, q but grouped in blocks of G rows",
)
@every_mode
@given(scored(), st.randoms(use_true_random=False))
def test_order_and_names_do_not_matter(mode: Normalise, rows: Scored, random: Any) -> None:
    plain, order = adv(rows, mode), list(range(len(rows)))
    random.shuffle(order)
    assert adv([rows[i] for i in order], mode) == near([plain[i] for i in order])
    names = dict(zip(IDS, random.sample(range(-50, 50), len(IDS)), strict=True))
    assert adv([(names[g], r) for g, r in rows], mode) == near(plain)


@pytest.mark.invariant("F06")
@every_mode
def test_interleaved_prompts(mode: Normalise) -> None:
    # p all right, q all wrong; taken two by two in order of rows each would look mixed
    assert adv([(4, 1.0), (9, 0.0), (4, 1.0), (9, 0.0)], mode) == [0, 0, 0, 0]


# ---- the standard deviation ----


@pytest.mark.invariant(
    "F07",
    "A completion alone in its group has advantage exactly 0, whatever its reward, and is a zero-variance group.",
    "G = 1: A = 0",
    "rllm #776: an id per trajectory makes groups of one, which keep the raw reward",
)
@every_mode
@given(scored(), st.sampled_from([-1.0, 0.1, 7.0, 1e6]), st.booleans())
def test_a_group_of_one(mode: Normalise, rows: Scored, reward: float, correct: bool) -> None:
    found = adv([*rows, (99, reward)], mode)
    assert found[-1] == 0.0
    if mode != "batch":  # there it counts in n; the update drops it first
        assert found[:-1] == adv(rows, mode)
    assert not mixed_groups(torch.tensor([correct]), torch.tensor([99])).item()


@pytest.mark.invariant(
    "F08",
    "The variance is divided by n, not n - 1, in every code path.",
    "r = (+1, -1): A = (+1, -1), not +-0.7071",
    "",
)
@pytest.mark.parametrize("mode", ["batch", "prompt"])
def test_the_population_std(mode: Normalise) -> None:
    assert adv([(0, 1.0), (0, -1.0)], mode) == [1, -1]
    # by hand: centred 2, -1, -1; variance 6 / 3
    root = math.sqrt(2)
    assert adv([(0, 3.0), (0, 0.0), (0, 0.0)], mode) == near([root, -root / 2, -root / 2])


@pytest.mark.invariant(
    "F09",
    "Copying the whole batch under new group ids changes no advantage (a divisor of n - 1 would).",
    "A(r repeated k times) = A(r) repeated k times",
    "",
)
@every_mode
@given(scored(), st.integers(2, 4))
def test_copies_of_the_batch(mode: Normalise, rows: Scored, k: int) -> None:
    copies = [(g * 8 + copy, r) for copy in range(k) for g, r in rows]
    assert adv(copies, mode) == near(exact(rows, mode) * k)


@pytest.mark.invariant(
    "F10",
    "Batch-normalised advantages have mean square 1, unless all are 0.",
    "mean_i A_i^2 = 1 (batch)",
    "slime #2235: whitening over a part of the data gives each part a scale of its own",
)
@given(scored())
def test_unit_std(rows: Scored) -> None:
    square = sum(a * a for a in adv(rows, "batch")) / len(rows)
    varied = any(r != s for g, r in rows for h, s in rows if g == h)
    assert square == pytest.approx(1.0 if varied else 0.0, rel=1e-12)


@pytest.mark.invariant(
    "F11",
    "With k of G completions right, the prompt-normalised advantages have a closed form.",
    "A_right = sqrt((G - k) / k),  A_wrong = -sqrt(k / (G - k))",
    "",
)
@given(st.integers(2, 40).flatmap(lambda G: st.tuples(st.integers(1, G - 1), st.just(G))))
def test_binary_rewards(kG: tuple[int, int]) -> None:
    k, G = kG
    high, low = math.sqrt((G - k) / k), -math.sqrt(k / (G - k))
    found = adv([(5, 1.0)] * k + [(5, -1.0)] * (G - k), "prompt")
    assert found == near([high] * k + [low] * (G - k))


@pytest.mark.invariant(
    "F12",
    "A prompt-normalised advantage is at most sqrt(G - 1); one right among G attains it.",
    "|A_i| <= sqrt(G - 1)",
    "NeMo-RL #1518: leave-one-out std of the odd one out is 0, and A = 1e6",
)
@given(scored(), st.integers(2, 64))
def test_the_bound(rows: Scored, G: int) -> None:
    size = {g: sum(h == g for h, _ in rows) for g, _ in rows}
    for (g, _), a in zip(rows, adv(rows, "prompt"), strict=True):
        assert abs(a) <= math.sqrt(size[g] - 1) * (1 + 1e-9)
    alone = adv([(0, 1.0)] + [(0, 0.0)] * (G - 1), "prompt")
    assert alone[0] == pytest.approx(math.sqrt(G - 1), rel=1e-12)


@pytest.mark.invariant(
    "F13",
    "Within a prompt the better reward has the greater advantage, and equal rewards have equal ones.",
    "r_i > r_j  =>  A_i > A_j,   i, j of one prompt",
    "",
)
@every_mode
@given(scored())
def test_monotone(mode: Normalise, rows: Scored) -> None:
    both = list(zip(rows, adv(rows, mode), strict=True))
    for (g, r), a in both:
        for (h, s), b in both:
            assert g != h or ((a > b) == (r > s) and (a == b) == (r == s))
