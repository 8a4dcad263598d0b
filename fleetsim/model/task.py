"""A2A tasks as frozen values, and the one table of moves between their states.

Nouns follow A2A 1.0 section 4.1 in snake case. The caller sees samples of a task, the agent owns it:
``event.fold`` has the caller's rule and ``advance`` the agent's, and both read the same ``TERMINAL``.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from fleetsim.model.errors import InvalidMove

JsonObject: TypeAlias = Mapping[str, Any]
"""A decoded JSON object. Treat it as read-only: values go from package to package."""


class TaskState(StrEnum):
    """A task's state (A2A 1.0 section 4.1.3). Values are the 0.3 spelling, which logs and screens use."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


TERMINAL = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED})
"""States that never change again."""

UNSUCCESSFUL = TERMINAL - {TaskState.COMPLETED}
"""Ends in which the goal was not met: what the agent says with them is the reason, not the answer."""

INTERRUPTED = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
"""States in which the agent waits for somebody."""

_OPEN = frozenset({TaskState.SUBMITTED, TaskState.WORKING}) | INTERRUPTED

MOVES: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.SUBMITTED: (_OPEN | TERMINAL) - {TaskState.SUBMITTED},
    TaskState.WORKING: INTERRUPTED | TERMINAL,
    TaskState.INPUT_REQUIRED: frozenset({TaskState.WORKING, TaskState.AUTH_REQUIRED}) | TERMINAL,
    TaskState.AUTH_REQUIRED: frozenset({TaskState.WORKING, TaskState.INPUT_REQUIRED}) | TERMINAL,
    **{state: frozenset() for state in TERMINAL},
    TaskState.UNKNOWN: frozenset(TaskState) - {TaskState.UNKNOWN},
}
"""Every move an agent may make with its own task."""


def advance(old: TaskState, new: TaskState) -> TaskState:
    """Return ``new`` if an agent may move its task there.

    Raises:
        InvalidMove: the table does not allow it; a terminal state allows nothing.
    """
    if new not in MOVES[old]:
        raise InvalidMove(f"a task cannot go from {old} to {new}")
    return new


class Role(StrEnum):
    """Who wrote a message (A2A 1.0 section 4.1.5)."""

    USER = "user"
    AGENT = "agent"


class TextPart(Struct, frozen=True, kw_only=True):
    """Plain text. ``left_out`` counts the characters that followed and were not kept (``event.bounded``)."""

    text: str
    media_type: str | None = None
    metadata: JsonObject = {}
    left_out: int = 0


class DataPart(Struct, frozen=True, kw_only=True):
    """Structured JSON. Extension payloads name themselves in ``media_type``."""

    data: Any
    media_type: str | None = None
    metadata: JsonObject = {}


class FilePart(Struct, frozen=True, kw_only=True):
    """A file, by content (``raw``, base64 text as on the wire) or by reference (``uri``, never fetched)."""

    raw: str | None = None
    uri: str | None = None
    filename: str | None = None
    media_type: str | None = None
    metadata: JsonObject = {}


if TYPE_CHECKING:
    Part: TypeAlias = TextPart | DataPart | FilePart
else:

    class Part(ABC):  # noqa: B024 - nothing is to be implemented
        """A class and not a union: msgspec reads a union only by a tag, and JSON that we have written has none."""

    for _kind in (TextPart, DataPart, FilePart):
        Part.register(_kind)


class Message(Struct, frozen=True, kw_only=True):
    """One turn of a conversation (A2A 1.0 section 4.1.4)."""

    message_id: str
    role: Role
    parts: tuple[Part, ...]
    context_id: str | None = None
    task_id: str | None = None
    reference_task_ids: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    metadata: JsonObject = {}

    @property
    def text(self) -> str:
        """All text parts, joined with nothing."""
        return join_text(self.parts)


class Artifact(Struct, frozen=True, kw_only=True):
    """A result of a task (A2A 1.0 section 4.1.7)."""

    artifact_id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    extensions: tuple[str, ...] = ()
    metadata: JsonObject = {}

    @property
    def text(self) -> str:
        """All text parts, joined with nothing."""
        return join_text(self.parts)


class TaskStatus(Struct, frozen=True, kw_only=True):
    """State, the message that came with it, and the agent's own time stamp (a hint only)."""

    state: TaskState
    message: Message | None = None
    timestamp: datetime | None = None


class Task(Struct, frozen=True, kw_only=True):
    """One piece of work at one agent, as last seen (A2A 1.0 section 4.1.1)."""

    task_id: str
    context_id: str
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: JsonObject = {}

    @property
    def state(self) -> TaskState:
        """Short for ``status.state``."""
        return self.status.state

    @property
    def terminal(self) -> bool:
        """Whether the task can no longer change."""
        return self.status.state in TERMINAL

    @property
    def text(self) -> str:
        """The text of all artifacts, one artifact a line; empty if there is none."""
        return "\n".join(text for a in self.artifacts if (text := a.text))


def join_text(parts: tuple[Part, ...]) -> str:
    """The text of the text parts, joined with nothing between."""
    if len(parts) == 1:  # as most have: a task may hold thousands of artifacts of one
        part = parts[0]
        return part.text if isinstance(part, TextPart) else ""
    return "".join([p.text for p in parts if isinstance(p, TextPart)])


def left_out(parts: tuple[Part, ...]) -> int:
    """How many characters of the text parts were not kept."""
    count = 0
    for part in parts:
        if isinstance(part, TextPart):
            count += part.left_out
    return count


def said_since(history: Sequence[Message]) -> Iterator[Message]:
    """The agent's messages since the last message of the user, the newest first."""
    return takewhile(lambda message: message.role is Role.AGENT, reversed(history))


def with_text(text: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """What a message says: text first; none stands for itself only where nothing else does."""
    return (TextPart(text=text), *parts) if text or not parts else parts


def elsewhere(
    task_id: str | None, context_id: str | None, *, asked_task: str | None, asked_context: str | None
) -> tuple[str, ...]:
    """In words, where an agent went on in another task or context than the one that was asked for."""
    told = []
    if asked_task and task_id and task_id != asked_task:
        told.append(f"the agent started another task, {task_id}, than {asked_task} that was asked for")
    if asked_context and context_id and context_id != asked_context:
        told.append(f"the agent went on in another context, {context_id}, than {asked_context} that was asked for")
    return tuple(told)
