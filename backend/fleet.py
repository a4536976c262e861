"""The generators as one: who lives, who is least loaded, who is lost and who takes the place.

A generator that dies takes only its own requests with it. Its place is filled by a new one, which first receives the
present weights; until then the others do the work.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backend.remote import Gone, Remote
from scalerl.clock import Clock
from scalerl.compute import Phase
from scalerl.errors import GeneratorLost, WorldFailed
from scalerl.rollout import Completion


@dataclass
class Member:
    """A generator that has the weights of `version` and takes requests; `load` completions are on it."""

    slot: int
    remote: Remote
    version: int
    load: int = 0
    busy_since: float | None = None

    @property
    def name(self) -> str:
        return self.remote.name


class Fleet:
    """Generators in `slots` places."""

    def __init__(self, slots: int, restarts: int, clock: Callable[[], Clock]) -> None:
        self.slots, self.restarts, self._clock = slots, restarts, clock
        self.members: dict[int, Member] = {}
        self.vacant: asyncio.Queue[int] = asyncio.Queue()  # places to be filled
        self.joining: set[int] = set()
        self.notices: list[str] = []
        self._changed = asyncio.Event()
        self._phases: list[Phase] = []
        self._last_words = ""

    def join(self, slot: int, remote: Remote, version: int) -> None:
        """A generator that has the present weights takes requests from now on."""
        self.members[slot] = Member(slot, remote, version)
        self.joining.discard(slot)
        self._changed.set()

    def lose(self, member: Member, why: str) -> None:
        """Take a dead generator out, and ask for another in its place. Losing it twice is losing it once."""
        if self.members.get(member.slot) is not member:
            return
        del self.members[member.slot]
        self._idle(member)
        member.remote.kill()
        self.replace(member.slot, why)

    def replace(self, slot: int, why: str) -> None:
        """Ask for a generator in a place, if any may still be started."""
        self._last_words = why
        if self.restarts:
            self.restarts -= 1
            self.joining.add(slot)
            self.vacant.put_nowait(slot)
            self.notices.append(f"{why}; another one is started in its place")
        else:
            self.joining.discard(slot)
            self.notices.append(f"{why}; site.generator_restarts is used up, the others go on")
        self._changed.set()

    async def generate(
        self, prompt: Sequence[int], limits: Sequence[int | None]
    ) -> list[Completion]:
        """On the least loaded generator.

        Raises:
            GeneratorLost: it died on the way. WorldFailed: none is left.
        """
        member = await self._least_loaded()
        self._busy(member, len(limits))
        try:
            return await member.remote.call("generate", prompt, limits)
        except (Gone, GeneratorLost) as error:
            self.lose(member, str(error))
            raise GeneratorLost(str(error)) from error
        finally:
            self._busy(member, -len(limits))

    async def _least_loaded(self) -> Member:
        while not self.members:
            if not self.joining:
                raise WorldFailed(f"no generator is left: {self._last_words}")
            self._changed.clear()
            await self._changed.wait()
        return min(self.members.values(), key=lambda member: (member.load, member.slot))

    # --- books ---

    def _busy(self, member: Member, completions: int) -> None:
        if self.members.get(member.slot) is not member:
            return
        member.load += completions
        if not member.load:
            self._idle(member)
        elif member.busy_since is None:
            member.busy_since = self._clock().now()

    def _idle(self, member: Member) -> None:
        if member.busy_since is not None:
            now = self._clock().now()
            self._phases.append(Phase("generator", member.slot, "generate", member.busy_since, now))
            member.busy_since = None

    def phases(self) -> list[Phase]:
        """Busy times since the last call; those of generators still busy are cut at now."""
        for member in self.members.values():
            if member.busy_since is not None:
                self._idle(member)
                member.busy_since = self._clock().now()
        phases, self._phases = self._phases, []
        return phases
