"""docs/own-task.md as it is written: its files, its commands, its code."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import printed

from sandbox.tasks.registry import make_task
from scalerl.events import read_events

PAGE = (Path(__file__).parents[2] / "docs/own-task.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, flags=re.DOTALL)
CODE = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines()]
SMALL = (
    "site.updates=3",
    "prompts_per_update=4",
    "group_size=4",
    "site.generators=8",
    "site.slots_per_generator=2",
    "site.evaluation.every_updates=3",
    "site.evaluation.prompts=8",
    "site.evaluation.completions=2",
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the page shows, each under the name in its first line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path / "runs"))
    for code in CODE:
        if match := re.match(r"# (\w+\.py): ", code):
            Path(match[1]).write_text(code)
    return tmp_path


def arguments(command: str) -> list[str]:
    """A command's words after `scalerl`, small: three updates on a handful of prompts, two steps of pre-training."""
    program, kind, *words = shlex.split(command)
    assert program == "scalerl"
    if kind == "pretrain":
        return [kind, *words, "--steps", "2"]
    return [kind, *(word for word in words if not word.startswith("site.updates=")), *SMALL]


def test_the_page_shows_what_is_played_here() -> None:
    assert len(COMMANDS) == 8 and len(CODE) == 4
    assert len([line for line in CODE[0].splitlines() if line]) <= 30


@pytest.mark.parametrize("command", [c for c in COMMANDS if "my-policy" not in c])
def test_every_command_trains(here: Path, command: str) -> None:
    assert "site.data" in command or "site.task" in command
    printed(*arguments(command))
    [log] = (here / "runs").rglob("events.jsonl")
    events = list(read_events(log))
    assert [event["update"] for event in events if event["kind"] == "update"] == [1, 2, 3]


def test_a_start_policy_of_its_own(here: Path) -> None:
    pretrain, run = [command for command in COMMANDS if "my-policy" in command]
    assert "my-policy" in printed(*arguments(pretrain))
    printed(*arguments(run))


def test_the_checks_print_prompt_and_solution(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(CODE[2], {})
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"<bos>( \d+){6} <think> \| high:( \d+ =\d){6} </think> =\d <eos>", first)
    assert re.fullmatch(r"<bos>( \d+){4,12} <think> \| high:( \d+ =\d)+ </think> =\d <eos>", second)


def test_ours_for_other_libraries() -> None:
    space: dict[str, Any] = {}
    exec(CODE[3], space)
    assert (space["reward"], space["terminated"], space["envs"].num_envs) == (1.0, True, 64)


def test_the_class_pays_for_work_and_the_environment_for_any_order(here: Path) -> None:
    shown = make_task("my_task.py:task", allow_code=True)
    prompt = shown.prompts("train")[0]
    solution = shown.solve(prompt)
    assert not shown.verify(prompt, solution[:1] + solution[3:])  # right, a number left out
    any_order = make_task("my_env.py:AnyOrder", allow_code=True)
    prompt = any_order.prompts("train")[0]
    numbers = [token - 9 for token in prompt.token_ids[1:-1]][::-1]
    said = [8]
    for place, number in enumerate(numbers, start=1):
        said += [9 + number, 39 + sum(numbers[:place]) % 10]
    right = [*said, 4, said[-1], 2]
    assert any_order.verify(prompt, right) and right != any_order.solve(prompt)
    wrong = [*said[:1], said[3], *said[2:], 4, said[-1], 2]
    assert not any_order.verify(prompt, wrong)
