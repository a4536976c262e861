"""`scalerl doctor`: what this machine can run; `scalerl doctor RUN`: what a run folder is worth."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One finding. `needed`: the sandbox does not run without it."""

    name: str
    ok: bool
    needed: bool
    found: str


def examine() -> list[Check]:
    """Look at Python, the machine, the libraries, the shipped policy, and the place where runs go."""
    checks = [
        Check(
            "python",
            sys.version_info >= (3, 11),
            True,
            f"{platform.python_version()}, 3.11 or newer is needed",
        ),
        Check(
            "machine",
            True,
            False,
            f"{os.cpu_count()} cores, {_memory_gib():.0f} GiB of memory, {platform.machine()}",
        ),
    ]
    for package in ("torch", "numpy", "pydantic", "rich", "safetensors"):
        checks.append(
            _attempt(package, lambda package=package: importlib.metadata.version(package))
        )
    checks += [
        _attempt("sandbox", _sandbox),
        _attempt("run folder", _runs_writable),
        Check(
            "cuda",
            (gpu := _gpu()) is not None,
            False,
            gpu or "no CUDA device: the sandbox runs on the CPU",
        ),
    ]
    return checks


def show(checks: list[Check], *, as_json: bool) -> None:
    """Print the findings."""
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
        return
    for check in checks:
        mark = "ok" if check.ok else "MISSING" if check.needed else "-"
        print(f"{mark:<8}{check.name:<12}{check.found}")


def examine_run(text: str, *, as_json: bool) -> bool:
    """Audit a run folder, or the one of an events.jsonl, and print what was found; whether nothing is broken.

    Raises:
        InputError: it is no run.
    """
    from scenarios.audit import Status, audit
    from tui.words import printable  # numpy is behind it, which may be what the machine lacks

    findings = audit(_run_folder(text))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            way_out = f": {finding.way_out}" if finding.way_out else ""
            print(printable(f"{finding.status:<9}{finding.name:<13}{finding.found}{way_out}"))
    return all(finding.status is not Status.BROKEN for finding in findings)


def _run_folder(text: str) -> Path:
    from scalerl.errors import InputError
    from tui.watch.catalog import refuse_root
    from tui.watch.feeds import LOG_NAME, path_of
    from tui.words import printable

    path = path_of(text)
    try:
        folder = path.parent if path.name == LOG_NAME and path.is_file() else path
        if not folder.is_dir():
            raise InputError(f"{printable(text)} is neither a run folder nor an {LOG_NAME}")
        refuse_root(str(folder))
        if not any((folder / name).exists() for name in (LOG_NAME, "recipe.toml", "checkpoints")):
            raise InputError(f"{printable(text)} holds no run: neither recipe.toml nor {LOG_NAME}")
    except OSError as error:
        raise InputError(f"cannot read {printable(text)}: {error.strerror}") from None
    return folder


def _attempt(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, True, look())
    except Exception as error:  # whatever is wrong is what the doctor is there to say
        return Check(name, False, True, f"{type(error).__name__}: {error}")


def _sandbox() -> str:
    """Open the default world: task, shipped policy, verifier."""
    from scalerl.task import check_task
    from scenarios.scenario import plan
    from scenarios.worlds import open_world

    [only] = plan("tiny")
    world = open_world(only.recipe)
    from sandbox.tasks.registry import task_of

    assert only.recipe.site is not None
    check_task(task_of(only.recipe.site))
    return f"scenario tiny opens, {len(world.train)} training prompts, task contract kept"


def _runs_writable() -> str:
    from scenarios.runs import runs_root

    root = runs_root()
    nearest = next(folder for folder in (root, *root.resolve().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError:
        raise PermissionError(
            f"{root} cannot be written: set SCALERL_RUNS to a folder of yours"
        ) from None
    return f"{root} can be written"


def _gpu() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _memory_gib() -> float:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        return int(meminfo.read_text().split()[1]) / 2**20
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
