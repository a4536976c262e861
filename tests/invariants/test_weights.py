"""Token weights: what weighs the same under each aggregation, against fractions."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalerl.reduction import Aggregation, token_weights

HOWS: list[Aggregation] = ["prompt_mean", "sample_mean", "token_mean"]
IDS = st.sampled_from([5, -2, 10**14, 0])
every_how = pytest.mark.parametrize("how", HOWS)

Row = tuple[int, list[bool]]  # group, mask


@st.composite
def masked_rows(draw: st.DrawFn) -> list[Row]:
    """Up to eight rows of one width: holes inside, rows without a trained token, groups interleaved."""
    width = draw(st.integers(1, 7))
    mask = st.lists(st.booleans(), min_size=width, max_size=width)
    row = st.tuples(IDS, st.one_of(mask, st.just([True] * width), st.just([False] * width)))
    return draw(st.lists(row, min_size=1, max_size=8))


def row_of(group: int, tokens: int, width: int) -> Row:
    return group, [t < tokens for t in range(width)]


def weights(rows: list[Row], how: Aggregation) -> list[list[float]]:
    mask_BT = torch.tensor([mask for _, mask in rows])
    return token_weights(mask_BT, torch.tensor([group for group, _ in rows]), how).tolist()


def per_row(rows: list[Row], how: Aggregation) -> list[Fraction]:
    """Weight of a trained token of each row, by the definition; 0 for a row without any."""
    tokens = [sum(mask) for _, mask in rows]
    group: dict[int, int] = {}
    for (g, _), n in zip(rows, tokens, strict=True):
        group[g] = group.get(g, 0) + n
    N, P = sum(n > 0 for n in tokens), sum(n > 0 for n in group.values())
    share = {
        "token_mean": lambda g, n: Fraction(1, sum(tokens)),
        "sample_mean": lambda g, n: Fraction(1, N * n),
        "prompt_mean": lambda g, n: Fraction(1, P * group[g]),
    }[how]
    return [share(g, n) if n else Fraction(0) for (g, _), n in zip(rows, tokens, strict=True)]


def single(x: Fraction) -> float:
    """Nearest float32."""
    return torch.tensor(float(x), dtype=torch.float64).float().item()


def near(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-6)  # a weight has the seven digits of float32


@pytest.mark.invariant("E01")
@every_how
@given(masked_rows())
def test_weights_add_up_to_one(how: Aggregation, rows: list[Row]) -> None:
    found, expected = weights(rows, how), per_row(rows, how)
    assert found == [
        [single(w) if on else 0.0 for on in mask]
        for (_, mask), w in zip(rows, expected, strict=True)
    ]
    trained = any(any(mask) for _, mask in rows)
    assert sum(map(sum, found)) == near(1.0 if trained else 0.0)


@pytest.mark.invariant(
    "E02",
    "With completions of equal length and groups of equal size the three aggregations coincide.",
    "T_i = T, |g| = G  =>  sample = prompt = token;  T_i = T alone  =>  sample = token",
    "",
)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(0, 3))
def test_equal_lengths(P: int, G: int, T: int, more: int) -> None:
    rows = [row_of(g, T, 6) for _ in range(G) for g in range(P)]
    expected = [[single(Fraction(1, P * G * T))] * T + [0.0] * (6 - T)] * (P * G)
    for how in HOWS:
        assert weights(rows, how) == expected
    larger = rows + [row_of(0, T, 6)] * more  # one group may then have more rows
    assert weights(larger, "sample_mean") == weights(larger, "token_mean")


@pytest.mark.invariant(
    "E03", "With one prompt, prompt mean is token mean.", "P = 1  =>  prompt = token", ""
)
@given(masked_rows(), IDS)
def test_one_prompt(rows: list[Row], group: int) -> None:
    rows = [(group, mask) for _, mask in rows]
    assert weights(rows, "prompt_mean") == weights(rows, "token_mean")


@pytest.mark.invariant(
    "E04",
    "With one completion a prompt, prompt mean is sample mean.",
    "G = 1  =>  prompt = sample",
    "",
)
@given(masked_rows())
def test_one_completion_a_prompt(rows: list[Row]) -> None:
    rows = [(7 - 3 * i, mask) for i, (_, mask) in enumerate(rows)]
    assert weights(rows, "prompt_mean") == weights(rows, "sample_mean")


@pytest.mark.invariant(
    "E05",
    "Prompts of equal size, each with one length of its own: prompt is sample mean; equal totals: it is token mean.",
    "T_i = T_g(i), |g| = G  =>  prompt = sample;  sum_g T_i = const  =>  prompt = token",
    "",
)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 4), st.integers(4, 8))
def test_equal_within_prompts(lengths: list[int], G: int, total: int) -> None:
    rows = [row_of(g, T, 6) for _ in range(G) for g, T in enumerate(lengths)]
    assert weights(rows, "prompt_mean") == weights(rows, "sample_mean")
    # each prompt has `total` tokens, cut in two rows at its own place
    halves = [(T % 4, total - T % 4) for T in lengths]
    rows = [row_of(g, n, 8) for g, pair in enumerate(halves) for n in pair]
    assert weights(rows, "prompt_mean") == weights(rows, "token_mean")


@pytest.mark.invariant("E06")
@pytest.mark.parametrize(
    ("how", "groups", "loss"),
    [
        ("sample_mean", (3, 8), 2.0),  # (4/1 + 0/3) / 2
        ("sample_mean", (3, 3), 2.0),
        ("prompt_mean", (3, 8), 2.0),
        ("prompt_mean", (3, 3), 1.0),
        ("token_mean", (3, 8), 1.0),  # 4 / 4
        ("token_mean", (3, 3), 1.0),
    ],
)
def test_unequal_lengths(how: Aggregation, groups: tuple[int, int], loss: float) -> None:
    found = weights([row_of(groups[0], 1, 3), row_of(groups[1], 3, 3)], how)
    assert 4.0 * found[0][0] + 0.0 * sum(found[1]) == loss


@pytest.mark.invariant("E08")
@every_how
@given(masked_rows(), st.lists(IDS, max_size=3), st.integers(0, 4))
def test_what_is_empty_weighs_nothing(
    how: Aggregation, rows: list[Row], empty: list[int], padding: int
) -> None:
    width = len(rows[0][1])
    wider = [(g, [*mask, *[False] * padding]) for g, mask in rows]
    more = [(g, [False] * (width + padding)) for g in [*empty, 77]]
    found = weights(wider + more, how)
    assert [row[:width] for row in found[: len(rows)]] == weights(rows, how)
    assert not any(map(any, found[len(rows) :])) and not any(any(row[width:]) for row in found)


@pytest.mark.invariant("E14")
@every_how
@given(masked_rows(), st.integers(2, 5))
def test_replication(how: Aggregation, rows: list[Row], k: int) -> None:
    copies = [(g * 8 + copy, mask) for copy in range(k) for g, mask in rows]
    assert weights(copies, how) == [
        [single(w / k) if on else 0.0 for on in mask]
        for _ in range(k)
        for (_, mask), w in zip(rows, per_row(rows, how), strict=True)
    ]


@pytest.mark.invariant(
    "E15",
    "Joining two completions of a prompt keeps token and prompt mean; sample mean changes by a known factor.",
    "w' = w (token, prompt);  w' = w_1 N T_1 / ((N - 1) (T_1 + T_2)) (sample)",
    "",
)
@given(masked_rows(), IDS, st.integers(1, 5), st.integers(1, 5))
def test_joining_two_rows(rows: list[Row], g: int, one: int, two: int) -> None:
    others = [(h, [*mask, *[False] * (10 - len(mask))]) for h, mask in rows]
    apart = [row_of(g, one, 10), row_of(g, two, 10), *others]
    joined = [row_of(g, one + two, 10), *others]
    for how in HOWS:
        before, after = weights(apart, how), weights(joined, how)
        if how == "sample_mean":
            N = sum(any(mask) for _, mask in apart)
            factor = Fraction(N * one, (N - 1) * (one + two))
            assert after[0][0] == near(float(factor) * before[0][0])
        else:
            assert after[0] == [before[0][0]] * (one + two) + [0.0] * (10 - one - two)
            assert before[1][0] == before[0][0] and after[1:] == before[2:]
