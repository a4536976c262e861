"""The help screen at three sizes: what stands there, and what the keys do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from screen import screen_text
from textual.app import App
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import OptionList

from scalerl.errors import InputError
from tui.screens.help import HelpScreen

SIZES = [(80, 24), (120, 36), (60, 18)]
KEYS = [("space", "pause the view"), ("e", "change the recipe"), ("1…5", "focus a panel")]
TERMS = [("A", "0.617 ±.020"), ("truncated", "11.8 %"), ("lag", "")]
Look = Callable[[Pilot], Awaitable[None]]


def open_help(size: tuple[int, int], look: Look, first: str | None = None) -> App:
    """Open the screen over an empty app, and look at it."""
    app: App = App()

    async def scenario() -> None:
        async with app.run_test(size=size) as pilot:
            await app.push_screen(HelpScreen("tiny", KEYS, TERMS, first))
            await pilot.pause()
            await look(pilot)

    asyncio.run(scenario())
    return app


def shown_id(pilot: Pilot) -> str | None:
    option = pilot.app.screen.query_one(OptionList).highlighted_option
    return option.id if option else None


@pytest.mark.parametrize("size", SIZES)
def test_keys_numbers_and_questions_stand_there(size: tuple[int, int]) -> None:
    async def look(pilot: Pilot) -> None:
        lines = screen_text(pilot.app).splitlines()
        assert len(lines) == size[1]
        assert "Help · tiny" in lines[0]
        for words in ("─ Numbers on this screen", "─ Keys here", "space  pause the view"):
            assert any(words in line for line in lines), words
        assert "esc close" in lines[-2]

    open_help(size, look)


@pytest.mark.parametrize("size", SIZES)
def test_it_opens_at_an_entry_and_explains_it(size: tuple[int, int]) -> None:
    async def look(pilot: Pilot) -> None:
        text = screen_text(pilot.app)
        assert shown_id(pilot) == "here:truncated"
        # in the list and as the heading of the text
        assert text.count("truncated completions") == 2
        assert "truncated completions  11.8 %" in text
        assert "truncated   now 11.8 %" in text
        assert "Share of completions without end of" in text
        assert "unit: 0..1" in text

    open_help(size, look, first="truncated")


def test_the_text_stands_beside_the_list_or_below_it() -> None:
    async def look(pilot: Pilot) -> None:
        both = pilot.app.screen.query_one("#list"), pilot.app.screen.query_one("#shown")
        assert both[0].region.right == both[1].region.x
        await pilot.resize_terminal(69, 24)
        await pilot.pause()
        assert both[0].region.bottom == both[1].region.y
        assert both[0].region.x == both[1].region.x
        assert "truncated   now 11.8 %" in screen_text(pilot.app)

    open_help((80, 24), look, first="truncated")


def test_formula_unit_and_what_moves_it() -> None:
    async def look(pilot: Pilot) -> None:
        text = screen_text(pilot.app)
        assert "(Σρ)² / (N Σρ²)" in text
        assert "what moves it: falls with kl" in text  # marks of code are gone
        assert " 1 rho = pi / mu, the importance ratio" in text

    open_help((120, 36), look, first="ess")


def test_arrows_and_letters_move_past_headings() -> None:
    async def look(pilot: Pilot) -> None:
        assert shown_id(pilot) == "here:A"
        assert "Pass rate that the curve tends to" in screen_text(pilot.app)
        await pilot.press("down", "j", "j")
        assert shown_id(pilot) == "key:space"
        await pilot.press("k", "up")
        assert shown_id(pilot) == "here:truncated"

    open_help((80, 24), look)


def test_a_question_can_be_reached_without_knowing_a_word() -> None:
    async def look(pilot: Pilot) -> None:
        assert "Why is my loss 0?" in screen_text(pilot.app)
        await pilot.press(*["down"] * 6)
        assert shown_id(pilot) == "all:loss_zero"
        text = screen_text(pilot.app)
        assert text.count("Why is my loss 0?") == 2  # listed and shown
        assert " 2 gradient norm" in text

    open_help((80, 24), look)


def test_the_filter_searches_titles_keys_and_definitions_of_everything() -> None:
    async def look(pilot: Pilot) -> None:
        await pilot.press("slash", *"heartbeat")
        assert shown_id(pilot) == "all:stale_run"  # by its answer
        await pilot.press(*["backspace"] * 9, *"Pause")
        assert shown_id(pilot) == "key:space"
        await pilot.press(*["backspace"] * 5, *"knee half")  # every word, in any order
        assert shown_id(pilot) == "all:C_mid"
        assert "What is rho?" not in screen_text(pilot.app)

    open_help((80, 24), look)


def test_a_filter_shows_an_entry_once_and_j_is_a_letter_in_it() -> None:
    async def look(pilot: Pilot) -> None:
        await pilot.press("slash", *"trunc")
        options = pilot.app.screen.query_one(OptionList).options
        ids = [option.id for option in options if option.id]
        assert ids[0] == "here:truncated"
        assert "all:truncated" not in ids
        assert {"all:all_truncated", "all:truncation_zones"} < set(ids)
        await pilot.press("j")
        assert "Nothing has all of these words." in " ".join(screen_text(pilot.app).split())

    open_help((120, 36), look)


def test_enter_goes_from_the_filter_to_the_list_and_escape_clears_before_it_closes() -> None:
    async def look(pilot: Pilot) -> None:
        await pilot.press("slash", *"knee", "enter")
        assert pilot.app.screen.query_one(OptionList).has_focus
        chosen = shown_id(pilot)
        assert chosen == "all:C_mid"  # it is named so; others only hold the word
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, HelpScreen)
        assert shown_id(pilot) == chosen
        assert len(pilot.app.screen.query_one(OptionList).options) > 90
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, HelpScreen)

    open_help((80, 24), look)


def test_enter_and_right_read_on_and_another_entry_starts_at_its_top() -> None:
    async def look(pilot: Pilot) -> None:
        pane = pilot.app.screen.query_one("#shown", VerticalScroll)
        await pilot.press("enter")
        assert pane.scroll_y > 0
        await pilot.press("left")
        assert pane.scroll_y == 0
        await pilot.press("right", "down")
        assert pane.scroll_y == 0

    open_help((60, 18), look, first="verdict")


def test_digits_go_to_related_entries_even_those_a_filter_hides() -> None:
    async def look(pilot: Pilot) -> None:
        await pilot.press("slash", *"heartbeat", "enter")
        assert shown_id(pilot) == "all:stale_run"
        await pilot.press("1")
        assert shown_id(pilot) == "all:done.status"
        await pilot.press("9")  # it names fewer
        assert shown_id(pilot) == "all:done.status"

    open_help((80, 24), look)


def test_a_click_shows_an_entry_from_its_top() -> None:
    async def look(pilot: Pilot) -> None:
        [y] = [
            y
            for y, line in enumerate(screen_text(pilot.app).splitlines())
            if "Why is the trainer idle?" in line
        ]
        await pilot.click(offset=(5, y))
        assert shown_id(pilot) == "all:trainer_idle"
        assert pilot.app.screen.query_one("#shown").scroll_y == 0

    open_help((80, 24), look)


def test_an_unknown_term_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="no entry 'trunc'"):
        HelpScreen("tiny", KEYS, [("trunc", "1 %")])
    with pytest.raises(InputError, match="no entry 'trunc'"):
        HelpScreen("tiny", KEYS, TERMS, first="trunc")
