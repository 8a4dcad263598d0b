"""The events of a request, its task and its questions, one class each, and their common fields.

The dashboard, health, the monitor of questions, the journal and the HTTP API read these events. Code matches classes.
Topics (Workstacean's where it had one) are in this module, and in ``fleet_events`` for agents, ceremonies and the hub
itself; ``event_wire`` writes and reads them. The docstring of a class says when it is published, and
``docs/reference/events.md`` is generated from it. Text in an event came from an agent: it is data, and each reader
neutralises it before it shows it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Annotated, ClassVar

from msgspec import Struct

from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.limits import EXCERPT_CHARS_MAX
from fleetsim.model.parts import ListedPart, listed_parts, parts_for_list
from fleetsim.model.task import JsonObject
from fleetsim.model.work import Outcome, SkillRequest

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Level(StrEnum):
    """How much an event matters to a person."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Excerpt(Struct, frozen=True):
    """The first characters of a text that has ``chars`` in all.

    On the wire ``truncated`` and ``textChars`` stand beside a text that is not whole.
    """

    text: str = ""
    chars: int = 0

    @classmethod
    def of(cls, text: str, chars: int = 0, *, chars_max: int = EXCERPT_CHARS_MAX) -> Excerpt:
        """At most ``chars_max`` characters of ``text``. ``chars`` is its full length before any cut."""
        return cls(text[:chars_max], max(chars, len(text)))

    @property
    def truncated(self) -> bool:
        """Whether ``text`` was cut."""
        return self.chars > len(self.text)


class JsonForm(Enum):
    """How a member is written as JSON; stands in its annotation."""

    OMIT_NONE = "left out if it is None"
    MILLISECONDS = "a date to the millisecond, as the API writes dates"


class Event(Struct, frozen=True, kw_only=True):
    """One event. ``seq`` and ``at`` are assigned when it is published.

    ``seq`` grows by one and is unique once the event is in the journal. If the hub is killed before that, its next
    start assigns the number again.
    """

    TOPIC: ClassVar[str] = ""
    """``{...}`` stands for a member. The payload has that member too."""

    seq: int = 0
    at: datetime = EPOCH
    level: Level = Level.INFO
    correlation_id: str | None = None
    parent_id: str | None = None
    agent: str | None = None
    skill: str | None = None
    task_id: str | None = None

    def __init_subclass__(cls) -> None:
        if cls.TOPIC and "{" not in cls.TOPIC:  # an attribute of the class costs no call
            cls.topic = cls.TOPIC  # type: ignore[assignment, method-assign]

    @property
    def topic(self) -> str:
        """The topic of the event, with its ids and names filled in."""
        return re.sub(r"{(\w+)}", lambda match: str(getattr(self, match[1]) or ""), self.TOPIC)


ENVELOPE = Event.__struct_fields__


class RequestAccepted(Event, frozen=True, kw_only=True):
    """A request was accepted and recorded."""

    TOPIC: ClassVar[str] = "agent.skill.request"
    text: Excerpt
    parts: tuple[ListedPart, ...]
    targets: tuple[str, ...]
    system_actor: str
    source: str
    retry_of: str | None = None

    @classmethod
    def of(cls, request: SkillRequest, *, agent: str, skill: str) -> RequestAccepted:
        """The event of a recorded request."""
        return cls(
            correlation_id=request.correlation_id,
            parent_id=request.parent_id,
            agent=agent,
            skill=skill,
            text=Excerpt.of(request.text),
            parts=parts_for_list(listed_parts(request.parts)),
            targets=request.targets,
            system_actor=request.system_actor,
            source=request.source.interface,
            retry_of=request.retry_of,
        )


class RequestRefused(Event, frozen=True, kw_only=True):
    """A request was refused before it was recorded."""

    TOPIC: ClassVar[str] = "dispatch.dropped.{reason}"
    level: Level = Level.WARN
    reason: str
    message: str
    targets: tuple[str, ...]


class TaskBound(Event, frozen=True, kw_only=True):
    """The agent's first answer bound the request to a task."""

    TOPIC: ClassVar[str] = "agent.skill.dispatched"
    state: str
    context_id: str | None
    dialect: str | None
    via: str


class TaskMoved(Event, frozen=True, kw_only=True):
    """The state of a task changed."""

    TOPIC: ClassVar[str] = "agent.skill.update"
    state: str
    previous: str | None
    via: str
    text: Excerpt


class UpdateIgnored(Event, frozen=True, kw_only=True):
    """A signal came too late and was not applied."""

    TOPIC: ClassVar[str] = "agent.skill.stale"
    level: Level = Level.DEBUG
    state: str | None
    via: str
    why: str


class TaskElsewhere(Event, frozen=True, kw_only=True):
    """The agent continued in another task or context than the requested one."""

    TOPIC: ClassVar[str] = "agent.skill.elsewhere"
    level: Level = Level.WARN
    why: str


class CallRetried(Event, frozen=True, kw_only=True):
    """A send is repeated; the agent had accepted nothing."""

    TOPIC: ClassVar[str] = "agent.skill.retry"
    attempt: int = 0
    in_seconds: int | float = 0
    reason: str


class StreamBroken(Event, frozen=True, kw_only=True):
    """A stream ended with an error, or at a limit; the task is polled."""

    TOPIC: ClassVar[str] = "agent.stream.broken"
    level: Level = Level.DEBUG
    why: str


class CancelRefused(Event, frozen=True, kw_only=True):
    """The agent refused a cancel, and the task continues."""

    TOPIC: ClassVar[str] = "agent.skill.cancel.refused"
    level: Level = Level.WARN
    why: str


