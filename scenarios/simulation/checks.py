"""The invariants of a run, from outside: what the world was asked is held against the state of the loop."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn, TypeVar

from scalerl.clock import VirtualClock
from scalerl.compute import Phase
from scalerl.rollout import Group
from scalerl.state import LoopState
from scalerl.world import Handle
from scenarios.simulation.faults import Fault
from scenarios.simulation.history import History, Pin, Violated, new_history
from scenarios.simulation.setting import GROUP_SIZE, TOKENS, Setting, logp, token_ids

if TYPE_CHECKING:
    from scenarios.simulation.world import SimulatedWorld

E = TypeVar("E", bound=Exception)
LONGEST_S = 100_000.0  # of a life
MOST_CALLS = 5_000  # of a life


@dataclass
class Saved:
    """What was true when a checkpoint was written."""

    history: History
    state: str  # as JSON


@dataclass
class Checker:
    """Lives as long as a run and all its resumes. Every hook raises `Violated` at the first invariant that fails."""

    setting: Setting
    history: History = field(init=False)
    saves: list[Saved] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)  # faults that happened, by kind
    looks: int = 0
    # of this life
    world: "SimulatedWorld" = field(init=False)
    state: LoopState = field(init=False)
    clock: VirtualClock = field(default_factory=VirtualClock)
    dead: bool = False  # killed, or found out: nothing counts any more
    faults: list[Fault] = field(default_factory=list)  # that happened
    failure: Exception | None = None  # the first that ends the run
    failed_at: float = math.inf
    excuses: list[str] = field(default_factory=list)  # other ends that faults account for
    progress_at: float = 0.0
    lost: Counter[tuple[str, int]] = field(default_factory=Counter)  # (error, ticket) not said yet
    bad: set[int] = field(default_factory=set)  # tickets whose last answer must be refused
    pushes: list[int] = field(default_factory=list)
    calls: int = 0
    running: bool = False

    longest_s = LONGEST_S

    def __post_init__(self) -> None:
        self.history = new_history(self.setting)

    def begin(self, world: "SimulatedWorld", state: LoopState) -> None:
        """A life begins."""
        self.world, self.state, self.dead, self.running = world, state, False, False
        self.failure, self.failed_at, self.progress_at, self.calls = None, math.inf, state.clock, 0
        for of_life in (self.faults, self.excuses, self.lost, self.bad, self.pushes):
            of_life.clear()

    def now(self) -> float:
        """Of the world's clock; outside of it, between two lives, it stands where the checkpoint was written."""
        return self.clock.now() if self.running else self.state.clock

    def violate(self, invariant: str, what: str) -> NoReturn:
        self.dead = True
        raise Violated(invariant, what)

    def hold(self, invariant: str, holds: bool, what: str) -> None:
        if not holds:
            self.violate(invariant, what)

    # --- faults ---

    def strike(self, fault: Fault) -> None:
        self.struck[fault.kind] += 1
        self.faults.append(fault)

    def fail_with(self, error: Exception) -> None:
        """From this instant the run has to end, with this cause."""
        if self.failure is None:
            self.failure, self.failed_at = error, self.now()

    def excuse(self, cause: str) -> None:
        """The run may end with this cause, sooner or later."""
        self.excuses.append(cause)

    def lose(self, request_id: int, error: E) -> E:
        """The world is about to say that a request is lost."""
        self.lost["GeneratorLost", request_id] += 1
        return error

    def progress(self) -> None:
        self.progress_at = self.now()

    # --- the books, at any moment ---

    def look(self) -> None:
        """What holds whenever anything happens."""
        if self.dead:
            return
        self.looks, self.calls = self.looks + 1, self.calls + 1
        self.hold("progress", self.calls < MOST_CALLS, f"no end after {MOST_CALLS} calls")
        self._look_at_tickets()
        state, world, h = self.state, self.world, self.history
        landed = len(h.landed)
        engines = min(engine.version for engine in world.engines)
        self.hold(
            "one outcome",
            state.tokens == landed * GROUP_SIZE * TOKENS and state.rejected == len(h.rejected),
            f"{landed} groups have landed, {len(h.rejected)} of them rejected; "
            f"the loop counts {state.tokens} tokens, {state.rejected} rejected",
        )
        self.hold(
            "curriculum",
            sum(state.curriculum.completions) == landed * GROUP_SIZE,
            f"the curriculum counts {sum(state.curriculum.completions)} completions of {landed} groups",
        )
        self.hold(
            "slots",
            state.outstanding <= self.setting.slots,
            f"{state.outstanding} groups hold a slot of {self.setting.slots}",
        )
        self.hold(
            "versions",
            state.version == world.version and state.published <= min(engines, state.version),
            f"the loop is at {state.version}, {state.published} published; "
            f"the trainer is at {world.version}, engines at {engines}",
        )
        pending = {(p.handle, p.version) for p in state.pending}
        self.hold(
            "evaluations",
            len(pending) == len(state.pending)
            and pending <= {(pin.handle, pin.version) for pin in h.pins.values()},
            f"evaluations are pending that nobody pinned: {sorted(pending)}",
        )
        self._look_at_ledger()

    def _look_at_tickets(self) -> None:
        state, h = self.state, self.history
        places = [*state.in_flight, *state.finished, *h.trained, *h.rejected]
        lost = sorted(set(range(state.next_ordinal)) - set(places))
        self.hold("one outcome", not lost, f"tickets {lost} are nowhere")
        self.hold(
            "one outcome",
            len(places) == len(set(places)) == state.next_ordinal,
            f"tickets are in two places, or were never given: {sorted(places)}",
        )
        tickets = [*state.in_flight.values(), *(f.ticket for f in state.finished.values())]
        for ticket in sorted(tickets, key=lambda ticket: ticket.ordinal):
            if ticket.ordinal == len(h.prompts):
                wrong = h.draw(ticket.prompt)
                self.hold("curriculum", wrong is None, str(wrong))
            same = h.prompts[ticket.ordinal] == ticket.prompt
            self.hold("curriculum", same, f"ticket {ticket.ordinal} has changed its prompt")
            self.hold(
                "versions",
                ticket.start <= state.published,
                f"ticket {ticket.ordinal} began at version {ticket.start}, {state.published} is out",
            )

    def _look_at_ledger(self) -> None:
        ledger, now = self.state.ledger, self.now()
        for role, gpus in ledger.gpus.items():
            busy = sum(ledger.busy_s.get(role, {}).values())
            self.hold(
                "ledger",
                busy <= gpus * now * (1 + 1e-9) + 1e-6,
                f"{gpus} {role} GPUs were busy for {busy:g} s by {now:g} s",
            )

    # --- what the world is asked ---

    def asked(self, request_id: int, prompt: int, n: int) -> None:
        ticket = self.state.in_flight.get(request_id)
        right = ticket is not None and ticket.prompt == prompt and n == GROUP_SIZE
        self.hold("one outcome", right, f"group {request_id} is generated without a ticket for it")

    def answered(self, request_id: int, group: Group) -> Group:
        """An answer leaves the world: is it one that has to be refused?"""
        ticket = self.state.in_flight[request_id]
        rows = group.completions
        fine = (group.request_id, group.prompt_id) == (request_id, ticket.prompt)
        fine &= len(rows) == GROUP_SIZE and all(
            len(c.token_ids) == len(c.logp) > 0
            and all(map(math.isfinite, c.logp))
            and min(c.version) >= ticket.start
            for c in rows
        )
        if not fine:
            self.bad.add(request_id)
            self.lost["GroupRefused", request_id] += 1
        return group

    def landed(self, group: Group) -> None:
        """A group has been scored: the next thing that happens to it is that it lands."""
        ordinal = group.request_id
        known = ordinal in self.state.in_flight and ordinal not in self.history.landed
        self.hold(
            "one outcome", known, f"group {ordinal} has been scored and is not out, or was already"
        )
        unfit = ordinal in self.bad or len(group.completions) != GROUP_SIZE
        self.hold(
            "refusal", not unfit, f"group {ordinal} does not answer its ticket, and was taken"
        )
        self.progress()
        resample = self.setting.recipe.zero_variance == "resample"
        self.history.land(ordinal, group.passes, rejected=resample and group.zero_variance)

    def trained(self, groups: Sequence[Group]) -> None:
        """A batch reaches the trainer."""
        h, batch = self.history, [group.request_id for group in groups]
        P = self.setting.per_update
        self.hold("one outcome", len(set(batch)) == len(batch) == P, f"{batch} is no batch of {P}")
        for group in groups:
            ordinal = group.request_id
            again = ordinal in h.trained or ordinal in h.rejected or ordinal not in h.landed
            self.hold(
                "one outcome", not again, f"group {ordinal} is trained on twice, or never landed"
            )
            self._look_at_group(group)
        h.batches.append(batch)
        self.progress()

    def _look_at_group(self, group: Group) -> None:
        ordinal, version = group.request_id, self.world.version
        self.hold(
            "curriculum", group.prompt_id == self.history.prompts[ordinal], f"group {ordinal}"
        )
        for place, c in enumerate(group.completions):
            whole = (c.token_ids, c.logp) == (token_ids(ordinal, place), logp(ordinal, place))
            self.hold(
                "refusal", whole, f"completion {place} of group {ordinal} is not what was sampled"
            )
            lags = [version - v for v in c.version]
            self.hold(
                "lag",
                0 <= min(lags) <= max(lags) <= self.setting.max_lag,
                f"update {len(self.history.batches) + 1} takes tokens of lag {lags} "
                f"in group {ordinal}; k is {self.setting.max_lag}",
            )
            rising = all(a <= b for a, b in pairwise(c.version))
            self.hold("versions", rising, f"versions of group {ordinal} fall: {c.version}")

    def pushing(self, version: int) -> None:
        before = max([*self.history.published, *self.pushes])
        self.hold(
            "versions",
            before < version == self.world.version,
            f"version {version} is pushed; the trainer is at {self.world.version}, {before} was pushed before",
        )
        self.pushes.append(version)

    def pushed(self, version: int) -> None:
        self.history.published.append(version)
        self.progress()

    def pinned(self, handle: Handle) -> None:
        """Weights are pinned, after the update that was the last."""
        h, update = self.history, len(self.history.batches)
        last, every = update == self.setting.site.updates, self.setting.site.evaluation.cadence
        sets = tuple(name for name, n in every.items() if last or update % n == 0)
        if (
            not sets or h.pinned[update]
        ):  # only a run that has no prompts left does that, of sets not yet due
            none_left = all(self.state.curriculum.out) and h.pinned[update] < 2
            sets = tuple(name for name, n in every.items() if update % n)
            what = f"weights are pinned once more after update {update}, and no evaluation is due"
            self.hold("evaluations", none_left and bool(sets), what)
        C = self.state.ledger.gpu_hours(self.now())
        h.pins[handle.id] = Pin(handle.id, update, handle.version, C, sets)
        h.pinned[update] += 1

    def due(self, update: int) -> bool:
        """Whether an evaluation follows this update."""
        every, last = self.setting.site.evaluation.cadence, self.setting.site.updates
        return update in (0, last) or not all(update % n for n in every.values())

    def evaluating(self, handle: Handle, version: int | None) -> None:
        self.hold(
            "evaluations",
            version == handle.version,
            f"pin {handle.id} is evaluated as version {handle.version}, it holds {version}",
        )

    def handed(self, phases: Sequence[Phase]) -> None:
        """Phases leave the world. After the last update only those of evaluators are booked."""
        for phase in phases:
            key, seconds = (phase.role, phase.what), phase.gpus * (phase.end - phase.start)
            self.history.busy_s[key] = self.history.busy_s.get(key, 0.0) + seconds

    def saved(self) -> int:
        """A checkpoint is being written; its number."""
        self.saves.append(Saved(self.history.copy(), json.dumps(self.state.to_json())))
        return len(self.saves) - 1
