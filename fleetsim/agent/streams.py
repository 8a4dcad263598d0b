"""The streams of a task: for a reader that began it by a send, and for one that joins later.

The list of events only grows, and a reader keeps a cursor into it, so a slow reader misses no event and needs no
buffer. It starts from a frozen snapshot and the snapshot's place in the feed, so it sees each later change exactly once
(U22).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass

from msgspec.structs import replace

from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.tasks import ENDED_FEED, ClosingUpdate, ReaderTimer, Record, TaskFeed, TaskKey
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import INTERRUPTED, Task, TextPart
from fleetsim.model.text import one_line
from fleetsim.wire.dialect import Dialect
from fleetsim.wire.json import dump

SHARED_BYTES_MAX = 64 * 1024
"""A longer event is encoded for each of its readers, and not kept in memory."""


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
    """One open stream. It is taken before its task may exist, so that no task begins that its sender cannot follow."""

    def __init__(self, slots: StreamSlots) -> None:
        self._slots = slots
        self._key: TaskKey | None = None
        self.left = False

    def assign(self, key: TaskKey) -> None:
        """Name the task of the stream."""
        if self._key is None:
            self._key = key
            self._slots.of[key] += 1

    def leave(self) -> None:
        """Close the stream; again is harmless."""
        if self.left:
            return
        self.left = True
        self._slots.total -= 1
        if self._key is not None:
            self._slots.of[self._key] -= 1
            if not self._slots.of[self._key]:
                del self._slots.of[self._key]


@dataclass(slots=True, kw_only=True, eq=False)
class Watch:
    """One stream of one task. Its owner must ``close`` it; iterate ``events`` at most once.

    ``joins_question`` false ends a stream that joins a task while it waits for an answer. ``repeats_artifact``
    false keeps it from sending the same text twice (``DialectBehaviour``). ``ready``: the next event, or the end, is
    there already. ``hidden`` says whether the task does not exist for the reader any more, which ends the stream.
    """

    record: Record
    task: Task
    feed: TaskFeed
    slot: StreamSlot
    keepalive_s: float
    joins_question: bool
    repeats_artifact: bool
    ready: bool = False
    hidden: Callable[[], Awaitable[bool]] | None = None

    @property
    def about(self) -> str:
        return f"task {one_line(self.record.task_id, 128)}"

    def close(self) -> None:
        """Give the slot back; again is harmless."""
        self.slot.leave()

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        """The snapshot, then what follows, to the end of the task or its next question; None keeps alive."""
        self.ready = self.record.task.terminal or (self.record.task.state in INTERRUPTED and not self.joins_question)
        yield Snapshot(task=self.task)
        if self.record.task.terminal:
            for event in closing_pair(self.record.task) if self.repeats_artifact else (_last_status(self.record.task),):
                yield event
            return
        if self.record.task.state in INTERRUPTED and not self.joins_question:
            yield _last_status(self.record.task)
            return
        sent = {artifact.artifact_id for artifact in self.task.artifacts}
        cursor, feed = self.record.cursor, self.feed
        with closing(ReaderTimer(self.keepalive_s)) as timer:
            while not (feed.closed and cursor >= len(feed)):
                if not await feed.news(cursor, timer):
                    yield None
                    continue
                if self.hidden is not None and await self.hidden():
                    return
                events, cursor = feed.since(cursor)
                for number, event in enumerate(events, 1):
                    final = isinstance(event, StatusUpdate) and event.final
                    self.ready = number < len(events) or final
                    yield self._first_or_rest(event, sent) if isinstance(event, ArtifactUpdate) else event
                    if final:
                        return

    def _first_or_rest(self, event: ArtifactUpdate, sent: set[str]) -> ArtifactUpdate:
        """``event`` for a reader to whom this stream has sent the artifacts in ``sent``: the first piece of an artifact
        appends to nothing, since strict clients refuse it otherwise, and an end without new text has an empty one (A2A
        1.0 5.7)."""
        artifact = event.artifact
        if artifact.artifact_id not in sent:
            sent.add(artifact.artifact_id)
            return replace(event, append=False) if event.append else event
        if isinstance(event, ClosingUpdate) and event.added is not None and not self.repeats_artifact:
            rest = replace(artifact, parts=event.added or (TextPart(text=""),))
            return replace(event, artifact=rest, append=True)
        return event


def closing_pair(task: Task) -> tuple[TaskEvent, ...]:
    """The last events of a finished task: each artifact in full, then the final status."""
    artifacts = (
        ArtifactUpdate(task_id=task.task_id, context_id=task.context_id, artifact=artifact, last_chunk=True)
        for artifact in task.artifacts
    )
    return (*artifacts, _last_status(task))


def _last_status(task: Task) -> StatusUpdate:
    return StatusUpdate(task_id=task.task_id, context_id=task.context_id, status=task.status, final=True)


class TaskFrames:
    """Writes the events of a watch as SSE, each in the reader's envelope: ``before`` and ``after`` it.

    Readers of one dialect receive the same events at the same time, so each event is encoded once for all of them.
    """

    def __init__(self, dialect: Dialect, watch: Watch, before: bytes, after: bytes) -> None:
        self._dialect, self._form = dialect, type(dialect)
        self._before, self._after = b"data: " + before, after + b"\n\n"
        self._shared = watch.feed.shared if watch.feed is not ENDED_FEED else {}

    def write(self, event: TaskEvent) -> bytes:
        """One frame."""
        name = self._dialect.event_name(event)
        opening = self._before if name is None else b"event: %b\n%b" % (name.encode(), self._before)
        place = (self._form, id(event))
        known = self._shared.get(place)
        if known is not None and known[0] is event:
            return opening + known[1] + self._after
        written = dump(self._dialect.encode_event(event))
        if isinstance(event, StatusUpdate | ArtifactUpdate) and len(written) <= SHARED_BYTES_MAX:
            self._shared[place] = (event, written)
        return opening + written + self._after
