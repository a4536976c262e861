"""The sigmoid's rivals: each law recovers its own curve, and the order is that of the errors ahead."""

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.curves.rivals import LAWS, Rival, last_value, rivals
from scalerl.curves.sources import published
from scalerl.fit import FitError, Points, sigmoid, usable_points

NAMES = [name for name, _, _ in LAWS]
C = np.geomspace(10.0, 1000.0, 30)
FEW = settings(max_examples=20)


def _points(C_N, R_N, R0: float | None = 0.2, w_N=None) -> Points:
    C_N, R_N = np.asarray(C_N, dtype=np.float64), np.asarray(R_N, dtype=np.float64)
    return Points(C_N, R_N, np.ones(len(C_N)) if w_N is None else w_N, R0)


def _named(rows: list[Rival], name: str) -> Rival:
    (row,) = [row for row in rows if row.name == name]
    return row


def _recovers(row: Rival, A: float | None, error: float = 1e-6) -> None:
    assert row.rmse is not None and row.held_out_rmse is not None
    assert row.rmse < error and row.held_out_rmse < error
    if A is not None:
        assert row.A == pytest.approx(A, abs=10 * error)


# ---- noiseless curves ----------------------------------------------------------------------------


@given(st.floats(0.35, 1.0), st.floats(0.6, 4.0), st.floats(30.0, 200.0))
def test_the_sigmoid_recovers_itself(A, B, C_mid):
    R = sigmoid(C, R0=0.2, A=A, B=B, C_mid=C_mid)
    _recovers(_named(rivals(_points(C, R)), "sigmoid"), A)


@given(st.floats(0.5, 1.0), st.floats(0.1, 0.4), st.floats(0.2, 2.0))
def test_the_power_law_recovers_itself(A, D, b):
    # D is the gain still ahead at the first point, C = 10
    _recovers(_named(rivals(_points(C, A - D * (C / 10.0) ** -b)), "power law"), A)


@given(st.floats(0.1, 0.95), st.floats(0.05, 2.0))
def test_the_power_law_without_offset_recovers_itself(D, b):
    rows = rivals(_points(C, 1.0 - D * (C / 10.0) ** -b))
    _recovers(_named(rows, "power law, no offset"), 1.0)
    # which is a power law too, one whose ceiling is 1
    _recovers(_named(rows, "power law"), 1.0, 1e-4)


@given(st.floats(0.25, 1.0), st.floats(20.0, 500.0))
def test_the_exponential_recovers_itself(A, tau):
    R = 0.2 + (A - 0.2) * (1.0 - np.exp(-C / tau))
    _recovers(_named(rivals(_points(C, R)), "exponential"), A)


@FEW
@given(st.floats(-4.0, 0.0), st.floats(0.1, 1.0))
def test_the_logit_line_recovers_itself(a, b):
    R = 1.0 / (1.0 + np.exp(-(a + b * np.log(C))))
    _recovers(_named(rivals(_points(C, R)), "logit-linear"), 1.0)
    down = 1.0 - R  # falls to 0 as C grows
    _recovers(_named(rivals(_points(C, down)), "logit-linear"), 0.0)


def test_the_last_value_by_hand():
    # held out: the last 3 of 9. The rest ends in 0.4, 0.5, 0.6: mean 0.5,
    # errors 0.1, 0.2, 0.3: sqrt((0.01 + 0.04 + 0.09) / 3) = 0.21602
    R = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.7, 0.8]
    row = _named(rivals(_points(np.arange(1.0, 10.0), R, R0=0.05)), "last value")
    assert row.held_out_rmse == pytest.approx(0.21602, abs=1e-5)
    assert row.A is None
    law, _ = last_value(_points(np.arange(1.0, 10.0), R))
    np.testing.assert_allclose(law(np.array([1.0, 1e9])), [0.7, 0.7])  # (0.6 + 0.7 + 0.8) / 3


def test_the_points_ahead_have_no_say():
    R = sigmoid(C, R0=0.2, A=0.6, B=1.5, C_mid=60.0)
    changed = R.copy()
    changed[20:] = 0.9  # 30 points: the last 10 are held out
    for row in rivals(_points(C, changed)):
        before = _named(rivals(_points(C, R)), row.name)
        assert row.held_out_rmse is not None and before.held_out_rmse is not None
    row = _named(rivals(_points(C, changed)), "sigmoid")
    # the fit to the first 20 is exact, so what it misses is 0.9 - R
    assert row.held_out_rmse == pytest.approx(np.sqrt(np.mean((0.9 - R[20:]) ** 2)), abs=1e-6)


# ---- order, weights, units, too little -----------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(7, 40), st.floats(0.001, 0.05))
def test_best_predictor_first_and_every_law_once(seed, n, sd):
    rng = np.random.default_rng(seed)
    C_N = np.geomspace(5.0, 500.0, n)
    R_N = sigmoid(C_N, R0=0.2, A=0.6, B=1.5, C_mid=60.0) + sd * rng.standard_normal(n)
    rows = rivals(_points(C_N, np.clip(R_N, 0.0, 1.0)))
    assert sorted(row.name for row in rows) == sorted(NAMES)
    errors = [np.inf if row.held_out_rmse is None else row.held_out_rmse for row in rows]
    assert errors == sorted(errors) and np.isfinite(errors[0])
    assert all(row.A is None or 0.0 <= row.A <= 1.0 for row in rows)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "last value"])
