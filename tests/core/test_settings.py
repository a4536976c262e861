"""Settings in layers: overrides, files, and errors that name key, value, range and origin."""

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator
from recipes import RECIPES, SITE, layered, load, refusal

from scalerl.errors import InputError
from scalerl.recipe import (
    Cispo,
    Gspo,
    PipelineRLSpec,
    Recipe,
    Spec,
)
from scalerl.settings import (
    Layers,
    find,
    parse_override,
    read_layers,
    read_toml,
    to_toml,
)

# ---- overrides ----


def test_a_value_is_toml_and_a_bare_word_a_string() -> None:
    assert parse_override("loss.eps_max=4") == ("loss.eps_max", 4)
    assert parse_override(" seed = 3 ") == ("seed", 3)
    assert parse_override("name=scalerl") == ("name", "scalerl")
    assert parse_override('name="4"') == ("name", "4")
    assert parse_override("set=[1, 2]") == ("set", [1, 2])
    assert parse_override("loss.function=a.py:f=g") == ("loss.function", "a.py:f=g")


@pytest.mark.parametrize("argument", ["seed", "=3", " = 3", ""])
def test_what_is_not_an_override(argument: str) -> None:
    with pytest.raises(InputError, match=r"is not KEY=VALUE, e\.g\. loss\.eps_max=4"):
        parse_override(argument)


def test_a_kind_drops_the_keys_of_the_other_kind() -> None:
    # the file's eps_max, clip_low and threshold must not survive in the new kinds
    assert load("scalerl", "loss.kind=gspo").loss == Gspo()
    assert load("base", "loss.kind=cispo").loss == Cispo()
    assert load("deepseek-grpo", "staleness.kind=pipeline").staleness == PipelineRLSpec(k=8)
    assert load("scalerl", "curriculum.kind=uniform").curriculum.model_dump() == {"kind": "uniform"}


def test_the_same_kind_keeps_what_was_set() -> None:
    recipe = load("base", "loss.kind=dapo", "loss.clip_high=0.3")
    assert recipe.loss.model_dump() == {"kind": "dapo", "clip_low": 0.2, "clip_high": 0.3}


@settings(max_examples=20, deadline=None)
@given(
    st.permutations(
        [
            *("loss.kind=gspo", "loss.clip_low=0.1", "loss.clip_high=0.2", "staleness.k=3"),
            *("length.kind=overlong_penalty", "length.cache=0.5", "name=x", "seed=4"),
        ]
    )
)
def test_order_of_overrides_does_not_matter(arguments: list[str]) -> None:
    recipe = load("scalerl", *arguments)
    assert recipe.loss.model_dump() == {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.2}
    assert recipe.length.model_dump() == {"kind": "overlong_penalty", "cache": 0.5}
    assert (recipe.seed, recipe.name, recipe.staleness) == (4, "x", PipelineRLSpec(k=3))


def test_order_does_not_matter_for_a_whole_table_either() -> None:
    table, key = "loss={kind='dapo', clip_high=0.3}", "loss.clip_low=0.1"
    expected = {"kind": "dapo", "clip_low": 0.1, "clip_high": 0.3}
    assert load("scalerl", table, key).loss.model_dump() == expected
    assert load("scalerl", key, table).loss.model_dump() == expected
    # a table inside a table
    outer, inner = "loss={kind='custom', function='a.py:f'}", "loss.keywords={x=1.0}"
    expected = {"kind": "custom", "function": "a.py:f", "keywords": {"x": 1.0}}
    assert load("scalerl", outer, inner).loss.model_dump() == expected
    assert load("scalerl", inner, outer).loss.model_dump() == expected


def test_the_last_of_two_values_wins() -> None:
    assert load("scalerl", "seed=1", "seed=2").seed == 2


# ---- errors say key, value, range, origin ----


def test_a_mistyped_key_is_named_with_the_one_that_was_meant() -> None:
    text = refusal("loss.eps_mx=4")
    assert text == (
        "unknown key 'loss.eps_mx' (from the command line): did you mean 'loss.eps_max'? "
        "Valid here: loss.kind, loss.eps_max"
    )
    assert "did you mean 'site.optimizer.learning_rate'" in refusal("site.optimizer.learn_rate=1")
    assert "did you mean 'aggregation'" in refusal("agregation=token_mean")
    assert "did you mean" not in refusal("qqqq=1")


