"""Legacy A2A 0.1: ``tasks/send``, ``tasks/sendSubscribe`` and ``tasks/pushNotification/*``.

The caller names the task (``params.id``) and the session; parts are tagged by ``type``; streamed answers
have an SSE event name; there is no answer without a task. Source: the two almanac seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleetsim.model.call import (
    Call,
    CancelTask,
    DeletePush,
    GetExtendedCard,
    GetPush,
    GetTask,
    ListPush,
    ListTasks,
    Operation,
    PushConfig,
    SendMessage,
    SetPush,
    SubscribeToTask,
    TaskPage,
    TaskPush,
    operation_of,
)
from fleetsim.model.card import AgentCard
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import TERMINAL, Artifact, JsonObject, Message, Task, TaskState, TaskStatus
from fleetsim.wire import base, fields, reading
from fleetsim.wire.cards import write_card
from fleetsim.wire.parts import write_tagged_part
from fleetsim.wire.pushconfig import nested_config, read_push_config, write_push_config
from fleetsim.wire.reading import Reply

LOSES: tuple[str, ...] = (
    "operations list, push-list, push-delete and extended-card",
    "states rejected (written as failed) and auth-required (as input-required)",
    "ids, references and extensions of a message; its context is the session, its task the request's",
    "context, metadata and artifacts of an update, and final on one that is not terminal",
    "a message without a task: it is written as a completed task",
    "whether to wait: 0.1 answers at once",
    "media type of a text part",
    "a file's address when its content is there too",
    "microseconds of a time stamp",
    "messages of a history, where the agent keeps the task's past states, which stand there instead",
    "id of a push configuration, and all its schemes but one",
)
"""What a value may have that 0.1 cannot carry."""

METHODS: Mapping[Operation, tuple[str, ...]] = {
    Operation.SEND: ("tasks/send",),
    Operation.STREAM: ("tasks/sendSubscribe",),
    Operation.GET: ("tasks/get",),
    Operation.CANCEL: ("tasks/cancel",),
    Operation.SUBSCRIBE: ("tasks/resubscribe",),
    Operation.PUSH_SET: ("tasks/pushNotification/set",),
    Operation.PUSH_GET: ("tasks/pushNotification/get",),
}
"""Almanac seeds, steps 1 to 5; ``tasks/resubscribe`` came to 0.1 with its last drafts."""

_STATES = {TaskState.REJECTED: "failed", TaskState.AUTH_REQUIRED: "input-required"}


def write_message(message: Message) -> dict[str, Any]:
    """Almanac seeds, step 2.1."""
    return {
        "role": message.role.value,
        "parts": [write_tagged_part(part, "type") for part in message.parts],
        **fields.present(metadata=dict(message.metadata)),
    }


def write_artifact(artifact: Artifact) -> dict[str, Any]:
    """Almanac seeds, step 2.1, which leave the shape open: as in 0.3, with ``type`` parts."""
    return {
        "artifactId": artifact.artifact_id,
        "parts": [write_tagged_part(part, "type") for part in artifact.parts],
        **fields.present(
            name=artifact.name,
            description=artifact.description,
            extensions=list(artifact.extensions),
            metadata=dict(artifact.metadata),
        ),
    }


def write_status(status: TaskStatus) -> dict[str, Any]:
    """Almanac seeds, step 2.1, with the two states they lack mapped."""
    return {
        "state": _STATES.get(status.state, status.state.value),
        **fields.present(
            message=write_message(status.message) if status.message else None,
            timestamp=fields.write_time(status.timestamp) if status.timestamp else None,
        ),
    }


def write_task(task: Task, history_length: int | None = None) -> dict[str, Any]:
    """Almanac seeds, step 2.1; ``history`` holds the statuses of an agent that keeps them (2.4), else the messages."""
    statuses = _past(task)
    history = statuses or [write_message(message) for message in task.history]
    if statuses and history_length is not None:
        history = statuses[max(0, len(statuses) - history_length) :]
    return {
        "id": task.task_id,
        "sessionId": task.context_id,
        "status": write_status(task.status),
        **fields.present(
            artifacts=[write_artifact(artifact) for artifact in task.artifacts],
            history=history,
            metadata={
                name: value for name, value in task.metadata.items() if name != fields.TRANSITIONS or not statuses
            },
        ),
    }


def _past(task: Task) -> list[dict[str, Any]]:
    """The statuses a task has had, in 0.1's states; none where nobody kept them."""
    kept = task.metadata.get(fields.TRANSITIONS)
    readable = isinstance(kept, list | tuple) and all(isinstance(item, Mapping) for item in kept)
    past = []
    for item in task.metadata[fields.TRANSITIONS] if readable else ():
        at = fields.read_time(item.get("timestamp"))
        state = fields.read_state(item["state"]) if isinstance(item.get("state"), str) else TaskState.UNKNOWN
        past.append(write_status(TaskStatus(state=state, timestamp=at)))
    return past


def write_config(config: PushConfig) -> dict[str, Any]:
    """Almanac seeds, step 5.1."""
    events = None if config.events is None else list(config.events)
    written = {**write_push_config(config, schemes_listed=True), **fields.present(events=events)}
    written.pop("id", None)
    return written


def write_task_push(push: TaskPush) -> dict[str, Any]:
    """Almanac seeds, step 5.1."""
    return {"id": push.task_id, "pushNotificationConfig": write_config(push.config)}


def _write_status_event(task_id: str, status: TaskStatus) -> dict[str, Any]:
    final = {"final": True} if status.state in TERMINAL else {}
    return {"id": task_id, "status": write_status(status), **final}


