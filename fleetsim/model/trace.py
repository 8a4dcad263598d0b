"""A span of a trace, as in the header ``traceparent`` (W3C Trace Context, version 00).

A malformed header is ignored. Ids that must be equal before and after a restart are derived from ids in the ledger.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from msgspec import Struct

TRACEPARENT = "traceparent"
_FORM = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_CHARS_MAX = 256


class TracePlace(Struct, frozen=True):
    """A span of a trace; ``sampled`` tells whether its maker recorded it. Ids are lower-case hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"


def read_traceparent(text: str) -> TracePlace | None:
    """Read a ``traceparent`` header; None if it is empty or malformed (section 3.2.2)."""
    match = _FORM.fullmatch(text) if len(text) <= _CHARS_MAX else None
    if match is None or (match[1] == "00" and match[5] is not None):
        return None
    return TracePlace(match[2], match[3], bool(int(match[4], 16) & 1))


def trace_id_of(name: str) -> str:
    """Derive the id of a trace from the name of the work that starts it."""
    return blake2b(name.encode(), digest_size=16, person=b"fleetsim-trace").hexdigest()


def span_id_of(name: str) -> str:
    """Derive the id of a span from the name of its work."""
    return blake2b(name.encode(), digest_size=8, person=b"fleetsim-span").hexdigest()
