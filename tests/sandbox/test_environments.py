"""Tasks as Gymnasium environments: the library's own checks, the sandbox's own endings, many at once."""

import ast
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from sandbox.environments import ENVIRONMENTS, TokenEnv, TokenVectorEnv
from sandbox.rows import NEVER, Rows, Sampling
from sandbox.tasks.digit_sum import DigitSum
from sandbox.tasks.registry import TASKS
from sandbox.vocabulary import CLOSE, EOS, INTERRUPTION
from scalerl.errors import InputError
from scalerl.recipe import NoLengthControl

ROOT = Path(__file__).parents[2]
TASK = DigitSum()
CUT = (0.5, 1.0)


def test_every_task_has_an_environment() -> None:
    assert {kwargs["task"] for kwargs in ENVIRONMENTS.values()} == set(TASKS)


@pytest.mark.parametrize("id", ENVIRONMENTS)
@pytest.mark.parametrize("interruption", [None, CUT])
def test_the_librarys_own_checks(id: str, interruption: tuple[float, float] | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(id, interruption=interruption).unwrapped)
        envs = gymnasium.make_vec(id, num_envs=3, interruption=interruption)
    assert isinstance(envs.unwrapped, TokenVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observation, _ = envs.reset(seed=0)
    assert observation in envs.observation_space
    assert envs.step(envs.action_space.sample())[0] in envs.observation_space


@pytest.mark.parametrize("id", ENVIRONMENTS)
def test_a_solution_earns_one(id: str) -> None:
    env = gymnasium.make(id)
    observation, info = env.reset(seed=3)
    prompt, solution = TASKS[ENVIRONMENTS[id]["task"]]().prompts("train")[info["prompt"]], info["solution"]  # fmt: skip
    assert tuple(observation["tokens"][: observation["length"]]) == prompt.token_ids
    assert info["level"] == prompt.level
    played = [env.step(token) for token in solution]
    assert [step[1:4] for step in played[:-1]] == [(0.0, False, False)] * (len(solution) - 1)
    assert played[-1][1:4] == (1.0, True, False)
    tokens = played[-1][0]
    assert tuple(tokens["tokens"][: tokens["length"]]) == (*prompt.token_ids, *solution)
    assert not tokens["tokens"][tokens["length"] :].any()


@pytest.mark.parametrize("id", ENVIRONMENTS)
def test_the_longest_solutions_fit(id: str) -> None:
    """In every split, uncut though the phrase falls at the last moment; and all splits are observed alike."""
    task = TASKS[ENVIRONMENTS[id]["task"]]()
    for split in task.splits:
        env = gymnasium.make(id, split=split, interruption=(1.0, 1.0))
        assert env.observation_space == gymnasium.make(id).observation_space
        solutions = [task.solve(prompt) for prompt in task.prompts(split)]
        thinking = [solution.index(CLOSE) for solution in solutions]
        answer = [solution[::-1].index(CLOSE) for solution in solutions]
        for place in (int(np.argmax(thinking)), int(np.argmax(answer))):
            _, info = env.reset(options={"prompt": place})
            played = [env.step(token) for token in info["solution"]]
            assert played[-1][1:4] == (1.0, True, False)


def test_wrong_late_and_empty_completions_cost_one() -> None:
    env = TokenEnv(thinking_tokens=4, answer_tokens=2)
    env.reset(options={"prompt": 0})
    assert env.step(EOS)[1:4] == (-1.0, True, False)
    env.reset(options={"prompt": 0})
    played = [env.step(10)[1:4] for _ in range(6)]  # thinking and answer share six tokens
    assert played == [(0.0, False, False)] * 5 + [(-1.0, False, True)]
    env.reset(options={"prompt": 0})
    assert [env.step(token)[1:4] for token in (10, 10, 10, 10, 10, EOS)][-1] == (-1.0, True, False)


def test_the_phrase_comes_within_the_step() -> None:
    env = TokenEnv(thinking_tokens=3, answer_tokens=2, interruption=(1.0, 1.0))
    start = env.reset(options={"prompt": 0})[0]["length"]
    assert [env.step(10)[4] for _ in range(2)] == [{"forced": 0}] * 2
    observation, *_, info = env.step(11)
    assert info == {"forced": len(INTERRUPTION)}
    written = observation["tokens"][start : observation["length"]].tolist()
    assert written == [10, 10, 11, *INTERRUPTION]
    assert env.step(10)[1:4] == (0.0, False, False)
    assert env.step(10)[1:4] == (-1.0, False, True)  # two tokens of answer
    env.reset(options={"prompt": 0})
    assert [env.step(t)[4]["forced"] for t in (10, CLOSE, 10)] == [0, 0, 0]  # closed by itself


def by_the_decoder(token_T: list[int], limit: int | None) -> tuple[list[int], bool, bool]:
    """What the sandbox's own columns make of the same choices: completion, whether it ended in time, interrupted."""
    sampling = Sampling(NoLengthControl(), 8, 3, 1.0, torch.float32)
    rows = Rows(1, sampling.longest(TASK))
    rows.add(0, 0, 0, 5, NEVER if limit is None else limit, np.zeros(sampling.longest(TASK)))
    choices = iter(token_T)
    while True:
        forcing = rows.closed[0] < 0 and (rows.forced[0] > 0 or rows.length[0] >= rows.limit[0])
        token = 0 if forcing else next(choices)
        if rows.append(np.array([token]), np.zeros(1), 0, TASK, sampling)[0]:
            [done] = rows.take(np.array([True]), TASK)
            ended = done.completion
            return ended.token_ids, not ended.truncated, ended.interrupted


def choices(rng: np.random.Generator) -> list[int]:
    """Thirty tokens in which closing and ending are frequent."""
    return rng.choice([EOS, CLOSE, CLOSE, *range(9, 19)], size=30).tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [None, 1, 4, 8])
