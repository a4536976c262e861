"""Where curves come from: run folders, seeds, event logs, CSV files and the paper's figures, good and bad."""

import csv
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalerl.curves.curve import MOST_POINTS, Curve
from scalerl.curves.sources import CURVES, published, published_names, read_source
from scalerl.errors import InputError
from scalerl.fit import sigmoid
from scalerl.forecast import forecast


def _csv(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "points.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def _one(source: str, **options: Any) -> Curve:
    (only,) = read_source(source, **options).curves
    return only


def _points(made: Curve) -> list[tuple[float, float]]:
    return list(zip(made.C_N.tolist(), made.R_N.tolist(), strict=True))


def _refused(source: str, said: str, **options: Any) -> None:
    with pytest.raises(InputError, match=said):
        read_source(source, **options)


# ---- runs ----------------------------------------------------------------------------------------


def _event(seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "seq": seq, "t": 0.1, "clock": 1.0, "gpu_h": 0.0, "kind": kind, **fields}


def _eval(seq: int, C: float, R: float, **fields: Any) -> dict[str, Any]:
    return _event(seq, "eval", set="validation", C=C, pass_rate=R, version=seq, **fields)


def _log(folder: Path, *lines: dict[str, Any] | str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / "events.jsonl").write_text(text, encoding="utf-8")
    return str(folder)


RUN = _event(0, "run", recipe={"seed": 0, "loss": {"kind": "cispo"}}, site={"task": "digit_sum"})


def test_a_run_folder_with_a_resume_and_a_torn_last_line(tmp_path):
    folder = _log(
        tmp_path / "run",
        RUN,
        _eval(1, 0.0, 0.2),
        _eval(2, 1.0, 0.3),
        _eval(3, 2.0, 0.99),  # voided: written after the checkpoint at seq 3
        _event(4, "update"),
        {"v": 1, "t": 1.0, "clock": 1.0, "gpu_h": 0.0, "kind": "resume", "from_seq": 3},
        _eval(3, 2.5, 0.4),
        "not json\n",
        _eval(4, 4.0, 0.5),
        json.dumps(_eval(5, 8.0, 0.6))[:-9],  # the machine died while it wrote
    )
    for source in (folder, f"{folder}/events.jsonl"):
        found = read_source(source)
        (made,) = found.curves
        assert _points(made) == [(1.0, 0.3), (2.5, 0.4), (4.0, 0.5)]
        assert (made.R0, made.R0_from, made.name) == (0.2, "measured", source)
        assert [event["kind"] for event in found.events[0]] == ["run", *["eval"] * 4]
        assert found.published is None and found.fit_end is None


def test_a_folder_of_seeds_is_one_curve_for_each(tmp_path):
    for seed in (0, 1):
        recipe = {**RUN["recipe"], "seed": seed}
        _log(tmp_path / f"seed-{seed}", {**RUN, "recipe": recipe}, _eval(1, 1.0 + seed, 0.3))
    found = read_source(str(tmp_path))
    assert [_points(each) for each in found.curves] == [[(1.0, 0.3)], [(2.0, 0.3)]]
    assert [each.name for each in found.curves] == [
        str(tmp_path / "seed-0"),
        str(tmp_path / "seed-1"),
    ]
    assert found.name == str(tmp_path) and len(found.events) == 2


def test_seeds_of_different_recipes_are_refused(tmp_path):
    for seed, loss in enumerate(("cispo", "grpo")):
        run = {**RUN, "recipe": {"seed": seed, "loss": {"kind": loss}}, "algorithm_id": loss}
        _log(tmp_path / f"seed-{seed}", run, _eval(1, 1.0, 0.3))
    _refused(str(tmp_path), "holds runs of different recipes.*name one of them")


def test_a_folder_of_arms_names_them(tmp_path):
    for arm in ("grpo", "cispo"):
        for seed in (0, 1):
            _log(tmp_path / arm / f"seed-{seed}", RUN, _eval(1, 1.0, 0.3))
    said = f"holds several arms: name one of {tmp_path}/cispo, {tmp_path}/grpo"
    _refused(str(tmp_path), said)
    assert len(read_source(str(tmp_path / "grpo")).curves) == 2


def test_what_holds_no_curve_is_said(tmp_path):
    _refused(str(tmp_path), "holds no events.jsonl and no seed-.* is it a run")
    _refused(_log(tmp_path / "new", RUN), "events.jsonl holds no evaluation yet")
    _refused(str(tmp_path / "missing.csv"), "cannot read .*missing.csv.*No such file")
    _refused(str(tmp_path / "missing.jsonl"), "cannot read the event log .*No such file")


def test_a_run_that_has_only_begun_has_its_R0(tmp_path):
    made = _one(_log(tmp_path / "new", RUN, _eval(1, 0.0, 0.2)))
    assert len(made.C_N) == 0 and made.R0 == 0.2


def test_a_pass_rate_that_is_none_in_a_log_is_refused(tmp_path):
    _refused(_log(tmp_path / "run", RUN, _eval(1, 1.0, 45.0)), "R.* = 45.0: .*divide per cent")


# ---- the paper -----------------------------------------------------------------------------------


def _shipped() -> Counter[str]:
    """Rows of each curve, counted without a CSV reader: no cell of the file is quoted."""
    lines = CURVES.read_text(encoding="utf-8").splitlines()[1:]
    return Counter("/".join(line.split(",")[:2]) for line in lines)


@pytest.mark.parametrize("name", sorted(_shipped()))
def test_every_published_curve_is_read_by_name(name):
    figure, series = name.rsplit("/", 1)
    bare = f"{figure.partition('(')[0]}/{series}"
    for said in (name, bare, name.upper()):
        found = read_source(f"paper:{said}")
        (made,) = found.curves
        assert found.name == made.name == f"paper:{name}"
        assert len(made.C_N) == _shipped()[name]
        assert made.R0 == (0.511 if series == "Scout" else 0.400) and made.R0_from == "published"
        assert found.fit_end is not None and made.C_N[0] <= found.fit_end <= made.last_C
        assert found.published is not None and 0.4 < found.published[0] < 0.8


def test_the_published_curves_are_46_with_933_points():
    assert len(published_names()) == len(_shipped()) == 46
    assert sum(len(published(name).curves[0].C_N) for name in published_names()) == 933


def test_a_published_curve_by_hand():
    # first and last row of Fig10a(batch),bs2048 and its legend, read off the file
    found = published("Fig10a/bs2048")
    assert found.published == (0.645, 1.68) and found.fit_end == 39795.3
    rows = [
        line.split(",")
        for line in CURVES.read_text(encoding="utf-8").splitlines()
        if line.startswith("Fig10a(batch),bs2048,")
    ]
    by_C = sorted((float(row[3]), float(row[4])) for row in rows)
    assert _points(found.curves[0]) == by_C and len(by_C) == 28
    assert found.curves[0].unit == "GPU-h"


def test_a_series_of_one_figure_needs_no_figure():
    assert published("bs512").name == "paper:Fig10a(batch)/bs512"
    assert published("8B-dense").name == "paper:Fig1a/size/8B-dense"


def test_names_of_the_paper_that_mean_nothing_or_too_much():
    _refused(
        "paper:ScaleRL",
        r"several figures: say paper:Fig15a\(loo\)/ScaleRL or Fig15b\(loo\)/ScaleRL "
        r"or Fig15c\(loo\)/ScaleRL or Fig2/ScaleRL",
    )
    for name in ("", "bs204", "Fig10a", "Fig10a/", "Fig10a/ScaleRL"):  # exact or nothing
        _refused(f"paper:{name}", f"no curve '{name}'; near it: Fig")


# ---- a CSV that is one ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "C,R\n1,0.5\n2,0.6\n",
        "C,R\n2,0.6\n1,0.5",  # any order, no end of the last line
        "C,R\n\n1,0.5\n\n\n2,0.6\n\n",
        b"\xef\xbb\xbfC,R\r\n1,0.5\r\n2,0.6\r\n",  # as Excel writes it
        "C,R\r1,0.5\r2,0.6\r",
        'note,C,R\n"a, b",1,0.5\n"c ""d""\nnext line",2,0.6\n',
        "C,R,note\n1,0.5,short\n2,0.6\n",  # the row that is short has no cell that is asked for
        "C,R,note\n1,0.5,a,b,c\n2,0.6,a\n",
        'C,R\n" 1 "," 5e-1"\n+2,6.0E-1\n',
        "gpu_hours,pass_rate\n1,0.5\n2,0.6\n",
        "step,gpu_h,R,reward\n10,1,0.5,0\n20,2,0.6,0\n",  # GPU-hours before steps, R before reward
    ],
)
def test_csv_files_of_one_curve(tmp_path, text):
    made = _one(_csv(tmp_path, text))
    assert _points(made) == [(1.0, 0.5), (2.0, 0.6)]
    assert made.unit == "GPU-h" and made.se_N is None and made.R0 is None


