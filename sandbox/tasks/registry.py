"""From the name in a site to the task: one of ours, a mixture of several, or code of the user's own."""

from collections.abc import Callable

from sandbox.tasks.digit_sum import DigitSum
from scalerl.errors import InputError
from scalerl.site import Site
from scalerl.task import Task

TASKS: dict[str, Callable[[], Task]] = {"digit_sum": DigitSum}


def make_task(name: str, *, allow_code: bool = False) -> Task:
    """The task of that name, as it is.

    Raises:
        InputError: no such task, or code of the user's own that was not allowed or does not make one.
    """
    if name not in TASKS:
        raise InputError(f"site.task = {name!r}: the sandbox has {', '.join(TASKS)}")
    return TASKS[name]()


def task_of(site: Site, *, allow_code: bool = False) -> Task:
    """The task that a site trains on, with its training prompts changed as `site.data` says."""
    return make_task(site.task, allow_code=allow_code)
