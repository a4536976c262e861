"""Where curves come from: a run folder, a folder of seeds, an event log, a CSV, or a figure of the paper.

`read_source` takes what a person types and finds out which of these it is.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from scalerl.curves.curve import Curve, curve, curve_of_run, differing_settings
from scalerl.errors import InputError
from scalerl.events import Event, read_events
from scalerl.fit import FitError, Floats, checked

PAPER = "paper:"
CURVES = Path(__file__).parents[1] / "data" / "scalerl_curves.csv"
# Pass rate before RL, read off the paper's drawn curves; it states none.
PAPER_R0, PAPER_R0_OF = 0.400, {"Scout": 0.511}

X_NAMES = {
    "gpu_hours": "GPU-h",
    "gpu_h": "GPU-h",
    "C": "GPU-h",
    "compute": "GPU-h",
    "step": "steps",
    "steps": "steps",
    "tokens": "tokens",
    "seconds": "s",
}
Y_NAMES = ("pass_rate", "R", "reward")
# Columns that tell curves apart: more than one value in them is more than one curve.
SERIES_NAMES = ("figure", "series", "run", "arm", "model", "seed")


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
        text: a run folder, a folder of seeds, an events.jsonl, a CSV, or paper:[FIGURE/]SERIES.
        x, y: columns of a CSV. select: COLUMN=VALUE, the rows of a CSV to keep.
        unit: of the compute, if the column does not say.

    Raises:
        InputError: nothing of that kind is there, or it holds no point, or several curves in one.
    """
    path = Path(text)
    if text.startswith(PAPER):
        found = published(text.removeprefix(PAPER))
    elif path.is_dir():
        found = _read_folder(path)
    elif path.suffix == ".jsonl":
        found = _runs(str(path), [path])
    else:
        found = Source(text, [read_csv(path, x=x, y=y, select=select)])
    if unit is not None:
        found = replace(found, curves=[replace(each, unit=unit) for each in found.curves])
    return found


# ---- runs ----------------------------------------------------------------------------------------


def _read_folder(folder: Path) -> Source:
    if (folder / "events.jsonl").exists():
        return _runs(str(folder), [folder / "events.jsonl"])
    seeds = sorted(
        folder.glob("seed-*/events.jsonl"), key=lambda log: _number_last(log.parent.name)
    )
    if seeds:
        return _runs(str(folder), seeds)
    below = sorted({str(log.parents[1]) for log in folder.glob("*/*/events.jsonl")})
    if below:
        raise InputError(f"{folder} holds several arms: name one of {', '.join(below)}")
    raise InputError(f"{folder} holds no events.jsonl and no seed-*/events.jsonl: is it a run?")


def _number_last(name: str) -> tuple[float, str]:
    """seed-2 before seed-10."""
    _, _, number = name.partition("-")
    return (float(number) if number.replace(".", "", 1).isdigit() else np.inf, name)


def _runs(name: str, logs: Sequence[Path]) -> Source:
    events = [read_events(log) for log in logs]
    curves = [
        curve_of_run(each, name if len(logs) == 1 else str(log.parent))
        for each, log in zip(events, logs, strict=True)
    ]
    for each, log in zip(curves, logs, strict=True):
        if not len(each.C_N) and each.R0 is None:
            raise InputError(f"{log} holds no evaluation yet")
    if differing := differing_settings(curves):
        keys = ", ".join(differing)
        raise InputError(f"{name} holds runs of different recipes ({keys}): name one of them")
    return Source(name, curves, events)


# ---- the paper -----------------------------------------------------------------------------------


def published_names() -> list[str]:
    """FIGURE/SERIES of every curve of the paper that the project ships."""
    return sorted({f"{row['figure']}/{row['series']}" for row in _paper_rows()})


