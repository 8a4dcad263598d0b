"""A place in a trace, as the header ``traceparent`` says it (W3C Trace Context, version 00). Pure.

What comes from outside is believed only where it is well formed. Ids that must be the same before and after a restart
are made of ids that the ledger has.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from msgspec import Struct

TRACEPARENT = "traceparent"
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_CHARS_MAX = 256


class TracePlace(Struct, frozen=True):
    """A span of a trace; ``sampled`` says whether whoever made it recorded it. Ids are lower-case hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"


def read_traceparent(text: str) -> TracePlace | None:
    """The place that a header names; None for none, and for what is none (section 3.2.2)."""
    match = _FORM.fullmatch(text) if len(text) <= _CHARS_MAX else None
    if match is None or (match[1] == "00" and match[5] is not None):
        return None
    return TracePlace(match[2], match[3], bool(int(match[4], 16) & 1))


def trace_id_of(name: str) -> str:
    """The id of the trace that begins with what has this name."""
    return blake2b(name.encode(), digest_size=16, person=b"fleetsim-trace").hexdigest()


def span_id_of(name: str) -> str:
    """The id of the one span of what has this name."""
    return blake2b(name.encode(), digest_size=8, person=b"fleetsim-span").hexdigest()
