"""Event logs of any bytes: their readers, the store of the screens, `fit` and `compare` pass over what is no event."""

import json
import os
from pathlib import Path

import pytest
from command import refused, scalerl
from hostile import MANY, NASTY, bears, oddities, spoiled, texts, unprintable
from hypothesis import given, settings
from logs import fault_event, phase_event, resume_event, sample_event, whole_run

from scalerl.curves.record import _hash, read_record
from scalerl.curves.sources import read_source
from scalerl.errors import InputError
from scalerl.events import parse_event
from tui.watch.catalog import runs, summary
from tui.watch.feeds import opener
from tui.watch.memory import remembered
from tui.watch.session import Session

EVENTS = [*whole_run(24), sample_event(20), fault_event(21, group=3), resume_event(30, 5),
          phase_event("trainer", "update", 0.0, 9.0), *whole_run(24)[31:]]  # fmt: skip
LOG = "".join(json.dumps(event) + "\n" for event in EVENTS).encode()
LINES = [line + b"\n" for line in LOG.splitlines()]


@pytest.fixture(scope="module", autouse=True)
def _here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.chdir(tmp_path_factory.mktemp("logs"))
    Path("run").mkdir()
    Path("good").mkdir()
    Path("good/events.jsonl").write_bytes(LOG)


def _watch(source: str) -> None:
    session = Session(source)
    for _ in range(4):
        session.pump()
    told = [session.says, session.state, session.name, session.recipe(), session.last_words()]
    view = session.store.view()
    told += [view.phases(0.0), view.evals(), view.notices(), view.lags(), view.update_events(9)]
    session.close()


@MANY
@given(data=spoiled([LOG, *LINES]))
def test_any_log(data: bytes) -> None:
    Path("run/events.jsonl").write_bytes(data)
    bears(lambda: read_source("run"))
    bears(lambda: _watch("run"))
    bears(lambda: summary(Path("run")))


@settings(max_examples=8)
@given(data=spoiled([LOG]))
def test_any_log_is_fitted_and_compared_or_refused(data: bytes) -> None:
    Path("run/events.jsonl").write_bytes(data)
    for arguments in (("fit", "run"), ("compare", "run", "good")):
        result = scalerl(*arguments)
        assert result.exit_code in (0, 2), result.exception
        assert unprintable(result.output) == []


@MANY
@given(line=spoiled(LINES))
def test_any_line(line: bytes) -> None:
    event = parse_event(line)
    assert event is None or isinstance(event["kind"], str)


@pytest.mark.parametrize("depth", [100, 500, 975])
def test_settings_nested_as_deep_as_json_goes(depth: int) -> None:
    head, *rest = EVENTS
    nested = '{"a":' * depth + "1" + "}" * depth
    for key in ("recipe", "site"):
        first = json.dumps({**head, key: "@"}).replace('"@"', nested)
        text = "\n".join([first, *map(json.dumps, rest), ""])
        Path("run/events.jsonl").write_text(text)
        bears(lambda: read_source("run"))
        bears(lambda: summary(Path("run")))
        bears(lambda: _watch("run"))


def test_a_forecast_on_record_with_a_sound_hash_and_nothing_else() -> None:
    """Its hash keeps no forger out: whoever may write the record can make one."""
    for change in ({}, {"at": 3}, {"at": [[1]]}, {"source": {"text": "run", "more": 1}}):
        entry = {**json.loads(RECORD), "before": "0" * 64, **change}
        del entry["hash"]
        entry["hash"] = _hash(entry)
        Path("forecasts.jsonl").write_text(json.dumps(entry) + "\n")
        with pytest.raises(InputError, match="is not as it was registered"):
            read_record(Path("forecasts.jsonl"))


def test_lines_too_deep_or_too_long_are_passed_over() -> None:
    deep = [b"[" * 10_000, b'{"kind":' * 10_000, b'{"kind":"update","seq":' + b"9" * 5000 + b"}"]
    Path("run/events.jsonl").write_bytes(b"\n".join([*deep, LOG]))
    bears(lambda: _watch("run"))
    assert len(read_source("run").curves[0].C_N) == len(read_source("good").curves[0].C_N)


@pytest.mark.parametrize("what", ["folder", "pipe", "loop", "dangling"])
def test_what_is_no_file_is_named_and_never_waited_for(what: str, tmp_path: Path) -> None:
    path = oddities(tmp_path, "events.jsonl", LOG)[what]
    with pytest.raises(InputError, match=r"events\.jsonl"):
        read_source(str(path if what == "folder" else path.parent))
    assert str(path.parent) in refused("fit", str(path.parent))
    bears(lambda: _watch(str(path.parent)))
    bears(lambda: runs(tmp_path))
    bears(lambda: summary(path.parent))


@MANY
@given(
    text=texts(
        "ssh://host/p", "http://host:80/x", "http://[::1]/x", "run/events.jsonl", "a.jsonl.gz"
    )
)
def test_any_address(text: str) -> None:
    """Named, not opened: nothing here is asked for over a network."""
    bears(lambda: opener(text))


RECORD = json.dumps(
    {
        "format": 1, "hash": "0", "before": "0" * 64, "source": {"text": "run"},
        "at": [[1, 0.5, 0.4, 0.6]],
    }
)  # fmt: skip


@MANY
@given(data=spoiled([RECORD.encode(), LINES[0]]))
def test_any_record_and_memory(data: bytes) -> None:
    Path("forecasts.jsonl").write_bytes(data)
    bears(lambda: read_record(Path("forecasts.jsonl")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(Path.cwd()))
        Path("scalerl").mkdir(exist_ok=True)
        Path("scalerl/tui.json").write_bytes(data)
        bears(remembered)


def test_what_a_log_says_cannot_move_the_cursor() -> None:
    """Names and settings of somebody else's run, as `fit` and `compare` tell them."""
    head, *rest = EVENTS
    hostile = {**head, "recipe": {**head["recipe"], NASTY: NASTY, "advantage": NASTY}}
    log = "".join(json.dumps(event) + "\n" for event in [hostile, *rest])
    folder = Path(NASTY.replace("/", ""))
    folder.mkdir()
    (folder / "events.jsonl").write_text(log)
    for arguments in (("fit", str(folder)), ("compare", str(folder), "good")):
        result = scalerl(*arguments)
        assert result.exit_code == 0, result.exception
        assert unprintable(result.output) == []
    assert "what differs in the recipes" in result.output and "[bold]loud" in result.output
