"""Answers with the verdicts they must get, hostile completions, and the table of docs/verifier.md made of them."""

import tomllib
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).with_suffix(".toml")
PAGE = Path(__file__).parents[2] / "docs/verifier.md"
START, END = "<!-- verdicts -->", "<!-- end of verdicts -->"


class Row(NamedTuple):
    kind: str
    gold: str
    completion: str
    accepted: bool
    why: str


def rows(*tables: str) -> list[Row]:
    """Of the named tables of verdicts.toml, all without names; answers in a sentence and a box."""
    data = tomllib.loads(DATA.read_text())
    found = []
    for table in tables or tuple(data):
        for kind, gold, said, accepted, why in data[table]:
            completion = said if table == "completions" else rf"So the answer is \boxed{{{said}}}."
            found.append(Row(kind, gold, completion, accepted, why))
    return found


def markdown() -> str:
    """The whole table, as it stands in docs/verifier.md."""
    lines = [
        "| kind | gold | answer, or completion with its box | verdict | |",
        "|---|---|---|---|---|",
    ]
    for table, entries in tomllib.loads(DATA.read_text()).items():
        for kind, gold, said, accepted, why in entries:
            verdict = "accepted" if accepted else "**rejected**" if table == "hacks" else "rejected"
            lines.append(f"| {kind} | {_cell(gold)} | {_cell(said)} | {verdict} | {why} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    shown = text.replace("|", "\\|").replace("\n", "⏎").replace("\u200b", "<U+200B>")
    return f"`{shown}`" if shown.strip() else "(empty)"


def _tower(height: int) -> str:
    return "9^{" * (height - 1) + "9" + "}" * (height - 1)


def hostile_answers() -> dict[str, str]:
    """What has hung, crashed or slowed verifiers down, as contents of a box."""
    return {
        "tower": "10^{10^{10}}",
        "tower of three nines": _tower(3),
        "tower of four nines": _tower(4),
        "tower with stars": "9**9**9",
        "tower with carets": "10^10^10",
        "tower of digits": "9^{9^{9^{9^{9^{9}}}}}+1",
        "big factorial": "100000!",
        "factorials of factorials": "((10!)!)!",
        "factorial of 10^9": "(10^{9})!",
        "factorial of 10^7": "(10^{7})!",
        "binomial": r"\binom{10^9}{5\cdot 10^8}",
        "long sum": r"\sum_{k=1}^{1000000000} \frac{1}{k}",
        "sum of squares": r"\sum_{k=1}^{1000000} \frac{1}{k^2}",
        "product": r"\prod_{k=1}^{100000} k",
        "integral": r"\int_0^1 x^{x^x}\sin(e^x) dx",
        "nested roots": r"\sqrt{x+\sqrt{x+\sqrt{x+\sqrt{x+\sqrt{x+1}}}}}",
        "expansion": "(a+b+c+d+e+f+g+h)^{60}-x",
        "expansion of four": "(w+x+y+z)^{80}+1",
        "braces": "{" * 1000 + "7" + "}" * 1000,
        "300 parentheses": "(" * 300 + "7" + ")" * 300,
        "3000 parentheses": "(" * 3000 + "7" + ")" * 3000,
        "39 parentheses": "(" * 39 + "x+1" + ")" * 39,
        "200 fractions": r"\frac{1}{" * 200 + "7" + "}" * 200,
        "39 fractions": r"\frac{1}{1+" * 39 + "x" + "}" * 39,
        "500 roots": r"\sqrt{" * 500 + "7" + "}" * 500,
        "39 roots": r"\sqrt{" * 39 + "7" + "}" * 39,
        "500 boxes": r"\boxed{" * 500 + "8" + "}" * 500,
        "5000 digits": "9" * 5000,
        "100000 digits": "9" * 100_000,
        "900 digits": "9" * 900 + r"\sqrt{2}",
        "import": "__import__('os').system('touch pwned')",
        "import in parentheses": r"(lambda: __import__('os').system('touch pwned'))()",
        "power of two": "2^{99999999}",
        "one times a power": r"1\cdot 2^{99999999}",
        "float power": "1.0000001^{999999999999}",
        "NUL": "8\0",
        "lone surrogate": "8\ud800",
        "remainder": r"10 \bmod 3",
        "power by remainder": r"3^{10^9} \bmod 7",
        "scientific": "1e999999999",
        "percent of a tower": r"9^{9^{9}}\%",
        "nested sines": r"\sin(\sin(\sin(\sin(\sin(\sin(\sin(x)))))))+\cos(x)^{50}\cdot\tan(x)^{50}",
        "matrix of powers": r"\begin{pmatrix}9^{9^{9}}&x\\x&9^{9^{9}}\end{pmatrix}",
        "big matrix": r"\begin{pmatrix}" + r"\\".join(["&".join("x" * 14)] * 14) + r"\end{pmatrix}",
        "determinant": r"\det\begin{pmatrix}"
        + r"\\".join(["&".join("abcdefgh")] * 8)
        + r"\end{pmatrix}",
        "power": "3^{999999999}",
        "power plus one": "7^{10^9}+1",
        "power of powers": "10^{10^{9}}",
        "fraction of powers": r"\frac{3^{999999999}}{2^{999999999}}",
        "root of a power": r"\sqrt{3^{999999999}+1}",
        "rational power": r"(\frac{3}{2})^{999999999}",
        "float tower": "1.5^{1.5^{1.5^{99}}}",
        "set of powers": r"\{3^{999999999}, 1\}",
        "interval of powers": "[3^{999999999}, 4^{999999999}]",
        "tuple of powers": "(3^{999999999}, 1)",
        "equation of powers": "x=3^{999999999}+1",
        "gcd": r"\gcd(3^{999999999}, 2^{999999999})",
        "floor of a tower": r"\lfloor 10^{10^{10}} \rfloor",
        "hard equation": "x^{7}-x^{3}+e^{x}=\\sin(x)",
        "hard inequality": r"x^{9}-5x^{7}+\sin(x)<\cos(x^{2})",
        "hard set": r"\sin(x^{3})+x^{5}>\cos(x)",
        "40 parts": ",".join(f"x_{{{n}}}" for n in range(40)),
        "30 unlike parts": ",".join(rf"\sqrt{{x+{n}}}" for n in range(30)),
        "open command": "\\",
        "open text": r"\text{",
    }


def hostile_completions() -> dict[str, str]:
    """The same as whole completions, and texts that have slowed extraction down."""
    long = {
        "1 MB of a letter": "a" * 1_000_000,
        "1 MB of dollars": "$" * 1_000_000,
        "1 MB of open boxes": r"\boxed{" * 150_000,
        "1 MB of nested boxes": r"\boxed{" * 120_000 + "8" + "}" * 120_000,
        "1 MB of digits": "1 " * 500_000,
        "100 kB of answers": "answer " * 15_000,
        "100 kB of brackets": r"\[ x " * 20_000,
        "100 kB of dollar pairs": "$x$ " * 25_000 + r"\boxed{8}",
        "20 kB of dollar boxes": r"$\boxed{" * 2_500,
        "1 MB of closing braces": r"\boxed{8" + "}" * 1_000_000,
        "1 MB of backslashes": r"\boxed{8}" + "\\" * 1_000_000,
        "100 kB of spaces in a box": r"\boxed{" + " " * 100_000 + "8}",
        "60 kB of thought": "so we add 1 to $x$ and get \\{x+1\\}. " * 1_700 + r"\boxed{8}",
    }
    return {name: rf"\boxed{{{answer}}}" for name, answer in hostile_answers().items()} | long


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(f"{before}{START}\n{markdown()}\n{END}{rest.partition(END)[2]}")
