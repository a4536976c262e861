"""States of the loop made by hand, and a scripted world to be saved with them."""

from scripted import Script, ScriptedWorld, scripted_recipe

from scalerl.compute import Ledger, Phase, Role
from scalerl.curriculum import Curriculum
from scalerl.rollout import Completion, Group
from scalerl.state import LoopState, PendingEval, Ticket

GPUS: dict[Role, int] = {"generator": 4, "trainer": 2, "evaluator": 1}
ID = "0123456789ab"


def completion(correct: bool, *version: int) -> Completion:
    n = len(version)
    return Completion(
        [5] * n,
        [-0.1] * n,
        list(version),
        [True] * n,
        correct=correct,
        reward=1.0 if correct else -1.0,
    )


def fresh() -> LoopState:
    return LoopState(Curriculum(10, 3), Ledger(GPUS))


def scored(ticket: Ticket, *correct: bool) -> Group:
    return Group(ticket.ordinal, ticket.prompt, [1], [completion(c, 0, 0) for c in correct])


def filled() -> LoopState:
    """A state in which every field has a value of its own."""
    state = fresh()
    state.ledger.add(Phase("trainer", 0, "update", 0.0, 1.5, gpus=2))
    state.version, state.published = 7, 6
    for ordinal in range(5):
        assert state.admit().ordinal == ordinal
    for ordinal in (3, 0, 1):
        state.land(
            state.in_flight[ordinal],
            scored(state.in_flight[ordinal], True, False),
            reject=ordinal == 1,
        )
    state.take([3])
    state.pending.append(PendingEval(12, 5, 0.25, ["validation", "ood"]))
    state.next_seq, state.clock = 31, 0.1 + 0.2
    return state


def world() -> ScriptedWorld:
    return ScriptedWorld(scripted_recipe(), Script(), version=7, published=6)
