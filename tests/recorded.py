"""Events as a recording has them: by topic and payload."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fleetsim.events.request import Event, Level
from fleetsim.events.wire import from_wire

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def recorded(
    topic: str,
    payload: Mapping[str, Any] | None = None,
    *,
    seq: int = 0,
    at: datetime = LONG_AGO,
    level: Level = Level.INFO,
    **envelope: str | None,
) -> Event:
    """One event, read from its JSON form."""
    event = from_wire({"seq": seq, "at": at, "topic": topic, "level": level, "payload": payload or {}, **envelope})
    assert event is not None
    return event
