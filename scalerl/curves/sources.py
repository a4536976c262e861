"""Where curves come from: a run folder, a folder of seeds, an event log, a CSV, or a figure of the paper.

`read_source` takes what a person types and finds out which of these it is. RUN#SET is the curve of a run on another
set than validation: `runs/a#ood`, or `runs/a#validation/digit_sum`, one task of a mixture.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from scalerl.curves.curve import (
    VALIDATION,
    Curve,
    curve,
    curve_of_run,
    differing_settings,
    sets_of,
)
from scalerl.curves.tables import listed, read_csv
from scalerl.errors import InputError
from scalerl.events import Event, read_events
from scalerl.paths import is_file, is_folder, regular

PAPER, SET = "paper:", "#"
CURVES = Path(__file__).parents[1] / "data" / "scalerl_curves.csv"
# Pass rate before RL, read off the paper's drawn curves; it states none.
PAPER_R0, PAPER_R0_OF = 0.400, {"Scout": 0.511}


@dataclass(frozen=True)
class Source:
    """What was read: one curve, or one for each seed of a recipe.

    events: of each run, empty for points alone. published: (A, B) in the paper's legend.
    fit_end: where the paper's solid line ends, and its dotted continuation begins.
    """

    name: str
    curves: list[Curve]
    events: list[list[Event]] = field(default_factory=list)
    published: tuple[float, float] | None = None
    fit_end: float | None = None


def read_source(
    text: str,
    *,
    x: str | None = None,
    y: str | None = None,
    select: Sequence[str] = (),
    unit: str | None = None,
) -> Source:
    """Read what `text` names.

    Args:
        text: a run folder, a folder of seeds or an events.jsonl, each with #SET or without; a CSV; or
            paper:[FIGURE/]SERIES.
        x, y: columns of a CSV. select: COLUMN=VALUE, the rows of a CSV to keep.
        unit: of the compute, if the column does not say.

    Raises:
        InputError: nothing of that kind is there, or it holds no point, or several curves in one, or no
            evaluation of that set.
    """
    place, evaluation_set = split_set(text)
    path = Path(place)
    if text.startswith(PAPER):
        found = published(text.removeprefix(PAPER))
    elif is_folder(path):
        found = _read_folder(path, evaluation_set)
    elif path.suffix == ".jsonl":
        found = _runs(str(path), [path], evaluation_set)
    elif not is_file(path) and _matches(text):
        raise InputError(f"there is no file {text}; for the curve of the paper say {PAPER}{text}")
    else:
        return _with_unit(Source(text, read_csv(path, x=x, y=y, select=select)), unit)
    if x or y or select:
        raise InputError(f"{text} is no CSV: --x, --y and --select choose columns and rows of one")
    return _with_unit(found, unit)


def split_set(text: str) -> tuple[str, str]:
    """(run, set) of RUN#SET; without a set, or of what is no run, (text, "validation").

    What is there under the whole name is meant: a folder may have the mark in its name.
    """
    place, _, name = text.rpartition(SET)
    whole = is_folder(Path(text)) or is_file(Path(text))
    if place and not whole and (is_folder(Path(place)) or place.endswith(".jsonl")):
        return place, name
    return text, VALIDATION


def with_set(place: str, evaluation_set: str) -> str:
    """What `split_set` takes apart."""
    return place if evaluation_set == VALIDATION else f"{place}{SET}{evaluation_set}"


def _with_unit(found: Source, unit: str | None) -> Source:
    if unit is not None:
        found = replace(found, curves=[replace(each, unit=unit) for each in found.curves])
    return found


# ---- runs ----------------------------------------------------------------------------------------


def _read_folder(folder: Path, evaluation_set: str) -> Source:
    if (folder / "events.jsonl").exists():
        return _runs(str(folder), [folder / "events.jsonl"], evaluation_set)
    seeds = sorted(
        folder.glob("seed-*/events.jsonl"), key=lambda log: _number_last(log.parent.name)
    )
    if seeds:
        return _runs(str(folder), seeds, evaluation_set)
    below = sorted({str(log.parents[1]) for log in folder.glob("*/*/events.jsonl")})
    if below:
        raise InputError(f"{folder} holds several arms: name one of {', '.join(below)}")
    raise InputError(f"{folder} holds no events.jsonl and no seed-*/events.jsonl: is it a run?")


def _number_last(name: str) -> tuple[float, str]:
    """seed-2 before seed-10."""
    _, _, number = name.partition("-")
    return (float(number) if number.replace(".", "", 1).isdigit() else np.inf, name)


def _runs(place: str, logs: Sequence[Path], evaluation_set: str) -> Source:
    events = [_events(log) for log in logs]
    name = with_set(place, evaluation_set)
    names = (
        [name] if len(logs) == 1 else [with_set(str(log.parent), evaluation_set) for log in logs]
    )
    curves = [
        curve_of_run(each, of, evaluation_set) for each, of in zip(events, names, strict=True)
    ]
    for each, log, seen in zip(curves, logs, events, strict=True):
        if not len(each.C_N) and each.R0 is None:
            raise InputError(_no_evaluation(log, evaluation_set, sets_of(seen)))
    if differing := differing_settings(curves):
        keys = ", ".join(differing)
        raise InputError(f"{name} holds runs of different recipes ({keys}): name one of them")
    return Source(name, curves, events)


def _no_evaluation(log: Path, evaluation_set: str, sets: Sequence[str]) -> str:
    others = [name for name in sets if name != evaluation_set]
    if not others:
        return f"{log} holds no evaluation yet"
    return f"{log} holds no evaluation of the set {evaluation_set!r}: it has {listed(others)}"


def _events(log: Path) -> list[Event]:
    try:
        return read_events(regular(log))
    except OSError as error:
        raise InputError(f"cannot read the event log {log}: {error.strerror}") from None


# ---- the paper -----------------------------------------------------------------------------------


def published_names() -> list[str]:
    """FIGURE/SERIES of every curve of the paper that the project ships."""
    return sorted({f"{row['figure']}/{row['series']}" for row in _paper_rows()})


def published(name: str) -> Source:
    """A curve of the paper, digitised: SERIES, or FIGURE/SERIES where several figures draw it.

    Raises:
        InputError: no such curve, or several.
    """
    rows = _matches(name)
    found = sorted({f"{row['figure']}/{row['series']}" for row in rows})
    if not found:
        near = get_close_matches(name, published_names(), 3, 0.3) or published_names()[:3]
        raise InputError(
            f"the paper has no curve {name!r}; near it: {', '.join(near)} (all: scalerl fit --list)"
        )
    if len(found) > 1:
        raise InputError(f"{name!r} is drawn in several figures: say {PAPER}{' or '.join(found)}")
    points = [(float(row["gpu_hours"]), float(row["pass_rate"])) for row in rows]
    made = curve(points, f"{PAPER}{found[0]}")
    R0 = PAPER_R0_OF.get(rows[0]["series"], PAPER_R0)
    fitted = [float(row["gpu_hours"]) for row in rows if row["kind"] == "fit"]
    return Source(
        made.name,
        [replace(made, R0=R0, R0_from="published")],
        published=(float(rows[0]["published_A"]), float(rows[0]["published_B"])),
        fit_end=max(fitted),
    )


def _paper_rows() -> list[dict[str, str]]:
    with CURVES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _matches(name: str) -> list[dict[str, str]]:
    return [row for row in _paper_rows() if _is(name, row["figure"], row["series"])]


def _is(name: str, figure: str, series: str) -> bool:
    name, bare = name.lower(), figure.partition("(")[0]
    return name in (
        series.lower(),
        f"{figure}/{series}".lower(),
        f"{bare}/{series}".lower(),
    )
