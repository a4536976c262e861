"""The ledger: GPU-hours of a run by role and phase.

C, the x of every scaling curve, counts all GPUs of generators and trainers from the run's first second, busy
or idle. Evaluation has a role of its own and is outside C.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scalerl.errors import LedgerError

Role = Literal["generator", "trainer", "evaluator"]
ROLES: tuple[Role, ...] = ("generator", "trainer", "evaluator")
TOLERANCE_S = 1e-6


@dataclass(frozen=True)
class Phase:
    """GPUs `index` .. `index + gpus - 1` of a role did one thing, in seconds of the world's clock."""

    role: Role
    index: int
    what: str
    start: float
    end: float
    gpus: int = 1


@dataclass
class Ledger:
    """Busy GPU-seconds by role and phase; what is not busy is idle."""

    gpus: Mapping[Role, int]
    busy_s: dict[str, dict[str, float]] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)  # "role:index" -> end of its last phase

    def gpu_hours(self, now: float) -> float:
        """C after `now` seconds of the world's clock."""
        return (self.gpus["generator"] + self.gpus["trainer"]) * now / 3600.0

    def add(self, phase: Phase) -> None:
        """Book a phase.

        Raises:
            LedgerError: its times are not 0 <= start <= end < infinity, it names no GPU or one that is not there, or
                it overlaps an earlier one. Nothing is booked then.
        """
        if not 0.0 <= phase.start <= phase.end < math.inf:
            raise LedgerError(
                f"impossible phase {phase}: it must have 0 <= start <= end < infinity"
            )
        if not 0 <= phase.index < phase.index + phase.gpus <= self.gpus[phase.role]:
            raise LedgerError(
                f"impossible phase {phase}: the run has {self.gpus[phase.role]} {phase.role} GPUs"
            )
        keys = [f"{phase.role}:{index}" for index in range(phase.index, phase.index + phase.gpus)]
        for key in keys:  # all of them before any is booked: what is refused leaves no trace
            if phase.start < self.until.get(key, 0.0) - TOLERANCE_S:
                raise LedgerError(
                    f"{key} is booked twice: {phase.what!r} starts at {phase.start} s, busy until {self.until[key]} s"
                )
        self.until.update(dict.fromkeys(keys, phase.end))
        by_phase = self.busy_s.setdefault(phase.role, {})
        by_phase[phase.what] = (
            by_phase.get(phase.what, 0.0) + (phase.end - phase.start) * phase.gpus
        )

    def report(
        self, now: float, evaluated_until: float | None = None
    ) -> dict[str, dict[str, float]]:
        """GPU-hours by role and phase, "idle" included: each role's rows add up to its GPUs times the time.

        Evaluators may go on after the run itself has ended; their time ends at `evaluated_until`.

        Raises:
            LedgerError: a role was busy for longer than it existed.
        """
        rows: dict[str, dict[str, float]] = {}
        for role in ROLES:
            busy = {
                what: seconds / 3600.0
                for what, seconds in sorted(self.busy_s.get(role, {}).items())
            }
            end = evaluated_until if role == "evaluator" and evaluated_until is not None else now
            idle = self.gpus[role] * end / 3600.0 - sum(busy.values())
            if idle < -TOLERANCE_S / 3600.0:
                raise LedgerError(
                    f"{role} GPUs were busy for {-idle:.6f} GPU-hours more than the run has lasted"
                )
            rows[role] = {**busy, "idle": max(0.0, idle)}
        return rows

    def to_json(self) -> dict[str, Any]:
        return {"busy_s": self.busy_s, "until": self.until}

    def load_json(self, data: dict[str, Any]) -> None:
        self.busy_s, self.until = data["busy_s"], data["until"]
