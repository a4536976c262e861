"""Our losses under every law that applies to them, with each aggregation: a test each, so that a fault has a name."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import settings

from scalerl.invariants import CATALOGUE, Invariant, adapt
from scalerl.invariants.check import Search
from scalerl.invariants.traits import KINDS, Traits
from scalerl.losses import LOSSES
from scalerl.reduction import Aggregation

KEYWORDS: dict[str, dict[str, float]] = {
    "cispo": {"eps_max": 5.0},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28},
    "grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "gspo": {"clip_low": 3e-3, "clip_high": 4e-3},
    "reinforce": {},
}
"""The recipes' own."""


def meant(kind: str, aggregation: Aggregation) -> Traits:
    """What our loss of this name is meant to be."""
    shape, level = KINDS[kind]
    bounds = {name.replace("eps_max", "cap"): value for name, value in KEYWORDS[kind].items()}
    return Traits(
        shape=shape,
        level=level,
        weights=aggregation,
        score=kind in ("cispo", "reinforce"),
        shards=True,
        weighed=True,
        half=True,
        any_mask=True,
        told=frozenset({"kind", *bounds}),
        **bounds,  # pyright: ignore[reportArgumentType]
    )


def laws() -> Iterator[Any]:
    """(kind, aggregation, law) of all that apply."""
    for kind in KEYWORDS:
        for aggregation in get_args(Aggregation):
            for law in CATALOGUE:
                if law.applies(meant(kind, aggregation)) is None:
                    mark = pytest.mark.invariant(law.id, law.statement, law.formula, law.fault)
                    name = f"{law.id}-{kind}-{aggregation}"
                    yield pytest.param(kind, aggregation, law, marks=mark, id=name)


@pytest.mark.parametrize(("kind", "aggregation", "law"), [*laws()])
def test_our_losses_keep_the_law(kind: str, aggregation: Aggregation, law: Invariant) -> None:
    loss = adapt(LOSSES[kind], aggregation=aggregation, keywords=KEYWORDS[kind], name=kind)
    examples = max(1, settings().max_examples // 3)  # of three aggregations
    search = Search(loss, meant(kind, aggregation), law, examples, seed=0)
    assert search.run(shrink=False) is None, search.best


def test_every_law_of_losses_applies_to_one_of_ours_or_is_about_what_we_do_not_have() -> None:
    held = {p.values[2].id for p in laws()}
    # old log-probs, bands, pure importance sampling, normalisers of a loss's own
    assert {law.id for law in CATALOGUE} - held == {
        *("C01", "C02", "C03", "C04", "C05", "A17", "E01", "E06", "E16")
    }
