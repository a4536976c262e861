"""What sets one curve apart from the base, as rows: settings that differ, and the numbers behind its verdict."""

from typing import Any

from scalerl.curves.comparison import Speed, exponent_at, speed
from scalerl.curves.curve import differing_settings
from scalerl.forecast import Forecast
from tui.compare.forest import alarm_rows
from tui.compare.ranking import Ranking
from tui.compare.standing import Entry, Standing
from tui.show.rows import Row, wrapped
from tui.words import amount, interval, printable

LONELY = "One curve: press a to add another run, or a curve of the paper, to compare it with."
EMPTY = "No curve: press a to add a run, or a curve of the paper."


def contrast(ranking: Ranking, width: int, height: int) -> list[Row]:
    """The selected curve against the base, in at most `height` rows: what differs first, then why it stands there.

    Where there is no room for every setting, the last row of them counts those left out.
    """
    entry, base = ranking.selected, ranking.base_entry
    if entry is None or base is None:
        return wrapped(EMPTY, width, "watch")[:height]
    glyph, role = ranking.look(entry)
    name = printable(ranking.names()[entry.source])
    top: list[Row] = [[(f"{glyph} ", role), (name, "strong")]]
    if len(ranking.entries) == 1:
        top += wrapped(LONELY, width, "watch")
    changed = [] if entry is base else _changed(entry, base, width)
    stands = ranking.standings.get(entry.source, Standing(""))
    facts: list[Row] = []
    if entry is base:
        facts += wrapped("The base: the others are compared with it.", width, "muted")
    elif base.made is not None and entry.made is not None:
        for words in _facts(entry.made, base.made, stands):
            facts += wrapped(words, width, indent="  ")
    if entry.goes_on and entry.last_C:
        words = (
            f"read at {amount(entry.last_C)} {ranking.unit()}, while it runs: x and a read it anew"
        )
        facts += wrapped(words, width, "watch")
    facts += _doubts(entry, width)
    room = max(height - len(top) - min(len(facts), height // 2) - 1, 2)
    if len(changed) > room:
        left = len(changed) - room + 1
        changed = [*changed[: room - 1], [(f"and {left} rows more", "muted")]]
    return [*top, *changed, *([[]] if changed and facts else []), *facts][:height]


def _changed(entry: Entry, base: Entry, width: int) -> list[Row]:
    """One row a setting: its key, the base's value and this one's."""
    if entry.made is None or base.made is None:
        return []
    curves = [base.made.whole, entry.made.whole]
    if any(curve.recipe is None for curve in curves):
        without = " and ".join(printable(curve.name) for curve in curves if curve.recipe is None)
        return wrapped(f"no recipe on record: {without}", width, "muted")
    rows: list[Row] = []
    for key, (before, now) in differing_settings(curves).items():
        told = f"{_value(before)} → {_value(now)}"
        if len(key) + 2 + len(told) <= width:
            rows.append([(f"{key}  ", ""), (told, "strong")])
        else:
            rows.append([(key, "")])
            rows += wrapped(f"  {told}", width, "strong", indent="  ")
    return rows or [[("the recipes are the same", "muted")]]


def _value(value: Any) -> str:
    """A setting as a person writes it; a setting that the other recipe does not have is a dash."""
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else printable(str(value))


def _facts(made: Forecast, base: Forecast, stands: Standing) -> list[str]:
    """The numbers behind a verdict, a sentence each."""
    unit = base.curve.unit
    found = [stands.words]
    if stands.gap is not None and stands.ahead is not None:
        what = "ceiling"
        if stands.matched is not None:
            what = f"at {amount(stands.matched)} {unit}, which both have, pass rate"
        on = ", on the same held-out prompts" if stands.paired else ""
        found.append(
            f"{what} {interval(stands.gap, '+.3f')}, higher with chance {stands.ahead:.0%}{on}"
        )
    if stands.pace is not None:
        ceiling = (made.fit.A + base.fit.A) / 2.0
        held = exponent_at(made, ceiling), exponent_at(base, ceiling)
        found.append(
            f"compute to 80 % of the gain {interval(stands.pace, '.2f')} times the base's, both at"
            f" ceiling {ceiling:.3f}"
        )
        if held[0] is not None and held[1] is not None:
            found.append(f"B there {held[0][0]:.2f}, the base's {held[1][0]:.2f}")
    split = speed(made, base)
    if split is not None:
        found.append(f"this one and the base, {speed_told(split, unit)}")
    return found


def _doubts(entry: Entry, width: int) -> list[Row]:
    """Why a fit is not believed, and its alarms."""
    why = entry.why if entry.made is None else entry.made.why
    rows = wrapped(printable(why), width, "watch") if why else []
    for alarm in alarm_rows(entry):
        level, told = alarm
        told_rows = wrapped(level[0] + told[0], width, indent="  ")
        rows += [[(told_rows[0][0][0], level[1])], *told_rows[1:]]
    return rows


def speed_told(found: Speed, unit: str) -> str:
    """Compute to one pass rate, split into updates and compute an update, in a sentence."""
    return (
        f"to pass rate {found.target:.3f}: {amount(found.C_a)} and {amount(found.C_b)}"
        f" {unit} in {found.updates_a:.0f} and {found.updates_b:.0f} updates;"
        f" {found.ratio:.2f}x = {found.per_update_ratio:.2f}x compute an update"
        f" x {found.updates_ratio:.2f}x updates"
    )
