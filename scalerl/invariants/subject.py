"""The loss under test: whatever form its author gave it, `evaluate(case)` is its value and gradient."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from scalerl.errors import InputError
from scalerl.invariants.case import Case
from scalerl.invariants.traits import Weights
from scalerl.reduction import Aggregation, token_weights
from scalerl.user_code import place_and_text


class LossRaised(Exception):
    """The loss raised, or returned what is no loss, on this input."""


@dataclass(frozen=True)
class Evaluation:
    """Value and gradient, dL/dlogp of the whole case, of one call."""

    value: float
    grad_BT: Tensor
    dtype: torch.dtype  # of the value


@dataclass(frozen=True)
class LossUnderTest:
    """A loss in the suite's own terms.

    name: FILE.py:FN, MODULE:FN, or the function's name.
    call: the scalar to minimise on some rows of a case, with its gradient in `case.logp_BT`.
    takes_old: it reads `old_logp_BT`, the trainer's log-probs before the batch's first step.
    aggregation: whose token weights it is given; None: it has a normaliser of its own.
    shards: called with some rows it is normalised by the whole case, so that calls add up.
    expression: its call in Python, on tensors named as the adapter's arguments; what reproduces a failure.
    adapter, imports: the Python that makes this object, and what both need.
    """

    name: str
    call: Callable[[Case, Tensor], Any]
    takes_old: bool = False
    aggregation: Aggregation | None = None
    shards: bool = False
    expression: str = ""
    adapter: str = ""
    imports: tuple[str, ...] = ()

    def weights(self, case: Case) -> Tensor:
        """Token weights that it is given, [B, T]; zeros where it has a normaliser of its own."""
        if self.aggregation is None:
            return torch.zeros_like(case.logp_BT)
        return _weights(case, self.aggregation)

    def evaluate(self, case: Case, rows: Tensor | None = None) -> Evaluation:
        """Value and gradient; the loss gets copies, so that one which writes to its arguments harms nobody else.

        Raises:
            LossRaised: it raised, or did not return one real number.
        """
        leaf_BT = case.logp_BT.clone().requires_grad_()
        value = self.value(case.copy().but(logp_BT=leaf_BT.clone()), rows)
        if not value.requires_grad:
            return Evaluation(value.item(), torch.zeros_like(leaf_BT), value.dtype)
        return Evaluation(value.item(), self._gradient(value, leaf_BT), value.dtype)

    def value(self, case: Case, rows: Tensor | None = None) -> Tensor:
        """The scalar itself, after checking that it is one."""
        try:
            value = self.call(case, torch.arange(len(case.adv_B)) if rows is None else rows)
        except (Exception, SystemExit) as error:
            raise LossRaised(said(self.name, error)) from error
        if not isinstance(value, Tensor):
            hint = ", the loss alone (its first item?)" if isinstance(value, tuple) else ""
            raise LossRaised(
                f"{self.name} returned {type(value).__name__}: a tensor is needed{hint}"
            )
        if value.numel() != 1 or not value.is_floating_point():
            raise LossRaised(
                f"{self.name} returned a {value.dtype} tensor of shape {list(value.shape)}: "
                "one real number is needed, or one term per token"
            )
        return value.reshape(())

    def _gradient(self, value: Tensor, leaf_BT: Tensor) -> Tensor:
        try:
            (grad_BT,) = torch.autograd.grad(
                value, leaf_BT, allow_unused=True, materialize_grads=True
            )
        except RuntimeError as error:
            raise LossRaised(said(f"{self.name}, in its backward pass,", error)) from error
        return grad_BT


def _weights(case: Case, aggregation: Aggregation) -> Tensor:
    weight_BT = token_weights(case.mask_BT.bool(), case.group_B, aggregation)
    return weight_BT.to(case.logp_BT.dtype)


def said(name: str, error: BaseException) -> str:
    """What failed where, in one line."""
    place, text = place_and_text(error)
    return f"{name} raised {type(error).__name__}{f' at {place}' if place else ''}: {text}"


# ---- functions of the adapter's form, and per-token losses ----

NAMES = {
    "logp_BT": ("logp", "logp_BT"),
    "behavior_logp_BT": ("behavior_logp", "behavior_logp_BT"),
    "adv_B": ("adv", "adv_B"),
    "mask_BT": ("mask", "mask_BT"),
    "group_B": ("group_id", "group_B"),
    "old_logp_BT": ("old_logp", "old_logp_BT"),
    "weight_BT": ("weight", "weight_BT"),
}
"""A part of a case -> what its argument may be called; the first is the adapter's own name."""
IN_ORDER = ("logp_BT", "behavior_logp_BT", "adv_B", "mask_BT", "group_B")
FUNCTION = "loss_fn"
"""What the function is called in the tests that reproduce a failure, whatever its own name is."""


