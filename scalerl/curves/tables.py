"""Curves of a CSV: which columns, which rows, and what to say of a table that cannot be read."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scalerl.curves.curve import Curve, curve
from scalerl.errors import InputError
from scalerl.fit import FitError, Floats, binomial_precision, checked
from scalerl.paths import regular

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
SERIES_NAMES = ("figure", "series", "run", "arm", "model", "method", "recipe", "name", "config")
Rows = list[tuple[int, list[str]]]  # (line, cells)


def read_csv(
    path: Path, *, x: str | None = None, y: str | None = None, select: Sequence[str] = ()
) -> list[Curve]:
    """The curves of a CSV with a header: one, or one for each value of a column `seed`.

    Lines that begin with # are passed over. A column `se`, or columns `n` and `k`, weigh the points.

    Raises:
        InputError: no such file or column, a value that is no number (with its line), no row left,
            or more than one curve in the rows that are.
    """
    header, rows = _table(path)
    columns = {name: i for i, name in enumerate(header) if name}
    if twice := sorted({name for name in columns if header.count(name) > 1}):
        raise InputError(f"{path} has the column {twice[0]!r} twice: rename one")
    for wish in select:
        rows = _selected(rows, columns, wish, path)
    _refuse_several(rows, columns, path)
    x = x or _default(columns, tuple(X_NAMES), "x", path)
    y = y or _default(columns, Y_NAMES, "y", path)
    seeds = _cells(rows, columns, "seed") if "seed" in columns else [""] * len(rows)
    return [
        _one_curve([row for row, of in zip(rows, seeds, strict=True) if of == seed], columns, x, y,
                   f"{path}, seed {seed}" if len(set(seeds)) > 1 else str(path), path)
        for seed in sorted(set(seeds))
    ]  # fmt: skip


def _table(path: Path) -> tuple[list[str], Rows]:
    """(header, rows) without comments and blank lines."""
    try:
        with regular(path).open(encoding="utf-8-sig", newline="") as file:
            lines = [
                (line, cells)
                for line, cells in enumerate(csv.reader(file), 1)
                if cells and not cells[0].startswith("#")
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if len(lines) < 2:
        raise InputError(f"{path} has no rows below its header")
    header = [name.strip() for name in lines[0][1]]
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise InputError(f"{path}: its columns are not divided by commas: {header[0]!r}")
    return header, lines[1:]


def _one_curve(rows: Rows, columns: dict[str, int], x: str, y: str, name: str, path: Path) -> Curve:
    C_N, R_N = _numbers(rows, columns, x, path), _numbers(rows, columns, y, path)
    try:
        checked(C_N, R_N)
    except FitError as error:
        bad_N = ~((C_N >= 0.0) & (R_N >= 0.0) & (R_N <= 1.0))
        line = rows[int(np.flatnonzero(bad_N)[0])][0]
        raise InputError(f"{path}, line {line}: {error}") from None
    se = _errors(rows, columns, R_N, path)
    return curve(np.stack([C_N, R_N], axis=1), name, unit=X_NAMES.get(x, x), se=se)


def _selected(rows: Rows, columns: dict[str, int], wish: str, path: Path) -> Rows:
    name, equals, value = wish.partition("=")
    if not equals:
        raise InputError(f"{wish!r} is not COLUMN=VALUE, e.g. series=ScaleRL")
    _column(columns, name, path)
    values = _cells(rows, columns, name)
    kept = [row for row, of in zip(rows, values, strict=True) if of == value]
    if not kept:
        there = listed(sorted(set(values)))
        raise InputError(f"{path}: no row has {name} = {value!r}; there are {there}")
    return kept


def _refuse_several(rows: Rows, columns: dict[str, int], path: Path) -> None:
    for name in columns:
        if name.lower() not in SERIES_NAMES:
            continue
        values = sorted(set(_cells(rows, columns, name)))
        if len(values) > 1:
            raise InputError(
                f"{path} holds {len(values)} curves: choose one by --select {name}=VALUE of"
                f" {listed(values)}"
            )


def _cells(rows: Rows, columns: dict[str, int], name: str) -> list[str]:
    """A column as text; empty where a row is short."""
    i = columns[name]
    return [row[1][i].strip() if len(row[1]) > i else "" for row in rows]


def listed(values: Sequence[str]) -> str:
    """The first dozen, and how many there are more."""
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
        raise InputError(
            f"{path}, line {line}: {name} = {cell!r} is not a finite number: mend or delete the row"
        )
    return values


def _number(cells: list[str], i: int) -> float:
    try:
        return float(cells[i])
    except (ValueError, IndexError):
        return np.nan


def _errors(rows: Rows, columns: dict[str, int], R_N: Floats, path: Path) -> Floats | None:
    """Standard errors from a column `se`, or binomial ones from `n` prompts of `k` completions."""
    if "se" in columns:
        se_N = _numbers(rows, columns, "se", path)
        if np.any(se_N <= 0.0):
            line = rows[int(np.argmin(se_N))][0]
            raise InputError(
                f"{path}, line {line}: se = {se_N.min():g}: a standard error is above 0"
            )
        return se_N
    if "n" not in columns or "k" not in columns:
        return None
    n_N, k_N = _numbers(rows, columns, "n", path), _numbers(rows, columns, "k", path)
    if not np.all((n_N >= 1.0) & (k_N >= 1.0) & (n_N * k_N < 1e15)):
        raise InputError(f"{path}: n and k are prompts and completions of each, at least 1")
    return 1.0 / np.sqrt(binomial_precision(R_N, n_N * k_N))
