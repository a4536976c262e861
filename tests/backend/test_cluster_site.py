"""The cluster as a site: which settings are refused and how, which sites there are, and what stays the recipe's."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.site import PHRASE, Cluster
from scenarios.scenario import SITES, plan
from scenarios.worlds import open_world

VIRTUAL = {"sandbox", "search", "formulas", "mixture"}
CLUSTERS = sorted({path.stem for path in SITES.glob("*.toml")} - VIRTUAL)


def on(site: str, *overrides: str, name: str = "scalerl") -> Recipe:
    (only,) = plan(name, overrides, site=site)
    return only.recipe


def cluster(recipe: Recipe) -> Cluster:
    assert isinstance(recipe.site, Cluster)
    return recipe.site


def refusal(*overrides: str, site: str = "cpu-cluster") -> str:
    with pytest.raises(InputError) as error:
        plan("scalerl", overrides, site=site)
    said = str(error.value)
    assert "\n" not in said
    return said


# --- refusals ---


@pytest.mark.parametrize("setting", ["top_p=0.9", "top_k=50", "min_p=0.1"])
def test_truncated_sampling_is_refused(setting: str) -> None:
    key, _, value = setting.partition("=")
    said = refusal(f"site.{setting}")
    assert said.startswith(f"site.{key} = {value} (from the command line): must be at ")
    assert "its log-probs are not the policy's" in said


@pytest.mark.parametrize("setting", ["top_p=1.0", "top_k=0", "min_p=0.0"])
def test_whole_sampling_may_be_written_down(setting: str) -> None:
    on("cpu-cluster", f"site.{setting}")


def test_a_phrase_that_leaves_thinking_open_is_refused() -> None:
    said = refusal("site.interruption_phrase=time-is-up")
    assert said.startswith("site.interruption_phrase = 'time-is-up' (from the command line): ")
    assert "must end with think_close = '</think>'" in said


def test_a_mark_that_the_phrase_does_not_end_with_is_refused() -> None:
    said = refusal("site.think_close=</thought>")
    assert said.startswith(
        "site.interruption_phrase = 'time-is-up </think>' (from cpu-cluster.toml)"
    )
    assert "must end with think_close = '</thought>'" in said


def test_a_stop_below_the_alarm_is_refused() -> None:
    said = refusal("site.mismatch_alarm=0.2", "site.mismatch_stop=0.1")
    assert said.startswith("site.mismatch_stop = 0.1 (from the command line): ")
    assert "must be at least mismatch_alarm = 0.2" in said


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("mismatch_alarm=0.2", "site.mismatch_stop = 0.1 ("),
        ("think_close=</thought>", f"site.interruption_phrase = {PHRASE!r} ("),
    ],
)
def test_a_default_that_does_not_go_with_a_setting_is_refused(setting: str, said: str) -> None:
    assert refusal(f"site.{setting}", site="gb200-8b").startswith(said)


def test_a_stop_equal_to_the_alarm_is_not() -> None:
    site = cluster(on("cpu-cluster", "site.mismatch_alarm=0.05", "site.mismatch_stop=0.05"))
    assert site.mismatch_stop == site.mismatch_alarm == 0.05


@pytest.mark.parametrize(
    "setting",
    ["generators=0", "evaluators=2", "answer_tokens=1", "push_timeout_s=0", "dtype=float16"],
)
def test_other_values_out_of_range_are_named(setting: str) -> None:
    key, _, value = setting.partition("=")
    assert refusal(f"site.{setting}").startswith(
        (f"site.{key} = {value} ", f"site.{key} = '{value}' ")
    )


def test_what_only_the_virtual_cluster_has_is_unknown() -> None:
    assert "site.slots_per_generator" in refusal("site.slots_per_generator=4")


# --- the sites that are shipped ---


def test_they_are_these() -> None:
    assert CLUSTERS == ["cpu-cluster", "gb200-8b", "gb200-8b-2048", "gb200-8b-32k"]


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_site_loads_for_every_recipe(name: str) -> None:
    for recipe in ("scalerl", "base", "deepseek-grpo", "qwen-dapo", "magistral", "minimax"):
        site = cluster(on(name, name=recipe))
        assert site.name == name and site.interruption_phrase.endswith(site.think_close)
        assert site.top_p == 1.0 and site.top_k == 0 and site.min_p == 0.0


def test_the_papers_runs_are_the_papers() -> None:
    main, large, long = (cluster(on(f"gb200-8b{which}")) for which in ("", "-2048", "-32k"))
    assert (main.generators, main.trainers, main.evaluators) == (64, 16, 1)
    assert (main.thinking_tokens, main.answer_tokens, main.prompt_tokens) == (12_288, 2048, 2048)
    assert main.interruption_phrase == PHRASE
    assert long.thinking_tokens == 32_768 and large.thinking_tokens == main.thinking_tokens
    assert main.optimizer == large.optimizer == long.optimizer
    assert main.optimizer.learning_rate == 5e-7


def test_a_site_may_set_the_size_of_the_batch() -> None:
    assert on("gb200-8b").prompts_per_update == 48
    large = on("gb200-8b-2048")
    assert large.prompts_per_update * large.group_size == 2048
    assert on("gb200-8b-2048", "prompts_per_update=64").prompts_per_update == 64


def site_file(folder: Path, table: str) -> str:
    path = folder / "mine.toml"
    path.write_text((SITES / "cpu-cluster.toml").read_text() + f"\n[recipe]\n{table}\n")
    return str(path)


def test_a_site_of_ones_own_may_too(tmp_path: Path) -> None:
    recipe = on(site_file(tmp_path, "prompts_per_update = 3\ngroup_size = 5"))
    assert (recipe.prompts_per_update, recipe.group_size) == (3, 5)


@pytest.mark.parametrize("table", ["head_dtype = 'bfloat16'", "loss = {kind = 'dapo'}", "seed = 3"])
def test_and_nothing_else_of_the_algorithm(table: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        on(site_file(tmp_path, table))
    assert str(error.value) == (
        f"{tmp_path / 'mine.toml'}: [recipe] of a site may hold prompts_per_update and group_size alone"
    )


def test_a_batch_of_the_site_is_checked_as_any_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^group_size = 1 \(from mine\.toml\)"):
        on(site_file(tmp_path, "group_size = 1"))


# --- one algorithm, many sites ---


@pytest.mark.parametrize("name", ["scalerl", "base", "magistral"])
def test_the_algorithm_is_the_same_on_every_site(name: str) -> None:
    ids = {on(site, name=name).algorithm_id() for site in ("sandbox", "cpu-cluster", "gb200-8b")}
    assert len(ids) == 1
    assert on("gb200-8b-2048", name=name).algorithm_id() not in ids  # the batch is of the algorithm


def test_a_setting_of_the_site_is_not_of_the_algorithm() -> None:
    other = on("cpu-cluster", "site.push_timeout_s=3", "site.temperature=0.7")
    assert other.algorithm_id() == on("cpu-cluster").algorithm_id()


@pytest.mark.skipif(
    bool(find_spec("vllm") and find_spec("ray")), reason="this Python has both vllm and ray"
)
def test_a_cluster_without_its_libraries_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        open_world(on("cpu-cluster"), folder=tmp_path)
    assert str(error.value) == (
        "a cluster site needs ray and vllm, which this Python does not have: "
        "make cluster, then .venv-cluster/bin/scalerl"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_and_its_site_survive_being_written() -> None:
    for name in CLUSTERS:
        recipe = on(name)
        assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
