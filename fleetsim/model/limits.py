"""How much one message or outcome may hold, and the limits on the wire that follow from it.

Two numbers are chosen; the rest is arithmetic, so that whatever keeps to the two fits through every door:
the API's body, an agent's answer, an event of a stream, a webhook, a row of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.model.errors import Blame, LimitReached

KIB = 1024
MIB = 1024 * KIB

TEXT_CHARS_MAX = MIB
"""Characters of one prompt, answer, question or outcome. Input past it is refused; an agent's text says so."""

PARTS_BYTES_MAX = 8 * MIB
"""Decoded bytes of all files, and bytes of all data as ASCII JSON, of one message or outcome."""

PREFIX_CHARS_MIN = 4
"""So much of an id is wanted at least, as git does: less would name something else tomorrow."""

EXCERPT_CHARS_MAX = 4_000
"""Characters of a text in an event or in a listing, where ``truncated`` and ``textChars`` say what is missing."""

CHARACTER_BYTES_WORST = 12
"""A character beyond U+FFFF as JSON escapes a surrogate pair: ``\\ud83d\\ude00``."""

ENVELOPE_BYTES = 256 * KIB
"""What may be around text and parts: ids, states, metadata, names."""


def wire_bytes(text_chars: int, parts_bytes: int = PARTS_BYTES_MAX) -> int:
    """Bytes of a JSON document with so much text, escaped as badly as can be, and so much base64 or data."""
    return CHARACTER_BYTES_WORST * text_chars + -(-parts_bytes // 3) * 4 + ENVELOPE_BYTES


WIRE_BYTES_MAX = wire_bytes(TEXT_CHARS_MAX)
"""Bytes of one API body, agent's answer, event of a stream or webhook."""

VALUES_MAX = 100_000
"""Values in one such document, counted before the first of them is built: what it may cost as objects in memory."""

CONTAINERS_MAX = 25_000
"""Arrays and objects among them: one costs as much time as twenty numbers."""

DEPTH_MAX = 64
"""Deepest nesting of arrays and objects read from a peer."""

LARGE_JSON_BYTES = 64 * KIB
"""A larger document is parsed only when its sender has paid for earlier work; a smaller one takes a millisecond."""

ROW_BYTES_MAX = 4 * WIRE_BYTES_MAX
"""Bytes of one row on disk: the request, and the task with its artifacts, message and history."""


class TooMuch(LimitReached):
    """What was to be sent is more than a limit allows; nothing was accepted or sent."""

    blame = Blame.CALLER


class TooMuchText(TooMuch):
    """A prompt or an answer is longer than ``text_chars_max``."""


def check_text(text: str, what: str, text_chars_max: int = TEXT_CHARS_MAX) -> None:
    """Refuse input that is too long. Raises TooMuchText."""
    if len(text) > text_chars_max:
        raise TooMuchText(
            f"{what} has {len(text):,} characters; at most {text_chars_max:,} are taken (text_chars_max)",
            hint="shorten it, or send the rest as a file",
        )


def shown_text(
    text: str, *, name: str = "text", chars: int = 0, chars_max: int = EXCERPT_CHARS_MAX
) -> Mapping[str, Any]:
    """``text`` under ``name``, at most ``chars_max`` of it, and whether and of how many characters it is a part.

    ``chars`` is how many there were before anything was left out, if that is known to be more.
    """
    whole = max(chars, len(text))
    return {name: text[:chars_max], "truncated": whole > min(len(text), chars_max), "textChars": whole}


def excerpt(text: str, *, name: str = "text", chars: int = 0) -> Mapping[str, Any]:
    """As ``shown_text`` for an event, where a text that is whole stands by itself."""
    shown = shown_text(text, name=name, chars=chars)
    return shown if shown["truncated"] else {name: text}
