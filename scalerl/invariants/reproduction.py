"""A finding as a test: Python that fails until the loss is mended."""

import re

import torch
from torch import Tensor

from scalerl.invariants.case import Case
from scalerl.invariants.catalogue import Twin, Violation
from scalerl.invariants.check import Finding, Report
from scalerl.invariants.subject import LossUnderTest


def as_test(finding: Finding, report: Report) -> str:
    """Python: a pytest function that fails until the finding is mended. It calls the function `loss_fn`."""
    law, found, loss = finding.invariant, finding.violation, report.loss
    imports = ["import torch", *loss.imports]
    name = re.sub(r"\W+", "_", law.name.lower()).strip("_")
    if found.twin is not None:
        body = _compared(loss, found, found.twin)
    elif found.expected_BT is None and found.expected is None and not found.assertions:
        imports = ["from scalerl.invariants import adapt, check_loss", *loss.imports]
        asked = [f"{key}={value!r}" for key, value in report.asked.items()]
        body = [  # what was seen is no matter of one call
            f"report = check_loss({', '.join([loss.adapter, *asked])})",
            f"assert {law.id!r} not in [finding.invariant.id for finding in report.findings]",
        ]
    else:
        body = _called_once(loss, found)
    names = [n for n in ("nan", "inf") if re.search(rf"\b{n}\b", "\n".join(body))]
    if names:
        imports.insert(0, f"from math import {', '.join(names)}\n")
    lines = [f"def test_{law.id.lower()}_{name}() -> None:", f'    """{law.id}: {law.statement}"""']
    return "\n".join([*imports, "", "", *lines, *(f"    {line}".rstrip() for line in body)])


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
    parts = {**tensors(case), "old_logp": case.old_logp_BT, "weight": weight_BT}
    parts["rows"] = torch.arange(len(case.adv_B)) if rows is None else rows
    always = ("logp", "mask")
    return {
        n: t for n, t in parts.items() if n in always or re.search(rf"\b{n}\b", loss.expression)
    }


def _literal(tensor: Tensor) -> str:
    if tensor.numel() > 64 and bool((tensor == tensor.flatten()[0]).all()):
        return f"torch.full({tuple(tensor.shape)}, {tensor.flatten()[0].item()!r}, dtype={tensor.dtype})"
    return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype})"


def tensors(case: Case) -> dict[str, Tensor]:
    """The parts of a case under the adapter's names; `old_logp` where it differs from `behavior_logp`."""
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
