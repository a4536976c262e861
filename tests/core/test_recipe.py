"""Recipes: shipped values, what identifies an algorithm, and the range of every value."""

import inspect
import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from recipes import RECIPES, SITE, load, refusal

from scalerl.losses import CAPPED, LOSSES
from scalerl.recipe import (
    CustomLoss,
    Interruption,
    Loss,
    PPOOffPolicySpec,
    Recipe,
    canonical_json,
)
from scalerl.settings import (
    read_toml,
)
from scalerl.site import Evaluation, Optimizer, Sandbox

# ---- what is shipped ----

CISPO = {"kind": "cispo", "eps_max": 5.0}
DAPO = {"kind": "dapo", "clip_low": 0.2, "clip_high": 0.26}
CUT = {"kind": "interruption", "low": 0.8333, "high": 1.0}
OFF_8 = {"kind": "ppo_off_policy", "k": 8}
BASE = {
    "name": "base",
    "loss": DAPO,
    "aggregation": "sample_mean",
    "advantage": "prompt",
    "staleness": {"kind": "pipeline", "k": 8},
    "kv_on_push": "keep",
    "zero_variance": "keep",
    "curriculum": {"kind": "uniform"},
    "length": CUT,
    "head_dtype": "bfloat16",
    "generator_head_dtype": None,
    "prompts_per_update": 48,
    "group_size": 16,
    "seed": 0,
    "site": None,
}
SHIPPED: dict[str, dict[str, Any]] = {
    "base": BASE,
    "scalerl": {
        **BASE,
        "loss": CISPO,
        "aggregation": "prompt_mean",
        "advantage": "batch",
        "zero_variance": "drop",
        "curriculum": {"kind": "no_positive_resampling", "threshold": 0.9},
        "head_dtype": "float32",
    },
    "deepseek-grpo": {
        **BASE,
        "loss": {"kind": "grpo", "clip_low": 0.2, "clip_high": 0.2},
        "staleness": OFF_8,
    },
    # 80 * 16 = 1,280 completions
    "qwen-dapo": {
        **BASE,
        "aggregation": "prompt_mean",
        "staleness": OFF_8,
        "zero_variance": "drop",
        "prompts_per_update": 80,
    },
    "magistral": {**BASE, "aggregation": "prompt_mean"},
    "minimax": {
        **BASE,
        "loss": CISPO,
        "aggregation": "prompt_mean",
        "staleness": OFF_8,
        "zero_variance": "drop",
        "head_dtype": "float32",
        "prompts_per_update": 80,
    },
}
COMPLETIONS = {  # per update, paper's Figure 2
    "base": 768,
    "scalerl": 768,
    "deepseek-grpo": 768,
    "qwen-dapo": 1280,
    "magistral": 768,
    "minimax": 1280,
}


def test_every_shipped_recipe_is_in_the_table() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} == SHIPPED.keys() == COMPLETIONS.keys()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_has_the_papers_values(name: str) -> None:
    recipe = load(name)
    assert recipe.model_dump() == {**SHIPPED[name], "name": name}
    assert recipe.prompts_per_update * recipe.group_size == COMPLETIONS[name]


def test_shipped_recipes_are_different_algorithms() -> None:
    assert len({load(name).algorithm_id() for name in SHIPPED}) == len(SHIPPED)


def test_scalerl_toml_is_the_default_and_spells_it_out() -> None:
    """No default stands in two places with two values, and no design choice is left unsaid in the file."""
    written = read_toml(RECIPES / "scalerl.toml")
    unsaid = set(Recipe.model_fields) - set(written)
    assert unsaid == {"seed", "site", "generator_head_dtype"}
    recipe = load("scalerl")
    for field in Recipe.model_fields:
        assert getattr(recipe, field) == getattr(Recipe(), field), field


