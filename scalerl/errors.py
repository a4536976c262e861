"""What can go wrong, by name. A message is one sentence: the thing, its value, the way out."""


class ScaleRLError(Exception):
    """Base of every error that a person is meant to read; the command line prints it without a traceback."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line; empty if it says nothing."""
    return (str(error).splitlines() or [""])[0]


class InputError(ScaleRLError):
    """A recipe, site, scenario, file or argument that cannot be used: exit status 2."""


class TaskError(ScaleRLError):
    """A task that breaks its contract (`scalerl.task.check_task`)."""


class BatchError(ScaleRLError):
    """A rollout batch that must not be trained on: wrong shape, NaN, log-probs missing."""


class StalenessViolation(ScaleRLError):
    """A token older than the recipe's k reached the trainer: a fault of the loop, never of the recipe."""


class GeneratorLost(ScaleRLError):
    """The engine that held a request died; the request is issued again, with a new start version."""


class GroupRefused(ScaleRLError):
    """A generator's answer is not what was asked for; the request is issued again, with a new start version."""


class NotFinite(BatchError):
    """A loss or a gradient that is not a number: nothing was updated."""


class Stalled(ScaleRLError):
    """Nothing has finished for so long that nothing will."""


class Unhealthy(ScaleRLError):
    """A trouble of the run itself for which its site ends it."""


class EngineMismatch(ScaleRLError):
    """Generator and trainer do not compute the same log-probs of the same tokens with the same weights."""


class WorldFailed(ScaleRLError):
    """An engine, a trainer or the cluster under them is gone and cannot be replaced."""


class PushFailed(ScaleRLError):
    """A weight push did not reach every live engine; names the phase and the peer."""


class Deadlock(ScaleRLError):
    """Every coroutine waits and no timer is set: on a virtual clock nothing can happen any more."""


class CurriculumExhausted(ScaleRLError):
    """Every training prompt has been excluded, so there is nothing left to draw."""


class LedgerError(ScaleRLError):
    """GPU time that does not add up: overlapping phases of one GPU, or more busy than elapsed time."""


class CheckpointError(ScaleRLError):
    """A checkpoint that is missing, torn, or of another recipe."""


class RunFailed(ScaleRLError):
    """The first failure of a run, in one line."""