def test_a_value_out_of_range_is_named_with_the_range() -> None:
    text = refusal("loss.eps_max=0.5")
    assert text.startswith("loss.eps_max = 0.5 (from the command line): must be above 1; ")
    assert "it is not 1 + 5" in text  # the description, which says what a reader gets wrong
    text = refusal("loss.clip_low=2", name="base")
    assert "must be above 0 and below 1" in text
    assert "must be at least 0" in refusal("staleness.k=-3")
    assert "must be at most 1" in refusal("curriculum.threshold=2").replace("above 0 and ", "")


def test_a_word_outside_the_choices() -> None:
    text = refusal("head_dtype=fp8")
    assert text.startswith("head_dtype = 'fp8' (from the command line): ")
    assert "must be 'float32' or 'bfloat16'" in text
    text = refusal("loss.kind=ppo")
    assert "loss.kind = 'ppo' (from the command line): must be one of 'cispo', 'dapo'" in text


def test_a_value_of_the_wrong_type() -> None:
    text = refusal("staleness.k=many")
    assert text.startswith("staleness.k = 'many' (from the command line): input should be a valid")
    assert "(must be at least 0; no trained token" in text
    assert "loss.keywords.x = 'y'" in refusal(
        "loss.kind=custom", "loss.function=a.py:f", "loss.keywords.x=y"
    )


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("staleness=pipeline", "staleness.kind="),
        ("loss=cispo", "loss.kind="),
        ("length=4", "length.kind="),
    ],
)
def test_a_kind_without_its_key_is_told_where_it_goes(override: str, hint: str) -> None:
    """The most natural mistake: `staleness=pipeline` for `staleness.kind=pipeline`."""
    assert hint in refusal(override)


def test_a_table_without_a_kind() -> None:
    layers = Layers()
    layers.add({"loss": {"eps_max": 4}}, "mine.toml")
    with pytest.raises(InputError, match=r"needs a table with a kind, e\.g\. loss\.kind=") as error:
        layers.build(Recipe)
    assert "(from mine.toml)" in str(error.value)


def test_what_is_missing() -> None:
    layers = Layers()
    layers.add({"site": {**SITE, "optimizer": {}}}, "small.toml")
    with pytest.raises(InputError) as error:
        layers.build(Recipe)
    assert str(error.value) == (
        "'site.optimizer.learning_rate' is missing (from small.toml): "
        "must be above 0; step size after the warm-up"
    )
    assert "'loss.function' is missing (from the command line)" in refusal("loss.kind=custom")


class Arm(Spec):
    recipe: str = Field(description="a named recipe")
    seeds: int = Field(default=1, gt=0)


class Question(Spec):
    """A model of its own: what is said of faults does not depend on recipes."""

    arms: dict[str, Arm] = Field(default={}, description="what is compared")
    mode: Annotated[Literal["fast", "slow"], Field()] | None = None

    @model_validator(mode="after")
    def _modest(self) -> "Question":
        if len(self.arms) > 2:
            raise ValueError("Two arms are enough")
        return self


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"arms": {"x": {"recipe": "a", "recipee": "b"}}},
            "unknown key 'arms.x.recipee' (from q.toml): did you mean 'arms.x.recipe'? "
            "Valid here: arms.x.recipe, arms.x.seeds",
        ),
        ({"arms": {"x": {}}}, "'arms.x.recipe' is missing (from q.toml): a named recipe"),
        (
            {"arms": {"x": {"recipe": "a", "seeds": 0}}},
            "arms.x.seeds = 0 (from q.toml): must be above 0",
        ),
        ({"mode": "idle"}, "mode = 'idle' (from q.toml): must be 'fast' or 'slow'"),
    ],
)
def test_faults_in_tables_of_the_users_own_names(values: dict[str, Any], said: str) -> None:
    layers = Layers()
    layers.add(values, "q.toml")
    with pytest.raises(InputError) as error:
        layers.build(Question)
    assert str(error.value) == said


def test_a_fault_of_the_whole() -> None:
    layers = Layers()
    layers.add({"arms": {name: {"recipe": "a"} for name in "xyz"}}, "q.toml")
    with pytest.raises(InputError, match=r"^two arms are enough$"):
        layers.build(Question)


