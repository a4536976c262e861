"""The command line as a person meets it: what it prints, where, and with which exit status."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import printed, refused, scalerl

SCALERL = Path(sys.executable).with_name("scalerl")
SMALL = [
    "site.updates=6",
    "site.generators=8",
    "site.slots_per_generator=2",
    "prompts_per_update=4",
    "group_size=4",
    "site.evaluation.prompts=16",
    "site.evaluation.completions=4",
    "site.evaluation.every_updates=1",
]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs go to a folder of the test's own, and a relative path means that folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_help_is_quick() -> None:
    def once() -> float:
        start = time.monotonic()
        done = subprocess.run([SCALERL, "--help"], capture_output=True, text=True)
        assert done.returncode == 0 and "doctor" in done.stdout
        return time.monotonic() - start

    assert min(once() for _ in range(3)) < 0.5


def test_a_run_prints_its_curve_and_where_it_is(runs: Path) -> None:
    result = scalerl("run", "tiny", *SMALL)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "tiny / scalerl, seed 0, " + ", ".join(SMALL)
    assert lines[1].startswith("algorithm ") and len(lines[2]) <= 80
    assert sum("±" in line for line in lines) == 7  # one line an evaluation: versions 0 to 6
    assert f"run folder: {runs}/tiny/scalerl/seed-0" in result.stdout
    assert "C = " in result.stdout and "outside C" in result.stdout
    log = runs / "tiny/scalerl/seed-0/events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert (
        events[0]["kind"] == "run"
        and events[-1]["kind"] == "done"
        and events[-1]["status"] == "done"
    )


def test_json_is_one_document(runs: Path) -> None:
    result = scalerl("run", "tiny", *SMALL, "--json", "--seeds", "2", "--out", "here")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [run["seed"] for run in document["runs"]] == [0, 1]
    assert {run["status"] for run in document["runs"]} == {"done"}
    assert Path("here/scalerl/seed-1/events.jsonl").exists()
    assert len(document["runs"][0]["evaluations"]) == 7


def test_a_second_run_gets_its_own_folder(runs: Path) -> None:
    for folder in ("seed-0", "seed-0.2"):
        assert scalerl("run", "tiny", *SMALL).exit_code == 0
        assert (runs / "tiny/scalerl" / folder / "events.jsonl").exists()
    assert "never overwritten" in refused(
        "run", "tiny", *SMALL, "--out", str(runs / "tiny/scalerl/seed-0")
    )


def test_an_unknown_key_names_its_neighbour_and_origin() -> None:
    said = refused("run", "tiny", "loss.eps_mx=4")
    assert said == (
        "scalerl: unknown key 'loss.eps_mx' (from the command line): "
        "did you mean 'loss.eps_max'? Valid here: loss.kind, loss.eps_max"
    )


def test_a_value_out_of_range_names_the_range() -> None:
    said = refused("run", "tiny", "loss.eps_max=0.5")
    assert "loss.eps_max = 0.5 (from the command line): must be above 1" in said


def test_the_origin_may_be_a_file() -> None:
    Path("mine.toml").write_text('extends = "scalerl"\n[loss]\nkind = "cispo"\neps_mx = 4\n')
    assert "unknown key 'loss.eps_mx' (from mine.toml)" in refused("run", "mine.toml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "tny"], "did you mean 'tiny'?"),
        (["run", "missing.toml"], "cannot read missing.toml"),
        (["run", "tiny", "nonsense"], "is not KEY=VALUE"),
        (["run", "tiny", "--on", "sandbx"], "there is no site 'sandbx': did you mean 'sandbox'?"),
        (["run", "tiny", "--arm", "left"], "has no arm 'left'; it has scalerl"),
        (
            ["run", "tiny", "site.policy=nowhere"],
            "neither a shipped policy (digit_sum,",
        ),
        (["run", "tiny", "site.task=chess"], "site.task = 'chess': the sandbox has digit_sum"),
        (["run", "tiny", "site.thinking_tokens=200"], "need 225 positions; the policy has 128"),
        (
            ["run", "tiny", "site.evaluation.prompts=600"],
            "task 'digit_sum' has 512 validation prompts",
        ),
        (["run", "tiny", "site.device=cuda"], "no CUDA device"),
        (["run", "tiny", "--out", "/proc/none"], "cannot write to the run folder /proc/none"),
        (["run", "tiny", "loss.eps_max=inf"], "loss.eps_max = inf"),
        (["run", "tiny", "seed=99999999999999"], "seed = 99999999999999"),
        (["run", "climbing.toml"], "arms"),
        (["pretrain", "--out", "/proc/none"], "cannot make the folder /proc/none"),
        (["run"], "say what to run"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str) -> None:
    Path("climbing.toml").write_text(
        'name = "x"\nquestion = "?"\n[arms."../evil"]\nrecipe = "scalerl"\n'
    )
    assert said in refused(*arguments)


def test_list_names_everything_that_runs() -> None:
    names = json.loads(scalerl("run", "--list", "--json").stdout)
    assert {
        "tiny",
        "scalerl",
        "base",
        "deepseek-grpo",
        "qwen-dapo",
        "magistral",
        "minimax",
    } <= names.keys()
    assert names["sites"]["mixture"].startswith("Two tasks at once")
    told = scalerl("run", "--list").stdout
    assert "tiny" in told and re.search(r"^--on sandbox +The tiny world", told, re.MULTILINE)


def test_a_fault_of_the_whole_recipe_is_its_message_alone() -> None:
    said = refused("run", "scalerl", "--on", "cpu-cluster", "generator_head_dtype=float8_e4m3")
    assert said.startswith("scalerl: generator_head_dtype = float8_e4m3 is emulated by the sandbox")
    assert len(said) < 150


LOSS = """
def half(logp_BT, behavior_logp_BT, adv_B, mask_BT, *, factor):
    return (-factor * adv_B[:, None] * logp_BT).masked_fill(~mask_BT, 0.0)

