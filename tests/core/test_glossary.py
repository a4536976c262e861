"""The glossary explains what real events hold and what the thresholds are, and the page of the docs is made from it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import small_plan

from scalerl.books import MAX_PHASES_PER_UPDATE
from scalerl.curves.alarms import LOW_ESS, TRUNCATION, ZERO_VARIANCE
from scalerl.errors import InputError
from scalerl.events import Event, read_events
from scalerl.forecast import FEWEST_POINTS, RUN_TO_RUN, WIDEST
from scalerl.glossary import SOURCE, entries, entry, markdown, sections
from scenarios.runs import run

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("glossary") / "run"
    run(small_plan(), folder)
    return read_events(folder / "events.jsonl")


def names(group: str) -> set[str]:
    return {each.name for each in entries().values() if each.group == group}


@pytest.mark.parametrize("kind", ["update", "eval", "sample", "phase", "done"])
def test_the_glossary_has_the_fields_of_real_events_and_no_others(
    events: list[Event], kind: str
) -> None:
    fields = {field for event in events if event["kind"] == kind for field in event}
    assert fields - names("event") == names(kind)
    assert names("event") <= fields


def test_the_kinds_of_events_are_named(events: list[Event]) -> None:
    named = set(re.findall(r"`(\w+)`", entry("kind").definition))
    assert {event["kind"] for event in events} < named


def test_keys_are_unique_and_tell_the_event_where_names_are_shared() -> None:
    assert sum(len(section.entries) for section in sections()) == len(entries())
    assert entry("pass_rate").group == "update"
    assert (entry("eval.pass_rate").group, entry("eval.pass_rate").name) == ("eval", "pass_rate")
    assert entry("k").group == "run"
    assert next(iter(entries())) == "v"  # the order is that of the file


@pytest.mark.parametrize("key", list(entries()))
def test_every_entry_is_whole_and_points_only_to_others(key: str) -> None:
    found = entry(key)
    assert found.title and found.definition.endswith((".", "?"))
    assert key not in found.see
    assert [other for other in found.see if other not in entries()] == []
    if found.group == "question":
        assert found.title.endswith("?")
        assert found.see
        assert 2 <= len(re.findall(r"[.?](?= |$)", found.definition)) <= 6


def test_a_wrong_key_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'trucated': did you mean truncated"):
        entry("trucated")
    with pytest.raises(InputError, match=r"'zzzz': docs/metrics.md has them all"):
        entry("zzzz")


def test_zones_of_truncation_are_those_of_the_alarm() -> None:
    zones = re.findall(r"(\w+) to (\d+) %", entry("truncation_zones").formula)
    # a zone ends where the alarm of the next begins
    assert [int(limit) / 100 for _, limit in zones] == [limit for limit, _ in TRUNCATION]
    assert [name for name, _ in zones] == ["ok", "watch", "danger"]
    assert [level for _, level in TRUNCATION] == ["watch", "danger", "collapse"]


def test_other_thresholds_are_those_of_the_code() -> None:
    assert LOW_ESS == ((0.8, "watch"), (0.5, "danger"))
    assert "Below 0.8 be wary, below 0.5" in entry("ess").definition
    assert ZERO_VARIANCE == ((0.6, "watch"), (0.9, "danger"))
    assert "Watch above 60 %, danger above 90 %" in entry("zero_variance").definition
    assert f"±{RUN_TO_RUN}" in entry("band").definition
    assert f"`ok`: {FEWEST_POINTS} points or more" in entry("verdict").definition
    assert f"±{WIDEST}" in entry("verdict").definition
    [of_phases] = [section for section in sections() if section.group == "phase"]
    assert f"At most {MAX_PHASES_PER_UPDATE} " in of_phases.note


def test_the_page_is_made_from_the_glossary() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert page == markdown(), (
        "docs/metrics.md is not what scalerl/glossary.toml says: make it anew"
    )


def test_tables_of_the_page_are_whole() -> None:
    for block in re.findall(r"(?:^\|.*\n)+", markdown(), flags=re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert "| `eval" not in markdown()  # fields by the name they have in the event
    assert "**What is rho?** Tokens" in markdown()


def test_the_data_lies_in_the_package_and_reading_it_needs_no_torch() -> None:
    assert SOURCE.parent == ROOT / "scalerl"
    code = "import sys, scalerl.glossary as g; g.markdown(); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
