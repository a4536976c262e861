"""`scalerl fit` as a person meets it: the report, the document, the record, and every refusal."""

import json
from pathlib import Path

import pytest
from command import printed, refused, scalerl

KEYS = {
    "A", "B", "C_mid", "R0", "rmse", "n", "window", "unit", "verdict", "forecast", "rivals", "alarms",
}  # fmt: skip


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A relative path, and the record of forecasts, mean a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def curve_csv(name: str = "curve.csv", last: int = 800) -> None:
    """R = 0.2 + 0.6 / (1 + (100 / C)^2), to six digits."""
    rows = [
        f"{C},{0.2 + 0.6 / (1 + (100 / C) ** 2):.6f}"
        for C in (10, 20, 40, 60, 80, 100, 150, 200, 400, 800)
        if last >= C
    ]
    Path(name).write_text("gpu_hours,pass_rate\n" + "\n".join(rows) + "\n")


def document(*arguments: str) -> dict:
    def no_constant(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    return json.loads(printed("fit", *arguments, "--json"), parse_constant=no_constant)


def test_the_document_has_exactly_its_keys() -> None:
    curve_csv()
    found = document("curve.csv", "--r0", "0.2", "--at", "300", "--at", "1000")
    assert set(found) == KEYS
    for name in ("A", "B", "C_mid", "R0"):
        assert set(found[name]) == {"value", "lo", "hi"}
    assert found["A"]["value"] == pytest.approx(0.8, abs=1e-4)
    assert found["C_mid"]["value"] == pytest.approx(100, rel=1e-3)
    assert (found["n"], found["unit"], found["window"], found["verdict"]) == (
        10,
        "GPU-h",
        None,
        "ok",
    )
    inside, ahead = found["forecast"]
    assert inside["C"] == 300 and inside["R"] == pytest.approx(0.2 + 0.6 / (1 + 1 / 9), abs=1e-4)
    # beyond the points no rate is known closer than +-0.02; 0.2 + 0.6 / 1.01 = 0.7941
    assert ahead["R"] == pytest.approx(0.7941, abs=1e-4)
    assert ahead["hi"] - ahead["lo"] == pytest.approx(0.04, abs=1e-3)
    assert {row["name"] for row in found["rivals"]} >= {"sigmoid", "power law", "exponential"}
    assert found["alarms"] == []


def test_the_unit_of_the_column_and_the_window() -> None:
    curve_csv()
    text = Path("curve.csv").read_text()
    Path("steps.csv").write_text(text.replace("gpu_hours", "step").replace("pass_rate", "acc"))
    asked = ["steps.csv", "--x", "step", "--y", "acc", "--window", "20:400"]
    found = document(*asked)
    assert (found["unit"], found["window"], found["n"]) == ("steps", [20, 400], 8)
    assert "R(1,000 steps)" in printed("fit", *asked, "--at", "1000")
    assert document(*asked, "--unit", "tokens")["unit"] == "tokens"
    assert document("curve.csv", "--window", "50:")["window"] == [50, None]


def test_the_report_says_what_a_reader_asks() -> None:
    text = printed(
        "fit", "paper:Fig1a/ScaleRL-bs2048-100k", "--at", "200000", "--extend", "200000", "--price", "2",
    )  # fmt: skip
    for said in (
        "A 0.645 [0.625, 0.665]   R0 0.400 (published)",
        "published: A 0.645, B 1.70",
        "verdict: ok",
        "R(200,000 GPU-h) = 0.644 [0.624, 0.664]",
        "by block bootstrap",
        "fit as well as the best (the ridge):",
        "the ceiling as the window grows (before the +-0.02):",
        "A has been known to +-0.02",
        # (200,000 - 101,959) x 2 = 196,082; the last point is at 101,958.7
        "going on from 101,959 to 200,000 GPU-h: 98,041 GPU-h x 2 = 196,083",
        "exponential           0.0037",
    ):
        assert said in text, said


def test_the_drift_of_the_long_run() -> None:
    ends = [word for C in ("20000", "30000", "50000", "110000") for word in ("--drift", C)]
    asked = ("paper:Fig10a/bs2048", "--grid", "paper-drawn", "--window", "1500:")
    text = printed("fit", *asked, *ends)
    rows = [line for line in text.splitlines() if line.startswith("  to ")]
    ceilings = [float(line.split(" A ")[1][:5]) for line in rows]
    # within one step of the grid: the figure hides some of the run's points
    assert ceilings == pytest.approx([0.615, 0.625, 0.635, 0.645], abs=0.005 + 1e-9)
    assert ceilings == sorted(ceilings) and ceilings[-1] == 0.645


def test_a_run_that_broke() -> None:
    text = printed("fit", "paper:Fig2/DeepSeek-GRPO", "--window", ":6600", "--at", "10146")
    assert "verdict: UNSTABLE. R = 0.456 at 7,800.9 GPU-h, 0.019 below" in text
    assert "try: stop extending" in text
    found = document("paper:Fig2/DeepSeek-GRPO", "--window", ":6600")
    assert found["verdict"] == "unstable" and found["alarms"][0]["name"] == "residual"


def test_a_forecast_from_below_the_knee_is_called_a_guess() -> None:
    curve_csv()
    early = ["curve.csv", "--r0", "0.2", "--window", ":120", "--at", "800"]
    assert "NOT IDENTIFIABLE. 6 points" in printed("fit", *early)
    assert document(*early)["verdict"] == "not_identifiable"
    late = printed("fit", "paper:Fig1a/ScaleRL-bs2048-100k", "--window", ":17000")
    assert "is below twice C_mid: the ceiling has not been seen" in late


def test_a_run_takes_r0_from_its_first_evaluation(runs: Path) -> None:
    """A log written by hand: the point at C = 0 gives R0, and is no point of the fit."""
    log = runs / "events.jsonl"
    log.parent.mkdir()
    law = [(C, 0.2 + 0.6 / (1 + (100 / C) ** 2)) for C in (20, 50, 100, 200, 400)]
    lines = [
        {"seq": seq, "kind": "eval", "set": "validation", "C": C, "pass_rate": rate}
        for seq, (C, rate) in enumerate([(0.0, 0.21), *law])
    ]
    log.write_text("\n".join(map(json.dumps, lines)) + '\n{"torn')
    found = document(str(runs))
    # nothing is known of its error: it is taken to be that of any evaluation
    assert found["R0"]["value"] == 0.21 and found["R0"]["lo"] < 0.21 < found["R0"]["hi"]
    assert found["n"] == 5
    assert "R0 0.210 (measured)" in printed("fit", str(runs))


def test_a_forecast_is_registered_and_scored_when_the_run_has_gone_on(runs: Path) -> None:
    curve_csv(last=400)
    asked = ["fit", "curve.csv", "--r0", "0.2", "--window", "10:", "--register", "--at", "800"]
    said = printed(*asked)
    assert "\nregistered " in said
    assert "R(800 GPU-h), as one evaluation would measure it, in [0.7" in said
    assert "verdict ok: none can be scored yet" in printed("fit", "--record")
    curve_csv(last=800)
    # 0.2 + 0.6 / (1 + 1/64) = 0.7908
    text = printed("fit", "--record")
    assert "0.791 held" in text and "verdict ok: 1 of 1 intervals held" in text
    assert json.loads(printed("fit", "--record", "--json"))["ok"]["held"] == 1
    record = runs / "forecasts.jsonl"
    record.write_text(record.read_text().replace("0.7", "0.6", 1))
    assert "forecasts.jsonl, line 1: this forecast" in refused("fit", "--record")


def test_a_figure_is_saved() -> None:
    printed("fit", "paper:Fig2/ScaleRL", "--at", "30000", "--plot", "out.svg")
    assert Path("out.svg").read_text().startswith("<?xml")
    assert "out.pdf" in refused("fit", "paper:Fig2/ScaleRL", "--plot", "out.pdf")


def test_a_script_learns_the_verdict_from_the_exit_status() -> None:
    assert scalerl("fit", "paper:Fig2/ScaleRL", "--check").exit_code == 0
    broken = scalerl("fit", "paper:Fig2/DeepSeek-GRPO", "--check", "--json")
    assert broken.exit_code == 1 and json.loads(broken.stdout)["verdict"] == "unstable"


def test_seeds_of_a_table_are_pooled() -> None:
    rows = [f"{C},{0.2 + 0.6 / (1 + (100 / C) ** 2) + d:.6f},{s}" for s, d in enumerate((-0.01, 0, 0.01))
            for C in range(20, 800, 40)]  # fmt: skip
    Path("seeds.csv").write_text(
        "# from our trainer\ngpu_hours, pass_rate, seed\n" + "\n".join(rows)
    )
    text = printed("fit", "seeds.csv", "--r0", "0.2")
    assert "3 seeds, A of each:" in text and "n 60" in text
    assert "n 20" in printed("fit", "seeds.csv", "--select", "seed=1")


@pytest.mark.parametrize(
    ("typed", "shown"), [("10k", "10,000"), ("10,000", "10,000"), ("1e4", "10,000")]
)
def test_amounts_as_people_type_them(typed: str, shown: str) -> None:
    assert f"R({shown} GPU-h) = 0.596" in printed("fit", "paper:Fig2/ScaleRL", "--at", typed)


def test_the_paper_curves_are_listed() -> None:
    names = printed("fit", "--list").splitlines()
    assert len(names) == 46 and "paper:Fig2/ScaleRL" in names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to fit"),
        (["none.csv"], "cannot read none.csv"),
        (["curve.csv", "--x", "hours"], "has no column 'hours'; it has gpu_hours, pass_rate"),
        (["curve.csv", "--window", "20"], "--window '20' is not LO:HI"),
        (["curve.csv", "--window", "1:30"], "curve.csv: 2 of 2 points"),
        (["curve.csv", "--window", "90:1"], "the start exceeds the end"),
        (["curve.csv", "--grid", "papr"], "--grid 'papr': must be one of"),
        (["curve.csv", "--grid", "paper"], "give R0"),
        (["curve.csv", "--r0", "1.5"], "R0 = 1.5"),
        (["bad.csv"], "bad.csv, line 3: pass_rate = 'oops' is not a finite number"),
        (["curve.csv", "--at", "-5"], "--at -5: compute is a finite number above 0"),
        (["curve.csv", "--at", "0"], "--at 0: compute is a finite number above 0"),
        (["curve.csv", "--at", "nan"], "--at nan: compute is a finite number"),
        (["curve.csv", "--drift", "nan"], "--drift nan"),
        (["curve.csv", "--extend", "100"], "--extend: C = 100: the curve already reaches 800"),
        (["curve.csv", "--extend", "1600", "--price", "-1"], "price = -1"),
        (["curve.csv", "--price", "2"], "--price says what --extend costs"),
        (["curve.csv", "--extend", "1600", "--json"], "--extend and --drift are told in text"),
        (["curve.csv", "--drift", "100", "--json"], "--extend and --drift are told in text"),
        (["curve.csv", "--record"], "--list and --record need no source: leave curve.csv out"),
        (["curve.csv", "--at", "soon"], "--at 'soon' is no amount of compute, e.g. 5000 or 5k"),
        (["curve.csv", "--window", "900:"], "no point is in the window: they run from 10 to 800 GPU-h"),
        (["curve.csv", "--r0", "0.9"], "R0 = 0.9 is above every point"),
        (["paper:Fig2/ScaleRL", "--x", "step"], "paper:Fig2/ScaleRL is no CSV"),
        (["Fig2/ScaleRL"], "for the curve of the paper say paper:Fig2/ScaleRL"),
        (["curve.csv", "--register", "--at", "100"], "100 is not beyond the last point, 800 GPU-h"),
        (["other.csv"], "say which column to take with --x; there are a, b"),
        (["percent.csv"], "R[0] = 20.0: a pass rate lies in 0..1; divide per cent by 100"),
        (["flat.csv"], "R = 0.5 at all 6 points has no knee"),
        (["several.csv"], "several.csv holds 2 curves: choose one by --select series=VALUE of a, b"),
        (["several.csv", "--select", "series=c"], "no row has series = 'c'; there are a, b"),
        (["several.csv", "--select", "series"], "'series' is not COLUMN=VALUE"),
        (["paper:nobody"], "the paper has no curve 'nobody'"),
        (["paper:ScaleRL"], "'ScaleRL' is drawn in several figures"),
        (["."], "holds no events.jsonl"),
        (["--record"], "holds no forecast yet"),
    ],
)  # fmt: skip
def test_fit_refuses(arguments: list[str], said: str) -> None:
    curve_csv()
    head, rows = "gpu_hours,pass_rate\n", range(1, 7)
    Path("bad.csv").write_text(head + "1,0.2\n2,oops\n")
    Path("other.csv").write_text("a,b\n1,0.2\n")
    Path("percent.csv").write_text(head + "".join(f"{i},{19 + i}\n" for i in rows))
    Path("flat.csv").write_text(head + "".join(f"{i},0.5\n" for i in rows))
    Path("several.csv").write_text(
        "series," + head + "".join(f"{s},{i},0.{i}\n" for s in "ab" for i in rows)
    )
    assert said in refused("fit", *arguments)
