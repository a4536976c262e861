"""Recipes, sites, scenarios and overrides of any bytes: a plan, or one sentence of ours."""

import os
from pathlib import Path

import pytest
from command import refused, scalerl
from hostile import MANY, bears, oddities, spoiled, texts
from hypothesis import given

from scalerl.errors import InputError
from scenarios.scenario import HERE, RECIPES, SITES, plan

RECIPE_FILES = [path.read_bytes() for path in sorted(RECIPES.glob("*.toml"))]
SITE_FILES = [path.read_bytes() for path in sorted(SITES.glob("*.toml"))]
SCENARIO_FILES = [path.read_bytes() for path in sorted(HERE.glob("*.toml"))]
OVERRIDES = ("loss.eps_max=4", "length={kind='none'}", "seed=3", "name='a'", "site.updates=3")


@pytest.fixture(scope="module", autouse=True)
def _here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.chdir(tmp_path_factory.mktemp("settings"))


@MANY
@given(data=spoiled(RECIPE_FILES))
def test_any_recipe(data: bytes) -> None:
    Path("r.toml").write_bytes(data)
    bears(lambda: plan("r.toml"))


@MANY
@given(data=spoiled(SITE_FILES))
def test_any_site(data: bytes) -> None:
    Path("s.toml").write_bytes(data)
    bears(lambda: plan("scalerl", site="s.toml"))


@MANY
@given(data=spoiled(SCENARIO_FILES))
def test_any_scenario(data: bytes) -> None:
    Path("c.toml").write_bytes(data)
    bears(lambda: plan("c.toml"))


@MANY
@given(override=texts(*OVERRIDES))
def test_any_override(override: str) -> None:
    bears(lambda: plan("tiny", [override]))


@MANY
@given(name=texts("tiny", "scalerl", "r.toml", "../r.toml"))
def test_any_name(name: str) -> None:
    bears(lambda: plan(name))
    bears(lambda: plan("tiny", site=name))
    bears(lambda: plan("tiny", arm=name))


@pytest.mark.parametrize(
    "values",
    [
        "name = 3", "name = [1]", "seed = 1e400", "seed = nan", "seed = 99999999999999999999", "seed = true",
        "loss = 3", "loss = []", "loss.kind = 3", "loss = {kind = ['cispo']}", "site = 'sandbox'", "[[site]]",
        "extends = 3", "extends = []", "extends = ''", "extends = 'a\\u0000b'", "seed = 2024-01-01", "curriculum = 1.5",
        "'' = 1", "'a.b' = 1", "[loss.keywords]\n'\\u001b' = 1", "group_size = -1", f"name = '{'n' * 300_000}'",
    ],
)  # fmt: skip
def test_wrong_types(values: str) -> None:
    Path("r.toml").write_text(f'extends = "scalerl"\n{values}\n' if "ext" not in values else values)
    bears(lambda: plan("r.toml"))


def test_a_chain_of_recipes_ends() -> None:
    """Whatever the names of a cycle: a path may call one file by endless names."""
    here = Path.cwd()
    for name, parent in {"a": "b.toml", "b": "a.toml", "c": f"../{here.name}/c.toml"}.items():
        Path(f"{name}.toml").write_text(f'extends = "{parent}"\n')
    for name in "abc":
        with pytest.raises(InputError, match="extends itself"):
            plan(f"{name}.toml")


def test_tables_and_arrays_ten_thousand_deep() -> None:
    for text in ("a = " + "[" * 10_000, "a = " + "{a=" * 10_000, "a." * 10_000 + "a = 1",
                 "[" + "a." * 10_000 + "a]", "[[a]]\n" * 10_000, "a = " + "[" * 17 + "]" * 17):  # fmt: skip
        Path("r.toml").write_text(text)
        with pytest.raises(InputError, match=r"r\.toml|unknown key"):
            plan("r.toml")
    with pytest.raises(InputError, match="too long or too deep"):
        plan("tiny", ["a." * 10_000 + "a=1"])


@pytest.mark.parametrize("kind", ["recipe", "site", "scenario"])
def test_odd_things_in_place_of_a_file(kind: str, tmp_path: Path) -> None:
    good = {
        "recipe": RECIPES / "base.toml",
        "site": SITES / "sandbox.toml",
        "scenario": HERE / "tiny.toml",
    }[kind]
    for what, path in oddities(tmp_path, "odd.toml", good.read_bytes()).items():
        name, site = ("tiny", str(path)) if kind == "site" else (str(path), None)
        if what in ("bom", "crlf") or (
            what == "empty" and site is None
        ):  # an empty recipe is ScaleRL
            assert plan(name, site=site)
        else:
            bears(lambda name=name, site=site: plan(name, site=site))
            with pytest.raises(InputError, match=r"odd|missing"):
                plan(name, site=site)


def test_a_hundred_megabytes_are_refused_at_a_glance(tmp_path: Path) -> None:
    path = oddities(tmp_path, "odd.toml", b"a = ")["long"]
    bears(lambda: plan(str(path)))
    assert "it has 100,000,003 bytes, settings have at most 1,048,576" in refused("run", str(path))


def test_seeds_without_end() -> None:
    tiny = (HERE / "tiny.toml").read_text()
    Path("c.toml").write_text(tiny.replace("seeds = 1", "seeds = 999999999"))
    assert "seeds = 999999999 (from c.toml): must be above 0 and at most 1000" in refused(
        "run", "c.toml"
    )
    assert "1001 seeds from 0 on: an arm has at most 1000" in refused("run", "tiny", "--seeds", "1001")  # fmt: skip
    assert "all below" in refused("run", "tiny", f"seed={2**40 - 1}", "--seeds", "2")


def test_what_is_quoted_is_one_line_of_bounded_length() -> None:
    said = refused("run", "tiny", "x" * 100_000 + "=1")
    assert len(said) < 3000 and said.startswith("scalerl: unknown key 'xxx")
    assert "\n" not in refused("run", "tiny\nmore") and "\x1b" not in refused("run", "\x1b[31mtiny")
    assert "not UTF-8" in refused("run", "tiny", "name=\udcff")
    assert scalerl("run", "tiny", "name='\\u0000'", "loss.eps_max=0").exit_code == 2
