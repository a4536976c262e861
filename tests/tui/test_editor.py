"""The recipe editor as a person uses it: keys in, text out."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from screen import screen_text
from textual.app import App
from textual.pilot import Pilot

from scalerl.recipe import Recipe
from scenarios.scenario import plan
from tui.screens.editor import Edited, EditorScreen
from tui.widgets.knobs import key_rows

SMALL, LARGE = (80, 24), (120, 36)
UNSET = Edited((), "save")  # what no editor answers: a file always has a path


class Host(App[None]):
    """Nothing but the editor, and its answer."""

    def __init__(self, parent: Recipe, seconds: float | None) -> None:
        super().__init__()
        self.editor = EditorScreen(parent, "tiny-scalerl", seconds)
        self.answer: Edited | None = UNSET

    def on_mount(self) -> None:
        self.push_screen(self.editor, self.hear)

    def hear(self, answer: Edited | None) -> None:
        self.answer = answer


Talk = Callable[[Host, Pilot[None]], Awaitable[None]]


def converse(
    talk: Talk,
    size: tuple[int, int] = SMALL,
    overrides: tuple[str, ...] = (),
    seconds: float | None = None,
) -> Host:
    """Open the editor on the recipe `scalerl`, and talk to it."""
    [parent] = plan("scalerl", overrides)
    app = Host(parent.recipe, seconds)

    async def scenario() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await talk(app, pilot)

    asyncio.run(scenario())
    return app


async def press(app: Host, pilot: Pilot[None], keys: str) -> list[str]:
    """Keys with spaces between them; then what the screen shows."""
    await pilot.press(*keys.split())
    await pilot.pause()
    return screen_text(app).split("\n")


def line(lines: list[str], word: str) -> str:
    [found] = [each for each in lines if word in each]
    return found


@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 18)])
def test_it_is_whole_at_every_size(size: tuple[int, int]) -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "down")
        assert len(lines) == size[1] and "Recipe: tiny-scalerl" in lines[0]
        text = "\n".join(lines)
        for word in (
            "always a new run",
            "0 changes",
            "‹ cispo ›",
            "Truncated-importance",
            "Allowed:",
        ):
            assert word in text, word
        for word in ("run as new", "save", "leave", "differences"):
            assert word in text, word
        assert all(each.startswith("│") and each.rstrip().endswith("│") for each in lines[1:-1])

    converse(talk, size)


def test_choices_stand_in_the_row_and_arrows_move_along_them() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "down")
        assert "▸ loss.kind" in line(lines, "‹ cispo › dapo grpo gspo reinforce custom")
        lines = await press(app, pilot, "right")
        assert "▸*loss.kind" in line(lines, "cispo ‹ dapo › grpo gspo reinforce custom  was cispo")
        assert "clip_high" in line(lines, "‹ 0.26 ›")
        assert " 1 change" in lines[1]
        assert "0 changes" in (await press(app, pilot, "left"))[1]

    converse(talk, LARGE)


def test_the_estimate_follows_the_number_of_updates() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        assert "about 3m44s" in (await press(app, pilot, "down"))[1]  # 112 * 2 s
        lines = await press(app, pilot, "slash u p d a t e s enter")
        while "▸ site.updates" not in "\n".join(lines):
            lines = await press(app, pilot, "down")
        lines = await press(app, pilot, "enter 5 0 enter")
        assert "about 1m40s" in lines[1]
        assert line(lines, "▸*site.updates").count("‹ 50 ›  was 112") == 1

    converse(talk, seconds=2.0)


def test_a_number_is_typed_in_its_place_and_escape_cancels() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        before = await press(app, pilot, "down down")
        row = before.index(line(before, "▸ loss.eps_max"))
        lines = await press(app, pilot, "enter 4 . 5")
        assert lines[row].startswith("│▸ loss.eps_max ") and " 4.5 " in lines[row]
        assert "enter take  esc cancel" in "\n".join(lines)
        assert await press(app, pilot, "escape") == before
        lines = await press(app, pilot, "enter 4 . 5 enter")
        assert "‹ 4.5 ›  was 5" in lines[row]

    converse(talk)


def test_a_fault_is_told_and_such_a_draft_neither_runs_nor_is_saved() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "down down enter 0 enter")
        assert "■ invalid" in lines[1] and "▸■loss.eps_max" in "\n".join(lines)
        assert "■ loss.eps_max = 0 (from this draft): must be above 1" in "\n".join(lines)
        assert "■ Not started: loss.eps_max = 0" in "\n".join(await press(app, pilot, "r"))
        assert "■ Not saved: loss.eps_max = 0" in "\n".join(await press(app, pilot, "s"))
        assert app.screen is app.editor
        assert "■" not in "\n".join(await press(app, pilot, "z"))

    converse(talk)


def test_running_answers_with_the_overrides() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        await press(app, pilot, "down right down down right r")

    app = converse(talk)
    assert app.answer == Edited(("loss.kind=dapo", "loss.clip_high=0.5"), "run")


def test_leaving_asks_only_when_something_would_be_lost() -> None:
    async def leave(app: Host, pilot: Pilot[None]) -> None:
        await press(app, pilot, "escape")

    assert converse(leave).answer is None

    async def stay_then_leave(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "down right j right escape")
        assert "Discard 2 changes?" in "\n".join(lines) and "y discard" in "\n".join(lines)
        await press(app, pilot, "r right down")  # none of these answers it
        assert "Discard 2 changes?" in screen_text(app)
        lines = await press(app, pilot, "n")
        assert app.screen is app.editor and "2 changes" in lines[1]
        await press(app, pilot, "escape y")

    assert converse(stay_then_leave).answer is None


def test_differences_as_toml_and_as_arguments() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        assert "nothing differs" in "\n".join(await press(app, pilot, "d"))
        lines = await press(app, pilot, "d down right d")
        text = "\n".join(lines)
        assert "[loss]" in text and 'kind = "dapo"' in text and "│loss.kind=dapo" in text
        assert "‹ dapo ›" in "\n".join(await press(app, pilot, "escape"))

    converse(talk)


def test_undo_one_and_all() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        await press(app, pilot, "down right down down down right")
        lines = await press(app, pilot, "z")
        assert " 1 change" in lines[1] and "▸ aggregation" in "\n".join(lines)
        assert "aggregation is as it was" in "\n".join(await press(app, pilot, "z"))
        assert "0 changes" in (await press(app, pilot, "Z"))[1]

    converse(talk)


def test_the_filter_narrows_and_escape_widens() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "slash k v")
        assert "filter: kv" in lines[1]
        shown = [each for each in lines if "kv_on_push" in each or "kv_bytes_token" in each]
        assert len(shown) == 2 and "aggregation" not in "\n".join(lines)
        lines = await press(app, pilot, "enter")
        assert "/kv: 2 of 66" in lines[1] and "▸ kv_on_push" in "\n".join(lines)
        lines = await press(app, pilot, "escape")
        assert "aggregation" in "\n".join(lines) and "▸ kv_on_push" in "\n".join(lines)
        assert "no knob matches" in "\n".join(await press(app, pilot, "slash q q q q"))

    converse(talk)


def test_the_list_scrolls_with_the_cursor() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "end")
        assert "▸ site.hardware.push_s" in "\n".join(lines) and "loss.kind" not in "\n".join(lines)
        lines = await press(app, pilot, "pageup pageup")
        assert "push_s" not in "\n".join(lines) and "▸" in "\n".join(lines)
        assert "▸ name" in "\n".join(await press(app, pilot, "home k"))
        await pilot.click(app.editor.list, offset=(5, 4))  # border, first row, name, loss.kind
        await pilot.pause()
        assert "▸ loss.eps_max" in screen_text(app)

    converse(talk)


def test_a_doubt_about_the_selected_knob_comes_first() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "slash s t a l e n e s s . k enter end")
        assert "▲ 2 warnings" in lines[1]
        assert "▸ staleness.k" in "\n".join(lines)
        [first, *_] = [each for each in lines[2:] if "▲" in each]
        assert "staleness.k = 12" in first

    converse(talk, overrides=("staleness.k=12", "site.updates=20"))


def test_a_file_is_written_and_never_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalerl.toml").write_text("mine")

    async def talk(app: Host, pilot: Pilot[None]) -> None:
        lines = await press(app, pilot, "down right s")
        assert "save as: scalerl-2.toml" in lines[1]
        app.editor.input.value = "scalerl.toml"
        text = "\n".join(await press(app, pilot, "enter"))
        assert "Not saved: scalerl.toml is there already, and nothing is overwritten." in text
        await press(app, pilot, "s")
        app.editor.input.value = "absent/x.toml"
        assert "Not saved: absent/x.toml: No such file" in "\n".join(
            await press(app, pilot, "enter")
        )
        await press(app, pilot, "s enter")

    app = converse(talk)
    assert app.answer == Edited(("loss.kind=dapo",), "save", Path("scalerl-2.toml"))
    assert (tmp_path / "scalerl.toml").read_text() == "mine"
    [saved] = plan(str(tmp_path / "scalerl-2.toml"))
    assert saved.recipe.loss.kind == "dapo"


def test_text_has_no_arrows_and_a_missing_value_asks_for_one() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        assert "name is text: enter edits it" in "\n".join(await press(app, pilot, "right"))
        lines = await press(app, pilot, "down left")  # round to custom
        assert "loss.function" in line(lines, "needed: press enter")
        lines = await press(app, pilot, "down enter m . p y : f enter")
        assert "m.py:f" in line(lines, "▸*loss.function") and "--allow-code" in "\n".join(lines)

    converse(talk)


def test_a_resize_closes_what_is_typed_and_keeps_the_rest() -> None:
    async def talk(app: Host, pilot: Pilot[None]) -> None:
        await press(app, pilot, "down down enter 9")
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert "‹ 5 ›" in screen_text(app) and "run as new" in screen_text(app)

    converse(talk)


def test_keys_take_the_rows_that_they_need() -> None:
    rows = key_rows([("a", "one"), ("b", "two"), ("c", "three")], 12)
    # "a one  b two" has 12 cells
    assert ["".join(part for part, _ in row) for row in rows] == ["a one  b two", "c three"]
