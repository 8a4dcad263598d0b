"""Where a dashboard's events come from: a running hub in this process, or a recording.

A feed is an async iterator of batches. It knows whether its events are happening now (``live``) and how
many it was too slow for (``dropped``); it knows nothing of screens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from fleetsim.caller.event_wire import from_wire
from fleetsim.caller.events import Event
from fleetsim.model.errors import ConfigError

BATCH_MAX = 1_000
LINE_CHARS_MAX = 4 * 1024 * 1024
PAUSE_S = 0.03
"""After each batch of a live feed, so that a busy hub is read in batches instead of event by event."""
WAIT_MAX_S = 1.0
"""The longest a paced replay waits between two events."""


class EventFeed(Protocol):
    """Batches of events in order."""

    @property
    def live(self) -> bool:
        """Whether the events happen now; a recording brings its own time."""
        ...

    @property
    def dropped(self) -> int:
        """Events this reader was too slow for."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]: ...


class Source(Protocol):
    """A reader of a running hub's event log (``caller.events.Subscription`` is one)."""

    dropped: int

    async def next_batch(self, limit: int = BATCH_MAX) -> tuple[Event, ...]:
        """Wait for at least one event."""
        ...


class LiveFeed:
    """The events of a hub in this process, after the ``past`` that its ledger kept of earlier runs.

    Ends when the iteration is cancelled. An event that is in both is told once.
    """

    def __init__(self, source: Source, *, past: Sequence[Event] = ()) -> None:
        self._source = source
        self._past = tuple(past)

    @property
    def live(self) -> bool:
        """Always."""
        return True

    @property
    def dropped(self) -> int:
        """What the source's queue had to let go."""
        return self._source.dropped

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        past, self._past = self._past, ()
        for at in range(0, len(past), BATCH_MAX):
            yield past[at : at + BATCH_MAX]
            await asyncio.sleep(0)
        last = past[-1].seq if past else -1
        while True:
            batch = await self._source.next_batch(BATCH_MAX)
            yield batch if batch[0].seq > last else tuple(event for event in batch if event.seq > last)
            await asyncio.sleep(PAUSE_S)


class Replay:
    """A recording: at once, or with ``speed`` times the pace at which it happened."""

    def __init__(self, events: Iterable[Event], *, speed: float | None = None) -> None:
        self._events = events
        self._speed = speed

    @property
    def live(self) -> bool:
        """Never."""
        return False

    @property
    def dropped(self) -> int:
        """Nothing is lost from a recording."""
        return 0

    async def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        batch: list[Event] = []
        last: datetime | None = None
        for event in self._events:
            wait = 0.0
            if self._speed and last is not None:
                wait = min(WAIT_MAX_S, (event.at - last).total_seconds() / self._speed)
            last = event.at
            if batch and (wait > 0.01 or len(batch) >= BATCH_MAX):
                yield batch
                batch = []
                await asyncio.sleep(max(0.0, wait))
            batch.append(event)
        if batch:
            yield batch


def read_jsonl(path: Path) -> tuple[Event, ...]:
    """A recording from a file of one JSON object per line.

    Raises:
        ConfigError: the file cannot be read, or a line is no event; the message names file and line.
    """
    events: list[Event] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for at, text in enumerate(lines, start=1):
                if text.strip():
                    events.append(_event(text, f"{path.name}:{at}", at))
    except OSError as error:
        raise ConfigError(f"{path.name}: cannot be read: {error.strerror}") from error
    return tuple(events)


def _event(text: str, where: str, at: int) -> Event:
    try:
        body = json.loads(text) if len(text) <= LINE_CHARS_MAX else None
    except (ValueError, RecursionError):
        body = None
    event = from_wire(body, seq=at) if isinstance(body, Mapping) else None
    if event is None:
        raise ConfigError(f"{where}: not an event", hint="each line is one object with at, topic and payload")
    return event
