"""The number that comes next when a person presses an arrow: round ones, never across a bound."""

import math
from collections.abc import Mapping
from typing import Literal

Direction = Literal[1, -1]
Limits = Mapping[str, float]  # by pydantic's names: gt, ge, lt, le
SINGLE = 20  # up to here whole numbers go one by one
LEAST = 1e-3  # below it a float that may be 0 is 0
ROUND = (1, 2, 5)  # times a power of ten


def next_int(value: int, direction: Direction, limits: Limits) -> int:
    """One more or less; beyond 20 the next multiple of about a tenth."""
    step = 1 if abs(value) + direction <= SINGLE else _tenth(abs(value))
    following = (value // step + 1 if direction > 0 else -(-value // step) - 1) * step
    if "gt" in limits or "ge" in limits:
        following = max(following, int(limits.get("ge", limits.get("gt", 0) + 1)))
    if "lt" in limits or "le" in limits:
        following = min(following, int(limits.get("le", limits.get("lt", 0) - 1)))
    return following


def next_float(value: float, direction: Direction, limits: Limits) -> float:
    """Along 1, 2, 5 x 10^n; in the upper half of a range that ends before 1, so counted from 1 (0.9, 0.95, 0.98)."""
    if limits.get("lt") == 1 and 0.5 <= value < 1 and (value, direction) != (0.5, -1):
        return round(1 - _along(1 - value, -direction), 12)
    low, above = limits.get("ge", -math.inf), limits.get("gt", -math.inf)
    high, below = limits.get("le", math.inf), limits.get("lt", math.inf)
    following = _along(value, direction)
    while (direction < 0 and following >= below) or (direction > 0 and following <= above):
        following = _along(following, direction)  # from outside the range back into it
    if direction < 0 and low == 0 and following < LEAST:
        return 0.0
    following = min(max(following, low), high)
    return following if above < following < below else value


def _along(value: float, direction: int) -> float:
    """The neighbour of a number above 0 among 1, 2, 5 x 10^n; what is not above 0 goes up to the least."""
    if value <= 0:
        return LEAST if direction > 0 else value
    exponent = math.floor(math.log10(value))
    near = [float(f"{m}e{e}") for e in range(exponent - 1, exponent + 2) for m in ROUND]
    slack = value * 1e-9  # 1 - 0.95 is not 0.05
    if direction > 0:
        return min((x for x in near if x > value + slack and x < math.inf), default=value)
    return max((x for x in near if x < value - slack), default=value)


def _tenth(size: int) -> int:
    """About a tenth of a whole number above 19, as 1, 2 or 5 x 10^n."""
    power = 10 ** (len(str(size)) - 2)
    leading = size / (10 * power)  # 1 <= leading < 10
    return power * min((1, 2, 5, 10), key=lambda m: abs(math.log(m / leading)))
