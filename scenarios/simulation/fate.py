"""How the faults of one life come about: which call is struck, and what that does at once."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from scalerl.clock import VirtualClock
from scenarios.simulation.checks import Checker
from scenarios.simulation.faults import Fault
from scenarios.simulation.setting import Setting


class Killed(BaseException):
    """SIGKILL: from here on nothing is written."""


@dataclass
class Fate:
    """The faults of one life, and the calls that it has made."""

    setting: Setting
    life: int
    faults: list[Fault]
    checker: Checker
    clock: VirtualClock = field(default_factory=VirtualClock)
    calls: Counter[str] = field(default_factory=Counter)
    still_until: float = 0.0  # the end of a time in which everything stands still

    def enter(self, site: str) -> Fault | None:
        """A call of a site: the books are looked at, and the fault that strikes now, if any."""
        self.checker.look()
        self.calls[site] += 1
        for fault in self.faults:
            if fault.site == site and fault.at == self.calls[site]:
                return fault
        return None

    def strike(self, fault: Fault | None, *kinds: str) -> bool:
        """Whether this is one of these faults; if so it has happened."""
        if fault is None or fault.kind not in kinds:
            return False
        self.checker.strike(fault)
        return True

    def die(self, fault: Fault | None, kind: str, error: Exception) -> None:
        """What ends the run from this moment on."""
        if self.strike(fault, kind):
            self.checker.fail_with(error)
            raise error

    def kill(self, fault: Fault | None, *kinds: str) -> None:
        if self.strike(fault, *kinds):
            self.checker.dead = True
            raise Killed

    async def hang(self, fault: Fault | None, kind: str) -> None:
        if self.strike(fault, kind):
            self.checker.excuse("Stalled: nothing has finished")
            await asyncio.Event().wait()

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        while self.clock.now() < self.still_until:
            await self.clock.sleep_until(self.still_until)
