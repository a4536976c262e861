"""The run of a seed, without its faults: a small recipe, and how long things take in its world."""

from dataclasses import dataclass
from random import Random

from scalerl.recipe import NoPositiveResampling, Recipe, Uniform
from scalerl.site import Evaluation, Optimizer, Sandbox, Supervision

GROUP_SIZE, TOKENS, ENGINES = 2, 3, 3
STALL_S = 600.0  # of the watchdog
LONGEST_S = 20.0  # of a group; ten times that is still less than the watchdog's


@dataclass(frozen=True)
class Setting:
    """What a seed draws for its run. Times in seconds of the world's clock."""

    seed: int
    recipe: Recipe
    prompts: int  # of the training set
    tail: float  # exponent of the Pareto law of generation times; small = heavy
    train_s: float
    push_s: float
    score_s: float
    pass_rate: float
    skip_every: int  # every so many updates there is nothing to train on; 0 = never

    @property
    def site(self) -> Sandbox:
        assert isinstance(self.recipe.site, Sandbox)
        return self.recipe.site

    @property
    def per_update(self) -> int:
        return self.recipe.prompts_per_update

    @property
    def pipeline(self) -> bool:
        return self.recipe.staleness.kind == "pipeline"

    @property
    def max_lag(self) -> int:
        return self.recipe.staleness.k - (not self.pipeline)

    @property
    def slots(self) -> int:
        """Groups that may be out, waiting or in training."""
        return (self.max_lag + 1) * self.per_update

    def random(self, *key: object) -> Random:
        return Random(":".join(map(str, (self.seed, *key))))


def draw_setting(seed: int, updates: int | None = None) -> Setting:
    """The setting of a seed; `updates` shortens its run and leaves all else as it was."""
    random = Random(f"{seed}:setting")
    pick = random.choice
    kind = pick(("pipeline", "pipeline", "pipeline", "ppo_off_policy"))
    excluding = NoPositiveResampling(threshold=pick((0.5, 0.9)))  # at 0.5 prompts may run out
    k = random.randint(0, 3) if kind == "pipeline" else random.randint(1, 3)
    site = Sandbox(
        updates=random.randint(6, 8),
        thinking_tokens=8,
        answer_tokens=2,
        optimizer=Optimizer(learning_rate=1e-3),
        evaluation=Evaluation(every_updates=random.randint(2, 4), ood_every_updates=pick((0, 3))),
        checkpoint_every_updates=pick((1, 1, 2, 3)),
        stall_s=STALL_S,
        supervision=Supervision(not_finite=pick(("stop", "skip"))),
        generators=ENGINES,
        trainers=2,
        evaluators=1,
    )
    recipe = Recipe(
        staleness={"kind": kind, "k": k},  # type: ignore[arg-type]
        curriculum=pick((Uniform(), Uniform(), excluding)),
        zero_variance=pick(("drop", "drop", "resample")),
        prompts_per_update=random.randint(1, 3),
        group_size=GROUP_SIZE,
        seed=random.randrange(100),
        site=site.model_copy(update={} if updates is None else {"updates": updates}),
    )
    return Setting(
        seed=seed,
        recipe=recipe,
        prompts=pick((5, 12, 40)),
        tail=pick((0.6, 1.1, 3.0)),
        train_s=pick((0.05, 1.0, 4.0)),
        push_s=pick((0.0, 0.2, 2.0)),
        score_s=pick((0.0, 0.0, 0.3)),
        pass_rate=pick((0.3, 0.5, 0.7)),
        skip_every=pick((0, 0, 2, 3)),
    )


def token_ids(request_id: int, place: int) -> list[int]:
    """The tokens of one completion: no other request has them."""
    return [request_id, place, *range(2, TOKENS)]


def logp(request_id: int, place: int) -> list[float]:
    """Its log-probs: numbers that a careless copy would round."""
    return [-(0.1 + 0.2) / (request_id + 1), -1e-30, -(place + 1) / 3]


def passes(version: int, handle: int) -> list[int]:
    """What an evaluation finds, of 4: no other version, and no other pin of it, gives the same."""
    return [version % 5, version // 5, handle % 5, handle // 5 % 5]
