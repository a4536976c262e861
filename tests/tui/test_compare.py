"""`scalerl compare` as a person meets it: who wins where, what differs, and every refusal."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command import printed, refused

from scalerl.fit import sigmoid

PROMPTS, K = 200, 16


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_run(
    folder: str, *, hours: float = 2.0, seed: int = 0, eps_max: float = 5.0, **law: float
) -> None:
    """A run of 80 updates of `hours` GPU-hours each, evaluated at every fourth, on 200 prompts of 16."""
    rng = np.random.default_rng(seed)
    curve = {"R0": 0.2, "A": 0.8, "B": 2.0, "C_mid": 40.0, **law}
    events = [{"kind": "run", "recipe": {"loss": {"kind": "cispo", "eps_max": eps_max}, "seed": seed},
               "site": {"task": "digit_sum", "name": "sandbox"}}]  # fmt: skip
    for version in range(0, 81, 4):
        passes = rng.binomial(K, float(sigmoid(hours * version, **curve)), PROMPTS)
        events.append({
            "kind": "eval", "set": "validation", "version": version, "C": hours * version,
            "pass_rate": float(passes.mean() / K), "n": PROMPTS, "k": K, "passes": passes.tolist(),
        })  # fmt: skip
    Path(folder).mkdir(parents=True)
    lines = [json.dumps({"seq": seq, **event}) for seq, event in enumerate(events)]
    Path(folder, "events.jsonl").write_text("\n".join(lines) + "\n")


def test_two_published_curves_cross() -> None:
    asked = ["paper:Fig2/ScaleRL", "paper:Fig1a/ScaleRL-bs2048-100k"]
    text = printed("compare", *asked, "--budget", "10000", "--budget", "100000")
    early, late = text.split("at 10,000 GPU-h: take paper:Fig2/ScaleRL")[1].split(
        "at 100,000 GPU-h: take paper:Fig1a/ScaleRL-bs2048-100k"
    )
    # the published fits give 0.596 and 0.513 at 10,000 GPU-hours, and cross near 30,000
    assert early.splitlines()[1].strip().startswith("0.596") and "ScaleRL" in early.splitlines()[1]
    assert late.splitlines()[1].strip().startswith("0.639") and "100k" in late.splitlines()[1]
    assert "(ahead of its points)" in late and "(ahead" not in early
    [cross] = re.findall(r"they cross at ([\d,]+) \[", text)
    assert 28_000 < int(cross.replace(",", "")) < 33_000


def test_the_table_shows_compute_to_shares_and_b_only_at_a_common_ceiling() -> None:
    apart = printed("compare", "paper:Fig2/ScaleRL", "paper:Fig2/Magistral")
    assert "C_90" in apart and "the share q of the gain, GPU-h" in apart and "B at A" not in apart
    close = printed("compare", "paper:Fig2/ScaleRL", "paper:Fig15b/loo-8op")
    assert "B at A 0.611" in close and "within +-0.02 of one another" in close


def test_two_runs_on_the_same_prompts() -> None:
    write_run("a", seed=1)
    write_run("b", seed=2, hours=4.0, eps_max=4.0, C_mid=80.0)
    text = printed("compare", "a", "b", "--detect", "0.05")
    assert "on the same held-out prompts" in text
    assert "loss.eps_max: 5.0 | 4.0" in text
    # to 80 % of the smaller gain, C = 2 C_mid: 80 and 160 GPU-h, 40 updates each, 2 and 4 hours an update
    [found] = re.findall(
        r"to pass rate 0\.6\d\d: (\S+) and (\S+) GPU-h in (\d+) and (\d+) updates", text
    )
    assert [float(value) for value in found] == pytest.approx([80, 160, 40, 40], rel=0.1)
    [times] = re.findall(r"(\S+)x = (\S+)x compute an update x (\S+)x updates", text)
    assert float(times[1]) == pytest.approx(2.0, rel=0.03)
    assert float(times[0]) == pytest.approx(float(times[1]) * float(times[2]), rel=0.02)
    assert "to show a difference of 0.05 in A" in text and "seeds of each recipe" in text


def test_a_folder_of_seeds_is_one_recipe() -> None:
    for seed in range(3):
        write_run(f"arm/seed-{seed}", seed=seed)
    write_run("other", seed=9, A=0.7)
    found = json.loads(printed("compare", "arm", "other", "--budget", "150", "--json"))
    many, one = found["curves"]
    assert (many["n"], one["n"]) == (60, 20)
    assert one["A"]["hi"] - one["A"]["lo"] >= 0.04 - 1e-9  # one run
    assert 0.0 < many["A"]["hi"] - many["A"]["lo"] < 0.04  # three seeds speak for themselves
    [at] = found["budgets"]
    assert at["best"][0]["chance"] > 0.9 and at["C"] == 150
    [duel] = at["pairs"]
    assert duel["ahead"] > 0.9 and duel["difference"]["lo"] > 0.0
    assert "3 seeds, A of each:" in printed("fit", "arm")


def test_the_document() -> None:
    asked = ["paper:Fig2/ScaleRL", "paper:Fig2/Magistral"]
    found = json.loads(printed("compare", *asked, "--json"))
    assert set(found) == {"unit", "curves", "settings", "budgets", "crossings", "speed", "effort"}
    assert [row["name"] for row in found["curves"]] == asked
    assert found["budgets"] == [] and found["speed"] == [] and found["effort"] is None


def test_a_figure_is_saved() -> None:
    printed("compare", "paper:Fig2/ScaleRL", "paper:Fig2/Magistral", "--plot", "two.html")
    page = Path("two.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "<svg" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["paper:Fig2/ScaleRL"], "a comparison needs two curves or more"),
        (["paper:Fig2/ScaleRL", "nothing.csv"], "cannot read nothing.csv"),
        (["paper:Fig2/ScaleRL", "steps.csv"], "different units of compute: paper:Fig2/ScaleRL in GPU-h"),
        (["paper:Fig2/ScaleRL", "paper:Scout", "--budget", "0"], "--budget 0: compute is"),
        (["paper:Fig2/ScaleRL", "paper:Scout", "--detect", "0"], "--detect: difference = 0"),
        (["paper:Fig2/ScaleRL", "paper:Scout", "--window", ":1100"], "points are in the window"),
    ],
)  # fmt: skip
def test_compare_refuses(arguments: list[str], said: str) -> None:
    rows = "".join(f"{C},{0.2 + 0.6 / (1 + (100 / C) ** 2):.6f}\n" for C in range(20, 400, 20))
    Path("steps.csv").write_text("steps,pass_rate\n" + rows)
    assert said in refused("compare", *arguments)


def test_seeds_keep_what_a_comparison_needs() -> None:
    for seed in range(2):
        write_run(f"fast/seed-{seed}", seed=seed)
        write_run(f"slow/seed-{seed}", seed=10 + seed, hours=4.0, eps_max=4.0, C_mid=80.0)
    text = printed("compare", "fast", "slow", "--budget", "150")
    assert "loss.eps_max: 5.0 | 4.0" in text
    assert "on the same held-out prompts" in text
    assert re.search(r"2\.\d\dx compute an update", text)


def test_the_chance_at_a_budget_is_that_of_the_pair() -> None:
    write_run("a", seed=1)
    write_run("b", seed=2, A=0.78)
    found = json.loads(printed("compare", "a", "b", "--budget", "150", "--json"))
    [at] = found["budgets"]
    assert at["best"][0]["chance"] == pytest.approx(at["pairs"][0]["ahead"], abs=1e-9)
    turned = json.loads(printed("compare", "b", "a", "--budget", "150", "--json"))["budgets"][0]
    assert turned["pairs"][0]["ahead"] == pytest.approx(1 - at["pairs"][0]["ahead"], abs=0.04)