def test_defaults_of_the_site_are_the_papers() -> None:
    # AdamW of section 2: eps 1e-15, weight decay 0.01, 100 warm-up updates; 64 + 16 GPUs
    site = Recipe.model_validate({"site": SITE}).site
    assert site is not None
    optimizer = site.optimizer
    assert (optimizer.eps, optimizer.weight_decay, optimizer.warmup_updates) == (1e-15, 0.01, 100)
    assert (optimizer.beta1, optimizer.beta2) == (0.9, 0.999)
    assert (site.generators, site.trainers, site.temperature) == (64, 16, 1.0)
    # Overlong penalty: a cache of 2k in a budget of 14k
    penalty = load("scalerl", "length.kind=overlong_penalty").model_dump()["length"]
    assert penalty == {"kind": "overlong_penalty", "cache": pytest.approx(2 / 14)}
    # GSPO 3e-3 / 4e-3
    gspo = load("scalerl", "loss.kind=gspo").model_dump()["loss"]
    assert gspo == {"kind": "gspo", "clip_low": 3e-3, "clip_high": 4e-3}


LOSS_SPECS = {
    spec.model_fields["kind"].default: spec
    for spec in get_args(get_args(Loss)[0])
    if spec is not CustomLoss
}


def test_every_loss_has_a_spec_and_every_spec_a_loss() -> None:
    assert LOSS_SPECS.keys() == LOSSES.keys() == CAPPED.keys()


@pytest.mark.parametrize("kind", sorted(LOSSES))
def test_fields_of_a_loss_are_the_keywords_of_its_function(kind: str) -> None:
    fields = LOSS_SPECS[kind].model_fields.keys() - {"kind"}
    for function in (LOSSES[kind], CAPPED[kind]):
        parameters = inspect.signature(function).parameters.values()
        assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == fields
        # no default: the recipe is the one place that has it
        assert all(p.default is p.empty for p in parameters)


# ---- what an algorithm is ----

CHANGES = [
    "loss.eps_max=4",
    "loss.kind=reinforce",
    "aggregation=token_mean",
    "advantage=none",
    "staleness.k=4",
    "staleness.kind=ppo_off_policy",
    "kv_on_push=recompute",
    "zero_variance=keep",
    "curriculum.threshold=0.8",
    "curriculum.kind=uniform",
    "length.low=0.5",
    "length.kind=none",
    "head_dtype=bfloat16",
    "generator_head_dtype=bfloat16",
    "prompts_per_update=47",
    "group_size=8",
]


def test_algorithm_id_sees_every_field_but_three() -> None:
    changed = {change.partition("=")[0].partition(".")[0] for change in CHANGES}
    assert changed == Recipe.model_fields.keys() - {"name", "seed", "site"}
    ids = [load("scalerl", change).algorithm_id() for change in CHANGES]
    assert len({load("scalerl").algorithm_id(), *ids}) == len(CHANGES) + 1
    assert all(len(i) == 12 and set(i) <= set("0123456789abcdef") for i in ids)


def test_algorithm_id_ignores_name_seed_and_site() -> None:
    plain = load("scalerl").algorithm_id()
    assert load("scalerl", "name=other", "seed=7", site=True).algorithm_id() == plain
    moved = load("scalerl", "site.updates=9", "site.optimizer.learning_rate=1", site=True)
    assert moved.algorithm_id() == plain
    # spelled otherwise, the same algorithm
    assert load("scalerl", "loss.eps_max=5", "staleness={kind='pipeline', k=8}").algorithm_id() == (
        plain
    )


