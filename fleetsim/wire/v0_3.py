"""A2A 0.3: ``message/send`` and its family, objects told apart by ``kind``. The seeds' wire.

Also takes the older names that peers of 0.2 and selectools still send. 0.2.x is read and written as 0.3.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    JsonObject,
    Message,
    Task,
    TaskStatus,
)
from fleetsim.wire import base, fields
from fleetsim.wire.cards import write_card
from fleetsim.wire.parts import write_tagged_part
from fleetsim.wire.pushconfig import read_push_config, write_push_config
from fleetsim.wire.reading import Reply

LOSES: tuple[str, ...] = (
    "operation list: 0.3 has none over JSON-RPC",
    "media type of a text part",
    "a file's address when its content is there too",
    "microseconds of a time stamp",
    "events of a push configuration, and all its schemes but one",
    "artifacts beside a status update that is streamed",
)
"""What a value may have that 0.3 cannot carry."""

METHODS: Mapping[Operation, tuple[str, ...]] = {
    Operation.SEND: ("message/send", "tasks/send"),
    Operation.STREAM: ("message/stream", "message/sendStream"),
    Operation.GET: ("tasks/get",),
    Operation.CANCEL: ("tasks/cancel",),
    Operation.SUBSCRIBE: ("tasks/resubscribe",),
    Operation.PUSH_SET: ("tasks/pushNotificationConfig/set", "tasks/pushNotification/set"),
    Operation.PUSH_GET: ("tasks/pushNotificationConfig/get", "tasks/pushNotification/get"),
    Operation.PUSH_LIST: ("tasks/pushNotificationConfig/list",),
    Operation.PUSH_DELETE: ("tasks/pushNotificationConfig/delete",),
    Operation.EXTENDED_CARD: ("agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"),
}
"""A2A 0.3.0 section 3.5.6; the second names are interop.md section 5's and the seed guide's."""


def write_message(message: Message) -> dict[str, Any]:
    """A2A 0.3.0 section 6.4."""
    return {
        "kind": "message",
        "messageId": message.message_id,
        "role": message.role.value,
        "parts": [write_tagged_part(part, "kind") for part in message.parts],
        **fields.present(
            contextId=message.context_id,
            taskId=message.task_id,
            referenceTaskIds=list(message.reference_task_ids),
            extensions=list(message.extensions),
            metadata=dict(message.metadata),
        ),
    }


def write_artifact(artifact: Artifact) -> dict[str, Any]:
    """A2A 0.3.0 section 6.7."""
    return {
        "artifactId": artifact.artifact_id,
        "parts": [write_tagged_part(part, "kind") for part in artifact.parts],
        **fields.present(
            name=artifact.name,
            description=artifact.description,
            extensions=list(artifact.extensions),
            metadata=dict(artifact.metadata),
        ),
    }


def write_status(status: TaskStatus) -> dict[str, Any]:
    """A2A 0.3.0 section 6.2."""
    return {
        "state": status.state.value,
        **fields.present(
            message=write_message(status.message) if status.message else None,
            timestamp=fields.write_time(status.timestamp) if status.timestamp else None,
        ),
    }


def write_task(task: Task) -> dict[str, Any]:
    """A2A 0.3.0 section 6.1."""
    return {
        "kind": "task",
        "id": task.task_id,
        "contextId": task.context_id,
        "status": write_status(task.status),
        **fields.present(
            artifacts=[write_artifact(artifact) for artifact in task.artifacts],
            history=[write_message(message) for message in task.history],
            metadata=dict(task.metadata),
        ),
    }


def write_task_push(push: TaskPush) -> dict[str, Any]:
    """A2A 0.3.0 section 6.10."""
    config = write_push_config(push.config, schemes_listed=True)
    return {"taskId": push.task_id, "pushNotificationConfig": config}


def _final(update: StatusUpdate) -> bool:
    """A 0.3 stream ends on terminal and on interrupted states (DESIGN section 4)."""
    return update.final or update.status.state in TERMINAL | INTERRUPTED


def _params(call: Call) -> dict[str, Any]:
    match call:
        case SendMessage():
            return _write_send(call)
        case GetTask():
            return {"id": call.task_id, **fields.present(historyLength=call.history_length)}
        case CancelTask():
            return {"id": call.task_id, **fields.present(metadata=dict(call.metadata))}
        case SubscribeToTask() | ListPush():
            return {"id": call.task_id}
        case SetPush():
            return write_task_push(TaskPush(task_id=call.task_id, config=call.config))
        case GetPush() | DeletePush():
            return {"id": call.task_id, **fields.present(pushNotificationConfigId=call.config_id)}
        case ListTasks() | GetExtendedCard():
            return {}


def _write_send(call: SendMessage) -> dict[str, Any]:
    """The context stands beside the message too, where the seed has it ("Request shape"): its agent reads it nowhere
    else, and 0.3's own members are in the message."""
    configuration = {
        "acceptedOutputModes": list(call.accepted_output_modes),
        **fields.present(
            blocking=call.wait,
            historyLength=call.history_length,
            pushNotificationConfig=_write_inline(call.push),
        ),
    }
    return {
        "message": write_message(call.message),
        **fields.present(contextId=call.message.context_id),
        "configuration": configuration,
        **fields.present(metadata=dict(call.metadata)),
    }