def _done(message: Message, call: Call | None = None) -> Task:
    named = call.task_id if isinstance(call, SendMessage) else None
    return Task(
        task_id=named or message.task_id or message.message_id,
        context_id=message.context_id or "",
        status=TaskStatus(state=TaskState.COMPLETED, message=message),
    )


def _params(call: Call) -> dict[str, Any]:
    match call:
        case SendMessage():
            return _write_send(call)
        case GetTask():
            return {"id": call.task_id, **fields.present(historyLength=call.history_length)}
        case CancelTask():
            return {"id": call.task_id, **fields.present(metadata=dict(call.metadata))}
        case SetPush():
            return write_task_push(TaskPush(task_id=call.task_id, config=call.config))
        case SubscribeToTask() | GetPush() | ListPush() | DeletePush():
            return {"id": call.task_id}
        case ListTasks() | GetExtendedCard():
            return {}


def _write_send(call: SendMessage) -> dict[str, Any]:
    """The message's own id names a task that nobody named, since 0.1 demands a name."""
    message = call.message
    return {
        "id": call.task_id or message.task_id or message.message_id,
        **fields.present(sessionId=message.context_id),
        "message": write_message(message),
        "acceptedOutputModes": list(call.accepted_output_modes),
        **fields.present(
            pushNotification=None if call.push is None else write_config(call.push),
            historyLength=call.history_length,
            metadata=dict(call.metadata),
        ),
    }


def _read_send(params: JsonObject, *, streaming: bool) -> SendMessage:
    push = fields.member(params, "pushNotification", "pushNotificationConfig")
    return SendMessage(
        message=base.read_sent_message(params, beside=True),
        wait=False,
        accepted_output_modes=fields.texts(params, "acceptedOutputModes"),
        history_length=base.history_length(params),
        push=None if push is None else read_push_config(push),
        task_id=fields.identifier(params, "id"),
        metadata=fields.metadata(params),
        streaming=streaming,
    )


def _read_set_push(params: JsonObject) -> SetPush:
    """One configuration per task, nested or flat; in the flat form ``id`` is the task's."""
    config = replace(read_push_config(nested_config(params)), config_id=None)
    return SetPush(task_id=fields.need_identifier(params, "id", "taskId"), config=config)


DECODERS: Mapping[Operation, base.Decoder] = {
    Operation.SEND: lambda params: _read_send(params, streaming=False),
    Operation.STREAM: lambda params: _read_send(params, streaming=True),
    Operation.GET: base.read_get,
    Operation.CANCEL: base.read_cancel,
    Operation.SUBSCRIBE: base.read_subscribe,
    Operation.PUSH_SET: _read_set_push,
    Operation.PUSH_GET: base.read_get_push,
}


class V01(base.DialectBase):
    """Legacy A2A 0.1."""

    name = "0.1"
    extensions_header = "X-A2A-Extensions"
    methods = METHODS
    loses = LOSES
    guessed = False
    caller_names_task = True
    decoders = DECODERS

    def encode_call(self, call: Call) -> tuple[str, dict[str, Any]]:
        """Method name and parameters. Raises UnsupportedOperation."""
        return self.method(operation_of(call)), _params(call)

    def encode_reply(self, call: Call, reply: Reply) -> Any:
        """The ``result`` of an answer to ``call``; a message becomes a task that is done."""
        match reply:
            case Task():
                return write_task(reply, call.history_length if isinstance(call, GetTask | SendMessage) else None)
            case Message():
                return write_task(_done(reply, call))
            case TaskPush():
                return write_task_push(reply)
            case tuple():
                return [write_task_push(push) for push in reply]
            case AgentCard():
                return write_card(reply)
            case TaskPage():
                return {"tasks": [write_task(task) for task in reply.tasks]}
            case None:
                return None

    def encode_event(self, event: TaskEvent) -> dict[str, Any]:
        """The ``result`` of one streamed answer (almanac seeds, step 4.1)."""
        match event:
            case Snapshot(task=task):
                return write_task(task)
            case DirectReply(message=message):
                return _write_status_event(message.task_id or message.message_id, _done(message).status)
            case StatusUpdate():
                return _write_status_event(event.task_id, event.status)
            case ArtifactUpdate():
                artifact = {**write_artifact(event.artifact), "append": event.append, "lastChunk": event.last_chunk}
                return {"id": event.task_id, "artifact": artifact}

    def decode_event(self, value: Any) -> TaskEvent:
        """Read one event; ``{id, status}`` alone is an update here, not a task. Raises WireError."""
        if isinstance(value, Mapping) and value.keys() <= {"id", "status", "final"}:
            return reading.read_status_update(value)
        return reading.read_event(value)

    def event_name(self, event: TaskEvent) -> str | None:
        """``artifact`` or ``status``."""
        return "artifact" if isinstance(event, ArtifactUpdate) else "status"

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """A webhook body (almanac seeds, step 5.2), with the results beside the status at the end."""
        status = base.pushed_status(event, task)
        body: dict[str, Any] = {"taskId": task.task_id, "eventType": self.event_name(event)}
        body |= {"status": write_status(status)}
        if status.timestamp is not None:
            body["timestamp"] = fields.write_time(status.timestamp)
        if isinstance(event, ArtifactUpdate):
            body["artifact"] = self.encode_event(event)["artifact"]
        elif status.state in TERMINAL and task.artifacts:
            body["artifact"] = write_artifact(task.artifacts[0])
            body["artifacts"] = [write_artifact(artifact) for artifact in task.artifacts]
        return body
