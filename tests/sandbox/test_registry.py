"""From the name in a site to the task: ours, the user's own, an environment's; and what is said of a wrong one."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit

from sandbox.environments import TokenEnv
from sandbox.tasks.digit_sum import DigitSum
from sandbox.tasks.of_environment import EnvironmentTask
from sandbox.tasks.registry import TASKS, make_task
from scalerl.errors import InputError, TaskError
from scalerl.events import read_events
from scalerl.task import Task, check_task
from scenarios.runs import run
from scenarios.scenario import plan

# A task of the user's own, whose every line a test may replace.
OWN = """
from sandbox.tasks.digit_sum import DigitSum, make_prompt

class Own(DigitSum):
    def __init__(self):
        super().__init__(name="own", splits=("train", "validation"))

    def prompts(self, split):
        first = 0 if split == "train" else 10
        return [make_prompt(i, (first + i, 20), 1) for i in range(10)]

def task():
    return Own()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def changed(here: Path, old: str, new: str) -> None:
    assert old in OWN
    (here / "own.py").write_text(OWN.replace(old, new))


def refused(name: str, *, allow_code: bool = True) -> str:
    with pytest.raises((InputError, TaskError)) as refusal:
        make_task(name, allow_code=allow_code)
    return str(refusal.value)


@pytest.mark.parametrize("name", TASKS)
def test_every_shipped_task_keeps_the_contract(name: str) -> None:
    task = make_task(name)
    assert task.name == name
    assert "ood" in task.splits and len(task.prompts("benchmark")) == 30
    assert {prompt.level for prompt in task.prompts("train")} == {1, 2, 3}
    check_task(task)


@pytest.mark.parametrize("name", ["own.py:task", "own.py:Own"])
def test_a_task_of_ones_own(here: Path, name: str) -> None:
    task = make_task(name, allow_code=True)
    assert task.name == "own" and len(task.prompts("train")) == 10
    assert make_task(f"3*digit_sum+{name}", allow_code=True).prompts("train")[0].source


def test_what_one_trains_on_another_must_not_be_asked(here: Path) -> None:
    """The same prompts as the digit sum, and as held-out ones what it trains on."""
    text = "        return DigitSum().prompts('train')[:10] if split != 'train' else [make_prompt(0, (20, 20), 1)]\n"
    (here / "own.py").write_text(OWN.replace("        first = 0", text + "        first = 0"))
    assert make_task("own.py:task", allow_code=True)
    said = refused("digit_sum+own.py:task")
    assert re.fullmatch(
        r"task 'digit_sum\+own': the prompt validation\[1\] stands in 'train' already", said
    )


def test_a_module_of_ones_own(here: Path) -> None:
    (here / "own_module_of_test_registry.py").write_text(OWN)
    assert make_task("own_module_of_test_registry:task", allow_code=True).name == "own"


@pytest.mark.parametrize(
    "name", ["own.py:task", "digit_sum+own.py:task", "own:task", "gym:own:Env-v0", "2*own.py:task"]
)
def test_code_needs_permission(here: Path, name: str) -> None:
    (here / "own.py").write_text("open('ran', 'w')\n")
    assert "add --allow-code to run it" in refused(name, allow_code=False)
    assert not (here / "ran").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return Own()", "return {}", "'own.py:task' returns dict: a task (scalerl.task.Task)"),
        ("return Own()", "return 1 / 0", "failed at own.py:13: ZeroDivisionError: division by zero"),
        ("(first + i, 20)", "(20, 20)", "task 'own': the prompt train[1] stands in 'train' already"),
        ("for i in range(10)", "for i in range(first)", "task 'own': split 'train' is empty"),
        ("return [make_prompt", "return [None and make_prompt", "train[0] is of type NoneType"),
    ],
)  # fmt: skip
def test_what_does_not_make_a_task(here: Path, old: str, new: str, said: str) -> None:
    changed(here, old, new)
    assert said in refused("own.py:task")


@pytest.mark.parametrize(
    "first",
    [
        "0 if split == 'train' else CHANCE",  # drawn when the module is imported
        "0 if split == 'train' else hash('a word') % 10**9",
    ],
)
def test_chance_that_acts_when_it_is_made_is_seen_from_a_second_process(
    here: Path, first: str
) -> None:
    drawn = "import os\nCHANCE = 10 + int.from_bytes(os.urandom(7), 'big') % 10**9\n"
    text = OWN.replace('0 if split == "train" else 10', first)
    text = text.replace("(first + i, 20)", "(i, *map(int, str(first)))")
    (here / "own.py").write_text(drawn + text)
    said = refused("own.py:task")
    assert said.startswith("site.task = 'own.py:task': split 'validation' differs in a second")


def test_what_a_second_process_cannot_make(here: Path) -> None:
    text = "import os, sys\nif os.environ.get('PYTHONHASHSEED') == '2510':\n    sys.exit('no')\n"
    (here / "own.py").write_text(text + OWN)
    assert "cannot be made in a second process: " in refused("own.py:task")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chess", "site.task = 'chess': the sandbox has digit_sum, pair_sum, polynomial; or several as A+B"),
        ("digit_sum+", "site.task = 'digit_sum+': a + without a task beside it"),
        ("digit_sum+digit_sum", "a mixture needs two or more different tasks"),
        ("0*digit_sum+pair_sum", "all above 0"),
        ("gym:Nowhere-v0", "gym:Nowhere-v0 cannot be made"),
        ("gym:CartPole-v1", "environment 'CartPole-v1' does not say its eos_id: give it that attribute"),
        ("absent.py:task", "there is no file absent.py"),
    ],
)  # fmt: skip
def test_names_that_lead_nowhere(here: Path, name: str, said: str) -> None:
    assert said in refused(name)