class PollingStopped(Event, frozen=True, kw_only=True):
    """The agent gave the same unusable answer to several polls of a task; polling stops."""

    TOPIC: ClassVar[str] = "agent.poll.stopped"
    level: Level = Level.WARN
    why: str
    answers: int


class StreamReceived(Event, frozen=True, kw_only=True):
    """Text or status arrived over a stream."""

    TOPIC: ClassVar[str] = "agent.chat.inbound"
    level: Level = Level.DEBUG
    type: str
    state: Annotated[str | None, JsonForm.OMIT_NONE] = None
    text: Excerpt
    append: Annotated[bool | None, JsonForm.OMIT_NONE] = None
    last_chunk: Annotated[bool | None, JsonForm.OMIT_NONE] = None
    artifact_id: Annotated[str | None, JsonForm.OMIT_NONE] = None

    @classmethod
    def of(cls, event: TaskEvent) -> StreamReceived:
        """The event for one event of an agent's stream."""
        match event:
            case ArtifactUpdate(artifact=artifact, append=append):
                last, text = event.last_chunk or None, Excerpt.of(artifact.text)
                return cls(type="artifact", text=text, append=append, last_chunk=last, artifact_id=artifact.artifact_id)
            case StatusUpdate(status=status):
                text = Excerpt.of(status.message.text) if status.message is not None else Excerpt()
                return cls(type="status", state=status.state.value, text=text)
            case Snapshot(task=task):
                return cls(type="task", state=task.status.state.value, text=Excerpt.of(task.text))
            case DirectReply(message=message):
                return cls(type="message", text=Excerpt.of(message.text))


class RequestAnswered(Event, frozen=True, kw_only=True):
    """The answer to the requester."""

    TOPIC: ClassVar[str] = "agent.skill.response.{correlation_id}"
    level: Level = Level.DEBUG
    content: Annotated[Excerpt | None, JsonForm.OMIT_NONE] = None
    error: Annotated[str | None, JsonForm.OMIT_NONE] = None
    task_state: str
    context_id: str | None


class OutcomeDecided(Event, frozen=True, kw_only=True):
    """A request ended; exactly once per request."""

    TOPIC: ClassVar[str] = "autonomous.outcome.{system_actor}.{skill}"
    outcome: Outcome

    @classmethod
    def of(cls, outcome: Outcome, *, level: Level = Level.INFO, chars_max: int = EXCERPT_CHARS_MAX) -> OutcomeDecided:
        """The event of an outcome, with at most ``chars_max`` characters of its text."""
        about = {name: getattr(outcome, name) for name in ("correlation_id", "parent_id", "agent", "skill", "task_id")}
        return cls(level=level, outcome=outcome.excerpt(chars_max), **about)

    @property
    def system_actor(self) -> str:
        """The requester; the topic names it."""
        return self.outcome.system_actor


class EffectsReported(Event, frozen=True, kw_only=True):
    """An agent reported effects."""

    TOPIC: ClassVar[str] = "world.state.delta"
    deltas: tuple[JsonObject, ...]
    source: str
    drift: tuple[str, ...]


class QuestionAsked(Event, frozen=True, kw_only=True):
    """An agent waits for a person."""

    TOPIC: ClassVar[str] = "hitl.request.{correlation_id}"
    level: Level = Level.WARN
    question_id: str
    kind: str
    asks_for_data: bool = False
    parts: tuple[ListedPart, ...] = ()
    question: Excerpt
    expires_at: datetime | None
    checkpoint: int = 1
    context_id: str | None
    system_actor: str


class QuestionAnswered(Event, frozen=True, kw_only=True):
    """A question was answered or rejected."""

    TOPIC: ClassVar[str] = "hitl.response.{correlation_id}"
    question_id: str
    decision: str
    decided_by: str
    answer: Annotated[Excerpt | None, JsonForm.OMIT_NONE] = None


class QuestionExpired(Event, frozen=True, kw_only=True):
    """Nobody answered in time."""

    TOPIC: ClassVar[str] = "hitl.expired.{correlation_id}"
    level: Level = Level.WARN
    question_id: str


class QuestionWithdrawn(Event, frozen=True, kw_only=True):
    """The agent went on without an answer."""

    TOPIC: ClassVar[str] = "hitl.withdrawn.{correlation_id}"
    question_id: str


class QuestionOverdue(Event, frozen=True, kw_only=True):
    """Half of a question's time has passed without an answer."""

    TOPIC: ClassVar[str] = "hitl.reminder.{correlation_id}"
    level: Level = Level.WARN
    question_id: str
    question: Excerpt
    expires_at: datetime | None


class QuestionEscalated(Event, frozen=True, kw_only=True):
    """The dispatching agent gave no answer; a person must."""

    TOPIC: ClassVar[str] = "hitl.escalated.{correlation_id}"
    question_id: str
    why: str


class NotifiedWorkStarted(Event, frozen=True, kw_only=True):
    """Work started whose card requests a note."""

    TOPIC: ClassVar[str] = "hitl.notification.{correlation_id}"


class VetoWindowMoved(Event, frozen=True, kw_only=True):
    """Work that may be vetoed started, was vetoed, or its window closed."""

    TOPIC: ClassVar[str] = "hitl.veto.{correlation_id}"
    decision: str
    expires_at: Annotated[datetime | None, JsonForm.OMIT_NONE] = None
    decided_by: Annotated[str | None, JsonForm.OMIT_NONE] = None


class GateSkipped(Event, frozen=True, kw_only=True):
    """A gated skill completed without asking anybody."""

    TOPIC: ClassVar[str] = "hitl.skipped.{correlation_id}"
    level: Level = Level.WARN


class OtherEvent(Event, frozen=True, kw_only=True):
    """An event of a recording that this version does not know or cannot read."""

    TOPIC: ClassVar[str] = "{name}"
    name: str
    payload: JsonObject = {}