def test_a_point_of_no_weight_does_not_matter(name):
    R = {
        "sigmoid": sigmoid(C, R0=0.2, A=0.6, B=1.5, C_mid=60.0),
        "power law": 0.7 - 0.4 * (C / 10.0) ** -0.6,
        "power law, no offset": 1.0 - 0.7 * (C / 10.0) ** -0.4,
        "exponential": 0.2 + 0.5 * (1.0 - np.exp(-C / 120.0)),
        "logit-linear": 1.0 / (1.0 + np.exp(3.0 - 0.6 * np.log(C))),
    }[name]
    w_N, wrong = np.ones(30), R.copy()
    w_N[12], wrong[12] = 1e-12, 0.99
    row, alike = (
        _named(rivals(_points(C, wrong, w_N=weights)), name) for weights in (w_N, np.ones(30))
    )
    assert row.held_out_rmse is not None and row.held_out_rmse < 1e-5
    assert alike.held_out_rmse is not None and alike.held_out_rmse > 1e-3


@FEW
@given(st.floats(1e-4, 1e6), st.integers(0, 1000))
def test_the_unit_of_compute_does_not_matter(unit, seed):
    noise = 0.01 * np.random.default_rng(seed).standard_normal(30)
    R = sigmoid(C, R0=0.2, A=0.6, B=1.5, C_mid=60.0) + noise
    rows, other = rivals(_points(C, R)), rivals(_points(unit * C, R))
    for row in rows:
        same = _named(other, row.name)
        assert same.held_out_rmse == pytest.approx(row.held_out_rmse, abs=1e-4)
        assert same.A == pytest.approx(row.A, abs=1e-3)


def test_too_few_points_give_no_error_ahead():
    # a law needs 5: of 6 points the last 2 are held out and 4 are left, of 7 it is 5
    for n, ahead in ((4, False), (5, False), (6, False), (7, True)):
        R = sigmoid(C, R0=0.2, A=0.6, B=1.5, C_mid=60.0)
        rows = rivals(_points(C[-n:], R[-n:]))
        assert [row.held_out_rmse is not None for row in rows] == [ahead] * len(LAWS), n
        assert [row.rmse is not None for row in rows] == [n >= 5] * len(LAWS), n
        if not ahead:
            assert [row.name for row in rows] == NAMES  # no order but the list's own


# ---- warnings are errors here, and noise on a user's screen --------------------------------------


@FEW
@given(st.integers(0, 10_000), st.integers(5, 12), st.booleans())
def test_rivals_of_any_points_come_without_a_warning(seed, n, narrow):
    rng = np.random.default_rng(seed)
    C_N = np.sort(10.0 ** rng.uniform(0.0, 0.3 if narrow else 4.0, n))
    try:
        points = usable_points(C_N, rng.uniform(0.0, 1.0, n))
    except FitError:
        return
    assert len(rivals(points)) == len(LAWS)


def test_a_smooth_short_rise_with_a_free_R0():
    C_N = [0.114, 0.172, 0.179, 0.313, 0.557]
    rows = rivals(usable_points(C_N, [0.33, 0.48, 0.51, 0.71, 0.83]))
    assert _named(rows, "exponential").A is not None


def test_a_flat_start_leaves_the_logit_line_without_a_warning():
    # the first two thirds are alike: the covariance that nobody asked for is not to be estimated
    R = [0.3, 0.3, 0.3, 0.3, 0.3, 0.5, 0.5]
    rows = rivals(usable_points(np.geomspace(60.0, 4000.0, 7), R, R0=0.0))
    assert len(rows) == len(LAWS)


# ---- the paper's longest curve -------------------------------------------------------------------


def _paper(lo: float, hi: float) -> tuple[Points, list[Rival]]:
    (whole,) = published("Fig10a/bs2048").curves
    points = whole.within((lo, hi)).points()
    return points, rivals(points)


def test_the_power_law_has_no_ceiling_where_the_knee_counts():
    # On all points it takes A = 1.00, on those past the first rise 0.72: the window chose it.
    _, all_rows = _paper(1500.0, 50_000.0)
    _, late_rows = _paper(5000.0, 50_000.0)
    assert _named(all_rows, "power law").A == pytest.approx(1.0, abs=0.005)
    assert _named(late_rows, "power law").A == pytest.approx(0.72, abs=0.015)
    # the sigmoid stays where it was
    A = [_named(rows, "sigmoid").A for rows in (all_rows, late_rows)]
    assert A[0] is not None and A[1] is not None and abs(A[0] - A[1]) < 0.01


def test_the_points_of_a_fit_are_left_alone():
    points, _ = _paper(1500.0, 50_000.0)
    before = replace(points, C_N=points.C_N.copy(), R_N=points.R_N.copy(), w_N=points.w_N.copy())
    rivals(points)
    for name in ("C_N", "R_N", "w_N"):
        np.testing.assert_array_equal(getattr(points, name), getattr(before, name))


def test_two_thousand_points_take_seconds_at_most():
    # The most that `thinned` leaves; measured 0.4 s.
    C_N = np.geomspace(1.0, 1000.0, 2000)
    noise = 0.01 * np.random.default_rng(0).standard_normal(2000)
    R_N = sigmoid(C_N, R0=0.2, A=0.6, B=1.5, C_mid=60.0) + noise
    started = time.process_time()
    rivals(_points(C_N, R_N))
    assert time.process_time() - started < 2.0
