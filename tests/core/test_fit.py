"""The sigmoid and its fit: hand-computed values, invariances, the paper's curves."""

import importlib.util
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scalerl.fit import (
    DRAWN_C_MID_K,
    PAPER_C_MID_K,
    FitError,
    SigmoidFit,
    _weights,
    fit_sigmoid,
    sigmoid,
)

ROOT = Path(__file__).parents[2]
FEW = settings(max_examples=25, deadline=None)


def _bench():
    path = ROOT / "tests" / "benchmarks" / "bench_fit.py"
    spec = importlib.util.spec_from_file_location("bench_fit", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = _bench()


@st.composite
def laws(draw):
    """A curve whose knee lies inside the points, and the points: R0, A, B, C_mid, C."""
    R0 = draw(st.floats(0.0, 0.4))
    A = R0 + draw(st.floats(0.05, 0.55))
    B = draw(st.floats(0.5, 4.0))
    C_mid = 10.0 ** draw(st.floats(-2.0, 6.0))
    steps = draw(st.integers(6, 40))
    C = C_mid * np.geomspace(draw(st.floats(0.1, 0.5)), draw(st.floats(2.5, 20.0)), steps)
    return {"R0": R0, "A": A, "B": B, "C_mid": C_mid}, C


def _noisy(law, C, sd=0.01, seed=0):
    return np.clip(
        sigmoid(C, **law) + sd * np.random.default_rng(seed).standard_normal(len(C)), 0, 1
    )


LAW = {"R0": 0.2, "A": 0.6, "B": 2.0, "C_mid": 100.0}
COMPUTE = np.array([25.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 400.0])


# ---- the law -------------------------------------------------------------------------------------


def test_sigmoid_by_hand():
    # C = C_mid: half of the gain, 0.2 + 0.4 / 2 = 0.4
    # C = 200: 0.2 + 0.4 / (1 + (1/2)^2) = 0.2 + 0.4 / 1.25 = 0.52
    # C = 50:  0.2 + 0.4 / (1 + 2^2)     = 0.28
    np.testing.assert_allclose(sigmoid([100.0, 200.0, 50.0], **LAW), [0.4, 0.52, 0.28], atol=1e-12)


@FEW
@given(laws())
def test_half_gain_slope_and_straight_line(case):
    law, C = case
    R0, A, B, C_mid = law.values()
    assert sigmoid(C_mid, **law) == pytest.approx((R0 + A) / 2, abs=1e-12)
    h = 1e-5  # slope in ln C at C_mid is B (A - R0) / 4
    rise = sigmoid(C_mid * np.exp(h), **law) - sigmoid(C_mid * np.exp(-h), **law)
    assert rise / (2 * h) == pytest.approx(B * (A - R0) / 4, rel=1e-5)
    R = sigmoid(C, **law)
    np.testing.assert_allclose(
        np.log((R - R0) / (A - R)), B * (np.log(C) - np.log(C_mid)), rtol=1e-6, atol=1e-6
    )


@FEW
@given(laws())
def test_monotone_bounded_and_exact_at_both_ends(case):
    law, _ = case
    C = np.concatenate([[0.0], np.geomspace(1e-300, 1e300, 4001), [np.inf]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        R = sigmoid(C, **law)
    assert R[0] == law["R0"] and R[-2] == law["A"] and R[-1] == law["A"]
    assert np.all(np.diff(R) >= 0.0)


def test_the_ceiling_is_reached_to_the_last_bit():
    assert 0.2 + (0.9 - 0.2) != 0.9  # what the plain formula would return
    assert sigmoid(1e300, R0=0.2, A=0.9, B=1.5, C_mid=1e3) == 0.9


def test_power_law_tail():
    # C = 100 C_mid, B = 1.5: s = 1 / (1 + 0.001), A - R = 0.4 * 0.001 / 1.001
    law = {**LAW, "B": 1.5}
    short = law["A"] - sigmoid(100.0 * law["C_mid"], **law)
    assert short == pytest.approx(0.4 * 100.0**-1.5, rel=1.1e-3)


def _curve(**changes) -> SigmoidFit:
    values = {**LAW, "rmse": 0.0, "n": 8, "R0_fixed": True, "grid": "relative", "at_edge": False}
    return SigmoidFit(**{**values, **changes})


def test_compute_to_share_by_hand():
    # C_mid (q / (1 - q))^(1/B): 0.8 -> 100 * 4^(1/2) = 200; 0.9 -> 100 * 9^(1/2) = 300
    fit = _curve()
    assert fit.compute_to_share(0.5) == pytest.approx(100.0)
    assert fit.compute_to_share(0.8) == pytest.approx(200.0)
    assert fit.compute_to_share(0.9) == pytest.approx(300.0)
    assert fit.predict(fit.compute_to_share(0.9)) == pytest.approx(0.2 + 0.9 * 0.4)
    for q in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(FitError, match="q = "):
            fit.compute_to_share(q)


def test_marginal_gain_by_hand():
    # at C_mid: B (A - R0) / (4 C_mid) = 2 * 0.4 / 400 = 0.002
    # at 200: R = 0.52: 2 * 0.32 * 0.08 / (0.4 * 200) = 0.00064
    np.testing.assert_allclose(_curve().marginal_gain([100.0, 200.0]), [0.002, 0.00064])
    # at 0: B = 2 starts flat, B = 1 at (A - R0) / C_mid = 0.004, B = 0.5 vertically
    assert _curve().marginal_gain(0.0) == 0.0
    assert _curve(B=1.0).marginal_gain(0.0) == pytest.approx(0.004)
    assert _curve(B=0.5).marginal_gain(0.0) == np.inf


# ---- what the fit must recover and ignore --------------------------------------------------------


@FEW
@given(laws(), st.booleans())
def test_noiseless_curve_is_recovered(case, free):
    law, C = case
    fit = fit_sigmoid(C, sigmoid(C, **law), R0=None if free else law["R0"])
    assert fit.A == pytest.approx(law["A"], abs=1e-7)
    assert fit.R0 == pytest.approx(law["R0"], abs=1e-7)
    assert fit.B == pytest.approx(law["B"], rel=1e-6)
    assert fit.C_mid == pytest.approx(law["C_mid"], rel=1e-6)
    assert fit.rmse < 1e-8
    assert (fit.n, fit.R0_fixed, fit.grid, fit.at_edge) == (len(C), not free, "relative", False)


@FEW
@given(laws(), st.floats(1e-6, 1e6), st.booleans())
def test_the_unit_of_compute_does_not_matter(case, scale, free):
    law, C = case
    R, R0 = _noisy(law, C), None if free else law["R0"]
    one, other = fit_sigmoid(C, R, R0=R0), fit_sigmoid(C * scale, R, R0=R0)
    assert other.C_mid == pytest.approx(scale * one.C_mid, rel=1e-6)
    for field in ("R0", "A", "B", "rmse"):
        assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-6, abs=1e-9)
    assert other.at_edge == one.at_edge


@FEW
@given(laws())
def test_affine_pass_rates_move_only_A_and_R0(case):
    law, C = case
    R = _noisy(law, C, sd=0.003)
    one = fit_sigmoid(C, R, R0=law["R0"])
    assume(not one.at_edge)
    other = fit_sigmoid(C, 0.5 * R + 0.1, R0=0.5 * law["R0"] + 0.1)
    assert other.A == pytest.approx(0.5 * one.A + 0.1, abs=1e-6)
    assert other.B == pytest.approx(one.B, rel=1e-6)
    assert other.C_mid == pytest.approx(one.C_mid, rel=1e-6)


@FEW
@given(laws(), st.randoms(use_true_random=False))
def test_order_and_duplicates_do_not_matter(case, random):
    law, C = case
    R = _noisy(law, C)
    order = list(range(len(C)))
    random.shuffle(order)
    one = fit_sigmoid(C, R, R0=law["R0"])
    shuffled = fit_sigmoid(C[order], R[order], R0=law["R0"])
    doubled = fit_sigmoid(np.tile(C, 2), np.tile(R, 2), R0=law["R0"])
    for other in (shuffled, doubled):
        assert other.A == pytest.approx(one.A, abs=1e-7)
        assert other.B == pytest.approx(one.B, rel=1e-6)
        assert other.rmse == pytest.approx(one.rmse, rel=1e-8)


@FEW
@given(laws(), st.booleans())
def test_no_cell_of_a_brute_grid_is_better(case, free):
    law, C = case
    R = _noisy(law, C, sd=0.02)
    fit = fit_sigmoid(C, R, R0=None if free else law["R0"])
    assert fit.B > 0.0 and fit.A > fit.R0 and fit.A <= 1.0  # never the mirrored curve
    starts = np.linspace(0.0, 0.5, 6) if free else [law["R0"]]
    assert fit.rmse**2 * fit.n <= _brute_sse(C, R, starts) * (1 + 1e-9)


def _brute_sse(C, R, starts) -> float:
    """Least sum of squares over a grid of curves with A <= 1 and C_mid within the search."""
    A = np.linspace(0.02, 1.0, 25)[:, None, None, None]
    B = np.geomspace(0.2, 10.0, 15)[:, None, None]
    C_mid = np.geomspace(C.min() / 4, 2 * C.max(), 25)[:, None]
    best = np.inf
    for R0 in starts:
        sse = ((R0 + (A - R0) / (1 + (C_mid / C) ** B) - R) ** 2).sum(-1)
        best = min(best, np.where(A[..., 0] > R0, sse, np.inf).min())
    return best


@pytest.mark.parametrize("R0", [0.2, None])
def test_a_curve_heading_beyond_one_is_held_at_one(R0):
    C = np.linspace(20.0, 140.0, 12)
    R = sigmoid(C, R0=0.2, A=1.4, B=2.0, C_mid=100.0)  # 0.995 at the end of the window
    fit = fit_sigmoid(C, R, R0=R0)
    assert fit.A == 1.0 and fit.at_edge
    assert fit.rmse**2 * 12 <= _brute_sse(C, R, np.linspace(0.0, 0.5, 26) if R0 is None else [R0])


def test_a_curve_starting_below_zero_is_held_at_zero():
    C = np.linspace(55.0, 800.0, 12)
    R = sigmoid(C, R0=-0.15, A=0.6, B=2.0, C_mid=100.0)  # crosses 0 at C = 50
    fit = fit_sigmoid(C, R)
    assert fit.R0 == 0.0 and not fit.at_edge
    assert fit.rmse**2 * 12 <= _brute_sse(C, R, [0.0])


def test_points_outside_the_window_have_no_influence():
    R = _noisy(LAW, COMPUTE)
    inside = fit_sigmoid(COMPUTE[1:7], R[1:7], R0=0.2)
    spoilt = np.concatenate([[0.9], R[1:7], [0.0]])
    assert fit_sigmoid(COMPUTE, spoilt, R0=0.2, window=(50.0, 300.0)) == inside  # both ends count
    assert inside.n == 6
    assert fit_sigmoid(COMPUTE, R, R0=0.2, window=(50.0, 299.9)).n == 5
    assert fit_sigmoid(COMPUTE, R, R0=0.2, window=(0.0, np.inf)) == fit_sigmoid(COMPUTE, R, R0=0.2)


def test_a_point_before_any_compute_is_R0():
    C, R = np.append(0.0, COMPUTE), np.append(0.2, sigmoid(COMPUTE, **LAW))
    free = fit_sigmoid(C, R)
    assert (free.R0, free.A) == (pytest.approx(0.2, abs=1e-8), pytest.approx(0.6, abs=1e-8))
    assert free.n == 9
    # Given R0, the point is a constant in the sum of squares: 0.1 off, and nothing else changes.
    without = fit_sigmoid(COMPUTE, R[1:], R0=0.2)
    with_it = fit_sigmoid(C, np.append(0.3, R[1:]), R0=0.2)
    assert with_it.A == pytest.approx(without.A, abs=1e-7)
    assert with_it.rmse == pytest.approx(np.sqrt(0.1**2 / 9), rel=1e-6)
    # A hundred evaluations of the start pin a free R0 at their mean, 0.25.
    pinned = fit_sigmoid(np.append(np.zeros(1000), COMPUTE), np.append([0.25] * 1000, R[1:]))
    assert pinned.R0 == pytest.approx(0.25, abs=1e-3)


def test_binomial_weights_by_hand():
    # m = n k = 98: R = 0.5 -> p = 50 / 100, w = 98 / 0.25 = 392
    #               R = 0   -> p = 1 / 100,  w = 98 / 0.0099 = 9898.99, finite
    np.testing.assert_allclose(_weights(np.array([0.5, 0.0]), 49, 2), [392.0, 98.0 / 0.0099])
    np.testing.assert_allclose(_weights(np.array([0.5, 0.5]), [49, 499], 2), [392.0, 3992.0])
    assert list(_weights(np.array([0.5, 0.0]), None, None)) == [1.0, 1.0]


def test_weights_let_well_measured_points_decide():
    R = sigmoid(COMPUTE, **LAW)
    R[3] += 0.2
    prompts = np.where(np.arange(8) == 3, 1.0, 1e9)
    assert fit_sigmoid(COMPUTE, R, R0=0.2, n=prompts, k=1).A == pytest.approx(0.6, abs=1e-4)
    assert abs(fit_sigmoid(COMPUTE, R, R0=0.2).A - 0.6) > 0.01
    equal = fit_sigmoid(COMPUTE, R, R0=0.2, n=1e12, k=1)
    assert equal.A != fit_sigmoid(COMPUTE, R, R0=0.2).A  # the binomial variance differs by point


# ---- what cannot be known ------------------------------------------------------------------------


def test_a_ceiling_that_was_not_seen_is_flagged():
    C = np.linspace(1.0, 10.0, 20)  # the knee is at 100
    fit = fit_sigmoid(C, sigmoid(C, **LAW), R0=0.2)
    assert fit.at_edge and fit.C_mid == pytest.approx(20.0, rel=1e-5)  # twice the last C, no more
    assert fit_sigmoid(C, _noisy(LAW, C, sd=0.005), R0=0.2).at_edge
    assert not fit_sigmoid(COMPUTE, _noisy(LAW, COMPUTE, sd=0.005), R0=0.2).at_edge


def test_falling_runs_are_flagged_not_mirrored():
    falling = fit_sigmoid(COMPUTE, sigmoid(COMPUTE, **LAW)[::-1], R0=0.6)
    assert falling.at_edge and falling.A > falling.R0 and falling.B > 0.0
    free = fit_sigmoid(COMPUTE, sigmoid(COMPUTE, **LAW)[::-1])
    assert free.at_edge and free.A > free.R0


def test_edge_of_the_paper_grid_is_flagged():
    C = np.geomspace(1e3, 1e5, 20)
    high = sigmoid(C, R0=0.4, A=0.9, B=1.5, C_mid=5e3)  # the grid ends at A = 0.800
    fit = fit_sigmoid(C, high, R0=0.4, grid="paper")
    assert fit.A == pytest.approx(0.8) and fit.at_edge
    late = sigmoid(C, R0=0.4, A=0.6, B=1.5, C_mid=3e4)  # paper-drawn ends at C_mid = 12,000
    fit = fit_sigmoid(C, late, R0=0.4, grid="paper-drawn")
    assert fit.C_mid == 12_000.0 and fit.at_edge
    assert not fit_sigmoid(C, late, R0=0.4, grid="paper").at_edge


def test_early_windows_give_sane_forecasts():
    # 120 simulated runs seen to twice C_mid with sd 0.01: error of A, and of R at twice the window.
    rng = np.random.default_rng(5)
    errors = []
    for seed in range(120):
        R0 = rng.uniform(0.15, 0.45)
        law = {
            "R0": R0,
            "A": rng.uniform(R0 + 0.15, 0.9),
            "B": rng.uniform(1.2, 3.5),
            "C_mid": 22.0,
        }
        C = np.linspace(0.0, 44.0, rng.integers(15, 41) + 1)
        fit = fit_sigmoid(C, _noisy(law, C, seed=seed), R0=R0)
        errors.append((fit.A - law["A"], fit.predict(88.0) - sigmoid(88.0, **law)))
    error_A, error_R = np.abs(np.array(errors)).T
    assert np.median(error_A) < 0.02 and np.mean(error_A > 0.1) < 0.02
    assert np.sqrt(np.mean(error_R**2)) < 0.02


R_GOOD = [0.2, 0.3, 0.4, 0.5, 0.55]
C_GOOD = [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("C", "R", "keywords", "message"),
    [
        (C_GOOD[:3], R_GOOD[:3], {}, "3 of 3 points .* needs 5: .* widen"),
        (C_GOOD, R_GOOD, {"window": (2.0, 4.0)}, "3 of 5 points"),
        (C_GOOD, R_GOOD[:4], {}, r"\(5,\), R \(4,\)"),
        (np.array([C_GOOD]), np.array([R_GOOD]), {}, "shape"),
        ([1.0, 2.0, -3.0, 4.0, 5.0], R_GOOD, {}, r"C\[2\] = -3.0.*drop"),
        ([1.0, np.nan, 3.0, 4.0, 5.0], R_GOOD, {}, r"C\[1\] = nan"),
        ([1.0, 2.0, 3.0, 4.0, np.inf], R_GOOD, {}, r"C\[4\] = inf"),
        (C_GOOD, [0.2, 0.3, np.nan, 0.5, 0.55], {}, r"R\[2\] = nan"),
        (C_GOOD, [20.0, 30.0, 40.0, 50.0, 55.0], {}, r"R\[0\] = 20.0.*per cent by 100"),
        (C_GOOD, [-1.0, 0.0, 0.1, 0.2, 0.3], {}, r"R\[0\] = -1.0"),
        (C_GOOD, [0.5] * 5, {}, "R = 0.5 at all 5 points"),
        ([3.0] * 5, R_GOOD, {"R0": 0.1}, "1 distinct"),
        ([0.0, 0.0, 0.0, 4.0, 5.0], R_GOOD, {"R0": 0.1}, "2 distinct"),
        ([1.0, 1.0, 2.0, 3.0, 3.0], R_GOOD, {}, "3 distinct"),
        (C_GOOD, R_GOOD, {"R0": 1.0}, "R0 = 1.0"),
        (C_GOOD, R_GOOD, {"R0": float("nan")}, "R0 = nan"),
        (C_GOOD, R_GOOD, {"R0": 0.85, "grid": "paper"}, "ends at A = 0.800"),
        (C_GOOD, R_GOOD, {"window": (4.0, 2.0)}, r"window = \(4.0, 2.0\)"),
        (C_GOOD, R_GOOD, {"window": (0.0, float("nan"))}, "window"),
        (C_GOOD, R_GOOD, {"grid": "paper"}, "grid='paper' .* give R0"),
        (C_GOOD, R_GOOD, {"grid": "paper-drawn"}, "give R0"),
        (C_GOOD, R_GOOD, {"n": 100}, "k = None"),
        (C_GOOD, R_GOOD, {"n": [100, 100], "k": 4}, "one per point"),
        (C_GOOD, R_GOOD, {"n": 0, "k": 4}, "n k = 0"),
    ],
)
def test_bad_input_is_refused_by_name(C, R, keywords, message):
    with pytest.raises(FitError, match=message):
        fit_sigmoid(C, R, **keywords)
    assert issubclass(FitError, ValueError)


def test_an_unknown_grid_is_refused_by_name():
    # In a process of its own: under pytest the run-time type check answers first.
    code = "import scalerl.fit as f; f.fit_sigmoid([1, 2, 3, 4, 5], [0.1, 0.2, 0.4, 0.5, 0.6], grid='fine')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "FitError: grid='fine' is none of None, 'relative', 'paper'" in done.stderr


def test_integers_and_single_numbers_are_taken():
    fit = fit_sigmoid(
        [0, 1, 2, 3, 4, 8], [0, 0.1, 0.3, 0.5, 0.6, 0.8], R0=0, window=(0, 8), n=10, k=1
    )
    assert fit.n == 6 and fit.R0 == 0.0 and isinstance(fit.R0, float)
    assert fit.predict(4).shape == () and fit.predict([4, 8]).shape == (2,)


def test_negative_compute_has_no_prediction():
    with pytest.raises(FitError, match="C = -1"):
        _curve().predict(-1.0)


# ---- the paper -----------------------------------------------------------------------------------


def test_the_paper_grids_on_a_curve_of_their_own():
    C = np.geomspace(1.5e3, 5e4, 20)
    fit = fit_sigmoid(C, sigmoid(C, R0=0.4, A=0.645, B=1.7, C_mid=5e3), R0=0.4, grid="paper")
    assert fit.A == pytest.approx(0.645, abs=1e-9)
    assert abs(fit.C_mid - 5e3) <= 39_900 / 99 / 2  # half a cell
    assert fit.B == pytest.approx(1.7, rel=0.05)
    fine = fit_sigmoid(C, sigmoid(C, R0=0.4, A=0.645, B=1.7, C_mid=5e3), R0=0.4)
    assert fine.rmse < fit.rmse


@pytest.mark.parametrize(
    ("figure", "series", "grid", "C_mid_K"),
    [
        ("Fig10a(batch)", "bs768", "paper", PAPER_C_MID_K),
        ("Fig1a", "ScaleRL-bs2048-100k", "paper-drawn", DRAWN_C_MID_K),
    ],
)
def test_same_cell_as_one_curve_fit_per_cell(figure, series, grid, C_mid_K):
    C, R = bench.read_curve(figure, series)
    A, B, C_mid, calls = bench.one_call_per_cell(C, R, 0.4, C_mid_K)
    assert calls == 71 * len(C_mid_K)
    fit = fit_sigmoid(C, R, R0=0.4, grid=grid)
    assert (fit.A, fit.C_mid) == (A, C_mid)
    assert fit.B == pytest.approx(B, rel=1e-5)


def test_the_long_run_as_published():
    C, R = bench.read_curve("Fig1a", "ScaleRL-bs2048-100k")
    fit = fit_sigmoid(C, R, R0=0.400, grid="paper-drawn")
    assert fit.A == pytest.approx(0.645, abs=0.005)
    assert fit.B == pytest.approx(1.68, abs=0.05)
    assert fit.C_mid == pytest.approx(10_900, abs=200)
    assert not fit.at_edge


@pytest.mark.parametrize("both", [False, True])
def test_the_ceiling_creeps_up_with_the_window(both):
    # The 2,048 run is drawn in two figures with different points hidden; alone or together the
    # ceilings agree to one step of the grid, 0.005.
    C, R = bench.read_curve("Fig10a(batch)", "bs2048")
    if both:
        C2, R2 = bench.read_curve("Fig1a", "ScaleRL-bs2048-100k")
        C, R = np.append(C, C2), np.append(R, R2)
    ceilings = [
        fit_sigmoid(C, R, R0=0.400, grid="paper-drawn", window=(1_500.0, end)).A
        for end in (20_000.0, 30_000.0, 50_000.0, np.inf)
    ]
    np.testing.assert_allclose(ceilings, [0.615, 0.625, 0.635, 0.645], atol=0.005 + 1e-9)
    assert np.all(np.diff(ceilings) > 0.0)


def test_a_fit_is_fast_enough_to_follow_a_window():
    R = _noisy(LAW, C := np.linspace(10.0, 400.0, 40))
    laps_s = []
    for _ in range(60):  # the quickest lap counts: others share the machine
        start = time.perf_counter()
        fit_sigmoid(C, R)
        laps_s.append(time.perf_counter() - start)
    assert min(laps_s) < 0.020


def test_importing_the_fit_loads_neither_torch_nor_scipy():
    code = "import sys, scalerl.fit; print([m for m in ('torch', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