@dataclass(frozen=True)
class _Arguments:
    """What a function is called with: parts of a case, by name or in order, and fixed keywords."""

    parts: tuple[str, ...]
    names: tuple[str, ...] | None  # None: in order
    keywords: Mapping[str, Any]

    def call(self, function: Callable[..., Any], case: Case, weight_BT: Tensor | None) -> Any:
        values = [weight_BT if part == "weight_BT" else getattr(case, part) for part in self.parts]
        if self.names is None:
            return function(*values, **self.keywords)
        return function(**dict(zip(self.names, values, strict=True)), **self.keywords)

    def expression(self, function: str) -> str:
        values = [NAMES[part][0] for part in self.parts]
        if self.names is not None:
            values = [f"{name}={value}" for name, value in zip(self.names, values, strict=True)]
        values += [f"{key}={value!r}" for key, value in self.keywords.items()]
        return f"{function}({', '.join(values)})"


def adapt(
    function: Callable[..., Any],
    *,
    aggregation: Aggregation = "prompt_mean",
    keywords: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> LossUnderTest:
    """Make a function of the adapter's form, or a per-token loss in the form of `losses.py`, testable.

        loss(logp, behavior_logp, adv, mask, group_id) -> scalar     [B, T], [B, T], [B], [B, T], [B]
        term(logp, behavior_logp, adv, mask) -> [B, T]               to be summed with the weights of `aggregation`

    Arguments are passed by name if every required one has a name of `NAMES`, else in this order. One called `old_logp`
    gets the trainer's log-probs before the batch's first step; one called `weight` the token weights of the whole
    batch, and then calls on shards must add up.

    Args:
        aggregation: of the weights, for a per-token loss or one that takes `weight`.
        keywords: further arguments, for instance `{"eps_max": 5.0}`.
        name: how reports call it.

    Raises:
        InputError: arguments that cannot be told apart, or a function that fails on a plain batch.
    """
    name = name or str(getattr(function, "__name__", repr(function)))
    arguments = _arguments(function, keywords or {}, name)
    takes_weight = "weight_BT" in arguments.parts

    def scalar(case: Case, rows: Tensor) -> Any:
        weight_BT = _weights(case, aggregation)[rows] if takes_weight else None
        return arguments.call(function, case.rows(rows), weight_BT)

    def weighted(case: Case, rows: Tensor) -> Any:
        term_BT = scalar(case, rows)
        shape = case.mask_BT[rows].shape
        if not isinstance(term_BT, Tensor) or term_BT.shape != shape:
            what = list(term_BT.shape) if isinstance(term_BT, Tensor) else type(term_BT).__name__
            raise TypeError(f"returned {what} where one term per token, {list(shape)}, is needed")
        if not term_BT.is_floating_point():
            raise TypeError(f"returned {term_BT.dtype} terms: real numbers are needed")
        return (_weights(case, aggregation)[rows] * term_BT).sum()

    per_token = _is_per_token(scalar, name)
    shares = takes_weight or per_token
    call = arguments.expression(FUNCTION)
    return tried(
        name=name,
        call=weighted if per_token else scalar,
        takes_old={"old_logp_BT", "behavior_logp_BT"} <= set(arguments.parts),
        aggregation=aggregation if shares else None,
        shards=shares,
        expression=f"(weight * {call}).sum()" if per_token else call,
        imports=import_of(function),
        adapter=f"adapt({FUNCTION}, aggregation={aggregation!r}, keywords={dict(keywords or {})!r})",
    )


def tried(**parts: Any) -> LossUnderTest:
    """A `LossUnderTest` of these parts, after a call on the plainest batch there is: what fails there fits no adapter.

    Raises:
        InputError: it raised, or returned what is no loss.
    """
    subject, plain = LossUnderTest(**parts), plain_case()
    try:
        subject.evaluate(plain)
    except LossRaised as error:
        raise InputError(
            f"{error} (on the plainest batch, [B, T] = {list(plain.shape)})"
        ) from error
    return subject


def mean_of(aggregation: str | None) -> Aggregation:
    """Weights for a per-token loss: those named, or of the prompts.

    Raises:
        InputError: no aggregation has this name.
    """
    if aggregation not in (None, *get_args(Weights)):
        raise InputError(
            f"aggregation {aggregation!r} is none of {', '.join(get_args(Weights)[:-1])}"
        )
    return next((how for how in get_args(Aggregation) if how == aggregation), "prompt_mean")


def import_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The line that imports it as `loss_fn`, if there is one."""
    module, name = (getattr(function, part, "") for part in ("__module__", "__qualname__"))
    importable = name.isidentifier() and module not in ("", "__main__")
    return (f"from {module} import {name} as {FUNCTION}",) if importable else ()


def _is_per_token(scalar: Callable[[Case, Tensor], Any], name: str) -> bool:
    """Whether it returns one term per token, from the plainest batch there is: what fails there fits no adapter."""
    plain = plain_case()
    try:
        result = scalar(plain, torch.arange(len(plain.adv_B)))
    except (Exception, SystemExit) as error:
        what = f"[B, T] = {list(plain.shape)}, advantages [B]"
        raise InputError(f"{said(name, error)} (on the plainest batch, {what})") from error
    return isinstance(result, Tensor) and result.shape == plain.shape


def _arguments(function: Callable[..., Any], keywords: Mapping[str, Any], name: str) -> _Arguments:
    part_of = {alias: part for part, aliases in NAMES.items() for alias in aliases}
    parameters = _parameters(function, name)
    gathers = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    parameters = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = [p.name for p in parameters]
    for key in keywords:
        if key in part_of:
            raise InputError(f"{key!r} is a part of the batch, which the suite gives: leave it out")
        if key not in names and not open_ended:
            raise InputError(f"{name} takes no {key!r}; it takes {', '.join(names)}")
    required = [p for p in parameters if p.default is p.empty and p.name not in keywords]
    known = [n for n in names if n in part_of]
    if required and all(p.name in part_of and p.kind is not p.POSITIONAL_ONLY for p in required):
        return _Arguments(tuple(part_of[n] for n in known), tuple(known), keywords)
    if not required and not gathers and open_ended:
        return _Arguments(IN_ORDER, tuple(NAMES[part][0] for part in IN_ORDER), keywords)
    count = 5 if gathers else len(required)
    misplaced = [
        p.name
        for p, part in zip(required, IN_ORDER, strict=False)
        if part_of.get(p.name, part) != part
    ]
    named = [part_of.get(p.name) for p in required]
    if tuple(named[:4]) == IN_ORDER[:4] and named[4:] == [None]:
        raise InputError(
            f"{name} requires {required[4].name!r}: give it as {required[4].name}=VALUE"
        )
    if count in (4, 5) and not misplaced and not any(p.kind is p.KEYWORD_ONLY for p in required):
        return _Arguments(IN_ORDER[:count], None, keywords)
    raise InputError(
        f"{name} requires ({', '.join(p.name for p in required)}): expected "
        "(logp, behavior_logp, adv, mask[, group_id]), in this order or by these names; old_logp and weight by name; "
        "anything else as KEY=VALUE"
    )


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError) as error:
        raise InputError(f"the arguments of {name} cannot be seen: wrap it in a def") from error


def plain_case() -> Case:
    """Two prompts of two completions, in order, without padding, on-policy but for one token."""
    return Case.of(
        [[-0.5, -1.25], [-1.0, -0.75], [-2.0, -0.25], [-1.5, -0.5]],
        [[0.125, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
        adv=[1.0, -1.0, 0.5, -0.5],
        group=[0, 0, 1, 1],
    )
