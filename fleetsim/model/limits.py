"""The limits of a message or outcome, and the limits on the wire that follow from them. ``TEXT_CHARS_MAX`` and
``PARTS_BYTES_MAX`` are chosen, so that a message within them fits through every door; the others are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.model.errors import Blame, LimitReached

KIB = 1024
MIB = 1024 * KIB

TEXT_CHARS_MAX = MIB
"""Characters of one prompt, answer, question or outcome. Longer input is refused; an agent's longer text is cut."""

PARTS_BYTES_MAX = 8 * MIB
"""Decoded bytes of all files, and bytes of all data as ASCII JSON, of one message or outcome."""

PREFIX_CHARS_MIN = 4
"""The shortest prefix of an id, as in git: a shorter one would soon match another id."""

EXCERPT_CHARS_MAX = 4_000
"""Characters of a text in an event or a list; ``truncated`` and ``textChars`` tell how much was cut."""

CHARACTER_BYTES_WORST = 12
"""A character beyond U+FFFF as JSON escapes a surrogate pair: ``\\ud83d\\ude00``."""

ENVELOPE_BYTES = 256 * KIB
"""Bytes for all but text and parts: ids, states, metadata, names."""


def wire_bytes(text_chars: int, parts_bytes: int = PARTS_BYTES_MAX) -> int:
    """Return the most bytes of a JSON document with this text, escaped at worst, and these parts as base64 or data."""
    return CHARACTER_BYTES_WORST * text_chars + -(-parts_bytes // 3) * 4 + ENVELOPE_BYTES


WIRE_BYTES_MAX = wire_bytes(TEXT_CHARS_MAX)
"""Bytes of one API body, agent's answer, event of a stream or webhook."""

VALUES_MAX = 100_000
"""Values in one document, counted before it is parsed. The limit bounds the memory of the parsed objects."""

CONTAINERS_MAX = 25_000
"""Arrays and objects in one document: each takes as much time as twenty numbers."""

DEPTH_MAX = 64
"""Deepest nesting of arrays and objects read from a peer."""

LARGE_JSON_BYTES = 64 * KIB
"""A larger document waits until its sender's earlier work is paid for; a smaller one takes at most a millisecond."""

ROW_BYTES_MAX = 4 * WIRE_BYTES_MAX
"""Bytes of one row on disk: the request, and the task with its artifacts, message and history."""


class TooMuch(LimitReached):
    """The input exceeds a limit; it was not accepted or sent."""

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
    """Return the first ``chars_max`` characters of ``text`` as ``name``, with ``truncated`` and ``textChars``.

    ``chars`` is the length before an earlier cut, if it is larger.
    """
    whole = max(chars, len(text))
    return {name: text[:chars_max], "truncated": whole > min(len(text), chars_max), "textChars": whole}


def excerpt(text: str, *, name: str = "text", chars: int = 0) -> Mapping[str, Any]:
    """Return ``shown_text`` for an event; without ``truncated`` and ``textChars`` if the text is whole."""
    shown = shown_text(text, name=name, chars=chars)
    return shown if shown["truncated"] else {name: text}
