"""A recipe being edited: knobs, steps, faults, doubts, and that what comes out is what was shown."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.recipe import CustomLoss, Dapo, Recipe
from scenarios.scenario import plan
from tui.edit.editing import Draft, exact, shown
from tui.edit.stepping import next_float, next_int


def recipe(*overrides: str, name: str = "scalerl") -> Recipe:
    [only] = plan(name, overrides)
    return only.recipe


PARENT = recipe()


def draft(*overrides: str) -> Draft:
    return Draft(recipe(*overrides))


# ---- knobs ----


def test_every_knob_of_the_kinds_chosen_and_no_other() -> None:
    keys = [knob.key for knob in draft().rows()]
    assert keys[:5] == ["name", "loss.kind", "loss.eps_max", "aggregation", "advantage"]
    assert keys.index("seed") < keys.index("site.name") < keys.index("site.hardware.name")
    assert keys[-1] == "site.hardware.push_s"
    assert "site.kind" not in keys  # another kind is another file
    assert "loss.clip_low" not in keys and len(set(keys)) == len(keys)


def test_a_knob_says_what_it_is() -> None:
    cap = draft().knob("loss.eps_max")
    assert (cap.value, cap.before, cap.changed, cap.number) == (5.0, 5.0, False, "float")
    assert cap.help.startswith("absolute cap on rho") and cap.allowed == "a number, above 1"
    kind = draft().knob("loss.kind")
    assert kind.choices == ("cispo", "dapo", "grpo", "gspo", "reinforce", "custom")
    assert kind.help.startswith("Truncated-importance REINFORCE")
    head = draft().knob("generator_head_dtype")
    assert head.choices == (None, "float32", "bfloat16", "float8_e4m3") and head.optional
    assert head.allowed == "none or float32 or bfloat16 or float8_e4m3"
    assert draft().knob("site.evaluation.completions").allowed == "a whole number, at least 2"
    with pytest.raises(KeyError):
        draft().knob("loss.clip_low")


def test_another_kind_brings_its_knobs_with_their_defaults() -> None:
    d = draft("loss.eps_max=4")
    d.step("loss.kind", 1)
    assert [k.key for k in d.rows() if k.key.startswith("loss.")] == [
        "loss.kind",
        "loss.clip_low",
        "loss.clip_high",
    ]
    high = d.knob("loss.clip_high")
    assert (high.value, high.before, high.changed, high.inherited) == (0.26, 0.26, False, False)
    assert d.changes() == [("loss.kind", "cispo", "dapo")]
    assert d.recipe().loss == Dapo()
    d.step("loss.kind", -1)  # back to the parent's, and so to its values
    assert d.changes() == [] and d.knob("loss.eps_max").value == 4.0


# ---- typing and reverting ----


def test_text_is_read_as_the_command_line_reads_it() -> None:
    d = draft()
    for key, text, value in (
        ("loss.eps_max", "4", 4.0),
        ("site.optimizer.eps", " 1e-12 ", 1e-12),
        ("generator_head_dtype", "bfloat16", "bfloat16"),
        ("generator_head_dtype", "none", None),
        ("advantage", "none", "none"),
        ("site.updates", "1e3", 1000),  # whole, though TOML calls it a float
        ("name", "4", "4"),
        ("name", "my run", "my run"),
    ):
        d.type(key, text)
        assert d.knob(key).value == value and d.problem() is None, key


def test_reverting_one_and_all() -> None:
    d = draft()
    d.type("group_size", "8")
    d.set("loss.kind", "gspo")
    d.type("loss.clip_low", "0.1")
    d.revert("loss.clip_low")
    assert d.knob("loss.clip_low").value == 3e-3
    d.revert("group_size")
    assert [key for key, _, _ in d.changes()] == ["loss.kind"]
    d.revert("loss.kind")
    assert d.recipe() == PARENT
    d.type("seed", "3")
    d.revert_all()
    assert d.recipe() == PARENT and Draft(PARENT).parent is PARENT


def test_a_loss_of_ones_own_needs_its_function() -> None:
    d = draft()
    d.set("loss.kind", "custom")
    assert d.knob("loss.function").value is None
    assert d.problem() == (
        "'loss.function' is missing (from this draft): FILE.py:FUNCTION or MODULE:FUNCTION"
    )
    d.type("loss.function", "my.py:fn")
    d.type("loss.keywords", "{cap = 2.0}")
    assert d.recipe().loss == CustomLoss(function="my.py:fn", keywords={"cap": 2.0})
    assert [w for w in d.warnings() if "--allow-code" in w]
    assert recipe(*d.overrides()) == d.recipe()
    d.set("loss.function", None)
    assert "loss.function" in (d.problem() or "")


def test_keywords_are_laid_over_the_parents() -> None:
    d = draft("loss.kind=custom", "loss.function=my.py:fn", "loss.keywords={a = 1.0, b = 2.0}")
    d.type("loss.keywords", "{b = 3.0}")
    assert d.knob("loss.keywords").value == {"a": 1.0, "b": 3.0}
    assert d.overrides() == ["loss.keywords={b = 3.0}"]


# ---- steps ----


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (8, 9, 7),
        (19, 20, 18),
        (20, 22, 19),
        (21, 22, 20),
        (48, 50, 45),  # a tenth is about 5
        (36, 40, 35),
        (112, 120, 110),
        (16_384, 18_000, 16_000),
    ],
)
def test_whole_numbers(value: int, up: int, down: int) -> None:
    assert (next_int(value, 1, {}), next_int(value, -1, {})) == (up, down)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [(0.2, 0.5, 0.1), (0.26, 0.5, 0.2), (5.0, 10.0, 2.0), (1e-15, 2e-15, 5e-16), (8e9, 1e10, 5e9)],
)
def test_floats_go_along_1_2_5(value: float, up: float, down: float) -> None:
    assert (next_float(value, 1, {"gt": 0}), next_float(value, -1, {"gt": 0})) == (up, down)


def test_no_step_across_a_bound() -> None:
    assert next_int(2, -1, {"ge": 2}) == 2 and next_int(2, -1, {"gt": 1}) == 2
    assert next_int(2**40 - 1, 1, {"lt": 2**40}) == 2**40 - 1
    assert next_int(95, 1, {"le": 97}) == 97
    assert next_float(2.0, -1, {"gt": 1}) == 2.0
    assert next_float(0.8333, 1, {"gt": 0, "le": 1}) == 1.0
    assert next_float(1.0, 1, {"gt": 0, "le": 1}) == 1.0
    assert next_float(0.001, -1, {"ge": 0}) == 0.0 and next_float(0.0, 1, {"ge": 0}) == 0.001
    assert next_float(0.0, -1, {"ge": 0}) == 0.0


def test_decays_approach_1() -> None:
    decay = {"ge": 0, "lt": 1}
    assert [next_float(x, 1, decay) for x in (0.5, 0.9, 0.95, 0.98)] == [0.8, 0.95, 0.98, 0.99]
    assert [next_float(x, -1, decay) for x in (0.95, 0.9, 0.8, 0.5)] == [0.9, 0.8, 0.5, 0.2]


def test_a_step_from_outside_leads_back_in() -> None:
    assert next_int(-3, 1, {"ge": 0}) == 0
    assert next_float(0.3, 1, {"gt": 1}) == 2.0
    assert next_float(50.0, -1, {"le": 1}) == 1.0
    d = draft()
    d.type("staleness.k", "many")
    d.step("staleness.k", 1)  # not a number: there is no next one
    assert d.knob("staleness.k").value == 8


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_steps_alone_never_leave_the_range_of_a_field(data: st.DataObject) -> None:
    d = draft()
    for _ in range(data.draw(st.integers(1, 25))):
        key = data.draw(st.sampled_from([knob.key for knob in d.rows() if knob.steps]))
        if key not in ("length.low", "length.high", "loss.kind"):
            d.step(key, data.draw(st.sampled_from([1, -1])))
    assert d.problem() is None


# ---- faults and doubts ----


def test_a_fault_is_shown_and_not_thrown() -> None:
    d = draft()
    d.type("length.high", "0.5")
    problem = d.problem()
    assert problem is not None and problem.startswith("length = ")
    assert problem.endswith("(from this draft): low = 0.8333 must be at most high = 0.5")
    d.revert("length.high")
    d.type("site.hardware.push_s", "true")  # equals 1, which is the parent's, and is no number
    assert d.problem() is not None and len(d.changes()) == 1
    d.revert("site.hardware.push_s")
    d.type("staleness.k", "-3")
    assert d.problem() == (
        "staleness.k = -3 (from this draft): must be at least 0; "
        "no trained token is more than k versions old; 0 is synchronous"
    )
    assert d.warnings() == []
    with pytest.raises(InputError, match="staleness"):
        d.recipe()
    with pytest.raises(InputError, match=r"loss\.kind = 'ppo': must be cispo or"):
        d.type("loss.kind", "ppo")
    assert d.knob("loss.kind").value == "cispo"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["zero_variance=keep", "advantage=none"], "zero_variance = keep with advantage = none"),
        (["length.kind=none"], "a completion that fills the 36 + 4 tokens is truncated"),
        (["staleness.k=0"], "staleness.k = 0: synchronous"),
        (["staleness.kind=ppo_off_policy", "staleness.k=1"], "staleness.k = 1: synchronous"),
        (["staleness.k=12"], "12 lower (0.490)"),
        (["prompts_per_update=8", "group_size=8"], "= 64 completions"),
        (["site.updates=31"], "7 evaluations in 31 updates"),  # 31 // 4
        (["generator_head_dtype=bfloat16"], "not the trainer's (float32)"),
        (["loss.kind=reinforce"], "up to 8 versions old bias it"),
        (["site.optimizer.warmup_updates=113"], "the run ends after 112"),
        (["site.task=my.py:fn"], "site.task = 'my.py:fn': runs code of your own"),
    ],
)
def test_doubts(overrides: list[str], said: str) -> None:
    [doubt] = draft(*overrides).warnings()
    assert said in doubt


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["zero_variance=keep"],  # normalised over the batch
        # a length penalty tells correct completions apart: no zero variance in the reward
        ["zero_variance=keep", "advantage=none", "length.kind=overlong_penalty"],
        ["generator_head_dtype=float32"],
        ["prompts_per_update=8"],  # 8 * 16 = 128
        ["site.updates=32"],  # 32 / 4 = 8
        ["loss.kind=reinforce", "staleness.kind=ppo_off_policy", "staleness.k=2"],
        ["site.optimizer.warmup_updates=112"],  # reached at the last update
    ],
)
def test_no_false_doubt(overrides: list[str]) -> None:
    found = draft(*overrides).warnings()
    expected = ["loss.kind = reinforce"] if "loss.kind=reinforce" in overrides else []
    assert [doubt.partition(":")[0] for doubt in found] == expected


# ---- what comes out ----


def edit(d: Draft, data: st.DataObject) -> None:
    """Random steps and values until the draft is valid."""
    texts = ["0.5", "3", "7", "0.97", "1e-3", "none", "x y", "true", '"q"', "é=1", "1"]
    for _ in range(data.draw(st.integers(0, 12))):
        knob = data.draw(st.sampled_from(d.rows()))
        if knob.steps and data.draw(st.booleans()):
            d.step(knob.key, data.draw(st.sampled_from([1, -1])))
        elif knob.choices is None:
            d.type(knob.key, data.draw(st.sampled_from(texts)))
    for key in ["loss.kind", *(key for key, _, _ in d.changes())]:
        if d.problem() is not None and key in {knob.key for knob in d.rows()}:
            d.revert(key)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_overrides_give_exactly_this_recipe(data: st.DataObject) -> None:
    d = draft()
    edit(d, data)
    assert recipe(*d.overrides()) == d.recipe()


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(["base", "minimax", "scalerl"]), data=st.data())
def test_a_saved_draft_is_the_same_recipe(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    parent = recipe("name=mine", name=name) if data.draw(st.booleans()) else recipe(name=name)
    d = Draft(parent)
    edit(d, data)
    path = tmp_path_factory.mktemp("recipes") / "edited.toml"
    path.write_text(d.toml(), encoding="utf-8")
    assert recipe(name=str(path)) == d.recipe()
    parents = path.with_name("parent.toml")
    parents.write_text(Draft(parent).toml(), encoding="utf-8")
    assert recipe(*d.overrides(), name=str(parents)) == d.recipe()


def test_what_is_saved_by_hand() -> None:
    d = draft()
    d.set("loss.kind", "dapo")
    d.type("loss.clip_high", "0.3")
    assert d.overrides() == ["loss.kind=dapo", "loss.clip_high=0.3"]
    expected = {"loss": {"kind": "dapo", "clip_high": 0.3}}
    assert tomllib.loads(d.toml()) == {"extends": "scalerl", **expected}
    assert tomllib.loads(d.differences()) == expected


def test_a_site_is_saved_whole_and_a_parent_without_a_name_too() -> None:
    d = draft("seed=2")
    d.type("site.updates", "40")
    saved = tomllib.loads(d.toml())
    assert saved.keys() == {"extends", "seed", "site"}
    assert saved["site"]["updates"] == 40 and saved["site"]["evaluation"]["prompts"] == 320
    assert "extends" not in tomllib.loads(draft("name=unknown").toml())


def test_none_lies_over_a_value_of_the_parent(tmp_path: Path) -> None:
    """TOML has no word for it, so `none` is one for the fields that may be None."""
    d = draft("name=mine", "generator_head_dtype=bfloat16")
    d.type("generator_head_dtype", "none")
    assert d.overrides() == ["generator_head_dtype=none"]
    path = tmp_path / "parent.toml"
    path.write_text(Draft(d.parent).toml())
    assert recipe(*d.overrides(), name=str(path)) == d.recipe()
    assert recipe("advantage=none").advantage == "none"  # a word of its own stays one


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.0, "5"),
        (1 / 7, "0.142857"),
        (8e9, "8e9"),
        (2.5e15, "2.5e15"),
        (1e-15, "1e-15"),
        (2e-05, "2e-5"),
        (None, "none"),
        (16_384, "16384"),
        ("a b", "a b"),
        ({"x": 1.5}, "{x = 1.5}"),
    ],
)
def test_values_as_they_are_shown(value: Any, text: str) -> None:
    assert shown(value) == text


@given(st.floats(1.0, 1e300, exclude_min=True))
@settings(max_examples=30, deadline=None)
def test_an_exact_value_is_typed_back(value: float) -> None:
    d = draft()
    d.type("loss.eps_max", exact(value))
    assert d.knob("loss.eps_max").value == value
