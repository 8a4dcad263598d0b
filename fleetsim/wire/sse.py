"""Writing server-sent events. Reading them is the runtime's, which counts their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fleetsim.wire.json import dump

_BREAK = re.compile("\r\n|\r|\n")

KEEPALIVE = b": keep-alive\n\n"
"""A comment that keeps an idle connection open and that every reader skips."""

MEDIA_TYPE = "text/event-stream"

LONG_CHARS = 64 * 1024
"""A text longer than that is written in pieces."""

_HOLE = "\x00hole {}\x00"


def frame(data: str, *, event: str | None = None, comment: str | None = None, event_id: str | None = None) -> bytes:
    """One event; every line of ``data`` gets its own ``data:`` line (WHATWG HTML section 9.2)."""
    lines = [f": {line}" for line in _BREAK.split(comment)] if comment is not None else []
    if event is not None:
        lines.append(f"event: {_BREAK.sub(' ', event)}")
    if event_id is not None:
        lines.append(f"id: {_BREAK.sub(' ', event_id)}")
    lines += [f"data: {line}" for line in _BREAK.split(data)]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def json_in_pieces(value: Any, before: bytes, after: bytes) -> Iterator[bytes]:
    """``before``, the JSON of ``value`` and ``after``; each long text is escaped piece by piece, as it goes out.

    Long texts are left out at first, each leaving a hole. Should something in ``value`` look like a hole,
    everything is written at once.
    """
    if not is_long(value):
        yield before + dump(value) + after
        return
    long: list[str] = []
    rest = before + dump(_hollow(value, long)) + after
    holes = [dump(_HOLE.format(at)) for at in range(len(long))]
    if any(rest.count(hole) != 1 for hole in holes):
        yield before + dump(value) + after
        return
    for hole, text in zip(holes, long, strict=True):
        head, _, rest = rest.partition(hole)
        yield head + b'"'
        for start in range(0, len(text), LONG_CHARS // 4):
            yield dump(text[start : start + LONG_CHARS // 4])[1:-1]
        rest = b'"' + rest
    yield rest


def is_long(value: Any) -> bool:
    """Whether a long text is in it: asked of every event of every stream, so without a call for each value."""
    values = [value]
    for item in values:  # which grows meanwhile
        kind = type(item)
        if kind is str:
            if len(item) > LONG_CHARS:
                return True
        elif kind is dict:
            values += item.values()
        elif kind is list or kind is tuple:
            values += item
    return False


def _hollow(value: Any, long: list[str]) -> Any:
    if isinstance(value, str):
        if len(value) <= LONG_CHARS:
            return value
        long.append(value)
        return _HOLE.format(len(long) - 1)
    if isinstance(value, dict):
        return {key: _hollow(item, long) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hollow(item, long) for item in value]
    return value
