"""A report in words, as JSON, and as a test that reproduces its first finding."""

import math
import re
from typing import Any

import torch
from torch import Tensor

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Twin, Violation
from scalerl.invariants.check import NO_TIME, Finding, Report
from scalerl.invariants.subject import LossUnderTest
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


def as_text(report: Report) -> str:
    """For a terminal: what the loss is; the first finding in full; everything else in a line each."""
    lines = [f"{report.loss.name}: {kind_in_words(report.traits)}", ""]
    if report.findings:
        lines += [*_in_full(report.findings[0], report), ""]
        rest = [f"{f.invariant.id} ({f.invariant.name})" for f in report.findings[1:]]
        lines += _list("also violated, often for the same reason", rest)
    lines += _list(f"held on {report.examples} inputs each", [i.id for i in report.held])
    reasons: dict[str, list[str]] = {}
    for id, reason in report.left_out.items():
        reasons.setdefault(reason, []).append(id)
    for reason, ids in reasons.items():
        lines += _list(f"left out, {reason}", ids)
    lines += [f"note: {note}" for note in notes(report)]
    missed = sum(reason == NO_TIME for reason in report.left_out.values())
    verdict = "no violation found" if report.ok else f"violated: {report.findings[0].invariant.id}"
    verdict += f", {missed} laws not reached" if missed else ""
    return "\n".join([*lines, f"{verdict} ({report.seconds:.1f} s, seed {report.seed})"])


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


def _list(title: str, items: list[str]) -> list[str]:
    return [f"{title}: {', '.join(items)}"] if items else []


def _in_full(finding: Finding, report: Report) -> list[str]:
    law, found = finding.invariant, finding.violation
    lines = [
        f"VIOLATED  {law.id}  {law.name}",
        f"  {law.statement}",
        f"  {law.formula}",
        "",
        "  input"
        + ("" if found.rows is None else f" (the loss was given rows {found.rows.tolist()})"),
        *(f"    {name:<13}  {text}" for name, text in input_in_words(found.case).items()),
        "",
        *_side_by_side(found),
        f"  why      {found.because}",
        f"  usually  {law.means}",
    ]
    if found.fix:
        lines.append(f"  fix      {found.fix}")
    if law.fault:
        lines.append(f"  seen in  {law.fault}")
    lines += [
        "",
        "  as a test:",
        "",
        *(f"    {line}".rstrip() for line in as_test(finding, report).splitlines()),
    ]
    return lines


def input_in_words(case: Case) -> dict[str, str]:
    """Name of each tensor -> its numbers; long ones in one word."""
    parts: dict[str, str] = {}
    for name, tensor in _tensors(case).items():
        if tensor.numel() > 64:
            parts[name] = f"{list(tensor.shape)}, {tensor.flatten()[0].item():g} ..."
        else:
            parts[name] = _numbers(tensor.tolist())
    if case.logp_BT.dtype != torch.float64:
        parts["dtype"] = str(case.logp_BT.dtype)
    return parts


def _tensors(case: Case) -> dict[str, Tensor]:
    old = (
        {}
        if torch.equal(case.old_logp_BT, case.behavior_logp_BT)
        else {"old_logp": case.old_logp_BT}
    )
    return {
        "logp": case.logp_BT,
        "behavior_logp": case.behavior_logp_BT,
        **old,
        "adv": case.adv_B,
        "mask": case.mask_BT,
        "group_id": case.group_B,
    }


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
        table.append(f"    {name:<18}{wanted:>14.7g}{got:>16.7g}{flag}")
    return [*table, ""]


def as_test(finding: Finding, report: Report) -> str:
    """Python: a pytest function that fails until the finding is mended. It calls the function `loss_fn`."""
    law, found, loss = finding.invariant, finding.violation, report.loss
    imports = ["import torch", *loss.imports]
    name = re.sub(r"\W+", "_", law.name.lower()).strip("_")
    if found.twin is not None:
        body = _compared(loss, found, found.twin)
    elif found.expected_BT is None and found.expected is None and not found.assertions:
        imports = ["from scalerl.invariants import adapt, check_loss", *loss.imports]
        body = [  # what was seen is no matter of one call
            f"report = check_loss({loss.adapter})",
            f"assert {law.id!r} not in [finding.invariant.id for finding in report.findings]",
        ]
    else:
        body = _called_once(loss, found)
    names = [n for n in ("nan", "inf") if re.search(rf"\b{n}\b", "\n".join(body))]
    if names:
        imports.insert(0, f"from math import {', '.join(names)}\n")
    lines = [f"def test_{law.id.lower()}_{name}() -> None:", f'    """{law.id}: {law.statement}"""']
    return "\n".join([*imports, "", "", *lines, *(f"    {line}" for line in body)])


