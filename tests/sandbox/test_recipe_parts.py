"""What each part of a recipe does to a run of the tiny world."""

from pathlib import Path

import pytest
import torch
from tiny_policies import full_logp, worst
from tiny_runs import check_lags, completions, copy_weights, of_kind, play, quiet_recipe

from sandbox.model import load_policy
from sandbox.world import start_policy
from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scenarios.scenario import RECIPES
from scenarios.worlds import open_world


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.toml")))
def test_every_named_recipe_trains(name: str) -> None:
    world, _, events = play(quiet_recipe("site.updates=5", "group_size=4", name=name))
    updates = of_kind(events, "update")
    assert len(updates) == 5 and world.version > 0
    assert any(event["grad_norm"] for event in updates)
    assert all(0 <= event["pass_rate"] <= 1 for event in updates)
    moved = [
        (after - world.weights[0][name]).abs().max().item()
        for name, after in copy_weights(world.policy).items()
    ]
    assert min(moved) > 0, "a parameter that nothing trains"
    check_lags(world, updates, world.recipe.staleness.k)


def test_there_are_six_named_recipes() -> None:
    assert len(list(RECIPES.glob("*.toml"))) == 6


def test_dynamic_sampling_trains_on_mixed_groups_only() -> None:
    world, state, events = play(quiet_recipe("zero_variance=resample", "site.updates=6"))
    updates = of_kind(events, "update")
    assert all(len(groups) == 8 for _, groups in world.batches)
    assert not any(group.zero_variance for _, groups in world.batches for group in groups)
    assert all(event["zero_variance"] == 0 and not event["skipped"] for event in updates)
    assert state.rejected > 0
    check_lags(world, updates, 8)


def test_the_overlong_penalty_lowers_rewards_of_long_right_answers_only() -> None:
    """14 tokens in all, the last 7 of them penalised: 1 + clip((14 - length) / 7 - 1, -1, 0)."""
    world, _, events = play(
        quiet_recipe(
            "length.kind=overlong_penalty",
            "length.cache=0.5",
            "site.thinking_tokens=10",
            "site.updates=6",
        )
    )
    penalised = 0
    for _, c in completions(world):
        assert c.length_tokens <= 14
        assert not c.interrupted and all(c.sampled)
        expected = min(1.0, max(0.0, (14 - c.length_tokens) / 7)) if c.correct else -1.0
        assert c.reward == pytest.approx(expected)
        penalised += c.correct and c.reward < 1
    assert penalised > 0
    assert all(event["interrupted"] == 0 for event in of_kind(events, "update"))
    assert any(event["truncated"] > 0 for event in of_kind(events, "update"))


def test_temperature_is_on_both_sides() -> None:
    """At lag 0 the trainer's log-probs are the generator's, so no tempering has been forgotten."""
    _, _, events = play(quiet_recipe("site.temperature=0.6", "site.updates=1"))
    assert abs(of_kind(events, "update")[0]["kl"]) < 1e-10


@pytest.mark.parametrize(
    ("heads", "least", "most"),
    [
        (["head_dtype=float32"], 0.0, 1e-10),
        (["head_dtype=bfloat16"], 0.0, 1e-6),
        (["generator_head_dtype=bfloat16"], 1e-6, 1e-2),
    ],
)
def test_a_coarser_head_of_the_generator_is_a_mismatch_at_lag_0(
    heads: list[str], least: float, most: float
) -> None:
    world, _, events = play(quiet_recipe(*heads, "site.updates=1"))
    (event,) = of_kind(events, "update")
    assert event["lag_tokens"] == [event["trained_tokens"]]
    assert least <= abs(event["kl"]) <= most
    start = load_policy(start_policy("digit_sum"))
    errors = [
        worst(c.logp, full_logp(start, group.prompt_ids, c.token_ids), c.sampled)
        for group, c in completions(world)
    ]
    assert (max(errors) > 1e-3) is ("bfloat16" in heads[0])


# --- a loss of the user's own ---

LOSS = """
def scaled(logp_BT, behavior_logp_BT, adv_B, mask_BT, *, scale):
    return (-scale * adv_B[:, None] * logp_BT).masked_fill(~mask_BT, 0.0)
"""


def custom(folder: Path, scale: float) -> Recipe:
    path = folder / "my_loss.py"
    path.write_text(LOSS)
    return quiet_recipe(
        "loss.kind=custom",
        f"loss.function={path}:scaled",
        f"loss.keywords.scale={scale}",
        "site.updates=4",
    )


def test_a_custom_loss_trains_when_code_is_allowed(tmp_path: Path) -> None:
    """REINFORCE written by hand gives the weights of REINFORCE as shipped; with the sign turned, others."""
    mine, _, events = play(custom(tmp_path, 1.0), allow_code=True)
    shipped, _, _ = play(quiet_recipe("loss.kind=reinforce", "site.updates=4"))
    turned, _, _ = play(custom(tmp_path, -1.0), allow_code=True)
    assert mine.version == 4
    for name, weight in shipped.policy.state_dict().items():
        torch.testing.assert_close(mine.policy.state_dict()[name], weight, atol=1e-6, rtol=0)
    embedding = "model.embed_tokens.weight"
    assert not torch.equal(mine.weights[1][embedding], turned.weights[1][embedding])
    assert all(event["capped"] is None for event in of_kind(events, "update"))


def test_a_custom_loss_is_refused_when_code_is_not_allowed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--allow-code"):
        open_world(custom(tmp_path, 1.0))
