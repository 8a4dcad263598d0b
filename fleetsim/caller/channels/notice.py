"""A notice: what people are told once, and how it is put for each kind of sink. Pure.

Headline and text quote agents. Whatever they hold, nobody is called by it (``@everyone``, ``<!channel>``), nothing is
formatted or linked by it, and no terminal is steered by it: chats show it inside code marks, which it cannot close.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from fleetsim.caller.jsonable import iso
from fleetsim.model.text import neutralise, one_line

HEADLINE_CHARS_MAX = 200
TEXT_CHARS_MAX = 1_000
"""What Workstacean told of a result."""

DISCORD_UNITS_MAX = 2_000
"""Characters of a message, counted as UTF-16 has them so that no reading of Discord's limit is passed."""

_LOG_CHARS, _TITLE_CHARS, _DESKTOP_CHARS = 500, 100, 240
_TICK = "\N{MODIFIER LETTER GRAVE ACCENT}"
_SUPPRESS_EMBEDS = 4


class Tone(StrEnum):
    """What kind of news it is; the value is shown before the headline."""

    GOOD = "✓"
    BAD = "✗"
    ASKS = "?"
    PLAIN = "·"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """``kind`` is a word for programs. ``command`` is ours, to be copied; ``link`` the operator's; ``facts`` are JSON.

    ``correlation_id`` is the id of the request or run it is about.
    """

    kind: str
    at: datetime
    tone: Tone
    headline: str
    text: str = ""
    command: str = ""
    link: str = ""
    correlation_id: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def _headline(notice: Notice) -> str:
    return f"{notice.tone.value} {one_line(notice.headline, HEADLINE_CHARS_MAX)}"


def _text(notice: Notice) -> str:
    return neutralise(notice.text, limit=TEXT_CHARS_MAX).strip()


def plain(notice: Notice) -> str:
    """For a program's standard input: the headline on the first line, then the text, the command and the link."""
    blocks = [_headline(notice), _text(notice), "\n".join(filter(None, (notice.command, notice.link)))]
    return "\n\n".join(filter(None, blocks)) + "\n"


def log_line(notice: Notice) -> str:
    """One line."""
    said = (_headline(notice), one_line(_text(notice), _LOG_CHARS), notice.command)
    return " | ".join(filter(None, said))


def desktop_texts(notice: Notice) -> tuple[str, str]:
    """Title and text of a notification."""
    blocks = (one_line(_text(notice), _DESKTOP_CHARS), notice.command)
    return one_line(_headline(notice), _TITLE_CHARS), "\n".join(filter(None, blocks))


def discord(notice: Notice) -> dict[str, Any]:
    """The JSON of a Discord webhook: mentions nobody, and shows no preview of an address somebody quotes."""
    text = _text(notice)
    while _units(content := _chat(notice, text)) > DISCORD_UNITS_MAX:
        text = text[: len(text) * 3 // 4].rstrip() + "…"
    return {"content": content, "allowed_mentions": {"parse": []}, "flags": _SUPPRESS_EMBEDS}


def slack(notice: Notice) -> dict[str, Any]:
    """The JSON of a Slack webhook; Mattermost and others take it too."""
    content = _chat(notice, _text(notice)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": content, "link_names": False, "unfurl_links": False, "unfurl_media": False}


def webhook(notice: Notice, channel_id: str) -> dict[str, Any]:
    """The JSON of a signed webhook, in the form that Standard Webhooks suggests."""
    data = {"channel": channel_id, "headline": _headline(notice), "text": _text(notice), "command": notice.command}
    told = {"correlationId": notice.correlation_id, **notice.facts}
    return {
        "type": f"fleetsim.{notice.kind}",
        "timestamp": iso(notice.at),
        "data": {**data, "link": notice.link or None, **told},
    }


def _chat(notice: Notice, text: str) -> str:
    """Markdown of which nothing that was said is a part: inside code marks, without the character that closes them."""
    blocks = [_code(_headline(notice))]
    if text:
        blocks.append(f"```\n{text.replace('`', _TICK)}\n```")
    if notice.command:
        blocks.append(_code(notice.command))
    return "\n".join([*blocks, *([notice.link] if notice.link else [])])


def _code(line: str) -> str:
    return f"`{line.replace('`', _TICK)}`"


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
