"""What a task tells, in order, and its readers: for a stream opened by a send and for one that joins later.

The list of events only grows and a reader keeps a cursor into it, so a slow reader misses nothing and costs no buffer
of its own. It starts from a frozen snapshot and the place in the feed that belongs to it, so it sees each change after
that exactly once, suffixes only, and the closing pair however slowly it reads (U22). Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass

from fleetsim.agent.limits import AgentLimits, AtCapacity
from fleetsim.agent.tasks import ENDED_FEED, ClosingUpdate, Record, TaskFeed, TaskKey
from fleetsim.model.changing import replace
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import INTERRUPTED, Task, TextPart
from fleetsim.model.text import one_line
from fleetsim.wire.dialect import Dialect
from fleetsim.wire.json import dump
from fleetsim.wire.sse import LONG_CHARS, is_long, json_in_pieces


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
    false keeps it from sending again what it has told (``DialectBehaviour``). ``ready`` says that what comes next is
    there already, another event or the end.
    """

    record: Record
    task: Task
    feed: TaskFeed
    slot: StreamSlot
    keepalive_s: float
    joins_question: bool
    repeats_artifact: bool
    ready: bool = False

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
        told = {artifact.artifact_id for artifact in self.task.artifacts}
        cursor, feed = self.record.cursor, self.feed
        with _Pulse(self.keepalive_s) as pulse:
            while not (feed.closed and cursor >= len(feed)):
                if cursor >= len(feed):
                    await feed.wait(pulse.news())
                    if cursor >= len(feed):
                        if not feed.closed:
                            yield None
                        continue
                events, cursor = feed.since(cursor)
                left = len(events)
                for event in events:
                    left -= 1
                    final = isinstance(event, StatusUpdate) and event.final
                    self.ready = left > 0 or final
                    yield self._as_told(event, told) if isinstance(event, ArtifactUpdate) else event
                    if final:
                        return

    def _as_told(self, event: ArtifactUpdate, told: set[str]) -> ArtifactUpdate:
        """``event`` for a reader who was told of the artifacts in ``told`` by this stream.

        The first piece of an artifact appends to nothing: strict clients refuse it otherwise. An artifact must
        have a part (A2A 1.0 section 5.7), so one to which nothing is added ends with an empty text.
        """
        artifact = event.artifact
        if artifact.artifact_id not in told:
            told.add(artifact.artifact_id)
            return replace(event, append=False) if event.append else event
        if isinstance(event, ClosingUpdate) and event.added is not None and not self.repeats_artifact:
            rest = replace(artifact, parts=event.added or (TextPart(text=""),))
            return replace(event, artifact=rest, append=True)
        return event


class _Pulse:
    """Rings when nothing was told for so many seconds: one timer for a whole stream, which looks when it could be."""

    __slots__ = ("_every_s", "_loop", "_news", "_since", "_timer")

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._news: asyncio.Future[None] | None = None

    def __enter__(self) -> _Pulse:
        self._timer = self._loop.call_later(self._every_s, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def news(self) -> asyncio.Future[None]:
        """What to wait for now."""
        self._since = self._loop.time()
        self._news = self._loop.create_future()
        return self._news

    def _look(self) -> None:
        due, now = self._since + self._every_s, self._loop.time()
        if due <= now:
            due = now + self._every_s
            if self._news is not None and not self._news.done():
                self._news.set_result(None)
        self._timer = self._loop.call_at(due, self._look)


def closing_pair(task: Task) -> tuple[TaskEvent, ...]:
    """What ends the stream of a finished task: each artifact in full, then the final status."""
    artifacts = (
        ArtifactUpdate(task_id=task.task_id, context_id=task.context_id, artifact=artifact, last_chunk=True)
        for artifact in task.artifacts
    )
    return (*artifacts, _last_status(task))


def _last_status(task: Task) -> StatusUpdate:
    return StatusUpdate(task_id=task.task_id, context_id=task.context_id, status=task.status, final=True)


class EventFrames:
    """Writes a watch's events as one reader has them: each in the reader's envelope, ``before`` and ``after`` it.

    What readers of one dialect are told at the same time is encoded once for all of them. Pieces of an answer differ in
    their text alone, so that of the next one only the text is written (``_TextTemplate``).
    """

    __slots__ = ("_after", "_before", "_dialect", "_name", "_shared", "_template")

    def __init__(self, dialect: Dialect, watch: Watch, before: bytes, after: bytes) -> None:
        self._dialect, self._name = dialect, dialect.name
        self._before, self._after = b"data: " + before, after + b"\n\n"
        self._shared = watch.feed.shared if watch.feed is not ENDED_FEED else {}
        self._template: _TextTemplate | None = None

    def write(self, event: TaskEvent) -> Iterable[bytes]:
        """One frame, in pieces if a text in it is long: those are not kept."""
        name = self._dialect.event_name(event)
        opening = self._before if name is None else b"event: %b\n%b" % (name.encode(), self._before)
        place = (self._name, id(event))
        known = self._shared.get(place)
        if known is not None and known[0] is event:
            return (opening + known[1] + self._after,)
        if isinstance(event, ArtifactUpdate) and _is_short_text(event):
            written = self._write_text(event)
        else:
            value = self._dialect.encode_event(event)
            if is_long(value):
                return json_in_pieces(value, opening, self._after)
            written = dump(value)
        if isinstance(event, StatusUpdate | ArtifactUpdate):
            self._shared[place] = (event, written)
        return (opening + written + self._after,)

    def _write_text(self, event: ArtifactUpdate) -> bytes:
        if self._template is None or not self._template.fits(event):
            self._template = _TextTemplate(self._dialect, event)
        return self._template.write(event)


_HOLE = "\x00text\x00"


class _TextTemplate:
    """The JSON around the text of an update, for all that are like it but for their text."""

    __slots__ = ("_around", "_dialect", "_like")

    def __init__(self, dialect: Dialect, like: ArtifactUpdate) -> None:
        self._dialect, self._like = dialect, like
        hollow = replace(like, artifact=replace(like.artifact, parts=(TextPart(text=_HOLE),)))
        self._around = dump(dialect.encode_event(hollow)).split(dump(_HOLE))

    def fits(self, event: ArtifactUpdate) -> bool:
        """Whether ``event``, of the same task, differs in its text alone."""
        like, artifact, other = self._like, event.artifact, self._like.artifact
        return (
            event.append is like.append
            and event.last_chunk is like.last_chunk
            and artifact.artifact_id == other.artifact_id
            and artifact.name == other.name
            and artifact.description == other.description
        )

    def write(self, event: ArtifactUpdate) -> bytes:
        if len(self._around) != 2:  # an id looks like the hole
            return dump(self._dialect.encode_event(event))
        before, after = self._around
        return before + dump(event.artifact.text) + after


def _is_short_text(event: ArtifactUpdate) -> bool:
    """Whether it is a short piece of plain text and nothing else, as nearly every event is."""
    artifact = event.artifact
    if len(artifact.parts) != 1 or artifact.metadata or artifact.extensions or event.metadata:
        return False
    part = artifact.parts[0]
    return isinstance(part, TextPart) and len(part.text) < LONG_CHARS and not part.metadata and not part.media_type
