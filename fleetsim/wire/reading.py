"""Answers, events and webhook bodies of any peer: parts by their members, events by wrapping key, ``kind`` or shape.

Real peers mix dialects (interop.md sections 5 to 7), so every dialect reads with the same eyes; only
writing differs. Everything here raises WireError and nothing else. File content stays base64 text and is never decoded
or fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from fleetsim.model.call import Operation, TaskPage, TaskPush
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import (
    Artifact,
    DataPart,
    FilePart,
    JsonObject,
    Message,
    Part,
    Role,
    Task,
    TaskStatus,
    TextPart,
)
from fleetsim.wire import fields
from fleetsim.wire.cards import read_card
from fleetsim.wire.pushconfig import read_task_push

Reply: TypeAlias = Task | Message | TaskPage | TaskPush | tuple[TaskPush, ...] | AgentCard | None
"""What a call is answered with when it is not a stream."""


# -- parts, messages, artifacts ----------------------------------------------------------------------------------

BOXED = "data_part_compat"
"""Metadata of a 0.x data part whose data is no object, which 0.x demands: it stands boxed in ``value``.

The convention of a2a-sdk 1.x, whose 0.3 side reads and writes it.
"""


def read_part(value: Any) -> Part:
    """One part of any dialect. Raises WireError."""
    obj = fields.mapping(value, "part")
    metadata = fields.metadata(obj)
    media_type = fields.text(obj, "mediaType", "mimeType")
    tag = obj.get("kind", obj.get("type"))
    if obj.get("text") is not None or (tag == "text" and "text" not in obj):
        return TextPart(text=fields.text(obj, "text") or "", media_type=media_type, metadata=metadata)
    if obj.get("file") is not None:
        return _read_file(fields.mapping(obj["file"], "file"), media_type, metadata)
    if obj.get("raw") is not None or obj.get("url") is not None:
        return _read_file(obj, media_type, metadata)
    if "data" in obj:
        return _read_data(obj["data"], media_type, metadata)
    raise WireError("part must have text, file, raw, url or data")


def _read_data(data: Any, media_type: str | None, metadata: JsonObject) -> DataPart:
    if metadata.get(BOXED) is True and isinstance(data, Mapping) and data.keys() == {"value"}:
        data = data["value"]
        metadata = {name: value for name, value in metadata.items() if name != BOXED}
    named = metadata.get("mimeType")
    return DataPart(data=data, media_type=media_type or (named if isinstance(named, str) else None), metadata=metadata)


def _read_file(obj: JsonObject, media_type: str | None, metadata: JsonObject) -> FilePart:
    raw = fields.text(obj, "bytes", "raw", "fileWithBytes")
    uri = fields.text(obj, "uri", "url", "fileWithUri", chars_max=None) if raw is None else None
    if raw is None and uri is None:
        raise WireError("file must have bytes or uri")
    return FilePart(
        raw=raw,
        uri=uri,
        filename=fields.text(obj, "name", "filename"),
        media_type=fields.text(obj, "mimeType", "mediaType") or media_type,
        metadata=metadata,
    )


def read_parts(obj: JsonObject) -> tuple[Part, ...]:
    """The ``parts`` member; absent means none. Raises WireError."""
    return tuple(read_part(value) for value in fields.sequence(obj.get("parts"), "parts"))


def read_message(value: Any, *, asked: bool = False) -> Message:
    """A message of any dialect. Raises WireError.

    ``asked`` is for messages somebody sends us: role and parts must be there. In answers a missing or
    strange role counts as the agent's. A missing id becomes the empty one: 0.1 has none, and older 0.3
    peers leave it out (interop.md section 2).
    """
    obj = fields.mapping(value, "message")
    role = fields.read_role(obj.get("role"))
    if asked and role is None:
        raise WireError("message.role must be user or agent")
    if asked and obj.get("parts") is None:
        raise WireError("message.parts is missing")
    return Message(
        message_id=fields.identifier(obj, "messageId") or "",
        role=role or Role.AGENT,
        parts=read_parts(obj),
        context_id=fields.identifier(obj, "contextId", "sessionId"),
        task_id=fields.identifier(obj, "taskId"),
        reference_task_ids=fields.texts(obj, "referenceTaskIds"),
        extensions=fields.texts(obj, "extensions"),
        metadata=fields.metadata(obj),
    )


def read_artifact(value: Any, position: int = 0) -> Artifact:
    """An artifact of any dialect; one without an id is named by its index or position. Raises WireError."""
    obj = fields.mapping(value, "artifact")
    index = fields.count(obj, "index")
    return Artifact(
        artifact_id=fields.identifier(obj, "artifactId") or f"artifact-{position if index is None else index}",
        parts=read_parts(obj),
        name=fields.text(obj, "name"),
        description=fields.text(obj, "description"),
        extensions=fields.texts(obj, "extensions"),
        metadata=fields.metadata(obj),
    )


def read_artifacts(obj: JsonObject) -> tuple[Artifact, ...]:
    """The ``artifacts`` list, and a lone ``artifact`` the list does not hold. Raises WireError."""
    listed = fields.sequence(obj.get("artifacts"), "artifacts")
    found = tuple(read_artifact(value, at) for at, value in enumerate(listed))
    if obj.get("artifact") is not None:
        lone = read_artifact(obj["artifact"])
        if lone.artifact_id not in {artifact.artifact_id for artifact in found}:
            found = (*found, lone)
    return found


# -- tasks and events ---------------------------------------------------------------------------------------------


def read_status(value: Any) -> TaskStatus:
    """A status object, or a bare state as the simplest webhooks send it. Raises WireError."""
    if isinstance(value, str):
        return TaskStatus(state=fields.read_state(value))
    obj = fields.mapping(value, "status")
    message = obj.get("message")
    return TaskStatus(
        state=fields.read_state(obj.get("state")),
        message=None if message is None else read_message(message),
        timestamp=fields.read_time(obj.get("timestamp")),
    )


def read_task(value: Any) -> Task:
    """A task, bare or wrapped. Raises WireError."""
    obj = fields.mapping(value, "task")
    if obj.get("task") is not None and "status" not in obj:
        obj = fields.mapping(obj["task"], "task")
    task_id = fields.need_identifier(obj, "id", "taskId")
    context_id = fields.identifier(obj, "contextId", "sessionId") or ""
    status = read_status(obj.get("status"))
    if status.message is None and obj.get("message") is not None:  # beside the status: the seeds' ``result.message``
        status = replace(status, message=read_message(obj["message"]))
    artifacts = read_artifacts(obj)
    history = []
    for value in fields.sequence(obj.get("history"), "history"):
        entry = fields.mapping(value, "history entry")
        # One of the 0.1 documents keeps statuses here, of which the messages are kept.
        said = entry.get("message") if "state" in entry else entry
        if said is not None:
            history.append(read_message(said))
    return Task(
        task_id=task_id,
        context_id=context_id,
        status=status,
        artifacts=artifacts,
        history=tuple(history),
        metadata=fields.metadata(obj),
    )


def read_snapshot(value: Any) -> Snapshot:
    """A whole task as an event. Raises WireError."""
    return Snapshot(task=read_task(value))


def read_direct_reply(value: Any) -> DirectReply:
    """A message as an event. Raises WireError."""
    return DirectReply(message=read_message(value))


def read_status_update(value: Any) -> StatusUpdate:
    """A status update of any dialect, with the artifacts a fleet webhook adds. Raises WireError."""
    obj = fields.mapping(value, "status update")
    return StatusUpdate(
        task_id=fields.need_identifier(obj, "taskId", "id"),
        context_id=fields.identifier(obj, "contextId", "sessionId") or "",
        status=read_status(obj.get("status")),
        final=fields.flag(obj, "final") or False,
        artifacts=read_artifacts(obj),
        metadata=fields.metadata(obj),
    )


def read_artifact_update(value: Any) -> ArtifactUpdate:
    """An artifact update of any dialect; 0.1 keeps the two flags inside the artifact. Raises WireError."""
    obj = fields.mapping(value, "artifact update")
    inner = fields.mapping(obj.get("artifact"), "artifact")
    return ArtifactUpdate(
        task_id=fields.need_identifier(obj, "taskId", "id"),
        context_id=fields.identifier(obj, "contextId", "sessionId") or "",
        artifact=read_artifact(inner),
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


# -- webhook bodies -----------------------------------------------------------------------------------------------
# A task or update with ``kind`` (0.x SDKs and fleet agents, the latter with ``artifact`` or ``artifacts`` beside the
# status), the wrapped events of 1.0, and the flat form of 0.1 become the events a stream or poll would bring.

_OLDER_MARKS = frozenset({"kind", "eventType", "status", "artifact", "parts"})
"""Members that a body of 0.x has and the wrapping object of 1.0 has not; only the latter is ProtoJSON."""


def read_push_body(value: Any) -> tuple[TaskEvent, ...]:
    """The events of one webhook body, in order; at least one. Raises WireError."""
    obj = fields.mapping(value, "webhook body")
    if "jsonrpc" in obj and obj.get("result") is not None:
        obj = fields.mapping(obj["result"], "webhook body")
    if not _OLDER_MARKS & obj.keys():
        obj = fields.mapping(fields.camel_case(obj), "webhook body")
    if obj.get("eventType") is not None and obj.get("status") is not None:
        update = read_status_update(obj)
        at = update.status.timestamp or fields.read_time(obj.get("timestamp"))
        lone = obj["eventType"] == "artifact" and obj.get("artifacts") is None
        return (replace(update, status=replace(update.status, timestamp=at), lone=lone),)
    return read_events(obj)


def push_task_id(event: TaskEvent) -> str:
    """The task an event speaks of; empty for a message outside any task."""
    match event:
        case Snapshot(task=task):
            return task.task_id
        case StatusUpdate() | ArtifactUpdate():
            return event.task_id
        case DirectReply(message=message):
            return message.task_id or ""


# -- replies ------------------------------------------------------------------------------------------------------


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
