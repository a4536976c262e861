"""Runs on the site cpu-cluster as a person starts them, watched through their event log, for tests."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from scalerl.events import Event, read_events

START_S = 300.0
SCALERL = Path(sys.executable).parent / "scalerl"


@dataclass
class ClusterRun:
    """`scalerl cluster` in a process of its own."""

    folder: Path
    process: subprocess.Popen[str]
    seen: set[psutil.Process] = field(default_factory=set)

    @classmethod
    def start(
        cls, folder: Path, *overrides: str, name: str = "tiny", cwd: Path | None = None
    ) -> "ClusterRun":
        command = [str(SCALERL), "cluster", name, *overrides, "--out", str(folder)]
        with folder.with_suffix(".txt").open("a") as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        return cls(folder, process)

    @property
    def output(self) -> str:
        return self.folder.with_suffix(".txt").read_text()

    @property
    def events(self) -> list[Event]:
        """Of the surviving timeline."""
        log = self.folder / "events.jsonl"
        return read_events(log) if log.exists() else []

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    def wait_for(
        self, what: str, true: Callable[["ClusterRun"], object], seconds: float = START_S
    ) -> None:
        end = time.monotonic() + seconds
        while not true(self):
            self.processes()
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}:\n{self.output}"
            time.sleep(0.1)

    def finish(self, seconds: float = START_S) -> int:
        """Its exit status."""
        return self.process.wait(seconds)

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Of this run, by what their title begins with: `ray::GeneratorActor`, `VLLM::EngineCore`; oldest first."""
        with suppress(psutil.NoSuchProcess):
            self.seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        alive = [process for process in self.seen if _title(process).startswith(title)]
        return sorted(alive, key=lambda process: process.create_time())

    def left_over(self) -> list[str]:
        """What was seen of this run and is still there some seconds after its end."""
        _, alive = psutil.wait_procs(list(self.seen), timeout=20.0)
        return [_title(process) for process in alive if _title(process)]


def _title(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
