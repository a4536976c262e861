"""All that the loop remembers, in one dataclass; `scalerl/checkpoint.py` saves it.

The coroutines keep nothing else across an await, so a state saved between two updates is a whole run: what is
in flight is named by its ticket and taken up again, or issued again, by the world.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from scalerl.compute import Ledger
from scalerl.curriculum import Curriculum
from scalerl.rollout import Group


@dataclass
class Ticket:
    """One draw of a prompt. `ordinal` numbers draws from 0; `start` is the version that its engine had acknowledged."""

    ordinal: int
    prompt: int
    start: int


@dataclass
class Finished:
    """A generated and scored group that waits to be trained on."""

    ticket: Ticket
    group: Group


@dataclass
class PendingEval:
    """An evaluation under way. `C` is the compute, in GPU-hours, at which its weights were pinned."""

    handle: int
    version: int
    C: float
    sets: list[str]


@dataclass
class LoopState:
    """Counters, buffers and books. Every admitted ticket is in flight, finished, trained (consumed) or rejected."""

    curriculum: Curriculum
    ledger: Ledger
    version: int = 0  # optimiser steps applied
    published: int = 0  # version that every live engine has acknowledged
    updates: int = 0  # batches consumed, skipped ones included
    next_ordinal: int = 0
    taken: int = 0  # groups consumed whose slots have not reopened
    rejected: int = 0  # groups replaced by dynamic sampling
    tokens: int = 0  # generated, of rejected groups too
    in_flight: dict[int, Ticket] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    pending: list[PendingEval] = field(default_factory=list)
    next_seq: int = 0
    clock: float = 0.0
    waiting_since: float | None = None  # the trainer, for the batch under way

    @property
    def outstanding(self) -> int:
        """Groups that hold a slot."""
        return len(self.in_flight) + len(self.finished) + self.taken

    @property
    def progress(self) -> tuple[int, ...]:
        """Differs whenever a group lands, a batch is trained, weights are out or an evaluation is over."""
        return self.tokens, self.updates, self.published, self.rejected, len(self.pending)

    def admit(self) -> Ticket:
        """Draw the next prompt and give it a ticket."""
        ticket = Ticket(self.next_ordinal, self.curriculum.draw(), self.published)
        self.next_ordinal += 1
        self.in_flight[ticket.ordinal] = ticket
        return ticket

    def land(self, ticket: Ticket, group: Group, *, reject: bool) -> None:
        """A scored group has come in: its history counts, whatever becomes of it."""
        del self.in_flight[ticket.ordinal]
        self.curriculum.observe(ticket.prompt, group.passes, len(group.completions))
        self.tokens += group.tokens
        if reject:
            self.rejected += 1
        else:
            self.finished[ticket.ordinal] = Finished(ticket, group)

    def take(self, ordinals: list[int]) -> list[Group]:
        """Consume a batch; its slots stay closed until `taken` is reset."""
        groups = [self.finished.pop(ordinal).group for ordinal in ordinals]
        self.taken += len(groups)
        self.updates += 1
        return groups

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {
            **plain,
            "curriculum": self.curriculum.to_json(),
            "ledger": self.ledger.to_json(),
            "in_flight": [asdict(ticket) for ticket in self.in_flight.values()],
            "finished": [
                {"ticket": asdict(f.ticket), "group": f.group.to_json()}
                for f in self.finished.values()
            ],
            "pending": [asdict(pending) for pending in self.pending],
        }

    def load_json(self, data: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, data.get(name) if name == "waiting_since" else data[name])
        self.curriculum.load_json(data["curriculum"])
        self.ledger.load_json(data["ledger"])
        self.in_flight = {row["ordinal"]: Ticket(**row) for row in data["in_flight"]}
        finished = [
            Finished(Ticket(**row["ticket"]), Group.from_json(row["group"]))
            for row in data["finished"]
        ]
        self.finished = {f.ticket.ordinal: f for f in finished}
        self.pending = [PendingEval(**row) for row in data["pending"]]


_PLAIN = (
    "version",
    "published",
    "updates",
    "next_ordinal",
    "taken",
    "rejected",
    "tokens",
    "next_seq",
    "clock",
    "waiting_since",
)
