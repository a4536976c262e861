"""Is the default curve worth looking at, and does its first half predict its end? All seeds are printed.

    python tests/benchmarks/curve.py [--seeds N] [--runs DIR]

Runs `scalerl run tiny` on seeds 0 .. N-1, two at a time, and scores each. Exit status 1 if seeds 0, 1, 2 miss a bar.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
from curve_score import Score, score

from scalerl.events import Event, read_events

SCALERL = Path(sys.executable).with_name("scalerl")
JUDGED = 3  # the seeds that the bars are for; more are shown to see whether those were lucky


def run(seed: int, folder: Path) -> Score:
    """One default run in a process of its own; a finished one in the folder is scored as it is."""
    if not any(event["kind"] == "done" for event in read_if_there(folder)):
        command = [SCALERL, "run", "tiny", f"seed={seed}", "--out", folder, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"seed {seed} failed: {done.stderr}")
        json.loads(done.stdout)
    return score(seed, read_events(folder / "events.jsonl"))


def read_if_there(folder: Path) -> list[Event]:
    log = folder / "events.jsonl"
    return read_events(log) if log.exists() else []


def show(scores: list[Score]) -> None:
    print(
        "seed     A     B  C_mid    rmse  evals <25% >85%  at half  worst se  epochs  max lag"
        "  forecast    carry  first eval  total"
    )
    for s in scores:
        print(
            f"{s.seed:>4} {s.A:.3f} {s.B:>5.2f} {s.C_mid:>6.1f}  {s.rmse:.4f}  {s.evaluations:>5} {s.below_quarter:>4}"
            f" {s.above_85:>4}  {s.share_at_half:>7.1%}  {s.worst_se:>8.4f}  {s.epochs:>6.1f}  {s.worst_lag:>7}"
            f"  {s.forecast_error:>+8.3f} {s.carry_error:>+8.3f}  {s.first_evaluation_s:>8.1f} s  {s.total_s:>3.0f} s"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument(
        "--runs",
        type=Path,
        help="keep the runs here; finished ones are scored again, not run again",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        root = arguments.runs or Path(scratch)
        scores = list(
            pool.map(lambda seed: run(seed, root / f"seed-{seed}"), range(arguments.seeds))
        )
    show(scores)
    for chosen, label in ((scores[:JUDGED], "seeds 0 to 2"), (scores, f"all {len(scores)} seeds")):
        errors = [abs(s.forecast_error) for s in chosen]
        carried = statistics.median(abs(s.carry_error) for s in chosen)
        print(
            f"{label}: error of the forecast from half the compute, median {statistics.median(errors):.3f},"
            f" largest {max(errors):.3f}; of the last value carried forward, median {carried:.3f}"
        )
    judged = scores[:JUDGED]
    errors = [abs(s.forecast_error) for s in judged]
    better = statistics.median(errors) < statistics.median(abs(s.carry_error) for s in judged)
    ok = all(s.meets_the_bars() for s in judged) and statistics.median(errors) <= 0.02 and better
    print("all bars met on seeds 0 to 2" if ok else "a bar was missed")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
