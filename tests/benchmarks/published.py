"""The paper's curves under our fit: ceilings, forecasts of what was drawn dotted, and alarms.

Run it as a script: `python tests/benchmarks/published.py [--write]`; `--write` puts the tables into
docs/forecasting.md, between its markers.
"""

import argparse
from pathlib import Path

import numpy as np
from published_curves import STABLE, Extended, ceilings, drawn_once, extended

PAGE = Path(__file__).parents[2] / "docs" / "forecasting.md"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    text = page()
    print(text)
    if asked.write:
        before, begin, rest = PAGE.read_text().partition("<!-- published -->\n")
        _, end, after = rest.partition("<!-- end of published -->")
        PAGE.write_text(before + begin + text + end + after)


def page() -> str:
    """The tables as Markdown."""
    errors = ceilings()
    far = sorted(name for name, error in errors.items() if abs(error) > 0.02)
    rows = [extended(name) for name in STABLE]
    once = [row for row in rows if row.name in drawn_once()]
    held = sum(row.held for row in once)
    width = float(np.median([row.width for row in once]))
    all_held = sum(row.held for row in rows)
    sure = [row for row in once if row.verdict == "ok"]
    return "\n".join(
        [
            f"Ceiling within 0.02 of the published one: {len(errors) - len(far)} of {len(errors)} series"
            f" of 15 points or more; not {', '.join(far)}.",
            "",
            f"Forecast of the last dotted point from the solid ones: {held} of {len(once)} runs inside,"
            f" median width {width:.3f} (those with verdict ok {sum(row.held for row in sure)} of"
            f" {len(sure)}); with repeated drawings {all_held} of {len(rows)}.",
            "",
            "| curve | solid points | to | forecast at | drawn | forecast | 90 % | verdict |",
            "|---|---|---|---|---|---|---|---|",
            *map(line, rows),
            "",
        ]
    )


def line(row: Extended) -> str:
    once = "" if row.name in drawn_once() else " (drawn again)"
    return (
        f"| {row.name}{once} | {row.n} | {row.last_C:,.0f} | {row.C:,.0f} | {row.drawn:.3f} | {row.R:.3f}"
        f" | {row.lo:.3f} .. {row.hi:.3f}{'' if row.held else ' **missed**'} | {row.verdict} |"
    )


if __name__ == "__main__":
    main()
