"""A scaling curve: the held-out pass rates of one run against its compute, whoever measured them.

Points carry what is known of their error. The evaluation before any compute is not one of the
points: it is R0, with an error of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalerl.events import Event, evaluations, is_number
from scalerl.fit import (
    FitError,
    Floats,
    Grid,
    Points,
    Real,
    SigmoidFit,
    checked,
    fit_points,
    inside,
    usable_points,
)
from scalerl.nesting import DEEPEST

VALIDATION = "validation"  # the set that is meant where none is named
NO_SETTING = ("name", "seed", "site.name")
MOST_POINTS = 500  # more are averaged in blocks: a fit gains nothing from them but time


@dataclass(frozen=True, eq=False)
class Curve:
    """One run. One row of its points: C 50.6, R 0.61, se 0.006, version 24, passes (16, 0, 7, ...).

    name: what a person calls it. unit: of C; "GPU-h" unless the source says otherwise.
    C_N: compute > 0, ascending. R_N: pass rates, 0..1.
    se_N: standard error of each, given the fixed held-out set; None when unknown.
    R0, R0_se: pass rate before RL and its standard error (0 when it is given and not measured);
        R0 = None when nobody knows it, and a fit must find it.
    R0_from: "given", "measured", "published" or "fitted".
    passes_NP, k: completions that passed, of k, at each evaluation for each held-out prompt.
    held_out: names the held-out prompts; two curves with one name were measured on the same.
    version_N: optimiser steps at each evaluation. recipe: its settings by dotted key.
    blocks_of: rows of the source behind each point, 1 unless they were too many.
    run_N: the run that each point is of, where several were pooled.
    evaluation_set: what a run was evaluated on.
    """

    name: str
    C_N: Floats
    R_N: Floats
    unit: str = "GPU-h"
    se_N: Floats | None = None
    R0: float | None = None
    R0_se: float = 0.0
    R0_from: str = "fitted"
    passes_NP: NDArray[np.int64] | None = None
    k: int = 0
    held_out: str | None = None
    version_N: NDArray[np.int64] | None = None
    recipe: dict[str, Any] | None = None
    blocks_of: int = 1
    run_N: NDArray[np.int64] | None = None
    evaluation_set: str = VALIDATION

    @property
    def last_C(self) -> float:
        return float(self.C_N[-1])

    def given(self, R0: Real | None) -> "Curve":
        """The same with R0 told from outside; None leaves it as it is."""
        return self if R0 is None else replace(self, R0=float(R0), R0_se=0.0, R0_from="given")

    def within(self, window: tuple[Real, Real] | None) -> "Curve":
        """The points with lo <= C <= hi; R0 stays, for the window chooses points to fit."""
        return self.rows(np.flatnonzero(inside(self.C_N, window)))

    def rows(self, keep_N: NDArray[np.intp]) -> "Curve":
        """Some of the points, in order of compute."""

        def cut(values: Any) -> Any:
            return None if values is None else values[keep_N]

        return replace(
            self,
            C_N=self.C_N[keep_N],
            R_N=self.R_N[keep_N],
            se_N=cut(self.se_N),
            passes_NP=cut(self.passes_NP),
            version_N=cut(self.version_N),
            run_N=cut(self.run_N),
        )

    def points(self) -> Points:
        """What a fit takes.

        Raises:
            FitError: too few points, or none that bend.
        """
        return usable_points(self.C_N, self.R_N, R0=self.R0, se=self.se_N)


def curve(
    points: Sequence[tuple[float, float]] | NDArray[np.float64],
    name: str = "curve",
    *,
    unit: str = "GPU-h",
    se: Sequence[float] | Floats | None = None,
) -> Curve:
    """A curve from pairs (C, R) in any order. Those at C = 0 are R0.

    Pairs at the same C are averaged into one point: another look at the same weights, not at more
    of the run.

    Raises:
        FitError: a compute or a pass rate that is none.
    """
    table_N2 = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    checked(table_N2[:, 0], table_N2[:, 1])
    se_N = None if se is None else np.asarray(se, dtype=np.float64)
    if se_N is not None and se_N.shape != (len(table_N2),):
        raise FitError(f"se has shape {se_N.shape}: give one per point ({len(table_N2)})")
    if se_N is not None and not np.all(se_N > 0.0):
        se_N = None  # unknown for one, so no point can be weighed against it
    C_N, place_N, count_N = np.unique(table_N2[:, 0], return_inverse=True, return_counts=True)
    R_N = np.bincount(place_N, table_N2[:, 1]) / count_N
    if se_N is not None:
        se_N = np.sqrt(np.bincount(place_N, se_N**2)) / count_N
    start = int(np.searchsorted(C_N, 0.0, side="right"))
    made = Curve(name, C_N[start:], R_N[start:], unit, None if se_N is None else se_N[start:])
    if start:
        error = 0.0 if se_N is None else float(se_N[0])
        made = replace(made, R0=float(R_N[0]), R0_se=error, R0_from="measured")
    return made


def sets_of(events: Sequence[Event]) -> list[str]:
    """The sets that a run was evaluated on: validation first, then as they came."""
    said = [event.get("set") for event in events if event["kind"] == "eval"]
    names = dict.fromkeys(name for name in said if isinstance(name, str))
    return sorted(names, key=lambda name: name != VALIDATION)


def curve_of_run(events: list[Event], name: str, evaluation_set: str = VALIDATION) -> Curve:
    """The curve of one run's surviving events. It may be empty: a run has no evaluation at first."""
    evals = evaluations(events, evaluation_set)
    run = next((event for event in events if event["kind"] == "run"), {})
    table_N2 = np.array([(e["C"], e["pass_rate"]) for e in evals]).reshape(-1, 2)
    found = curve(table_N2, name, se=[_standard_error(event) for event in evals])
    # One for each point, in order of compute; of several at one C the last.
    rl = list({event["C"]: event for event in evals if event["C"] > 0.0}.values())
    recipe = flat(run.get("recipe")) | flat(run.get("site"), "site.")
    passes = [_passes(event) for event in rl]
    sizes = {(len(each), event.get("k")) for each, event in zip(passes, rl, strict=True) if each}
    n, k = sizes.pop() if len(sizes) == 1 and all(passes) else (0, 0)
    k = k if isinstance(k, int) else 0
    task = recipe.get("site.task")
    versions = [event.get("version") for event in rl]
    return replace(
        found,
        passes_NP=np.array(passes, dtype=np.int64) if n else None,
        k=k,
        held_out=f"{task}, {evaluation_set}, {n} prompts" if task and n else None,
        version_N=np.array(versions)
        if all(isinstance(v, int) and 0 <= v < 2**53 for v in versions)
        else None,
        recipe=recipe or None,
        evaluation_set=evaluation_set,
    )


