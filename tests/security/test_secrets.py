"""Secrets of the environment stay there: not in events, checkpoints, the recipe, the output, or a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import unprintable
from tiny_runs import SMALL

SECRETS = {
    "HF_TOKEN": "hf_marked7f3a91", "HUGGING_FACE_HUB_TOKEN": "hf_marked2b6c44", "WANDB_API_KEY": "marked55c0de",
    "AWS_ACCESS_KEY_ID": "AKIAMARKED01", "AWS_SECRET_ACCESS_KEY": "marked/Secret+Key", "OPENAI_API_KEY": "sk-marked99",
    "SSH_AUTH_SOCK": "/nowhere/marked-agent.sock", "MY_OWN_PASSWORD": "marked correct horse",
    "RAY_AUTH_TOKEN": "markedray1",
}  # fmt: skip
LOSS = """
def fn(logp_BT, behavior_logp_BT, adv_B, mask_BT):
    local = 3
    raise RuntimeError("nothing to see")
"""


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-P", "-c", "from tui.cli import main; main()", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        timeout=120,
        env={**os.environ, **SECRETS, "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def _leaks(folder: Path, output: str) -> list[str]:
    places = [("the output", output.encode())]
    places += [(str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]
    return [f"{name} in {place}" for place, data in places for name, secret in SECRETS.items()
            if secret.encode() in data]  # fmt: skip


def test_a_run_tells_no_secret(tmp_path: Path) -> None:
    status, output = _run(tmp_path, "run", "tiny", *SMALL, "site.updates=2", "--out", "run")
    assert status == 0, output
    assert {"events.jsonl", "recipe.toml", "checkpoints"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert _leaks(tmp_path, output) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("run", "tiny", "loss.eps_max=0"),
        ("run", "missing.toml"),
        ("run", "tiny", *SMALL, "loss.kind=custom", "loss.function=mine.py:fn", "--allow-code"),
    ],
)
def test_what_fails_tells_no_secret(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOSS)
    _, output = _run(tmp_path, *arguments)
    assert output
    assert _leaks(tmp_path, output) == []
    assert unprintable(output) == []