def test_columns_that_are_named_and_the_unit(tmp_path):
    path = _csv(tmp_path, "step,tokens,flops,R,maj\n10,1e6,7,0.5,0.7\n20,2e6,8,0.6,0.8\n")
    assert _one(path).unit == "steps" and _one(path, x="tokens").unit == "tokens"
    other = _one(path, x="flops", y="maj")
    assert _points(other) == [(7.0, 0.7), (8.0, 0.8)] and other.unit == "flops"
    assert _one(path, x="flops", unit="EFLOP").unit == "EFLOP"
    assert _one("paper:bs512", unit="H100-h").unit == "H100-h"


def test_a_row_at_no_compute_is_R0(tmp_path):
    made = _one(_csv(tmp_path, "C,R,se\n0,0.4,0.02\n1,0.5,0.01\n"))
    assert _points(made) == [(1.0, 0.5)]
    assert (made.R0, made.R0_se, made.R0_from) == (0.4, 0.02, "measured")


def test_standard_errors_from_columns(tmp_path):
    made = _one(_csv(tmp_path, "C,R,se,n,k\n2,0.6,0.02,1,1\n1,0.5,0.01,1,1\n"))
    assert made.se_N is not None
    np.testing.assert_allclose(made.se_N, [0.01, 0.02])
    # n k = 98: p = (49 + 1) / 100 = 0.5, sqrt(0.25 / 98) = 0.050508
    # n k = 2, R = 1: p = 3 / 4, sqrt((3/16) / 2) = 0.306186: two of two is not certainty
    made = _one(_csv(tmp_path, "C,R,n,k\n1,0.5,49,2\n2,1.0,2,1\n"))
    assert made.se_N is not None
    np.testing.assert_allclose(made.se_N, [0.050508, 0.306186], atol=1e-6)
    # one of n and k alone says nothing
    assert _one(_csv(tmp_path, "C,R,n\n1,0.5,49\n2,1.0,2\n")).se_N is None