def _passes(event: Event) -> list[int]:
    """Passes of each prompt; empty where the event does not have them, or cannot be right."""
    passes, k = event.get("passes"), event.get("k")
    if not (isinstance(passes, list) and passes and isinstance(k, int) and 0 < k < 2**31):
        return []
    whole = set(map(type, passes)) <= {int, bool}  # by type: long runs have a million of them
    return passes if whole and min(passes) >= 0 and max(passes) <= k else []


def _standard_error(event: Event) -> float:
    """Of a pass rate over its fixed prompts, from the passes of each, else from its own `se`.

    Half a pass and half a failure are added to each prompt: a prompt that passed every time is weak
    evidence that it always will. 0 where nothing is known.
    """
    passes, k = _passes(event), event.get("k", 0)
    if passes and k > 1:
        q_P = (np.asarray(passes) + 0.5) / (k + 1.0)
        return float(np.sqrt(np.sum(q_P * (1.0 - q_P)) / k) / len(passes))
    return float(event["se"]) if is_number(event.get("se")) else 0.0


def differing_settings(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    """Settings in which recipes differ: dotted key to the value of each, None where it has none.

    Names and seeds are not settings. Empty where a curve has no recipe.
    """
    recipes = [each.recipe for each in curves if each.recipe is not None]
    if len(recipes) < len(curves):
        return {}
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in NO_SETTING)
    rows = {key: [recipe.get(key) for recipe in recipes] for key in keys}
    return {key: values for key, values in rows.items() if any(v != values[0] for v in values)}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"loss": {"kind": "cispo"}} as {"loss.kind": "cispo"}."""
    rows: dict[str, Any] = {}
    if not isinstance(tree, dict):
        return rows
    for key, value in tree.items():
        if isinstance(value, dict) and prefix.count(".") < DEEPEST:
            rows |= flat(value, f"{prefix}{key}.")
        else:
            rows[f"{prefix}{key}"] = value
    return rows


def pool(curves: Sequence[Curve], name: str) -> Curve:
    """The points of several seeds of one recipe as one curve; R0 is their mean.

    Raises:
        FitError: curves in different units, or one run twice.
    """
    units = sorted({each.unit for each in curves})
    if len(units) > 1:
        raise FitError(f"the curves of {name} have different units: {', '.join(units)}")
    if len(curves) == 1:
        return curves[0]
    for i, each in enumerate(curves):
        for other in curves[:i]:
            if (
                len(each.C_N)
                and np.array_equal(each.C_N, other.C_N)
                and np.array_equal(each.R_N, other.R_N)
            ):
                raise FitError(f"{other.name} and {each.name} hold the same points: one run twice?")
    starts = [each.R0 for each in curves if each.R0 is not None]
    known = len(starts) == len(curves)
    C_N = np.concatenate([each.C_N for each in curves])
    order_N = np.argsort(C_N, kind="stable")
    R0_se = float(np.sqrt(sum(each.R0_se**2 for each in curves)) / len(curves))
    same_prompts = len({(each.held_out, each.k) for each in curves}) == 1

    def all_of(values: Sequence[Any]) -> Any:
        """What every curve has, in order of compute; None where one has not."""
        whole = all(each is not None for each in values)
        return np.concatenate(values)[order_N] if whole else None

    return Curve(
        name,
        C_N[order_N],
        np.concatenate([each.R_N for each in curves])[order_N],
        units[0],
        all_of([each.se_N for each in curves]),
        R0=float(np.mean(starts)) if known else None,
        R0_se=R0_se if known else 0.0,
        R0_from=curves[0].R0_from if known else "fitted",
        passes_NP=all_of([each.passes_NP for each in curves]) if same_prompts else None,
        k=curves[0].k if same_prompts else 0,
        held_out=curves[0].held_out if same_prompts else None,
        version_N=all_of([each.version_N for each in curves]),
        recipe=curves[0].recipe,
        evaluation_set=curves[0].evaluation_set,
        run_N=np.repeat(np.arange(len(curves)), [len(each.C_N) for each in curves])[order_N],
    )


def amount(C: float) -> str:
    """An amount of compute for a person: 10,767 from a thousand on, four digits below."""
    return f"{C:,.0f}" if C >= 1000 else f"{C:.4g}"


def thinned(full: Curve, most: int = MOST_POINTS) -> Curve:
    """The curve with blocks of consecutive points averaged, so that at most `most` are left."""
    size = -(-len(full.C_N) // most)
    if size <= 1:
        return full
    starts = np.arange(0, len(full.C_N), size)
    count = np.diff(np.append(starts, len(full.C_N)))

    def mean(values_N: Floats) -> Floats:
        return np.add.reduceat(values_N, starts) / count

    se_N = None if full.se_N is None else np.sqrt(mean(full.se_N**2) / count)
    return replace(
        full,
        C_N=mean(full.C_N),
        R_N=mean(full.R_N),
        se_N=se_N,
        passes_NP=None,
        version_N=None,
        run_N=None,
        blocks_of=size,
    )


def fit_curve(
    curve: Curve,
    *,
    R0: Real | None = None,
    window: tuple[Real, Real] | None = None,
    grid: Grid | None = None,
) -> SigmoidFit:
    """`fit_sigmoid` on a curve, with R0 as the curve has it unless it is given.

    Measured, R0 is not free to trade off against B; left free it bends a forecast from an early
    window.
    """
    return fit_points(thinned(curve.given(R0).within(window)).points(), grid)
