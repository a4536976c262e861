"""Many seeds, on every core, and what they found."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from scenarios.simulation.faults import draw_plan
from scenarios.simulation.simulate import Outcome, simulate

CHUNK = 50  # seeds that one process plays at a time


@dataclass
class Tally:
    """What so many seeds came to."""

    seeds: int = 0
    lives: int = 0
    events: int = 0
    looks: int = 0  # times that the invariants were held to the run
    struck: Counter[str] = field(default_factory=Counter)  # faults that happened, by kind
    endings: Counter[str] = field(default_factory=Counter)  # of whole runs
    violations: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.lives += len(outcome.lives)
        self.events += outcome.events
        self.looks += outcome.looks
        self.struck += outcome.struck
        if outcome.violation is None:
            self.endings[outcome.lives[-1]] += 1
        else:
            outcome.told.clear()
            self.violations.append(outcome)

    def merge(self, other: "Tally") -> None:
        for name in ("seeds", "lives", "events", "looks", "struck", "endings", "violations"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def play_seeds(seeds: Sequence[int], kinds: Sequence[str]) -> Tally:
    """Play some seeds one after another, each with the plan that it draws of these kinds."""
    tally = Tally()
    for seed in seeds:
        tally.add(simulate(draw_plan(seed, kinds)))
    return tally


def play_many(
    first: int, seeds: int, kinds: Sequence[str], tell: Callable[[Tally], None] = lambda tally: None
) -> Tally:
    """Play seeds `first` .. `first + seeds - 1` in as many processes as there are cores; `tell` hears how it stands."""
    chunks = [
        range(place, min(place + CHUNK, first + seeds))
        for place in range(first, first + seeds, CHUNK)
    ]
    total = Tally()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool:
        try:
            for tally in pool.map(play_seeds, chunks, [kinds] * len(chunks)):
                total.merge(tally)
                tell(total)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return total
