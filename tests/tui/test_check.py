"""`scalerl check` as a person types it, and the fixture `check_loss` in somebody's tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tui.cli import app

LOSSES = """
import torch

def good(logp, behavior_logp, adv, mask, group_id):
    ratio = torch.where(mask, logp - behavior_logp, 0.0).detach().exp().clamp(max=5.0)
    term = -ratio * adv[:, None] * torch.where(mask, logp, 0.0)
    return torch.where(mask, term, 0.0).sum() / mask.sum().clamp(min=1)

def bad(logp, behavior_logp, adv, mask, group_id):
    ratio = torch.where(mask, logp - behavior_logp, 0.0).exp().clamp(max=5.0)
    term = -ratio * adv[:, None] * torch.where(mask, logp, 0.0)
    return torch.where(mask, term, 0.0).sum() / mask.sum().clamp(min=1)

def broken(logp, behavior_logp, adv, mask, group_id):
    return logp @ adv
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(LOSSES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments])


@pytest.mark.usefixtures("here")
def test_a_good_loss_passes() -> None:
    result = check("mine.py:good", "--examples", "5")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("mine.py:good: no violation found, 25 laws held")
    assert "truncated (measured); cap 5 (measured); ratio of the token" in result.output


def test_the_laws_are_listed() -> None:
    listed = check("--list").output.splitlines()
    assert listed[0].startswith("D07  any batch: A loss takes any batch")
    assert "say which loss to check" in check().stderr


@pytest.mark.parametrize("kind", ["cispo", "clipped_surrogate", "gspo", "reinforce"])
@pytest.mark.parametrize("aggregation", ["prompt_mean", "sample_mean", "token_mean"])
def test_our_own_losses_pass(kind: str, aggregation: str) -> None:
    keywords = {
        "cispo": ["eps_max=5.0"],
        "clipped_surrogate": ["clip_low=0.2", "clip_high=0.28"],
        "gspo": ["clip_low=3e-3", "clip_high=4e-3"],
        "reinforce": [],
    }[kind]
    where = f"scalerl.losses:{kind}"
    result = check(where, *keywords, "--aggregation", aggregation, "--examples", "3", "--half")
    assert result.exit_code == 0, result.output


def test_a_violation_is_told_in_full_and_reproduced_by_the_test_that_is_offered(here: Path) -> None:
    result = check("mine.py:bad", "--first")
    assert result.exit_code == 1
    said = result.output
    assert said.index("VIOLATED  A02  stop-gradient") < said.index("dL/dlogp[0, 0]")
    assert "ratio.detach()" in said and "from mine import bad as loss_fn" in said
    as_json = check("mine.py:bad", "--first", "--json")
    assert as_json.exit_code == 1
    document = json.loads(as_json.stdout)
    assert not document["ok"] and document["findings"][0]["id"] == "A02"
    (here / "test_found.py").write_text(document["findings"][0]["test"])
    assert "1 failed" in pytest_in(here, "test_found.py")
    (here / "mine.py").write_text(LOSSES.replace("0.0).exp()", "0.0).detach().exp()"))
    assert "1 passed" in pytest_in(here, "test_found.py")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine.py:none"], "'mine.py' has no function 'none'"),
        (["yours.py:good"], "there is no file yours.py"),
        (["mine.py"], "not FILE.py:FUNCTION"),
        (["mine.py:broken"], "broken raised RuntimeError at mine.py:15"),
        (["mine.py:good", "eps"], "'eps' is not KEY=VALUE"),
        (["mine.py:good", "eps=1"], "takes no 'eps'"),
        (["mine.py:good", "--kind", "pposition"], "none of reinforce"),
        (["mine.py:good", "--convention", "openrlhf"], "none of verl, trl, prime-rl"),
        (["mine.py:good", "--convention", "verl"], "takes no 'old_log_prob'"),
    ],
)
def test_a_bad_adapter_is_one_sentence_and_exit_status_2(arguments: list[str], said: str) -> None:
    result = check(*arguments)
    assert result.exit_code == 2
    assert result.stdout == "" and said in result.stderr and result.stderr.count("\n") == 1


def test_what_a_loss_prints_is_not_in_the_document(here: Path) -> None:
    (here / "my-loss.py").write_text(LOSSES.replace("    return", "    print('noise')\n    return"))
    result = check("my-loss.py:bad", "--first", "--json")
    found = json.loads(result.stdout)["findings"][0]
    (here / "test_found.py").write_text(found["test"])
    assert "1 failed" in pytest_in(here, "test_found.py")  # a name that no import statement takes


@pytest.mark.usefixtures("here")
def test_without_hypothesis_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("scalerl.invariants")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = check("mine.py:good")
    assert result.exit_code == 2 and "pip install -e '.[check]'" in result.stderr


def test_the_working_directory_does_not_shadow_modules(here: Path) -> None:
    (here / "torch.py").write_text("raise SystemExit('shadowed')")
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from tui.cli import main; main()", "check", "mine:good", "--examples", "2"],
        capture_output=True, text=True, cwd=here,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def pytest_in(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_one_line_in_a_users_tests(here: Path) -> None:
    (here / "test_mine.py").write_text(
        "import mine\n"
        "def test_good(check_loss):\n"
        "    assert check_loss(mine.good, kind='cispo', examples=3).ok\n"
        "def test_bad(check_loss):\n"
        "    check_loss(mine.bad, examples=10)\n"
    )
    said = pytest_in(here, "test_mine.py")
    assert "1 failed, 1 passed" in said
    assert "VIOLATED  A02  stop-gradient" in said and "Traceback" not in said
