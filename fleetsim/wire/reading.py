"""Answers and events of any peer, read by wrapping key, else by ``kind``, else by shape.

Real peers mix dialects (interop.md sections 5 to 7), so every dialect reads with the same eyes; only
writing differs. Everything here raises WireError and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from fleetsim.model.call import Operation, TaskPage, TaskPush
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import JsonObject, Message, Task, TaskStatus
from fleetsim.wire import fields, parts
from fleetsim.wire.cards import read_card
from fleetsim.wire.pushconfig import read_task_push

Reply: TypeAlias = Task | Message | TaskPage | TaskPush | tuple[TaskPush, ...] | AgentCard | None
"""What a call is answered with when it is not a stream."""


def read_status(value: Any) -> TaskStatus:
    """A status object, or a bare state as the simplest webhooks send it. Raises WireError."""
    if isinstance(value, str):
        return TaskStatus(state=fields.read_state(value))
    obj = fields.mapping(value, "status")
    message = obj.get("message")
    return TaskStatus(
        state=fields.read_state(obj.get("state")),
        message=None if message is None else parts.read_message(message),
        timestamp=fields.read_time(obj.get("timestamp")),
    )


def read_task(value: Any) -> Task:
    """A task, bare or wrapped. Raises WireError."""
    obj = fields.mapping(value, "task")
    if obj.get("task") is not None and "status" not in obj:
        obj = fields.mapping(obj["task"], "task")
    return Task(
        task_id=fields.need_identifier(obj, "id", "taskId"),
        context_id=_context(obj),
        status=_task_status(obj),
        artifacts=parts.read_artifacts(obj),
        history=_history(obj),
        metadata=fields.metadata(obj),
    )


def _task_status(obj: JsonObject) -> TaskStatus:
    """The status, with a message that stands beside it (the seeds' ``result.message``) if it has none itself."""
    status = read_status(obj.get("status"))
    if status.message is None and obj.get("message") is not None:
        return replace(status, message=parts.read_message(obj["message"]))
    return status


def _context(obj: JsonObject) -> str:
    return fields.identifier(obj, "contextId", "sessionId") or ""


def _history(obj: JsonObject) -> tuple[Message, ...]:
    """Messages, or the statuses that one of the 0.1 documents keeps here, of which the messages are kept."""
    found = []
    for value in fields.sequence(obj.get("history"), "history"):
        entry = fields.mapping(value, "history entry")
        said = entry.get("message") if "state" in entry else entry
        if said is not None:
            found.append(parts.read_message(said))
    return tuple(found)


def read_snapshot(value: Any) -> Snapshot:
    """A whole task as an event. Raises WireError."""
    return Snapshot(task=read_task(value))


def read_direct_reply(value: Any) -> DirectReply:
    """A message as an event. Raises WireError."""
    return DirectReply(message=parts.read_message(value))


def read_status_update(value: Any) -> StatusUpdate:
    """A status update of any dialect, with the artifacts a fleet webhook adds. Raises WireError."""
    obj = fields.mapping(value, "status update")
    return StatusUpdate(
        task_id=fields.need_identifier(obj, "taskId", "id"),
        context_id=_context(obj),
        status=read_status(obj.get("status")),
        final=fields.flag(obj, "final") or False,
        artifacts=parts.read_artifacts(obj),
        metadata=fields.metadata(obj),
    )


def read_artifact_update(value: Any) -> ArtifactUpdate:
    """An artifact update of any dialect; 0.1 keeps the two flags inside the artifact. Raises WireError."""
    obj = fields.mapping(value, "artifact update")
    inner = fields.mapping(obj.get("artifact"), "artifact")
    return ArtifactUpdate(
        task_id=fields.need_identifier(obj, "taskId", "id"),
        context_id=_context(obj),
        artifact=parts.read_artifact(inner),
        append=fields.flag(obj, "append") or fields.flag(inner, "append") or False,
        last_chunk=fields.flag(obj, "lastChunk") or fields.flag(inner, "lastChunk") or False,
        metadata=fields.metadata(obj),
    )


_Reader: TypeAlias = Callable[[Any], TaskEvent]

_WRAPPERS: tuple[tuple[str, _Reader], ...] = (
    ("task", read_snapshot),
    ("artifactUpdate", read_artifact_update),
    ("statusUpdate", read_status_update),
    ("message", read_direct_reply),
)

_KINDS: dict[str, _Reader] = {
    "task": read_snapshot,
    "status-update": read_status_update,
    "artifact-update": read_artifact_update,
    "message": read_direct_reply,
}


def read_event(value: Any) -> TaskEvent:
    """One event of a stream. Raises WireError."""
    return read_events(value)[0]


def read_events(value: Any) -> tuple[TaskEvent, ...]:
    """Every event of one body, results before the status that ends them. Raises WireError.

    There are several only where a peer wraps several together.
    """
    obj = fields.mapping(value, "event")
    if not {"status", "artifact", "parts"} & obj.keys():
        wrapped = tuple(read(obj[key]) for key, read in _WRAPPERS if obj.get(key) is not None)
        if wrapped:
            return wrapped
    kind = obj.get("kind")
    read = _KINDS.get(kind) if isinstance(kind, str) else None
    return ((read or _by_shape(obj))(obj),)


def _by_shape(obj: JsonObject) -> _Reader:
    if obj.get("status") is not None:
        return read_status_update if obj.get("taskId") is not None or "final" in obj else read_snapshot
    if obj.get("artifact") is not None:
        return read_artifact_update
    if obj.get("parts") is not None:
        return read_direct_reply
    raise WireError("event is no task, status update, artifact update or message")


def read_reply(operation: Operation, result: Any) -> Reply:
    """The result of a call. A stream's operations read as a send does, for peers that answer without a stream.

    Raises WireError.
    """
    match operation:
        case Operation.SEND | Operation.STREAM:
            return _answer(read_event(result))
        case Operation.GET | Operation.CANCEL | Operation.SUBSCRIBE:
            return read_task(result)
        case Operation.LIST:
            return _page(result)
        case Operation.PUSH_SET | Operation.PUSH_GET:
            return read_task_push(result)
        case Operation.PUSH_LIST:
            return _pushes(result)
        case Operation.PUSH_DELETE:
            return None
        case Operation.EXTENDED_CARD:
            return read_card(result)


def _answer(event: TaskEvent) -> Task | Message:
    if isinstance(event, Snapshot):
        return event.task
    if isinstance(event, DirectReply):
        return event.message
    raise WireError("the answer to a message must be a task or a message")


def _page(result: Any) -> TaskPage:
    obj = fields.mapping(result, "task page")
    tasks = tuple(read_task(value) for value in fields.sequence(obj.get("tasks"), "tasks"))
    return TaskPage(
        tasks=tasks,
        next_page_token=fields.text(obj, "nextPageToken") or "",
        page_size=fields.count(obj, "pageSize") or 0,
        total_size=fields.count(obj, "totalSize") or 0,
    )


def _pushes(result: Any) -> tuple[TaskPush, ...]:
    listed = result if isinstance(result, list | tuple) else fields.mapping(result, "push list").get("configs")
    return tuple(read_task_push(value) for value in fields.sequence(listed, "configs"))
