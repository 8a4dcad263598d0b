"""The end of a request under network faults, as data: one row for each fault, one column for each peer.

``weather.py`` beside this package puts the weather up between a running hub and a released server, and fails
on any other result. ``once`` and ``never`` say how often the server carried the message out, by its own count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMPLETED = "completed, once"
UNKNOWN = "unknown, once"
EXPIRED = "expired, once"
NOTHING_RAN = "unknown, never"
UNDELIVERABLE = "undeliverable, never"
NO_PROTOCOL = "protocol_error, once"
NO_AGENT = "protocol_error, never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One weather. ``what`` tells it to a reader; ``fault`` is its number in docs/reference/faults.md. ``skill`` is the
    first word of the message, ``stream`` whether the caller streams, ``push`` whether it offers its webhook.
    ``expected`` has an entry for each peer that can be put into this weather."""

    name: str
    what: str
    fault: str
    skill: str = "complete"
    stream: bool = False
    push: bool = False
    expected: Mapping[str, str] = field(default_factory=dict)


ALL = ("py03", "py10", "selectools", "js03")
RICH = ("py03", "py10", "js03")
"""Peers with streams, webhooks and questions."""

EVERYWHERE = dict.fromkeys(ALL, COMPLETED)
FOUND = {**dict.fromkeys(ALL, UNKNOWN), "py10": COMPLETED}
"""A lost reply: 1.0 lists tasks by our context, so the task is found; 0.3 lists none."""

STREAM_FOUND = dict.fromkeys(RICH, UNKNOWN) | {"py10": COMPLETED}
SILENT = {**dict.fromkeys(ALL, EXPIRED), "py10": COMPLETED}
"""A reply that never comes is awaited until the request's limit; 1.0 lists the task meanwhile."""

STREAM_SILENT = dict.fromkeys(RICH, EXPIRED) | {"py10": COMPLETED}
ALL_COMPLETE = dict.fromkeys(RICH, COMPLETED)

JOINED = {"py10": COMPLETED}
"""Whose broken streams are joined again (docs/decisions/0008); the others are polled."""

REPLY_OFFSETS = (0, 1, 40, 150)
"""Bytes of the reply's body that pass; the shortest reply is longer."""

EARLY_OFFSETS = (0, 5, 60, 200)
"""Bytes of a stream that pass, chunk framing included; the shortest first event is longer."""

LATE_OFFSETS = (900, 1100, 1400)
"""Bytes of a stream that pass: the longest first event is shorter, the shortest stream longer."""


def _send() -> tuple[Row, ...]:
    def row(name: str, what: str, fault: str, expected: Mapping[str, str] | str = EVERYWHERE) -> Row:
        expected = dict.fromkeys(ALL, expected) if isinstance(expected, str) else expected
        return Row(name=f"send-{name}", what=what, fault=fault, expected=expected)

    rows = [
        row("latency", "0.1 to 0.4 s of distance", "-"),
        row("refused", "nobody listens", "F-01", UNDELIVERABLE),
        row("refused-once", "nobody listens, then somebody does", "F-01"),
        row("request-lost", "reset before the request arrives", "F-03", NOTHING_RAN),
        row("reset-head", "reset before the reply's head", "F-03", FOUND),
        row("silence", "silence instead of the reply", "F-02", SILENT),
        row("silence-inside", "silence after 40 bytes of the reply", "F-02", SILENT),
        row("gateway", "the reply becomes a gateway's 502 page", "F-03", FOUND),
        row("500-then-200", "500, and 200 had it been sent again", "F-04", NOTHING_RAN),
        row("503-then-200", "503 with Retry-After, then 200", "F-04"),
        row("429-then-200", "429, then 200", "F-04"),
        row("html", "200 with a page of HTML, from in between", "F-05", NO_AGENT),
    ]
    for at in REPLY_OFFSETS:
        rows += [
            row(f"reset-{at}", f"reset at byte {at} of the reply", "F-03", FOUND),
            row(f"half-close-{at}", f"half-close at byte {at} of the reply, its length promised", "F-03", FOUND),
            row(f"cut-{at}", f"the reply ends cleanly at byte {at}", "F-05", NO_PROTOCOL),
        ]
    return tuple(rows)


