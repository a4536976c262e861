"""What runs side by side cost: eight of them on two cores, against four times one run on one core.

Run it as a script: `python tests/benchmarks/bench_jobs.py` (about three minutes on two cores). Starts of Python and
torch count on both sides. Lone runs come before and after the eight, so that a slow drift of the machine cancels;
what else runs on it does not, for it takes a core from the eight and none from one. Exit status 1 above the bar.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

RUNS, CORES, BAR = 8, 2, 1.15
SCALERL = [sys.executable, "-P", "-c", "from tui.cli import main; main()", "run", "tiny"]


def seconds(folder: Path, updates: int, *options: str) -> tuple[float, float]:
    """What `scalerl run tiny` takes, in a folder that it has to itself: on the clock, and of all its cores."""
    command = [*SCALERL, f"site.updates={updates}", "--out", str(folder), "--json", *options]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    begun, worked_s = time.monotonic(), cpu_s()
    subprocess.run(command, env=one_thread, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begun, cpu_s() - worked_s


def cpu_s() -> float:
    """Of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=20, help="of each run")
    updates = parser.parse_args().updates
    print(f"tiny, {updates} updates; load of the machine before: {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as root:
        place = Path(root)
        before_s, before_cpu_s = seconds(place / "before", updates, "--one-core")
        eight_s, eight_cpu_s = seconds(
            place / "eight", updates, "--seeds", str(RUNS), "--jobs", str(CORES)
        )
        after_s, after_cpu_s = seconds(place / "after", updates, "--one-core")
    print(f"one run: {before_s:.1f} s before, {after_s:.1f} s after; {RUNS} runs: {eight_s:.1f} s")
    share = eight_cpu_s / (mean((before_cpu_s, after_cpu_s)) * RUNS)
    print(f"work of all cores: {share:.3f} times that of {RUNS} runs one by one")
    ratio = eight_s / (mean((before_s, after_s)) * RUNS / CORES)
    print(f"{ratio:.3f} times {RUNS // CORES} runs; at most {BAR} is wanted")
    sys.exit(ratio > BAR)


if __name__ == "__main__":
    main()