GRADIENT = "(grad,) = torch.autograd.grad(loss, logp, allow_unused=True, materialize_grads=True)"


def _called_once(loss: LossUnderTest, found: Violation) -> list[str]:
    """One call, held against numbers."""
    arguments, expected_BT = _arguments(loss, found.case, found.rows), found.expected_BT
    if found.rows is not None and "rows" not in arguments:
        expected_BT = None if expected_BT is None else expected_BT[found.rows]
    body = [f"{name} = {_literal(tensor)}" for name, tensor in arguments.items()]
    body += ["logp.requires_grad_()", f"loss = {loss.expression}"]
    if found.assertions:
        return [*body, *(line.format(call=loss.expression) for line in found.assertions)]
    if expected_BT is not None:
        body += [GRADIENT, f"expected = {_literal(expected_BT)}", _close(found.case, "expected")]
    if found.expected is not None:
        body.append(_close_values("loss.item()", repr(found.expected), found.expected))
    return body


def _compared(loss: LossUnderTest, found: Violation, twin: Twin) -> list[str]:
    """Two calls, held against each other."""
    other, this = _arguments(loss, twin.case, None), _arguments(loss, found.case, found.rows)
    gradient = twin.gradient
    if found.rows is not None:
        rows = found.rows.tolist()
        alone = f"({gradient})[{rows}]"
        whole = f"torch.zeros_like(grad).index_copy(0, torch.tensor({rows}), {alone})"
        gradient = whole if "rows" in this else alone
    body = [f"def call({', '.join(this)}):"]
    body += [
        "    logp = logp.clone().requires_grad_()",
        f"    loss = {loss.expression}",
        f"    {GRADIENT}",
    ]
    body += ["    return loss.item(), grad", ""]
    for results, arguments in (("other_value, other_grad", other), ("value, grad", this)):
        body.append(f"{results} = call(")
        body += [f"    {name}={_literal(tensor)}," for name, tensor in arguments.items()]
        body.append(")")
    if "mask" in gradient:
        body.append(f"mask = {_literal(found.case.mask_BT)}")
    if found.assertions:
        return [*body, *found.assertions]
    body.append(_close(found.case, gradient))
    if found.expected is not None and twin.value is not None:
        body.append(_close_values("value", twin.value, found.expected))
    return body


def _close(case: Case, expected: str) -> str:
    rtol = 1e-6 if case.logp_BT.dtype == torch.float64 else 1e-2
    return f"torch.testing.assert_close(grad, {expected}, rtol={rtol:g}, atol=1e-9)"


def _close_values(value: str, expected: str, size: float) -> str:
    return f"assert abs({value} - ({expected})) <= {1e-6 * max(1.0, abs(size)):g}"


def _arguments(loss: LossUnderTest, case: Case, rows: Tensor | None) -> dict[str, Tensor]:
    """What the loss's call in Python names; rows of a batch by themselves, unless the call can say which it means."""
    weight_BT = loss.weights(case)
    if rows is not None and "rows" not in loss.expression:
        case, weight_BT = case.rows(rows), weight_BT[rows]
    parts = {**_tensors(case), "old_logp": case.old_logp_BT, "weight": weight_BT}
    parts["rows"] = torch.arange(len(case.adv_B)) if rows is None else rows
    always = ("logp", "mask")
    return {
        n: t for n, t in parts.items() if n in always or re.search(rf"\b{n}\b", loss.expression)
    }


def _literal(tensor: Tensor) -> str:
    if tensor.numel() > 64 and bool((tensor == tensor.flatten()[0]).all()):
        return f"torch.full({tuple(tensor.shape)}, {tensor.flatten()[0].item()!r}, dtype={tensor.dtype})"
    return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype})"


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
        "input": {name: _plain(t.tolist()) for name, t in _tensors(found.case).items()},
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
