"""Paths that a person or a file named: only a regular file is ever read, and a name that can be none is no error."""

import stat
from pathlib import Path


def regular(path: Path) -> Path:
    """The path itself, if it leads to a regular file: opening a pipe would wait for ever.

    Raises:
        OSError: nothing is there, or something else; `strerror` says what.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # a NUL in it
        raise OSError(0, str(error)) from None
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is not a regular file")
    return path


def is_file(path: Path) -> bool:
    """Whether a regular file is there; at a name too long or with a NUL there is none."""
    try:
        regular(path)
    except OSError:
        return False
    return True


def is_folder(path: Path) -> bool:
    """Whether a folder is there; at a name too long or with a NUL there is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