def _write_inline(push: PushConfig | None) -> dict[str, Any] | None:
    return None if push is None else write_push_config(push, schemes_listed=True)


def _read_send(params: JsonObject, *, streaming: bool) -> SendMessage:
    configuration = base.read_configuration(params)
    push = fields.member(configuration, "pushNotificationConfig", "pushNotification")
    return SendMessage(
        message=base.read_sent_message(params, beside=True),
        wait=fields.flag(configuration, "blocking"),
        accepted_output_modes=fields.texts(configuration, "acceptedOutputModes"),
        history_length=base.history_length(configuration),
        push=None if push is None else read_push_config(push),
        metadata=fields.metadata(params),
        streaming=streaming,
    )


DECODERS: Mapping[Operation, base.Decoder] = {
    Operation.SEND: lambda params: _read_send(params, streaming=False),
    Operation.STREAM: lambda params: _read_send(params, streaming=True),
    Operation.GET: base.read_get,
    Operation.CANCEL: base.read_cancel,
    Operation.SUBSCRIBE: base.read_subscribe,
    Operation.PUSH_SET: base.read_set_push,
    Operation.PUSH_GET: base.read_get_push,
    Operation.PUSH_LIST: base.read_list_push,
    Operation.PUSH_DELETE: base.read_delete_push,
    Operation.EXTENDED_CARD: lambda params: GetExtendedCard(),
}


class V03(base.DialectBase):
    """A2A 0.3."""

    name = "0.3"
    extensions_header = "X-A2A-Extensions"
    methods = METHODS
    loses = LOSES
    rejoins = False
    decoders = DECODERS

    def encode_call(self, call: Call) -> tuple[str, dict[str, Any]]:
        """Method name and parameters. Raises UnsupportedOperation."""
        return self.method(operation_of(call)), _params(call)

    def encode_reply(self, call: Call, reply: Reply) -> Any:
        """The ``result`` of an answer to ``call``."""
        match reply:
            case Task():
                return write_task(reply)
            case Message():
                return write_message(reply)
            case TaskPush():
                return write_task_push(reply)
            case tuple():
                return [write_task_push(push) for push in reply]
            case AgentCard():
                return write_card(reply, current=False)
            case TaskPage():
                return {"tasks": [write_task(task) for task in reply.tasks]}
            case None:
                return None

    def encode_event(self, event: TaskEvent) -> dict[str, Any]:
        """The ``result`` of one streamed answer (A2A 0.3.0 section 7.2)."""
        match event:
            case Snapshot(task=task):
                return write_task(task)
            case DirectReply(message=message):
                return write_message(message)
            case StatusUpdate():
                return {
                    "kind": "status-update",
                    "taskId": event.task_id,
                    "contextId": event.context_id,
                    "status": write_status(event.status),
                    "final": _final(event),
                    **fields.present(metadata=dict(event.metadata)),
                }
            case ArtifactUpdate():
                return {
                    "kind": "artifact-update",
                    "taskId": event.task_id,
                    "contextId": event.context_id,
                    "artifact": write_artifact(event.artifact),
                    "append": event.append,
                    "lastChunk": event.last_chunk,
                    **fields.present(metadata=dict(event.metadata)),
                }

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """A webhook body: a status update with its results beside it (seed "Push notifications")."""
        if isinstance(event, ArtifactUpdate | DirectReply):
            return self.encode_event(event)
        status = base.pushed_status(event, task)
        update = StatusUpdate(task_id=task.task_id, context_id=task.context_id, status=status)
        body = self.encode_event(update)
        artifacts = task.artifacts if status.state in TERMINAL else ()
        if artifacts:
            body["artifact"] = {**write_artifact(artifacts[0]), "append": False, "lastChunk": True}
            body["artifacts"] = [write_artifact(artifact) for artifact in artifacts]
        return body
