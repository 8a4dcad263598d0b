"""A2A 0.3: ``message/send`` and its family, objects told apart by ``kind``. The seeds' wire.

Also takes the older names that peers of 0.2 and selectools still send. 0.2.x is read and written as 0.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fleetsim.model.call import Call, Operation, SendMessage, SetPush, TaskPush
from fleetsim.model.card import AgentCard
from fleetsim.model.event import ArtifactUpdate, DirectReply, StatusUpdate, TaskEvent
from fleetsim.model.task import TERMINAL, JsonObject, Message, Part, Task, TaskState
from fleetsim.wire import base, reading
from fleetsim.wire.cards import write_card
from fleetsim.wire.json import present
from fleetsim.wire.proto_json import SHARED_PATHS, ProtoJson


def _read_send(params: JsonObject, operation: Operation) -> SendMessage:
    configuration = base.read_configuration(params)
    push = reading.member(configuration, "pushNotificationConfig", "pushNotification")
    return SendMessage(
        message=base.read_sent_message(params, beside=True),
        wait=reading.flag(configuration, "blocking"),
        accepted_output_modes=reading.texts(configuration, "acceptedOutputModes"),
        history_length=reading.count(configuration, "historyLength"),
        push=None if push is None else reading.read_push_config(push),
        metadata=reading.metadata(params),
        operation=operation,
    )


class V03(base.Dialect):
    """A2A 0.3."""

    name = "0.3"
    methods: ClassVar = {
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
    loses = (
        "operation list: 0.3 has none over JSON-RPC",
        "media type of a text part",
        "a file's address when its content is there too",
        "microseconds of a time stamp",
        "events of a push configuration, and all its schemes but one",
        "artifacts beside a status update that is streamed",
    )
    # a2a-sdk 0.3.26 writes a piece into its task once per reader, so a second reader doubles the text (decision 8).
    rejoins = False
    card_version = "0.3.0"
    read_send = staticmethod(_read_send)
    kinds = says_final = True

    def write_send(self, call: SendMessage) -> dict[str, Any]:
        """The context stands beside the message too, where the seed has it ("Request shape"): its agent reads it
        nowhere else, and 0.3's own members are in the message."""
        push = None if call.push is None else base.write_push_config(call.push, schemes_listed=True)
        return {
            "message": self.write_message(call.message),
            **present(contextId=call.message.context_id),
            "configuration": {
                "acceptedOutputModes": list(call.accepted_output_modes),
                **present(blocking=call.wait, historyLength=call.history_length, pushNotificationConfig=push),
            },
            **present(metadata=dict(call.metadata)),
        }

    def encode_reply(self, call: Call, reply: base.Reply) -> Any:
        """The ``result`` of an answer to ``call``; a card is 0.3's alone."""
        return write_card(reply, current=False) if isinstance(reply, AgentCard) else super().encode_reply(call, reply)

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """A webhook body: a status update with its results beside it (seed "Push notifications")."""
        if isinstance(event, ArtifactUpdate | DirectReply):
            return self.encode_event(event)
        status = base.pushed_status(event, task)
        body = self.encode_event(StatusUpdate(task_id=task.task_id, context_id=task.context_id, status=status))
        artifacts = task.artifacts if status.state in TERMINAL else ()
        if artifacts:
            body["artifact"] = {**self.write_artifact(artifacts[0]), "append": False, "lastChunk": True}
            body["artifacts"] = [self.write_artifact(artifact) for artifact in artifacts]
        return body


_RESOURCE = re.compile(r"tasks/(.+?)(?:/pushNotificationConfigs/.*)?", re.DOTALL)
_PATHS: Mapping[Operation, tuple[str, str]] = {
    **SHARED_PATHS,
    Operation.PUSH_GET: ("GET", "/tasks/{id}/pushNotificationConfigs/{pushNotificationConfigId}"),
    Operation.PUSH_LIST: ("GET", "/tasks/{id}/pushNotificationConfigs"),
    Operation.PUSH_DELETE: ("DELETE", "/tasks/{id}/pushNotificationConfigs/{pushNotificationConfigId}"),
    Operation.EXTENDED_CARD: ("GET", "/card"),
}
"""Below ``/v1`` (A2A 0.3.0 section 3.5.6)."""


class V03Plain(V03):
    """A2A 0.3 over HTTP+JSON with the objects of its JSON-RPC binding, as in a2akit and the seed guide's aliases."""

    name = "0.3+http"
    binding = "HTTP+JSON"
    methods: ClassVar = {**V03.methods, Operation.LIST: ("tasks/list",)}
    paths: ClassVar = _PATHS

    def write_params(self, call: Call) -> dict[str, Any]:
        """A webhook is written flat too: the path has its task already, and a2akit reads nothing else."""
        params = super().write_params(call)
        return {**params["pushNotificationConfig"], **params} if isinstance(call, SetPush) else params


