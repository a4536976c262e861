"""The house: imports go down only, few packages know the heavy libraries, and nothing heavy is imported early."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BELOW = {
    "scalerl": set(),
    "sandbox": {"scalerl"},
    "backend": {"scalerl"},
    "scenarios": {"sandbox", "backend", "scalerl"},
    "tui": {"scenarios", "sandbox", "backend", "scalerl"},
}
ONLY = {
    "ray": {"backend"},
    "vllm": {"backend"},
    "textual": {"tui"},
    "textual_serve": {"tui"},
    "typer": {"tui"},
    "rich": {"tui"},
    "matplotlib": {"tui"},
    "hypothesis": {"scalerl"},  # and there only in `invariants`, below
    "math_verify": {"scalerl"},
    "gymnasium": {"sandbox"},
    "sympy": {"scalerl"},
}
# The rooms of `tui`, each with those that it may know. Screens are known to the app alone.
ROOMS = {
    "words": set(),
    "recordings": set(),
    "watch": {"words"},
    "edit": {"words"},
    "show": {"words", "watch"},
    "compare": {"words", "watch", "show"},
    "commands": {"words", "watch", "show", "compare"},
    "widgets": {"words", "watch", "show", "edit"},
    "screens": {"words", "recordings", "watch", "show", "edit", "compare", "widgets", "app"},
}
# The one place that opens a world, and what names its parts for a person (`pretrain`, `doctor`).
KNOWS_SANDBOX = {"scenarios/worlds.py", "tui/commands/pretraining.py", "tui/commands/doctor.py"}
CORE_WITHOUT_TORCH = """
    recipe settings loop world clock staleness curriculum length compute hardware fit events task state rollout
    books supervision checkpoint manifest timeline paths nesting verify metrics errors user_code pytest_plugin
    forecast glossary
""".split()  # noqa: SIM905
TORCH_FREE = [
    *(f"scalerl.{name}" for name in CORE_WITHOUT_TORCH),
    *(f"scalerl.curves.{path.stem}" for path in sorted((ROOT / "scalerl/curves").glob("[!_]*.py"))),
    *(f"scenarios.{path.stem}" for path in sorted((ROOT / "scenarios").glob("*.py")) if path.stem != "__init__"),
    *(f"scenarios.simulation.{path.stem}" for path in sorted((ROOT / "scenarios/simulation").glob("[!_]*.py"))),
    *(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "tui").rglob("*.py"))
        if path.stem != "__init__"
    ),
]  # fmt: skip


def modules() -> list[Path]:
    return [path for package in BELOW for path in sorted((ROOT / package).rglob("*.py"))]


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for name in imports(path):
        top = name.partition(".")[0]
        if top in BELOW and top != package:
            assert top in BELOW[package], f"{package} must not import {top}"
        assert package in ONLY.get(top, {package}), f"{package} must not import {top}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_rooms_of_tui_know_only_those_below(room: str) -> None:
    place = ROOT / "tui" / room
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
        known = {name.split(".")[1] for name in imports(path) if name.startswith("tui.")}
        assert known - {room} <= ROOMS[room], path
        textual = any(name.partition(".")[0] == "textual" for name in imports(path))
        assert not textual or room in ("widgets", "screens", "show"), path
        assert not textual or room != "show" or path.stem == "themes", path


def test_a_run_needs_no_test_library() -> None:
    """Hypothesis is of the extra `check`: only the invariants import it, and nothing imports those at its top."""
    for path in modules():
        inside = path.relative_to(ROOT).parts[:2] == ("scalerl", "invariants")
        tops = {name for node in ast.parse(path.read_text()).body for name in _imported(node)}
        for name in tops if not inside else ():
            assert not name.startswith(("hypothesis", "scalerl.invariants")), (
                f"{path} imports {name}"
            )


def _imported(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {node.module or ""} if isinstance(node, ast.ImportFrom) else set()


def test_only_one_place_opens_a_world() -> None:
    openers = {
        str(path.relative_to(ROOT))
        for path in modules()
        if path.relative_to(ROOT).parts[0] in ("scenarios", "tui")
        and any(name.partition(".")[0] in ("sandbox", "backend") for name in imports(path))
    }
    assert openers == KNOWS_SANDBOX


@pytest.mark.parametrize("module", TORCH_FREE)
def test_no_torch_at_import(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"{module} imports torch"


def test_every_public_name_has_a_docstring() -> None:
    """Modules, and public classes and functions of the core at their top level."""
    missing: list[str] = []
    for path in modules():
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            missing.append(str(path))
        if path.relative_to(ROOT).parts[0] != "scalerl":
            continue
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            )
            if public and not ast.get_docstring(node):  # type: ignore[arg-type]
                missing.append(f"{path.name}:{node.name}")  # type: ignore[attr-defined]
    assert missing == []


def test_nothing_of_this_machine_is_named() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    places = [f"/{top}/" for top in ("work", "tmp", "root", "home")]
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".txt", ".json") and path.exists():
            text = path.read_text(encoding="utf-8")
            assert not [place for place in places if f" {place}" in text or f'"{place}' in text], (
                name
            )
