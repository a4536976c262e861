"""`scalerl fit --register` and `--record`: forecasts on record, and how good they have been."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from scalerl.curves.curve import pool
from scalerl.curves.record import Calibration, Scored, calibration, read_record, score
from scalerl.curves.record import register as put_on_record
from scalerl.curves.sources import read_source, split_set, with_set
from scalerl.errors import InputError
from scalerl.forecast import Forecast
from scenarios.runs import runs_root
from tui.commands.fitting import FitRequest
from tui.words import amount, page, printable

FILE = "forecasts.jsonl"


def record_path() -> Path:
    """The record lies with the runs."""
    return runs_root() / FILE


def register(asked: FitRequest, made: Forecast) -> list[str]:
    """Put forecasts on record, by default at twice the compute of the points; says which."""
    place, evaluation_set = split_set(asked.source)
    text = str(Path(place).resolve()) if Path(place).exists() else place
    source = {
        "text": with_set(text, evaluation_set),
        "x": asked.x,
        "y": asked.y,
        "select": list(asked.select),
        "unit": asked.unit,
    }
    now = datetime.now(UTC).isoformat(timespec="seconds")
    at = asked.at or (2.0 * made.whole.last_C,)
    promise = put_on_record(record_path(), made, source, at, now)
    doubt = "" if made.verdict == "ok" else f"; on record as {made.verdict}, scored apart"
    return [
        f"registered {promise.hash} in {record_path()}{doubt}",
        *(
            f"  R({amount(C)} {made.curve.unit}), as one evaluation would measure it, in"
            f" [{lo:.3f}, {hi:.3f}]"
            for C, _, lo, hi in promise.at
        ),
        "`scalerl fit --record` scores it once the curve has come so far",
    ]


def show_record(*, as_json: bool) -> None:
    """Score every forecast on record whose run has come far enough."""
    promises = read_record(record_path())
    if not promises:
        raise InputError(f"{record_path()} holds no forecast yet: scalerl fit RUN --register")
    rows: list[Scored] = []
    lost: list[str] = []
    for promise in promises:
        try:
            source = read_source(**promise.source)
            rows += score(promise, pool(source.curves, source.name))
        except InputError as error:
            lost.append(f"{promise.hash[:12]} cannot be scored: {error}")
    of_ok = calibration([row for row in rows if row.promise.verdict == "ok"])
    others = calibration([row for row in rows if row.promise.verdict != "ok"])
    if as_json:
        scored = [{**asdict(row), "inside": row.inside} for row in rows]
        found = {"ok": asdict(of_ok), "others": asdict(others), "forecasts": scored, "lost": lost}
        print(json.dumps(found, indent=2))
        return
    for row in rows:
        print(printable(_line(row)))
    print(page(lost), end="\n" if lost else "")
    print(_score("verdict ok", of_ok))
    if others.n:
        print(_score("other verdicts, where nothing was promised", others))


def _line(row: Scored) -> str:
    outcome = (
        "not yet" if row.seen is None else f"{row.seen:.3f} {'held' if row.inside else 'MISSED'}"
    )
    return (
        f"{row.promise.hash[:12]} {row.promise.when} {row.promise.verdict:<16}"
        f" R({amount(row.C)} {row.promise.unit}) = {row.R:.3f} [{row.lo:.3f}, {row.hi:.3f}]:"
        f" {outcome}   {row.promise.source['text']}"
    )


def _score(what: str, found: Calibration) -> str:
    if not found.n:
        return f"{what}: none can be scored yet, their runs have not come so far"
    return (
        f"{what}: {found.held} of {found.n} intervals held, where 90 % should"
        f" (so many tell of {found.held_lo:.0%} to {found.held_hi:.0%}); mean error"
        f" {found.mean_error:+.3f}, mean absolute error {found.mean_absolute_error:.3f}"
    )
