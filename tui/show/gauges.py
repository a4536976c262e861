"""Truncation and off-policy lag as rows: pure functions of a scene."""

import numpy as np

from scalerl.curves.alarms import MEAN_OF, TRUNCATION
from tui.show.rows import LEVEL_GLYPHS, LEVEL_ROLES, Row, ends, merged, within
from tui.watch.scene import Scene
from tui.watch.store import Floats

SPARKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
SCALE_END = 0.20  # of the truncation bar
ZONE_GLYPHS = {"ok": "░", "watch": "▒", "danger": "▓", "collapse": "▓"}
WORDS = {"ok": "ok", "watch": "WATCH", "danger": "DANGER", "collapse": "UNSTABLE"}


# ---- truncation and interruption ------------------------------------------------------------------


def truncation_level(share: float) -> str:
    """ "ok", "watch", "danger" or "collapse", by the thresholds of the alarms."""
    found = "ok"
    for limit, level in TRUNCATION:
        if share > limit:
            found = level
    return found


def truncation_zone(share: float) -> str:
    """The zone that a share lies in, in words: "watch 5-10 %"."""
    ends_ = [0.0, *(limit for limit, _ in TRUNCATION)]
    levels = ["ok", *(level for _, level in TRUNCATION)]
    i = levels.index(truncation_level(share))
    word = WORDS[levels[i]]
    if i + 1 < len(ends_):
        return f"{word} {100 * ends_[i]:.0f}-{100 * ends_[i + 1]:.0f} %"
    return f"{word} >{100 * ends_[i]:.0f} %"


def truncation_rows(scene: Scene, width: int, height: int) -> list[Row]:
    """Share of truncated completions with its zones, then interruptions and zero-variance groups.

    The zone is judged by the mean of the last eight updates, as the alarm is.
    """
    view = scene.view
    if not view.n:
        return within([[("no update yet", "muted")]], width, height)
    newest = view.n - 1 if scene.at is None else scene.at
    series = view.column("truncated")[: newest + 1]
    rows = _truncation(recent_truncation(scene), series, width, ticks=height >= 7)
    for name, title in (
        ("interrupted", "interrupted"),
        ("zero_variance", "zero var."),
        ("length_mean_tokens", "length"),
    ):
        values = view.column(name)[: newest + 1]
        now = values[-1]
        if not np.isfinite(now):
            continue
        tokens = name.endswith("tokens")
        told = f"{now:6.1f} tok" if tokens else f"{100 * now:5.1f}%    "
        top = float(np.nanmax(values)) if tokens else 1.0
        spark = sparkline(values, max(width - 25, 0), top)
        rows.append(ends([(f"{title:<12}", "muted"), (told, "")], [(spark, "data")], width))
    return within(rows, width, height)


def recent_truncation(scene: Scene) -> float | None:
    """The mean of the last eight updates, by which the zone is judged; None where it is not reported."""
    newest = scene.view.n - 1 if scene.at is None else scene.at
    recent = scene.view.column("truncated")[: newest + 1][-MEAN_OF:]
    return float(np.nanmean(recent)) if np.isfinite(recent).any() else None


def _truncation(mean: float | None, series: Floats, width: int, *, ticks: bool) -> list[Row]:
    if mean is None:
        return [[("truncation is not reported", "muted")]]
    level = truncation_level(mean)
    role = LEVEL_ROLES[level]
    head: Row = [
        (f"{100 * mean:.1f}% ", "strong"),
        (f"{LEVEL_GLYPHS[level]} {truncation_zone(mean)}", role),
    ]
    spark = sparkline(series, max(width - 28, 0), SCALE_END)
    rows = [ends(head, [(spark, role)], width), _zone_bar(mean, width)]
    return [*rows, _zone_ticks(width)] if ticks else rows


def _zone_bar(share: float, width: int) -> Row:
    """A bar to 20 %: full so far, the zones ahead in shades of their own."""
    filled = min(share / SCALE_END, 1.0) * width
    row: Row = []
    for column in range(width):
        middle = (column + 0.5) / width * SCALE_END
        level = truncation_level(middle)
        glyph = (
            EIGHTHS[8]
            if column + 1 <= filled
            else EIGHTHS[int(8 * (filled - column))]
            if column < filled
            else " "
        )
        row.append((glyph if glyph.strip() else ZONE_GLYPHS[level], LEVEL_ROLES[level]))
    return merged(row)


