"""Event logs written by hand: runs that follow a given law, with updates, and nothing that had to be trained."""

import json
from pathlib import Path

import numpy as np

from scalerl.fit import sigmoid


def write_log(
    folder: Path,
    *,
    hours: float = 2.0,
    updates: int = 80,
    seed: int = 0,
    eps_max: float = 5.0,
    truncated: float = 0.0,
    lags: tuple[int, ...] = (100,),
    **law: float,
) -> str:
    """A run of updates of `hours` GPU-hours each, evaluated at every fourth on 200 prompts of 16; its folder as text.

    law: of R0 0.2, A 0.8, B 2, C_mid 40 GPU-hours, what is to be different.
    """
    rng = np.random.default_rng(seed)
    curve = {"R0": 0.2, "A": 0.8, "B": 2.0, "C_mid": 40.0, **law}
    events: list[dict] = [
        {
            "kind": "run",
            "recipe": {"loss": {"kind": "cispo", "eps_max": eps_max}, "seed": seed},
            "site": {"task": "digit_sum", "name": "sandbox"},
        }
    ]
    for version in range(updates + 1):
        C = hours * version
        if version:
            events.append(
                {
                    "kind": "update", "update": version, "version": version, "gpu_h": C,
                    "truncated": truncated, "entropy": 1.0 / version, "lag_tokens": list(lags),
                }
            )  # fmt: skip
        if version % 4 == 0:
            passes = rng.binomial(16, float(sigmoid(C, **curve)), 200)
            events.append(
                {
                    "kind": "eval", "set": "validation", "version": version, "C": C,
                    "pass_rate": float(passes.mean() / 16), "n": 200, "k": 16, "passes": passes.tolist(),
                }
            )  # fmt: skip
    folder.mkdir(parents=True)
    lines = [json.dumps({"seq": seq, **event}) for seq, event in enumerate(events)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)
