"""What a run writes down: events, GPU-hours, and the troubles that its own events show."""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from scalerl.errors import Unhealthy
from scalerl.events import Event, EventLog
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.state import LoopState
from scalerl.supervision import Supervisor
from scalerl.world import UpdateStats, World

MAX_PHASES_PER_UPDATE = 200
SAMPLE_FIELDS = ("version", "sampled", "correct", "reward", "truncated", "interrupted")


@dataclass(frozen=True)
class Wait:
    """How long the trainer waited for a batch; of that, with one at hand, for an older group to finish."""

    seconds: float = 0.0
    stall_s: float = 0.0
    stall_group: int | None = None


def description(recipe: Recipe) -> dict[str, Any]:
    """What is run: the fields of a log's first event."""
    assert recipe.site is not None
    return {
        "recipe": recipe.model_dump(mode="json", exclude={"site"}),
        "site": recipe.site.model_dump(mode="json"),
        "algorithm_id": recipe.algorithm_id(),
        "seed": recipe.seed,
        "versions": {name: version(name) for name in ("scalerl-sandbox", "torch", "numpy")},
    }


@dataclass
class Books:
    """The events and the ledger of one run, and the supervisor that reads along."""

    recipe: Recipe
    world: World
    state: LoopState
    log: EventLog
    supervisor: Supervisor
    ended_at: float | None = None  # when training was over; evaluations may go on
    _troubled: bool = False

    @property
    def trained_s(self) -> float:
        """Seconds of the world's clock that count towards C."""
        return self.world.clock.now() if self.ended_at is None else self.ended_at

    @property
    def gpu_h(self) -> float:
        return self.state.ledger.gpu_hours(self.trained_s)

    def gpu_hours(self) -> dict[str, dict[str, float]]:
        """The ledger's report: trainers and generators until the run ended, evaluators until now."""
        return self.state.ledger.report(self.trained_s, self.world.clock.now())

    def emit(self, kind: str, **fields: Any) -> None:
        """Write an event; then what it shows to have gone wrong.

        Raises:
            Unhealthy: of a trouble for which the site ends a run.
        """
        self._write(kind, **fields)
        event: Event = {"kind": kind, "clock": self.world.clock.now(), **fields}
        for trouble in self.supervisor.look(event):
            self._troubled = True
            self._write("warning", what=trouble.what, trouble=trouble.name)
            if self.supervisor.ends(trouble):
                raise Unhealthy(
                    f"{trouble.what} (site.supervision.{trouble.name} = 'stop'): its checkpoints are kept; "
                    "go on from one with a knob changed: scalerl run --from RUN@UPDATE KEY=VALUE"
                )

    def take_troubles(self) -> bool:
        """Whether any trouble has begun since the last call."""
        troubled, self._troubled = self._troubled, False
        return troubled

    def _write(self, kind: str, **fields: Any) -> None:
        self.log.emit(kind, clock=self.world.clock.now(), gpu_h=self.gpu_h, **fields)

    def report(self, stats: UpdateStats, wait: Wait, first: Group) -> None:
        """An update is over; `first` of its groups may be shown."""
        assert self.recipe.site is not None
        state = self.state
        self.pass_on_notices()
        self.emit(
            "update",
            update=state.updates,
            version=state.version,
            epoch=state.curriculum.epochs,
            tokens=state.tokens,
            rejected=state.rejected,
            **vars(stats),
            wait_s=wait.seconds,
            stall_s=wait.stall_s,
            stall_group=wait.stall_group,
        )
        if state.updates % self.recipe.site.evaluation.every_updates == 0:
            completion = first.completions[0]
            self.emit(
                "sample",
                update=state.updates,
                group=first.request_id,
                prompt=self.world.to_text(first.prompt_ids),
                completion=self.world.to_text(completion.token_ids),
                **{name: getattr(completion, name) for name in SAMPLE_FIELDS},
            )
        self.book_phases()

    def pass_on_notices(self) -> None:
        for what in self.world.notices():
            self.emit("warning", what=what)

    def book_phases(self) -> None:
        """Book what GPUs did; once training is over only evaluators still work for this run."""
        phases = self.world.phases()
        if self.ended_at is not None:
            phases = [phase for phase in phases if phase.role == "evaluator"]
        for phase in phases:
            self.state.ledger.add(phase)
        for phase in phases[:MAX_PHASES_PER_UPDATE]:
            self.emit("phase", **vars(phase))
