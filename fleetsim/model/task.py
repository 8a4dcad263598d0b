"""A2A tasks as frozen values, and the table of moves between their states (A2A 1.0 section 4.1, in snake case).

The agent's own tasks follow ``advance``. The caller sees only some states, so ``event.fold`` accepts more moves.
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
"""A decoded JSON object. Treat it as read-only, because packages share it."""


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
"""The final states."""

UNSUCCESSFUL = TERMINAL - {TaskState.COMPLETED}
"""Final states of a task that did not meet its goal. The agent's text is then the reason, not the answer."""

INTERRUPTED = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
"""States in which the agent waits for a person."""

_OPEN = frozenset({TaskState.SUBMITTED, TaskState.WORKING}) | INTERRUPTED

MOVES: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.SUBMITTED: (_OPEN | TERMINAL) - {TaskState.SUBMITTED},
    TaskState.WORKING: INTERRUPTED | TERMINAL,
    TaskState.INPUT_REQUIRED: frozenset({TaskState.WORKING, TaskState.AUTH_REQUIRED}) | TERMINAL,
    TaskState.AUTH_REQUIRED: frozenset({TaskState.WORKING, TaskState.INPUT_REQUIRED}) | TERMINAL,
    **{state: frozenset() for state in TERMINAL},
    TaskState.UNKNOWN: frozenset(TaskState) - {TaskState.UNKNOWN},
}
"""The moves that an agent may make with its own task."""


def advance(old: TaskState, new: TaskState) -> TaskState:
    """Return ``new`` if an agent may move its task from ``old`` to it.

    Raises InvalidMove if ``MOVES`` does not allow it; a terminal state allows no move.
    """
    if new not in MOVES[old]:
        raise InvalidMove(f"a task cannot go from {old} to {new}")
    return new


class Role(StrEnum):
    """The author of a message (A2A 1.0 section 4.1.5)."""

    USER = "user"
    AGENT = "agent"


class TextPart(Struct, frozen=True, kw_only=True):
    """Plain text. ``left_out`` counts the characters after it that were cut (``event.bounded``)."""

    text: str
    media_type: str | None = None
    metadata: JsonObject = {}
    left_out: int = 0


class DataPart(Struct, frozen=True, kw_only=True):
    """Any JSON value. The payload of an extension has the extension's ``media_type``."""

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

    class Part(ABC):  # noqa: B024 - it has no methods to implement
        """A class and not a union: msgspec reads a union only by a tag, and our JSON has none."""

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
        """The text parts, joined without a separator."""
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
        """The text parts, joined without a separator."""
        return join_text(self.parts)


class TaskStatus(Struct, frozen=True, kw_only=True):
    """The state, its message, and the agent's own timestamp, which may be wrong."""

    state: TaskState
    message: Message | None = None
    timestamp: datetime | None = None


class Task(Struct, frozen=True, kw_only=True):
    """One piece of work at one agent, as last received (A2A 1.0 section 4.1.1)."""

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
        """Whether the state is final."""
        return self.status.state in TERMINAL

    @property
    def text(self) -> str:
        """The text of all artifacts, separated by line breaks; empty if there is none."""
        return "\n".join(text for a in self.artifacts if (text := a.text))


def join_text(parts: tuple[Part, ...]) -> str:
    """Join the text parts without a separator."""
    if len(parts) == 1:  # the usual case; a task may hold thousands of artifacts with one part each
        part = parts[0]
        return part.text if isinstance(part, TextPart) else ""
    return "".join([p.text for p in parts if isinstance(p, TextPart)])


def left_out(parts: tuple[Part, ...]) -> int:
    """Count the characters that were cut from the text parts."""
    count = 0
    for part in parts:
        if isinstance(part, TextPart):
            count += part.left_out
    return count


def latest_agent_messages(history: Sequence[Message]) -> Iterator[Message]:
    """Yield the agent's messages since the user's last message, the newest first."""
    return takewhile(lambda message: message.role is Role.AGENT, reversed(history))


def with_text(text: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts of a message: the text first. An empty text becomes a part only if it is alone."""
    return (TextPart(text=text), *parts) if text or not parts else parts


def id_changes(
    task_id: str | None, context_id: str | None, *, asked_task: str | None, asked_context: str | None
) -> tuple[str, ...]:
    """Return a warning for each of task and context if the agent used another one than the request named."""
    warnings = []
    if asked_task and task_id and task_id != asked_task:
        warnings.append(f"the agent started another task, {task_id}, instead of {asked_task}")
    if asked_context and context_id and context_id != asked_context:
        warnings.append(f"the agent continued in another context, {context_id}, instead of {asked_context}")
    return tuple(warnings)
