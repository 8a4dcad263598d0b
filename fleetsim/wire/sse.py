"""Writing server-sent events. Reading them is the runtime's, which counts their bytes."""

from __future__ import annotations

import re

_BREAK = re.compile("\r\n|\r|\n")

KEEPALIVE = b": keep-alive\n\n"
"""A comment that keeps an idle connection open and that every reader skips."""

MEDIA_TYPE = "text/event-stream"


def frame(data: str, *, event: str | None = None, comment: str | None = None, event_id: str | None = None) -> bytes:
    """One event; every line of ``data`` gets its own ``data:`` line (WHATWG HTML section 9.2)."""
    lines = [f": {line}" for line in _BREAK.split(comment)] if comment is not None else []
    if event is not None:
        lines.append(f"event: {_BREAK.sub(' ', event)}")
    if event_id is not None:
        lines.append(f"id: {_BREAK.sub(' ', event_id)}")
    broken = "\n" in data or "\r" in data  # JSON is not, and a search for breaks takes most of a frame's time
    lines += [f"data: {line}" for line in (_BREAK.split(data) if broken else (data,))]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")