def _zone_ticks(width: int) -> Row:
    """0, 5, 10 ... under the bar."""
    line = [" "] * width
    for percent in range(0, 21, 5):
        label = f"{percent}%" if percent == 20 else str(percent)
        start = min(round(percent / 100 / SCALE_END * width), width - len(label))
        line[start : start + len(label)] = list(label)
    return [("".join(line), "muted")]


def sparkline(values: Floats, width: int, top: float) -> str:
    """All values as at most `width` eighth blocks, each a mean of neighbours; `top` is a full block."""
    known = values[np.isfinite(values)]
    if width < 4 or len(known) < 2:
        return ""
    width = min(width, 24)
    if len(known) > width:
        known = np.array([part.mean() for part in np.array_split(known, width)])
    steps = np.clip(known / max(top, 1e-9) * len(SPARKS), 0, len(SPARKS) - 1).astype(int)
    return "".join(SPARKS[step] for step in steps)


# ---- lag -------------------------------------------------------------------------------------------


def lag_summary(scene: Scene) -> tuple[float, int, int, int | None]:
    """(mean, 95th percentile, largest lag, lag that the recipe allows) in versions, of the update looked at."""
    counts = scene.view.lags(scene.at)
    total = int(counts.sum()) if len(counts) else 0
    allowed = allowed_lag(scene)
    if not total:
        return 0.0, 0, 0, allowed
    mean = float(counts @ np.arange(len(counts)) / total)
    p95 = int(np.searchsorted(np.cumsum(counts), 0.95 * total))
    return mean, p95, int(np.flatnonzero(counts)[-1]), allowed


def allowed_lag(scene: Scene) -> int | None:
    """The largest lag that the recipe allows: k, or k - 1 where k updates follow one generation phase."""
    k = scene.view.setting("staleness.k")
    if not isinstance(k, int):
        return None
    return k if scene.view.setting("staleness.kind") == "pipeline" else k - 1


def lag_rows(scene: Scene, width: int, height: int) -> list[Row]:
    """Trained tokens by lag as bars, the largest that the recipe allows marked."""
    counts = scene.view.lags(scene.at)
    bound = "k max" if scene.view.setting("staleness.kind") == "pipeline" else "at most k - 1 ="
    total = int(counts.sum()) if len(counts) else 0
    if not total:
        skipped = scene.view.last("skipped", scene.at)
        said = "nothing trained in this update" if skipped else "no update yet"
        return within([[(said, "muted")]], width, height)
    mean, p95, largest, allowed = lag_summary(scene)
    rows: list[Row] = [
        [("mean ", "muted"), (f"{mean:.1f}", "strong"), ("  p95 ", "muted"), (str(p95), "strong"),
         ("  max ", "muted"), (str(largest), "strong"), (" versions", "muted")]
    ]  # fmt: skip
    top = max(len(counts) - 1, allowed or 0)
    bins = _lag_bins(top, max(height - 1, 1))
    shares = [float(counts[lo : hi + 1].sum()) / total for lo, hi in bins]
    name = max(len(_bin_name(lo, hi)) for lo, hi in bins)
    room = max(width - name - 18, 4)
    for (lo, hi), share in zip(bins, shares, strict=True):
        over = allowed is not None and bool(counts[max(lo, allowed + 1) : hi + 1].any())
        at_k = allowed is not None and lo <= allowed <= hi
        bar = _bar(share / max(max(shares), 1e-9), room)
        row: Row = [(f"{_bin_name(lo, hi):>{name}} ", "muted"), (bar, "danger" if over else "data")]
        row.append(
            (
                f" {100 * share:.0f}%" if share >= 0.01 or not share else " <1%",
                "" if share else "muted",
            )
        )
        if at_k:
            row.append((f" ◂ {bound} {allowed}", "muted"))
        rows.append(row)
    return within(rows, width, height)


def _lag_bins(top: int, rows: int) -> list[tuple[int, int]]:
    """0 .. top in at most `rows` bins of equal width."""
    size = -(-(top + 1) // rows)
    return [(lo, min(lo + size - 1, top)) for lo in range(0, top + 1, size)]


def _bin_name(lo: int, hi: int) -> str:
    return str(lo) if lo == hi else f"{lo}-{hi}"


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    return EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8].strip())
