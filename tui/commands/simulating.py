"""`scalerl simulate`: the loop under seeded faults, and the least that breaks an invariant of it."""

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenarios.simulation.many import Tally
    from scenarios.simulation.simulate import Outcome


def simulate(seed: int | None, seeds: int, first: int, faults: list[str], as_json: bool) -> bool:
    """Play one seed, or `seeds` of them from `first` on; whether every invariant held.

    faults: kinds, of which each seed draws its own; or, with one seed, the faults themselves as a report prints them.

    Raises:
        InputError: a fault that there is not, or faults spelled out for more than one seed.
    """
    from scalerl.errors import InputError
    from scenarios.simulation.faults import draw_plan, kinds_of, parse_plan
    from scenarios.simulation.simulate import simulate as play

    words = [word.strip() for each in faults for word in each.split(",") if word.strip()]
    exact = parse_plan(seed or 0, words)
    if seed is not None:
        outcome = play(exact or draw_plan(seed, kinds_of(words)))
        return _report_one(outcome, as_json=as_json)
    if exact is not None:
        raise InputError(f"--faults {words[0]!r} is for one run: say which, with --seed N")
    return _many(first, seeds, kinds_of(words), as_json=as_json)


def _many(first: int, seeds: int, kinds: list[str], *, as_json: bool) -> bool:
    from scenarios.simulation.many import play_many

    begun = time.monotonic()

    def tell(tally: "Tally") -> None:
        if sys.stderr.isatty():
            line = f"{tally.seeds} of {seeds} seeds, {len(tally.violations)} violations"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)

    tally = play_many(first, seeds, kinds, tell)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    found = [_document(outcome) for outcome in tally.violations]
    if as_json:
        counts = {name: getattr(tally, name) for name in ("seeds", "lives", "events", "looks")}
        happened = {"struck": dict(tally.struck), "endings": dict(tally.endings)}
        print(json.dumps({**counts, **happened, "violations": found}, indent=2))
        return not found
    print(
        f"{tally.seeds} runs in {time.monotonic() - begun:.0f} s: {tally.lives} lives, {tally.events} events, "
        f"{sum(tally.struck.values())} faults; invariants were checked {tally.looks} times"
    )
    for kind in kinds:
        print(f"  {tally.struck[kind]:>7}  {kind}")
    for each in found:
        print("\n" + _said(each))
    print(f"{len(found)} violations" if found else "every invariant held")
    return not found


def _report_one(outcome: "Outcome", *, as_json: bool) -> bool:
    document = _document(outcome)
    if as_json:
        print(json.dumps(document, indent=2))
    else:
        print(outcome.plan)
        for life, ending in enumerate(outcome.lives):
            print(f"  life {life}: {ending}")
        print(_said(document) if outcome.violation else "every invariant held")
    return outcome.violation is None


def _document(outcome: "Outcome") -> dict[str, Any]:
    """A run; one that broke an invariant with the least plan that still does."""
    from scenarios.simulation.shrink import shrink

    plain = {"plan": str(outcome.plan), "lives": outcome.lives, "struck": dict(outcome.struck)}
    if outcome.violation is None:
        return {**plain, "violation": None}
    least = shrink(outcome)
    return {
        **plain,
        "violation": outcome.violation,
        "what": outcome.what,
        "least": str(least.plan),
        "least_what": least.what,
    }


def _said(document: dict[str, Any]) -> str:
    return (
        f"violated: {document['violation']}: {document['what']}\n  {document['plan']}\n"
        f"  the least that does it: {document['least']}\n    {document['least_what']}"
    )