def broken(logp_BT, behavior_logp_BT, adv_B, mask_BT):
    return logp_BT * float("nan")

def detached(logp_BT, behavior_logp_BT, adv_B, mask_BT):
    return logp_BT.detach()

def number(logp_BT, behavior_logp_BT, adv_B, mask_BT):
    return 0.5

def crooked(logp_BT, behavior_logp_BT, adv_B, mask_BT):
    return -adv_B * logp_BT

def scalar(logp_BT, behavior_logp_BT, adv_B, mask_BT):
    return logp_BT.sum()
"""


def test_a_custom_loss_trains_only_when_code_is_allowed() -> None:
    Path("my_loss.py").write_text(LOSS)
    arguments = [
        "run",
        "tiny",
        *SMALL,
        "loss.kind=custom",
        "loss.function=my_loss.py:half",
        "loss.keywords.factor=0.5",
    ]
    assert "add --allow-code" in refused(*arguments)
    result = scalerl(*arguments, "--allow-code", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["runs"][0]["status"] == "done"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("my_loss.py:broken", "NotFinite: the loss is nan"),
        ("my_loss.py:detached", "BatchError: the loss returned terms without a gradient"),
        ("my_loss.py:number", "BatchError: the loss returned float: a tensor is needed"),
        ("my_loss.py:scalar", "BatchError: the loss returned shape ()"),
        (
            "my_loss.py:crooked",
            "my_loss.py:crooked failed at my_loss.py:15: RuntimeError: The size",
        ),
        ("my_loss.py:half", "half() missing 1 required keyword-only argument"),
    ],
)
def test_a_run_that_fails_says_why_in_one_line(function: str, said: str) -> None:
    Path("my_loss.py").write_text(LOSS)
    sentence = refused(
        "run",
        "tiny",
        *SMALL,
        f"loss.function={function}",
        "loss.kind=custom",
        "--allow-code",
        "--json",
        status=1,
    )
    assert said in sentence


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("gone.py:f", "there is no file gone.py"),
        ("my_loss.py:f", "has no function 'f'"),
        ("no_such_module:f", "No module named"),
    ],
)
def test_code_that_cannot_be_loaded(function: str, said: str) -> None:
    Path("my_loss.py").write_text(LOSS)
    assert said in refused(
        "run", "tiny", "loss.kind=custom", f"loss.function={function}", "--allow-code"
    )


def test_ctrl_c_stops_cleanly_and_says_how_to_resume(tmp_path: Path) -> None:
    """Stopped by SIGINT after an evaluation; the printed command finishes the run."""
    command = [
        SCALERL,
        "run",
        "tiny",
        *SMALL,
        "site.updates=60",
        "site.evaluation.every_updates=5",
        "--out",
        "cut",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "±" in line:
                break
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == ""
    [resume] = [line for line in printed.splitlines() if "to resume:" in line]
    words = resume.partition("to resume:")[2].split()
    assert words[0] == "scalerl" and words[1] == "run"
    result = scalerl(*words[1:], "--json")
    assert result.exit_code == 0, result.output
    [run] = json.loads(result.stdout)["runs"]
    assert run["status"] == "done" and run["evaluations"][-1]["version"] == 60


def test_without_a_command_tiny_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("tui.cli.run", lambda name: asked.append(name))
    assert scalerl().exit_code == 0
    assert asked == ["tiny"]


def test_doctor_finds_this_machine_fit() -> None:
    result = scalerl("doctor", "--json")
    assert result.exit_code == 0
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert checks["sandbox"]["ok"] and checks["torch"]["found"].startswith("2.")
    assert "ok" in scalerl("doctor").stdout


def test_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.world.POLICIES", Path("nowhere"))
    result = scalerl("doctor")
    assert result.exit_code == 1
    assert "MISSING sandbox" in result.stdout


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "run"
    assert scalerl("run", "tiny", *SMALL, "--out", str(folder)).exit_code == 0
    return folder


def test_doctor_audits_a_run(small_run: Path) -> None:
    """By its folder or its log, as a table or as JSON; what is broken sets the exit status."""
    shutil.copytree(small_run, "run")
    result = scalerl("doctor", "run")
    assert result.exit_code == 0, result.output
    lines = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines] == [
        ["ok", name] for name in ("recipe", "events", "update-6", "lock", "resume", "disk")
    ]
    assert scalerl("doctor", "run/events.jsonl").stdout == result.stdout
    weights = Path("run/checkpoints/update-6/policy.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    result = scalerl("doctor", "run", "--json")
    assert result.exit_code == 1
    found = {each["name"]: each for each in json.loads(result.stdout)}
    assert found["update-6"]["status"] == "broken"
    assert "has 1000" in found["update-6"]["found"] and found["update-6"]["way_out"]
    assert (
        "broken   update-6     update-6/policy.safetensors is torn"
        in scalerl("doctor", "run").stdout
    )


def test_doctor_is_quick_and_needs_no_torch(small_run: Path) -> None:
    code = (
        "import sys; from tui.commands.doctor import examine_run; "
        "examine_run(sys.argv[1], as_json=True); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(small_run)], capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("absent", "absent is neither a run folder nor an events.jsonl"),
        ("empty", "empty holds no run: neither recipe.toml nor events.jsonl"),
        ("some", "some is no run but holds some: some/seed-0"),
        ("x\0y", "x?y is no path: a NUL in it"),
        ("a" * 5000, "File name too long"),
    ],
)
def test_doctor_refuses_what_is_no_run(what: str, said: str) -> None:
    Path("empty").mkdir()
    Path("some/seed-0").mkdir(parents=True)
    Path("some/seed-0/events.jsonl").touch()
    assert said in refused("doctor", what)


def test_pretrain_writes_a_policy_that_runs() -> None:
    assert scalerl("pretrain", "--out", "mine", "--steps", "3").exit_code == 0
    assert {path.name for path in Path("mine").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert scalerl("run", "tiny", *SMALL, "site.updates=1", "site.policy=mine").exit_code == 0
    assert "not overwritten" in refused("pretrain", "--out", "mine")


def test_pretrain_takes_an_empty_folder_and_leaves_none_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    Path("there").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("sandbox.pretrain.pretrain", interrupted)
        for place in ("fresh", "there"):
            assert scalerl("pretrain", "--out", place, "--steps", "3").exit_code == 130
    assert not Path("fresh").exists() and list(Path("there").iterdir()) == []
    assert scalerl("pretrain", "--out", "there", "--steps", "1").exit_code == 0
    assert Path("there/model.safetensors").is_file()
    Path("file").touch()
    assert "not overwritten" in refused("pretrain", "--out", "file")


MUTE = """
from sandbox.tasks.digit_sum import DigitSum

