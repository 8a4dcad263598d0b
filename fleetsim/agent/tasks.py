"""One task: while it grows, in the store alone, and as the frozen snapshots that everybody else sees. Text is stored in
pieces and joined when it is read, so a long stream costs linear time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fleetsim.agent.limits import AgentLimits, OutputLimit
from fleetsim.model.call import PushConfig
from fleetsim.model.errors import InvalidMove
from fleetsim.model.event import ArtifactUpdate, StatusUpdate, TaskEvent
from fleetsim.model.extensions import (
    CONFIDENCE,
    CONFIDENCE_TYPE,
    COST,
    COST_TYPE,
    DELTAS_MAX,
    WORLDSTATE_DELTA,
    WORLDSTATE_DELTA_TYPE,
    EffectDelta,
)
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    DataPart,
    FilePart,
    JsonObject,
    Message,
    Part,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from fleetsim.wire.reading import TRANSITIONS

ANYONE = "anyone"
"""The owner of every task of an agent without keys: one shared tenant."""

TaskKey: TypeAlias = tuple[str, str]
"""(owner, task id). A task of somebody else is missing by construction (threat T-24)."""


class TaskEnded(InvalidMove):
    """The task is terminal: what was to be written came too late and changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTarget:
    """A registered webhook and the dialect of its registration, in which its notices are written.

    ``traceparent`` came with the registration, and goes back with every notice. ``told`` is the time of the last status
    that was delivered, where the keeper of the tasks wants it.
    """

    config: PushConfig
    dialect: str
    traceparent: str = ""
    told: str = ""

    @property
    def config_id(self) -> str:
        """Its id within the task; the store gives every config one."""
        return self.config.config_id or ""


def status_at(status: TaskStatus) -> str:
    """The time of a status, as ``PushTarget.told`` has it."""
    return "" if status.timestamp is None else status.timestamp.isoformat()


class Record(Struct, frozen=True, kw_only=True):
    """A task as it was at one moment. ``cursor`` is where in the feed a reader of this snapshot goes on, ``sequence``
    its place in the order of changes.
    """

    key: TaskKey
    task: Task
    skill: str
    dialect: str
    created_at: datetime
    updated_at: datetime
    pushes: tuple[PushTarget, ...] = ()
    cursor: int = 0
    sequence: int = 0

    @property
    def task_id(self) -> str:
        return self.task.task_id


MAIN_NAME = "response"


