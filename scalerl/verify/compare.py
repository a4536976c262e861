"""Whether two normalised answers are the same: by form, part by part, exactly where possible, else by `ask`."""

import re
from collections.abc import Callable

from scalerl.verify.exact import decimal_comma, equal, quantity, split_unit
from scalerl.verify.forms import MOST_PARTS, Form, Kind, read_form
from scalerl.verify.refusals import assigned, refuse_equations, refuse_unevaluated, sides
from scalerl.verify.verdict import Fault, Refused, Unreadable

Ask = Callable[[str, str], bool]

_SETS = (Kind.INTERVAL, Kind.TUPLE, Kind.UNION, Kind.RELATION)
_WORDS = re.compile(r"(?:\\text\s*\{([^{}]*)\}|([A-Za-z][A-Za-z' -]*))")
_KNOWN_WORDS = {"yes", "no", "odd", "even", "true", "false", "none", "both", "all"}
_CHOICE = re.compile(r"(?:\\text\s*\{\s*)?\(?\s*([A-J])\s*\)?(?:\s*\})?")
_OPTION = re.compile(r"(?:\\text\s*\{\s*)?\(\s*([A-J])\s*\)")
_LEAD = re.compile(r"^\\text\s*\{[A-Za-z' ]*(?:\bis|\bequals|:|=)\s*:?\s*\}\s*:?(?=.)")
_NO_SYMBOL = re.compile(r"\\text\s*\{[^{}]*\}|\\[A-Za-z]+")
_CLOCK = re.compile(r"[0-9]+(?:\s*:\s*[0-9]+)+")


def same(gold: str, said: str, ask: Ask) -> bool:
    """Whether a prediction is the gold; both normalised. `ask` decides what needs algebra, one pair at a time.

    Raises Refused for a prediction that is no finished answer, Unreadable for more parts than are compared.
    """
    gold, said = _LEAD.sub("", gold), _LEAD.sub("", said)
    if _squeezed(gold) == _squeezed(said):
        return True
    if (verdict := _same_words(gold, said)) is not None:
        return verdict
    if _differ_in_case(gold, said):
        return False
    refuse_unevaluated(gold, said)
    one, other = read_form(gold), read_form(said)
    for form, whose in ((one, Fault.GOLD), (other, Fault.PREDICTION)):
        if len(form.parts) > MOST_PARTS:
            raise Unreadable(whose, f"over {MOST_PARTS} parts")
    if one.kind is Kind.SCALAR and (other.kind is Kind.SCALAR or decimal_comma(said)):
        return _same_scalar(one.text, said if other.kind is Kind.LIST else other.text, ask)
    return _same_form(one, other, ask)


def is_exact(text: str) -> bool:
    """Whether an answer needs no algebra: a finished number, words, an option or a time."""
    return bool(quantity(text) or _words(text) or _CHOICE.fullmatch(text) or _CLOCK.fullmatch(text))


def _squeezed(text: str) -> str:
    return re.sub(r"\s(?![A-Za-z])|(?<![A-Za-z])\s", "", text)


def _same_words(gold: str, said: str) -> bool | None:
    """For answers that are words, options or times; None where the gold is none of these."""
    if choice := _CHOICE.fullmatch(gold):
        options = set(_OPTION.findall(said))
        if options or _CHOICE.fullmatch(said):
            letters = options or {match[1] for match in _CHOICE.finditer(said)}
            return letters == {choice[1]}
    if _CLOCK.fullmatch(gold) or _CLOCK.fullmatch(said):
        return False
    ours, theirs = _words(gold), _words(said)
    if ours is not None or theirs is not None:
        return ours == theirs or None if ours is None else ours == (theirs or _bare_words(said))
    return None


def _words(text: str) -> str | None:
    r"""The words that an answer is, in one case: in `\text{}`, of four letters or more, or known ones."""
    match = _WORDS.fullmatch(text)
    if match is None:
        return None
    words = " ".join((match[1] or match[2] or "").casefold().split())
    wrapped = match[1] is not None and len(words) > 1 and not any(sign.isdigit() for sign in words)
    return words if wrapped or len(words) >= 4 or words in _KNOWN_WORDS else None


def _differ_in_case(gold: str, said: str) -> bool:
    """Whether a letter stands in both, but not in the same cases. math-verify takes X for x."""
    ours, theirs = (set(re.findall("[A-Za-z]", _NO_SYMBOL.sub("", text))) for text in (gold, said))
    shared = {letter.lower() for letter in ours} & {letter.lower() for letter in theirs}
    both = shared | {letter.upper() for letter in shared}
    return ours & both != theirs & both


