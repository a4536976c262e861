"""A comparison as files: the table as CSV, and the figure beside it; nothing is overwritten."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from scalerl.errors import InputError
from scalerl.forecast import Forecast
from tui.compare.ranking import Ranking
from tui.compare.standing import Standing


def as_csv(ranking: Ranking) -> str:
    """The table with every interval, one line a curve in the order shown; empty where nothing is known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = [f"{name}{end}" for name in ("A", "B", "C_mid", "gap") for end in ("", "_lo", "_hi")]
    writer.writerow(
        ["source", "base", *ends, "gap_at", "verdict", "last_C", "unit", "truncated", "lag_p95"]
    )
    for entry in ranking.ordered():
        made, stands = entry.made, ranking.standings.get(entry.source, Standing(""))
        known = [None] * 3 if made is None else [made.A(), made.B(), made.C_mid()]
        numbers: list[float | str | None] = []
        for each in [*known, stands.gap]:
            numbers += ["", "", ""] if each is None else [each.value, each.lo, each.hi]
        at = "" if stands.gap is None else "ceiling" if stands.matched is None else stands.matched
        unit = "" if made is None else made.curve.unit
        numbers += [at, stands.words if made is not None else entry.why, entry.last_C, unit]
        numbers += [entry.truncated(), entry.lag_p95()]
        base = "yes" if entry.source == ranking.base else ""
        writer.writerow([entry.source, base, *("" if v is None else v for v in numbers)])
    return out.getvalue()


def free_path(path: Path) -> Path:
    """The path, or the first beside it that is free: comparison.csv, comparison-2.csv."""
    tried, number = path, 1
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return tried


def export(path: Path, content: str, made: Sequence[Forecast]) -> str:
    """Write the table, and the figure of the forecasts beside it if there are any; says what was written.

    Raises:
        InputError: a file of that name is there already, or it cannot be written.
    """
    if not path.name or path.is_dir():
        raise InputError(f"{path} is a folder: name a file, e.g. {path / 'comparison.csv'}")
    if path.suffix == ".svg":  # the name of the figure: the table goes beside it
        path = path.with_suffix(".csv")
    picture = path.with_suffix(".svg")
    try:
        for each in (path, picture) if made else (path,):
            if each.exists():
                said = f"{each} is there already and is not overwritten"
                raise InputError(f"{said}: choose another name")
        file = path.open("x", encoding="utf-8")
        try:
            with file:
                file.write(content)
        except OSError:  # half a table would only stand in the way
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    if not made:
        return f"written: {path}"
    from tui.show.figures import save_comparison

    save_comparison(picture, made)
    return f"written: {path} and {picture.name}"
