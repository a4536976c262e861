"""What can go wrong, by name, and the plan of a seed: which faults strike in which life of a run, and when.

A run has several lives: each ends in a failure, a kill or a stop, and the next takes it up. A fault strikes at one
call of its site, counted from 1 in each life; "damage" strikes between that life and the next.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from scalerl.errors import InputError

LIVES = (1, 1, 2, 2, 3)  # with faults; after them come lives without
GENTLE, ENDING, DAMAGE = "gentle", "ending", "damage"


@dataclass(frozen=True)
class Kind:
    """What one fault does. `site` is the call that it strikes, `weight` whether the life goes on after it."""

    site: str
    weight: str
    what: str


KINDS: dict[str, Kind] = {
    "crash.once": Kind("generate", GENTLE, "the engine of a group dies"),
    "crash.always": Kind("generate", ENDING, "every engine that a group is given to dies"),
    "hang.generate": Kind("generate", ENDING, "a group never comes back"),
    "hang.score": Kind("score", ENDING, "the verifier never answers"),
    "hang.update": Kind("update", ENDING, "the trainer never ends an update"),
    "hang.publish": Kind("publish", ENDING, "a push never ends"),
    "hang.evaluate": Kind("evaluate", ENDING, "an evaluation never ends"),
    "slow.generate": Kind("generate", GENTLE, "a group takes ten times as long"),
    "slow.score": Kind("score", GENTLE, "the verifier takes a minute"),
    "slow.update": Kind("update", GENTLE, "an update takes ten times as long"),
    "slow.publish": Kind("publish", GENTLE, "a push takes ten times as long"),
    "slow.evaluate": Kind("evaluate", GENTLE, "an evaluation outlives many versions"),
    "stall": Kind("generate", GENTLE, "everything stands still for a while, and ends at one instant"),
    "late": Kind("generate", GENTLE, "an engine that was given up answers the second request, with old tokens"),
    "duplicate": Kind("generate", GENTLE, "a group of another request comes back"),
    "malformed.missing": Kind("generate", GENTLE, "a group comes back with a completion too few"),
    "malformed.empty": Kind("generate", GENTLE, "a completion comes back without a token"),
    "malformed.nan": Kind("generate", GENTLE, "a log-prob comes back as NaN"),
    "malformed.lengths": Kind("generate", GENTLE, "a completion has fewer log-probs than tokens"),
    "malformed.prompt": Kind("generate", GENTLE, "a group comes back for another prompt"),
    "malformed.always": Kind("generate", ENDING, "every answer to a request is malformed"),
    "malformed.future": Kind("generate", ENDING, "a token claims a version that is not there yet"),
    "push.before": Kind("publish", ENDING, "a push fails before any engine has the weights"),
    "push.half": Kind("publish", ENDING, "a push fails when some engines have the new weights"),
    "push.after": Kind("publish", ENDING, "all engines have the weights, the acknowledgement is lost"),
    "trainer.update": Kind("update", ENDING, "the trainer dies in an update"),
    "trainer.push": Kind("publish", ENDING, "the trainer dies between update and push"),
    "trainer.nan": Kind("update", ENDING, "the gradient of a batch is not a number"),
    "verifier": Kind("score", ENDING, "the verifier dies"),
    "disk.log": Kind("write", ENDING, "the disk is full: no further event can be written"),
    "disk.half": Kind("write", ENDING, "the disk takes half of one event"),
    "disk.save": Kind("save", ENDING, "the disk is full within a checkpoint"),
    "kill.event": Kind("event", ENDING, "SIGKILL after an event"),
    "kill.write": Kind("write", ENDING, "SIGKILL within the write of an event"),
    "kill.generate": Kind("generate", ENDING, "SIGKILL as a group is asked for"),
    "kill.score": Kind("score", ENDING, "SIGKILL as a group is scored"),
    "kill.update": Kind("update", ENDING, "SIGKILL in an update"),
    "kill.publish": Kind("publish", ENDING, "SIGKILL in a push, when some engines have the weights"),
    "kill.evaluate": Kind("evaluate", ENDING, "SIGKILL in an evaluation"),
    "kill.save": Kind("save", ENDING, "SIGKILL within a checkpoint"),
    "stop": Kind("event", ENDING, "somebody asks the run to stop"),
    "checkpoint.torn": Kind("end", DAMAGE, "a file of the newest checkpoint ends early"),
    "checkpoint.edited": Kind("end", DAMAGE, "a digit in a file of the newest checkpoint is another"),
    "checkpoint.emptied": Kind("end", DAMAGE, "a file of the newest checkpoint is missing"),
    "checkpoint.missing": Kind("end", DAMAGE, "the newest checkpoint is gone"),
    "checkpoint.foreign": Kind("end", DAMAGE, "the newest checkpoint is of another recipe"),
    "checkpoint.all": Kind("end", DAMAGE, "a file of every checkpoint ends early"),
}  # fmt: skip
# how many calls of a site a life of some eight updates makes, about
CALLS = {"generate": 24, "score": 20, "update": 8, "publish": 7, "evaluate": 4, "write": 70}
CALLS |= {"event": 70, "save": 4, "end": 1}


@dataclass(frozen=True)
class Fault:
    """One fault: `kind` strikes at call `at` of its site, in life `life`."""

    kind: str
    life: int
    at: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.life}.{self.at}"

    @property
    def site(self) -> str:
        return KINDS[self.kind].site


@dataclass(frozen=True)
class FaultPlan:
    """All that happens to the run of a seed, so that it can be played again; `updates` None = as the seed draws it."""

    seed: int
    faults: tuple[Fault, ...]
    updates: int | None = None

    def __str__(self) -> str:
        """The command that plays it."""
        faults = ",".join(map(str, self.faults)) or "none"
        short = "" if self.updates is None else f"updates={self.updates},"
        return f"scalerl simulate --seed {self.seed} --faults {short}{faults}"

    def of_life(self, life: int) -> list[Fault]:
        return [fault for fault in self.faults if fault.life == life]

    @property
    def lives(self) -> int:
        """Lives with faults."""
        return max((fault.life + 1 for fault in self.faults), default=0)


def draw_plan(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> FaultPlan:
    """The plan of a seed, of these kinds: in each life some that a run survives, most often one or two that end it."""
    random = Random(f"{seed}:plan")
    by_weight = {w: [k for k in kinds if KINDS[k].weight == w] for w in (GENTLE, ENDING, DAMAGE)}
    faults: list[Fault] = []
    for life in range(random.choice(LIVES)):
        gentle, ending = random.choice((0, 1, 2, 3)), random.choice((0, 1, 1, 1, 1, 1, 2))
        damage = random.choice((0, 0, 1))
        for weight, count in ((GENTLE, gentle), (ENDING, ending), (DAMAGE, damage)):
            for _ in range(count if by_weight[weight] else 0):
                kind = random.choice(by_weight[weight])
                early = random.random() ** 1.5
                faults.append(Fault(kind, life, 1 + int(early * CALLS[KINDS[kind].site])))
    return FaultPlan(seed, tuple(dict.fromkeys(faults)))


def parse_plan(seed: int, words: Iterable[str]) -> FaultPlan | None:
    """The plan that `--faults` spells out, as `FaultPlan` prints it; None where it only names kinds.

    Raises:
        InputError: a word that is neither.
    """
    faults, updates, exact = [], None, False
    for word in words:
        if word == "none":
            exact = True
        elif match := re.fullmatch(r"updates=(\d+)", word):
            updates, exact = int(match[1]), True
        elif match := re.fullmatch(r"([a-z.]+)@(\d+)\.(\d+)", word):
            faults.append(Fault(kinds_of([match[1]])[0], int(match[2]), int(match[3])))
            exact = True
        elif exact:
            raise InputError(
                f"--faults {word!r}: give kinds, or faults as KIND@LIFE.CALL, not both"
            )
    return FaultPlan(seed, tuple(faults), updates) if exact else None


def kinds_of(words: Sequence[str]) -> list[str]:
    """The kinds that some words name: `push` is all of push.before, push.half, push.after; no word is all.

    Raises:
        InputError: a word that names none.
    """
    found = [k for k in KINDS if not words or any(w in (k, k.partition(".")[0]) for w in words)]
    for word in words:
        if word not in KINDS and not any(kind.startswith(f"{word}.") for kind in KINDS):
            known = ", ".join(dict.fromkeys(kind.partition(".")[0] for kind in KINDS))
            raise InputError(f"--faults {word!r} is no fault: there are {known}")
    return found
