"""`make audit`: what it finds in made-up environments, and that it never takes silence for safety."""

import importlib.util
import json
import sys
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tests/benchmarks/audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_our_constraints_are_whole_pins(audit: ModuleType) -> None:
    """Of every line one version, and all that pyproject.toml names is among them."""
    for name in ("constraints.txt", "constraints-cluster.txt"):
        found = audit.pins(ROOT / name)
        assert found and all(version and version[0].isdigit() for version in found.values()), name
        assert {"torch", "numpy", "pydantic", "safetensors", "textual"} <= set(found)


def test_what_is_not_pinned_is_said(audit: ModuleType) -> None:
    said = audit.unpinned({"a": "1", "b": "2", "c": "3+cpu"}, {"a": "1", "b": "1", "c": "3"})
    assert said == ["b 2 is installed, the constraints say 1"]
    assert audit.unpinned({"a": "1"}, {}) == ["a 1 is installed, and no constraint pins it"]


def test_licences(audit: ModuleType) -> None:
    metadata = Message()
    metadata["Classifier"] = "License :: OSI Approved :: MIT License"
    assert audit.licence(metadata) == "MIT License" and audit.licence(Message()) == ""
    odd = audit.odd_licences({"a": "MIT License", "b": "GPL-3.0", "c": "", "oss-harmony": ""})
    assert odd == ["b: licence 'GPL-3.0': look it up", "c: says no licence: look it up"]


def _asked(audit: ModuleType, tmp_path: Path, said: str, status: int = 0) -> tuple[list[str], str]:
    tool = tmp_path / "tool.py"
    end = f"print('no route', file=sys.stderr)\nsys.exit({status})\n"
    tool.write_text(f"import sys\nprint({said!r})\n{end}")
    return audit.ask(tmp_path / "constraints.txt", [sys.executable, str(tool)])


def test_vulnerabilities_and_what_could_not_be_looked_up(audit: ModuleType, tmp_path: Path) -> None:
    fault = {"id": "PYSEC-1", "fix_versions": ["2"]}
    whole = {"name": "a", "version": "1", "vulns": [fault]}
    blind = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
    known = ["a 1: PYSEC-1, mended in 2"]
    assert _asked(audit, tmp_path, json.dumps({"dependencies": [whole]}), 1) == (known, "")
    found, unknown = _asked(audit, tmp_path, json.dumps({"dependencies": [whole, blind]}))
    assert found == known and unknown == "pip-audit could not look up 1 of the pinned versions (b)"


def test_without_a_network_it_says_so(audit: ModuleType, tmp_path: Path) -> None:
    """pip-audit itself ends with 0 where every name was unknown to the index that it reached."""
    assert _asked(audit, tmp_path, "", 1)[1].endswith("reached no database of vulnerabilities: no route")  # fmt: skip
    missing = audit.ask(tmp_path / "c.txt", [str(tmp_path / "no-such-tool")])
    assert "cannot be started" in missing[1]
