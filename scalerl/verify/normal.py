r"""One spelling for the ways of writing the same answer: unicode to LaTeX, spaces, digit groups, old commands."""

import re
import unicodedata

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "‒": "-", "﹣": "-", "⁄": "/", "∕": "/", "÷": "/",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": r"\cdot ", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "⩽": r"\le ", "⩾": r"\ge ", "±": r"\pm ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "→": r"\to ", "⇒": r"\Rightarrow ", "∫": r"\int ",
    "∑": r"\sum ", "∏": r"\prod ", "°": r"^{\circ}", "，": ",", "、": ",", "；": ";", "。": ".", "\u3000": " ",
}  # fmt: skip
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\u00ad]")
_SPACE = re.compile(r"\\(?:[!,;:> ]|quad(?![A-Za-z])|qquad(?![A-Za-z]))|~|\s")
_SIZE = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|boldsymbol)(?![A-Za-z])\s*\.?"
)
_FONT = re.compile(
    r"\\(?:textbf|textrm|textit|textsf|textnormal|mathrm|mathbf|mathit|mathsf|mbox|operatorname)"
    r"(?![A-Za-z])\s*(?=\{)"
)
_RENAMED = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "leq": "le", "leqslant": "le", "geq": "ge",
    "geqslant": "ge", "neq": "ne", "varnothing": "emptyset", "lbrace": "{", "rbrace": "}", "infin": "infty",
    "lt": "<", "gt": ">", "rightarrow": "to", "longrightarrow": "to", "degree": "circ", "div": "/",
    "vert": "|", "lvert": "|", "rvert": "|", "mid": "|",
}  # fmt: skip
_SYMBOLS = {"<", ">", "/", "|"}
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SUPER = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ]+")
_SUB = re.compile("[₀₁₂₃₄₅₆₇₈₉₊₋₍₎]+")
_WRAPS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def normalise(text: str) -> str:
    """An answer in the one spelling that is compared; total, and of about the same length."""
    text = _unwrapped(_from_unicode(text).strip())
    text = _SIZE.sub("", text)
    text = _FONT.sub(r"\\text", text)
    text = text.replace("{,}", ",,")  # for now: a comma that ends no item
    text = re.sub(r"(?<=[0-9])(?:\\[,;: ]|~)(?=[0-9]{3}(?![0-9]))", "", text)
    text = _SPACE.sub(" ", text)
    text = _COMMAND.sub(_renamed, text)
    text = text.replace("{bmatrix}", "{pmatrix}").replace("{matrix}", "{pmatrix}")
    text = re.sub(r"(?<![0-9])([0-9]{1,3})((?: [0-9]{3})+)(?![0-9])", _joined, text)
    text = re.sub(r"(?<=[0-9]),,(?=[0-9]{3}(?![0-9]))", "", text).replace(",,", ".")
    text = re.sub(r"\\text\s*\{\s*([A-Za-z]|-?[0-9.]+)\s*\}", r"\1", text)
    text = _plain_words(_arguments(text))
    text = re.sub(r" +", " ", text).strip()
    return re.sub(r"(?<=[0-9A-Za-z})\]])\s*[.,;]$", "", text).strip()


def _from_unicode(text: str) -> str:
    text = _INVISIBLE.sub("", text)
    text = _SUPER.sub(
        lambda run: f"^{{{unicodedata.normalize('NFKC', run[0])}}}".replace("−", "-"), text
    )
    text = _SUB.sub(
        lambda run: f"_{{{unicodedata.normalize('NFKC', run[0])}}}".replace("−", "-"), text
    )
    text = re.sub(r"√\s*(\d+|[A-Za-zπ])", r"\\sqrt{\1}", text, flags=re.A).replace("√", "sqrt")
    return "".join(_latex_of(sign) for sign in text) if not text.isascii() else text


def _latex_of(sign: str) -> str:
    if sign in _SIGNS:
        return _SIGNS[sign]
    meaning = unicodedata.decomposition(sign)
    if meaning.startswith("<fraction>"):
        above, _, below = unicodedata.normalize("NFKC", sign).partition("⁄")
        return rf"\frac{{{above}}}{{{below}}}"
    return unicodedata.normalize("NFKC", sign) if meaning.startswith("<wide>") else sign


def _unwrapped(text: str) -> str:
    """Without dollars or other delimiters of mathematics around the whole."""
    for left, right in _WRAPS:
        inside = text[len(left) : -len(right)]
        wrapped = len(text) > len(left + right) and text.startswith(left) and text.endswith(right)
        if wrapped and left not in inside and not inside.endswith("\\"):
            return inside.strip()
    return text


def _renamed(command: re.Match[str]) -> str:
    name = _RENAMED.get(command[1], command[1])
    return f"{name} " if name in _SYMBOLS else f"\\{name}"


def _joined(groups: re.Match[str]) -> str:
    return groups[0].replace(" ", "")


def _arguments(text: str) -> str:
    r"""`\frac12` and `\sqrt2` with their braces."""
    text = re.sub(r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*([0-9A-Za-z])\s*(?=\{)", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}", text)
    text = re.sub(r"\\frac\s+(?=\{)", r"\\frac", text)
    return re.sub(r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}", text)


def _plain_words(text: str) -> str:
    """`sqrt(3)`, `pi`, `*`, `<=` as somebody without LaTeX writes them; "no solution" as the empty set."""
    text = re.sub(r"(?<![A-Za-z\\])(?:sqrt|Sqrt)\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<![A-Za-z\\{])(pi|infty)(?![A-Za-z])", r"\\\1 ", text)
    text = text.replace("**", "^").replace("*", r"\cdot ")
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ")
    text = re.sub(r"\\\{\s*\\\}", r"\\emptyset", text)
    none = r"(?:\\text\s*\{)?\s*no (?:real )?solutions?\s*\}?"
    return re.sub(rf"^{none}\.?$", r"\\emptyset", text, flags=re.I)
