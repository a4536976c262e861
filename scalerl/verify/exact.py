r"""Numbers that need no algebra: integers, decimals, fractions, powers, percentages, bases, with their units.

A number is read only if it is finished: `\frac{2}{4}` and `2^{10}` are, `1+2+3+4`, `5!` and `\sqrt{9}` are not.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from scalerl.verify.brackets import matches_end, split_top

MOST_BITS = 16_384
ROUNDED = (
    6  # significant digits from which a decimal may stand for a value that has no finite decimal
)

_DECIMAL = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(\.[0-9]+)?")
_COMMA = re.compile(r"([0-9]+),([0-9]{1,2}|[0-9]{4,})")
_SCIENTIFIC = re.compile(
    r"([0-9.]+)\s*(?:[eE]([+-]?[0-9]{1,4})|\\(?:times|cdot)\s*10\s*\^\s*\{?\s*(-?[0-9]{1,4})\s*\}?)"
)
_MIXED = re.compile(r"([0-9]+)\s*\\frac\{([0-9]+)\}\{([0-9]+)\}|([0-9]+) ([0-9]+)\s*/\s*([0-9]+)")
_BASE = re.compile(r"([0-9A-Z]+)\s*_\s*\{?\s*([0-9]{1,2})\s*\}?")
_CURRENCY = re.compile(r"\\?\$|[€£¥₹]|\\(?:pounds|euro)(?![A-Za-z])")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?")
_TEXT_UNIT = re.compile(
    r"\s*\\text\s*\{\s*([A-Za-z][A-Za-z ./²³^0-9-]*?)\s*\.?\s*\}\s*(\^\s*\{?\s*-?[0-9]\s*\}?)?$"
)
_PLAIN_UNIT = re.compile(r"(?<=[0-9}])\s*([A-Za-z]{2,}(?: [A-Za-z]+){0,2}(?:\^\{?[0-9]\}?)?)$")


@dataclass(frozen=True)
class Quantity:
    """A value, its unit ("" without one), and the significant digits and step of a decimal (0 for no decimal)."""

    value: Fraction
    unit: str = ""
    percent: bool = False
    digits: int = 0
    step: Fraction = Fraction(0)


def split_unit(text: str) -> tuple[str, str]:
    r"""(what is measured, its unit in one spelling): `5\text{ cm}`, `\$10`, `60^{\circ}`, `10 dollars`."""
    text = text.strip()
    if (money := _CURRENCY.match(text)) and len(text) > money.end():
        return text[money.end() :].strip(), _canonical(money[0])
    if (degrees := _DEGREES.search(text)) and degrees.end() == len(text) and degrees.start():
        return text[: degrees.start()].strip(), "degree"
    for pattern in (_TEXT_UNIT, _PLAIN_UNIT):
        if (unit := pattern.search(text)) and unit.start():
            power = (unit[2] if pattern is _TEXT_UNIT else None) or ""
            return text[: unit.start()].strip(), _canonical(unit[1] + power)
    return text, ""


def _canonical(unit: str) -> str:
    unit = re.sub(r"[\s{}.\\]", "", unit).replace("²", "^2").replace("³", "^3")
    unit = {"$": "dollar", "pounds": "£", "euro": "€"}.get(unit, unit)
    return unit[:-1] if len(unit) > 3 and unit.endswith("s") else unit


def quantity(text: str) -> Quantity | None:
    """The finished number that a normalised answer is, or None."""
    measured, unit = split_unit(text)
    percent = bool(re.search(r"\\?%$", measured)) or unit in ("percent", "percentage")
    if percent:
        measured, unit = re.sub(r"\s*\\?%$", "", measured), ""
    value = _grouped(measured)
    if value is None:
        return None
    literal = measured.lstrip("+- ").replace(",", "")
    whole, point, places = literal.partition(".")
    digits = len((whole + places).lstrip("0")) if point and _DECIMAL.fullmatch(literal) else 0
    return Quantity(
        value, unit, percent, digits, Fraction(1, 10 ** len(places)) if digits else Fraction(0)
    )


def decimal_comma(text: str) -> Quantity | None:
    """The number that `2,5` is where a number is expected; None for `1,234`, which groups thousands."""
    sign = "-" if text.startswith("-") else ""
    if parts := _COMMA.fullmatch(text.removeprefix("-")):
        return quantity(f"{sign}{parts[1]}.{parts[2]}")
    return None


def _grouped(text: str) -> Fraction | None:
    """As `number`, where the whole answer may group its thousands by commas."""
    sign = "-" if text.startswith("-") else ""
    if _THOUSANDS.fullmatch(text.removeprefix("-")):
        return number(sign + text.removeprefix("-").replace(",", ""))
    return number(text)


def number(text: str) -> Fraction | None:
    """The value of a finished number, None for anything else and for powers over 16,384 bits."""
    text = text.strip()
    if text[:1] in ("+", "-") and text[1:2] not in ("+", "-"):
        value = number(text[1:])
        return -value if value is not None and text[0] == "-" else value
    if text[:1] in ("(", "{") and matches_end(text, 0):
        return number(text[1:-1])
    return (
        _literal(text) if not text or "0" <= text[0] <= "9" or text[0] == "." else _compound(text)
    )


def _literal(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if parts := _SCIENTIFIC.fullmatch(text):
        scale = _power(Fraction(10), int(parts[2] or parts[3]))
        return Fraction(parts[1]) * scale if scale and _DECIMAL.fullmatch(parts[1]) else None
    if parts := _MIXED.fullmatch(text):
        whole, above, below = (int(part) for part in parts.groups() if part is not None)
        return whole + Fraction(above, below) if below else None
    if (parts := _BASE.fullmatch(text)) and 2 <= int(parts[2]) <= 36:
        try:
            return Fraction(int(parts[1], int(parts[2])))
        except ValueError:
            return None
    return _compound(text)


def _compound(text: str) -> Fraction | None:
    r"""`\frac{a}{b}`, `a/b` and `a^b`, of numbers."""
    if text.startswith(r"\frac{"):
        middle = matches_end(text, 5, anywhere=True)
        if middle and text[middle : middle + 1] == "{" and matches_end(text, middle):
            return _ratio(number(text[6 : middle - 1]), number(text[middle + 1 : -1]))
    if len(parts := split_top(text, "/")) == 2:
        return _ratio(number(parts[0]), number(parts[1]))
    if len(parts := split_top(text, "^")) == 2 and parts[0]:
        base, exponent = number(parts[0]), number(parts[1])
        if base is not None and exponent is not None and exponent.denominator == 1:
            return _power(base, exponent.numerator)
    return None


def _ratio(above: Fraction | None, below: Fraction | None) -> Fraction | None:
    return above / below if above is not None and below else None


def _power(base: Fraction, exponent: int) -> Fraction | None:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > MOST_BITS or (base == 0 and exponent <= 0):
        return None
    return base**exponent


def equal(gold: Quantity, said: Quantity) -> bool:
    """Whether two quantities are one, under the conventions of docs/verifier.md for units, percent and rounding."""
    if gold.unit and said.unit and gold.unit != said.unit:
        return False
    if gold.percent == said.percent:
        return _same_value(gold, said)
    percent, bare = (gold, said) if gold.percent else (said, gold)
    hundredth = Quantity(percent.value / 100, digits=percent.digits, step=percent.step / 100)
    same = _same_value(hundredth, bare)
    # "What percentage ...?" is answered with or without the sign; a gold below 1 is a fraction of one.
    return same or ((gold.percent or abs(gold.value) >= 1) and _same_value(percent, bare))


def _same_value(one: Quantity, other: Quantity) -> bool:
    return one.value == other.value or _rounds(one, other) or _rounds(other, one)


def _rounds(decimal: Quantity, exact: Quantity) -> bool:
    if decimal.digits < ROUNDED or exact.digits or _is_finite_decimal(exact.value):
        return False
    return abs(decimal.value - exact.value) <= decimal.step / 2


def _is_finite_decimal(value: Fraction) -> bool:
    below = value.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return below == 1
