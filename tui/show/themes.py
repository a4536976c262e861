"""Four themes, and the colour of every role in each (after Okabe and Ito: told apart without red and green)."""

from rich.style import Style
from textual.theme import Theme

DARK, LIGHT, ANSI, CONTRAST = "scalerl-dark", "scalerl-light", "ansi-dark", "scalerl-contrast"
THEMES = (DARK, LIGHT, ANSI, CONTRAST)

_COLOURS = {
    DARK: {
        "data": "#56B4E9",
        "fit": "#E69F00",
        "ahead": "#E69F00",
        "band": "#7E6E48",
        "pinned": "#CC79A7",
        "paper": "#9A8FE0",
        "ok": "#00B886",
        "watch": "#F0E442",
        "danger": "#FF7A33",
        "muted": "#8B949E",
    },
    LIGHT: {
        "data": "#006FAD",
        "fit": "#A65200",
        "ahead": "#A65200",
        "band": "#96804F",
        "pinned": "#A14A7C",
        "paper": "#5B4BB5",
        "ok": "#00724F",
        "watch": "#7A6A00",
        "danger": "#B34700",
        "muted": "#5F6670",
    },
    CONTRAST: {
        "data": "#66CCFF",
        "fit": "#FFC04D",
        "ahead": "#FFC04D",
        "band": "#B8A070",
        "pinned": "#FF99CC",
        "paper": "#C4B5FF",
        "ok": "#33FFC2",
        "watch": "#FFFF33",
        "danger": "#FF8C4D",
        "muted": "#D0D0D0",
    },
    ANSI: {
        "data": "cyan",
        "fit": "yellow",
        "ahead": "yellow",
        "band": "bright_black",
        "pinned": "magenta",
        "paper": "blue",
        "ok": "green",
        "watch": "bright_yellow",
        "danger": "bright_red",
        "muted": "bright_black",
    },
}


# background, surface, panel, foreground
_GROUNDS = {
    DARK: ("#101418", "#151A20", "#1D242C", "#E6EDF3"),
    LIGHT: ("#FAFAF7", "#FFFFFF", "#ECECE6", "#1B1F24"),
    CONTRAST: ("#000000", "#000000", "#000000", "#FFFFFF"),
}


def themes() -> list[Theme]:
    """What the app registers beside Textual's own."""
    return [_theme(name) for name in _GROUNDS]


def _theme(name: str) -> Theme:
    of_role = _COLOURS[name]
    background, surface, panel, foreground = _GROUNDS[name]
    return Theme(
        name=name,
        primary=of_role["data"],
        secondary=of_role["pinned"],
        accent=of_role["fit"],
        success=of_role["ok"],
        warning=of_role["watch"],
        error=of_role["danger"],
        background=background,
        surface=surface,
        panel=panel,
        foreground=foreground,
        dark=name != LIGHT,
    )


def role_styles(theme: str, dark: bool) -> dict[str, Style]:
    """Style of every role; a theme of Textual's own takes the colours of ours of the same darkness."""
    colours = (
        _COLOURS.get(theme)
        or _COLOURS[ANSI if theme.startswith("ansi") else DARK if dark else LIGHT]
    )
    found = {role: Style(color=colour) for role, colour in colours.items()}
    found["strong"] = Style(bold=True)
    found["key"] = Style(bold=True, color=colours["fit"])
    found["cursor"] = Style(reverse=True)
    return found | {"": Style()}
