"""A report in words and as JSON."""

import math
import textwrap
from typing import Any

import torch

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Violation
from scalerl.invariants.check import NO_TIME, Finding, Report
from scalerl.invariants.reproduction import as_test, tensors
from scalerl.invariants.traits import Traits

MOST_ROWS = 24


def kind_in_words(traits: Traits) -> str:
    """What the loss is, and which of it was told."""
    told = traits.told
    bounds = {
        "clip_low": traits.clip_low,
        "clip_high": traits.clip_high,
        "dual": traits.dual,
        "cap": traits.cap,
    }
    shown = [
        f"{name} {value:.4g}{'' if name in told else ' (measured)'}"
        for name, value in bounds.items()
        if math.isfinite(value) and value != 0.0
    ]
    level = {
        "token": "ratio of the token",
        "sequence": "ratio of the completion",
        "product": "ratio of the completion, a product",
    }[traits.level]
    ratio = "" if traits.shape == "reinforce" else level
    shape = traits.shape if traits.shape != "other" else "no known shape"
    parts = [
        shape + ("" if "kind" in told else " (measured)"),
        ", ".join(shown),
        ratio,
        weights_in_words(traits),
    ]
    return "; ".join(part for part in parts if part)


def weights_in_words(traits: Traits) -> str:
    """The aggregation, and its scale if that is not 1."""
    if traits.weighed:
        return f"weights {traits.weights} (given by the suite)"
    said = "" if "weights" in traits.told else " (measured)"
    scale = f" times {traits.scale:.4g}" if abs(traits.scale - 1) > 1e-4 else ""
    return (
        f"weights {traits.weights}{scale}{said}" if traits.weights != "other" else "weights unknown"
    )


def as_text(report: Report, width: int = 100) -> str:
    """For a terminal: the verdict, what the loss is, the first finding in full, the rest in a line each."""
    found = report.findings
    missed = sum(reason == NO_TIME for reason in report.left_out.values())
    verdict = f"violates {found[0].invariant.id}" if found else "no violation found"
    verdict += f", {len(report.held)} laws held" + (
        f", {missed} laws not reached" if missed else ""
    )
    lines = [f"{report.loss.name}: {verdict} ({report.seconds:.1f} s, seed {report.seed})"]
    lines += wrapped("  it is      ", kind_in_words(report.traits), width)
    for note in notes(report):
        lines += wrapped("  note       ", note, width)
    if found:
        lines += ["", *_in_full(found[0], width), ""]
        rest = [f"{f.invariant.id} {f.invariant.name}" for f in found[1:]]
        if rest:
            lines += wrapped(
                "  also violated, perhaps for the same reason: ", ", ".join(rest), width
            )
    held = " ".join(law.id for law in report.held)
    lines += wrapped("  held       ", f"{held} (on {report.examples} inputs each)", width)
    reasons: dict[str, list[str]] = {}
    for id, reason in report.left_out.items():
        reasons.setdefault(reason, []).append(id)
    left = "; ".join(f"{' '.join(ids)}: {reason}" for reason, ids in reasons.items())
    lines += wrapped("  left out   ", left, width)
    lines.append("  (scalerl check --list says what each law is)")
    if found:
        lines += ["", "As a test, beside the file of the loss:", "", as_test(found[0], report)]
    return "\n".join(lines)


