"""The compare screen as a person meets it: what it shows, every key, and every refusal."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from run_logs import write_log
from screen import screen_text
from textual.app import App
from textual.pilot import Pilot

from scalerl.errors import InputError
from tui.compare.exporting import export
from tui.compare.standing import Entry, known_sources, read_entry
from tui.screens.asking import matching
from tui.screens.compare import CompareScreen
from tui.show.themes import DARK, themes

FULL, OTHER, MAGISTRAL = "paper:Fig15b(loo)/ScaleRL", "paper:Fig15b/loo-8op", "paper:Fig2/Magistral"
ARMS = [
    FULL, OTHER, "paper:Fig15b/loo-ebn", "paper:Fig15c/loo-dapo", "paper:Fig15c/loo-npr",
    "paper:Fig15c/loo-pavg", "paper:Fig15a/loo-blan", "paper:Fig15a/loo-lp",
]  # fmt: skip


class Host(App[None]):
    """An app with nothing but the screen, that remembers what it is asked to open."""

    def __init__(self, sources: list[str]) -> None:
        super().__init__()
        self.screen_wanted = CompareScreen(sources)
        self.opened: list[str] = []

    def on_mount(self) -> None:
        for theme in themes():
            self.register_theme(theme)
        self.theme = DARK
        self.push_screen(self.screen_wanted)

    def on_compare_screen_open(self, event: CompareScreen.Open) -> None:
        self.opened.append(event.source)


async def settled(pilot: Pilot, host: Host) -> None:
    """All that threads do has been done and shown."""
    await pilot.pause()
    while busy := [each for each in host.workers if each.group in ("read", "judge", "write")]:
        await host.workers.wait_for_complete(busy)
        await pilot.pause()
    await pilot.pause()


Scene = Callable[[Pilot, Host], Coroutine[None, None, None]]


def play(scene: Scene, *sources: str, size: tuple[int, int] = (120, 36)) -> None:
    """The scene, once everything has been read."""

    async def scenario() -> None:
        host = Host(list(sources))
        async with host.run_test(size=size, notifications=True) as pilot:
            await settled(pilot, host)
            await scene(pilot, host)

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (60, 18)])
def test_the_table_the_plot_and_the_keys_are_there(size: tuple[int, int]) -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        shown = screen_text(host)
        assert "Compare · base: ScaleRL · 3 curves" in shown
        for word in (
            "8op",
            "0.613 ±.020",
            "slower: 1.",
            "lower ceiling",
            "pass rate",
            "◆",
            "sort: A ▼",
        ):
            assert word in shown, word
        assert ("what changed" in shown) == (size[0] >= 66)
        assert all(len(line) <= size[0] for line in shown.splitlines())

    play(scene, FULL, OTHER, MAGISTRAL, size=size)


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
def test_eight_arms_can_be_read_side_by_side(size: tuple[int, int]) -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        shown = screen_text(host)
        for name in ("loo-8op", "loo-ebn", "loo-dapo", "loo-npr", "loo-pavg", "loo-blan", "loo-lp"):
            [row] = [line for line in shown.splitlines() if f"  {name} " in line and "±" in line]
            assert "├" in row and ("ceiling" in row or "compute" in row), row
        assert "overlay" in shown and "GPU-h" in shown

    play(scene, *ARMS, size=size)


def test_it_says_what_it_is_reading_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slowly(source: str) -> Entry:
        if source == OTHER:
            go_on.wait(20)
        return read_entry(source)

    monkeypatch.setattr("tui.screens.compare.read_entry", slowly)

    async def scenario() -> None:
        host = Host([FULL, OTHER])
        async with host.run_test(size=(100, 30)) as pilot:
            while len(host.screen_wanted.ranking.entries) < 1:
                await pilot.pause()
            await pilot.pause()
            meanwhile = screen_text(host)
            go_on.set()
            await settled(pilot, host)
            assert f"◌ reading {OTHER} (2 of 2)" in meanwhile and "0.609 ±.020" in meanwhile
            assert "◌ reading" not in screen_text(host)

    asyncio.run(scenario())


def test_a_source_that_is_not_there_is_a_row() -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        shown = screen_text(host)
        assert "cannot read nowhere: No such file or directory" in shown
        assert "0.609 ±.020" in shown

    play(scene, FULL, "nowhere")


def test_one_curve_says_how_to_add_another_and_none_does_too() -> None:
    async def alone(pilot: Pilot, host: Host) -> None:
        assert "press a to add" in screen_text(host)

    play(alone, FULL, size=(80, 24))
    play(alone, size=(80, 24))


def test_selecting_hiding_pinning_sorting_and_removing() -> None:
    async def keys(pilot: Pilot, host: Host) -> None:
        ranking = host.screen_wanted.ranking
        await pilot.press("down", "j", "k")
        assert ranking.cursor == OTHER
        await pilot.press("space")
        assert "1 hidden" in screen_text(host) and ranking.hidden == {OTHER}
        await pilot.press("space", "p")
        await settled(pilot, host)
        assert ranking.base == OTHER and "base: loo-8op" in screen_text(host)
        assert ranking.standings[FULL].words.startswith("faster: 0.")
        await pilot.press("s")
        assert "sort: B ▼" in screen_text(host)
        await pilot.press("x")
        await settled(pilot, host)
        assert ranking.base == FULL and "2 curves" in screen_text(host)
        await pilot.press("delete", "x")
        await settled(pilot, host)
        assert "0 curves" in screen_text(host)

    play(keys, FULL, OTHER, MAGISTRAL)


def test_a_click_selects_a_row() -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        await pilot.click("#forest", offset=(8, 3))  # border, head, base, then this one
        await pilot.pause()
        ranking = host.screen_wanted.ranking
        assert ranking.ordered().index(ranking.selected) == 1  # type: ignore[arg-type]

    play(scene, FULL, OTHER, MAGISTRAL)


def test_y_goes_through_the_axes_and_m_through_the_metrics(tmp_path: Path) -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        seen = []
        for key in "yyymmmmmmm":
            await pilot.press(key)
            seen.append(screen_text(host))
        for shown, word in zip(seen, (
            "gain R − R0", "slope B", "pass rate · raw", "overlay · truncated", "entropy, nats", "kl, nats",
            "overlay · ess", "overlay · reward", "length, tokens", "pass rate · raw",
        ), strict=True):  # fmt: skip
            assert word in shown, word

    play(scene, write_log(tmp_path / "a"), write_log(tmp_path / "b", seed=1))


def test_settings_that_differ_are_shown_for_the_selected_run(tmp_path: Path) -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        await pilot.press("down")
        assert "loss.eps_max  5.0 → 2.0" in screen_text(host)

    play(scene, write_log(tmp_path / "a"), write_log(tmp_path / "b", seed=1, eps_max=2.0))


def test_enter_opens_and_esc_leaves() -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        await pilot.press("down", "enter")
        await pilot.pause()
        assert host.opened == [OTHER]
        await pilot.press("escape")
        await pilot.pause()
        assert host.screen is not host.screen_wanted

    play(scene, FULL, OTHER)


# ---- adding --------------------------------------------------------------------------------------


def test_a_curve_is_added_from_the_suggestions_and_only_once() -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        await pilot.press("a", *"loo-8op")
        assert "paper:Fig15b(loo)/loo-8op" in screen_text(host)
        await pilot.press("enter")
        await settled(pilot, host)
        assert "slower: 1." in screen_text(host) and "2 curves" in screen_text(host)
        await pilot.press("a", *FULL, "enter")
        await settled(pilot, host)
        assert "is here already" in screen_text(host) and "2 curves" in screen_text(host)
        await pilot.press("a", "escape")
        await settled(pilot, host)
        assert "2 curves" in screen_text(host)

    play(scene, FULL)


def test_a_suggestion_is_moved_to_and_tab_puts_it_into_the_line() -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        await pilot.press("a", *"Fig2", "down", "down", "tab")
        assert "paper:Fig2/Magistral" in screen_text(host)
        await pilot.press("enter")
        await settled(pilot, host)
        assert host.screen_wanted.ranking.entries[1].source == "paper:Fig2/Magistral"

    play(scene, FULL)


def test_every_word_of_what_is_typed_must_be_there() -> None:
    options = ["paper:Fig2/ScaleRL", "runs/tiny/scalerl", "paper:Fig2/Magistral"]
    assert matching(options, "scalerl PAPER") == ["paper:Fig2/ScaleRL"]
    assert matching(options, "") == options


def test_runs_and_arms_of_several_seeds_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALERL_RUNS", str(tmp_path))
    for folder in ("tiny/full/seed-0", "tiny/full/seed-1", "tiny/ppo/seed-0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "events.jsonl").touch()
    found = known_sources()
    runs = [Path(each).relative_to(tmp_path).as_posix() for each in found if "paper:" not in each]
    assert runs == ["tiny/full", "tiny/full/seed-0", "tiny/full/seed-1", "tiny/ppo/seed-0"]
    assert "paper:Fig2/Magistral" in found


# ---- exporting -----------------------------------------------------------------------------------


def test_e_writes_the_table_and_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scene(pilot: Pilot, host: Host) -> None:
        await pilot.press("e")
        assert "comparison.csv" in screen_text(host)
        await pilot.press("enter")
        await settled(pilot, host)
        assert "written: comparison.csv and comparison.svg" in screen_text(host)
        await pilot.press("e")
        assert "comparison-2.csv" in screen_text(host)

    play(scene, FULL, OTHER)
    assert (tmp_path / "comparison.csv").read_text().startswith("source,base,A,A_lo")
    assert "<svg" in (tmp_path / "comparison.svg").read_text()


def test_nothing_is_overwritten_and_a_folder_that_is_not_there_is_a_notice(tmp_path: Path) -> None:
    async def scene(pilot: Pilot, host: Host) -> None:
        host.screen_wanted._write(tmp_path / "gone" / "a.csv", "x", [])
        await settled(pilot, host)
        assert "cannot write" in screen_text(host)

    play(scene, FULL)
    there = tmp_path / "a.csv"
    there.write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        export(there, "x", [])
    assert there.read_text() == "mine"
    with pytest.raises(InputError, match="cannot write"):
        export(tmp_path / "gone" / "a.csv", "x", [])
