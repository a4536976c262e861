"""The site: where a recipe runs, at which size, and for how long. Everything that depends on scale is here.

`Sandbox` is the tiny world on a virtual cluster, `Cluster` is vLLM and FSDP2 on real devices. One recipe runs on
either; `Recipe.algorithm_id` does not look at the site.
"""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from scalerl.hardware import Hardware
from scalerl.spec import Spec

Precision = Literal["float32", "bfloat16"]
Rounding = Literal["float32", "bfloat16", "float8_e4m3"]
# what the paper forces into a completion that has thought for too long
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
WHOLE = "truncated sampling is refused for training: its log-probs are not the policy's"


class Optimizer(Spec):
    """AdamW with linear warm-up to a constant learning rate."""

    learning_rate: float = Field(gt=0, description="step size after the warm-up")
    warmup_updates: int = Field(default=100, ge=0, description="optimiser steps of linear warm-up")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(default=1e-15, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(default=0.01, ge=0, description="decoupled weight decay")


class Evaluation(Spec):
    """Held-out evaluation: pinned to one version, on its own devices, outside C."""

    every_updates: int = Field(
        gt=0, description="updates between evaluations of the validation set"
    )
    prompts: int = Field(
        default=256,
        gt=0,
        description="validation prompts: the first so many of the fixed held-out set",
    )
    completions: int = Field(
        default=8, ge=2, description="completions per prompt; 2 or more, for the standard error"
    )
    ood_every_updates: int = Field(
        default=0, ge=0, description="updates between out-of-distribution evaluations; 0 = never"
    )
    benchmark_every_updates: int = Field(
        default=0, ge=0, description="updates between runs of the task's mini-benchmark; 0 = never"
    )

    @property
    def cadence(self) -> dict[str, int]:
        """Updates between the evaluations of each set that is evaluated at all."""
        every = {
            "validation": self.every_updates,
            "ood": self.ood_every_updates,
            "benchmark": self.benchmark_every_updates,
        }
        return {name: updates for name, updates in every.items() if updates}


class Data(Spec):
    """What is changed of the training prompts and of their verifier. Evaluation always asks the task as it is."""

    levels: list[int] = Field(
        default=[],
        description="train only on prompts of these difficulty levels; none named = all",
    )
    unanswerable: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training prompts to which the verifier takes no answer",
    )
    right_as_wrong: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of correct training completions that the verifier calls wrong",
    )
    wrong_as_right: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of wrong training completions that the verifier calls correct",
    )


Act = Literal["warn", "stop"]


class Supervision(Spec):
    """What a run does about its own troubles: it always says them; `stop` ends it, with its checkpoints kept."""

    not_finite: Literal["stop", "skip"] = Field(
        default="stop",
        description="a loss or gradient that is not a number: end the run, or pass over the batch",
    )
    not_learning: Act = Field(
        default="warn", description="the pass rate ends well below where it stood"
    )
    no_variance: Act = Field(
        default="warn", description="nine groups of ten all right or all wrong, or nothing trained"
    )
    starved: Act = Field(
        default="warn", description="a batch waited for ten times as long as an update took before"
    )


class Site(Spec):
    """What every site has."""

    kind: str  # which of the kinds below
    name: str = Field(description="shown in reports")
    task: str = Field(
        default="digit_sum",
        description="a task of the sandbox, several as A+B, or one of your own: FILE.py:FN or gym:ID",
    )
    data: Data = Data()
    policy: str = Field(
        default="digit_sum",
        description="start policy: a shipped name or a folder in Hugging Face layout",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto = cuda when present"
    )
    updates: int = Field(gt=0, description="batches to consume, skipped ones included")
    thinking_tokens: int = Field(gt=0, description="thinking budget of a completion")
    answer_tokens: int = Field(
        gt=1, description="tokens allowed after thinking has closed, end of sequence included"
    )
    temperature: float = Field(
        default=1.0, gt=0, description="of sampling; the trainer divides its logits by it too"
    )
    optimizer: Optimizer
    evaluation: Evaluation
    micro_batch_tokens: int = Field(
        default=16_384,
        gt=0,
        description="tokens per forward pass of one rank; results do not depend on it",
    )
    checkpoint_every_updates: int = Field(
        default=50, gt=0, description="updates between checkpoints"
    )
    keep_checkpoints: int = Field(
        default=3, ge=2, description="newest checkpoints that stay; older ones are removed"
    )
    stall_s: float = Field(
        default=21_600.0,
        gt=0,
        description="end a run in which nothing finishes for so many seconds of its clock",
    )
    supervision: Supervision = Supervision()