def _bare_words(text: str) -> str | None:
    return " ".join(text.casefold().split()) if re.fullmatch(r"[A-Za-z ]+", text) else None


def _same_form(gold: Form, said: Form, ask: Ask) -> bool:
    kinds = {gold.kind, said.kind}
    if kinds <= {Kind.LIST, Kind.SET}:
        names = _assignments(gold), _assignments(said)
        if None not in names:
            return _same_assignments(names[0] or {}, names[1] or {}, ask)
        if kinds == {Kind.LIST} and len(gold.parts) != len(said.parts):
            return False
        return _same_unordered(gold, said, ask)
    if kinds == {Kind.LIST, Kind.TUPLE} and (values := _assignments(gold) or _assignments(said)):
        listed, ordered = tuple(values.values()), (said if said.kind is Kind.TUPLE else gold).parts
        pairs = (listed, ordered) if gold.kind is Kind.LIST else (ordered, listed)
        return len(listed) == len(ordered) and all(
            same(g, s, ask) for g, s in zip(*pairs, strict=True)
        )
    if kinds in ({Kind.SCALAR, Kind.SET}, {Kind.SCALAR, Kind.LIST}):
        pair = (gold.parts or (gold.text,)), (said.parts or (said.text,))
        return len(pair[0]) == len(pair[1]) == 1 and same(pair[0][0], pair[1][0], ask)
    if gold.kind is said.kind and gold.kind is not Kind.RELATION:
        if _same_ordered(gold, said, ask):
            return True
        return gold.kind is Kind.UNION and (
            _same_unordered(gold, said, ask) or ask(gold.text, said.text)
        )
    if gold.kind in _SETS and said.kind in _SETS and kinds & {Kind.RELATION, Kind.UNION}:
        return ask(gold.text, said.text)
    return False


def _same_ordered(gold: Form, said: Form, ask: Ask) -> bool:
    if gold.marks != said.marks or len(gold.parts) != len(said.parts) or gold.kind is Kind.UNION:
        return False
    return all(same(g, s, ask) for g, s in zip(gold.parts, said.parts, strict=True))


def _same_unordered(gold: Form, said: Form, ask: Ask) -> bool:
    """Every part of each is a part of the other."""
    found = [any(_fit(g, s, ask) for s in said.parts) for g in gold.parts]
    return all(found) and all(any(_fit(g, s, ask) for g in gold.parts) for s in said.parts)


def _fit(gold: str, said: str, ask: Ask) -> bool:
    """As `same`, where a part that is refused for this one may still be another's."""
    try:
        return same(gold, said, ask)
    except Refused:
        return False


def _assignments(form: Form) -> dict[str, str] | None:
    """`x = 1, y = 2` as names and values; None unless every part is one, each of a name of its own."""
    pairs = [assigned(part) for part in form.parts]
    named = dict(pair for pair in pairs if pair is not None)
    return named if len(named) == len(pairs) > 0 else None


def _same_assignments(gold: dict[str, str], said: dict[str, str], ask: Ask) -> bool:
    return gold.keys() == said.keys() and all(
        same(value, said[name], ask) for name, value in gold.items()
    )


def _same_scalar(gold: str, said: str, ask: Ask) -> bool:
    refuse_equations(gold, said)
    named, named_too = assigned(gold), assigned(said)
    if named and named_too:
        if named[0] == named_too[0]:
            return same(named[1], named_too[1], ask)
        return quantity(named[1]) is None and ask(gold, said)
    if len(sides(gold)) == 2 and len(sides(said)) == 2:
        return ask(gold, said)
    if len(sides(gold)) == 2 and not named:
        return False
    gold, said = (named[1] if named else gold), (named_too[1] if named_too else said)
    if named or named_too:
        return same(gold, said, ask)
    return _same_value(gold, said, ask)


def _same_value(gold: str, said: str, ask: Ask) -> bool:
    """Of two expressions. A gold that is a finished number takes a finished number only."""
    expected, given = quantity(gold), quantity(said)
    if expected is not None:
        given = given or decimal_comma(said)
        if given is None:
            raise Refused("no finished number")
        return equal(expected, given)
    measured, unit = split_unit(gold)
    measured_too, unit_too = split_unit(said)
    if unit and unit_too and unit != unit_too:
        return False
    return ask(measured, measured_too)
