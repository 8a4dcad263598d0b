"""The operations of A2A, and one frozen value per call and reply, independent of a dialect."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, TypeAlias

from msgspec import Struct

from fleetsim.model.task import JsonObject, Message, Task, TaskState


class Operation(StrEnum):
    """The operations of an agent (A2A 1.0 section 3.1)."""

    SEND = "send"
    STREAM = "stream"
    GET = "get"
    LIST = "list"
    CANCEL = "cancel"
    SUBSCRIBE = "subscribe"
    PUSH_SET = "push-set"
    PUSH_GET = "push-get"
    PUSH_LIST = "push-list"
    PUSH_DELETE = "push-delete"
    EXTENDED_CARD = "extended-card"


STREAMING = frozenset({Operation.STREAM, Operation.SUBSCRIBE})
"""Operations answered by a stream of events."""


class PushConfig(Struct, frozen=True, kw_only=True):
    """Where and how to deliver updates of a task.

    ``token`` is the secret in either shape (seed "Token parsing"). ``scheme`` and ``credentials`` keep the
    structured form for callers who need the exact scheme. Only the 0.1 dialect has ``events``.
    """

    url: str
    config_id: str | None = None
    token: str | None = None
    scheme: str | None = None
    credentials: str | None = None
    events: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """Without its secrets."""
        return f"PushConfig(url={self.url!r}, config_id={self.config_id!r}, scheme={self.scheme!r})"


class SendMessage(Struct, frozen=True, kw_only=True):
    """Send a message, or send it and stream, as ``operation`` says.

    ``wait`` false asks for an immediate reply; None means the agent's default.
    ``task_id`` is the client-chosen id of dialect 0.1; other dialects carry it inside the message.
    """

    message: Message
    wait: bool | None = False
    accepted_output_modes: tuple[str, ...] = ()
    history_length: int | None = None
    push: PushConfig | None = None
    task_id: str | None = None
    metadata: JsonObject = {}
    operation: Operation = Operation.SEND


class GetTask(Struct, frozen=True, kw_only=True):
    """Read one task. ``history_length`` None means the agent's default (A2A 1.0 section 3.2.4)."""

    operation: ClassVar[Operation] = Operation.GET

    task_id: str
    history_length: int | None = None


class ListTasks(Struct, frozen=True, kw_only=True):
    """Page through tasks (1.0 only)."""

    operation: ClassVar[Operation] = Operation.LIST

    context_id: str | None = None
    state: TaskState | None = None
    page_size: int | None = None
    page_token: str | None = None
    history_length: int | None = None
    include_artifacts: bool = False
    updated_after: datetime | None = None


class CancelTask(Struct, frozen=True, kw_only=True):
    """Ask the agent to stop a task."""

    operation: ClassVar[Operation] = Operation.CANCEL

    task_id: str
    metadata: JsonObject = {}


class SubscribeToTask(Struct, frozen=True, kw_only=True):
    """Join the stream of a running task."""

    operation: ClassVar[Operation] = Operation.SUBSCRIBE

    task_id: str


class SetPush(Struct, frozen=True, kw_only=True):
    """Register a webhook."""

    operation: ClassVar[Operation] = Operation.PUSH_SET

    task_id: str
    config: PushConfig


class GetPush(Struct, frozen=True, kw_only=True):
    """Read one webhook; None means the only or first one."""

    operation: ClassVar[Operation] = Operation.PUSH_GET

    task_id: str
    config_id: str | None = None


class ListPush(Struct, frozen=True, kw_only=True):
    """Read all webhooks of a task."""

    operation: ClassVar[Operation] = Operation.PUSH_LIST

    task_id: str


class DeletePush(Struct, frozen=True, kw_only=True):
    """Remove one webhook; None means the only one."""

    operation: ClassVar[Operation] = Operation.PUSH_DELETE

    task_id: str
    config_id: str | None = None


class GetExtendedCard(Struct, frozen=True, kw_only=True):
    """Read the card that only authenticated callers see."""

    operation: ClassVar[Operation] = Operation.EXTENDED_CARD


Call: TypeAlias = (
    SendMessage
    | GetTask
    | ListTasks
    | CancelTask
    | SubscribeToTask
    | SetPush
    | GetPush
    | ListPush
    | DeletePush
    | GetExtendedCard
)


class TaskPush(Struct, frozen=True, kw_only=True):
    """A webhook as an agent reports it."""

    task_id: str
    config: PushConfig


class TaskPage(Struct, frozen=True, kw_only=True):
    """One page of tasks, newest first (A2A 1.0 section 3.1.4)."""

    tasks: tuple[Task, ...]
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0
