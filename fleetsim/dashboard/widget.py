"""The one door from lines to the terminal: every text is neutralised here, again, whatever came before.

No pane hands Textual a string of its own: strings could be markup, and escapes in them reach the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from fleetsim.dashboard.labels import Tone, plain_ascii
from fleetsim.dashboard.text import Line, clip_line
from fleetsim.model.text import neutralise

SPAN_CHARS_MAX = 2_000
COLOURS: Mapping[Tone, tuple[str, bool]] = {
    Tone.PLAIN: ("foreground", False),
    Tone.STRONG: ("foreground", True),
    Tone.MUTED: ("quiet", False),
    Tone.HEAD: ("quiet", True),
    Tone.PRIMARY: ("primary", False),
    Tone.ACCENT: ("accent", True),
    Tone.CALM: ("calm", False),
    Tone.GOOD: ("success", False),
    Tone.WARN: ("warning", False),
    Tone.BAD: ("error", False),
}
"""The theme's variable for each role, and whether the text is bold."""


class Palette:
    """The look of each role in one theme, on its ground and on the row of the cursor."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.on_ground = self._styles(variables, "background")
        self.on_cursor = self._styles(variables, "cursor-row")

    @staticmethod
    def _styles(variables: Mapping[str, str], ground: str) -> Mapping[Tone, Style]:
        return {
            role: Style(color=variables[colour], bgcolor=variables[ground], bold=bold)
            for role, (colour, bold) in COLOURS.items()
        }


def safe(text: str, ascii_only: bool) -> str:
    """One line fit for the terminal, in ASCII if asked."""
    text = neutralise(text, limit=SPAN_CHARS_MAX, lines=False)
    return plain_ascii(text) if ascii_only else text


class NeutralisedApp(App[None]):
    """An app whose widgets draw lines."""

    ascii_only = False
    _palette: tuple[str, Palette] | None = None

    @property
    def palette(self) -> Palette:
        """The look of the theme in force."""
        if self._palette is None or self._palette[0] != self.theme:
            self._palette = self.theme, Palette(self.theme_variables)
        return self._palette[1]


class NeutralisedWidget(Widget):
    """A widget that draws lines; ``NeutralisedApp`` knows how they look."""

    @property
    def _stage(self) -> NeutralisedApp:
        return cast(NeutralisedApp, self.app)

    @property
    def inner_width(self) -> int:
        """Cells a line has: inside the frame, the padding and the scrollbar."""
        return self.scrollable_content_region.width

    def strip(self, one: Line, width: int, *, cursor: bool = False) -> Strip:
        """The line as a strip of exactly ``width`` cells."""
        ascii_only = self._stage.ascii_only
        styles = self._stage.palette.on_cursor if cursor else self._stage.palette.on_ground
        cleaned = clip_line(tuple((safe(text, ascii_only), role) for text, role in one), width)
        if ascii_only:  # the ellipsis of a cut
            cleaned = tuple((plain_ascii(text), role) for text, role in cleaned)
        segments = [Segment(text, styles[role]) for text, role in cleaned if text]
        return Strip(segments).adjust_cell_length(width, styles[Tone.PLAIN])

    def entitle(self, one: Line, sub: Line = ()) -> None:
        """Set the title in the frame, and the one below."""
        for name, pieces in (("border_title", one), ("border_subtitle", sub)):
            text = tuple((safe(text, self._stage.ascii_only), role) for text, role in pieces)
            if getattr(self, f"_shown_{name}", None) != text:
                setattr(self, f"_shown_{name}", text)
                setattr(self, name, _titled(text) if text else None)


def _titled(one: Line) -> Content:
    styles = {role: f"{'bold ' if bold else ''}${colour}" for role, (colour, bold) in COLOURS.items()}
    styles[Tone.PLAIN] = styles[Tone.STRONG]
    return Content.assemble(*((text, styles[role]) for text, role in one))
