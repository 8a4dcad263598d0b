"""The one door from lines to the terminal: every text is neutralised here, again, whatever came before.

No pane hands Textual a string of its own: strings could be markup, and escapes in them reach the terminal.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.strip import Strip
from textual.widget import Widget

from fleetsim.dashboard.ink import Line, clip_line
from fleetsim.dashboard.words import Role, plain_ascii
from fleetsim.model.text import neutralise

SPAN_CHARS_MAX = 2_000
ROLE_CLASSES = {*(f"ink--{role.value}" for role in Role), "ink--cursor"}
"""Each widget class names them itself: Textual looks for them along one line of descent only."""

INK_CSS = """
.ink--plain { color: $foreground; }
.ink--strong { color: $foreground; text-style: bold; }
.ink--muted { color: $quiet; }
.ink--head { color: $quiet; text-style: bold; }
.ink--primary { color: $primary; }
.ink--accent { color: $accent; text-style: bold; }
.ink--calm { color: $calm; }
.ink--good { color: $success; }
.ink--warn { color: $warning; }
.ink--bad { color: $error; }
.ink--cursor { background: $cursor-row; }
"""

_TITLE_STYLES = {
    Role.MUTED: "$quiet",
    Role.GOOD: "$success",
    Role.CALM: "$calm",
    Role.WARN: "$warning",
    Role.BAD: "$error",
    Role.ACCENT: "bold $accent",
    Role.PRIMARY: "$primary",
}


def safe(text: str, ascii_only: bool) -> str:
    """One line fit for the terminal, in ASCII if asked."""
    text = neutralise(text, limit=SPAN_CHARS_MAX, lines=False)
    return plain_ascii(text) if ascii_only else text


class Inked(Widget):
    """A widget that draws lines. The look of each role is a component class, so themes decide it."""

    @property
    def ascii_only(self) -> bool:
        """Whether the app was asked for ASCII."""
        return bool(getattr(self.app, "ascii_only", False))

    @property
    def inner_width(self) -> int:
        """Cells a line has: inside the frame, the padding and the scrollbar."""
        return self.scrollable_content_region.width

    def strip(self, one: Line, width: int, *, cursor: bool = False) -> Strip:
        """The line as a strip of exactly ``width`` cells."""
        ascii_only = self.ascii_only
        ground = self.get_component_rich_style("ink--cursor", partial=True) if cursor else Style()
        styles = {role: self.get_component_rich_style(f"ink--{role.value}") + ground for _, role in one}
        cleaned = clip_line(tuple((safe(text, ascii_only), role) for text, role in one), width)
        segments = [Segment(safe(text, ascii_only), styles[role]) for text, role in cleaned if text]
        blank = self.get_component_rich_style("ink--plain") + ground
        return Strip(segments).adjust_cell_length(width, blank)

    def entitle(self, one: Line, sub: Line = ()) -> None:
        """Set the title in the frame, and the one below."""
        for name, pieces in (("border_title", one), ("border_subtitle", sub)):
            text = tuple((safe(text, self.ascii_only), role) for text, role in pieces)
            if getattr(self, f"_shown_{name}", None) != text:
                setattr(self, f"_shown_{name}", text)
                setattr(self, name, _titled(text) if text else None)


def _titled(one: Line) -> Content:
    return Content.assemble(*((text, _TITLE_STYLES.get(role, "bold $foreground")) for text, role in one))
