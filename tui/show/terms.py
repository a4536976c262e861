"""The numbers that each panel of a dashboard shows: their place in the glossary, and their value now."""

from collections.abc import Sequence
from math import isfinite

from tui.show.fit_layers import shown_set
from tui.show.gauges import lag_summary
from tui.watch.analysis import Stage
from tui.watch.scene import Scene
from tui.words import amount, interval

Term = tuple[str, str]  # key of the glossary, value now or ""


def terms(scene: Scene, panel: str) -> list[Term]:
    """Of the panel that has the focus first, then of the others."""
    makers = {
        "fit": _fit,
        "truncation": _truncation,
        "lag": _lag,
        "busy": _busy,
        "happened": _happened,
        "sample": _sample,
    }
    order = (
        [panel, *(name for name in makers if name != panel)] if panel in makers else list(makers)
    )
    found: dict[str, str] = {}
    for name in order:
        for key, value in makers[name](scene):
            found.setdefault(key, value)
    return list(found.items())


def _fit(scene: Scene) -> list[Term]:
    found = scene.analysis
    rows: list[Term] = []
    if found.made is not None and found.stage in (Stage.FIT, Stage.BAND):
        made = found.made
        rows += [
            ("A", interval(made.A())),
            ("B", interval(made.B(), ".2f")),
            ("C_mid", f"{interval(made.C_mid(), 'amount')} GPU-h"),
            ("R0", interval(made.R0())),
            ("verdict", made.verdict),
            ("rmse", f"{made.fit.rmse:.4f}"),
        ]
    else:
        rows.append(("verdict", "not yet: " + found.why))
    C = scene.view.last("gpu_h", scene.at)
    rows.append(("C", "" if C is None else f"{amount(C)} GPU-h"))
    window = found.window
    rows.append(
        (
            "window",
            "all points" if window is None else f"{amount(window[0])} to {_end(window[1])}",
        )
    )
    if shown := shown_set(scene):
        rows.append(("eval.set", shown))
    return [
        *rows,
        ("band", ""),
        ("R", ""),
        ("n", "" if found.made is None else str(found.made.fit.n)),
    ]


def _end(C: float) -> str:
    return amount(C) if isfinite(C) else "the end"


def _truncation(scene: Scene) -> list[Term]:
    return [
        *_shares(scene, ("truncated", "interrupted", "zero_variance")),
        ("truncation_zones", ""),
        ("length_mean_tokens", _plain(scene, "length_mean_tokens", ".1f")),
    ]


def _lag(scene: Scene) -> list[Term]:
    mean, p95, largest, allowed = lag_summary(scene)
    return [
        ("lag", f"mean {mean:.1f}, p95 {p95}, max {largest}"),
        ("k", "" if allowed is None else f"{allowed} versions at most"),
        ("stall_s", _plain(scene, "stall_s", ".1f")),
        ("rho", ""),
        *_shares(scene, ("ess", "capped")),
        *((name, _plain(scene, name, ".2g")) for name in ("kl", "mismatch_kl", "stale_kv_kl")),
    ]


def _busy(scene: Scene) -> list[Term]:
    return [("idle", ""), ("gpu_hours_by_role", ""), ("hours", "")]


def _happened(scene: Scene) -> list[Term]:
    return [
        ("alarm", ", ".join(alarm.name for alarm in scene.analysis.alarms)),
        ("loss", _plain(scene, "loss", ".4f")),
        ("reward", _plain(scene, "reward", "+.3f")),
        *_shares(scene, ("pass_rate",)),
        ("entropy", _plain(scene, "entropy", ".3f")),
        ("grad_norm", _plain(scene, "grad_norm", ".3f")),
        ("step", _plain(scene, "version", ".0f")),
        ("tokens", _plain(scene, "tokens", ",.0f")),
    ]


def _sample(scene: Scene) -> list[Term]:
    return [(f"sample.{name}", "") for name in ("version", "sampled", "interrupted", "truncated")]


def _shares(scene: Scene, names: Sequence[str]) -> list[Term]:
    return [(name, _plain(scene, name, ".1%")) for name in names]


def _plain(scene: Scene, name: str, form: str) -> str:
    value = scene.view.last(name, scene.at)
    return "" if value is None else format(value, form)
