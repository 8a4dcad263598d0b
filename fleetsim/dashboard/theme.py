"""Colours by tone in each theme; where everything stands is in ``styles.tcss``."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO

from rich.console import Console
from rich.style import Style
from rich.theme import Theme as Looks
from textual.theme import Theme

from fleetsim.dashboard.labels import Tone

_DARK = {
    "foreground": "#d3dae3",
    "background": "#0e1319",
    "surface": "#0e1319",
    "panel": "#2b3542",
    "dark": True,
}
_DARK_VARIABLES = {
    "quiet": "#7f8b99",
    "calm": "#3f7f66",
    "cursor-row": "#1d2733",
    "scrollbar": "#2b3542",
    "scrollbar-background": "#0e1319",
    "scrollbar-corner-color": "#0e1319",
    "scrollbar-hover": "#4a5a6d",
    "scrollbar-active": "#6cb6ff",
    "scrollbar-background-hover": "#0e1319",
    "scrollbar-background-active": "#0e1319",
    "block-cursor-text-style": "none",
}

NIGHT = Theme(
    name="fleetsim-night",
    primary="#6cb6ff",
    secondary="#7ee0d0",
    accent="#d7a6ff",
    success="#5fcf98",
    warning="#e6b450",
    error="#f4726b",
    variables=_DARK_VARIABLES,
    **_DARK,  # type: ignore[arg-type]
)
BLUE_ORANGE = Theme(
    name="fleetsim-blue-orange",
    primary="#9ecbff",
    secondary="#b8c4d0",
    accent="#ffffff",
    success="#4ea3ff",
    warning="#f2c14e",
    error="#ff8f3f",
    variables={**_DARK_VARIABLES, "calm": "#35689c"},
    **_DARK,  # type: ignore[arg-type]
)
DAY = Theme(
    name="fleetsim-day",
    primary="#0b63c5",
    secondary="#0b7d6e",
    accent="#8430c9",
    success="#13763f",
    warning="#8a5a00",
    error="#b5261e",
    foreground="#1d242c",
    background="#fbfcfd",
    surface="#fbfcfd",
    panel="#cfd7df",
    dark=False,
    variables={
        "quiet": "#5d6975",
        "calm": "#5aa580",
        "cursor-row": "#e3eefb",
        "scrollbar": "#cfd7df",
        "scrollbar-background": "#fbfcfd",
        "scrollbar-corner-color": "#fbfcfd",
        "scrollbar-background-hover": "#fbfcfd",
        "scrollbar-background-active": "#fbfcfd",
        "block-cursor-text-style": "none",
    },
)
THEMES = (NIGHT, BLUE_ORANGE, DAY)
"""Night, one pair of colours that everybody can tell apart, and day."""


class Palette:
    """What draws lines in one theme: a console that knows the tones, on the ground and on the row of the cursor."""

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
