"""The recipe: what is optimised and how stale it may be. Where it runs is its site (`scalerl.site`).

Every kind is a frozen record of parameters whose defaults are ScaleRL's; a field states the exact inequality
that it imposes. Nothing here imports torch. Files are read by `scalerl.settings`.

Source of all defaults: arXiv 2510.13786, unless a field says otherwise.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scalerl.site import Cluster, Precision, Rounding, Sandbox, Site
from scalerl.spec import Spec

SEEDS = 2**40  # seeds count from 0 to below this

# --- loss: each spec names one function of `scalerl.losses`; its fields are that function's keywords ---


class Cispo(Spec):
    """Truncated-importance REINFORCE: a capped token keeps a gradient of size eps_max * A."""

    kind: Literal["cispo"] = "cispo"
    eps_max: float = Field(
        default=5.0,
        gt=1,
        description="absolute cap on rho = pi/mu (5.0 caps at 5x; it is not 1 + 5)",
    )


class Dapo(Spec):
    """PPO's clipped surrogate with DAPO's raised upper side."""

    kind: Literal["dapo"] = "dapo"
    clip_low: float = Field(
        default=0.2, gt=0, lt=1, description="rho is clipped from below at 1 - clip_low"
    )
    clip_high: float = Field(
        default=0.26, gt=0, description="rho is clipped from above at 1 + clip_high"
    )


class Grpo(Spec):
    """PPO's clipped surrogate with equal sides."""

    kind: Literal["grpo"] = "grpo"
    clip_low: float = Field(
        default=0.2, gt=0, lt=1, description="rho is clipped from below at 1 - clip_low"
    )
    clip_high: float = Field(
        default=0.2, gt=0, description="rho is clipped from above at 1 + clip_high"
    )


class Gspo(Spec):
    """The clipped surrogate on the length-normalised ratio of the whole completion (arXiv 2507.18071)."""

    kind: Literal["gspo"] = "gspo"
    clip_low: float = Field(
        default=3e-3,
        gt=0,
        lt=1,
        description="the sequence ratio is clipped from below at 1 - clip_low",
    )
    clip_high: float = Field(
        default=4e-3, gt=0, description="the sequence ratio is clipped from above at 1 + clip_high"
    )


class Reinforce(Spec):
    """Plain policy gradient: no ratio, so it is biased off-policy."""

    kind: Literal["reinforce"] = "reinforce"


class CustomLoss(Spec):
    """A loss of the user's own, with the per-token signature of `scalerl.losses`; runs only with --allow-code."""

    kind: Literal["custom"] = "custom"
    function: str = Field(
        pattern=r"^.+:[A-Za-z_]\w*$", description="FILE.py:FUNCTION or MODULE:FUNCTION"
    )
    keywords: dict[str, float] = Field(
        default={}, description="extra keyword arguments of the function"
    )


Loss = Annotated[Cispo | Dapo | Grpo | Gspo | Reinforce | CustomLoss, Field(discriminator="kind")]


# --- staleness: the rules themselves are in `scalerl.staleness` ---


class PipelineRLSpec(Spec):
    """Generators never stop and receive every update's weights in mid-sequence; the trainer waits when k ahead."""

    kind: Literal["pipeline"] = "pipeline"
    k: int = Field(
        default=8,
        ge=0,
        description="no trained token is more than k versions old; 0 is synchronous",
    )


class PPOOffPolicySpec(Spec):
    """k batches by one policy, then k updates and one push; generators idle while the trainer works."""

    kind: Literal["ppo_off_policy"] = "ppo_off_policy"
    k: int = Field(default=8, ge=1, description="updates per generation phase; 1 is on-policy")


Staleness = Annotated[PipelineRLSpec | PPOOffPolicySpec, Field(discriminator="kind")]


# --- curriculum and length control ---


class NoPositiveResampling(Spec):
    """A prompt whose pass rate over all its visits has reached the threshold is never drawn again."""

    kind: Literal["no_positive_resampling"] = "no_positive_resampling"
    threshold: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="excluded once passes >= threshold * completions, exactly",
    )


class Uniform(Spec):
    """Every prompt once an epoch, for ever."""

    kind: Literal["uniform"] = "uniform"