def wrapped(head: str, text: str, width: int) -> list[str]:
    """`text` behind `head`, its further lines as far in."""
    indent = " " * min(len(head), 13)
    return textwrap.wrap(
        head + text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def notes(report: Report) -> list[str]:
    """What is no violation and worth knowing."""
    traits, found = report.traits, []
    if "kind" not in traits.told:
        if traits.shape == "reinforce":
            found.append(
                "behavior_logp does not move the gradient: stale data are trained on as if fresh. If a ratio is meant, "
                "say --kind, and the loss is held to it"
            )
        if traits.shape == "other":
            found.append(
                "the gradient follows the ratio in no way known here: laws about clips and caps were left out"
            )
        if traits.level == "product":
            found.append(
                "the ratio is the product over the completion; GSPO's is the geometric mean (--kind gspo)"
            )
    if traits.weights == "other":
        found.append(
            "tokens are weighed in no way known here: laws about the aggregation were left out"
        )
    return found


def _in_full(finding: Finding, width: int) -> list[str]:
    law, found = finding.invariant, finding.violation
    given = "" if found.rows is None else f" (the loss was given rows {found.rows.tolist()})"
    lines = [
        f"VIOLATED  {law.id}  {law.name}",
        *wrapped("  ", law.statement, width),
        *wrapped("  ", law.formula, width),
        "",
        f"  input{given}",
        *(f"    {name:<13}  {text}" for name, text in input_in_words(found.case).items()),
        "",
        *_side_by_side(found),
        *wrapped("  why        ", found.because, width),
        *wrapped("  usually    ", law.means, width),
    ]
    if found.fix:
        lines += wrapped("  fix        ", found.fix, width)
    return [*lines, *(wrapped("  seen in    ", law.fault, width) if law.fault else [])]


def input_in_words(case: Case) -> dict[str, str]:
    """Name of each tensor -> its numbers; long ones in one word."""
    parts: dict[str, str] = {}
    for name, tensor in tensors(case).items():
        if tensor.numel() > 64:
            parts[name] = f"{list(tensor.shape)}, {tensor.flatten()[0].item():g} ..."
        else:
            parts[name] = _numbers(tensor.tolist())
    if case.logp_BT.dtype != torch.float64:
        parts["dtype"] = str(case.logp_BT.dtype)
    return parts


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return str(value) if isinstance(value, bool | int) else f"{value:.9g}"


def _side_by_side(found: Violation) -> list[str]:
    rows: list[tuple[str, float, float]] = []
    if found.expected is not None and found.actual is not None:
        rows.append(("loss", found.expected, found.actual))
    if found.expected_BT is not None and found.actual_BT is not None:
        for i, t in found.case.mask_BT.bool().logical_or(found.actual_BT != 0).nonzero().tolist():
            wanted, got = found.expected_BT[i, t].item(), found.actual_BT[i, t].item()
            rows.append((f"dL/dlogp[{i}, {t}]", wanted, got))
    if not rows:
        return []
    worst = sorted(rows, key=lambda row: -abs(row[1] - row[2]))[:MOST_ROWS]
    head = ("expected", "actual") if found.twin is None else ("other call", "this call")
    table = [f"    {'':<18}{head[0]:>14}{head[1]:>16}"]
    for name, wanted, got in rows if len(rows) <= MOST_ROWS else worst:
        flag = "" if math.isclose(wanted, got, rel_tol=1e-6, abs_tol=1e-12) else "  <-"
        table.append(f"    {name:<18}{wanted + 0.0:>14.7g}{got + 0.0:>16.7g}{flag}")
    return [*table, ""]


def as_json(report: Report) -> dict[str, Any]:
    """One document: the kind, the findings with input and test, what held, what was left out."""
    traits = report.traits
    return {
        "loss": report.loss.name,
        "ok": report.ok,
        "kind": {
            "shape": traits.shape,
            "level": traits.level,
            "weights": traits.weights,
            **{
                name: value if math.isfinite(value := getattr(traits, name)) else None
                for name in ("cap", "clip_low", "clip_high", "dual", "scale")
            },
            "told": sorted(traits.told),
        },
        "findings": [_finding_json(finding, report) for finding in report.findings],
        "held": [invariant.id for invariant in report.held],
        "left_out": report.left_out,
        "notes": notes(report),
        "examples": report.examples,
        "seed": report.seed,
        "seconds": round(report.seconds, 3),
    }


def _finding_json(finding: Finding, report: Report) -> dict[str, Any]:
    law, found = finding.invariant, finding.violation
    return {
        "id": law.id,
        "name": law.name,
        "statement": law.statement,
        "formula": law.formula,
        "means": law.means,
        "because": found.because,
        "compared": "expected with actual" if found.twin is None else "another call with this one",
        "fix": found.fix,
        "seen_in": law.fault,
        "input": {name: _plain(t.tolist()) for name, t in tensors(found.case).items()},
        "rows": None if found.rows is None else found.rows.tolist(),
        "loss": {"expected": _plain(found.expected), "actual": _plain(found.actual)},
        "gradient": {
            "expected": None if found.expected_BT is None else _plain(found.expected_BT.tolist()),
            "actual": None if found.actual_BT is None else _plain(found.actual_BT.tolist()),
        },
        "test": as_test(finding, report),
    }


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become their names."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
