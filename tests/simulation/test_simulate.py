"""The loop under seeded faults: nothing is violated, every fault happens and shows, a seed is the same run twice."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from scalerl.errors import InputError
from scenarios.simulation.faults import KINDS, Fault, FaultPlan, draw_plan, kinds_of, parse_plan
from scenarios.simulation.history import new_history
from scenarios.simulation.many import Tally, play_seeds
from scenarios.simulation.setting import STALL_S, draw_setting
from scenarios.simulation.simulate import Outcome, simulate
from tui.commands.simulating import simulate as command

SEEDS = 400
Shown = Callable[[Outcome], bool]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [simulate(draw_plan(seed)) for seed in range(SEEDS)]


def test_every_invariant_holds(outcomes: list[Outcome]) -> None:
    violated = [f"{o.plan}\n  {o.violation}: {o.what}" for o in outcomes if o.violation]
    assert not violated, "\n".join(violated)
    endings = Counter(outcome.lives[-1] for outcome in outcomes)
    assert endings["done"] > endings["exhausted"] > 0
    assert sum(len(outcome.lives) > 2 for outcome in outcomes) > SEEDS / 10


# --- each fault shows: in the events, in how lives end, or in why a run could not be taken up ---


def ends(text: str) -> Shown:
    return lambda outcome: any(text in life for life in outcome.lives)


def said(kind: str, text: str) -> Shown:
    """Some event of this kind has the text in its cause, or in what it says."""
    return lambda outcome: any(
        text in f"{event.get('cause')} {event.get('what')}"
        for event in outcome.told
        if event["kind"] == kind
    )


def phase_of(what: str) -> Shown:
    """Something took ten times as long as it does."""

    def shown(outcome: Outcome) -> bool:
        setting = draw_setting(outcome.plan.seed)
        usual = {"update": setting.train_s, "push": setting.push_s, "evaluate": 7.1}[what]
        phases = [e for e in outcome.told if e["kind"] == "phase" and e["what"] == what]
        return any(e["end"] - e["start"] > 9 * usual > 0 for e in phases)

    return shown


def quiet(outcome: Outcome) -> bool:
    """A minute passed between two updates, which else are seconds apart."""
    clocks = [e["clock"] for e in outcome.told if e["kind"] == "update"]
    return any(50 < b - a < STALL_S for a, b in zip([0.0, *clocks], clocks, strict=False))


def outlived(outcome: Outcome) -> bool:
    """An evaluation is reported when the run is versions ahead."""
    version = 0
    for event in outcome.told:
        if event["kind"] == "eval" and version >= event["version"] + 2:
            return True
        version = event["version"] if event["kind"] == "update" else version
    return False


def refused(text: str) -> Shown:
    return lambda outcome: any(text in why for why in outcome.refused)


def passed_over(outcome: Outcome) -> bool:
    """The checkpoint is named, and the one before it was used; or it is refused, where there is none."""
    return said("warning", "passed over, the run goes on from")(outcome) or refused("is whole")(
        outcome
    )


def resumed(outcome: Outcome) -> bool:
    return any(event["kind"] == "resume" for event in outcome.told)


SHOWS: dict[str, Shown] = {
    "crash.once": said("fault", "engine of group"),
    "crash.always": ends("GeneratorLost: engine of group"),
    **{f"hang.{site}": ends("Stalled: ") for site in ("generate", "score", "update", "publish")},
    "hang.evaluate": ends("Stalled: "),
    "slow.generate": quiet,
    "slow.score": quiet,
    "slow.update": phase_of("update"),
    "slow.publish": phase_of("push"),
    "slow.evaluate": outlived,
    "stall": quiet,
    "late": said("fault", "it began at"),
    "duplicate": said("fault", "; got group"),
    "malformed.missing": said("fault", "; got 1"),
    "malformed.empty": said("fault", "has 0 tokens"),
    "malformed.nan": said("fault", "is no number"),
    "malformed.lengths": said("fault", "has 3 tokens, 2 log-probs"),
    "malformed.prompt": said("fault", ", of prompt"),
    "malformed.always": ends("GroupRefused: asked for group"),
    "malformed.future": ends("StalenessViolation: "),
    "push.before": ends("in phase 'prepare'"),
    "push.half": ends("in phase 'receive'"),
    "push.after": ends("in phase 'acknowledge'"),
    "trainer.update": ends("rank 1 died in the update"),
    "trainer.push": ends("WorldFailed: the trainer died before the push"),
    "trainer.nan": lambda o: ends("NotFinite: ")(o) or said("warning", "is not a number")(o),
    "verifier": ends("RuntimeError: the verifier died"),
    **dict.fromkeys(("disk.log", "disk.half", "disk.save"), ends("No space left on device")),
    **dict.fromkeys((kind for kind in KINDS if kind.startswith("kill.")), ends("killed")),
    "stop": ends("stopped"),
    **dict.fromkeys(("checkpoint.torn", "checkpoint.edited", "checkpoint.emptied"), passed_over),
    "checkpoint.missing": resumed,
    "checkpoint.foreign": refused("belongs to algorithm 0123456789ab"),
    "checkpoint.all": refused("is whole"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_happens_and_shows(kind: str, outcomes: list[Outcome]) -> None:
    struck = [outcome for outcome in outcomes if outcome.struck[kind]]
    assert struck, f"none of {SEEDS} seeds has it"
    assert any(map(SHOWS[kind], struck)), f"{len(struck)} seeds have it, and none shows it"


def test_the_push_that_fails_half_way_leaves_engines_apart() -> None:
    """Or the fault would be no other than a push that fails before."""
    outcome = simulate(FaultPlan(3, (Fault("push.half", 0, 2),)))
    assert outcome.struck["push.half"] == 1 and outcome.lives[-1] == "done"


# --- a seed is a run ---

PLAY = """
import sys; from pathlib import Path
from scenarios.simulation.faults import draw_plan
from scenarios.simulation.simulate import simulate
for seed in map(int, sys.argv[2:]):
    simulate(draw_plan(seed), Path(sys.argv[1]) / str(seed))
