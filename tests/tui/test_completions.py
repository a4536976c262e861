"""A completion on screen: verdict, versions of its tokens, what was forced, and whatever else a log may hold."""

from hypothesis import given
from hypothesis import strategies as st
from logs import sample_event
from spoiled_logs import JSON

from tui.show.completions import sample_rows
from tui.show.rows import Row, row_width, text, texts


def shown(width: int = 60, **changes: object) -> list[Row]:
    return sample_rows(sample_event(4, **changes), "1 of 7", width)


def role_of(rows: list[Row], words: str) -> str:
    return next(role for row in rows for part, role in row if part == words)


def test_a_right_answer() -> None:
    rows = shown()
    assert texts(rows[:2]) == "1 of 7  ● correct  update 4  reward +1.00\nprompt <bos> 12 4 <think>"
    assert role_of(rows, "● correct") == "ok"


def test_a_wrong_answer_that_was_cut_short_twice() -> None:
    rows = shown(120, correct=False, reward=-1.0, interrupted=True, truncated=True)
    head = text(rows[0])
    assert "■ wrong" in head and "reward -1.00" in head
    assert "▲ thinking interrupted" in head and "■ truncated: no end inside the budget" in head


def test_each_change_of_weights_is_marked_once() -> None:
    rows = shown()
    assert text(rows[2]) == "‹0› low: </think> ‹1› =6 <eos>"
    assert role_of(rows, "low:") != role_of(rows, "=6")
    assert role_of(rows, "</think>") == role_of(rows, "<eos>") == "strong"


def test_forced_tokens_stand_in_brackets() -> None:
    rows = shown(sampled=[True, False, False, True], version=[0, 0, 0, 0])
    assert text(rows[2]) == "‹0› low: [</think> =6] <eos>"
    assert role_of(rows, "[</think>") == "watch"


def test_without_a_version_for_every_token_it_is_plain_text() -> None:
    for changes in (
        {"version": [0, 0]},
        {"version": None},
        {"sampled": [True]},
        {"version": [0, 0, "1", 1]},
    ):
        assert text(shown(**changes)[2]) == "low: </think> =6 <eos>"  # type: ignore[arg-type]


def test_a_narrow_pane_wraps() -> None:
    rows = shown(width=12)
    assert all(row_width(row) <= 12 for row in rows)
    assert "".join(text(row).replace(" ", "") for row in rows).endswith("‹0›low:</think>‹1›=6<eos>")


def test_nothing_in_it_moves_the_cursor() -> None:
    said = texts(shown(completion="a\x1b[2J b\r c d", prompt="x\x07", update="\x1b]0;"))
    assert "\x1b" not in said and "\r" not in said and "\x07" not in said


@given(
    changes=st.dictionaries(st.sampled_from(sorted(sample_event(1))), JSON, max_size=5),
    width=st.integers(8, 90),
)
def test_any_sample_can_be_shown(changes: dict[str, object], width: int) -> None:
    rows = sample_rows(sample_event(4) | changes, "1 of 7", width)
    assert all(row_width(row) <= width for row in rows)
