"""What the three dialects have in common: how they name methods, and how they read.

A dialect is a table and a pen. Reading is the same for all (``reading``), so that a peer which mixes
dialects is understood; each dialect adds its method names, its writing and the calls it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fleetsim.model.call import (
    STREAMING,
    Call,
    CancelTask,
    DeletePush,
    GetPush,
    GetTask,
    ListPush,
    Operation,
    SetPush,
    SubscribeToTask,
)
from fleetsim.model.errors import Blame, InvalidParams, MethodNotFound, UnsupportedOperation, WireError
from fleetsim.model.event import StatusUpdate, TaskEvent
from fleetsim.model.task import JsonObject, Message, Task, TaskStatus
from fleetsim.wire import fields, parts, reading
from fleetsim.wire.pushconfig import nested_config, read_push_config

Decoder = Callable[[JsonObject], Call]


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what is wrong with a call's parameters into the JSON-RPC error for it."""
    try:
        yield
    except WireError as error:
        raise InvalidParams(f"{InvalidParams.title}: {error}") from None


class DialectBase:
    """Method names and reading. Subclasses hold the names, the decoders and everything written."""

    name: str
    extensions_header: str
    methods: Mapping[Operation, tuple[str, ...]]
    loses: tuple[str, ...]
    rejoins: bool = True
    guessed: bool = True
    caller_names_task: bool = False
    question_ends_stream: bool = False
    decoders: Mapping[Operation, Decoder]

    def headers(self, operation: Operation) -> Mapping[str, str]:
        """The HTTP headers of a call, beside its content type and credentials."""
        return {"Accept": "text/event-stream" if operation in STREAMING else "application/json"}

    def method(self, operation: Operation) -> str:
        """The method name to write. Raises UnsupportedOperation if this dialect has none for it."""
        names = self.methods.get(operation)
        if not names:
            problem = UnsupportedOperation(f"A2A {self.name} has no operation {operation}")
            problem.blame = Blame.CALLER
            raise problem
        return names[0]

    def operation(self, method: str) -> Operation:
        """The operation a method name stands for. Raises MethodNotFound."""
        for operation, names in self.methods.items():
            if method in names:
                return operation
        raise MethodNotFound

    def decode_call(self, method: str, params: JsonObject) -> Call:
        """Read a call. Raises MethodNotFound, or InvalidParams naming the member that is wrong."""
        decode = self.decoders[self.operation(method)]
        with refusing():
            return decode(params)

    def decode_reply(self, operation: Operation, result: Any) -> reading.Reply:
        """Read the result of a call. Raises WireError."""
        return reading.read_reply(operation, result)

    def decode_event(self, value: Any) -> TaskEvent:
        """Read one event of a stream. Raises WireError."""
        return reading.read_event(value)

    def event_name(self, event: TaskEvent) -> str | None:
        """The SSE event name, which only 0.1 uses."""
        return None


def read_sent_message(params: JsonObject, *, beside: bool = False) -> Message:
    """The ``message`` of a send; with ``beside``, ids may stand beside it as older callers put them."""
    if params.get("message") is None:
        raise WireError("message is missing")
    message = parts.read_message(params["message"], asked=True)
    if not message.parts:
        raise WireError("message.parts must hold at least one part")
    if not beside:
        return message
    return replace(
        message,
        context_id=message.context_id or fields.identifier(params, "contextId", "sessionId"),
        task_id=message.task_id or fields.identifier(params, "taskId"),
    )


def history_length(obj: JsonObject) -> int | None:
    """The optional ``historyLength``, 0 or more (A2A 1.0 section 3.2.4)."""
    return fields.count(obj, "historyLength")


def read_get(params: JsonObject) -> GetTask:
    """Parameters that name a task and a history length."""
    return GetTask(task_id=fields.need_identifier(params, "id", "taskId"), history_length=history_length(params))


def read_cancel(params: JsonObject) -> CancelTask:
    """Parameters that name a task, with metadata."""
    return CancelTask(task_id=fields.need_identifier(params, "id", "taskId"), metadata=fields.metadata(params))


def read_subscribe(params: JsonObject) -> SubscribeToTask:
    """Parameters that name a task."""
    return SubscribeToTask(task_id=fields.need_identifier(params, "id", "taskId"))


def read_set_push(params: JsonObject) -> SetPush:
    """0.x registration: the task as ``taskId`` or ``id``, the configuration nested or, failing that, flat."""
    config = fields.mapping(nested_config(params), "pushNotificationConfig")
    flat = config is params
    task_id = fields.need_identifier(params, "taskId", *(() if flat else ("id",)))
    return SetPush(task_id=task_id, config=read_push_config(config))


def _push_ids(params: JsonObject) -> tuple[str, str | None]:
    """0.x: the task as ``id`` or ``taskId``; where both stand, ``id`` may be the configuration's, as in 1.0."""
    task_id = fields.need_identifier(params, "taskId", "id")
    config_id = fields.identifier(params, "pushNotificationConfigId")
    lone = fields.identifier(params, "id")
    if config_id is None and lone != task_id:
        config_id = lone
    return task_id, config_id


def read_get_push(params: JsonObject) -> GetPush:
    """0.x: one webhook of a task."""
    task_id, config_id = _push_ids(params)
    return GetPush(task_id=task_id, config_id=config_id)


def read_delete_push(params: JsonObject) -> DeletePush:
    """0.x: remove one webhook of a task."""
    task_id, config_id = _push_ids(params)
    return DeletePush(task_id=task_id, config_id=config_id)


def read_list_push(params: JsonObject) -> ListPush:
    """0.x: all webhooks of a task."""
    return ListPush(task_id=fields.need_identifier(params, "id", "taskId"))


def read_configuration(params: JsonObject) -> JsonObject:
    """The optional ``configuration`` of a send."""
    value = params.get("configuration")
    return {} if value is None else fields.mapping(value, "configuration")


def pushed_status(event: TaskEvent, task: Task) -> TaskStatus:
    """The status a webhook body speaks of: the event's own if it has one, else the task's."""
    return event.status if isinstance(event, StatusUpdate) else task.status
