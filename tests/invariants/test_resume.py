"""Whole runs of the loop over a scripted world: its books at every moment, and what is left after it was killed."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Outcome, Script, ScriptedWorld, play, scripted_recipe

from scalerl.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from scalerl.compute import Ledger
from scalerl.curriculum import Curriculum, curriculum_of
from scalerl.errors import CheckpointError, RunFailed
from scalerl.loop import Control
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.state import LoopState
from scalerl.task import Prompt
from scalerl.world import PushStats, UpdateStats

G, UPDATES, PROMPTS = 2, 10, 40

scripts = st.builds(
    Script,
    seed=st.integers(0, 10**6),
    tail=st.sampled_from([0.6, 1.1, 3.0]),
    straggler=st.none() | st.integers(0, 8),
    lost=st.sampled_from([0.0, 0.0, 0.15, 0.4]),
    pass_rate=st.sampled_from([0.3, 0.5, 0.7]),
    skip_every=st.sampled_from([0, 0, 2, 3]),
    train_s=st.sampled_from([0.05, 1.0, 4.0]),
    push_s=st.sampled_from([0.0, 0.2, 2.0]),
)


def recipe_of(kind: str, k: int, every: int = 50, **changes: object) -> Recipe:
    staleness = {"kind": kind, "k": k}
    recipe = scripted_recipe(staleness=staleness, group_size=G, updates=UPDATES, **changes)
    assert recipe.site is not None
    site = {**recipe.site.model_dump(), "checkpoint_every_updates": every}
    return Recipe.model_validate({**recipe.model_dump(), "site": site})


@st.composite
def recipes_of(draw: st.DrawFn, **fixed: Any) -> Recipe:
    kind = draw(st.sampled_from(["pipeline", "ppo_off_policy"]))
    changes = {
        "prompts_per_update": draw(st.integers(1, 4)),
        "zero_variance": draw(st.sampled_from(["drop", "resample"])),
        "curriculum": {"kind": draw(st.sampled_from(["uniform", "no_positive_resampling"]))},
        "seed": draw(st.integers(0, 99)),
        "every": draw(st.sampled_from([1, 2, 5, 50])),
        **fixed,
    }
    return recipe_of(kind, draw(st.integers(kind != "pipeline", 3)), **changes)


def logp_of(request: int, place: int) -> list[float]:
    """What the generator of these completions recorded: full of numbers that a careless copy would round."""
    random = Random(f"{request}:{place}")
    odd = [-0.1, -(0.1 + 0.2), -1e-30, -5e-324, -0.0, -2 / 3]
    return [random.choice([*odd, -random.expovariate(1)]) for _ in range(3)]


def hexed(values: Sequence[float]) -> list[str]:
    return [value.hex() for value in values]


class Watched(ScriptedWorld):
    """The scripted world, which looks into the loop's books whenever it is called."""

    state: LoopState
    before: list[list[int]]  # batches of earlier parts of the run, still valid
    starts: dict[int, int]
    batches: list[list[Group]]
    fullest: int

    def begin(self, state: LoopState, before: list[list[int]]) -> None:
        self.state, self.before = state, before
        self.starts, self.batches, self.fullest = {}, [], 0
        staleness = self.recipe.staleness
        self.k, P = staleness.k, self.recipe.prompts_per_update
        self.slots = (self.k + (staleness.kind == "pipeline")) * P

    def consumed(self) -> list[int]:
        return [ordinal for batch in (*self.before, *self.trained) for ordinal in batch]

    def check(self) -> None:
        state = self.state
        held = [*state.in_flight, *state.finished, *self.consumed()]
        assert len(held) == len(set(held)), "somebody is in two places"
        assert len(held) + state.rejected == state.next_ordinal, "somebody is lost"
        assert set(held) <= set(range(state.next_ordinal))
        landed = len(state.finished) + len(self.consumed()) + state.rejected
        assert sum(state.curriculum.completions) == G * landed
        self.fullest = max(self.fullest, state.outstanding)
        assert state.outstanding <= self.slots and self.generating <= self.slots

    async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
        self.check()
        self.starts[request_id] = self.state.in_flight[request_id].start
        assert self.state.in_flight[request_id].prompt == prompt.id
        group = await super().generate(prompt, n, request_id, seed)
        # the rule counts from the start: no token may be older, or the bound is not one
        assert self.state.in_flight[request_id].start <= group.oldest_version
        for place, completion in enumerate(group.completions):
            completion.logp = logp_of(request_id, place)
        return group

    async def score(self, group: Group) -> Group:
        self.check()
        return await super().score(group)

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        self.batches.append(list(groups))
        stats = await super().update(groups)
        self.check()
        return stats

    async def publish(self, version: int) -> PushStats:
        self.check()
        return await super().publish(version)


def watch(recipe: Recipe, script: Script, **how: Any) -> tuple[Watched, Outcome]:
    def prepare(world: ScriptedWorld, state: LoopState) -> None:
        assert isinstance(world, Watched)
        world.begin(state, [])

    found = play(recipe, script, prompts=PROMPTS, prepare=prepare, world_class=Watched, **how)
    assert isinstance(found.world, Watched)
    return found.world, found


