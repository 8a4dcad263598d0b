"""The colours of each theme by tone; ``styles.tcss`` has the layout."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.theme import Theme as Looks
from textual.theme import Theme

from fleetsim.dashboard.labels import Tone


def _theme(name: str, *, ground: str, panel: str, colours: Mapping[str, str], **named: Any) -> Theme:
    """A theme on one background; ``colours`` are the colours without a parameter in Textual."""
    bars = dict.fromkeys(("background", "corner-color", "background-hover", "background-active"), ground)
    variables = {"scrollbar": panel, **{f"scrollbar-{part}": colour for part, colour in bars.items()}, **colours}
    variables["block-cursor-text-style"] = "none"
    return Theme(name=name, background=ground, surface=ground, panel=panel, variables=variables, **named)


_DARK: Mapping[str, Any] = {"ground": "#0e1319", "foreground": "#d3dae3", "panel": "#2b3542", "dark": True}
_DARK_COLOURS = {
    "quiet": "#7f8b99",
    "calm": "#3f7f66",
    "cursor-row": "#1d2733",
    "scrollbar-hover": "#4a5a6d",
    "scrollbar-active": "#6cb6ff",
}

NIGHT = _theme(
    "fleetsim-night",
    primary="#6cb6ff",
    secondary="#7ee0d0",
    accent="#d7a6ff",
    success="#5fcf98",
    warning="#e6b450",
    error="#f4726b",
    colours=_DARK_COLOURS,
    **_DARK,
)
BLUE_ORANGE = _theme(
    "fleetsim-blue-orange",
    primary="#9ecbff",
    secondary="#b8c4d0",
    accent="#ffffff",
    success="#4ea3ff",
    warning="#f2c14e",
    error="#ff8f3f",
    colours=_DARK_COLOURS | {"calm": "#35689c"},
    **_DARK,
)
DAY = _theme(
    "fleetsim-day",
    ground="#fbfcfd",
    foreground="#1d242c",
    panel="#cfd7df",
    dark=False,
    primary="#0b63c5",
    secondary="#0b7d6e",
    accent="#8430c9",
    success="#13763f",
    warning="#8a5a00",
    error="#b5261e",
    colours={"quiet": "#5d6975", "calm": "#5aa580", "cursor-row": "#e3eefb"},
)
THEMES = (NIGHT, BLUE_ORANGE, DAY)
"""A dark theme, one for colour-blind users, and a light one."""


class Palette:
    """The consoles that render lines in one theme, for normal rows and for the row of the cursor."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.ground = self._console(variables, "background")
        self.cursor = self._console(variables, "cursor-row")

    @staticmethod
    def _console(variables: Mapping[str, str], ground: str) -> Console:
        styles = {}
        for tone in Tone:
            *bold, colour = tone.split()
            styles[tone.value] = Style(color=variables[colour[1:]], bgcolor=variables[ground], bold=bool(bold))
        return Console(theme=Looks(styles, inherit=False), file=StringIO())