def published(name: str) -> Source:
    """A curve of the paper, digitised: SERIES, or FIGURE/SERIES where several figures draw it.

    Raises:
        InputError: no such curve, or several.
    """
    rows = [row for row in _paper_rows() if _is(name, row["figure"], row["series"])]
    found = sorted({f"{row['figure']}/{row['series']}" for row in rows})
    if not found:
        raise InputError(
            f"the paper has no curve {name!r}; there are {', '.join(published_names())}"
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


def _is(name: str, figure: str, series: str) -> bool:
    name, bare = name.lower(), figure.partition("(")[0]
    return name in (
        series.lower(),
        f"{figure}/{series}".lower(),
        f"{bare}/{series}".lower(),
    )


# ---- a CSV ---------------------------------------------------------------------------------------


def read_csv(
    path: Path, *, x: str | None = None, y: str | None = None, select: Sequence[str] = ()
) -> Curve:
    """One curve of a CSV with a header. A column `se`, or columns `n` and `k`, weigh its points.

    Raises:
        InputError: no such file or column, a value that is no number (with its line), no row left,
            or more than one curve in the rows that are.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = ((line, cells) for line, cells in enumerate(csv.reader(file), 1) if cells)
            header = [name.strip() for name in next(lines, (0, []))[1]]
            rows = list(lines)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not rows:
        raise InputError(f"{path} has no rows below its header")
    columns = {name: i for i, name in enumerate(header) if name}
    if twice := sorted({name for name in columns if header.count(name) > 1}):
        raise InputError(f"{path} has the column {twice[0]!r} twice: rename one")
    for wish in select:
        rows = _selected(rows, columns, wish, path)
    _refuse_several(rows, columns, path)
    x = x or _default(columns, tuple(X_NAMES), "x", path)
    y = y or _default(columns, Y_NAMES, "y", path)
    C_N, R_N = _numbers(rows, columns, x, path), _numbers(rows, columns, y, path)
    try:
        checked(C_N, R_N)
        return curve(
            np.stack([C_N, R_N], axis=1),
            str(path),
            unit=X_NAMES.get(x, x),
            se=_errors(rows, columns, R_N, path),
        )
    except FitError as error:
        raise InputError(f"{path}: {error}") from None


Rows = list[tuple[int, list[str]]]  # (line, cells)


def _selected(rows: Rows, columns: dict[str, int], wish: str, path: Path) -> Rows:
    name, equals, value = wish.partition("=")
    if not equals:
        raise InputError(f"{wish!r} is not COLUMN=VALUE, e.g. series=ScaleRL")
    i = _column(columns, name, path)
    kept = [row for row in rows if len(row[1]) > i and row[1][i] == value]
    if not kept:
        there = sorted({row[1][i] for row in rows if len(row[1]) > i})
        raise InputError(f"{path}: no row has {name} = {value!r}; there are {_listed(there)}")
    return kept


def _refuse_several(rows: Rows, columns: dict[str, int], path: Path) -> None:
    for name in SERIES_NAMES:
        if name not in columns:
            continue
        values = sorted({row[1][columns[name]] for row in rows if len(row[1]) > columns[name]})
        if len(values) > 1:
            raise InputError(
                f"{path} holds {len(values)} curves: choose one by {name}=VALUE of {_listed(values)}"
            )


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - 12} more" if len(values) > 12 else ""
    return ", ".join(values[:12]) + more


def _column(columns: dict[str, int], name: str, path: Path) -> int:
    if name not in columns:
        raise InputError(f"{path} has no column {name!r}; it has {', '.join(columns)}")
    return columns[name]


def _default(columns: dict[str, int], names: Sequence[str], axis: str, path: Path) -> str:
    for name in names:
        if name in columns:
            return name
    raise InputError(
        f"{path}: say which column to take with --{axis}; there are {', '.join(columns)}"
    )


def _numbers(rows: Rows, columns: dict[str, int], name: str, path: Path) -> Floats:
    i = _column(columns, name, path)
    try:
        values = np.array([float(row[1][i]) for row in rows])
    except (ValueError, IndexError):
        values = np.array([_number(row[1], i) for row in rows])
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        line, cells = rows[bad[0]]
        cell = cells[i] if len(cells) > i else ""
        raise InputError(f"{path}, line {line}: {name} = {cell!r} is not a finite number")
    return values


def _number(cells: list[str], i: int) -> float:
    try:
        return float(cells[i])
    except (ValueError, IndexError):
        return np.nan


def _errors(rows: Rows, columns: dict[str, int], R_N: Floats, path: Path) -> Floats | None:
    """Standard errors from a column `se`, or binomial ones from `n` prompts of `k` completions."""
    if "se" in columns:
        return _numbers(rows, columns, "se", path)
    if "n" not in columns or "k" not in columns:
        return None
    m_N = _numbers(rows, columns, "n", path) * _numbers(rows, columns, "k", path)
    if np.any(m_N < 1.0):
        raise InputError(f"{path}: n k = {m_N.min():g}: a pass rate needs completions")
    p_N = (R_N * m_N + 1.0) / (m_N + 2.0)
    return np.sqrt(p_N * (1.0 - p_N) / m_N)