@dataclass(slots=True, kw_only=True)
class UsageTotals:
    """The usage, confidence and effects that a skill reports for a task."""

    tokens: dict[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    model: str | None = None
    confidence: float | None = None
    explanation: str | None = None
    effects: list[EffectDelta] = field(default_factory=list)

    def use(self, tokens: Mapping[str, int], cost_usd: float | None, model: str | None) -> None:
        """Add one model call. Raises ValueError for a negative or endless amount."""
        if any(count < 0 for count in tokens.values()) or (cost_usd is not None and not 0 <= cost_usd < math.inf):
            raise ValueError("tokens and cost cannot be negative or infinite")
        for kind, count in tokens.items():
            self.tokens[kind] = self.tokens.get(kind, 0) + count
        if cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost_usd
        self.model = model or self.model

    def add(self, effect: EffectDelta) -> None:
        """Note one observed change. Raises OutputLimit beyond the published count."""
        if len(self.effects) >= DELTAS_MAX:
            raise OutputLimit(f"a task may report at most {DELTAS_MAX} effects")
        self.effects.append(effect)

    def parts(self, state: TaskState, duration_ms: int) -> tuple[tuple[Part, ...], tuple[str, ...]]:
        """The data parts for the terminal artifact and the URIs they belong to (seed "Extensions")."""
        success = state is TaskState.COMPLETED
        reports: list[tuple[str, str, dict[str, Any]]] = []
        if self.effects:
            deltas = [{"domain": e.domain, "path": e.path, "op": e.op, "value": e.value} for e in self.effects]
            reports.append((WORLDSTATE_DELTA, WORLDSTATE_DELTA_TYPE, {"deltas": deltas}))
        if self.tokens or self.cost_usd is not None:
            cost: dict[str, Any] = {"usage": dict(self.tokens), "durationMs": duration_ms, "success": success}
            cost |= {} if self.cost_usd is None else {"costUsd": self.cost_usd}
            reports.append((COST, COST_TYPE, cost | ({} if self.model is None else {"model": self.model})))
        if self.confidence is not None:
            sure: dict[str, Any] = {"confidence": self.confidence, "success": success}
            sure |= {} if self.explanation is None else {"explanation": self.explanation}
            reports.append((CONFIDENCE, CONFIDENCE_TYPE, sure))
        parts = tuple(DataPart(data=data, media_type=kind, metadata={"mimeType": kind}) for _, kind, data in reports)
        return parts, tuple(uri for uri, _, _ in reports)


@dataclass(slots=True)
class _Piece:
    """One artifact in the making. ``text`` is the run of text at the end of ``parts``."""

    head: Artifact
    parts: list[Part] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def add(self, part: Part) -> None:
        if isinstance(part, TextPart) and not part.metadata and not part.media_type:
            self.text.append(part.text)
            return
        self.settle()
        self.parts.append(part)

    def settle(self) -> None:
        if not self.text:
            return
        run = "".join(self.text)
        self.text.clear()
        last = self.parts[-1] if self.parts else None
        if isinstance(last, TextPart) and not last.metadata and not last.media_type:
            self.parts[-1] = TextPart(text=last.text + run)
        else:
            self.parts.append(TextPart(text=run))

    def artifact(self) -> Artifact:
        self.settle()
        return replace(self.head, parts=tuple(self.parts))


class ClosingUpdate(ArtifactUpdate, frozen=True, kw_only=True):
    """The main artifact whole, at the end. ``added``: the parts that a reader of every piece did not receive; None if
    the final text replaced the pieces."""

    added: tuple[Part, ...] | None


class ArtifactBuilder:
    """The artifacts of one open task. The main one carries the task's own id."""

    def __init__(self, main_id: str, context_id: str, *, chars_max: int) -> None:
        self.main_id, self._context_id = main_id, context_id
        self.usage = UsageTotals()
        self.chars = 0
        self._chars_max = chars_max
        self._pieces: dict[str, _Piece] = {}

    def put(self, artifact: Artifact, *, append: bool) -> None:
        """Start, replace or extend an artifact. Raises OutputLimit when the task would hold too much."""
        weight = sum(map(weigh_part, artifact.parts))
        if self.chars + weight > self._chars_max:
            raise OutputLimit(f"a task may hold at most {self._chars_max} characters of output")
        self.chars += weight
        piece = self._pieces.get(artifact.artifact_id) if append else None
        if piece is None:
            piece = self._pieces[artifact.artifact_id] = _Piece(head=artifact)
        for part in artifact.parts:
            piece.add(part)

    def artifacts(self) -> tuple[Artifact, ...]:
        """All artifacts as they stand; ones without parts are left out."""
        return tuple(a for a in (piece.artifact() for piece in self._pieces.values()) if a.parts)

    def close(self, state: TaskState, text: str | None, duration_ms: int) -> ClosingUpdate | None:
        """Finish the main artifact: the final text in place of the pieces if given, then what it used.

        A completed task always has an artifact; others only if they had something to show. Raises OutputLimit before
        anything changes.
        """
        extra, uris = self.usage.parts(state, duration_ms)
        piece = self._pieces.get(self.main_id)
        sent: tuple[Part, ...] = piece.artifact().parts if piece else ()
        body = sent
        if text is not None:
            chars = self.chars - sum(map(weigh_part, sent)) + len(text)
            if chars > self._chars_max:
                raise OutputLimit(f"a task may hold at most {self._chars_max} characters of output")
            self.chars, body = chars, (TextPart(text=text),)
        added = extra if body == sent else None
        others = {name: other for name, other in self._pieces.items() if name != self.main_id}
        if not body and state is TaskState.COMPLETED and not others:
            body = (TextPart(text=""),)
        if not body and not extra:
            return None
        main = Artifact(artifact_id=self.main_id, name=MAIN_NAME, parts=(*body, *extra), extensions=uris)
        self._pieces = {self.main_id: _Piece(head=main, parts=list(main.parts)), **others}
        return ClosingUpdate(
            task_id=self.main_id, context_id=self._context_id, artifact=main, last_chunk=True, added=added
        )


def weigh_part(part: Part) -> int:
    """About how many characters a part keeps in memory."""
    match part:
        case TextPart(text=text):
            return len(text)
        case FilePart(raw=raw, uri=uri):
            return len(raw or "") + len(uri or "")
        case DataPart(data=data):
            return weigh_data(data)


def weigh_data(data: Any) -> int:
    """About how many characters JSON data keeps in memory. Depth is bounded by the parser that made it."""
    if isinstance(data, str):
        return len(data)
    if isinstance(data, Mapping):
        return sum(len(str(key)) + weigh_data(value) for key, value in data.items()) + 2
    if isinstance(data, list | tuple):
        return sum(map(weigh_data, data)) + 2
    return 8


class TaskFeed:
    """One task's events. Only the store publishes; after ``closed`` no event follows.

    ``shared`` holds the encoded forms of the events that were read last: readers mostly read the same ones together.
    """

    __slots__ = ("_events", "_read", "_waiting", "closed", "shared")

    def __init__(self) -> None:
        self._events: list[TaskEvent] = []
        self._waiting: set[asyncio.Future[bool]] = set()
        self._read: tuple[int, int, tuple[TaskEvent, ...]] = (0, 0, ())
        self.closed = False
        self.shared: dict[tuple[type, int], tuple[TaskEvent, bytes]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def publish(self, events: Iterable[TaskEvent], *, closes: bool = False) -> None:
        """Add events and wake every reader."""
        self._events.extend(events)
        self.closed = self.closed or closes
        woken, self._waiting = self._waiting, set()
        for waiting in woken:
            _ring(waiting, True)

    async def news(self, cursor: int, timer: ReaderTimer | None = None) -> bool:
        """Wait for an event at ``cursor``, or for the feed to close; False if the ``timer`` rings first."""
        if cursor < len(self._events) or self.closed:
            return True
        waiting = asyncio.get_running_loop().create_future() if timer is None else timer.begin()
        self._waiting.add(waiting)
        try:
            return await waiting
        finally:
            self._waiting.discard(waiting)

    def since(self, cursor: int) -> tuple[tuple[TaskEvent, ...], int]:
        """The events from ``cursor`` on, adjoining text deltas joined, and the next cursor."""
        end = len(self._events)
        if self._read[:2] != (cursor, end):
            self._read = (cursor, end, _joined(self._events[cursor:]))
            self.shared.clear()
        return self._read[2], end


ENDED_FEED = TaskFeed()
"""The feed of every finished task: none keeps what its readers still hold, or has one of its own."""
ENDED_FEED.closed = True


class ReaderTimer:
    """Ends a reader's wait for news after a number of seconds; its owner must ``close`` it. All its waits share one
    timer, which looks when the last one could be over: a timer for each costs a tenth of an event."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._loop = seconds, asyncio.get_running_loop()
        self._since, self._waiting = self._loop.time(), self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._look)

    def begin(self) -> asyncio.Future[bool]:
        """The future of one wait, which begins now."""
        self._since, self._waiting = self._loop.time(), self._loop.create_future()
        return self._waiting

    def _look(self) -> None:
        due, now = self._since + self._seconds, self._loop.time()
        if due <= now:
            _ring(self._waiting, False)
            due = now + self._seconds
        self._timer = self._loop.call_at(due, self._look)

    def close(self) -> None:
        self._timer.cancel()


def _ring(waiting: asyncio.Future[bool], news: bool) -> None:
    if not waiting.done():
        waiting.set_result(news)


def _joined(events: list[TaskEvent]) -> tuple[TaskEvent, ...]:
    """Join runs of appended text to the same artifact; other events stay as and where they are."""
    if len(events) == 1:
        return (events[0],)
    joined: list[TaskEvent] = []
    for target, run in groupby(events, key=_appended_to):
        first, *more = run
        if target is not None and isinstance(first, ArtifactUpdate) and more:
            text = "".join(event.artifact.text for event in (first, *more) if isinstance(event, ArtifactUpdate))
            joined.append(replace(first, artifact=replace(first.artifact, parts=(TextPart(text=text),))))
        else:
            joined += (first, *more)
    return tuple(joined)


def _appended_to(event: TaskEvent) -> str | None:
    """The artifact that the event appends nothing but a piece of text to; None for any other event."""
    if not isinstance(event, ArtifactUpdate) or not event.append or event.last_chunk:
        return None
    parts = event.artifact.parts
    return event.artifact.artifact_id if len(parts) == 1 and isinstance(parts[0], TextPart) else None


@dataclass(frozen=True, slots=True)
class TaskMove:
    """One move of a task, for listeners while they are called; ``record`` and ``update`` are frozen values (U23).

    Most moves have no reader, and a copy of the task for each would be a tenth of the cost of a send.
    """

    _entry: Entry

    @property
    def state(self) -> TaskState:
        return self._entry.state

    @property
    def pushes(self) -> tuple[PushTarget, ...]:
        return self._entry.pushes

    @property
    def record(self) -> Record:
        """The task as it is right after the move."""
        return self._entry.snapshot()

    @property
    def update(self) -> StatusUpdate:
        """The event of the move, with the artifacts once the task is over."""
        entry = self._entry
        return entry.update(entry.status, entry.results.artifacts() if entry.state in TERMINAL else ())


TRANSITIONS_MAX = 200


def weigh_message(message: Message) -> int:
    """About how many characters a message keeps in memory."""
    return sum(map(weigh_part, message.parts)) + weigh_data(message.metadata)


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One task as the store holds it. It never leaves the store."""

    key: TaskKey
    context_id: str
    skill: str
    dialect: str
    status: TaskStatus
    results: ArtifactBuilder
    feed: TaskFeed
    opened_s: float
    touched_s: float
    created_at: datetime
    updated_at: datetime
    metadata: JsonObject
    history: tuple[Message, ...] = ()
    history_chars: int = 0
    pushes: tuple[PushTarget, ...] = ()
    sequence: int = 0
    answers: tuple[Message, ...] = ()
    transitions: tuple[TaskStatus, ...] | None = None

    @property
    def state(self) -> TaskState:
        return self.status.state

    def remember(self, message: Message, limits: AgentLimits) -> int:
        """Add to the conversation, dropping its oldest messages beyond the limits; returns the growth in characters."""
        before = self.history_chars
        message = replace(message, context_id=self.context_id, task_id=self.key[1])
        turns = [*self.history, message]
        self.history_chars += weigh_message(message)
        while len(turns) > 1 and (
            len(turns) > limits.history_messages_max or self.history_chars > limits.history_chars_max
        ):
            self.history_chars -= weigh_message(turns.pop(0))
        self.history = tuple(turns)
        return self.history_chars - before

    def knows(self, message: Message) -> bool:
        """Whether the same message, by id and content, is part of the conversation already. While a question is open
        only earlier answers count: some callers give all their messages one id. Without an id (0.1) no message is
        known."""
        waiting = self.status.state in INTERRUPTED
        if waiting and not message.message_id:
            return False
        before = self.answers if waiting else self.history
        return any(m.message_id == message.message_id and m.parts == message.parts for m in before)

    def update(self, status: TaskStatus, artifacts: tuple[Artifact, ...] = ()) -> StatusUpdate:
        """The event of ``status``, final where a stream ends: when the agent stops or waits."""
        final = status.state in TERMINAL | INTERRUPTED
        return StatusUpdate(
            task_id=self.key[1], context_id=self.context_id, status=status, final=final, artifacts=artifacts
        )

    def chunk(self, artifact: Artifact, *, append: bool, last_chunk: bool) -> ArtifactUpdate:
        """The event of a piece of output."""
        return ArtifactUpdate(
            task_id=self.key[1], context_id=self.context_id, artifact=artifact, append=append, last_chunk=last_chunk
        )

    def note_transition(self) -> None:
        """Add the present status to the list of transitions, where the agent keeps one."""
        if self.transitions is not None:
            self.transitions = (*self.transitions, self.status)[-TRANSITIONS_MAX:]

    def snapshot(self) -> Record:
        metadata = dict(self.metadata)
        if self.transitions is not None:
            past = [(s.state.value, s.timestamp.isoformat()) for s in self.transitions if s.timestamp]
            metadata[TRANSITIONS] = [{"state": state, "timestamp": at} for state, at in past]
        task = Task(
            task_id=self.key[1],
            context_id=self.context_id,
            status=self.status,
            artifacts=self.results.artifacts(),
            history=self.history,
            metadata=metadata,
        )
        return Record(
            key=self.key,
            task=task,
            skill=self.skill,
            dialect=self.dialect,
            created_at=self.created_at,
            updated_at=self.updated_at,
            pushes=self.pushes,
            cursor=len(self.feed),
            sequence=self.sequence,
        )