"""


def without_time(log: Path) -> list[str]:
    """The lines of a log without wall seconds, and the checksum over them; a torn line as it is, up to its time."""
    lines = []
    for line in log.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            lines.append(line[:8])
            continue
        lines.append(json.dumps({k: v for k, v in event.items() if k not in ("t", "crc")}))
    return lines


def test_a_seed_is_the_same_run_in_two_processes(tmp_path: Path) -> None:
    seeds = [str(seed) for seed in range(12)]
    digests = []
    for place in ("one", "two"):
        subprocess.run(
            [sys.executable, "-c", PLAY, str(tmp_path / place), *seeds],
            check=True,
            env={"PYTHONHASHSEED": "1" if place == "one" else "2", "PYTHONPATH": "."},
            cwd=Path(__file__).parents[2],
        )
        logs = [without_time(tmp_path / place / seed / "events.jsonl") for seed in seeds]
        digests.append([hashlib.sha256("\n".join(log).encode()).hexdigest() for log in logs])
    assert digests[0] == digests[1] and len(set(digests[0])) == len(seeds)


def test_a_plan_is_one_line_and_is_played_again_from_it() -> None:
    for seed in range(50):
        plan = draw_plan(seed)
        line = str(plan)
        assert "\n" not in line and line.startswith(f"scalerl simulate --seed {seed} --faults ")
        words = line.rpartition(" ")[2].split(",")
        again = parse_plan(seed, words)
        assert again == plan or not plan.faults == again == FaultPlan(seed, ())


def test_kinds_are_drawn_of_those_asked_for() -> None:
    assert kinds_of([]) == list(KINDS)
    assert kinds_of(["push"]) == ["push.before", "push.half", "push.after"]
    assert {f.kind for s in range(40) for f in draw_plan(s, kinds_of(["stop", "late"])).faults} == {
        "stop",
        "late",
    }
    with pytest.raises(InputError, match="'pusch' is no fault: there are crash, hang"):
        kinds_of(["pusch"])
    with pytest.raises(InputError, match="not both"):
        parse_plan(0, ["stop@0.1", "push"])


def test_fewer_updates_leave_the_rest_as_it_was() -> None:
    whole, short = draw_setting(5), draw_setting(5, 2)
    assert short.site.updates == 2
    assert whole.recipe == short.recipe.on(whole.site)
    assert (whole.tail, whole.skip_every) == (short.tail, short.skip_every)


def test_a_copy_of_a_history_is_independent() -> None:
    history = new_history(draw_setting(0))
    copy = history.copy()
    history.draw(Random(0).randrange(5))
    history.batches.append([0])
    assert copy == new_history(draw_setting(0)) != history


# --- the command ---


def test_the_command_plays_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(7, 1, 0, ["push.half@0.1, stop@1.3"], as_json=False)
    text = capsys.readouterr().out
    assert text.startswith("scalerl simulate --seed 7 --faults push.half@0.1,stop@1.3")
    assert "life 0: PushFailed: push of version 1" in text and "life 1: stopped" in text
    assert text.endswith("every invariant held\n")


def test_the_command_plays_many(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_one_process(
        first: int, seeds: int, kinds: list[str], tell: Callable[[Tally], None]
    ) -> Tally:
        tally = play_seeds(range(first, first + seeds), kinds)
        tell(tally)
        return tally

    monkeypatch.setattr("scenarios.simulation.many.play_many", in_one_process)
    assert command(None, 4, 20, ["kill"], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == 4 and found["violations"] == [] and set(found["struck"]) <= set(KINDS)
    assert command(None, 3, 0, [], as_json=False)
    text = capsys.readouterr().out
    assert text.startswith("3 runs in ") and all(kind in text for kind in KINDS)
    with pytest.raises(InputError, match="is for one run: say which, with --seed"):
        command(None, 3, 0, ["stop@0.1"], as_json=False)
