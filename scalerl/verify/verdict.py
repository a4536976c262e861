"""What a verification says: an outcome, whose fault it is, and the answer that was read."""

from dataclasses import dataclass
from enum import StrEnum

from scalerl.errors import ScaleRLError


class VerifierError(ScaleRLError):
    """The verifier itself cannot work: math-verify is missing, broken, or its processes do not start."""


class Outcome(StrEnum):
    """What came of a verification; only `CORRECT` earns a reward."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


class Fault(StrEnum):
    """Whose an unparsable is. A gold at fault belongs out of the data set."""

    GOLD = "gold"
    PREDICTION = "prediction"


@dataclass(frozen=True)
class Verdict:
    """`answer` is the last box, as written, None without one; `reason` one short phrase, empty when correct."""

    outcome: Outcome
    answer: str | None = None
    fault: Fault | None = None
    reason: str = ""

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT


class Unreadable(Exception):
    """An answer beyond what is compared; `whose` says which of the two, the text says why."""

    def __init__(self, whose: Fault, why: str) -> None:
        super().__init__(why)
        self.whose = whose


class Refused(Exception):
    """A prediction that a person would not accept as an answer, whatever it evaluates to."""


class NeedsAlgebra(Exception):
    """Strings and exact numbers do not decide; raised in the parent, where nothing hostile is evaluated."""