class Sandbox(Site):
    """The tiny world on a virtual cluster: real policy gradient, simulated clock."""

    kind: Literal["sandbox"] = "sandbox"  # pyright: ignore[reportIncompatibleVariableOverride]
    name: str = Field(default="sandbox", description="shown in reports")
    generators: int = Field(default=64, gt=0, description="GPUs that generate")
    trainers: int = Field(default=16, gt=0, description="GPUs that train")
    evaluators: int = Field(default=8, gt=0, description="GPUs that evaluate, outside C")
    slots_per_generator: int = Field(
        default=32, gt=0, description="completions that one generator decodes at a time"
    )
    micro_batch_tokens: int = Field(
        default=4096,  # of the tiny policy's activations so many stay in a processor's cache
        gt=0,
        description="tokens per forward pass, padding included; results do not depend on it",
    )
    generator_dtype: Rounding = Field(
        default="float32",
        description="to which generators and evaluators round weights, inputs of linear layers, keys and values",
    )
    hardware: Hardware = Field(
        default=Hardware(), description="what the virtual GPUs cost in seconds"
    )


class Cluster(Site):
    """vLLM generators and FSDP2 trainers in Ray actors, on the wall clock."""

    kind: Literal["cluster"] = "cluster"  # pyright: ignore[reportIncompatibleVariableOverride]
    name: str = Field(default="cluster", description="shown in reports")
    generators: int = Field(default=2, gt=0, description="vLLM engines that generate, a GPU each")
    trainers: int = Field(default=2, gt=0, description="FSDP2 ranks that train, a GPU each")
    evaluators: Literal[1] = Field(
        default=1, description="vLLM engines that evaluate pinned weights, outside C"
    )
    sequences_per_generator: int = Field(
        default=256, gt=0, description="completions that one generator decodes at a time"
    )
    prompt_tokens: int = Field(default=2048, gt=0, description="most tokens of a prompt")
    kv_cache_gib: float | None = Field(
        default=None,
        gt=0,
        description="KV cache of an engine; none = what vLLM finds free, on a CPU 1",
    )
    dtype: Precision = Field(
        default="bfloat16",
        description="of weights and activations in both engines; the trainer's master weights are float32",
    )
    activation_checkpointing: bool = Field(
        default=True, description="compute activations again in the backward pass: less memory"
    )
    think_close: str = Field(
        default="</think>", min_length=1, description="the one token that ends thinking"
    )
    interruption_phrase: str = Field(
        default=PHRASE,
        min_length=1,
        validate_default=True,
        description="what is forced when thinking is cut; ends with `think_close`",
    )
    temperature: float = Field(
        default=1.0,
        ge=0.01,
        description="of sampling; the trainer divides its logits by it too; vLLM knows none below 0.01",
    )
    top_p: float = Field(default=1.0, ge=1, le=1, description=WHOLE)
    top_k: int = Field(default=0, ge=0, le=0, description=WHOLE)
    min_p: float = Field(default=0.0, ge=0, le=0, description=WHOLE)
    push_timeout_s: float = Field(
        default=120.0, gt=0, description="most seconds of one phase of a weight push"
    )
    push_bucket_mib: float = Field(
        default=512.0, gt=0, description="weights gathered and sent at a time, in MiB"
    )
    step_timeout_s: float = Field(
        default=1800.0,
        gt=0,
        description="most seconds of one step of the trainers, or of a checkpoint",
    )
    start_timeout_s: float = Field(
        default=1800.0, gt=0, description="most seconds until an engine or the trainers are up"
    )
    generator_restarts: int = Field(
        default=8,
        ge=0,
        description="lost generators that are replaced; after that the others go on",
    )
    probe_completions: int = Field(
        default=4,
        gt=0,
        description="completions that each generator samples after a push, as a test",
    )
    probe_tokens: int = Field(default=32, gt=0, description="most tokens of one of those")
    mismatch_alarm: float = Field(
        default=0.01,
        gt=0,
        description="warn when KL(trainer || generator) on them is above this, in nats a token",
    )
    mismatch_stop: float = Field(
        default=0.1,
        gt=0,
        validate_default=True,
        description="end the run when it is above this, in nats a token",
    )

    @model_validator(mode="after")
    def _a_step_is_no_stall(self) -> "Cluster":
        if self.stall_s <= self.step_timeout_s:
            raise ValueError(
                f"stall_s = {self.stall_s:g} must be above step_timeout_s = {self.step_timeout_s:g}"
            )
        return self

    @field_validator("interruption_phrase")
    @classmethod
    def _closes_thinking(cls, phrase: str, info: ValidationInfo) -> str:
        close = info.data.get("think_close", phrase)
        if not phrase.endswith(close):
            raise ValueError(f"must end with think_close = {close!r}, or thinking would stay open")
        return phrase

    @field_validator("mismatch_stop")
    @classmethod
    def _alarm_comes_first(cls, stop: float, info: ValidationInfo) -> float:
        alarm = info.data.get("mismatch_alarm", stop)
        if alarm > stop:
            raise ValueError(f"must be at least mismatch_alarm = {alarm}")
        return stop
