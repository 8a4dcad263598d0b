"""The sequences that Textual itself writes to a terminal, so that a test sees others, and a walk to its widgets."""

from __future__ import annotations

import re

from fleetsim.model.text import neutralise

_COLOUR = r"[34]8;2;\d{1,3};\d{1,3};\d{1,3}"
_OWN = re.compile(
    rf"\x1b\[(?:(?:{_COLOUR}|[0-9])(?:;(?:{_COLOUR}|[0-9]))*)?m"  # colours and styles
    r"|\x1b\[\d+;\d+H"  # where a line is drawn
    r"|\x1b\[\?(?:7|25|1000|1003|1004|1006|1015|1016|1049|2004|2026|2048)(?:[hl]|\$p)"  # modes
    r"|\x1b\[[<>=?]\d*u|\x1b\[c"  # the keyboard protocol, and a question about the terminal
    r"|\x1b\]22;[a-z-]*\x07|\x1bP(?:\+q|=)[^\x1b]*\x1b\\|\x1b_G[^\x1b]*\x1b\\"  # the pointer, and questions
)


def foreign(output: str) -> list[str]:
    """The characters that act on a terminal, with their neighbours, and that Textual did not write."""
    rest = _OWN.sub("", output)
    left = neutralise(rest, limit=len(rest) + 1)
    acting = {c for c in rest if c not in "\r\n" and c not in left}
    return sorted({rest[max(0, at - 10) : at + 20] for at, c in enumerate(rest) if c in acting})


_SCREENS = (
    "1 Enter Tab Tab j Enter Escape",  # an agent: its facts, its skills, its outcomes
    "2 j Enter m Tab Tab Enter Escape x Escape w Tab Escape",  # a task: story, Markdown, files, a confirmation, wire
    "3 Enter d r a f t Escape Tab Tab j Control+r Escape",  # a question, the answer, settled ones
    "4 j Enter Escape",
    "5 l j Enter Escape G k k Enter Escape",
    "1 / e v i l Enter Escape : a g e n t Space Tab Escape",  # the filter, and names in completions
    "Control+p a g Escape ? Escape C Escape Space u W Escape Z",
)
WALK = tuple(key for screen in _SCREENS for key in screen.split())
"""Keys as playwright names them."""


def typed(key: str) -> str:
    """The characters that a terminal sends for a key of ``WALK``."""
    names = {"Enter": "\r", "Escape": "\x1b", "Tab": "\t", "Space": " "}
    control = key.removeprefix("Control+")
    return names.get(key, key) if control == key else chr(ord(control) & 31)