def test_algorithm_id_is_the_same_in_every_process() -> None:
    code = "from scalerl.recipe import Recipe; print(Recipe().algorithm_id())"
    ids = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(RECIPES.parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert ids == {Recipe().algorithm_id()}


def test_canonical_json() -> None:
    assert canonical_json({"b": 1.0, "a": {"d": None, "c": "x"}}) == (
        '{"a":{"c":"x","d":null},"b":1.0}'
    )


def test_on_and_with_seed_return_new_recipes() -> None:
    site = Sandbox(
        updates=2,
        thinking_tokens=8,
        answer_tokens=2,
        optimizer=Optimizer(learning_rate=0.5),
        evaluation=Evaluation(every_updates=1),
    )
    recipe = Recipe(seed=3)
    placed = recipe.on(site)
    assert placed.site == site and placed.seed == 3 and recipe.site is None
    assert placed.with_seed(5).seed == 5 and placed.seed == 3
    assert placed.with_seed(5).site == site
    with pytest.raises(ValidationError):
        recipe.with_seed(-1)


def test_frozen_all_the_way_down() -> None:
    recipe = load("scalerl", site=True)
    assert isinstance(recipe.site, Sandbox)
    for record, field in [
        (recipe, "seed"),
        (recipe.loss, "eps_max"),
        (recipe.staleness, "k"),
        (recipe.site, "updates"),
        (recipe.site.optimizer, "eps"),
        (recipe.site.evaluation, "prompts"),
        (recipe.site.hardware, "push_s"),
    ]:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(record, field, getattr(record, field))


@pytest.mark.parametrize(
    "table",
    [
        *("", "loss", "staleness", "curriculum", "length"),
        *("site", "site.optimizer", "site.evaluation", "site.hardware"),
    ],
)
def test_unknown_keys_are_refused_everywhere(table: str) -> None:
    key = f"{table}.zzz" if table else "zzz"
    assert f"unknown key {key!r} (from the command line)" in refusal(f"{key}=1")


def test_recipes_and_the_rules_above_them_need_no_torch() -> None:
    modules = "recipe settings staleness curriculum length clock compute hardware events task state"
    code = f"""
import sys
for name in {modules.split()!r}:
    __import__("scalerl." + name)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- ranges: both sides of every boundary ----


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("loss.eps_max=1.0001", "loss.eps_max=1"),
        ("staleness.k=0", "staleness.k=-1"),
        ("curriculum.threshold=1", "curriculum.threshold=1.01"),
        ("curriculum.threshold=0.01", "curriculum.threshold=0"),
        ("length.low=1.0", "length.low=0"),
        ("length.high=0.8333", "length.high=1.1"),
        ("prompts_per_update=1", "prompts_per_update=0"),
        ("group_size=2", "group_size=1"),
        ("seed=0", "seed=-1"),
        ("site.updates=1", "site.updates=0"),
        ("site.thinking_tokens=1", "site.thinking_tokens=0"),
        ("site.answer_tokens=2", "site.answer_tokens=1"),
        ("site.temperature=0.01", "site.temperature=0"),
        ("site.optimizer.warmup_updates=0", "site.optimizer.warmup_updates=-1"),
        ("site.optimizer.beta2=0", "site.optimizer.beta2=1"),
        ("site.optimizer.weight_decay=0", "site.optimizer.weight_decay=-0.1"),
        ("site.evaluation.completions=2", "site.evaluation.completions=1"),
        ("site.evaluation.ood_every_updates=0", "site.evaluation.ood_every_updates=-1"),
        ("site.hardware.decode_efficiency=1", "site.hardware.decode_efficiency=1.1"),
    ],
)
def test_boundaries(good: str, bad: str) -> None:
    load("scalerl", good, site=True)
    key = bad.partition("=")[0]
    assert refusal(bad).startswith(f"{key} = "), "the message begins with the key"


@pytest.mark.parametrize("kind", ["dapo", "grpo", "gspo"])
def test_boundaries_of_the_clips(kind: str) -> None:
    load("scalerl", f"loss.kind={kind}", "loss.clip_low=0.99", "loss.clip_high=7")
    for bad in ("loss.clip_low=0", "loss.clip_low=1", "loss.clip_high=0"):
        assert bad.partition("=")[0] in refusal(f"loss.kind={kind}", bad)


def test_off_policy_needs_a_batch() -> None:
    assert load("minimax", "staleness.k=1").staleness == PPOOffPolicySpec(k=1)
    assert "staleness.k = 0" in refusal("staleness.k=0", name="minimax")


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("key", ["loss.eps_max", "site.optimizer.learning_rate"])
def test_settings_are_finite(key: str, value: str) -> None:
    """An event log has no word for infinity: let through here, it ends the run at its first event."""
    assert refusal(f"{key}={value}").startswith(f"{key} = {value} (from the command line)")


def test_low_above_high_is_a_contradiction() -> None:
    assert Interruption(low=0.5, high=0.5).low == 0.5
    text = refusal("length.low=0.9", "length.high=0.8")
    assert "length" in text and "low = 0.9 must be at most high = 0.8" in text
