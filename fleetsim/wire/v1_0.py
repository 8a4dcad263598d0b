"""A2A 1.0: ``SendMessage`` and its family, in ProtoJSON. Every request needs the header ``A2A-Version``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from fleetsim.model.call import (
    Call,
    DeletePush,
    GetPush,
    ListPush,
    Operation,
    SendMessage,
    SetPush,
    TaskPush,
)
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, TaskEvent
from fleetsim.model.task import (
    TERMINAL,
    DataPart,
    FilePart,
    JsonObject,
    Part,
    Task,
    TextPart,
)
from fleetsim.wire import base, reading
from fleetsim.wire.cards import write_card
from fleetsim.wire.json import present
from fleetsim.wire.proto_json import SHARED_PATHS, ProtoJson

_VERSION = re.compile(r"1(\.\d{1,6}){0,2}")


def _read_send(params: JsonObject, operation: Operation) -> SendMessage:
    """A2A 1.0 section 3.2.1. Required members must be there, and required lists not empty (section 5.7)."""
    message = base.read_sent_message(params)
    if not message.message_id:
        raise WireError("message.messageId is missing or empty")
    configuration = base.read_configuration(params)
    push = reading.member(configuration, "taskPushNotificationConfig", "pushNotificationConfig")
    at_once = reading.flag(configuration, "returnImmediately")
    return SendMessage(
        message=message,
        wait=None if at_once is None else not at_once,
        accepted_output_modes=reading.texts(configuration, "acceptedOutputModes"),
        history_length=reading.count(configuration, "historyLength"),
        push=None if push is None else reading.read_push_config(push),
        metadata=reading.metadata(params),
        operation=operation,
    )


def _read_set_push(params: JsonObject) -> SetPush:
    push = reading.read_task_push(params)
    return SetPush(task_id=push.task_id, config=push.config)


def _task(params: JsonObject) -> str:
    return reading.need_identifier(params, "taskId")


class V10(ProtoJson):
    """A2A 1.0."""

    name = "1.0"
    extensions_header = "A2A-Extensions"
    methods: ClassVar = {
        Operation.SEND: ("SendMessage",),
        Operation.STREAM: ("SendStreamingMessage",),
        Operation.GET: ("GetTask",),
        Operation.LIST: ("ListTasks",),
        Operation.CANCEL: ("CancelTask",),
        Operation.SUBSCRIBE: ("SubscribeToTask",),
        Operation.PUSH_SET: ("CreateTaskPushNotificationConfig",),
        Operation.PUSH_GET: ("GetTaskPushNotificationConfig",),
        Operation.PUSH_LIST: ("ListTaskPushNotificationConfigs",),
        Operation.PUSH_DELETE: ("DeleteTaskPushNotificationConfig",),
        Operation.EXTENDED_CARD: ("GetExtendedAgentCard",),
    }
    """A2A 1.0 section 9.4."""
    loses = (
        "a file's address when its content is there too",
        "microseconds of a time stamp",
        "events of a push configuration",
        "final, and artifacts, beside a status update that is streamed",
    )
    question_ends_stream = True
    says_version = True
    takes_tenant = True
    details_errors = True
    card_version = "1.0"
    read_send = staticmethod(_read_send)
    readers: ClassVar = {
        Operation.PUSH_SET: _read_set_push,
        Operation.PUSH_GET: lambda params: GetPush(task_id=_task(params), config_id=reading.identifier(params, "id")),
        Operation.PUSH_LIST: lambda params: ListPush(task_id=_task(params)),
        Operation.PUSH_DELETE: lambda params: DeletePush(
            task_id=_task(params), config_id=reading.identifier(params, "id")
        ),
    }

    def speaks(self, version: str) -> bool:
        """Every 1.x."""
        return version.strip().split(".")[0] == "1"

    def asked_by(self, version_header: str | None) -> bool:
        return version_header is not None and _VERSION.fullmatch(version_header.strip()) is not None

    def headers(self, operation: Operation) -> Mapping[str, str]:
        """As every dialect, with the version (A2A 1.0 section 3.6.1)."""
        return {**super().headers(operation), "A2A-Version": self.card_version}

    def write_send(self, call: SendMessage) -> dict[str, Any]:
        """A2A 1.0 section 3.2.1."""
        push = None if call.push is None else base.write_push_config(call.push, schemes_listed=False)
        return {
            "message": self.write_message(call.message),
            "configuration": {
                "acceptedOutputModes": list(call.accepted_output_modes),
                **present(
                    returnImmediately=None if call.wait is None else not call.wait,
                    historyLength=call.history_length,
                    taskPushNotificationConfig=push,
                ),
            },
            **present(metadata=dict(call.metadata)),
        }

    def write_push_ids(self, task_id: str, config_id: str | None) -> dict[str, Any]:
        """A2A 1.0 section 3.1.8."""
        return {"taskId": task_id, **present(id=config_id)}

    def encode_reply(self, call: Call, reply: base.Reply) -> Any:
        """As every dialect in ProtoJSON; a card is 1.0's alone."""
        return write_card(reply, older=False) if isinstance(reply, AgentCard) else super().encode_reply(call, reply)

    def write_part(self, part: Part) -> dict[str, Any]:
        """A2A 1.0 section 4.1.6. Data names its media type in its metadata too, where 0.3 readers look."""
        match part:
            case TextPart():
                return {"text": part.text, **present(mediaType=part.media_type, metadata=dict(part.metadata))}
            case DataPart():
                return {
                    "data": part.data,
                    **present(mediaType=part.media_type, metadata=base.data_metadata(part)),
                }
            case FilePart():
                content = {"raw": part.raw} if part.raw is not None else {"url": part.uri or ""}
                named = present(filename=part.filename, mediaType=part.media_type, metadata=dict(part.metadata))
                return {**content, **named}

    def write_task_push(self, push: TaskPush) -> dict[str, Any]:
        """A2A 1.0 section 4.3.1: flat, the task beside the address."""
        return {"taskId": push.task_id, **base.write_push_config(push.config, schemes_listed=False)}

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """A webhook body (A2A 1.0 section 4.3.3). A terminal state is sent as the whole task without its history, so
        that one body carries state, text and cost; the section allows any one of the four forms."""
        if isinstance(event, ArtifactUpdate | DirectReply):
            return self.encode_event(event)
        status = base.pushed_status(event, task)
        if isinstance(event, Snapshot) or status.state in TERMINAL:
            return self.encode_event(Snapshot(task=replace(task, status=status, history=())))
        return self.encode_event(event)


class V10Http(V10):
    """A2A 1.0 over HTTP+JSON."""

    name = "1.0+http"
    binding = "HTTP+JSON"
    media_type = "application/a2a+json"
    paths: ClassVar = {
        **SHARED_PATHS,
        Operation.PUSH_GET: ("GET", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
        Operation.PUSH_LIST: ("GET", "/tasks/{taskId}/pushNotificationConfigs"),
        Operation.PUSH_DELETE: ("DELETE", "/tasks/{taskId}/pushNotificationConfigs/{id}"),
        Operation.EXTENDED_CARD: ("GET", "/extendedAgentCard"),
    }
    """A2A 1.0 section 11.3."""
