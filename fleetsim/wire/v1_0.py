"""A2A 1.0: ``SendMessage`` and its family, objects told apart by the member that holds them.

Follows ProtoJSON: camelCase (snake_case is read too), enums by their full names, one wrapping member per event and
per answer to a message. Every request needs the header ``A2A-Version``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from fleetsim.model.call import (
    Call,
    DeletePush,
    GetExtendedCard,
    GetPush,
    ListPush,
    ListTasks,
    Operation,
    SendMessage,
    SetPush,
    TaskPage,
    TaskPush,
)
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import InvalidParams, WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import (
    TERMINAL,
    DataPart,
    FilePart,
    JsonObject,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TextPart,
)
from fleetsim.wire import base, reading
from fleetsim.wire.cards import write_card
from fleetsim.wire.json import present

PAGE_SIZE_MAX = 100
"""Most tasks on one page (A2A 1.0 section 3.1.4)."""


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


def _read_list(params: JsonObject) -> ListTasks:
    """A2A 1.0 section 3.1.4."""
    state = None if params.get("status") is None else reading.read_state(params["status"])
    if state is TaskState.UNKNOWN and params["status"] != "TASK_STATE_UNSPECIFIED":
        raise WireError("status must be one of the task states")
    after = params.get("statusTimestampAfter")
    updated_after = reading.read_time(after)
    if after is not None and updated_after is None:
        raise WireError("statusTimestampAfter must be an ISO 8601 time")
    return ListTasks(
        context_id=reading.identifier(params, "contextId"),
        state=None if state is TaskState.UNKNOWN else state,
        page_size=reading.count(params, "pageSize", low=1, high=PAGE_SIZE_MAX),
        page_token=reading.text(params, "pageToken", chars_max=reading.ID_CHARS_MAX) or None,
        history_length=reading.count(params, "historyLength"),
        include_artifacts=reading.flag(params, "includeArtifacts") or False,
        updated_after=updated_after,
    )


def _read_set_push(params: JsonObject) -> SetPush:
    push = reading.read_task_push(params)
    return SetPush(task_id=push.task_id, config=push.config)


def _task(params: JsonObject) -> str:
    return reading.need_identifier(params, "taskId")


class V10(base.Dialect):
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
    decoders: ClassVar = {
        Operation.SEND: lambda params: _read_send(params, Operation.SEND),
        Operation.STREAM: lambda params: _read_send(params, Operation.STREAM),
        Operation.GET: base.read_get,
        Operation.LIST: _read_list,
        Operation.CANCEL: base.read_cancel,
        Operation.SUBSCRIBE: base.read_subscribe,
        Operation.PUSH_SET: _read_set_push,
        Operation.PUSH_GET: lambda params: GetPush(task_id=_task(params), config_id=reading.identifier(params, "id")),
        Operation.PUSH_LIST: lambda params: ListPush(task_id=_task(params)),
        Operation.PUSH_DELETE: lambda params: DeletePush(
            task_id=_task(params), config_id=reading.identifier(params, "id")
        ),
        Operation.EXTENDED_CARD: lambda params: GetExtendedCard(),
    }

    def speaks(self, version: str) -> bool:
        """Every 1.x."""
        return version.strip().split(".")[0] == "1"

    def asked_by(self, version_header: str | None) -> bool:
        return version_header is not None and _VERSION.fullmatch(version_header.strip()) is not None

    def headers(self, operation: Operation) -> Mapping[str, str]:
        """As every dialect, with the version (A2A 1.0 section 3.6.1)."""
        return {**super().headers(operation), "A2A-Version": self.name}

    def decode_call(self, method: str, params: JsonObject) -> Call:
        """As every dialect, in either spelling of ProtoJSON. Raises MethodNotFound, InvalidParams."""
        try:
            params = reading.camel_case(params)
        except WireError as error:
            raise InvalidParams(f"{InvalidParams.title}: {error}") from None
        return super().decode_call(method, params)

    def decode_reply(self, operation: Operation, result: Any) -> base.Reply:
        """As every dialect, in either spelling. Raises WireError."""
        return super().decode_reply(operation, reading.camel_case(result))

    def decode_event(self, value: Any) -> TaskEvent:
        """As every dialect, in either spelling. Raises WireError."""
        return super().decode_event(reading.camel_case(value))

    def write_params(self, call: Call) -> dict[str, Any]:
        if not isinstance(call, ListTasks):
            return super().write_params(call)
        return {
            **present(
                contextId=call.context_id,
                status=None if call.state is None else self.write_state(call.state),
                pageSize=call.page_size,
                pageToken=call.page_token,
                historyLength=call.history_length,
                statusTimestampAfter=base.write_time(call.updated_after) if call.updated_after else None,
            ),
            "includeArtifacts": call.include_artifacts,
        }

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
        """The ``result`` of an answer to ``call``; the answer to a message is wrapped, all others are bare."""
        match reply:
            case Task() if isinstance(call, SendMessage):
                return {"task": self.write_task(reply)}
            case Message():
                return {"message": self.write_message(reply)}
            case tuple():
                return {"configs": [self.write_task_push(push) for push in reply], "nextPageToken": ""}
            case AgentCard():
                return write_card(reply, older=False)
            case TaskPage():
                return {
                    "tasks": [self.write_task(task) for task in reply.tasks],
                    "nextPageToken": reply.next_page_token,
                    "pageSize": reply.page_size,
                    "totalSize": reply.total_size,
                }
        return super().encode_reply(call, reply)

    def encode_event(self, event: TaskEvent) -> dict[str, Any]:
        """The ``result`` of one streamed answer (A2A 1.0 section 3.2.3)."""
        written = super().encode_event(event)
        match event:
            case Snapshot():
                return {"task": written}
            case DirectReply():
                return {"message": written}
            case StatusUpdate():
                return {"statusUpdate": written}
            case ArtifactUpdate():
                return {"artifactUpdate": written}

    def write_state(self, state: TaskState) -> str:
        """A2A 1.0 section 4.1.3."""
        return "TASK_STATE_UNSPECIFIED" if state is TaskState.UNKNOWN else f"TASK_STATE_{state.name}"

    def write_role(self, role: Role) -> str:
        """A2A 1.0 section 4.1.5."""
        return f"ROLE_{role.name}"

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
        """A webhook body (A2A 1.0 section 4.3.3).

        A terminal state is sent as the whole task without its history, so that one body carries state,
        text and cost; the section allows any one of the four forms.
        """
        if isinstance(event, ArtifactUpdate | DirectReply):
            return self.encode_event(event)
        status = base.pushed_status(event, task)
        if isinstance(event, Snapshot) or status.state in TERMINAL:
            return self.encode_event(Snapshot(task=replace(task, status=status, history=())))
        return self.encode_event(event)
