"""Engines and trainers keep out of each other's way on a machine's cores."""

import json
import os
import subprocess
import sys

import pytest

KEEPING = """
import json, os, subprocess, sys, threading
from backend.actors import Actor

before = threading.Thread(target=threading.Event().wait, daemon=True)
before.start()
Actor().keep_to(int(sys.argv[1]))
show = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"
started = json.loads(subprocess.check_output([sys.executable, "-c", show]))
print(json.dumps([sorted(os.sched_getaffinity(thread)) for thread in (0, before.native_id)] + [started]))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux binds to cores")
def test_both_halves_together_are_all_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))
    halves = []
    for half in "01":
        said = subprocess.check_output([sys.executable, "-c", KEEPING, half])
        main, thread, started = json.loads(said)
        assert main == thread == started
        halves.append(main)
    if len(cores) == 1:  # nothing to divide
        assert halves == [cores, cores]
    else:
        assert halves[0] + halves[1] == cores
