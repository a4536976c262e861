"""Text of other people's logs, names and errors is shown, never obeyed: neither by a terminal nor as markup."""

import json
from pathlib import Path

import pytest
from command import scalerl
from driving import RUN, drive, early, press, write_run
from hostile import NASTY, unprintable
from logs import fault_event, recipe_of, run_event, sample_event
from rich.console import Console
from screen import screen_text, settle, until
from textual.pilot import Pilot
from tiny_runs import SMALL, small_plan

from scalerl.events import Event
from tui.commands.running import Display
from tui.words import page, printable


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALERL_RUNS", "runs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def hostile_log() -> list[Event]:
    """A run every word of which was written by somebody who means ill."""
    recipe = run_event(recipe_of())
    words = {"name": NASTY, "advantage": NASTY, NASTY: NASTY}
    head = recipe | {"recipe": {**recipe["recipe"], **words}, "site": {**recipe["site"], "name": NASTY}}  # fmt: skip
    _, *rest = early(40)
    sample = sample_event(40, prompt=NASTY, completion=f"{NASTY} two three four", seq=900)
    warning = {**sample_event(40, seq=901), "kind": "warning", "what": NASTY}
    phase = {**sample_event(40, seq=902), "kind": "phase", "role": NASTY, "what": NASTY, "index": 0,
             "start": 0.0, "end": 3600.0}  # fmt: skip
    fault = fault_event(40, NASTY, error=NASTY, seq=903)
    return [head, *rest, sample, warning, phase, fault]


def _clean(pilot: Pilot[None], *, told: bool = True) -> None:
    text = screen_text(pilot.app)
    assert unprintable(text) == []
    if told:
        assert "[bold]loud[/]" in text or "[31mred" in text, text


@pytest.mark.parametrize("keys", ["", "v", "e", "question_mark", "c", "r escape s"])
def test_no_screen_of_a_run_passes_it_on(keys: str) -> None:
    write_run(RUN, hostile_log())
    (RUN / "console.log").write_text(f"{NASTY}\nlast words {NASTY}\n")

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "CRASHED")
        _clean(pilot)
        if keys:
            await press(pilot, keys)
            await settle(pilot)
            _clean(pilot, told=False)

    drive(look, RUN, size=(120, 36))


def test_the_home_screen_does_not_either() -> None:
    write_run(Path(f"runs/{NASTY.replace('/', '')}/a/seed-0"), hostile_log())

    async def look(pilot: Pilot[None]) -> None:
        await until(pilot, "✖")
        await settle(pilot)
        _clean(pilot)
        await press(pilot, "down down")
        await settle(pilot)
        _clean(pilot)

    drive(look, size=(120, 36))


def test_progress_of_a_run_does_not_either(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal, where Rich would take brackets for markup and colons for pictures."""
    wanted = small_plan(f"name={json.dumps(NASTY)}")
    console = Console(force_terminal=True, highlight=False, markup=False, emoji=False, width=200)
    with Display(console, wanted, Path("runs/x"), silent=False) as display:
        for kind, field in (("starting", "what"), ("warning", "what"), ("fault", "cause")):
            display.event({"kind": kind, field: NASTY, "group": 3})
        display.event({"kind": "run"})
    out = capsys.readouterr().out
    assert out.count("[/nobody] [bold]loud[/] :smile:") == 3
    for evil in ("\x1b[31m", "\x1b]0;", "\x07", "\x9b", "\u202e", "\x08"):
        assert evil not in out


def test_a_recipe_of_that_name_runs_and_says_so() -> None:
    Path("r.toml").write_text(f'extends = "scalerl"\nname = {json.dumps(NASTY)}\n')
    result = scalerl("run", "r.toml", *SMALL, "site.updates=1", f"site.name={json.dumps(NASTY)}")
    assert result.exit_code == 0, result.exception
    assert unprintable(result.output) == []


def test_what_is_printable() -> None:
    assert printable(NASTY).isprintable() and len(printable(NASTY)) == len(NASTY)
    assert page(["a\nb", "\x1b[2J", "実験"]) == "a?b\n?[2J\n実験"
