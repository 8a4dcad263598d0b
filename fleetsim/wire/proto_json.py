"""ProtoJSON, as A2A 1.0 and the HTTP+JSON binding of 0.3 write it: enums by their full names, one wrapping member for
events and the answer to a message, camelCase. snake_case is read too, as by every official SDK of 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.model.call import Call, Operation, SendMessage
from fleetsim.model.errors import InvalidParams, WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import JsonObject, Message, Role, Task, TaskState
from fleetsim.wire import base, reading

SHARED_PATHS: Mapping[Operation, tuple[str, str]] = {
    Operation.SEND: ("POST", "/message:send"),
    Operation.STREAM: ("POST", "/message:stream"),
    Operation.GET: ("GET", "/tasks/{id}"),
    Operation.LIST: ("GET", "/tasks"),
    Operation.CANCEL: ("POST", "/tasks/{id}:cancel"),
    Operation.SUBSCRIBE: ("POST", "/tasks/{id}:subscribe"),
    Operation.PUSH_SET: ("POST", "/tasks/{taskId}/pushNotificationConfigs"),
}
"""HTTP method and path of the operations that 1.0 and 0.3 call alike. Below them the parameters have other names."""


class ProtoJson(base.Dialect):
    """A dialect in ProtoJSON."""

    def read_names(self, value: Any) -> Any:
        """``value`` with the names of members as ``reading`` knows them. Raises WireError."""
        return reading.camel_case(value)

    def decode_call(self, method: str, params: JsonObject) -> Call:
        """As every dialect, in either spelling of ProtoJSON. Raises MethodNotFound, InvalidParams."""
        try:
            params = self.read_names(params)
        except WireError as error:
            raise InvalidParams(f"{InvalidParams.title}: {error}") from None
        return super().decode_call(method, params)

    def decode_reply(self, operation: Operation, result: Any) -> base.Reply:
        """As every dialect, in either spelling. Raises WireError."""
        return super().decode_reply(operation, self.read_names(result))

    def decode_event(self, value: Any) -> TaskEvent:
        """As every dialect, in either spelling. Raises WireError."""
        return super().decode_event(self.read_names(value))

    def encode_reply(self, call: Call, reply: base.Reply) -> Any:
        """The ``result`` of an answer to ``call``; the answer to a message is wrapped, all others are bare."""
        match reply:
            case Task() if isinstance(call, SendMessage):
                return {"task": self.write_task(reply)}
            case Message():
                return {"message": self.write_message(reply)}
            case tuple():
                return {"configs": [self.write_task_push(push) for push in reply], "nextPageToken": ""}
        return super().encode_reply(call, reply)

    def encode_event(self, event: TaskEvent) -> dict[str, Any]:
        """The ``result`` of one streamed answer (A2A 1.0 section 3.2.3, 0.3.0 section 7.2)."""
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
