r"""What is refused before anything is evaluated: copied questions, chains of equations, remainders, arrows."""

import re

from scalerl.verify.brackets import split_top
from scalerl.verify.verdict import Refused

# (what it is called, how it is written): refused where the gold has none
_UNEVALUATED = {
    "an unevaluated sum": re.compile(r"\\sum(?![A-Za-z])|\\Sigma(?![A-Za-z])"),
    "an unevaluated product": re.compile(r"\\prod(?![A-Za-z])"),
    "an unevaluated integral": re.compile(r"\\i{1,3}nt(?![A-Za-z])|\\oint(?![A-Za-z])"),
    "an unevaluated limit": re.compile(r"\\(?:lim|limsup|liminf|sup|inf)(?![A-Za-z])"),
    "an unevaluated derivative": re.compile(
        r"\\frac\s*\{\s*(?:d|\\partial|\\text\{d\})[^{}]*\}\s*\{\s*(?:d|\\partial)|\\nabla|'"
    ),
    "an unevaluated factorial": re.compile(r"!"),
    "an unevaluated binomial": re.compile(r"\\d?t?binom(?![A-Za-z])|\\choose(?![A-Za-z])"),
    "an unevaluated determinant": re.compile(r"\\det(?![A-Za-z])|\\begin\s*\{vmatrix\}"),
    "an unevaluated function of integers": re.compile(
        r"\\(?:gcd|lcm|max|min|lfloor|lceil)(?![A-Za-z])"
    ),
    "a remainder": re.compile(r"\\(?:bmod|pmod|mod|equiv)(?![A-Za-z])"),
    "an arrow": re.compile(
        r"\\(?:to|mapsto|gets|leftarrow|Rightarrow|Leftarrow|implies|iff|leftrightarrow|Leftrightarrow"
        r"|xrightarrow|hookrightarrow|Longrightarrow|longmapsto)(?![A-Za-z])|->|=>"
    ),
    "an approximation": re.compile(r"\\(?:approx|sim|simeq|cong)(?![A-Za-z])"),
}
_SYMBOL = re.compile(
    r"\\?[A-Za-z]+(?:_\{?[0-9A-Za-z]+\}?)?|[A-Za-z](?:_\{?\w\}?)?\s*\(\s*[A-Za-z](?:,\s*[A-Za-z])*\s*\)",
    re.A,
)


def refuse_unevaluated(gold: str, said: str) -> None:
    """Raise Refused if a prediction holds an operation to be carried out that the gold does not hold."""
    for what, written in _UNEVALUATED.items():
        if written.search(said) and not written.search(gold):
            raise Refused(what)


def sides(text: str) -> list[str]:
    """The sides of an equation; one for an expression."""
    return split_top(text, "=")


def assigned(text: str) -> tuple[str, str] | None:
    """(name, value) of `x = 5`, `5 = x` or `f(x) = x^2`; None for an expression or any other equation.

    A name is one symbol: `ab = 5` says nothing of a single unknown, and `3x = 12` is a step on the way.
    """
    parts = sides(text)
    if len(parts) != 2:
        return None
    for name, value in (parts, parts[::-1]):
        if value and is_symbol(name):
            return re.sub(r"[\s{}]", "", name), value
    return None


def is_symbol(text: str) -> bool:
    """Whether a text is one unknown: a letter, a Greek letter, with an index or an argument perhaps."""
    letters = re.match(r"[A-Za-z]*", text)
    plain_word = letters is not None and len(letters[0]) > 1
    return (
        bool(_SYMBOL.fullmatch(text))
        and not plain_word
        and text not in (r"\pi", r"\infty", "e", "i")
    )


def refuse_equations(gold: str, said: str) -> None:
    """Raise Refused for `8 = 7`, `1 = ... = 7`, `3x = 12` where the gold is no such equation."""
    parts = sides(said)
    if len(parts) > 2:
        raise Refused("a chain of equations")
    if len(parts) == 2 and assigned(said) is None and len(sides(gold)) < 2:
        raise Refused("an equation whose left side is no single symbol")
