r"""What is accepted and what is not: the table of docs/verifier.md, grammars of answers, and text of any kind."""

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdicts import PAGE, Row, markdown, rows

from scalerl.verify import Fault, Outcome, Verdict, Verifier
from scalerl.verify.boxes import last_answer
from scalerl.verify.verdict import Unreadable


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(2, deadline_s=10.0) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def table(verifier: Verifier) -> dict[Row, Verdict]:
    asked = rows()
    return dict(zip(asked, verifier.verify_all((r.gold, r.completion) for r in asked), strict=True))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.gold}~{row.completion}"[:70])
def test_the_table_of_verdicts(row: Row, table: dict[Row, Verdict]) -> None:
    verdict = table[row]
    assert verdict.correct == row.accepted, verdict
    assert verdict.outcome not in (Outcome.TIMEOUT, Outcome.CRASHED), verdict


def test_the_page_shows_the_table_that_is_tested() -> None:
    assert markdown() in PAGE.read_text(), "run `python tests/support/verdicts.py`"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\boxed{\fbox{ 3 }}}", "3"),
        (r"\boxed{a\boxed{b}}", r"a\boxed{b}"),
        (r"\boxed{\boxed{1}\boxed{2}}", r"\boxed{1}\boxed{2}"),
        (r"\boxed{ \{1, \frac{1}{2}\} }", r"\{1, \frac{1}{2}\}"),
        (r"\boxed 7.", "7"),
        (r"\boxed 71", None),
        (r"\boxedtext{7}", None),
        (r"\boxed{\}", None),
        (r"{\boxed{7}", "7"),
        (r"I think \boxed{3}.</think> So it is \boxed{4}", "4"),
        (r"I think \boxed{3}.</think> So it is 4.", None),
        ("", None),
    ],
)
def test_the_last_box_after_thinking(completion: str, answer: str | None) -> None:
    assert last_answer(completion) == answer


@pytest.mark.parametrize(
    "inside", ["", "  ", "1" * 1001, "{" * 41 + "}" * 41, "(" * 41 + ")" * 41], ids=len
)
def test_a_box_beyond_its_bounds_is_unreadable(inside: str) -> None:
    with pytest.raises(Unreadable):
        last_answer(rf"\boxed{{{inside}}}")


def test_whose_fault_an_unparsable_is(verifier: Verifier) -> None:
    assert verifier.verify(r"\frac{1}{", r"\boxed{\sqrt{2}}").fault is Fault.GOLD
    assert verifier.verify(r"\sqrt{2}", r"\boxed{\frac{1}{x^}\foo}").fault is Fault.PREDICTION
    assert verifier.verify("", r"\boxed{2}").fault is Fault.GOLD
    assert verifier.verify("2", "no box").fault is Fault.PREDICTION


def test_golds_that_cannot_be_read_are_told_at_load(verifier: Verifier) -> None:
    good = ["7", r"\boxed{x^2}", r"\text{Evelyn}", r"(1, \sqrt{2})", "x = 5", r"x \ge 3", "12:30"]
    bad = ["", r"\frac{1}{", r"\foo", "9" * 1001, r"(1, \foo)"]
    assert list(verifier.unreadable_golds(good + bad)) == bad


FRACTIONS = st.builds(
    Fraction, st.integers(-2000, 2000), st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 12, 40])
)


@st.composite
def written(draw: st.DrawFn, value: Fraction) -> str:
    """One of the ways to write a number."""
    above, below, sign = abs(value.numerator), value.denominator, "-" if value < 0 else ""
    forms = [rf"{sign}\frac{{{above}}}{{{below}}}", rf"\dfrac{{{sign}{above}}}{{{below}}}"]
    forms += [f"{sign}{above}/{below}", rf"{sign}\frac{{{2 * above}}}{{{2 * below}}}"]
    if above > below > 1:
        forms.append(rf"{sign}{above // below}\frac{{{above % below}}}{{{below}}}")
    if below == 1:
        forms += [f"{sign}{above:,}", f"{sign}{above}.0", f"{sign}{above:,}".replace(",", r"\,")]
        forms += [
            rf"\text{{{sign}{above}}}",
            f"{value}".replace("-", "−"),
            f"{sign}{above:,}".replace(",", "{,}"),
        ]
    if 1000 % below == 0:
        forms += [f"{sign}{above / below}", f"{sign}{above / below}0"]
    return draw(st.sampled_from(forms))


@st.composite
def dressed(draw: st.DrawFn, answer: str) -> str:
    """A completion that ends in an answer."""
    before = draw(st.sampled_from(["", r"Not \boxed{0}? No: ", "so $", r"\boxed{{ ", "We get "]))
    inside = draw(
        st.sampled_from(
            ["%s", " %s ", "%s.", "$%s$", r"\boxed{%s}", r"\left(%s\right)", r"\displaystyle %s"]
        )
    )
    box = draw(st.sampled_from([r"\boxed{%s}", r"\fbox{%s}", r"\boxed {%s}"]))
    if inside.startswith(r"\left") and not answer[-1].isdigit():
        inside = "%s"
    return (
        before
        + box % (inside % answer)
        + draw(st.sampled_from(["", ".", "$", " Done. 0", r" \boxed{"]))
    )