# ---- the books ----


@pytest.mark.invariant(
    "K04",
    "At every moment each group that was ever admitted is in exactly one place.",
    "produced = consumed + dropped + queued + in flight, as multisets of ids",
    "NeMo-RL #2651: counted when added and not when consumed",
)
@pytest.mark.invariant("K06")
@pytest.mark.invariant("K12")
@pytest.mark.invariant("K01")
@given(recipes_of(), scripts)
def test_books_balance_at_every_moment(recipe: Recipe, script: Script) -> None:
    world, outcome = watch(recipe, script)
    P, state = recipe.prompts_per_update, outcome.state
    for batch in world.batches:
        assert len({group.request_id for group in batch}) == len(batch) == P
        assert all(len(group.completions) == G for group in batch)
    lags = [lag for batch in world.lags for lag in batch]
    assert not lags or max(lags) <= world.k - (recipe.staleness.kind != "pipeline")
    assert world.fullest == world.slots or outcome.status == "exhausted"
    assert outcome.status == "exhausted" or state.updates == len(world.trained) == UPDATES
    for ticket in (*state.in_flight.values(), *(f.ticket for f in state.finished.values())):
        assert state.version - ticket.start <= world.k


@pytest.mark.invariant("K08")
@pytest.mark.invariant(
    "K09",
    "Where nothing is dropped, groups that take long are trained on as surely as short ones.",
    "durations consumed = durations produced, of all groups admitted more than k versions ago",
    "tinker-cookbook #822: durations 1, 1, 9 with k = 3: the third was discarded each time",
)
@given(recipes_of(zero_variance="drop"), scripts)
def test_slow_groups_are_trained_on_as_surely(recipe: Recipe, script: Script) -> None:
    world, outcome = watch(recipe, script)
    old = {o for o, start in world.starts.items() if start < outcome.state.version - world.k}
    # a group holds its slot until it is trained on: of those admitted longer ago none may be missing
    assert old <= set(world.consumed())
    if script.straggler in old:
        assert world.consumed().count(script.straggler) == 1


@pytest.mark.invariant(
    "K03",
    "No token is newer than the trainer, and versions do not fall along a completion.",
    "v_t <= v_(t+1) <= v_train",
    "",
)
@pytest.mark.invariant(
    "K11",
    "Tokens sampled after new weights have arrived carry their version; off-policy phases span none.",
    "v_t = version that the engine had acknowledged when it sampled t",
    "molt #124: a rollout went on under new weights though partial rollouts were off",
)
@given(recipes_of(), scripts)
def test_versions_rise_and_off_policy_spans_none(recipe: Recipe, script: Script) -> None:
    world, _ = watch(recipe, script)
    version = 0
    for place, batch in enumerate(world.batches, 1):
        for c in (c for group in batch for c in group.completions):
            assert all(a <= b for a, b in pairwise(c.version)) and c.version[-1] <= version
            assert recipe.staleness.kind == "pipeline" or len(set(c.version)) == 1
        version += not (script.skip_every and place % script.skip_every == 0)


