"""An agent's Markdown as lines, for the same pages as all other text.

Links and pictures stay text: they take no click and fetch no address. HTML appears as written.
"""

from __future__ import annotations

import logging
import re
from datetime import datetime
from functools import lru_cache
from io import StringIO
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, MarkdownElement
from rich.markdown import Markdown as RichMarkdown
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from fleetsim.dashboard.labels import MUTED, STRONG, Tone
from fleetsim.dashboard.text import clip, line, wrap
from fleetsim.model.text import GUTTER

log = logging.getLogger(__name__)

MARKDOWN_CHARS_MAX = 20_000
TOKENS_MAX = 4_000
COLUMNS_MAX = 24
"""A text beyond one of these bounds, or with a table of more columns, is shown as its source."""
NESTING_MAX = 12

# HTML stays text, and deep nesting ends, because the text is an agent's (decision 63).
_PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTING_MAX}).enable(["strikethrough", "table"])
_PARSER.disable("image")  # a picture is a link like others
_TONES = {
    **dict.fromkeys(("h1", "h2", "h1.underline"), Tone.ACCENT),
    **dict.fromkeys(("h3", "h4", "h5", "h6", "strong", "table.header"), Tone.STRONG),
    **dict.fromkeys(("code", "code_block", "link", "em"), Tone.PRIMARY),
    **dict.fromkeys(("link_url", "block_quote", "hr", "table.border", "item.bullet", "item.number"), Tone.MUTED),
}
_CONSOLE = Console(
    file=StringIO(),
    color_system=None,
    theme=Theme({f"markdown.{name}": Style.from_meta({"tone": tone.value}) for name, tone in _TONES.items()}),
)


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _Code(CodeBlock):
    """Code without highlighting: a lexer takes unbounded time for a hostile text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.rstrip()
        yield self.text


class _Document(RichMarkdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **RichMarkdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        columns = widest = tokens = depth = 0
        for token in self.parsed:
            depth = max(depth, token.level)
            for child in token.children or ():
                if child.type == "softbreak":  # agents break lines on purpose
                    child.type = "hardbreak"
            columns = 0 if token.type == "tr_open" else columns + (token.type in {"th_open", "td_open"})
            widest = max(widest, columns)
            tokens += 1 + len(token.children or ())
        if tokens > TOKENS_MAX or widest > COLUMNS_MAX or depth + 1 >= NESTING_MAX:
            raise ValueError("too large or too deep to be drawn")  # beyond its depth the parser drops text


@lru_cache(maxsize=16)
def markdown(text: str, width: int) -> tuple[Text, ...]:
    """The text in lines of at most ``width`` cells; its source if it is too large or cannot be drawn."""
    if len(text) > MARKDOWN_CHARS_MAX:
        return tuple(wrap(text, width))
    try:
        rows = _CONSOLE.render_lines(_Document(text), _CONSOLE.options.update(width=max(8, width)), pad=False)
    except (ValueError, LookupError, AttributeError, RecursionError) as error:
        log.info("Markdown shown as its source: %s", type(error).__name__)
        return tuple(wrap(text, width))
    drawn = [
        line(*((piece.text, (piece.style.meta if piece.style else {}).get("tone", Tone.PLAIN)) for piece in row))
        for row in rows
    ]
    lines: list[Text] = []
    for one in drawn:
        one.rstrip()
        if one.plain or (lines and lines[-1].plain):
            lines.append(one)
    if lines and not lines[-1].plain:
        lines.pop()
    return tuple(lines or wrap(text, width))


_PAIR = re.compile(r"(\*\*|~~|`+)(?=\S)([^*~`]{1,200}?)(?<=\S)\1")
_HEADING = re.compile(r"(?:^|(?<=\s))#{1,6}\s+(?=\S)")


def without_marks(text: str) -> str:
    """A line of Markdown for a list: without the marks of headings, bold, struck and code."""
    return _HEADING.sub("", _PAIR.sub(r"\2", text))


def spoken(who: str, when: datetime | None, text: str, width: int, *, source: bool = False) -> list[Text]:
    """A message behind a gutter, so that its text cannot imitate lines of ours; as Markdown, or as its ``source``."""
    head = line((who, STRONG), (f"  {when:%H:%M:%S}" if when else "", MUTED))
    lines = wrap(text, width - 2) if source else markdown(text, width - 2)
    return [clip(head, width), *(line((GUTTER, MUTED), one) for one in lines)]