class Mute(DigitSum):
    def to_text(self, token_ids):
        return {} if token_ids[0] == 3 else super().to_text(token_ids)

def answers():
    return Mute()

class Silent(DigitSum):
    def to_text(self, token_ids):
        return {0: "<pad>", 1: "<bos>", 2: "<eos>"}[token_ids[0]]

def raises():
    return Silent()
"""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "to_text raises KeyError (3) for the token 3"),
        ("answers", "to_text returns {}, no text, for the token 3"),
    ],
)
def test_pretrain_asks_for_every_word_before_it_trains(
    function: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.pretrain.pretrain", lambda *_: pytest.fail("it trains"))
    Path("my_task.py").write_text(MUTE)
    arguments = ("pretrain", "--task", f"my_task.py:{function}", "--out", "mine", "--allow-code")
    assert said in refused(*arguments, status=1)
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("digit_sum", ""),
        ("digit_sum+polynomial", "--on mixture"),
        # after </think>: 3 x + 10 <eos>
        ("polynomial", "site.task=polynomial site.answer_tokens=5"),
        ("2*digit_sum+pair_sum", "'site.task=2*digit_sum+pair_sum' site.thinking_tokens=70"),
    ],
)
def test_pretrain_says_how_to_train_on_its_task(task: str, words: str) -> None:
    said = printed(
        "pretrain", "--task", task, "--positions", "160", "--steps", "1", "--out", "my p"
    )
    command = said.partition("try it:  ")[2].strip()
    expected = shlex.split(f"scalerl run tiny {words} 'site.policy=my p'")
    assert shlex.split(command) == expected


def test_a_run_that_falls_has_no_ceiling(runs: Path) -> None:
    """A learning rate that destroys the policy."""
    ruin = [
        "loss.kind=reinforce",
        "site.optimizer.learning_rate=0.1",
        "site.optimizer.warmup_updates=0",
    ]
    result = scalerl("run", "tiny", *SMALL, *ruin)
    assert result.exit_code == 0, result.output
    assert "no fit: the curve ends no higher than it began" in result.stdout


CURVE = "gpu_hours,pass_rate\n" + "\n".join(
    f"{C},{0.2 + 0.6 / (1 + (100 / C) ** 2):.6f}" for C in (10, 20, 40, 80, 100, 150, 200, 400, 800)
)


def test_output_that_nobody_reads_or_can_show(tmp_path: Path) -> None:
    """`| head -1` ends quietly; a terminal without Unicode gets question marks."""
    Path("curve.csv").write_text(CURVE)
    piped = subprocess.run(
        f"{SCALERL} fit curve.csv | head -1", shell=True, capture_output=True, text=True
    )
    assert piped.stderr == "" and "pass rate" in piped.stdout
    plain = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([SCALERL, "fit", "curve.csv"], capture_output=True, text=True, env=plain)
    assert done.returncode == 0 and done.stderr == "" and "A 0.800" in done.stdout


@pytest.mark.parametrize("damage", ["missing config", "llama", "torn weights", "other sizes"])
def test_a_policy_that_cannot_be_loaded(damage: str) -> None:
    from sandbox.world import POLICIES

    shutil.copytree(POLICIES / "digit_sum", "mine")
    config = Path("mine/config.json")
    match damage:
        case "missing config":
            config.unlink()
        case "llama":
            config.write_text('{"model_type": "llama"}')
        case "torn weights":
            weights = Path("mine/model.safetensors")
            weights.write_bytes(weights.read_bytes()[:5000])
        case "other sizes":
            config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 48'))
    said = refused("run", "tiny", "site.policy=mine")
    assert "mine" in said and ("cannot load the policy" in said or "not model_type='llama'" in said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["foo"], "No such command 'foo'."),
        (["run", "tiny", "--sed", "3"], "No such option: --sed"),
        (["run", "tiny", "--seeds", "0"], "greater than or equal to 1"),
        (["pretrain"], "Missing option '--out'"),
    ],
)
def test_wrong_usage_is_one_sentence_too(arguments: list[str], said: str) -> None:
    done = subprocess.run([SCALERL, *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith("scalerl: ") and said in sentence


def test_colour_codes_never_reach_a_pipe() -> None:
    done = subprocess.run(
        [SCALERL, "run", "--list"],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    assert "\x1b" not in done.stdout