SERIES = "C,R,arm,seed\n1,0.5,a,0\n2,0.6,a,0\n1,0.3,b,0\n1,0.1,b,1\n"


def test_select_takes_one_of_several_curves(tmp_path):
    path = _csv(tmp_path, SERIES)
    assert _points(_one(path, select=["arm=a"])) == [(1.0, 0.5), (2.0, 0.6)]
    assert _points(_one(path, select=["arm=b", "seed=1"])) == [(1.0, 0.1)]
    assert _points(_one(_csv(tmp_path, "C,R,name\n1,.5,x=y\n2,.6,z\n"), select=["name=x=y"])) == [
        (1.0, 0.5)
    ]


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ([], "holds 2 curves: choose one by --select arm=VALUE of a, b"),
        (["arm=c"], "no row has arm = 'c'; there are a, b"),
        (["arm"], "'arm' is not COLUMN=VALUE"),
        (["figure=1"], "no column 'figure'; it has C, R, arm, seed"),
    ],
)
def test_a_selection_that_leaves_none_or_several(tmp_path, select, said):
    _refused(_csv(tmp_path, SERIES), said, select=select)


def test_many_curves_are_not_all_listed(tmp_path):
    rows = "".join(f"1,0.5,{i:02}\n" for i in range(15))
    _refused(_csv(tmp_path, f"C,R,run\n{rows}"), "holds 15 curves.* 10, 11 and 3 more$")