@pytest.mark.invariant("K03")
def test_a_token_from_the_future_is_refused() -> None:
    class Early(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            group = await super().generate(prompt, n, request_id, seed)
            for completion in group.completions:
                completion.version = [v + 1 for v in completion.version]
            return group

    with pytest.raises(RunFailed, match="has a token of version 1; the trainer is at 0"):
        play(recipe_of("pipeline", 0), Script(), world_class=Early)


@pytest.mark.invariant("K03")
def test_one_token_from_the_future_is_refused() -> None:
    class OneEarly(ScriptedWorld):
        async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
            group = await super().generate(prompt, n, request_id, seed)
            if request_id == 4:
                group.completions[0].version[-1] = 100
            return group

    with pytest.raises(
        RunFailed, match=r"group 4 has a token of version 100; the trainer is at \d+"
    ):
        play(recipe_of("pipeline", 8), Script(), world_class=OneEarly)


@pytest.mark.invariant(
    "K14",
    "At k = 0 the loop is the synchronous one: P prompts, all finished, one update, one push.",
    "batch u = draws u P .. (u + 1) P - 1, all of lag 0",
    "",
)
@given(recipes_of(zero_variance="drop"), scripts)
def test_zero_staleness_is_the_synchronous_loop(recipe: Recipe, script: Script) -> None:
    synchronous = Recipe.model_validate(
        {**recipe.model_dump(), "staleness": {"kind": "pipeline", "k": 0}}
    )
    world, _ = watch(synchronous, script)
    P, stream = recipe.prompts_per_update, curriculum_of(synchronous, PROMPTS)
    for update, batch in enumerate(world.batches):
        assert [g.request_id for g in batch] == list(range(update * P, (update + 1) * P))
        assert [g.prompt_id for g in batch] == [stream.draw() for _ in range(P)]
        for group in batch:
            stream.observe(group.prompt_id, sum(c.correct for c in group.completions), G)
    assert {lag for lags in world.lags for lag in lags} <= {0}
    assert world.pushed == list(range(1, world.version + 1))


@pytest.mark.invariant("K15")
@settings(max_examples=settings().max_examples // 2)
@given(recipes_of(), scripts)
def test_a_run_is_the_same_twice(recipe: Recipe, script: Script) -> None:
    (one, first), (other, second) = watch(recipe, script), watch(recipe, script)
    assert one.trained == other.trained and one.batches == other.batches
    assert first.state == second.state


# ---- killed and taken up again ----


class Killed(Exception):
    """The run dies as it writes an event."""


class Mortal:
    """Listens to a run and kills it at its n-th event, or asks it to stop there."""

    def __init__(self, at: int | None, control: Control | None = None) -> None:
        self.left, self.control = at, control

    def __call__(self, event: object) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left == 0:
            if self.control is None:
                raise Killed
            self.control.stop = True


@pytest.mark.invariant(
    "K05",
    "Killed or stopped at any event and taken up again, a run trains every group once, or has it in its books once.",
    "trained + rejected + queued + in flight = admitted, over all parts of the run that count",
    "NeMo-RL #3480: finished groups dropped in silence at a resume (2 before, 0 after)",
)
@pytest.mark.invariant(
    "K10",
    "The log-probs that a generator recorded reach the trainer bit for bit, over queues, checkpoints and tensors.",
    "b_train = b_gen",
    "",
)
@settings(max_examples=settings().max_examples // 2)
@given(recipes_of(), scripts, st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=3))
def test_every_group_is_trained_once_over_crashes(
    recipe: Recipe, script: Script, ends: list[tuple[int, bool]]
) -> None:
    with TemporaryDirectory() as name:
        folder, world, batches = Path(name), None, []
        for at, gentle in [*ends, (None, False)]:
            kept = list(batches)
            worlds: list[Watched] = []

            def prepare(
                fresh: ScriptedWorld,
                state: LoopState,
                kept: list[list[int]] = kept,
                worlds: list[Watched] = worlds,
            ) -> None:
                path = newest_checkpoint(folder)
                if path is not None:
                    load_checkpoint(path, state, recipe.algorithm_id())
                    fresh.load(path)
                assert isinstance(fresh, Watched)
                del kept[state.updates :]  # what came after the checkpoint does not count
                assert len(kept) == state.updates
                fresh.begin(state, kept)
                worlds.append(fresh)

            control = Control() if gentle else None
            how: dict[str, Any] = {"control": control, "checkpoints": folder, "prepare": prepare}
            try:
                play(
                    recipe,
                    script,
                    prompts=PROMPTS,
                    listen=Mortal(at, control),
                    world_class=Watched,
                    **how,
                )
            except (RunFailed, Killed):
                assert at is not None and not gentle
            (world,) = worlds
            batches = [*kept, *world.trained]
            for group in (group for batch in world.batches for group in batch):
                for place, c in enumerate(group.completions):
                    assert hexed(c.logp) == hexed(logp_of(group.request_id, place))
        assert world is not None
        world.check()
        flat = [ordinal for batch in batches for ordinal in batch]
        assert len(flat) == len(set(flat)) == world.state.updates * recipe.prompts_per_update
        assert world.state.updates == UPDATES or world.state.curriculum.threshold is not None


@pytest.mark.invariant(
    "K13",
    "Saving and loading is the identity on all that the loop remembers; another format is refused.",
    "load(save(state)) = state",
    "",
)
@given(
    recipes_of(),
    scripts,
    st.integers(1, 24),
    st.one_of(st.none(), st.integers(-3, 9).filter(lambda n: n not in (1, 2)), st.text(max_size=3)),
)
def test_a_state_is_saved_whole(recipe: Recipe, script: Script, at: int, other: object) -> None:
    def empty() -> LoopState:
        gpus = ScriptedWorld(recipe, script).gpus
        return LoopState(curriculum_of(recipe, PROMPTS), Ledger(gpus))

    control = Control()
    world, outcome = watch(recipe, script, listen=Mortal(at, control), control=control)
    identity, again = recipe.algorithm_id(), empty()
    with TemporaryDirectory() as name:
        path = save_checkpoint(Path(name), outcome.state, world, identity)
        load_checkpoint(path, again, identity)
        assert again == outcome.state
        assert Counter(again.in_flight) == Counter(outcome.state.in_flight)
        assert next_draws(again.curriculum) == next_draws(outcome.state.curriculum)
        data = json.loads((path / "loop.json").read_text())
        (path / "loop.json").write_text(json.dumps({**data, "format": other}))
        with pytest.raises(CheckpointError, match="was edited"):
            load_checkpoint(path, empty(), identity)
        (path / "manifest.json").unlink()  # as the first format had none
        refused = empty()
        with pytest.raises(CheckpointError, match="format"):
            load_checkpoint(path, refused, identity)
        assert refused == empty()


def next_draws(curriculum: Curriculum) -> list[int]:
    copy = Curriculum(curriculum.size, curriculum.seed, curriculum.threshold)
    copy.load_json(curriculum.to_json())
    return [] if all(copy.out) else [copy.draw() for _ in range(60)]
