"""The documentation says what the code does: fields, commands, files, and the text of the README's own example."""

import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scripted import Script, play, scripted_recipe
from textual.binding import Binding
from typer.testing import CliRunner

from scalerl.invariants import check_loss
from scalerl.losses import LOSSES
from tui.app import ScalerlApp
from tui.cli import app
from tui.screens.dashboard import Dashboard
from tui.screens.home import HomeScreen
from tui.screens.run_keys import RunKeys
from tui.widgets.fit_panel import FitPanel
from tui.widgets.lines import ScrubBar
from tui.widgets.plot import PlotPanel

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
STAMP = {"v", "seq", "t", "clock", "gpu_h", "kind"}


@pytest.mark.parametrize("kind", ["update", "eval", "sample"])
def test_every_field_of_an_event_is_in_the_glossary(kind: str) -> None:
    events = [event for event in play(scripted_recipe(), Script()).events if event["kind"] == kind]
    glossary = (ROOT / "docs/metrics.md").read_text()
    explained = set(re.findall(r"`(\w+)`", glossary))
    assert events and events[0].keys() - STAMP - {"group"} <= explained


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_finished_and_their_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert "@@" not in text
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readmes_loss_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path))
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "my_loss.py").write_text(code)
    small = ["site.updates=2", "prompts_per_update=4", "group_size=4", "site.evaluation.prompts=8"]
    custom = ["loss.kind=custom", "loss.function=my_loss.py:fn", "--allow-code"]
    result = CliRunner().invoke(app, ["run", "tiny", *small, *custom])
    assert result.exit_code == 0, result.output


def test_the_readmes_loss_keeps_the_laws_of_policy_losses() -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    report = check_loss(namespace["fn"])
    assert report.ok, str(report)


def test_the_examples_of_the_invariants_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/invariants.md").read_text()
    one_line, in_python = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    namespace: dict[str, Any] = {"my_loss": partial(LOSSES["cispo"], eps_max=5.0)}
    exec(in_python, namespace)
    namespace["test_value_is_finite"]()
    assert "no violation found" in capsys.readouterr().out
    namespace["my_loss"] = LOSSES["cispo"]
    exec(one_line, namespace)
    namespace["test_my_loss"](lambda loss, **options: check_loss(loss, **options).assert_ok())


def test_the_readmes_commands_exist() -> None:
    commands = re.findall(r"`scalerl (\w+)", (ROOT / "README.md").read_text())
    known = set(re.findall(r"^  (\w+) ", CliRunner().invoke(app, ["--help"]).output, flags=re.M))
    assert commands and set(commands) <= known


def shown(page: str) -> list[tuple[list[str], list[str]]]:
    """(commands, lines) of each block that quotes what the commands of the block before it print."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, flags=re.DOTALL)
    return [
        (commands.splitlines(), quoted.splitlines())
        for (_, commands), (kind, quoted) in pairwise(blocks)
        if kind == "text"
    ]


@pytest.mark.parametrize(("commands", "quoted"), shown("docs/forecasting.md"))
def test_the_forecasting_page_quotes_what_its_commands_print(
    commands: list[str], quoted: list[str]
) -> None:
    printed: list[str] = []
    for command in commands:
        words = command.partition(" --plot ")[0].split()[1:]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        printed += [line.rstrip() for line in result.stdout.splitlines()]
    assert [line for line in quoted if line not in printed] == []


@pytest.mark.parametrize("block", ["calibration", "published"])
def test_measured_tables_stand_where_the_forecasting_page_says(block: str) -> None:
    text = (ROOT / "docs/forecasting.md").read_text()
    table = text.partition(f"<!-- {block} -->")[2].partition(f"<!-- end of {block} -->")[0]
    assert sum(line.startswith("| ") for line in table.splitlines()) > 15


def test_the_page_of_the_screens_names_every_key_and_no_other() -> None:
    page = (ROOT / "docs/screens.md").read_text()
    told = set(re.findall(r"`([^`]+)`", page[page.index("## Keys") : page.index("## What a run")]))
    told |= {"2", "3", "4", "5"}  # of "`1` to `6`"
    bound = {
        KEYS.get(key, key)
        for owner in (ScalerlApp, HomeScreen, Dashboard, RunKeys, ScrubBar, PlotPanel, FitPanel)
        for binding in owner.BINDINGS
        if isinstance(binding, Binding) and binding.description
        for key in binding.key.split(",")
    }
    # what lists and scrolled text do with keys is not told, nor second keys of one action
    assert (
        bound - told
        == {"shift+↑", "shift+↓", "shift+tab", "ctrl+q", "f1", "=", "j", "k", "enter"} - told
    )
    assert told - bound == {"ctrl+p"}


KEYS = {
    "question_mark": "?",
    "escape": "esc",
    "slash": "/",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    **{
        f"{shift}{name}": f"{shift}{arrow}"
        for shift in ("", "shift+")
        for name, arrow in zip(("up", "down", "left", "right"), "↑↓←→", strict=True)
    },
}