class V03Http(ProtoJson, V03):
    """A2A 0.3 over HTTP+JSON, with the objects of its gRPC binding in ProtoJSON.

    All released SDKs of 0.3 write it so (a2a-sdk 0.3.26, @a2a-js/sdk 0.3.14), and a2a-sdk refuses unknown members.
    These SDKs add ``/v1`` to a card's address. An agent whose address ends in it has the objects of ``V03Plain``.
    """

    name = "0.3+http"
    binding = "HTTP+JSON"
    methods: ClassVar = V03Plain.methods
    paths: ClassVar = {
        operation: ("GET" if operation is Operation.SUBSCRIBE else method, f"/v1{path}")
        for operation, (method, path) in _PATHS.items()
    }
    """a2a-sdk 0.3.26 joins a stream again by GET alone."""
    readers: ClassVar = {
        Operation.PUSH_SET: lambda params: base.read_set_push(
            {**params, **reading.mapping(params.get("config") or {}, "config")}
        ),
    }
    loses = (*V03.loses[1:], "references of a message")
    kinds = False

    plain: ClassVar = V03Plain()

    def at(self, url: str) -> base.Dialect:
        # The SDKs of 0.3 append /v1 themselves, so an address that ends in it is of an agent that they cannot call.
        return self.plain if urlsplit(url).path.rstrip("/").endswith("/v1") else self

    def read_names(self, value: Any) -> Any:
        """As ProtoJSON; a2a-sdk 1.3.0, which writes 0.3 in the names of a2a.proto, calls a message ``request``."""
        read = _as_json_rpc(super().read_names(value))
        if isinstance(read, dict) and isinstance(read.get("request"), Mapping):
            read.setdefault("message", read.pop("request"))
        return read

    def write_params(self, call: Call) -> dict[str, Any]:
        params = super().write_params(call)
        if not isinstance(call, SetPush):
            return params
        config = self.write_task_push(TaskPush(task_id=call.task_id, config=call.config))
        named = present(configId=call.config.config_id)
        return {"taskId": call.task_id, "parent": f"tasks/{call.task_id}", **named, "config": config}

    def write_send(self, call: SendMessage) -> dict[str, Any]:
        params = super().write_send(call)
        params.pop("contextId", None)
        configuration = params["configuration"]
        if (push := configuration.pop("pushNotificationConfig", None)) is not None:
            configuration["pushNotification"] = push
        return params

    def write_state(self, state: TaskState) -> str:
        return "TASK_STATE_CANCELLED" if state is TaskState.CANCELED else super().write_state(state)

    def write_message(self, message: Message) -> dict[str, Any]:
        written = super().write_message(message)
        written.pop("referenceTaskIds", None)
        written["content"] = written.pop("parts")
        return written

    def write_part(self, part: Part) -> dict[str, Any]:
        written = super().write_part(part)
        del written[self.tag]
        if "data" in written:
            written["data"] = {"data": written["data"]}
        if "file" in written:
            written["file"] = {_FILE.get(name, name): item for name, item in written["file"].items()}
        return written

    def write_task_push(self, push: TaskPush) -> dict[str, Any]:
        config = super().write_task_push(push)["pushNotificationConfig"]
        name = f"tasks/{push.task_id}/pushNotificationConfigs/{push.config.config_id or ''}"
        return {"name": name, "pushNotificationConfig": config}

    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """A webhook body, which is the same in all bindings."""
        return self.plain.encode_push(event, task)


_FILE = {"bytes": "fileWithBytes", "uri": "fileWithUri"}


def _as_json_rpc(value: Any) -> Any:
    """``value`` as 0.3's JSON-RPC binding has it: a message's content, a data part, the name of a webhook."""
    if isinstance(value, list | tuple):
        return [_as_json_rpc(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    members = {name: item if name in reading.OPAQUE else _as_json_rpc(item) for name, item in value.items()}
    if isinstance(data := members.get("data"), Mapping) and data.keys() == {"data"} and "kind" not in members:
        members["data"] = data["data"]
    if isinstance(members.get("content"), list):
        members.setdefault("parts", members.pop("content"))
    for resource in ("name", "parent"):
        if isinstance(name := members.get(resource), str) and (match := _RESOURCE.fullmatch(name)):
            members.setdefault("taskId", match[1])
    return members
