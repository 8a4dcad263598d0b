"""Legacy A2A 0.1: ``tasks/send``, ``tasks/sendSubscribe`` and ``tasks/pushNotification/*``. The caller names task and
session; parts have a ``type``; streamed answers have an SSE event name. Source: the two almanac seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from fleetsim.model.call import Call, GetTask, Operation, PushConfig, SendMessage, SetPush, TaskPush
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import TERMINAL, JsonObject, Message, Task, TaskState, TaskStatus
from fleetsim.wire import base, reading
from fleetsim.wire.json import present

_STATES = {TaskState.REJECTED: "failed", TaskState.AUTH_REQUIRED: "input-required"}


def _past(task: Task) -> list[TaskStatus]:
    """The statuses a task has had; none where nobody kept them."""
    statuses = task.metadata.get(reading.TRANSITIONS)
    if not isinstance(statuses, list | tuple) or not all(isinstance(item, Mapping) for item in statuses):
        return []
    return [
        TaskStatus(
            state=reading.read_state(item["state"]) if isinstance(item.get("state"), str) else TaskState.UNKNOWN,
            timestamp=reading.read_time(item.get("timestamp")),
        )
        for item in statuses
    ]


def _write_config(config: PushConfig) -> dict[str, Any]:
    events = None if config.events is None else list(config.events)
    written = {**base.write_push_config(config, schemes_listed=True), **present(events=events)}
    written.pop("id", None)
    return written


def _read_send(params: JsonObject, operation: Operation) -> SendMessage:
    push = reading.member(params, "pushNotification", "pushNotificationConfig")
    return SendMessage(
        message=base.read_sent_message(params, beside=True),
        wait=False,
        accepted_output_modes=reading.texts(params, "acceptedOutputModes"),
        history_length=reading.count(params, "historyLength"),
        push=None if push is None else reading.read_push_config(push),
        task_id=reading.identifier(params, "id"),
        metadata=reading.metadata(params),
        operation=operation,
    )


def _read_set_push(params: JsonObject) -> SetPush:
    """One configuration per task, nested or flat; in the flat form ``id`` is the task's."""
    config = replace(reading.read_push_config(reading.nested_config(params)), config_id=None)
    return SetPush(task_id=reading.need_identifier(params, "id", "taskId"), config=config)


