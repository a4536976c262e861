"""Every evaluation set has a curve: the results of a set and of its parts, and RUN#SET wherever a curve is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from scalerl.curves.alarms import lost
from scalerl.curves.curve import curve_of_run, pool, sets_of
from scalerl.curves.sources import Source, read_source, split_set, with_set
from scalerl.errors import InputError
from scalerl.task import Prompt
from scalerl.world import EvalResult, results_of


def _prompts(*sources: str) -> list[Prompt]:
    return [Prompt(i, (1, i), (2,), 1, source) for i, source in enumerate(sources)]


# ---- the results of a set ------------------------------------------------------------------------


def test_the_parts_of_a_mixture_by_hand():
    whole, a, b = results_of("ood", 7, 4, _prompts("b", "a", "b", "a"), [4, 0, 3, 2])
    assert whole == EvalResult("ood", 7, 4, [4, 0, 3, 2]) and whole.pass_rate == 9 / 16
    assert a == EvalResult("ood/a", 7, 4, [0, 2]) and a.pass_rate == 2 / 8
    assert b == EvalResult("ood/b", 7, 4, [4, 3]) and b.pass_rate == 7 / 8
    # rates 0 and 1/2 of two prompts: sqrt((1/4) / (4 - 1)) / 2 = sqrt(1/12) / 2
    assert a.se == pytest.approx((1 / 12) ** 0.5 / 2)


def test_a_task_that_is_no_mixture_has_no_parts():
    assert results_of("validation", 0, 2, _prompts("", ""), [1, 2]) == [
        EvalResult("validation", 0, 2, [1, 2])
    ]


# ---- their curves --------------------------------------------------------------------------------


def _eval(name: Any, C: float, R: float, **fields: Any) -> dict[str, Any]:
    return {"kind": "eval", "set": name, "C": C, "pass_rate": R, **fields}


RUN = {"kind": "run", "recipe": {"loss": {"kind": "cispo"}}, "site": {"task": "a+b"}}
PASSES = {"k": 2, "n": 2, "passes": [1, 2]}
EVENTS = [
    RUN,
    _eval("ood", 0.0, 0.1),
    _eval("validation", 0.0, 0.2),
    _eval("validation/a", 0.0, 0.3),
    _eval("validation", 4.0, 0.75, **PASSES),
    _eval("validation/a", 4.0, 0.75, **PASSES),
    _eval("ood", 8.0, 0.6),
]


def _log(folder: Path, events: list[dict[str, Any]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"v": 1, "seq": seq, **event}) for seq, event in enumerate(events)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)


def _rows(found: Source) -> list[tuple[float | None, list[float], list[float]]]:
    return [(each.R0, each.C_N.tolist(), each.R_N.tolist()) for each in found.curves]


def test_the_sets_of_a_run_are_validation_and_then_the_others_as_they_came():
    assert sets_of(EVENTS) == ["validation", "ood", "validation/a"]
    assert sets_of([_eval(["ood"], 1.0, 0.5), _eval(None, 1.0, 0.5), _eval("x", 2.0, 0.5)]) == ["x"]
    assert sets_of([RUN]) == []


def test_a_set_is_named_behind_the_run(tmp_path):
    run = _log(tmp_path / "run", EVENTS)
    assert _rows(read_source(run)) == [(0.2, [4.0], [0.75])]
    assert _rows(read_source(f"{run}#validation")) == [(0.2, [4.0], [0.75])]
    assert _rows(read_source(f"{run}#validation/a")) == [(0.3, [4.0], [0.75])]
    for text in (f"{run}#ood", f"{run}/events.jsonl#ood"):
        found = read_source(text)
        assert _rows(found) == [(0.1, [8.0], [0.6])]
        assert found.name == found.curves[0].name == text
        assert found.curves[0].evaluation_set == "ood"


def test_a_set_of_every_seed(tmp_path):
    for seed in (0, 1):
        _log(tmp_path / f"seed-{seed}", [*EVENTS, _eval("ood", 9.0 + seed, 0.7)])
    found = read_source(f"{tmp_path}#ood")
    assert [C for _, C, _ in _rows(found)] == [[8.0, 9.0], [8.0, 10.0]]
    assert [each.name for each in found.curves] == [
        f"{tmp_path}/seed-0#ood",
        f"{tmp_path}/seed-1#ood",
    ]
    assert pool(found.curves, found.name).evaluation_set == "ood"


@pytest.mark.parametrize(
    ("events", "name", "said"),
    [
        (EVENTS, "odd", "no evaluation of the set 'odd': it has validation, ood, validation/a"),
        (EVENTS, "", "no evaluation of the set '': it has validation, ood, validation/a"),
        (EVENTS[:2], "validation", "no evaluation of the set 'validation': it has ood"),
        ([RUN], "ood", "holds no evaluation yet"),
        (
            [RUN, *(_eval(f"t{i}", 1.0, 0.5) for i in range(15))],
            "ood",
            "it has t0, t1, .* t11 and 3 more$",
        ),
    ],
)
def test_a_set_that_a_run_does_not_have_is_refused_and_those_it_has_are_named(
    tmp_path, events, name, said
):
    with pytest.raises(InputError, match=said):
        read_source(f"{_log(tmp_path / 'run', events)}#{name}")


def test_the_mark_may_stand_in_the_name_of_a_folder(tmp_path):
    other = _log(tmp_path / "run", EVENTS)
    run = _log(tmp_path / "run#ood", [RUN, _eval("validation", 5.0, 0.5), _eval("b", 3.0, 0.4)])
    assert split_set(run) == (run, "validation")
    assert _rows(read_source(run)) == [(None, [5.0], [0.5])]
    assert split_set(f"{run}#b") == (run, "b")
    assert split_set(f"{other}#validation/a") == (other, "validation/a")


def test_what_is_no_run_has_no_sets(tmp_path):
    (tmp_path / "points.csv").write_text("C,R\n1,0.5\n2,0.6\n")
    for text in (f"{tmp_path}/points.csv#ood", "#ood", "paper:Fig2/ScaleRL#ood"):
        assert split_set(text) == (text, "validation")
        with pytest.raises(InputError):
            read_source(text)


def test_with_set_is_the_inverse(tmp_path):
    run = _log(tmp_path / "run", EVENTS)
    for name in ("validation", "ood", "validation/a"):
        assert split_set(with_set(run, name)) == (run, name)
    assert with_set(run, "validation") == run


def test_two_sets_of_one_run_are_not_the_same_prompts_whatever_their_passes():
    whole, part = (curve_of_run(EVENTS, "run", name) for name in ("validation", "validation/a"))
    assert whole.passes_NP is not None and part.passes_NP is not None
    assert whole.held_out == "a+b, validation, 2 prompts"
    assert part.held_out == "a+b, validation/a, 2 prompts"


def test_lost_evaluations_are_counted_on_the_curves_own_set():
    broken = [*EVENTS, _eval("ood", 9.0, float("nan"))]
    assert lost(curve_of_run(broken, "run"), broken) is None
    alarm = lost(curve_of_run(broken, "run", "ood"), broken)
    assert alarm is not None and alarm.evidence.startswith("1 evaluations have no number")
