"""Everything one task told, in order, read by any number of readers at their own pace.

The list only grows and a reader keeps a cursor into it, so a slow reader misses nothing, costs no
buffer of its own, and meets the closing events exactly once. Knows nothing of HTTP or dialects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleetsim.model.event import ArtifactUpdate, TaskEvent
from fleetsim.model.task import Part, TextPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingUpdate(ArtifactUpdate):
    """The main artifact whole, at the end. ``added`` is all of it that a reader of every piece before lacks.

    ``added`` is None where those pieces do not hold any more: the final text is another.
    """

    added: tuple[Part, ...] | None


class TaskFeed:
    """One task's events. Only the store tells; ``closed`` means nothing will follow."""

    __slots__ = ("_changed", "_events", "closed")

    def __init__(self) -> None:
        self._events: list[TaskEvent] = []
        self._changed = asyncio.Event()
        self.closed = False

    def __len__(self) -> int:
        return len(self._events)

    def tell(self, events: Iterable[TaskEvent], *, closes: bool = False) -> None:
        """Add events and wake every reader."""
        self._events.extend(events)
        self.closed = self.closed or closes
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()

    async def beyond(self, cursor: int) -> None:
        """Wait until there is an event at ``cursor`` or the feed is closed."""
        while cursor >= len(self._events) and not self.closed:
            await self._changed.wait()

    def since(self, cursor: int) -> tuple[tuple[TaskEvent, ...], int]:
        """The events from ``cursor`` on, adjoining text deltas joined, and the next cursor."""
        return _joined(self._events[cursor:]), len(self._events)

    def ended(self) -> TaskFeed:
        """A closed feed in place of this one, so that a finished task does not keep what readers still hold."""
        feed = TaskFeed()
        feed.closed = True
        return feed


def _joined(events: list[TaskEvent]) -> tuple[TaskEvent, ...]:
    """Join runs of appended text to the same artifact; nothing else is touched or reordered."""
    joined: list[TaskEvent] = []
    run: list[str] = []
    for event in events:
        if _is_text_delta(event) and joined and _same_target(joined[-1], event):
            run.append(_delta(event))
            continue
        _close_run(joined, run)
        joined.append(event)
        run = [_delta(event)] if _is_text_delta(event) else []
    _close_run(joined, run)
    return tuple(joined)


def _is_text_delta(event: TaskEvent) -> bool:
    return (
        isinstance(event, ArtifactUpdate)
        and event.append
        and not event.last_chunk
        and len(event.artifact.parts) == 1
        and isinstance(event.artifact.parts[0], TextPart)
    )


def _delta(event: TaskEvent) -> str:
    return event.artifact.text if isinstance(event, ArtifactUpdate) else ""


def _same_target(last: TaskEvent, event: TaskEvent) -> bool:
    return (
        _is_text_delta(last)
        and isinstance(last, ArtifactUpdate)
        and isinstance(event, ArtifactUpdate)
        and last.artifact.artifact_id == event.artifact.artifact_id
    )


def _close_run(joined: list[TaskEvent], run: list[str]) -> None:
    if len(run) < 2:
        return
    last = joined[-1]
    if isinstance(last, ArtifactUpdate):
        joined[-1] = replace(last, artifact=replace(last.artifact, parts=(TextPart(text="".join(run)),)))
