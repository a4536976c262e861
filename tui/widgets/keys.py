"""One line for a key: what it does, in a word for the last line of the screen and in a sentence for the help."""

from textual.binding import Binding

# What every list and every scrolled text does with its keys, and what Textual adds to each screen.
PLAIN = (
    "copy_text",
    "help_quit",
    "command_palette",
    "scroll_",
    "page_",
    "cursor_",
    "select",
    "first",
    "last",
)


def key(keys: str, action: str, word: str, told: str = "", *, show: bool = False) -> Binding:
    """A binding. told: its sentence in help and palette; the word itself without one."""
    return Binding(keys, action, word, show=show, tooltip=told)


def is_plain(binding: Binding) -> bool:
    """Whether a key does what it does everywhere, so that no help need tell of it."""
    return binding.action.rpartition(".")[2].startswith(PLAIN)