def _poll() -> tuple[Row, ...]:
    told = [
        ("poll-500-then-200", "two polls are answered 500", "F-04"),
        ("poll-reset", "two polls are reset at byte 30", "F-03"),
        ("poll-cut", "two polls end cleanly at byte 30", "F-05"),
        ("poll-silence", "a poll is never answered", "F-02"),
    ]
    return tuple(
        Row(name=name, what=what, fault=fault, skill="stream", expected=ALL_COMPLETE) for name, what, fault in told
    )


def _pushed() -> tuple[Row, ...]:
    told = [
        ("push-reset-head", "reset before the reply's head; the webhook finds us", "F-03", False),
        ("push-silence", "silence instead of the reply; the webhook finds us", "F-02", False),
        ("push-stream-reset", "reset before the first event; the webhook finds us", "F-10", True),
    ]
    return tuple(
        Row(name=name, what=what, fault=fault, skill="stream", stream=stream, push=True, expected=ALL_COMPLETE)
        for name, what, fault, stream in told
    )


def _stream() -> tuple[Row, ...]:
    def row(name: str, what: str, fault: str, expected: Mapping[str, str] = ALL_COMPLETE) -> Row:
        return Row(
            name=f"stream-{name}",
            what=what,
            fault=fault,
            skill="stream",
            stream=True,
            expected=expected,
        )

    rows = [
        row("latency", "0.1 to 0.4 s of distance", "-"),
        row("drip", "16 bytes at a time", "F-10"),
        row("request-lost", "reset before the request arrives", "F-03", dict.fromkeys(RICH, NOTHING_RAN)),
        row("reset-head", "reset before the stream's head", "F-03", STREAM_FOUND),
        row("500-then-200", "500, and 200 had it been sent again", "F-04", dict.fromkeys(RICH, NOTHING_RAN)),
        row("503-then-200", "503 with Retry-After, then 200", "F-04"),
        row("silence-head", "silence instead of the stream", "F-02", STREAM_SILENT),
        row("silence-first", "silence before the first event", "F-02", STREAM_SILENT),
        row("silence-inside", f"silence after {LATE_OFFSETS[0]} bytes", "F-10"),
        row("rejoin-reset", f"reset at byte {LATE_OFFSETS[0]}, and every rejoined stream too", "F-10", JOINED),
        row("rejoin-refused", f"reset at byte {LATE_OFFSETS[0]}, and rejoining is answered 500", "F-10", JOINED),
    ]
    for at in EARLY_OFFSETS:
        rows += [
            row(f"reset-{at}", f"reset at byte {at}, in the first event", "F-03", STREAM_FOUND),
            row(f"half-close-{at}", f"half-close at byte {at}, in the first event", "F-03", STREAM_FOUND),
        ]
    for at in LATE_OFFSETS:
        rows += [
            row(f"reset-{at}", f"reset at byte {at}, after the first event", "F-10"),
            row(f"half-close-{at}", f"half-close at byte {at}, after the first event", "F-10"),
        ]
    return tuple(rows)


def _ask() -> tuple[Row, ...]:
    told = [
        ("ask-latency", "0.1 to 0.4 s of distance", "-", False),
        ("ask-reply-lost", "the reply to the answer is lost", "F-22", False),
        ("ask-answer-lost", "the answer is lost on its way; the question opens again", "F-22", False),
        ("ask-answer-503", "the answer meets a 503", "F-22", False),
        ("ask-reply-cut", "the reply to the answer is reset at byte 40", "F-22", False),
        ("ask-silence", "the answer meets silence", "F-22", False),
        ("ask-stream-reset", f"the stream with the question is reset at byte {LATE_OFFSETS[0]}", "F-10", True),
    ]
    return tuple(
        Row(name=name, what=what, fault=fault, skill="ask", stream=stream, expected=ALL_COMPLETE)
        for name, what, fault, stream in told
    )


ROWS: tuple[Row, ...] = (*_send(), *_poll(), *_pushed(), *_stream(), *_ask())
"""Every weather, in the order of the page."""
