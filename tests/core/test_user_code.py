"""The door for code of the user's own: closed unless asked for, and every failure named in one sentence."""

import sys
from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.user_code import load_function


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def load(name: str) -> object:
    return load_function(name, allow_code=True)()


def test_closed_unless_asked_for(here: Path) -> None:
    (here / "mine.py").write_text("raise SystemError('was run')\n")
    with pytest.raises(InputError, match=r"'mine.py:f' is code of your own: add --allow-code"):
        load_function("mine.py:f", allow_code=False)


def test_a_function_of_a_file(here: Path) -> None:
    (here / "mine.py").write_text("def f():\n    return 'mine'\n")
    assert load("mine.py:f") == "mine"
    assert load(f"{here / 'mine.py'}:f") == "mine"
    (here / "a dir").mkdir()
    (here / "a dir" / "b:c.py").write_text("def f():\n    return 'odd'\n")
    assert load("a dir/b:c.py:f") == "odd"


def test_a_file_is_read_anew_and_imported_under_no_name_of_others(here: Path) -> None:
    """A file called json.py is the user's own, and everybody else's json stays what it was."""
    import json

    (here / "json.py").write_text("def f():\n    return 1\n")
    assert load("json.py:f") == 1
    (here / "json.py").write_text("def f():\n    return 'two'\n")
    assert load("json.py:f") == "two"
    assert sys.modules["json"] is json


def test_a_file_may_hold_what_any_module_may(here: Path) -> None:
    """A dataclass looks its module up by name, and so does pickle: a task of the user's must survive both."""
    (here / "task.py").write_text(
        "from __future__ import annotations\n"
        "import pickle\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Task:\n"
        "    x: int = 3\n"
        "def f():\n"
        "    return pickle.loads(pickle.dumps(Task())).x\n"
    )
    assert load("task.py:f") == 3


def test_a_function_of_a_module(here: Path) -> None:
    (here / "my_module_of_test_user_code.py").write_text("def f():\n    return 'module'\n")
    assert load("my_module_of_test_user_code:f") == "module"
    assert load_function("math:sqrt", allow_code=True)(9.0) == 3.0
    assert sys.path[-1] == str(here) and sys.path.count(str(here)) == 1  # last: it shadows nothing


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.py:f", r"there is no file absent\.py \(looked for from .*/\)"),
        ("mine.py:g", r"'mine\.py' has no function 'g'"),
        ("mine.py:NUMBER", r"'mine\.py' has no function 'NUMBER'"),
        (
            "no_such_module_at_all:f",
            r"importing 'no_such_module_at_all' failed: ModuleNotFoundError",
        ),
        ("broken.py:f", r"importing 'broken\.py' failed: ZeroDivisionError: division by zero"),
        ("syntax.py:f", r"importing 'syntax\.py' failed: SyntaxError"),
        ("leaves.py:f", r"importing 'leaves\.py' failed: SystemExit: 3"),
        ("mine.py", r"'mine\.py' is not FILE\.py:FUNCTION or MODULE:FUNCTION"),
    ],
)
def test_what_goes_wrong_is_named(here: Path, name: str, said: str) -> None:
    (here / "mine.py").write_text("NUMBER = 3\ndef f(): pass\n")
    (here / "broken.py").write_text("1 / 0\n")
    (here / "syntax.py").write_text("def f(:\n")
    (here / "leaves.py").write_text("import sys\ndef f(): pass\nsys.exit(3)\n")  # a script
    with pytest.raises(InputError, match=f"^{said}"):
        load_function(name, allow_code=True)


def test_two_files_of_one_name_are_two_modules(here: Path) -> None:
    for folder in ("a", "b"):
        (here / folder).mkdir()
        (here / folder / "loss.py").write_text(f"def f():\n    return {folder!r}\n")
    assert (load("a/loss.py:f"), load("b/loss.py:f")) == ("a", "b")
    assert len([name for name in sys.modules if name.startswith("_scalerl_loss_")]) == 2