Curriculum = Annotated[NoPositiveResampling | Uniform, Field(discriminator="kind")]


class Interruption(Spec):
    """Thinking is cut at a random point by a fixed phrase, after which the answer is generated."""

    kind: Literal["interruption"] = "interruption"
    low: float = Field(
        default=0.8333,
        gt=0,
        le=1,
        description="earliest cut, as a fraction of the thinking budget, rounded",
    )
    high: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="latest cut, as a fraction of the thinking budget, rounded",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "Interruption":
        if self.low > self.high:
            raise ValueError(f"low = {self.low} must be at most high = {self.high}")
        return self


class OverlongPenalty(Spec):
    """clip((L_max - length) / L_cache - 1, -1, 0) added to the reward of correct completions only."""

    kind: Literal["overlong_penalty"] = "overlong_penalty"
    cache: float = Field(
        default=1 / 7,
        gt=0,
        le=1,
        description="L_cache as a fraction of L_max = thinking + answer budget (2k of 14k)",
    )


class NoLengthControl(Spec):
    """Completions end by themselves or are truncated at the thinking + answer budget."""

    kind: Literal["none"] = "none"


Length = Annotated[Interruption | OverlongPenalty | NoLengthControl, Field(discriminator="kind")]


class Recipe(Spec):
    """The algorithm, with the site it runs on once `on(site)` has been called."""

    name: str = "scalerl"
    loss: Loss = Cispo()
    aggregation: Literal["prompt_mean", "sample_mean", "token_mean"] = Field(
        default="prompt_mean",
        description="what weighs the same in the loss: every prompt, every completion, every token",
    )
    advantage: Literal["batch", "prompt", "none"] = Field(
        default="batch", description="whose standard deviation divides the group-centred reward"
    )
    staleness: Staleness = PipelineRLSpec()
    kv_on_push: Literal["keep", "recompute"] = Field(
        default="keep",
        description="whether the KV cache of running completions is kept, stale, when weights arrive",
    )
    zero_variance: Literal["drop", "keep", "resample"] = Field(
        default="drop",
        description="groups all right or all wrong: out of the batch, in it with weight, or replaced by new prompts",
    )
    curriculum: Curriculum = NoPositiveResampling()
    length: Length = Interruption()
    head_dtype: Precision = Field(
        default="float32", description="precision of the LM head's product, both sides"
    )
    generator_head_dtype: Rounding | None = Field(
        default=None, description="overrides the generator's, to study the mismatch"
    )
    prompts_per_update: int = Field(default=48, gt=0, description="groups per optimiser step")
    group_size: int = Field(
        default=16, ge=2, description="completions per prompt; one alone has no advantage"
    )
    seed: int = Field(default=0, ge=0, lt=SEEDS, description="of everything random")
    site: Annotated[Sandbox | Cluster, Field(discriminator="kind")] | None = Field(
        default=None, description="where it runs"
    )

    @model_validator(mode="before")
    @classmethod
    def _a_site_is_a_sandbox_unless_it_says(cls, values: Any) -> Any:
        site = values.get("site") if isinstance(values, dict) else None
        if isinstance(site, dict) and "kind" not in site:
            return {**values, "site": {"kind": "sandbox", **site}}
        return values

    @model_validator(mode="after")
    def _a_cluster_rounds_no_further(self) -> "Recipe":
        if self.generator_head_dtype == "float8_e4m3" and isinstance(self.site, Cluster):
            raise ValueError(
                "generator_head_dtype = float8_e4m3 is emulated by the sandbox alone: on a cluster take "
                "float32 or bfloat16"
            )
        return self

    def on(self, site: Site) -> "Recipe":
        """The same algorithm at another site, validated as a whole."""
        return Recipe.model_validate({**self.model_dump(), "site": site.model_dump()})

    def with_seed(self, seed: int) -> "Recipe":
        return Recipe.model_validate({**self.model_dump(), "seed": seed})

    def algorithm_id(self) -> str:
        """Twelve hex digits over everything but name, seed and site: equal id, equal algorithm."""
        algorithm = self.model_dump(exclude={"name", "seed", "site"})
        return hashlib.sha256(canonical_json(algorithm).encode()).hexdigest()[:12]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
