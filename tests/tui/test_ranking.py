"""Who stands where: verdicts on curves with known laws, order and names, and the table as text."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from run_logs import write_log

from scalerl.curves.uncertainty import Interval
from scalerl.errors import InputError
from tui.compare.compare_layers import METRICS, Overlay, overlay
from tui.compare.contrast import contrast
from tui.compare.exporting import as_csv, export, free_path
from tui.compare.forest import DROPPED_FIRST, Forest, forest_axis, layout, table
from tui.compare.ranking import Ranking, short_names
from tui.compare.standing import Entry, Standing, read_entry, standings
from tui.show.rows import row_width, text, texts
from tui.show.view import Line, Points

BASE = "paper:Fig2/ScaleRL"


def ranked(*sources: str) -> Ranking:
    """Read, judged against the first."""
    ranking = Ranking()
    for source in sources:
        ranking.add(read_entry(source))
    ranking.standings = standings(ranking.entries, ranking.base)
    return ranking


def words(ranking: Ranking, source: str) -> str:
    return ranking.standings[source].words


def one_line(rows: list) -> str:
    """Wrapped text as one line again."""
    return " ".join(texts(rows).split())


# ---- verdicts ------------------------------------------------------------------------------------


def test_same_law_is_the_same_ceiling_and_another_ceiling_is_told(tmp_path: Path) -> None:
    base = write_log(tmp_path / "base")
    same = write_log(tmp_path / "same", seed=1)
    high = write_log(tmp_path / "high", seed=2, A=0.9)
    low = write_log(tmp_path / "low", seed=3, A=0.7)
    ranking = ranked(base, same, high, low)
    assert words(ranking, base) == "base"
    assert words(ranking, same) == "≈ same ceiling"
    assert words(ranking, high) == "higher ceiling"
    assert words(ranking, low) == "lower ceiling"
    gap = ranking.standings[high].gap
    assert gap is not None and gap.lo is not None and gap.hi is not None
    assert gap.lo < 0.1 < gap.hi and gap.lo > 0.0  # 0.9 - 0.8 = 0.1
    assert ranking.standings[high].paired  # the same held-out prompts by name


def test_at_one_ceiling_the_one_with_the_earlier_knee_is_faster(tmp_path: Path) -> None:
    base = write_log(tmp_path / "base")
    slow = write_log(tmp_path / "slow", seed=1, C_mid=60.0)
    fast = write_log(tmp_path / "fast", seed=2, C_mid=25.0)
    ranking = ranked(base, slow, fast)
    # at one B the compute to any share of the gain goes as C_mid: 60 / 40 and 25 / 40
    for source, ratio, told in ((slow, 1.5, "slower: 1."), (fast, 0.625, "faster: 0.6")):
        pace = ranking.standings[source].pace
        assert pace is not None and pace.lo is not None and pace.hi is not None
        assert pace.lo < ratio < pace.hi
        assert words(ranking, source).startswith(told)


def test_runs_of_very_different_length_are_compared_at_the_compute_both_have(
    tmp_path: Path,
) -> None:
    base = write_log(tmp_path / "base")  # to 160 GPU-h
    long = write_log(tmp_path / "long", seed=1, hours=6.0)  # to 480
    fair = write_log(tmp_path / "fair", seed=2, hours=5.0)  # to 400 = 2.5 x 160
    ranking = ranked(base, long, fair)
    assert words(ranking, long) == "not comparable: 480 > 160 GPU-h"
    assert ranking.standings[long].matched == 160.0
    assert ranking.standings[long].role == "muted"
    assert ranking.standings[fair].matched is None
    ranking.base = long
    ranking.standings = standings(ranking.entries, long)
    assert words(ranking, base) == "not comparable: 160 < 480 GPU-h"


def test_a_run_that_has_not_seen_its_knee_gets_no_verdict_and_gives_none(tmp_path: Path) -> None:
    base = write_log(tmp_path / "base")
    early = write_log(tmp_path / "early", seed=1, C_mid=150.0)  # 160 < 2 x 150
    ranking = ranked(base, early)
    assert words(ranking, early) == "fit: not identifiable"
    assert ranking.standings[early].gap is None
    of_early = standings(ranking.entries, early)
    assert of_early[base].words == "base: not identifiable"


def test_what_cannot_be_read_or_fitted_is_a_row_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("gpu_hours,pass_rate\n1,0.2\n2,0.3\n")
    (tmp_path / "steps.csv").write_text(
        "step,pass_rate\n" + "".join(f"{10 * i},{0.3 + 0.02 * i}\n" for i in range(1, 12))
    )
    few, steps = str(tmp_path / "few.csv"), str(tmp_path / "steps.csv")
    ranking = ranked(BASE, few, "paper:Fig2/Nobody", steps)
    shown = texts(table(ranking, 118, 10))
    assert "the paper has no curve 'Fig2/Nobody'" in shown
    assert words(ranking, few) == "no fit" and ranking.entries[1].why in shown
    assert ranking.entries[3].made is not None
    assert words(ranking, steps) == "not comparable: in steps, not GPU-h"
    assert [each.source for each in ranking.drawn()] == [BASE]
    ranking.base = few  # no crash where the base itself cannot be fitted
    assert {each.words for each in standings(ranking.entries, few).values()} == {
        "no base to compare with"
    }


# ---- updates -------------------------------------------------------------------------------------


def test_truncation_and_lag_are_of_the_last_updates_and_points_alone_have_none(
    tmp_path: Path,
) -> None:
    run = read_entry(write_log(tmp_path / "run", truncated=0.07, lags=(90, 4, 3, 3)))
    # of 100 tokens 90 + 4 = 94 have lag 0 or 1, 97 lag 2 or less: the 95th has 2
    assert run.lag_p95() == 2
    assert run.truncated() == pytest.approx(0.07)
    paper = read_entry(BASE)
    assert paper.lag_p95() is None and paper.truncated() is None
    ranking = ranked(run.source, BASE)
    rows = {text(row)[1]: text(row) for row in table(ranking, 118, 8)}
    assert "7.0%        2" in rows["◆"] and "-        -" in rows["●"]


# ---- order, names, base --------------------------------------------------------------------------


def test_sorting_keeps_the_base_first_and_what_has_no_fit_last(tmp_path: Path) -> None:
    a, b, c = (
        write_log(tmp_path / "a", A=0.7, C_mid=30.0),
        write_log(tmp_path / "b", A=0.9, C_mid=50.0),
        write_log(tmp_path / "c", A=0.8, C_mid=40.0),
    )
    ranking = ranked(a, "nothing", c, b)

    def order() -> list[str]:
        return [Path(each.source).name for each in ranking.ordered()]

    assert order() == ["a", "b", "c", "nothing"]  # A: 0.9 before 0.8
    ranking.base = b
    ranking.next_sort()  # B
    ranking.next_sort()
    assert ranking.sort == "C_mid" and order() == ["b", "a", "c", "nothing"]
    ranking.next_sort()
    ranking.next_sort()
    assert ranking.sort == "A" and order() == ["b", "c", "a", "nothing"]


def test_glyphs_stay_with_their_curve_and_the_base_has_its_own() -> None:
    ranking = Ranking()
    for source in "abcdefgh":
        ranking.add(Entry(source, None))
    looks = [ranking.look(entry) for entry in ranking.entries]
    assert looks[0] == ("◆", "pinned") and len({glyph for glyph, _ in looks}) == 8
    ranking.base = "c"
    assert ranking.look(ranking.entries[2]) == ("◆", "pinned")
    assert ranking.look(ranking.entries[1]) == looks[1]
    ranking.cursor = "b"
    ranking.remove()
    assert [ranking.look(entry) for entry in ranking.entries[2:]] == looks[3:]


def test_removing_the_base_makes_the_first_that_is_left_the_base() -> None:
    ranking = Ranking()
    for source in "abc":
        ranking.add(Entry(source, None))
    ranking.remove()
    assert (ranking.base, ranking.cursor) == ("b", "b")
    ranking.move(5)
    ranking.remove()
    assert (ranking.base, ranking.cursor) == ("b", "b")
    ranking.remove()
    ranking.remove()
    assert ranking.entries == [] and (ranking.base, ranking.cursor) == ("", "")


def test_names_are_as_short_as_they_can_be_told_apart() -> None:
    sources = [
        "runs/tiny/full/seed-0", "runs/tiny/ppo/seed-0", "runs/two/ppo/seed-0",
        "paper:Fig15b(loo)/loo-8op", "paper:Fig15a(loo)/ScaleRL", "paper:Fig15b(loo)/ScaleRL",
        "my.csv",
    ]  # fmt: skip
    assert list(short_names(sources).values()) == [
        "full/seed-0", "tiny/ppo/seed-0", "two/ppo/seed-0",
        "loo-8op", "Fig15a(loo)/ScaleRL", "Fig15b(loo)/ScaleRL", "my.csv",
    ]  # fmt: skip


# ---- the table -----------------------------------------------------------------------------------


def test_the_forest_draws_band_zero_interval_and_arrows() -> None:
    forest = Forest(0.1, 21)  # a cell is 0.01, 0 in cell 10
    assert text(forest.interval(Interval(0.05, 0.03, 0.07), "")) == "        ░░┊░░├─●─┤   "
    assert text(forest.interval(Interval(-0.01, -0.03, 0.02), "")) == "       ├─●┼─┤        "
    assert text(forest.interval(Interval(0.05, -0.5, 0.5), "")) == "◂─────────┼────●────▸"
    assert text(forest.interval(Interval(0.5, 0.4, 0.6), "")) == "        ░░┊░░       ▸"
    assert text(forest.axis()).split() == ["−.1", "0", "+.1"]


def test_one_very_long_interval_does_not_squeeze_the_others() -> None:
    short = [Standing("", gap=Interval(0.0, -0.05, 0.05))] * 3
    long = Standing("", gap=Interval(0.0, -0.6, 0.1))
    assert forest_axis([*short, long], 21).reach == pytest.approx(1.05 * 1.8 * 0.05)
    assert forest_axis([], 21).reach == pytest.approx(1.05 * 2 * 0.02)


def test_a_narrow_table_drops_columns_in_their_order() -> None:
    seen = [layout(width, 16, 21).numbers for width in range(118, 60, -1)]
    kept = ["A", "B", "C_mid", "trunc.", "lag p95"]
    expected = [tuple(kept)]
    for gone in DROPPED_FIRST:
        kept.remove(gone)
        expected.append(tuple(kept))
    assert list(dict.fromkeys(seen)) == expected
    assert expected[-1] == ("A",)


@pytest.mark.parametrize("width", [58, 78, 98, 118, 158])
def test_no_row_is_wider_than_the_pane_and_name_a_forest_and_verdict_are_there(width: int) -> None:
    ranking = ranked("paper:Fig15b(loo)/ScaleRL", "paper:Fig15b/loo-8op", "paper:Fig2/Magistral")
    rows = table(ranking, width, 8)
    assert max(map(row_width, rows)) <= width
    [row] = [text(row) for row in rows if "8op" in text(row)]
    assert "0.613 ±.020" in row and "├" in row and "slower" in row
    head = text(rows[0])
    assert "verdict" in head and "ΔA to " in head


def test_of_many_curves_those_around_the_selected_one_are_shown() -> None:
    ranking = Ranking()
    for i in range(30):
        ranking.add(Entry(f"run{i:02}", None, why="not there"))
    ranking.sort = "name"
    ranking.move(20)
    shown = texts(table(ranking, 60, 8, "more"))
    rows = shown.splitlines()
    assert [row for row in rows if row.startswith("▸")] == ["▸▲  run20  not there"]
    assert not [row for row in rows[1:] if "run00" in row]
    assert len(shown.splitlines()) <= 8 and "◌ reading more" in shown


# ---- what changed, what is drawn, what is written ------------------------------------------------


def test_what_changed_names_settings_numbers_and_the_split_of_speed(tmp_path: Path) -> None:
    base = write_log(tmp_path / "base")
    other = write_log(tmp_path / "other", seed=1, eps_max=2.0, C_mid=60.0)
    ranking = ranked(base, other)
    assert "The base" in one_line(contrast(ranking, 40, 20))
    ranking.cursor = other
    told = one_line(contrast(ranking, 40, 30))
    assert "loss.eps_max 5.0 → 2.0" in told
    assert "ceiling" in told and "on the same held-out prompts" in told
    assert "times the base's, both at ceiling 0." in told and "compute an update" in told
    ranking = ranked(base, BASE)
    ranking.cursor = BASE
    assert f"no recipe on record: {BASE}" in one_line(contrast(ranking, 40, 20))


def test_one_curve_alone_is_told_how_to_add_another() -> None:
    assert "press a to add another" in one_line(contrast(ranked(BASE), 30, 12))
    assert "press a to add a run" in one_line(contrast(Ranking(), 30, 12))


def test_the_base_lies_on_top_and_hidden_curves_are_counted() -> None:
    ranking = ranked(BASE, "paper:Fig2/Magistral", "paper:Fig2/Qwen2.5-DAPO")
    shown = overlay(ranking, "pass rate", "raw")
    assert [each.glyph for each in shown.layers if isinstance(each, Points)][-1] == "◆"
    ranking.move(1)
    ranking.toggle()
    fewer = overlay(ranking, "pass rate", "gain")
    assert fewer.notes == ["1 hidden"]
    assert len([each for each in fewer.layers if isinstance(each, Points)]) == 2
    ranking.toggle()
    assert overlay(ranking, "pass rate", "raw").notes == []


def test_the_gain_starts_where_r0_is_taken_away_and_the_line_has_slope_b(tmp_path: Path) -> None:
    ranking = ranked(write_log(tmp_path / "run"))
    made = ranking.entries[0].made
    assert made is not None
    raw, gain, straight = (
        overlay(ranking, "pass rate", how) for how in ("raw", "gain", "efficiency")
    )

    def heights(found: Overlay, kind: type[Points] | type[Line]) -> np.ndarray:
        [only] = [each for each in found.layers if isinstance(each, kind)]
        return np.asarray(only.y_N)

    apart = heights(raw, Points) - heights(gain, Points)
    assert apart == pytest.approx(made.fit.R0)
    line = heights(straight, Line)
    # from 8 to 160 GPU-h: B ln 20
    assert line[-1] - line[0] == pytest.approx(made.fit.B * 2.995732, rel=1e-6)


def test_metrics_are_of_runs_only(tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", updates=80)
    found = overlay(ranked(run, BASE), "entropy", "raw")
    [line] = [each for each in found.layers if isinstance(each, Line)]
    # entropy is 1 / 4 at update 4, at 4 x 2 GPU-hours
    assert np.asarray(line.y_N)[3] == 0.25 and np.asarray(line.x_N)[3] == 8.0
    assert found.y_name == "entropy, nats"
    for metric in list(METRICS)[1:]:
        assert overlay(ranked(BASE), metric, "raw").notes == [
            "no run among them: only runs have updates"
        ]


def test_the_csv_has_every_curve_with_its_intervals(tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", truncated=0.07)
    rows = list(csv.DictReader(io.StringIO(as_csv(ranked(run, "nothing")))))
    assert rows[0]["source"] == run and rows[0]["base"] == "yes" and rows[0]["lag_p95"] == "0"
    assert float(rows[0]["A_lo"]) < float(rows[0]["A"]) < float(rows[0]["A_hi"])
    assert float(rows[0]["last_C"]) == 160.0 and rows[0]["gap"] == ""
    assert rows[1]["A"] == "" and "nothing" in rows[1]["verdict"]


def test_a_free_path_steps_over_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert free_path(path) == path
    path.touch()
    (tmp_path / "a-2.csv").touch()
    assert free_path(path) == tmp_path / "a-3.csv"


def test_an_export_under_the_name_of_the_figure_keeps_the_table(tmp_path: Path) -> None:
    ranking = ranked(write_log(tmp_path / "a"), write_log(tmp_path / "b", seed=1))
    made = [entry.made for entry in ranking.entries if entry.made is not None]
    assert "foo.csv" in export(tmp_path / "foo.svg", as_csv(ranking), made)
    assert (tmp_path / "foo.csv").read_text().startswith("source")
    assert "<svg" in (tmp_path / "foo.svg").read_text()
    with pytest.raises(InputError, match="is a folder"):
        export(tmp_path, as_csv(ranking), [])
