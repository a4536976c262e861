"""Forecasts on record: what was registered is read again or refused, and scored only by points that came later."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalerl.curves.curve import MOST_POINTS, Curve, curve, pool
from scalerl.curves.record import (
    Promise,
    Scored,
    calibration,
    read_record,
    register,
    score,
)
from scalerl.curves.sources import read_source
from scalerl.errors import InputError
from scalerl.fit import sigmoid
from scalerl.forecast import Forecast, forecast

LAW = {"R0": 0.2, "A": 0.6, "B": 2.0, "C_mid": 100.0}
WHEN = "2026-01-02T03:04:05+00:00"
SOURCE = {"text": "a run", "x": None, "y": None, "select": [], "unit": None}


def _run(last: float = 500.0) -> Curve:
    """An evaluation at every 25 of 1000, of which those up to `last` have been seen."""
    C = np.arange(1, 41) * 25.0
    R = sigmoid(C, **LAW) + 0.005 * np.random.default_rng(0).standard_normal(40)
    whole = curve(list(zip(C.tolist(), R.tolist(), strict=True)), "a run")
    return replace(whole, R0=0.2, R0_from="measured").within((0.0, last))


def _made(last: float = 500.0) -> Forecast:
    return forecast([_run(last)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "forecasts.jsonl"


@pytest.fixture
def three(path: Path) -> list[str]:
    """The lines of a record of three forecasts."""
    for at in (750.0, 1000.0, 2000.0):
        register(path, _made(), SOURCE, [at], WHEN)
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


# ---- there and back ------------------------------------------------------------------------------


def test_what_was_registered_is_read_again(path):
    made = _made()
    first = register(path, made, SOURCE, [750.0, 2000.0], WHEN)
    second = register(path, _made(400.0), {**SOURCE, "text": "another é"}, [1000], WHEN)
    assert read_record(path) == [first, second]
    assert (first.when, first.source, first.unit) == (WHEN, SOURCE, "GPU-h")
    assert (first.n, first.last_C, first.verdict) == (20, 500.0, made.verdict)
    assert [row[0] for row in first.at] == [750.0, 2000.0]
    assert first.hash != second.hash and first.points != second.points
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["before"] for entry in entries] == ["0" * 64, first.hash]


def test_an_interval_is_of_an_evaluation_and_so_wider_than_of_the_curve(path):
    made = _made()
    ((C, R, lo, hi),) = register(path, made, SOURCE, [1000.0], WHEN).at
    curves = made.uncertainty.rate(1000.0)  # of this run: that is what will be scored
    assert C == 1000.0 and curves.value == R
    assert curves.lo is not None and curves.hi is not None
    scatter = made.uncertainty.noise.t() * made.uncertainty.noise.sd
    # independent errors: squares add
    assert (R - lo) ** 2 == pytest.approx((R - curves.lo) ** 2 + scatter**2)
    assert (hi - R) ** 2 == pytest.approx((curves.hi - R) ** 2 + scatter**2)


def test_there_need_be_no_record(path):
    assert read_record(path) == []


def test_only_what_nobody_has_seen_is_registered(path):
    for at, said in (
        ([2000.0, 400.0], "400 is not beyond the last point, 500 GPU-h"),
        ([500.0], "500 is not beyond"),
        ([], "nothing is beyond the last point"),
    ):
        with pytest.raises(InputError, match=said):
            register(path, _made(), SOURCE, at, WHEN)
    assert not path.exists()


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_a_compute_that_is_none_is_refused(path, at):
    with pytest.raises(InputError):
        register(path, _made(), SOURCE, [at], WHEN)
    assert not path.exists()


# ---- what breaks the chain -----------------------------------------------------------------------


def _refused(path: Path, lines: list[str], line: int) -> None:
    path.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=rf"forecasts.jsonl, line {line}: this forecast"):
        read_record(path)


def test_a_record_left_alone_is_read(path, three):
    assert [row[0] for each in read_record(path) for row in each.at] == [750.0, 1000.0, 2000.0]


def test_any_digit_changed_is_refused(path, three):
    # every digit of the second forecast: its rates, its date, its hashes
    text, tried = three[1], 0
    for i, letter in enumerate(text):
        if letter.isdigit():
            changed = text[:i] + str((int(letter) + 1) % 10) + text[i + 1 :]
            try:
                if json.loads(changed) == json.loads(text):
                    continue  # a last digit that no float64 tells apart
            except ValueError:
                pass  # "05" is no number at all
            _refused(path, [three[0], changed, three[2]], 2)
            tried += 1
    assert tried > 200


def test_a_line_that_is_removed_swapped_or_forged_is_refused(path, three):
    one, two, last = three
    _refused(path, [two, last], 1)
    _refused(path, [one, last], 2)
    _refused(path, [two, one, last], 1)
    _refused(path, [one, last, two], 2)
    _refused(path, [one, two, last, two], 4)  # its own hash is right, its place is not
    forged = json.loads(last) | {"before": json.loads(last)["hash"]}
    _refused(path, [one, two, last, json.dumps(forged) + "\n"], 4)
    for nonsense in ("[1]\n", "{}\n", "null\n", last[:-20] + "\n"):
        _refused(path, [one, two, last, nonsense], 4)


def test_a_blank_line_and_a_write_that_was_cut_short_lose_nothing(path, three):
    path.write_text("".join(three) + "\n" + three[0][:50], encoding="utf-8")
    assert len(read_record(path)) == 3
    fourth = register(path, _made(), SOURCE, [750.0], WHEN)
    assert [each.hash for each in read_record(path)][-1] == fourth.hash
    assert len(read_record(path)) == 4


def test_two_that_register_at_once_wait_for_each_other(path):
    made = _made()
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda i: register(path, made, SOURCE, [750.0 + i], WHEN), range(12)))
    assert {each.hash for each in read_record(path)} == {each.hash for each in done}


def test_a_record_that_cannot_be_kept_is_one_sentence(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "taken", tmp_path / "file" / "record.jsonl"):
        with pytest.raises(InputError, match="cannot write the record"):
            register(path, _made(), SOURCE, [750.0], WHEN)


def test_a_seed_that_lags_may_catch_up(path):
    C = np.linspace(20.0, 500.0, 24)
    R = sigmoid(C, R0=0.2, A=0.6, B=2.0, C_mid=100.0)
    ahead, behind = curve(np.stack([C, R], 1), "a"), curve(np.stack([C, R - 0.002], 1), "b")
    made = forecast([ahead, behind.within((0.0, 300.0))], R0=0.2)
    promise = register(path, made, SOURCE, [750.0], WHEN)
    assert promise.last_C == 500.0 and promise.settled_C <= 300.0
    grown = pool([ahead, behind], "both")
    assert score(promise, grown)[0].seen is None  # and no word of another run


def test_a_forecast_between_evaluations_is_scored_on_the_line_between(path):
    made = _made()
    promise = register(path, made, SOURCE, [750.0], WHEN)
    C_N = np.append(made.whole.C_N, [600.0, 1000.0])  # none within 5 % of 750
    R_N = np.append(made.whole.R_N, [0.50, 0.54])
    [row] = score(promise, curve(np.stack([C_N, R_N], axis=1)))
    assert row.seen == pytest.approx(0.515)  # 0.50 + 0.04 * 150 / 400


def test_nothing_is_added_to_a_record_that_is_broken(path, three):
    path.write_text("".join(three[1:]), encoding="utf-8")
    with pytest.raises(InputError, match="line 1"):
        register(path, _made(), SOURCE, [750.0], WHEN)
    assert path.read_text(encoding="utf-8") == "".join(three[1:])


def test_a_record_whose_last_newline_an_editor_took_goes_on(path, three):
    path.write_text("".join(three).rstrip("\n"), encoding="utf-8")
    assert len(read_record(path)) == 3
    register(path, _made(), SOURCE, [900.0], WHEN)
    assert len(read_record(path)) == 4


def test_a_file_that_is_no_text_is_refused(path, three):
    path.write_bytes(b"\xff\xfe" + "".join(three).encode("utf-16-le"))
    with pytest.raises(InputError, match=r"forecasts\.jsonl"):
        read_record(path)


# ---- what came of it -----------------------------------------------------------------------------


def _with(*later: tuple[float, float]) -> Curve:
    """The run of which the first 500 were known, gone on."""
    seen = _run()
    return replace(
        seen,
        C_N=np.append(seen.C_N, [C for C, _ in later]),
        R_N=np.append(seen.R_N, [R for _, R in later]),
    )


def test_a_forecast_is_scored_by_the_mean_of_what_lies_near(path):
    promise = register(path, _made(), SOURCE, [1000.0], WHEN)
    # within 5 % of 1000: 960 and 1040; not 940 and 1060. (0.59 + 0.61) / 2 = 0.60
    (row,) = score(promise, _with((940.0, 0.1), (960.0, 0.59), (1040.0, 0.61), (1060.0, 0.9)))
    assert row.seen == pytest.approx(0.60) and row.inside is True
    assert (row.C, row.R, row.lo, row.hi) == promise.at[0] and row.promise is promise
    (missed,) = score(promise, _with((1000.0, 0.45)))
    assert missed.seen == 0.45 and missed.inside is False


def test_what_was_known_beforehand_scores_nothing(path):
    # at 510 the evaluation at 500 is near, but it was seen: 505 alone counts
    promise = register(path, _made(), SOURCE, [510.0, 2000.0], WHEN)
    near, far = score(promise, _with((505.0, 0.58)))
    assert near.seen == 0.58
    assert far.seen is None and far.inside is None
    assert [row.seen for row in score(promise, _run())] == [None, None]


def test_points_changed_afterwards_are_refused(path):
    promise = register(path, _made(), SOURCE, [750.0], WHEN)
    whole = _run(1000.0)
    assert score(promise, whole)[0].seen is not None
    changed_R, changed_C = whole.R_N.copy(), whole.C_N.copy()
    changed_R[3] += 1e-9
    changed_C[3] += 1e-6
    for edited in (
        replace(whole, R_N=changed_R),
        replace(whole, C_N=changed_C),
        whole.rows(np.arange(1, 40)),  # the first is gone
    ):
        with pytest.raises(InputError, match=f"a run: its points up to 500 GPU-h.*{WHEN[:10]}"):
            score(promise, edited)


def test_points_that_come_later_may_be_any(path):
    promise = register(path, _made(), SOURCE, [750.0], WHEN)
    changed_R = _run(1000.0).R_N + np.where(_run(1000.0).C_N > 500.0, 0.001, 0.0)
    assert score(promise, replace(_run(1000.0), R_N=changed_R))[0].inside is True


# ---- windows and long files ----------------------------------------------------------------------


def test_a_window_without_an_end_is_registered_and_scored(path):
    made = forecast([_run()], window=(100.0, float("inf")))
    promise = register(path, made, SOURCE, [750.0], WHEN)
    assert read_record(path) == [promise]
    assert score(promise, _run(1000.0))[0].seen is not None


def test_a_window_that_begins_late_is_scored(path):
    made = forecast([_run()], window=(100.0, 500.0))
    promise = register(path, made, SOURCE, [750.0], WHEN)
    assert score(promise, _run(1000.0))[0].seen is not None


def test_points_that_a_window_leaves_out_were_seen_all_the_same(path):
    made = forecast([_run(1000.0)], window=(0.0, 500.0))
    with pytest.raises(InputError, match="750 is not beyond the last point, 1000"):
        register(path, made, SOURCE, [750.0], WHEN)


def test_a_long_file_that_grows_is_still_the_same_run(path, tmp_path):
    # below MOST_POINTS rows are taken as they are, above it each two are averaged: still one run
    C = np.arange(1, MOST_POINTS + 201) * (500.0 / MOST_POINTS)
    R = sigmoid(C, **LAW) + 0.005 * np.random.default_rng(0).standard_normal(len(C))
    rows = [f"{x},{y}\n" for x, y in zip(C.tolist(), np.clip(R, 0, 1).tolist(), strict=True)]
    file = tmp_path / "long.csv"
    file.write_text("C,R\n" + "".join(rows[: MOST_POINTS - 100]))
    made = forecast(read_source(str(file)).curves, R0=0.2)
    promise = register(path, made, {**SOURCE, "text": str(file)}, [510.0], WHEN)
    file.write_text("C,R\n" + "".join(rows))
    assert score(promise, read_source(str(file)).curves[0])[0].inside is True


# ---- how good they have been ---------------------------------------------------------------------


def _scored(R: float, seen: float | None) -> Scored:
    at = ((1.0, R, R - 0.1, R + 0.1),)
    promise = Promise("h", WHEN, SOURCE, "GPU-h", 20, 0.5, 0.5, "ok", "p", at)
    return Scored(promise, *at[0], seen)


def test_calibration_by_hand():
    # nine within 0.1, one 0.2 below its forecast, one that waits
    rows = [_scored(0.5, 0.55)] * 8 + [_scored(0.5, 0.45), _scored(0.7, 0.5), _scored(0.5, None)]
    found = calibration(rows)
    assert (found.n, found.held) == (10, 9)
    # forecast - seen: 8 * -0.05 + 0.05 + 0.2 = -0.15; sizes: 8 * 0.05 + 0.05 + 0.2 = 0.65
    assert found.mean_error == pytest.approx(-0.015)
    assert found.mean_absolute_error == pytest.approx(0.065)
    # Wilson, z = 1.644854, z^2 = 2.705543, p = 0.9, n = 10:
    #   middle = (0.9 + 2.705543 / 20) / (1 + 0.2705543) = 1.0352772 / 1.2705543 = 0.814823
    #   half   = 1.644854 * sqrt(0.09 / 10 + 2.705543 / 400) / 1.2705543
    #          = 1.644854 * 0.125554 / 1.2705543 = 0.162542
    assert found.held_lo == pytest.approx(0.652281, abs=2e-6)
    assert found.held_hi == pytest.approx(0.977365, abs=2e-6)


def test_calibration_of_nothing():
    for rows in ([], [_scored(0.5, None)]):
        found = calibration(rows)
        assert (found.n, found.held) == (0, 0)
        assert (found.held_lo, found.held_hi) == (None, None)
        assert (found.mean_error, found.mean_absolute_error) == (None, None)


def test_the_ends_of_an_interval_are_inside():
    assert _scored(0.5, 0.6).inside and _scored(0.5, 0.4).inside
    assert _scored(0.5, 0.61).inside is False and _scored(0.5, None).inside is None