def test_an_episode_ends_where_a_completion_ends(seed: int, limit: int | None) -> None:
    rng = np.random.default_rng(seed)
    cut = None if limit is None else (limit / 8, limit / 8)
    env = TokenEnv(TASK, thinking_tokens=8, answer_tokens=3, interruption=cut)
    for _ in range(25):
        token_T = choices(rng)
        start = int(env.reset(options={"prompt": 0})[0]["length"])
        forced, terminated, truncated, observation = 0, False, False, {}
        for token in token_T:
            observation, _, terminated, truncated, info = env.step(token)
            forced += info["forced"]
            if terminated or truncated:
                break
        written = observation["tokens"][start : observation["length"]].tolist()
        assert (written, terminated, forced > 0) == by_the_decoder(token_T, limit)
        assert terminated is not truncated


@pytest.mark.parametrize("interruption", [None, CUT])
def test_many_at_once_are_as_many_alone(interruption: tuple[float, float] | None) -> None:
    """Observations, rewards, endings, new beginnings and infos, against the library's loop over single ones."""
    settings: dict[str, Any] = {"thinking_tokens": 6, "answer_tokens": 3, "interruption": interruption}  # fmt: skip
    count, rng = 5, np.random.default_rng(1)
    ours = TokenVectorEnv(count, TASK, **settings)
    theirs = SyncVectorEnv([lambda: TokenEnv(TASK, **settings)] * count)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert_equal(ours.reset(seed=11), theirs.reset(seed=11))
    ended = 0
    for step in range(120):
        if step == 60:
            assert_equal(ours.reset(), theirs.reset())  # the streams of chance go on
        actions = rng.choice([EOS, CLOSE, *range(9, 19)], size=count)
        mine = ours.step(actions)
        assert_equal(mine, theirs.step(actions))
        ended += int((mine[2] | mine[3]).sum())
    assert ended > 50


def assert_equal(ours: Any, theirs: Any) -> None:
    match theirs:
        case dict():
            assert ours.keys() == theirs.keys()
            for key in theirs:
                assert_equal(ours[key], theirs[key])
        case tuple():
            for mine, other in zip(ours, theirs, strict=True):
                assert_equal(mine, other)
        case _:
            assert ours.dtype == theirs.dtype
            assert (ours == theirs).all()


def test_a_seed_draws_the_prompt_and_the_options_choose_it() -> None:
    env = TokenEnv()
    drawn = [env.reset(seed=seed)[1]["prompt"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    following = [env.reset()[1]["prompt"] for _ in range(20)]
    assert len(set(following)) > 15
    assert env.reset(options={"prompt": 7})[1]["prompt"] == 7
    assert TokenEnv(split="ood").reset(options={"prompt": 0})[1]["level"] == 4


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"split": "test"}, {}, "split = 'test': task 'digit_sum' has"),
        ({"task": "chess"}, {}, "site.task = 'chess': the sandbox has digit_sum"),
        ({}, {"prompt": 5000}, "prompt = 5000: the split has prompts 0 to 1151"),
        ({"task": "evil.py:task"}, {}, "'evil.py:task' is code of your own"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refusal:
        TokenEnv(**settings).reset(options=options)
    assert said in str(refusal.value)


def test_what_is_rendered() -> None:
    env = gymnasium.make("scalerl/DigitSum-v0", render_mode="ansi")
    env.reset(options={"prompt": 0})
    env.step(CLOSE)
    text = env.render()
    assert isinstance(text, str) and text.startswith("<bos> ") and text.endswith("<think> </think>")


WITH_THE_LIBRARY = {"environments.py", "of_environment.py"}


def test_a_run_of_our_own_tasks_does_not_import_the_library() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"  # importing it fails
        "from sandbox.tasks.registry import task_of, make_task\n"
        "from scenarios.scenario import plan\n"
        "[only] = plan('tiny', ['site.data.unanswerable=0.1'])\n"
        "task_of(only.recipe.site)\n"
        "make_task('2*digit_sum+pair_sum').prompts('train')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path in (ROOT / "sandbox").rglob("*.py"):
        for node in ast.parse(path.read_text()).body if path.name not in WITH_THE_LIBRARY else ():
            line = ast.unparse(node) if isinstance(node, ast.Import | ast.ImportFrom) else ""
            assert "gymnasium" not in line and "environment" not in line, f"{path}: {line}"
