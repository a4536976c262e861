"""`scalerl.world.World` on a cluster: vLLM generators, FSDP2 trainers and an evaluator, each in an actor of its own."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from backend.completing import Marks
from backend.engine import EngineSpec
from backend.evaluation import Evaluations
from backend.fleet import Fleet, Member
from backend.preparing import check_fit, for_actors
from backend.probe import ROWS, SEED, Probes, check_head
from backend.push import Finish, Push
from backend.remote import Gone, Launcher, Remote, in_time
from backend.trainers import Trainers
from scalerl.batch import RolloutBatch
from scalerl.clock import WallClock
from scalerl.compute import Phase, Role
from scalerl.errors import (
    CheckpointError,
    EngineMismatch,
    GeneratorLost,
    WorldFailed,
    first_line,
)
from scalerl.length import draw_limits, score_group
from scalerl.metrics import merge_all
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.site import Cluster
from scalerl.task import Prompt, Task, missing_sets
from scalerl.update import prepare, update_stats
from scalerl.world import EvalResult, Handle, PushStats, UpdateStats


class ClusterWorld:
    """Generation, training and evaluation side by side on the wall clock.

    `_trainers_free` is held by whatever needs the trainer ranks: an update, a push, a snapshot, a generator that joins.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        folder: Path,
        launcher: Launcher,
        *,
        device: str,
        allow_code: bool = False,
        tell: Callable[[str], None] = lambda what: None,
    ) -> None:
        assert isinstance(recipe.site, Cluster)
        self.recipe, self.site, self.task, self.folder = recipe, recipe.site, task, folder
        self.launcher, self.device, self.allow_code, self.tell = launcher, device, allow_code, tell
        self.theirs = for_actors(recipe, device)
        self.marks = Marks.of(
            folder, phrase=self.site.interruption_phrase, close=self.site.think_close
        )
        check_fit(self.site, task, self.marks, folder)
        self.train = task.prompts("train")
        self.gpus: dict[Role, int] = {
            "generator": self.site.generators,
            "trainer": self.site.trainers,
            "evaluator": self.site.evaluators,
        }
        self.clock = WallClock()
        self.version = 0
        self.fleet = Fleet(self.site.generators, self.site.generator_restarts, lambda: self.clock)
        self.probes = Probes(self.site, self.train)
        self._trainers_free = asyncio.Lock()
        self._checkpoint: Path | None = None
        self._clock_s = 0.0
        self._pinned: list[tuple[int, int]] = []  # (handle, version), of a checkpoint
        self._next_handle = 0
        self._notices = missing_sets(task, self.site.evaluation.cadence)
        self._phases: list[Phase] = []
        self._engines_made = 0

    # --- start ---

    async def start(self) -> None:
        """Bring up all actors, open the channels, and push once: the path is known to work before update 0.

        Raises:
            EngineMismatch: generator and trainer do not have the same LM head.
        """
        site, began = self.site, time.monotonic()
        self.tell(
            f"starting {site.generators} generators, {site.trainers} trainers and an evaluator"
        )
        self.launcher.open()
        self.trainers = Trainers(
            [
                self.launcher.trainer(
                    rank, self.theirs, self.folder, rank, site.trainers, self.allow_code
                )
                for rank in range(site.trainers)
            ],
            site.step_timeout_s,
        )
        self.push = Push(self.trainers, site.push_timeout_s)
        generators = {slot: self._generator(slot) for slot in range(site.generators)}
        evaluator = self.launcher.evaluator(self._spec("the evaluator"), self.task)
        self.evaluations = Evaluations(evaluator, self.push, site, lambda: self.clock)
        await self._up([*generators.values(), evaluator])
        self.tell(f"all are up after {time.monotonic() - began:.0f} s; pushing weights once")
        for channel, remote in {**generators, self.evaluations.channel: evaluator}.items():
            await self.trainers.connect(channel, remote)
        await self.evaluations.start(self.version, self._checkpoint, self._pinned)
        await self._take_in(generators)
        self.clock = WallClock(self._clock_s)

    async def _up(self, engines: Sequence[Remote]) -> None:
        """All engines and trainers, at the same time."""
        folder = self._checkpoint / "trainers" if self._checkpoint else None
        try:
            async with asyncio.timeout(self.site.start_timeout_s):
                await asyncio.gather(
                    self.trainers.start(folder), *(engine.call("start") for engine in engines)
                )
        except TimeoutError:
            raise WorldFailed(
                f"the engines and trainers were not up after site.start_timeout_s = {self.site.start_timeout_s:g} s"
            ) from None
        except Gone as error:
            raise WorldFailed(f"{error} while it started") from error

    async def _take_in(self, generators: Mapping[int, Remote]) -> None:
        """Connected generators receive the present weights, are checked, and take requests from then on."""
        failed = await self.push.send(self.version, generators, self._apply(self.version))
        for why in failed.values():
            raise GeneratorLost(why)
        same_head = self.recipe.generator_head_dtype in (None, self.recipe.head_dtype)
        ours = await self.trainers.head(SEED, ROWS) if same_head else []
        for slot, remote in generators.items():
            if same_head:
                theirs = await in_time(remote, self.site.push_timeout_s, "head", SEED, ROWS)
                check_head(theirs, ours, remote.name, self.recipe.head_dtype)
            self.fleet.join(slot, remote, self.version)
            self.probes.start(slot, remote, self.version)

    def _generator(self, slot: int) -> Remote:
        return self.launcher.generator(slot, self._spec(f"generator {slot}"))

    def _spec(self, name: str) -> EngineSpec:
        """Every engine that is ever made samples other random numbers, of a resumed run too."""
        self._engines_made += 1
        key = f"{self.recipe.seed}:{name}:{self.version}:{self._engines_made}"
        seed = int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "big")
        return EngineSpec(name, self.theirs, self.folder, self.marks, self.device, seed)

    async def serve(self) -> None:
        """Fill the places of lost generators, and look after those that say nothing."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_after())
            while True:
                tasks.create_task(self._fill(await self.fleet.vacant.get()))

    async def _look_after(self) -> None:
        """A generator that hangs is lost too: nothing else would notice while its groups are waited for."""
        silent: dict[int, Member] = {}  # those that did not answer the last time
        while True:
            await asyncio.sleep(self.site.push_timeout_s / 2)
            members = list(self.fleet.members.values())
            signs = await asyncio.gather(
                *(in_time(m.remote, self.site.push_timeout_s / 2, "version") for m in members),
                return_exceptions=True,
            )
            before, silent = silent, {}
            for member, sign in zip(members, signs, strict=True):
                if not isinstance(sign, Gone | GeneratorLost):
                    continue
                # once may be this process's own fault: a checkpoint holds it up
                if isinstance(sign, Gone) or before.get(member.slot) is member:
                    self.fleet.lose(member, str(sign))
                else:
                    silent[member.slot] = member

    async def _fill(self, slot: int) -> None:
        """Start another generator; whatever keeps it from starting counts as one more that was lost."""
        try:
            await self._start_another(slot)
        except (EngineMismatch, WorldFailed):
            raise
        except Exception as error:
            said = first_line(error) or type(error).__name__
            self.fleet.replace(slot, f"generator {slot} could not be replaced: {said}")

    async def _start_another(self, slot: int) -> None:
        remote = self._generator(slot)
        try:
            await in_time(remote, self.site.start_timeout_s, "start")
            async with self._trainers_free:
                began = self.clock.now()
                await self.trainers.connect(slot, remote)
                await self._take_in({slot: remote})
                self._book("push", began)
        except BaseException:
            remote.kill()
            raise
        self._notices.append(f"{remote.name} joined with version {self.version}")

    # --- generation ---

    async def generate(self, prompt: Prompt, n: int, request_id: int, seed: int) -> Group:
        site = self.site
        limits = draw_limits(self.recipe.length, site.thinking_tokens, seed, request_id, range(n))
        completions = await self.fleet.generate(prompt.token_ids, limits)
        return Group(request_id, prompt.id, list(prompt.token_ids), completions)

    async def score(self, group: Group) -> Group:
        return score_group(group, self.train[group.prompt_id], self.task, self.recipe)

    # --- training ---

    async def update(self, groups: Sequence[Group]) -> UpdateStats:
        async with self._trainers_free:
            batch = await asyncio.to_thread(RolloutBatch.from_groups, groups)
            train = await asyncio.to_thread(prepare, batch, self.recipe)
            probes, missing = await self.probes.collect()
            began = self.clock.now()
            divergence = await self.trainers.divergence(probes)
            self._notices += [*missing, *self.probes.judge(divergence)]
            found = merge_all({"mismatch_kl": kl} for kl in divergence.values())
            if train.rows:
                found = merge_all([found, await self.trainers.update(train, self.version)])
            self._book("update", began)
            stats = update_stats(batch, train, self.version, found)
            self.version += not stats.skipped
            return stats

    async def publish(self, version: int) -> PushStats:
        async with self._trainers_free:
            began = self.clock.now()
            members = dict(self.fleet.members)
            engines = {slot: member.remote for slot, member in members.items()}
            failed = await self.push.send(version, engines, self._apply(version))
            for slot, member in members.items():
                if slot in failed:
                    self.fleet.lose(member, failed[slot])
                elif self.fleet.members.get(slot) is member:
                    member.version = version
                    self.probes.start(slot, member.remote, version)
            self._book("push", began)
            return PushStats(version, self.clock.now() - began)

    @staticmethod
    def _apply(version: int) -> Finish:
        return lambda remote: remote.call("apply", version)

    # --- evaluation ---

    async def snapshot(self) -> Handle:
        handle = Handle(self._next_handle, self.version)
        self._next_handle += 1
        async with self._trainers_free:
            began = self.clock.now()
            await self.evaluations.pin(handle.version, handle.id)
            self._book("push", began)
        return handle

    async def evaluate(self, handle: Handle, sets: Sequence[str]) -> list[EvalResult]:
        return await self.evaluations.evaluate(handle, sets)

    # --- books ---

    def _book(self, what: str, began: float) -> None:
        self._phases.append(Phase("trainer", 0, what, began, self.clock.now(), self.site.trainers))

    def phases(self) -> list[Phase]:
        found = [*self._phases, *self.fleet.phases(), *self.evaluations.phases()]
        self._phases = []
        return found

    def notices(self) -> list[str]:
        found = [*self.fleet.notices, *self._notices]
        self.fleet.notices, self._notices = [], []
        return found

    def to_text(self, token_ids: Sequence[int]) -> str:
        return self.task.to_text(token_ids)

    # --- checkpoints ---

    def save(self, folder: Path) -> None:
        """Weights, moments and pinned evaluations. What is being generated is not saved: it is issued again."""
        folder = folder.resolve()  # the actors are in another directory
        self.trainers.save(folder / "trainers")
        pinned = self.evaluations.save(folder)
        state = {
            "version": self.version,
            "clock": self.clock.now(),
            "next_handle": self._next_handle,
            "engines_made": self._engines_made,
            "pinned": pinned,
        }
        (folder / "world.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Read what `start` takes up."""
        folder = folder.resolve()
        try:
            state = json.loads((folder / "world.json").read_text())
            self.version, self._next_handle = state["version"], state["next_handle"]
            self._engines_made, self._clock_s = state["engines_made"], state["clock"]
            self._pinned = [(handle, version) for handle, version in state["pinned"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"cannot read the checkpoint {folder}: {error}") from error
        self._checkpoint = folder
        self._notices = []  # the run was told when it began
        self.clock = WallClock(self._clock_s)  # what goes wrong before all is up has a time too

    async def close(self) -> None:
        """End all actors, those too that do not answer."""
        self.probes.close()
        self.launcher.close()
