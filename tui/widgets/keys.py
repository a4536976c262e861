"""One line for a key: what it does, in a word for the last line of the screen and in a sentence for the help."""

from textual.binding import Binding


def key(keys: str, action: str, word: str, told: str = "", *, show: bool = False) -> Binding:
    """A binding. told: its sentence in help and palette; the word itself without one."""
    return Binding(keys, action, word, show=show, tooltip=told)