@given(st.data(), FRACTIONS, FRACTIONS)
def test_numbers_are_their_values(
    verifier: Verifier, data: st.DataObject, gold: Fraction, said: Fraction
) -> None:
    text, again = data.draw(written(gold)), data.draw(written(gold))
    other = data.draw(written(said))
    assert verifier.verify(text, data.draw(dressed(again))).correct
    assert verifier.verify(text, data.draw(dressed(other))).correct == (gold == said)


SMALL = FRACTIONS.filter(lambda value: abs(value) < 900)  # no grouped thousands between commas
PLURALS = {
    "set": r"\{%s\}", "list": "%s", "tuple": "(%s)", "[]": "[%s]", "(]": "(%s]", "[)": "[%s)",
}  # fmt: skip


@given(
    st.data(),
    st.sampled_from(sorted(PLURALS)),
    st.lists(SMALL, min_size=2, max_size=4, unique=True),
)
def test_sets_tuples_and_intervals(
    verifier: Verifier, data: st.DataObject, kind: str, values: list[Fraction]
) -> None:
    if kind in ("[]", "(]", "[)"):
        values = sorted(values)[:2]
    gold = PLURALS[kind] % ", ".join(data.draw(written(value)) for value in values)
    again = PLURALS[kind] % ", ".join(data.draw(written(value)) for value in values)
    assert verifier.verify(gold, rf"\boxed{{{again}}}").correct
    turned = PLURALS[kind] % " , ".join(data.draw(written(value)) for value in reversed(values))
    assert verifier.verify(gold, rf"\boxed{{{turned}}}").correct == (kind in ("set", "list"))
    changed = PLURALS[kind] % " , ".join(
        data.draw(written(value)) for value in [*values[:-1], values[-1] + 1]
    )
    assert not verifier.verify(gold, rf"\boxed{{{changed}}}").correct
    for other in PLURALS.keys() - {kind}:
        if {kind, other} != {"set", "list"}:
            brackets = PLURALS[other] % " , ".join(data.draw(written(value)) for value in values)
            assert not verifier.verify(gold, rf"\boxed{{{brackets}}}").correct


RADICALS = st.tuples(st.integers(1, 9), st.sampled_from([2, 3, 5, 6, 7]), st.integers(2, 9))


@given(RADICALS, RADICALS, st.randoms(use_true_random=False))
def test_algebra_reaches_math_verify(
    verifier: Verifier, one: tuple[int, int, int], other: tuple[int, int, int], rng: random.Random
) -> None:
    (a, r, b), (c, q, d) = one, other
    gold = rf"\frac{{{a}\sqrt{{{r}}}}}{{{b}}}"
    same = [rf"\frac{{\sqrt{{{a * a * r}}}}}{{{b}}}", rf"\sqrt{{{r}}}\cdot\frac{{{a}}}{{{b}}}"]
    assert verifier.verify(gold, rf"\boxed{{{rng.choice(same)}}}").correct
    equal = Fraction(a * a * r, b * b) == Fraction(c * c * q, d * d)
    assert verifier.verify(gold, rf"\boxed{{\frac{{{c}\sqrt{{{q}}}}}{{{d}}}}}").correct == equal


TOKENS = r"""
    \frac \sqrt { } ( ) [ ] 0 1 2 12 x y i e ^ _ + - / = , . ; < > \{ \} \text \pi \pm \cup \infty | ! % & \\
    \le \in \begin{pmatrix} \end{pmatrix} \boxed{ \fbox{ $ \left \right \cdot \sin \log : ° ½ ² √ 7 and or '
"""
LATEX = st.lists(st.sampled_from(TOKENS.split()), max_size=14).map("".join)


@given(LATEX, LATEX)
def test_a_soup_of_latex_gets_a_verdict(verifier: Verifier, gold: str, said: str) -> None:
    verdict = verifier.verify(gold, rf"\boxed{{{said}}}")
    assert verdict.outcome is not Outcome.CRASHED, verdict


@given(st.text(max_size=60), st.binary(max_size=200), st.text(max_size=40))
def test_random_bytes_never_raise(verifier: Verifier, gold: str, said: bytes, inside: str) -> None:
    text = said.decode(errors="surrogateescape")
    for completion in (
        text,
        rf"\boxed{{{text}}}",
        rf"\boxed{{{inside}}}",
        text + r"\boxed{" + inside,
    ):
        assert verifier.verify(gold, completion).outcome is not Outcome.CRASHED
        assert isinstance(verifier.verify("7", completion), Verdict)
