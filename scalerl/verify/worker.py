"""One worker: a process that compares one pair at a time, answers with one word, and may be killed at any moment.

In go lines of JSON strings, out come lines with a word of `WORDS` and perhaps a reason of ours. Nothing parsed is
ever printed, pickled or sent: the text of a power tower alone takes for ever.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys

from scalerl.verify.verdict import Fault, Refused, Unreadable

WORDS = ("correct", "wrong", "unparsable gold", "unparsable prediction", "out of memory")
LONGEST_LINE = 200
_PR_SET_PDEATHSIG = 1


def confine(memory_bytes: int) -> None:
    """Bound this process: its memory, no core file, no file written, no life after its parent."""
    parent = os.getppid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def serve(connection: socket.socket) -> None:
    """Answer jobs until the other end closes."""
    with connection, connection.makefile("r", encoding="utf-8") as jobs:
        for job in jobs:
            connection.sendall(f"{judge(*json.loads(job))}\n".encode())


def judge(kind: str, gold: str, said: str) -> str:
    """The answer to one job: `same` for a pair of normalised answers, `read` for whether a gold can be read."""
    from scalerl.verify.algebra import same_expression
    from scalerl.verify.compare import same

    try:
        if kind == "read":
            _read_parts(gold)
            return "correct"
        return "correct" if same(gold, said, same_expression) else "wrong"
    except Unreadable as error:
        return f"unparsable {error.whose}\t{error}"
    except Refused as error:
        return f"wrong\t{error}"
    except MemoryError:
        return "out of memory"
    except (
        Exception
    ) as error:  # math-verify and sympy raise what they like on what they do not understand
        return f"unparsable {_culprit(gold)}\t{type(error).__name__}"


def _read_parts(gold: str) -> None:
    """Read every part of a gold as `same` would; raises what that raises."""
    from scalerl.verify.algebra import read
    from scalerl.verify.compare import is_exact
    from scalerl.verify.forms import Kind, read_form
    from scalerl.verify.refusals import assigned

    if is_exact(gold):
        return
    form = read_form(gold)
    if form.parts and form.kind is not Kind.SCALAR:
        for part in form.parts:
            _read_parts(part)
    elif named := assigned(form.text):
        _read_parts(named[1])
    else:
        read(form.text, Fault.GOLD)


def _culprit(gold: str) -> Fault:
    """Whose an error is that says nothing of it: the gold's if the gold alone raises."""
    try:
        _read_parts(gold)
    except Exception:
        return Fault.GOLD
    return Fault.PREDICTION