# ---- a CSV that is none --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows below its header"),
        ("C,R\n", "no rows below its header"),
        ("C,R\n\n\n", "no row"),  # blank lines are no rows either
        ("C,R,n\n1,0.5,3\n2\n", "line 3: R = '' is not a finite number"),
        ("C,R\n1,0.5\n2,\n", "line 3: R = '' is not"),
        ("C,R\n1,0.5\n\n,0.6\n", "line 4: C = '' is not"),
        ("C,R\n1,nan\n", "line 2: R = 'nan' is not"),
        ("C,R\ninf,0.5\n", "line 2: C = 'inf' is not"),
        ('C,R\n"1,000",0.5\n', "line 2: C = '1,000' is not"),
        ("C,R\n1,50%\n", "line 2: R = '50%' is not"),
        ("C,R,se\n1,0.5,0.1\n2,0.5,\n", "line 3: se = '' is not"),
        ("C,R\n3,0.5\n-1,0.5\n", "points.csv, line 3: C.* = -1.0: compute is finite and >= 0"),
        ("C,R\n1,0.5\n2,45\n", "points.csv, line 3: R.* = 45.0: .*divide per cent by 100"),
        ("C,R,n,k\n1,45,10,2\n2,50,10,2\n", "R.* = 45.0: .*divide per cent by 100"),
        ("C,R,n,k\n1,0.5,10,2\n2,-0.5,10,2\n", "R.* = -0.5: a pass rate lies in 0..1"),
        ("C,R,n,k\n1,0.5,0,2\n", "n and k are prompts and completions of each, at least 1"),
        ("when,R\n1,0.5\n", "which column to take with --x; there are when, R"),
        ("C,score\n1,0.5\n", "which column to take with --y; there are C, score"),
        ("1,0.5\n2,0.6\n", "which column to take with --x; there are 1, 0.5"),
        ("C;R\n1;0.5\n", "its columns are not divided by commas: 'C;R'"),
        ("C,R\n1,0.5\n".encode("utf-16"), "cannot read .*points.csv"),
    ],
)
def test_csv_files_that_are_refused(tmp_path, text, said):
    _refused(_csv(tmp_path, text), said)


def test_a_column_that_is_asked_for_and_not_there(tmp_path):
    path = _csv(tmp_path, "C,R\n1,0.5\n")
    _refused(path, "no column 'tokens'; it has C, R", x="tokens")
    _refused(path, "no column 'maj'; it has C, R", y="maj")


# ---- a CSV that is long --------------------------------------------------------------------------


def test_a_million_rows_take_a_few_times_what_the_csv_module_alone_takes(tmp_path):
    C = np.round(np.geomspace(1.0, 1000.0, 1_000_000), 7)
    noise = 0.02 * np.random.default_rng(0).standard_normal(len(C))
    R = np.clip(sigmoid(C, R0=0.2, A=0.6, B=1.5, C_mid=60.0) + noise, 0.0, 1.0)
    path = tmp_path / "long.csv"
    rows = map("{},{}".format, C.tolist(), R.tolist())
    path.write_text("C,R\n" + "\n".join(rows) + "\n", encoding="utf-8")
    started = time.process_time()
    with path.open(encoding="utf-8", newline="") as file:
        alone = list(csv.reader(file))
    alone_s = time.process_time() - started
    assert len(alone) == 1_000_001
    del alone
    started = time.process_time()
    made = forecast([_one(str(path))])
    # read, checked, fitted and judged: 3.9 times as long on a quiet machine, about two and a half seconds
    assert time.process_time() - started < 8.0 * alone_s
    assert len(made.whole.C_N) == 1_000_000
    assert made.fit.n <= MOST_POINTS and made.curve.blocks_of == -(-1_000_000 // MOST_POINTS)
    fit = made.fit
    assert fit.A == pytest.approx(0.6, abs=3e-4) and fit.C_mid == pytest.approx(60.0, rel=2e-3)
