"""How a command speaks: errors as one sentence and an exit status, and what every command shares."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

INTERRUPTED = 130

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
    except KeyboardInterrupt as interrupt:
        fail(str(interrupt) or "interrupted", status=INTERRUPTED)


def fail(message: str, *, status: int = 2) -> NoReturn:
    print(f"scalerl: {message}", file=sys.stderr)
    raise typer.Exit(status)
