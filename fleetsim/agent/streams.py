"""What a task tells, in order, and its readers: for a stream opened by a send and for one that joins later.

The list of events only grows and a reader keeps a cursor into it, so a slow reader misses nothing and costs no buffer
of its own. It starts from a frozen snapshot and the place in the feed that belongs to it, so it sees each change after
that exactly once, suffixes only, and the closing pair however slowly it reads (U22). Knows nothing of HTTP or dialects.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.tasks import ClosingUpdate, Record, TaskFeed, TaskKey
from fleetsim.model.changing import replace
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import INTERRUPTED, Message, Task, TextPart
from fleetsim.model.text import one_line


class StreamSlots:
    """How many streams are open, for one task (``of``) and in all."""

    def __init__(self, limits: AgentLimits) -> None:
        self._limits = limits
        self.of: Counter[TaskKey] = Counter()
        self.total = 0

    def take(self, key: TaskKey | None = None) -> StreamSlot:
        """Open one more, for a task if it is known already. Raises AtCapacity."""
        if self.total >= self._limits.streams_max:
            raise AtCapacity(f"the agent serves at most {self._limits.streams_max} streams at once")
        if key is not None and self.of[key] >= self._limits.streams_per_task_max:
            raise AtCapacity(f"a task may have at most {self._limits.streams_per_task_max} streams at once")
        self.total += 1
        slot = StreamSlot(self)
        if key is not None:
            slot.assign(key)
        return slot


class StreamSlot:
    """One open stream. Taken before its task may exist, so that no task is begun that nobody can follow."""

    __slots__ = ("_key", "_left", "_slots")

    def __init__(self, slots: StreamSlots) -> None:
        self._slots = slots
        self._key: TaskKey | None = None
        self._left = False

    def assign(self, key: TaskKey) -> None:
        """Name the task the stream is for."""
        if self._key is None:
            self._key = key
            self._slots.of[key] += 1

    def leave(self) -> None:
        """Close the stream; again is harmless."""
        if self._left:
            return
        self._left = True
        self._slots.total -= 1
        if self._key is not None:
            self._slots.of[self._key] -= 1
            if not self._slots.of[self._key]:
                del self._slots.of[self._key]


@dataclass(slots=True, kw_only=True, eq=False)
class Watch:
    """One stream of one task. Whoever is given it must ``close`` it; iterate ``events`` at most once.

    ``joins_question`` false ends a stream that joins a task while it waits for an answer. ``repeats_artifact``
    false keeps it from sending again what it has told (``DialectBehaviour``).
    """

    record: Record
    task: Task
    feed: TaskFeed
    slot: StreamSlot
    keepalive_s: float
    joins_question: bool
    repeats_artifact: bool

    @property
    def about(self) -> str:
        return f"task {one_line(self.record.task_id, 128)}"

    def close(self) -> None:
        """Give the slot back; again is harmless."""
        self.slot.leave()

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        """The snapshot, then what follows, to the end of the task or its next question; None keeps alive."""
        yield Snapshot(task=self.task)
        if self.record.task.terminal:
            for event in closing_pair(self.record.task) if self.repeats_artifact else (_last_status(self.record.task),):
                yield event
            return
        if self.record.task.state in INTERRUPTED and not self.joins_question:
            yield _last_status(self.record.task)
            return
        told = {artifact.artifact_id for artifact in self.task.artifacts}
        cursor = self.record.cursor
        while not (self.feed.closed and cursor >= len(self.feed)):
            try:
                async with asyncio.timeout(self.keepalive_s):
                    await self.feed.beyond(cursor)
            except TimeoutError:
                yield None
                continue
            events, cursor = self.feed.since(cursor)
            for event in events:
                yield self._as_told(event, told) if isinstance(event, ArtifactUpdate) else event
                if isinstance(event, StatusUpdate) and event.final:
                    return

    def _as_told(self, event: ArtifactUpdate, told: set[str]) -> ArtifactUpdate:
        """``event`` for a reader who was told of the artifacts in ``told`` by this stream.

        The first piece of an artifact appends to nothing: strict clients refuse it otherwise. An artifact must
        have a part (A2A 1.0 section 5.7), so one to which nothing is added ends with an empty text.
        """
        artifact = event.artifact
        if artifact.artifact_id not in told:
            told.add(artifact.artifact_id)
            return replace(event, append=False)
        if isinstance(event, ClosingUpdate) and event.added is not None and not self.repeats_artifact:
            rest = replace(artifact, parts=event.added or (TextPart(text=""),))
            return replace(event, artifact=rest, append=True)
        return event


@dataclass(frozen=True, slots=True)
class DirectWatch:
    """A stream of exactly one message, for an answer without a task (A2A 1.0 section 3.1.2)."""

    message: Message
    about: str = "a direct reply"

    def close(self) -> None:
        """Nothing is held."""

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        yield DirectReply(message=self.message)


def closing_pair(task: Task) -> tuple[TaskEvent, ...]:
    """What ends the stream of a finished task: each artifact in full, then the final status."""
    artifacts = (
        ArtifactUpdate(task_id=task.task_id, context_id=task.context_id, artifact=artifact, last_chunk=True)
        for artifact in task.artifacts
    )
    return (*artifacts, _last_status(task))


def _last_status(task: Task) -> StatusUpdate:
    return StatusUpdate(task_id=task.task_id, context_id=task.context_id, status=task.status, final=True)
