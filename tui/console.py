"""How a command speaks: errors as one sentence and an exit status, and what every command shares."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

INTERRUPTED = 130
LONGEST = 2000  # characters of a message: a name or a value of someone else's may be endless

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]


@contextmanager
def errors() -> Iterator[None]:
    """What a person can mend is one sentence and exit status 2; a run that failed is one and exit status 1."""
    from scalerl.errors import InputError, ScaleRLError

    try:
        yield
    except InputError as error:
        fail(str(error))
    except ScaleRLError as error:
        fail(str(error), status=1)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        fail(f"{error.filename}: {error.strerror}: choose a shorter one")
    except KeyboardInterrupt as interrupt:
        fail(str(interrupt) or "interrupted", status=INTERRUPTED)


def fail(message: str, *, status: int = 2) -> NoReturn:
    """One line on stderr: what it quotes of a file cannot move the cursor."""
    from tui.words import printable

    shown = printable(message)
    if len(shown) > LONGEST:
        shown = f"{shown[: LONGEST // 2]} ... {shown[-LONGEST // 2 :]}"
    print(f"scalerl: {shown}", file=sys.stderr)
    raise typer.Exit(status)
