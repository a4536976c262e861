"""What math-verify is asked, in a child process only, and what is held against its answers.

It accepts too much in three ways (tiny differences, equations without solutions, unevaluated operators) and too
little in two (identities that hold where both sides are real, inequalities that need solving).
"""

import logging
import re
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended.logic import And
from math_verify import LatexExtractionConfig, verify
from math_verify import parse as parse_latex

from scalerl.verify.exact import quantity
from scalerl.verify.verdict import Fault, Refused, Unreadable

DIGITS = 60
AGREE = 40  # decimal digits to which constants must agree, relative to their size
_CONFIG = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
_DECIMAL = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)(?![0-9.])")
_UNEVALUATED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
_POINTS = [
    Fraction(n, d)
    for n, d in ((7, 5), (-13, 11), (29, 17), (3, 19), (-5, 23), (53, 29), (-71, 31), (2, 37))
]

logging.getLogger("math_verify").setLevel(logging.ERROR)


def read(text: str, whose: Fault) -> Any:
    """The sympy object of a normalised expression, with decimals as fractions; raises Unreadable."""
    exact = _DECIMAL.sub(lambda d: rf"\frac{{{int(d[1] + d[2])}}}{{{10 ** len(d[2])}}}", text)
    found = parse_latex(rf"\boxed{{{exact}}}", _CONFIG, parsing_timeout=None)  # type: ignore[arg-type]
    if not found or isinstance(found[0], str):
        raise Unreadable(whose, "no LaTeX that math-verify reads")
    return _plain_symbols(found[0])


def _plain_symbols(parsed: Any) -> Any:
    """With i as the imaginary unit and every other symbol real, whatever else the text holds."""
    if isinstance(parsed, sympy.Eq):  # built anew, `x^2 = -1` would become false
        return sympy.Eq(*map(_plain_symbols, parsed.args), evaluate=False)
    names = getattr(parsed, "free_symbols", set())
    plain = {
        name: sympy.I if str(name) == "i" else sympy.Symbol(str(name), real=True) for name in names
    }
    return parsed if all(name == other for name, other in plain.items()) else parsed.xreplace(plain)


def same_expression(gold: str, said: str) -> bool:
    """Whether two normalised expressions, equations or sets of numbers are the same; may take for ever."""
    ours, theirs = read(gold, Fault.GOLD), read(said, Fault.PREDICTION)
    if _has(theirs, _UNEVALUATED) and not _has(ours, _UNEVALUATED):
        raise Refused("an unevaluated operator")
    if isinstance(ours, sympy.Eq) or isinstance(theirs, sympy.Eq):
        return (
            isinstance(ours, sympy.Eq)
            and isinstance(theirs, sympy.Eq)
            and _same_equation(ours, theirs)
        )
    if isinstance(ours, sympy.Symbol) or isinstance(theirs, sympy.Symbol):
        return bool(ours == theirs)
    if _is_constant(ours) and _is_constant(theirs):
        return _rounds(said, ours) or _rounds(gold, theirs) or _same_constant(ours, theirs)
    if verify(
        ours, theirs, float_rounding=12, numeric_precision=DIGITS, strict=True,
        allow_set_relation_comp=True, timeout_seconds=None,
    ):  # fmt: skip
        return True
    if _is_relation(ours) or _is_relation(theirs):
        return _same_solutions(ours, theirs)
    return (
        isinstance(ours, sympy.Expr)
        and isinstance(theirs, sympy.Expr)
        and _agree_at_points(ours, theirs)
    )


def _has(parsed: Any, kinds: tuple[type, ...]) -> bool:
    return bool(getattr(parsed, "has", lambda *_: False)(*kinds))


def _is_constant(parsed: Any) -> bool:
    return isinstance(parsed, sympy.Expr) and not parsed.free_symbols


def _is_relation(parsed: Any) -> bool:
    return isinstance(parsed, (sympy.core.relational.Relational, And, sympy.And))


def _rounds(text: str, exact: Any) -> bool:
    """Whether a text is a decimal of six significant digits or more that an irrational constant rounds to."""
    decimal = quantity(text)
    if decimal is None or decimal.digits < 6 or exact.is_rational:
        return False
    value = sympy.Rational(decimal.value.numerator, decimal.value.denominator)
    half = sympy.Rational(decimal.step.numerator, 2 * decimal.step.denominator)
    return bool(abs(exact.evalf(DIGITS) - value) <= half)


def _same_constant(ours: Any, theirs: Any) -> bool:
    """By their first 40 digits, then exactly if both are rational: 1/2004! is not 1/2006!, math-verify says it is."""
    one, other = ours.evalf(DIGITS), theirs.evalf(DIGITS)
    if not (_is_finite(one) and _is_finite(other)):
        return bool(ours.doit() == theirs.doit())
    if max(abs(one), abs(other)) < sympy.Float(10) ** -AGREE:  # digits of zero say nothing
        return bool(sympy.simplify(ours.doit() - theirs.doit()) == 0)
    if not _close(one, other):
        return False
    ours, theirs = ours.doit(), theirs.doit()
    return not (ours.is_Rational and theirs.is_Rational) or bool(ours == theirs)


def _is_finite(value: Any) -> bool:
    return bool(value.is_number and value.is_finite)


def _close(one: Any, other: Any) -> bool:
    size = max(abs(one), abs(other))
    return bool(abs(one - other) <= size * sympy.Float(10) ** -AGREE)


def _same_equation(ours: Any, theirs: Any) -> bool:
    """Whether one is a multiple of the other. Never by their solutions: x^2 = -1 and x^2 = -2 share all of them."""
    ratio = sympy.simplify((ours.lhs - ours.rhs) / (theirs.lhs - theirs.rhs))
    return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)


def _same_solutions(ours: Any, theirs: Any) -> bool:
    """Whether inequalities in one and the same unknown, or intervals, hold the same real numbers."""
    names = ours.free_symbols | theirs.free_symbols
    if len(names) != 1:
        return False
    sets = [parsed.as_set() if _is_relation(parsed) else parsed for parsed in (ours, theirs)]
    return all(isinstance(numbers, sympy.Set) for numbers in sets) and sets[0] == sets[1]


def _agree_at_points(ours: Any, theirs: Any) -> bool:
    r"""Whether two expressions agree at eight points, wherever either is real: \sqrt{1/n} and 1/\sqrt{n} do."""
    names = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    if ours.free_symbols != theirs.free_symbols or _has(ours - theirs, _UNEVALUATED):
        return False
    real = 0
    for place in range(len(_POINTS)):
        point = {
            name: sympy.Rational(_POINTS[(place + 3 * k) % len(_POINTS)])
            for k, name in enumerate(names)
        }
        values = [side.subs(point).evalf(DIGITS) for side in (ours, theirs)]
        if not all(_is_finite(value) for value in values):
            return False
        if any(value.is_real for value in values):
            real += 1
            if not _close(*values):
                return False
    return real >= 3
