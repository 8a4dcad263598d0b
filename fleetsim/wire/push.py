"""What a webhook receives: every body in use becomes the same events a stream or poll would bring.

Bodies: a task or update with ``kind`` (0.x SDKs and fleet agents, the latter with ``artifact`` or
``artifacts`` beside the status), the wrapped events of 1.0, and the flat form of 0.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.wire import fields
from fleetsim.wire.protojson import camel_case
from fleetsim.wire.pushconfig import read_push_config
from fleetsim.wire.reading import read_events, read_status_update

__all__ = ["push_task_id", "read_push_body", "read_push_config"]

_OLDER_MARKS = frozenset({"kind", "eventType", "status", "artifact", "parts"})
"""Members that a body of 0.x has and the wrapping object of 1.0 has not; only the latter is ProtoJSON."""


def read_push_body(value: Any) -> tuple[TaskEvent, ...]:
    """The events of one webhook body, in order; at least one. Raises WireError."""
    obj = fields.mapping(value, "webhook body")
    if "jsonrpc" in obj and obj.get("result") is not None:
        obj = fields.mapping(obj["result"], "webhook body")
    if not _OLDER_MARKS & obj.keys():
        obj = fields.mapping(camel_case(obj), "webhook body")
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
