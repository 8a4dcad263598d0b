"""Make untrusted text harmless before a person or a terminal sees it."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from html import escape as _html_escape

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 (but tab and newline), DEL, C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2"  # format characters of one script each
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKS_MAX = 4
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def neutralise(text: str, *, limit: int = 65_536, lines: bool = True) -> str:
    """Return ``text`` without characters that could deceive a terminal, a log or a reader.

    Control, bidirectional, zero-width and tag characters become U+FFFD. After four combining marks in a row the
    others are dropped. At most ``limit`` characters are kept. With ``lines=False`` newlines and tabs become spaces, so
    that the text is one log line. A second call returns the same text.
    """
    cut = len(text) > limit
    text = text[:limit].replace("\r\n", "\n").replace("\r", "\n")
    text = _UNSAFE.sub(REPLACEMENT, text)
    if not text.isascii():
        characters: list[str] = []
        run = 0
        for character in text:
            run = run + 1 if unicodedata.combining(character) or unicodedata.category(character) == "Mn" else 0
            if run <= _MARKS_MAX:
                characters.append(character)
        text = "".join(characters)
    if not lines:
        text = text.replace("\n", " ").replace("\t", " ")
    return text[: limit - 1] + "…" if cut else text


def escape(json_text: str) -> str:
    """Return equal JSON that is safe to print: characters that could deceive a terminal become ``\\uXXXX``."""

    def escaped(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    return _UNSAFE.sub(escaped, json_text)


def html_text(text: str) -> str:
    """Neutralise (at most 65,536 characters), and escape for HTML and its quoted attributes."""
    return _html_escape(neutralise(text))


def xml_text(text: str) -> str:
    """Neutralise without a limit, and replace characters that XML 1.0 cannot represent. The XML writer escapes."""
    return _NOT_XML.sub(REPLACEMENT, neutralise(text, limit=len(text) + 1))


def one_line(text: str, limit: int = 200) -> str:
    """Neutralise to one line of at most ``limit`` characters."""
    return neutralise(text, limit=limit, lines=False)


def indented(text: str) -> str:
    """Neutralise without a limit, and indent all lines but the first, so that none can pass for our own line."""
    return neutralise(text, limit=len(text) + 1).replace("\n", "\n  | ")


GUTTER = "│ "


class Gutter:
    """Text of an agent, piece by piece, with each line behind a gutter, so that it cannot imitate a line of ours.

    A line longer than ``width`` cells goes on behind the gutter of the next one: a terminal would continue it at the
    margin. Without ``width`` lines are not broken.
    """

    def __init__(self, width: int = 0, *, bar: str = GUTTER) -> None:
        self._room = max(1, width - len(bar)) if width else sys.maxsize
        self._bar = bar
        self._cells = 0
        self.open = False
        """Whether the last line is not complete."""

    def add(self, text: str) -> str:
        """The next piece as it is printed."""
        return "".join(self._printed(neutralise(text, limit=len(text) + 1).expandtabs(4)))

    def _printed(self, text: str) -> Iterator[str]:
        for word in _WORDS.findall(text):
            if word == "\n":
                yield "\n" if self.open else f"{self._bar}\n"
                self.open, self._cells = False, 0
                continue
            cells = _cells(word)
            whole = self._cells + cells <= self._room or not self._cells
            if not whole and word.isspace():
                self._cells = self._room  # the next word begins a line
                continue
            if not whole and cells <= self._room:
                yield self._break()
            for piece in [word] if cells <= self._room else word:
                size = cells if piece is word else _cells(piece)
                if self._cells + size > self._room:
                    yield self._break()
                yield piece if self.open else self._bar + piece
                self.open, self._cells = True, self._cells + size

    def _break(self) -> str:
        self._cells, self.open = 0, False
        return "\n"


_WORDS = re.compile(r"\n|[^\S\n]+|\S+")


def _cells(text: str) -> int:
    """The cells of a terminal that the text needs at most."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def placeholder(skill: str | None, agent: str) -> str:
    """Return the text that a screen shows for a completed task without text (seed: artifacts, message, placeholder).

    It is for people only: a program receives the empty answer.
    """
    done = f'Skill "{one_line(skill)}" completed' if skill else "Completed"
    return f"{done} by {one_line(agent)}"