class V01(base.Dialect):
    """Legacy A2A 0.1."""

    name = "0.1"
    methods: ClassVar = {
        Operation.SEND: ("tasks/send",),
        Operation.STREAM: ("tasks/sendSubscribe",),
        Operation.GET: ("tasks/get",),
        Operation.CANCEL: ("tasks/cancel",),
        Operation.SUBSCRIBE: ("tasks/resubscribe",),
        Operation.PUSH_SET: ("tasks/pushNotification/set",),
        Operation.PUSH_GET: ("tasks/pushNotification/get",),
    }
    """Almanac seeds, steps 1 to 5; ``tasks/resubscribe`` came to 0.1 with its last drafts."""
    loses = (
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
    tag = "type"
    guessed = False
    caller_names_task = True
    webhooks_by_https = True
    card_version = "0.1.0"
    own_codes = frozenset({-32003, -32004})  # out of resources, webhook without TLS
    read_send = staticmethod(_read_send)
    readers: ClassVar = {Operation.PUSH_SET: _read_set_push}

    def claims(self, method: str, params: JsonObject) -> bool:
        """Decide by the shape alone, since 0.3 has methods of the same names.

        ``tasks/get``, ``tasks/cancel`` and ``tasks/resubscribe`` count as 0.3: the agent replies in the task's dialect.
        """
        if method == "tasks/send":
            message = params.get("message")
            listed = message.get("parts") if isinstance(message, Mapping) else None
            typed = isinstance(listed, list) and any(isinstance(part, Mapping) and "type" in part for part in listed)
            return typed or params.get("id") is not None
        return method.startswith("tasks/pushNotification/") and params.get("taskId") is None

    def write_send(self, call: SendMessage) -> dict[str, Any]:
        """A task without an id gets the message's id, because 0.1 requires one."""
        message = call.message
        return {
            "id": call.task_id or message.task_id or message.message_id,
            **present(sessionId=self.session(call) or None),
            "message": self.write_message(message),
            "acceptedOutputModes": list(call.accepted_output_modes),
            **present(
                pushNotification=None if call.push is None else _write_config(call.push),
                historyLength=call.history_length,
                metadata=dict(call.metadata),
            ),
        }

    def session(self, call: Call) -> str:
        """The message's own id names a new session. A task that the agent has is in one already."""
        if not isinstance(call, SendMessage):
            return ""
        return call.message.context_id or ("" if call.message.task_id else call.message.message_id)

    def write_push_ids(self, task_id: str, config_id: str | None) -> dict[str, Any]:
        """A task has one webhook (almanac seeds, step 5.1)."""
        return {"id": task_id}

    def write_task_push(self, push: TaskPush) -> dict[str, Any]:
        """Almanac seeds, step 5.1."""
        return {"id": push.task_id, "pushNotificationConfig": _write_config(push.config)}

    def encode_reply(self, call: Call, reply: base.Reply) -> Any:
        """The ``result`` of an answer to ``call``; a message becomes a task that is done."""
        if isinstance(reply, Task):
            return self._write_task(reply, call.history_length if isinstance(call, GetTask | SendMessage) else None)
        if isinstance(reply, Message):
            named = call.task_id if isinstance(call, SendMessage) else None
            done = TaskStatus(state=TaskState.COMPLETED, message=reply)
            task_id = named or reply.task_id or reply.message_id
            return self.write_task(Task(task_id=task_id, context_id=reply.context_id or "", status=done))
        return super().encode_reply(call, reply)

    def encode_event(self, event: TaskEvent) -> dict[str, Any]:
        """The ``result`` of one streamed answer (almanac seeds, step 4.1)."""
        match event:
            case Snapshot(task=task):
                return self.write_task(task)
            case DirectReply(message=message):
                task_id, status = (
                    message.task_id or message.message_id,
                    TaskStatus(state=TaskState.COMPLETED, message=message),
                )
            case StatusUpdate():
                task_id, status = event.task_id, event.status
            case ArtifactUpdate():
                artifact = self.write_artifact(event.artifact)
                flags = {"append": event.append, "lastChunk": event.last_chunk}
                return {"id": event.task_id, "artifact": {**artifact, **flags}}
        final = {"final": True} if status.state in TERMINAL else {}
        return {"id": task_id, "status": self.write_status(status), **final}

    def write_state(self, state: TaskState) -> str:
        """Almanac seeds, step 2.1, with the two states they lack mapped."""
        return _STATES.get(state, state.value)

    def write_message(self, message: Message) -> dict[str, Any]:
        """Almanac seeds, step 2.1."""
        return {
            "role": message.role.value,
            "parts": [self.write_part(part) for part in message.parts],
            **present(metadata=dict(message.metadata)),
        }

    def write_task(self, task: Task) -> dict[str, Any]:
        """Almanac seeds, step 2.1."""
        return self._write_task(task, None)

    def _write_task(self, task: Task, history_length: int | None) -> dict[str, Any]:
        """``history`` holds the statuses of an agent that keeps them (2.4), else the messages."""
        statuses = [self.write_status(status) for status in _past(task)]
        history = statuses or [self.write_message(message) for message in task.history]
        if statuses and history_length is not None:
            history = statuses[max(0, len(statuses) - history_length) :]
        metadata = {name: value for name, value in task.metadata.items() if name != reading.TRANSITIONS or not statuses}
        return {
            "id": task.task_id,
            "sessionId": task.context_id,
            "status": self.write_status(task.status),
            **present(
                artifacts=[self.write_artifact(artifact) for artifact in task.artifacts],
                history=history,
                metadata=metadata,
            ),
        }

    def decode_event(self, value: Any) -> TaskEvent:
        """Read one event; ``{id, status}`` alone is an update here, not a task. Raises WireError."""
        if isinstance(value, Mapping) and value.keys() <= {"id", "status", "final"}:
            return reading.read_status_update(value)
        return reading.read_event(value)

    def event_name(self, event: TaskEvent) -> str | None:
        return "artifact" if isinstance(event, ArtifactUpdate) else "status"

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """A webhook body (almanac seeds, step 5.2), with the results beside the status at the end."""
        status = base.pushed_status(event, task)
        body: dict[str, Any] = {"taskId": task.task_id, "eventType": self.event_name(event)}
        body |= {"status": self.write_status(status)}
        if status.timestamp is not None:
            body["timestamp"] = base.write_time(status.timestamp)
        if isinstance(event, ArtifactUpdate):
            body["artifact"] = self.encode_event(event)["artifact"]
        elif status.state in TERMINAL and task.artifacts:
            body["artifact"] = self.write_artifact(task.artifacts[0])
            body["artifacts"] = [self.write_artifact(artifact) for artifact in task.artifacts]
        return body
