"""What can turn bytes into running code stands in the product only where it is named here, with its reason."""

import ast
from pathlib import Path

import pytest
from command import refused
from tiny_runs import small_plan

from scalerl.errors import InputError
from scenarios.runs import run

ROOT = Path(__file__).parents[2]
PRODUCT = ("scalerl", "sandbox", "backend", "scenarios", "tui")
# Names of modules and functions that execute, import or unpickle what they are given.
DANGEROUS = {
    "pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "runpy", "code", "codeop",
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "torch.jit.load",
    "torch.hub.load", "numpy.load", "np.load", "importlib.import_module", "import_module",
    "importlib.util.spec_from_file_location", "torch.distributed.checkpoint", "FileSystemReader",
    "state_dict_loader",
}  # fmt: skip
# (file, name) -> why it may stand there.
ALLOWED = {
    ("scalerl/task.py", "pickle"): "copies a task by bytes that it made itself a moment ago",
    (
        "backend/launch.py",
        "cloudpickle",
    ): "lets a task of the user's own, which was allowed, travel to its actor",
    (
        "scalerl/user_code.py",
        "importlib.util.spec_from_file_location",
    ): "the one door, --allow-code",
    ("scalerl/user_code.py", "importlib.import_module"): "the one door, --allow-code",
    ("tui/screens/home.py", "import_module"): "names of our own screens, written in that file",
    ("backend/trainer.py", "torch.distributed.checkpoint"): "with a reader of safetensors alone",
    ("backend/trainer.py", "state_dict_loader"): "with a reader of safetensors alone",
}


def _sources() -> list[Path]:
    return [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]


def _named(tree: ast.AST) -> set[str]:
    """Dotted names that are used or imported, without methods of other objects."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=module, names=names):
                found |= {str(module), *(alias.name for alias in names)}
            case ast.Call(func=ast.Name(id=name)):
                found.add(name)
            case ast.Attribute():
                found.add(ast.unparse(node))
            case _:
                pass
    return found


def _dangers(path: Path) -> set[str]:
    named = _named(ast.parse(path.read_text(encoding="utf-8")))
    parts = {*named, *(name.rpartition(".")[0] for name in named if name.count(".") == 1)}
    return DANGEROUS & (parts | {n for n in DANGEROUS if any(p.startswith(f"{n}.") for p in named)})


def test_every_use_is_allowed_by_name_and_every_allowance_is_used() -> None:
    used = {
        (path.relative_to(ROOT).as_posix(), danger)
        for path in _sources()
        for danger in _dangers(path)
    }
    assert used == set(ALLOWED)


@pytest.mark.parametrize("keyword", ["shell", "trust_remote_code", "allow_pickle"])
def test_no_call_opens_a_door_by_keyword(keyword: str) -> None:
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                assert keyword not in [each.arg for each in node.keywords], path


def test_weights_are_read_as_safetensors_alone() -> None:
    """Of the Hugging Face folder that a recipe names too: vLLM and FSDP2 are never left to choose a pickle."""
    readers = {
        path.relative_to(ROOT).as_posix()
        for path in _sources()
        if "load_file" in _named(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert readers >= {"sandbox/model.py", "sandbox/world.py"}
    assert not [path for path in (ROOT / "sandbox").rglob("*") if path.suffix in (".pt", ".pkl", ".bin")]  # fmt: skip


CODE = ("loss.kind=custom", "loss.function=mine.py:fn")


def test_code_needs_permission_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, and when a run folder that names code is taken up by its own recipe.toml."""
    monkeypatch.chdir(tmp_path)
    trace = "open('ran', 'a').write('x')\n"
    loss = "def fn(logp_BT, behavior_logp_BT, adv_B, mask_BT):\n    return -logp_BT * mask_BT\n"
    Path("mine.py").write_text(trace + loss)
    wanted = small_plan(*CODE)
    with pytest.raises(InputError, match=r"'mine\.py:fn' is code of your own: add --allow-code"):
        run(wanted, tmp_path / "run")
    assert not Path("ran").exists() and not Path("run/recipe.toml").exists()
    assert "add --allow-code" in refused("run", "tiny", *CODE)
    from tui.watch.child import start_run

    with pytest.raises(InputError, match="--allow-code"):
        start_run(wanted.recipe, tmp_path / "run")
    Path("run").mkdir(exist_ok=True)
    from scenarios.runs import begin

    begin(tmp_path / "run", wanted.recipe)
    assert "add --allow-code" in refused("run", "run/recipe.toml", "--out", "run")
    assert not Path("ran").exists()


def test_other_settings_never_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy is a name of ours or a folder of data, whatever is allowed; a task may be code, with --allow-code."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("from pathlib import Path\n\nPath('ran').touch()\n")
    for override in ("site.policy=evil.py:policy", "site.name=evil.py:x"):
        result = refused("run", "tiny", override, "site.updates=0", "--allow-code")
        assert "site" in result
    for name in ("evil.py:task", "digit_sum+evil.py:task", "gym:evil:Env-v0"):
        assert "add --allow-code" in refused("run", "tiny", f"site.task={name}")
    assert "neither a shipped policy" in refused("run", "tiny", "site.policy=evil.py:p", "--allow-code")  # fmt: skip
    assert not Path("ran").exists()
