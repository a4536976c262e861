"""From the name in a site to the task: one of ours, a mixture of several, or code of the user's own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from sandbox.tasks.altered import Levels, NoisyVerifier, Unanswerable
from sandbox.tasks.digit_sum import DigitSum
from sandbox.tasks.mixture import Mixture
from sandbox.tasks.pair_sum import PairSum
from sandbox.tasks.polynomial import Polynomial
from scalerl.errors import InputError, ScaleRLError, TaskError
from scalerl.site import Site
from scalerl.task import Task, check_task
from scalerl.user_code import load_function, place_and_text

TASKS: dict[str, Callable[[], Task]] = {
    "digit_sum": DigitSum,
    "pair_sum": PairSum,
    "polynomial": Polynomial,
}
WEIGHTED = re.compile(r"(?:(\d+(?:\.\d+)?)\*)?(.+)")
OTHERWISE = "several as A+B, FILE.py:FN or MODULE:FN of your own, gym:ID"
# in a process that knows only the name
AGAIN = "import sys; from sandbox.tasks.registry import print_fingerprint as p; p(sys.argv[1])"


def make_task(name: str, *, allow_code: bool = False) -> Task:
    """The task of that name, as it is: one of ours, `A+2*B`, FILE.py:FN, MODULE:FN or gym:ID.

    A task of the user's own is held to `check_task`, and to be the same in a second process.

    Raises:
        InputError: no such task, or code of the user's own that was not allowed or does not make one.
        TaskError: one that breaks the contract.
    """
    parts = [WEIGHTED.fullmatch(part.strip()) for part in name.split("+")]
    tasks, weights = [], []
    for part in parts:
        if part is None:
            said = "a + without a task beside it" if name else "a task is needed"
            raise InputError(f"site.task = {name!r}: {said}")
        tasks.append(_one(part[2], allow_code))
        weights.append(Fraction(part[1] or 1))
    if min(weights) <= 0 or (weights != [1] * len(tasks) and len(tasks) == 1):
        raise InputError(f"site.task = {name!r}: weights are of several tasks, all above 0")
    if len(tasks) == 1:
        return tasks[0]
    mixture = Mixture(tuple(tasks), tuple(weights) if len(set(weights)) > 1 else ())
    if ":" in name:  # one of the user's own may ask what another part asks
        check_task(mixture)
    return mixture


def task_of(site: Site, *, allow_code: bool = False) -> Task:
    """The task that a site trains on, with its training prompts changed as `site.data` says.

    Raises:
        InputError, TaskError: as `make_task`; or a level that it does not have.
    """
    task, data = make_task(site.task, allow_code=allow_code), site.data
    if data.levels:
        task = Levels(task, tuple(data.levels))
    if data.unanswerable:
        task = Unanswerable(task, data.unanswerable)
    if data.right_as_wrong or data.wrong_as_right:
        task = NoisyVerifier(task, data.right_as_wrong, data.wrong_as_right)
    return task


def _one(name: str, allow_code: bool) -> Task:
    if name in TASKS:
        return TASKS[name]()
    if ":" not in name:
        raise InputError(
            f"site.task = {name!r}: the sandbox has {', '.join(TASKS)}; or {OTHERWISE}"
        )
    try:
        task = _own_task(name, allow_code)
        check_task(task)
        here = _fingerprint(task)
    except ScaleRLError:
        raise
    except (Exception, SystemExit) as error:  # a script may end itself
        place, said = place_and_text(error)
        raise TaskError(
            f"site.task = {name!r} failed at {place}: {type(error).__name__}: {said}"
        ) from error
    there = _in_a_second_process(name)
    for split, seen in here.items():
        if there.get(split) != seen:
            raise TaskError(
                f"site.task = {name!r}: split {split!r} differs in a second process: give every random number a seed,"
                " and let nothing depend on the order of a set of strings"
            )
    return task


def _own_task(name: str, allow_code: bool) -> Task:
    """What a factory of the user's returns, or an environment by its id, as a task."""
    kind, _, id = name.partition(":")
    if kind == "gym":
        return _registered(id, allow_code)
    factory = load_function(name, allow_code=allow_code)
    made: Any = factory()
    if isinstance(made, type):
        raise InputError(
            f"{name!r} returns the class {made.__name__}: return a task, {made.__name__}()"
        )
    # whoever has made one has imported the library
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is not None and isinstance(made, gymnasium.Env):
        from sandbox.tasks.of_environment import EnvironmentTask

        return EnvironmentTask(factory)
    if not hasattr(made, "prompts"):
        raise InputError(
            f"{name!r} returns {type(made).__name__}: a task (scalerl.task.Task) or a gymnasium.Env was expected"
        )
    return made


def _registered(id: str, allow_code: bool) -> Task:
    """An environment of Gymnasium's registry; an id MODULE:ID imports the module first."""
    if ":" in id and not allow_code:
        raise InputError(f"'gym:{id}' imports code of your own: add --allow-code to run it")
    from sandbox.tasks.of_environment import EnvironmentTask, registered

    return EnvironmentTask(registered(id), name=id.rpartition(":")[2])


def _fingerprint(task: Task) -> dict[str, str]:
    """A hash of each split's prompts, and of the solutions of the first fifty."""
    found: dict[str, str] = {}
    for split in task.splits:
        prompts = task.prompts(split)
        solutions = [task.solve(prompt) for prompt in prompts[:50]]
        rows = [(prompt.token_ids, prompt.answer, prompt.level) for prompt in prompts]
        text = repr((rows, solutions))
        found[split] = blake2b(text.encode(), digest_size=16).hexdigest()
    return found


def _in_a_second_process(name: str) -> dict[str, str]:
    """The fingerprints of a task of the user's own that a process makes which hashes strings otherwise."""
    command = [sys.executable, "-P", "-c", AGAIN, name]
    environment = {**os.environ, "PYTHONHASHSEED": "2510"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = (done.stderr.splitlines() or ["no word"])[-1]
        raise TaskError(f"site.task = {name!r} cannot be made in a second process: {said}")
    return json.loads(lines[-1])


def print_fingerprint(name: str) -> None:
    """What the second process says, on its last line."""
    print("\n" + json.dumps(_fingerprint(_own_task(name, allow_code=True))))
