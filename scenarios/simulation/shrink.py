"""From a plan that breaks an invariant to the least that still breaks the same one."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from scalerl.loop import Loop
from scenarios.simulation.faults import FaultPlan
from scenarios.simulation.setting import draw_setting
from scenarios.simulation.simulate import Outcome, simulate

Play = Callable[[FaultPlan], Outcome]


def shrink(outcome: Outcome, loop_class: type[Loop] = Loop, play: Play | None = None) -> Outcome:
    """Take away lives, faults and updates, one at a time, for as long as the same invariant fails."""
    play = play or (lambda plan: simulate(plan, loop_class=loop_class))
    while True:
        smaller = (play(plan) for plan in _smaller(outcome.plan))
        found = next((each for each in smaller if each.violation == outcome.violation), None)
        if found is None:
            return outcome
        outcome = found


def _smaller(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Plans with a life less, then with a fault less, then with an update less."""
    for life in range(plan.lives if plan.lives > 1 else 0):
        others = (fault for fault in plan.faults if fault.life != life)
        moved = (replace(f, life=f.life - 1) if f.life > life else f for f in others)
        yield replace(plan, faults=tuple(moved))
    for fault in plan.faults:
        yield replace(plan, faults=tuple(each for each in plan.faults if each != fault))
    updates = plan.updates or draw_setting(plan.seed).site.updates
    if updates > 1:
        yield replace(plan, updates=updates - 1)
