"""The colours of each theme by tone; ``styles.tcss`` has the layout."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.theme import Theme as Looks
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from fleetsim.dashboard.labels import Tone, plain_ascii


def theme_of(name: str, colours: Mapping[str, str], *, dark: bool) -> Theme:
    """A theme from a colour for each name of ``COLOURS``."""
    ground, panel = colours["background"], colours["panel"]
    bars = dict.fromkeys(("background", "corner-color", "background-hover", "background-active"), ground)
    variables = {"scrollbar": panel, **{f"scrollbar-{part}": colour for part, colour in bars.items()}}
    variables |= {"scrollbar-hover": colours["quiet"], "scrollbar-active": colours["primary"]}
    variables |= {name: colours[name] for name in ("quiet", "calm", "cursor-row")}
    variables["block-cursor-text-style"] = "none"
    named: dict[str, Any] = {name: colour for name, colour in colours.items() if name not in variables}
    return Theme(name=name, surface=ground, dark=dark, variables=variables, **named)


_NIGHT = {
    "background": "#0e1319",
    "foreground": "#d3dae3",
    "panel": "#2b3542",
    "quiet": "#7f8b99",
    "calm": "#3f7f66",
    "cursor-row": "#1d2733",
    "primary": "#6cb6ff",
    "secondary": "#7ee0d0",
    "accent": "#d7a6ff",
    "success": "#5fcf98",
    "warning": "#e6b450",
    "error": "#f4726b",
}
COLOURS = tuple(_NIGHT)
"""The names of a theme's colours; ``quiet`` is for grey text, ``calm`` for bars of successes."""
_BLUE_ORANGE = _NIGHT | {
    "calm": "#35689c",
    "primary": "#9ecbff",
    "secondary": "#b8c4d0",
    "accent": "#ffffff",
    "success": "#4ea3ff",
    "warning": "#f2c14e",
    "error": "#ff8f3f",
}
_CONTRAST = {
    "background": "#000000",
    "foreground": "#ffffff",
    "panel": "#ffffff",
    "quiet": "#d0d0d0",
    "calm": "#7fffbf",
    "cursor-row": "#003a75",
    "primary": "#66d9ff",
    "secondary": "#ffffff",
    "accent": "#ff9cff",
    "success": "#5cff8f",
    "warning": "#ffff00",
    "error": "#ff9f8c",
}
_DAY = {
    "background": "#fbfcfd",
    "foreground": "#1d242c",
    "panel": "#cfd7df",
    "quiet": "#5d6975",
    "calm": "#5aa580",
    "cursor-row": "#e3eefb",
    "primary": "#0b63c5",
    "secondary": "#0b7d6e",
    "accent": "#8430c9",
    "success": "#13763f",
    "warning": "#8a5a00",
    "error": "#b5261e",
}
BASES: Mapping[str, tuple[Mapping[str, str], bool]] = {
    "fleetsim-night": (_NIGHT, True),
    "fleetsim-blue-orange": (_BLUE_ORANGE, True),
    "fleetsim-contrast": (_CONTRAST, True),
    "fleetsim-day": (_DAY, False),
}
"""A dark theme, one for colour-blind users, one with high contrast, and a light one; each with whether it is dark."""
THEMES = tuple(theme_of(name, colours, dark=dark) for name, (colours, dark) in BASES.items())


class AsciiFormatter(LineFilter):
    """Draws Textual's own widgets in ASCII, too; each cell stays one cell."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii()
            else Segment("".join(plain_ascii(one)[0] * cell_len(one) for one in segment.text), segment.style)
            for segment in segments
        ]


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