def test_a_set_that_the_task_lacks_is_passed_over_and_said(here: Path) -> None:
    """The site asks for `ood`; a task of one's own need not have it, and the run goes on."""
    quick = ("site.updates=2", "prompts_per_update=4", "group_size=4", "site.evaluation.prompts=8")
    [only] = plan("tiny", ["site.task=own.py:task", *quick])
    assert run(only, here / "run", allow_code=True).status == "done"
    events = read_events(here / "run" / "events.jsonl")
    assert {e["set"] for e in events if e["kind"] == "eval"} == {"validation"}
    said = [e["what"] for e in events if e["kind"] == "warning"]
    assert said == ["task 'own' has no split 'ood': that set is not evaluated"]


# --- environments as tasks ---


def of_digit_sum() -> TokenEnv:
    return TokenEnv("digit_sum")


def test_our_own_environment_comes_back_as_the_task_it_is_of() -> None:
    """Every prompt is one of its training prompts, and every verdict that of its verifier."""
    task, inner = EnvironmentTask(of_digit_sum, name="back"), DigitSum()
    check_task(task)
    prompts = {prompt.token_ids: prompt for prompt in inner.prompts("train")}
    assert len(task.prompts("validation")) > 350 and len(task.prompts("train")) > 350
    for prompt in task.prompts("train")[:40]:
        original = prompts[prompt.token_ids]
        solution = inner.solve(original)
        assert task.solve(prompt) == solution and prompt.level == original.level
        for tokens in (
            solution,
            solution[1:],  # right all the same: thinking is free
            [*solution[:-2], solution[-2] - 1, solution[-1]],
            solution[:-1],
            [*solution, solution[-1]],
            [4, *solution],
            [*solution[:-3], 5, *solution[-3:]],
        ):
            assert task.verify(prompt, tokens) is inner.verify(original, tokens), tokens


def test_an_environment_by_its_id() -> None:
    task = make_task("gym:scalerl/DigitSum-v0")
    assert (task.name, task.vocab_size) == ("scalerl/DigitSum-v0", DigitSum().vocab_size)


class Copy(gymnasium.Env[Any, Any]):
    """Say the token that is shown, then end: 2. It may stop early, pay too much, or show what is no prompt."""

    eos_id, think_close_id, interruption = 2, 4, (4,)
    observation_space = gymnasium.spaces.MultiDiscrete([90, 90])
    action_space = gymnasium.spaces.Discrete(90)

    def __init__(self, shows: object = None, info: dict[str, object] | None = None) -> None:
        self.shows, self.info = shows, info

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[object, dict]:
        super().reset(seed=seed)
        self.place, self.wanted = 0, [int(self.np_random.integers(10, 90)), 2]
        info = {"solution": self.wanted} if self.info is None else self.info
        return [1, self.wanted[0]] if self.shows is None else self.shows, info

    def step(self, action: int) -> tuple[object, float, bool, bool, dict]:
        right = action == self.wanted[self.place]
        self.place += 1
        return [1, 1], float(right) - 0.5, not right or self.place == 2, False, {}


def test_an_environment_of_ones_own_pays_by_step() -> None:
    task = EnvironmentTask(Copy, train_seeds=60, validation_seeds=20)
    check_task(task)
    train, held_out = task.prompts("train"), task.prompts("validation")
    assert len(held_out) <= 20 and len(train) + len(held_out) <= 80  # no prompt stands twice
    token = train[0].token_ids[1]
    assert task.verify(train[0], [token, 2])  # +0.5 +0.5, and ended
    assert not task.verify(train[0], [token])  # not ended
    assert not task.verify(train[0], [token, 3])  # +0.5 -0.5
    assert not task.verify(train[0], [token, 2, 2])  # ended before its last token
    hurried = EnvironmentTask(partial(TimeLimit, Copy(), 1), train_seeds=60, validation_seeds=20)
    assert hurried.prompts("train") == train
    assert not hurried.verify(train[0], [token])  # +0.5, and cut off


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (Copy(shows=0.5), "shows 0.5 first: a row of tokens was expected"),
        (Copy(shows={"words": [1]}), "shows {'words': [1]} first"),
        (Copy(info={}), "environment 'Copy' says no solution"),
    ],
)
def test_environments_that_are_no_task(env: Copy, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        check_task(Kept(env))
    assert said in str(refusal.value)


class Kept(EnvironmentTask):
    """With an environment that is there already."""

    def __init__(self, env: Copy) -> None:
        self.__dict__["env"] = env
        super().__init__(Copy)

    def __getstate__(self) -> dict[str, object]:
        return vars(self)


def test_actions_that_are_no_tokens() -> None:
    env = Copy()
    env.action_space = gymnasium.spaces.Box(0, 1)  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"'Copy' has actions Box.*: a token each is Discrete"):
        Kept(env)


def test_the_contract_of_an_environment_is_a_task() -> None:
    task: Task = EnvironmentTask(of_digit_sum)
    assert task.name == "TokenEnv"
