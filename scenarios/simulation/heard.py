"""The invariants of the event log, and of how a life ends."""

import errno
import math
from dataclasses import dataclass, field
from typing import Any

from scalerl.events import UNNUMBERED, Event
from scalerl.loop import Control, Loop
from scenarios.simulation.checks import Checker
from scenarios.simulation.fate import Killed
from scenarios.simulation.faults import Fault
from scenarios.simulation.history import Pin
from scenarios.simulation.setting import STALL_S, passes

BOUND_S = 1.0  # from the first failure to the end of the run


def close_to(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


@dataclass
class Disk:
    """The file of an event log, on a disk that may be full, of a process that may be killed as it writes."""

    file: Any
    checker: Checker
    faults: list[Fault]
    writes: int = 0
    full: bool = False
    refused: int = 0  # events that were not written

    def write(self, data: bytes | memoryview) -> int:
        if self.checker.dead:
            return len(data)
        self.writes += 1
        for fault in self.faults:
            if fault.site == "write" and fault.at == self.writes:
                self._strike(fault, bytes(data))
        if self.full:
            self._refuse()
        return self.file.write(data)

    def _strike(self, fault: Fault, data: bytes) -> None:
        self.checker.strike(fault)
        if fault.kind == "disk.log":
            self.full = True
            return
        self.file.write(data[: len(data) // 2])
        if fault.kind == "kill.write":
            self.checker.dead = True
            raise Killed
        self._refuse()

    def _refuse(self) -> None:
        self.refused += 1
        error = OSError(errno.ENOSPC, "No space left on device")
        self.checker.fail_with(error)
        raise error

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()


@dataclass
class Ear:
    """Hears every event of one life as it is written."""

    checker: Checker
    faults: list[Fault]
    control: Control = field(default_factory=Control)
    disk: Disk | None = None
    from_seq: int | None = None  # where this life takes the run up; None = it begins
    loop: Loop | None = None
    heard: int = 0
    passed_over: int = 0  # numbers of events that a full disk refused
    last: Event = field(default_factory=lambda: {"t": 0.0, "clock": 0.0, "gpu_h": 0.0})

    def __call__(self, event: Event) -> None:
        if self.checker.dead:
            return
        self.heard += 1
        self._look_at_times(event)
        if event["kind"] == "resume":
            before = len(self.checker.history.events)
            same = event["from_seq"] == self.from_seq == before
            self.hold(
                "events", same, f"resumed from seq {event['from_seq']}, after {before} events"
            )
        elif event["kind"] not in UNNUMBERED:
            self._look_at_seq(event)
            self.checker.history.events.append(event)
            getattr(self, f"_{event['kind']}", lambda event: None)(event)
        if (
            event["kind"] != "fault" or "group" in event
        ):  # the loop may fail with a batch in its hands
            self.checker.look()
        self._strike()

    def hold(self, invariant: str, holds: bool, what: str) -> None:
        self.checker.hold(invariant, holds, what)

    def _strike(self) -> None:
        for fault in self.faults:
            if fault.site == "event" and fault.at == self.heard:
                self.checker.strike(fault)
                if fault.kind == "stop":
                    self.control.stop = True
                else:
                    self.checker.dead = True
                    raise Killed

    def _look_at_times(self, event: Event) -> None:
        for name in ("t", "clock", "gpu_h"):
            rising = event[name] >= self.last[name]
            self.hold("events", rising, f"{name} falls to {event[name]} in {event['kind']}")
        ledger, clock = self.checker.state.ledger, event["clock"]
        C = (ledger.gpus["generator"] + ledger.gpus["trainer"]) * clock / 3600
        over = self.loop is not None and self.loop.books.ended_at is not None
        exact = close_to(event["gpu_h"], C) or (over and event["gpu_h"] <= C)
        self.hold("ledger", exact, f"gpu_h is {event['gpu_h']} at {clock} s")
        late = clock - self.checker.failed_at
        self.hold(
            "shutdown", late <= BOUND_S, f"{event['kind']} {late:g} s after the first failure"
        )
        self.last = event

    def _look_at_seq(self, event: Event) -> None:
        events = self.checker.history.events
        refused = 0 if self.disk is None else self.disk.refused
        expected = (events[-1]["seq"] if events else -1) + 1 + refused - self.passed_over
        self.passed_over = refused
        self.hold("events", event["seq"] == expected, f"seq {event['seq']} follows {expected - 1}")

    # --- by kind ---

    def _run(self, event: Event) -> None:
        self.hold("events", event["seq"] == 0, f"the run begins at seq {event['seq']}")

    def _update(self, event: Event) -> None:
        checker, h = self.checker, self.checker.history
        update = len(h.versions)
        h.versions.append(event["version"])
        whole = event["update"] == update == len(h.batches) == checker.state.updates
        self.hold(
            "events",
            whole,
            f"update {event['update']} is reported; {len(h.batches)} were asked for",
        )
        step = event["version"] - h.versions[update - 1]
        self.hold("versions", step == (not event["skipped"]), f"update {update} moves by {step}")
        counts = (event["tokens"], event["rejected"])
        same = counts == (checker.state.tokens, len(h.rejected))
        self.hold("one outcome", same, f"update {update} reports {counts} tokens and rejected")
        held = h.pinned[update - 1] > 0 or not checker.due(update - 1)
        self.hold("evaluations", held, f"no evaluation after update {update - 1}, where one is due")
        self._look_at_slots(update)

    def _look_at_slots(self, update: int) -> None:
        """After a push every slot is taken again, unless there are no prompts left."""
        state, setting = self.checker.state, self.checker.setting
        pushed = setting.pipeline or not state.taken
        if pushed and not all(state.curriculum.out):
            full = state.outstanding == setting.slots
            what = f"after update {update} {state.outstanding} of {setting.slots} slots are taken"
            self.hold("slots", full, what)

    def _phase(self, event: Event) -> None:
        """Phases are written when all of them have been booked."""
        busy_s = self.checker.state.ledger.busy_s
        for (role, what), seconds in self.checker.history.busy_s.items():
            booked = busy_s.get(role, {}).get(what, 0.0)
            over = self.loop is not None and self.loop.books.ended_at is not None
            same = close_to(booked, seconds) or (over and role != "evaluator" and booked <= seconds)
            self.hold(
                "ledger", same, f"{booked:g} s of {role} {what} are booked, {seconds:g} s were done"
            )

    def _eval(self, event: Event) -> None:
        h = self.checker.history
        found = [p for p in h.pins.values() if close_to(p.C, event["C"]) and event["set"] in p.sets]
        what = f"{event['set']} at C {event['C']:g}: not due, or twice"
        self.hold("evaluations", bool(found), what)
        # updates that are skipped at once stand at one C: what was found tells pins apart
        pin = next((p for p in found if event["passes"] == passes(p.version, p.handle)), found[0])
        right = pin.version == event["version"] == h.versions[pin.update]
        right &= event["passes"] == passes(pin.version, pin.handle)
        what = (
            f"after update {pin.update} version {event['version']} is evaluated, not {pin.version}"
        )
        self.hold("evaluations", right, what)
        left = tuple(name for name in pin.sets if name != event["set"])
        if left:
            h.pins[pin.handle] = Pin(pin.handle, pin.update, pin.version, pin.C, left)
        else:
            del h.pins[pin.handle]

    def _fault(self, event: Event) -> None:
        """A request that is issued again was lost or refused, once; all else ends the run."""
        key = (event["error"], event.get("group", -1))
        if key[1] >= 0:
            self.hold("refusal", self.checker.lost[key] > 0, f"{key} is said, and did not happen")
            self.checker.lost[key] -= 1
            self.checker.bad.discard(key[1])

    # --- the end of a life ---

    def ended(self, status: str, at: float, tasks: int) -> None:
        """What holds when `Loop.run` is over, however it ended; `status` is its own word, or its failure's sentence."""
        checker = self.checker
        closed = checker.world.closed
        self.hold("shutdown", closed == 1, f"the world was closed {closed} times")
        self.hold("shutdown", tasks == 0, f"{tasks} tasks are left")
        late = at - checker.failed_at
        self.hold("shutdown", late <= BOUND_S, f"the run ended {late:g} s after its first failure")
        if status in ("done", "exhausted", "stopped"):
            self._ended_well(status)
        else:
            self._look_at_cause(status, at)

    def _ended_well(self, status: str) -> None:
        checker, h, setting = self.checker, self.checker.history, self.checker.setting
        failure = checker.failure
        self.hold("first cause", failure is None, f"the run is {status}; nobody heard of {failure}")
        if status == "stopped":
            self.hold("progress", self.control.stop, "the run stopped by itself")
            return
        updates, last = len(h.batches), setting.site.updates
        none_left = all(checker.state.curriculum.out) and not checker.state.in_flight
        over = updates == last if status == "done" else none_left
        self.hold("progress", over, f"the run is {status} after {updates} of {last} updates")
        heard = h.pinned[updates] > 0 and not h.pins
        self.hold("evaluations", heard, f"the run is {status}, evaluations are missing: {h.pins}")
        waiting = {ticket for ticket, left in checker.lost.items() if left > 0}
        self.hold("refusal", not waiting, f"nobody heard of {sorted(waiting)}")
        out = h.published[-1] == h.versions[-1] or not setting.pipeline
        self.hold("versions", out, f"version {h.versions[-1]} never went out")

    def _look_at_cause(self, cause: str, at: float) -> None:
        checker = self.checker
        self.hold("first cause", "\n" not in cause, f"more than a line: {cause!r}")
        expected = [*checker.excuses]
        if checker.failure is not None:
            error = checker.failure
            line = str(error).splitlines()[0]
            named = isinstance(error, OSError)
            expected.append(
                "No space left on device: " if named else f"{type(error).__name__}: {line}"
            )
        known = any(text in cause for text in expected)
        self.hold(
            "first cause", known, f"the run says {cause!r}; what happened first is {expected}"
        )
        if "Stalled: " in cause:
            quiet = at - checker.progress_at
            fair = STALL_S <= quiet + 1e-3 and quiet <= 2 * STALL_S + 1e-3
            self.hold("shutdown", fair, f"the watchdog came after {quiet:g} s, not {STALL_S:g}")