def test_origins_of_file_parent_and_command_line(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "base"\n[loss]\nclip_high = 0.3\n')
    layers = layered(str(mine), "loss.clip_low=0.1", site=True)
    assert layers.origin("loss.clip_low") == "the command line"
    assert layers.origin("loss.clip_high") == "mine.toml"
    assert layers.origin("aggregation") == "base.toml"
    assert layers.origin("group_size") == "scalerl.toml"
    assert layers.origin("site.optimizer.eps") == "small.toml"  # the table around it
    assert layers.origin("generator_head_dtype") == "the defaults"
    recipe = layers.build(Recipe)
    assert recipe.name == "base"  # a name is inherited like any other value
    assert recipe.loss.model_dump() == {"kind": "dapo", "clip_low": 0.1, "clip_high": 0.3}


def test_the_file_is_named_when_the_fault_is_its(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "scalerl"\n[loss]\neps_max = 0.2\n')
    assert refusal("seed=1", name=str(mine)).startswith("loss.eps_max = 0.2 (from mine.toml): ")


# ---- files ----


def test_extends_in_a_circle_is_an_error(tmp_path: Path) -> None:
    for name, parent in (("one", "two"), ("two", "three"), ("three", "two")):
        (tmp_path / f"{name}.toml").write_text(f'extends = "{parent}"\n')
    with pytest.raises(InputError, match=r"recipe 'one' extends itself through two\.toml"):
        read_layers(tmp_path / "one.toml", tmp_path, "recipe")
    (tmp_path / "self.toml").write_text('extends = "self"\n')
    with pytest.raises(InputError, match="extends itself"):
        read_layers(tmp_path / "self.toml", tmp_path, "recipe")


def test_a_chain_of_files_lies_oldest_first(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("seed = 1\ngroup_size = 4\nprompts_per_update = 2\n")
    (tmp_path / "b.toml").write_text('extends = "a"\nseed = 2\ngroup_size = 8\n')
    (tmp_path / "c.toml").write_text('extends = "b"\nseed = 3\n')
    layers = read_layers(tmp_path / "c.toml", tmp_path, "recipe")
    assert layers.values == {"seed": 3, "group_size": 8, "prompts_per_update": 2}
    assert layers.origins == {
        "seed": "c.toml",
        "group_size": "b.toml",
        "prompts_per_update": "a.toml",
    }


def test_unknown_names_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        find("scaler", RECIPES, "recipe")
    assert str(error.value) == (
        "there is no recipe 'scaler': did you mean 'scalerl'? Known: base, deepseek-grpo, "
        "magistral, minimax, qwen-dapo, scalerl, or give a .toml file"
    )
    with pytest.raises(InputError, match=r"there is no recipe 'qqqq\.toml'"):
        find("qqqq.toml", RECIPES, "recipe")
    with pytest.raises(InputError, match="cannot read"):
        read_toml(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("seed = = 3\n")
    with pytest.raises(InputError, match=r"broken\.toml is not valid TOML: .*line 1"):
        read_toml(tmp_path / "broken.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(InputError, match="cannot read"):
        read_toml(tmp_path / "latin.toml")
    assert find(str(tmp_path / "broken.toml"), RECIPES, "recipe") == tmp_path / "broken.toml"


def test_numbers_too_long_to_read_are_bad_input(tmp_path: Path) -> None:
    """Python refuses to read an integer of more than 4,300 digits, with an error that is not TOML's."""
    assert refusal("seed=" + "9" * 5000).startswith("seed = ")
    assert refusal("seed=" + "[" * 5000).startswith("seed = ")
    (tmp_path / "long.toml").write_text("seed = " + "9" * 5000)
    with pytest.raises(InputError, match=r"long\.toml"):
        read_toml(tmp_path / "long.toml")


# ---- TOML out and in ----


def test_to_toml_by_hand() -> None:
    values = {"a": 1, "t": {"x": True, "u": {"y": "q"}, "v": {}}, "none": None, "b": [1.5, "s"]}
    assert to_toml(values) == (
        'a = 1\nb = [\n    1.5,\n    "s",\n]\n\n[t]\nx = true\n\n[t.u]\ny = "q"\n\n[t.v]\n'
    )


def test_a_table_of_tables_only() -> None:
    values = {"t": {"u": {"w": {"y": 1e-15}}}}
    assert tomllib.loads(to_toml(values)) == values


fractions = st.floats(0.01, 0.99)
choices: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
    "loss": st.one_of(
        st.builds(lambda x: {"kind": "cispo", "eps_max": x}, st.floats(1.5, 1e9)),
        st.builds(lambda x: {"kind": "gspo", "clip_low": x}, fractions),
        st.builds(
            lambda x: {"kind": "custom", "function": r"a \"b\".py:f", "keywords": x},
            st.dictionaries(st.sampled_from(["x", "y_2", "z"]), st.floats(-1e300, 1e300)),
        ),
    ),
    "staleness": st.builds(lambda k: {"kind": "ppo_off_policy", "k": k}, st.integers(1, 10**30)),
    "length": st.builds(lambda x: {"kind": "overlong_penalty", "cache": x}, fractions),
    "generator_head_dtype": st.sampled_from(["float32", "bfloat16"]),
    "seed": st.integers(0, 2**40 - 1),
    "site": st.builds(
        lambda x, name: {**SITE, "name": name, "hardware": {"push_s": x}},
        st.floats(0, 1e20),
        st.text("ab\\\"' é", max_size=5),
    ),
}


@settings(max_examples=30, deadline=None)
@given(st.fixed_dictionaries({}, optional=choices))
def test_a_recipe_survives_its_file(values: dict[str, Any]) -> None:
    recipe = Recipe.model_validate(values)
    layers = Layers()
    layers.add(tomllib.loads(to_toml(recipe.model_dump(mode="json"))), "recipe.toml")
    assert layers.build(Recipe) == recipe


@pytest.mark.parametrize("name", ["two\nlines", "tab\there", "bell\a", "\x7f", "a\n[loss]\nb"])
def test_control_characters_survive_a_file(name: str) -> None:
    assert tomllib.loads(to_toml({"name": name, "t": {"name": name}})) == {
        "name": name,
        "t": {"name": name},
    }


@pytest.mark.parametrize("key", ["a b", "a.b", "é"])
def test_keys_that_need_quotes_survive_a_file(key: str) -> None:
    """Keywords of a custom loss are keys of the user's choice, and Python's may be any letter."""
    values = {"loss": {"keywords": {key: 1.0}}, "other": {key: {key: 2}}}
    assert tomllib.loads(to_toml(values)) == values


# ---- fuzz: an override is taken or refused, and never anything else ----

KEYS = [
    *Recipe.model_fields,
    *(f"loss.{name}" for name in ("kind", "eps_max", "clip_low", "function", "keywords.a")),
    *(f"site.{name}" for name in ("kind", "updates", "optimizer", "optimizer.eps", "hardware.x")),
    *("staleness.k", "staleness.kind", "curriculum.threshold", "length.low", "length.high", "q"),
]
values_text = st.one_of(
    st.sampled_from(
        [
            *("cispo", "custom", "none", "keep", "1", "0", "-1", "0.5", "1e400", "nan", "true"),
            *("[]", "{}", "{kind='dapo'}", "[[1]]", "2024-01-01", "'x'", "''", "", "a:b", "1_000"),
        ]
    ),
    st.text(max_size=12),
)
arguments = st.builds(
    "{}={}".format,
    st.one_of(st.sampled_from(KEYS), st.text("abk.n ", max_size=6), st.text(max_size=4)),
    values_text,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(arguments, st.text(max_size=8)), max_size=4))
def test_any_override_is_taken_or_refused(given_arguments: list[str]) -> None:
    try:
        recipe = load("scalerl", *given_arguments, site=True)
    except InputError:
        return
    assert isinstance(recipe, Recipe)
    assert all(math.isfinite(v) for v in recipe.loss.model_dump().values() if type(v) is float)


def test_a_file_extends_its_neighbour(tmp_path: Path) -> None:
    """By its own folder, wherever the command is run from."""
    (tmp_path / "parent.toml").write_text('extends = "scalerl"\nseed = 7\n')
    (tmp_path / "child.toml").write_text('extends = "parent.toml"\ngroup_size = 8\n')
    recipe = load(str(tmp_path / "child.toml"))
    assert (recipe.seed, recipe.group_size, recipe.advantage) == (7, 8, "batch")


def test_a_mistyped_key_is_named_before_the_one_that_it_leaves_missing() -> None:
    layers = Layers()
    layers.add({"site": {**SITE, "optimizer": {"learning_rat": 1e-3}}}, "small.toml")
    with pytest.raises(
        InputError, match=r"unknown key 'site.optimizer.learning_rat' .*did you mean"
    ):
        layers.build(Recipe)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("updates=8", "site.updates"),
        ("learning_rate=1e-3", "site.optimizer.learning_rate"),
        ("k=4", "staleness.k"),
        ("group_sise=4", "group_size"),
    ],
)
def test_a_key_without_its_table_is_found_where_it_belongs(override: str, meant: str) -> None:
    assert f"did you mean {meant!r}?" in refusal(override)
