"""FILE.py:FN and MODULE:FN of any text: a function, or one sentence; and nothing is imported unasked."""

import os
import sys
from pathlib import Path

import pytest
from command import refused
from hostile import MANY, bears, oddities, texts
from hypothesis import given

from scalerl.errors import InputError
from scalerl.user_code import load_function

NAMES = ("mine.py:f", "json:loads", "../a.py:f", "absent.module:f", "folder.py:f")


@pytest.fixture(scope="module", autouse=True)
def _here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.chdir(tmp_path_factory.mktemp("code"))
    Path("mine.py").write_text("def f():\n    pass\n")
    Path("folder.py").mkdir()


@MANY
@given(name=texts(*NAMES))
def test_any_name(name: str) -> None:
    bears(lambda: load_function(name, allow_code=True))
    before = set(sys.modules)
    with pytest.raises(InputError):
        load_function(name, allow_code=False)
    assert set(sys.modules) == before


def test_any_file(tmp_path: Path) -> None:
    for what, path in oddities(tmp_path, "odd.py", b"def f():\n    return 1\n").items():
        if what in ("bom", "crlf"):
            assert load_function(f"{path}:f", allow_code=True)() == 1
        elif what != "long":  # whoever allows a file of 100 MB to run has it compiled
            with pytest.raises(InputError, match=r"odd\.py"):
                load_function(f"{path}:f", allow_code=True)


def test_what_the_command_line_says_of_them() -> None:
    for name in (
        "\0.py:f",
        "mine.py:\x1b[2J",
        "x" * 5000 + ".py:f",
        ":",
        "mine.py:",
        ".:f",
        "..:f",
    ):
        said = refused("check", name)
        assert said.startswith("scalerl: ") and "\x1b" not in said
