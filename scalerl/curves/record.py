"""Forecasts that are written down before the run goes on, and scored when it has.

One file, one JSON object a line, only ever appended to, under a lock. Each entry carries the hash of
its own content and of the entry before it: a forecast that is changed, slipped in, or removed from
before others breaks the chain, and reading says where. Entries cut off the end leave no trace.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy.stats import binomtest

from scalerl.curves.curve import Curve
from scalerl.curves.region import LEVEL
from scalerl.errors import InputError
from scalerl.events import is_number
from scalerl.forecast import Forecast
from scalerl.paths import regular

FORMAT = 1
START = "0" * 64
NEAR = 0.05  # an evaluation counts as one at C when it lies within this share of it


@dataclass(frozen=True)
class Promise:
    """One forecast on record: made at `when` of a source with n points up to last_C.

    source: the arguments with which `read_source` reads it again.
    at: (C, R, lo, hi) of each forecast, lo and hi the 90 % interval of an evaluation at C.
    settled_C: up to here no run of the source will be evaluated again: where the last of its seeds is.
    points: hash of the points up to there; the same points must still be there when scored.
    """

    hash: str
    when: str
    source: dict[str, Any]
    unit: str
    n: int
    last_C: float
    settled_C: float
    verdict: str
    points: str
    at: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True)
class Scored:
    """A forecast and what came of it. One row: C 221.3, R 0.903, lo .88, hi .92, seen 0.906, inside.

    seen: mean of the evaluations within 5 % of C, or the line between those on either side of it; None
        while the run has not come so far.
    """

    promise: Promise
    C: float
    R: float
    lo: float
    hi: float
    seen: float | None

    @property
    def inside(self) -> bool | None:
        return None if self.seen is None else self.lo <= self.seen <= self.hi


def register(
    path: Path, made: Forecast, source: dict[str, Any], at: Sequence[float], when: str
) -> Promise:
    """Append a forecast of the rates at `at`.

    Args:
        source: the arguments of `read_source`, to score it later.
        when: date and time, ISO 8601.

    Raises:
        InputError: nothing to forecast beyond the points, or a record that has been tampered with.
    """
    curve = made.whole  # all that has been seen, whatever the forecast was made from
    seen = [C for C in at if not (np.isfinite(C) and curve.last_C < C)]
    if seen or not at:
        said = f"{seen[0]:g} is not" if seen else "nothing is"
        raise InputError(
            f"{said} beyond the last point, {curve.last_C:g} {curve.unit}: a forecast is of what"
            " nobody has seen; name a larger --at"
        )
    noise = made.uncertainty.noise
    rows = []
    for C in at:
        R = made.uncertainty.rate(C)  # of this run on its own prompts, which is what will be scored
        wide = R.widened(noise.t() * noise.sd, 0.0, 1.0)  # an evaluation scatters about the curve
        rows.append([C, R.value, wide.lo, wide.hi])
    settled_C = _settled(curve)
    entry: dict[str, Any] = {
        "v": FORMAT,
        "when": when,
        "source": source,
        "unit": made.curve.unit,
        "n": made.fit.n,
        "last_C": curve.last_C,
        "settled_C": settled_C,
        "window": [end if np.isfinite(end) else None for end in made.window or ()] or None,
        "verdict": made.verdict,
        "fit": {name: asdict(made.fit)[name] for name in ("R0", "A", "B", "C_mid", "rmse")},
        "at": rows,
        "points": _hash_of_points(curve, settled_C),
    }
    with _locked(path) as file:
        text = _whole_lines(file.read())
        entries = _entries(path, text)
        entry["before"] = entries[-1]["hash"] if entries else START
        entry["hash"] = _hash(entry)
        file.truncate(len(text))
        file.write(b"" if text.endswith(b"\n") or not text else b"\n")
        file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return _promise(entry)


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The record, read from its start and written at its end, by nobody else meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise InputError(f"cannot write the record {path}: {error.strerror}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def _whole_lines(record: bytes) -> bytes:
    """Without the torn last line of a write that was cut short; one that lost its newline only is whole."""
    head, newline, tail = record.rpartition(b"\n")
    return record if not tail.strip() or tail.endswith(b"}") else head + newline


def _settled(curve: Curve) -> float:
    """The least of the last C of the runs that were pooled."""
    if curve.run_N is None:
        return curve.last_C
    return min(float(curve.C_N[curve.run_N == run].max()) for run in np.unique(curve.run_N))


def read_record(path: Path) -> list[Promise]:
    """Every forecast on record, oldest first.

    Raises:
        InputError: an entry that has been changed, or whose predecessor is not there.
    """
    try:
        text = regular(path).read_bytes() if path.exists() else b""
    except OSError as error:
        raise InputError(f"cannot read the record {path}: {error.strerror}") from None
    return [_promise(entry) for entry in _entries(path, _whole_lines(text))]


def score(promise: Promise, curve: Curve) -> list[Scored]:
    """What has come of a forecast, now that its run has gone on.

    Raises:
        InputError: the points it was made from are no longer those of the curve.
    """
    if _hash_of_points(curve, promise.settled_C) != promise.points:
        raise InputError(
            f"{promise.source['text']}: its points up to {promise.settled_C:g} {promise.unit} are not those"
            f" that the forecast of {promise.when} was made from: other runs or seeds, or an edited file"
        )
    rows = []
    for C, R, lo, hi in promise.at:
        seen = _seen(curve, C, promise.last_C)
        rows.append(Scored(promise, C, R, lo, hi, seen))
    return rows


def _seen(curve: Curve, C: float, last_C: float) -> float | None:
    """What came at C, of the evaluations after last_C: those near it, else between its neighbours."""
    late = curve.rows(np.flatnonzero(curve.C_N > last_C))
    near_N = np.abs(late.C_N / C - 1.0) <= NEAR
    if near_N.any():
        return float(late.R_N[near_N].mean())
    if not len(late.C_N) or late.last_C < C:
        return None
    return float(np.interp(C, late.C_N, late.R_N))


@dataclass(frozen=True)
class Calibration:
    """Of the forecasts that could be scored: n, how many held, and how far off they were.

    held_lo, held_hi: 90 % Wilson interval of the share that holds; None when there is none.
    """

    n: int
    held: int
    held_lo: float | None
    held_hi: float | None
    mean_error: float | None
    mean_absolute_error: float | None


def calibration(rows: Sequence[Scored]) -> Calibration:
    """How good the forecasts on record have been."""
    errors = [row.R - row.seen for row in rows if row.seen is not None]
    held = sum(row.inside is True for row in rows)
    if not errors:
        return Calibration(0, 0, None, None, None, None)
    ends = binomtest(held, len(errors)).proportion_ci(LEVEL, method="wilson")
    return Calibration(
        len(errors),
        held,
        float(ends.low),
        float(ends.high),
        float(np.mean(errors)),
        float(np.mean(np.abs(errors))),
    )


def _entries(path: Path, record: bytes) -> list[dict[str, Any]]:
    """Every entry in order; a blank line is none."""
    entries: list[dict[str, Any]] = []
    before = START
    for line, text in enumerate(record.splitlines(), 1):
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
            hashed = {key: value for key, value in entry.items() if key != "hash"}
            sound = entry["hash"] == _hash(hashed) and entry["before"] == before
            _promise(entry)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            sound, entry = False, {}
        if not sound:
            raise InputError(
                f"{path}, line {line}: this forecast, or the one before it, is not as it was "
                "registered; the record counts for nothing from there: move it away to begin anew"
            )
        entries.append(entry)
        before = entry["hash"]
    return entries


def _promise(entry: dict[str, Any]) -> Promise:
    names = ("hash", "when", "source", "unit", "n", "last_C", "settled_C", "verdict", "points")
    C_R_lo_hi = tuple((row[0], row[1], row[2], row[3]) for row in entry["at"])
    numbers = [entry["n"], entry["last_C"], entry["settled_C"], *chain(*C_R_lo_hi)]
    words = [entry[name] for name in ("hash", "when", "unit", "verdict", "points")]
    source = dict(entry["source"])
    words += [source.pop("text"), *source.pop("select")]
    words += [source.pop(name) or "" for name in ("x", "y", "unit")]
    if source or not all(map(is_number, numbers)) or not all(isinstance(w, str) for w in words):
        raise TypeError("it is no forecast")
    return Promise(**{name: entry[name] for name in names}, at=C_R_lo_hi)


def _hash(entry: dict[str, Any]) -> str:
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _hash_of_points(curve: Curve, last_C: float) -> str:
    known = curve.within((0.0, last_C))
    return _hash({"C": known.C_N.tolist(), "R": known.R_N.tolist()})
