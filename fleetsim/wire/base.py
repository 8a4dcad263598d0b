"""The common part of the dialects: names of methods, reading, and most of writing.

Reading is the same for all (``reading``). Writing is 0.3's here; a dialect adds its methods, calls and spellings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias

from msgspec.structs import replace

from fleetsim.model.call import (
    STREAMING,
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
)
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import Blame, InvalidParams, MethodNotFound, UnsupportedOperation, WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import (
    INTERRUPTED,
    TERMINAL,
    Artifact,
    DataPart,
    FilePart,
    JsonObject,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from fleetsim.wire import reading
from fleetsim.wire.cards import major_minor, read_card, write_card
from fleetsim.wire.json import present

Reply: TypeAlias = Task | Message | TaskPage | TaskPush | tuple[TaskPush, ...] | AgentCard | None
"""The reply to a call that is not a stream."""

PAGE_SIZE_MAX = 100
"""Most tasks on one page (A2A 1.0 section 3.1.4)."""

_LACKS = {
    Operation.LIST: ("to list tasks", "read one by its id; A2A 1.0, and 0.3 over HTTP+JSON, have a list"),
    Operation.PUSH_LIST: ("to list webhooks", "read the one of the task"),
    Operation.PUSH_DELETE: ("to delete a webhook", "it ends with its task; set another one in its place"),
    Operation.EXTENDED_CARD: ("to read an extended card", None),
}
"""Operations that some dialects lack, in words, and the next step."""

Decoder = Callable[[JsonObject], Call]


def data_metadata(part: DataPart) -> dict[str, Any]:
    """A data part's metadata with its media type in ``mimeType``, where extension payloads name themselves."""
    named = {} if part.media_type is None else {"mimeType": part.media_type}
    return {**part.metadata, **named}


class Dialect(ABC):
    """One version of the wire: operations to method names, values to JSON and back. Subclasses say what is their own.

    Encoding fails only for an operation the dialect lacks. Decoding what an agent sent raises WireError,
    decoding what a caller sent raises MethodNotFound or InvalidParams, whatever the bytes were.
    """

    name: str
    card_version: str
    """Its name in a card."""
    methods: ClassVar[Mapping[Operation, tuple[str, ...]]]
    """The method to write first, and those also read after it."""
    read_send: Callable[[JsonObject, Operation], SendMessage]
    readers: ClassVar[Mapping[Operation, Decoder]] = {}
    """The calls that it reads otherwise than ``READERS``."""
    extensions_header: str = "X-A2A-Extensions"
    loses: tuple[str, ...]
    """Fields that this dialect cannot represent."""
    rejoins: bool = True
    """Whether a broken stream is joined again by a caller that can also poll (docs/decisions/0008)."""
    guessed: bool = True
    """Whether a card may mean it without saying so (docs/decisions/0013)."""
    caller_names_task: bool = False
    """Whether the id of a new task is whoever asks' word."""
    webhooks_by_https: bool = False
    """Whether agents take no webhook address without TLS."""
    question_ends_stream: bool = False
    """Whether a stream is over when the task waits for somebody, which older dialects say with ``final``."""
    says_version: bool = False
    """Whether each request names it in ``A2A-Version``."""
    takes_tenant: bool = False
    """Whether parameters may name a tenant."""
    details_errors: bool = False
    """Whether errors say more in a list (``jsonrpc``)."""
    own_codes: frozenset[int] = frozenset()
    """Error codes that mean something else here than in the specification."""
    tag: str = "kind"
    """The member that says what a part is."""
    kinds: bool = False
    """Whether objects name themselves in ``kind``."""
    says_final: bool = False
    """Whether a streamed status says that it is the last."""
    binding: str = "JSONRPC"
    """Its binding's name in a card."""
    paths: ClassVar[Mapping[Operation, tuple[str, str]]] = {}
    """Over HTTP+JSON, the HTTP method and path of each operation; ``{}`` encloses the parameters in the path."""
    media_type: str = "application/json"
    """The content type of a body."""

    def speaks(self, version: str) -> bool:
        """Whether a protocol version on a card means this dialect; what none speaks is taken for ``UNSAID``."""
        return major_minor(version) == major_minor(self.card_version)

    def asked_by(self, version_header: str | None) -> bool:
        """Whether the value of ``A2A-Version`` asks for this dialect."""
        return False

    def claims(self, method: str, params: JsonObject) -> bool:
        """Whether a request is in this dialect whose method newer ones have too. The oldest that claims it has it."""
        return True

    def at(self, url: str) -> Dialect:
        """The dialect as an agent at this address has it."""
        return self

    def headers(self, operation: Operation) -> Mapping[str, str]:
        """The HTTP headers of a call, beside its content type and credentials."""
        accepted = dict.fromkeys((self.media_type, "application/json"))
        return {"Accept": "text/event-stream" if operation in STREAMING else ", ".join(accepted)}

    def method(self, operation: Operation) -> str:
        """The method name to write. Raises UnsupportedOperation if this dialect has none for it."""
        names = self.methods.get(operation)
        if not names:
            what, hint = _LACKS.get(operation, (f"for {operation}", None))
            problem = UnsupportedOperation(f"A2A {self.name} has no operation {what}", hint=hint)
            problem.blame = Blame.CALLER
            raise problem
        return names[0]

    def operation(self, method: str) -> Operation:
        """Of a method name, aliases included. Raises MethodNotFound."""
        for operation, names in self.methods.items():
            if method in names:
                return operation
        raise MethodNotFound

    def decode_call(self, method: str, params: JsonObject) -> Call:
        """Read a call. Raises MethodNotFound, or InvalidParams naming the member that is wrong."""
        operation = self.operation(method)
        try:
            if operation in {Operation.SEND, Operation.STREAM}:
                return self.read_send(params, operation)
            return (self.readers.get(operation) or READERS[operation])(params)
        except WireError as error:
            raise InvalidParams(f"{InvalidParams.title}: {error}") from None

    def decode_reply(self, operation: Operation, result: Any) -> Reply:
        """Read the result of a call. A stream's operations read as a send does, for peers that answer without a stream.

        Raises WireError.
        """
        match operation:
            case Operation.SEND | Operation.STREAM:
                event = reading.read_event(result)
                if not isinstance(event, Snapshot | DirectReply):
                    raise WireError("the answer to a message must be a task or a message")
                return event.task if isinstance(event, Snapshot) else event.message
            case Operation.GET | Operation.CANCEL | Operation.SUBSCRIBE:
                return reading.read_task(result)
            case Operation.LIST:
                page = reading.mapping(result, "task page")
                return TaskPage(
                    tasks=tuple(reading.read_task(value) for value in reading.sequence(page.get("tasks"), "tasks")),
                    next_page_token=reading.text(page, "nextPageToken") or "",
                    page_size=reading.count(page, "pageSize") or 0,
                    total_size=reading.count(page, "totalSize") or 0,
                )
            case Operation.PUSH_SET | Operation.PUSH_GET:
                return reading.read_task_push(result)
            case Operation.PUSH_LIST:
                listed = result
                if not isinstance(result, list | tuple):
                    listed = reading.mapping(result, "push list").get("configs")
                return tuple(reading.read_task_push(value) for value in reading.sequence(listed, "configs"))
            case Operation.PUSH_DELETE:
                return None
            case Operation.EXTENDED_CARD:
                return read_card(result)

    decode_event = staticmethod(reading.read_event)

    def event_name(self, event: TaskEvent) -> str | None:
        """The SSE event name, which only 0.1 uses."""
        return None

    # -- writing

    def session(self, call: Call) -> str:
        """The conversation that the client names with ``call``; empty in the dialects in which the agent names it."""
        return ""

    def encode_call(self, call: Call) -> tuple[str, dict[str, Any]]:
        """Method name and parameters. Raises UnsupportedOperation."""
        return self.method(call.operation), self.write_params(call)

    def write_params(self, call: Call) -> dict[str, Any]:
        match call:
            case SendMessage():
                return self.write_send(call)
            case GetTask():
                return {"id": call.task_id, **present(historyLength=call.history_length)}
            case CancelTask():
                return {"id": call.task_id, **present(metadata=dict(call.metadata))}
            case SubscribeToTask():
                return {"id": call.task_id}
            case SetPush():
                return self.write_task_push(TaskPush(task_id=call.task_id, config=call.config))
            case GetPush() | DeletePush():
                return self.write_push_ids(call.task_id, call.config_id)
            case ListPush():
                return self.write_push_ids(call.task_id, None)
            case ListTasks():
                return {
                    **present(
                        contextId=call.context_id,
                        status=None if call.state is None else self.write_state(call.state),
                        pageSize=call.page_size,
                        pageToken=call.page_token,
                        historyLength=call.history_length,
                        statusTimestampAfter=write_time(call.updated_after) if call.updated_after else None,
                    ),
                    "includeArtifacts": call.include_artifacts,
                }
            case GetExtendedCard():
                return {}

    @abstractmethod
    def encode_push(self, event: TaskEvent, task: Task) -> dict[str, Any]:
        """The webhook body for ``event``, which left the task as ``task``."""

    @abstractmethod
    def write_send(self, call: SendMessage) -> dict[str, Any]: ...

    def write_push_ids(self, task_id: str, config_id: str | None) -> dict[str, Any]:
        return {"id": task_id, **present(pushNotificationConfigId=config_id)}

    def encode_reply(self, call: Call, reply: Reply) -> Any:
        match reply:
            case Task():
                return self.write_task(reply)
            case Message():
                return self.write_message(reply)
            case TaskPush():
                return self.write_task_push(reply)
            case tuple():
                return [self.write_task_push(push) for push in reply]
            case AgentCard():
                return write_card(reply)
            case TaskPage():
                return {
                    "tasks": [self.write_task(task) for task in reply.tasks],
                    "nextPageToken": reply.next_page_token,
                    "pageSize": reply.page_size,
                    "totalSize": reply.total_size,
                }
            case None:
                return None

    def encode_event(self, event: TaskEvent) -> dict[str, Any]:
        """The ``result`` of one streamed answer (A2A 0.3.0 section 7.2, 1.0 section 3.2.3)."""
        match event:
            case Snapshot(task=task):
                return self.write_task(task)
            case DirectReply(message=message):
                return self.write_message(message)
            case StatusUpdate():
                # A 0.3 stream ends on terminal and on interrupted states.
                final = event.final or event.status.state in TERMINAL | INTERRUPTED
                return {
                    **self.kind("status-update"),
                    "taskId": event.task_id,
                    "contextId": event.context_id,
                    "status": self.write_status(event.status),
                    **({"final": final} if self.says_final else {}),
                    **present(metadata=dict(event.metadata)),
                }
            case ArtifactUpdate():
                return {
                    **self.kind("artifact-update"),
                    "taskId": event.task_id,
                    "contextId": event.context_id,
                    "artifact": self.write_artifact(event.artifact),
                    "append": event.append,
                    "lastChunk": event.last_chunk,
                    **present(metadata=dict(event.metadata)),
                }

    def kind(self, name: str) -> dict[str, str]:
        return {"kind": name} if self.kinds else {}

    def write_state(self, state: TaskState) -> str:
        """A2A 0.3.0 section 6.3."""
        return state.value

    def write_role(self, role: Role) -> str:
        """A2A 0.3.0 section 6.4."""
        return role.value

    def write_part(self, part: Part) -> dict[str, Any]:
        """A2A 0.3.0 section 6.5; the media type of data goes into its metadata."""
        tag = self.tag
        match part:
            case TextPart():
                return {tag: "text", "text": part.text, **({"metadata": dict(part.metadata)} if part.metadata else {})}
            case DataPart():
                boxed = {} if isinstance(part.data, Mapping) else {reading.BOXED: True}
                data = {"value": part.data} if boxed else part.data
                return {tag: "data", "data": data, **present(metadata={**data_metadata(part), **boxed})}
            case FilePart():
                content = {"bytes": part.raw} if part.raw is not None else {"uri": part.uri or ""}
                file = {**content, **present(name=part.filename, mimeType=part.media_type)}
                return {tag: "file", "file": file, **present(metadata=dict(part.metadata))}

    def write_message(self, message: Message) -> dict[str, Any]:
        """A2A 0.3.0 section 6.4, 1.0 section 4.1.4."""
        return {
            **self.kind("message"),
            "messageId": message.message_id,
            "role": self.write_role(message.role),
            "parts": [self.write_part(part) for part in message.parts],
            **present(
                contextId=message.context_id,
                taskId=message.task_id,
                referenceTaskIds=list(message.reference_task_ids),
                extensions=list(message.extensions),
                metadata=dict(message.metadata),
            ),
        }

    def write_artifact(self, artifact: Artifact) -> dict[str, Any]:
        """A2A 0.3.0 section 6.7, 1.0 section 4.1.7; the almanac seeds (step 2.1) leave the shape open."""
        return {
            "artifactId": artifact.artifact_id,
            "parts": [self.write_part(part) for part in artifact.parts],
            **present(
                name=artifact.name,
                description=artifact.description,
                extensions=list(artifact.extensions),
                metadata=dict(artifact.metadata),
            ),
        }

    def write_status(self, status: TaskStatus) -> dict[str, Any]:
        """A2A 0.3.0 section 6.2, 1.0 section 4.1.2, almanac seeds, step 2.1."""
        written: dict[str, Any] = {"state": self.write_state(status.state)}
        if status.message is not None:
            written["message"] = self.write_message(status.message)
        if status.timestamp is not None:
            written["timestamp"] = write_time(status.timestamp)
        return written

    def write_task(self, task: Task) -> dict[str, Any]:
        """A2A 0.3.0 section 6.1, 1.0 section 4.1.1."""
        return {
            **self.kind("task"),
            "id": task.task_id,
            "contextId": task.context_id,
            "status": self.write_status(task.status),
            **present(
                artifacts=[self.write_artifact(artifact) for artifact in task.artifacts],
                history=[self.write_message(message) for message in task.history],
                metadata=dict(task.metadata),
            ),
        }

    def write_task_push(self, push: TaskPush) -> dict[str, Any]:
        """A2A 0.3.0 section 6.10."""
        config = write_push_config(push.config, schemes_listed=True)
        return {"taskId": push.task_id, "pushNotificationConfig": config}


def write_time(value: datetime) -> str:
    """ISO 8601 in UTC with milliseconds and ``Z`` (A2A 1.0 section 5.6.1)."""
    if value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def write_push_config(config: PushConfig, *, schemes_listed: bool) -> dict[str, Any]:
    """A configuration; ``schemes_listed`` for 0.x (``schemes: [...]``), else 1.0 (``scheme``).

    A token that is also the Bearer credentials is written once, in the structured form.
    """
    authentication: dict[str, Any] = {}
    if config.scheme is not None or config.credentials is not None:
        scheme = config.scheme or "Bearer"
        authentication = {"schemes": [scheme]} if schemes_listed else {"scheme": scheme}
        authentication |= present(credentials=config.credentials)
    implied = reading.is_bearer(config.scheme) and config.token == config.credentials
    token = None if implied else config.token
    return {
        **present(id=config.config_id),
        "url": config.url,
        **present(token=token, authentication=authentication),
    }


# -- reading calls ------------------------------------------------------------------------------------------------


def read_sent_message(params: JsonObject, *, beside: bool = False) -> Message:
    """The ``message`` of a send; with ``beside``, ids may stand beside it as older callers put them."""
    if params.get("message") is None:
        raise WireError("message is missing")
    message = reading.read_message(params["message"], asked=True)
    if not message.parts:
        raise WireError("message.parts must hold at least one part")
    if not beside:
        return message
    return replace(
        message,
        context_id=message.context_id or reading.identifier(params, "contextId", "sessionId"),
        task_id=message.task_id or reading.identifier(params, "taskId"),
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


def read_set_push(params: JsonObject) -> SetPush:
    """0.x registration: the task as ``taskId`` or ``id``, the configuration nested or, failing that, flat."""
    config = reading.mapping(reading.nested_config(params), "pushNotificationConfig")
    flat = config is params
    task_id = reading.need_identifier(params, "taskId", *(() if flat else ("id",)))
    return SetPush(task_id=task_id, config=reading.read_push_config(config))


def _task_id(params: JsonObject) -> str:
    return reading.need_identifier(params, "id", "taskId")


def _push_ids(params: JsonObject) -> dict[str, Any]:
    """0.x: the task as ``id`` or ``taskId``; where both stand, ``id`` may be the configuration's, as in 1.0."""
    task_id = reading.need_identifier(params, "taskId", "id")
    config_id = reading.identifier(params, "pushNotificationConfigId")
    lone = reading.identifier(params, "id")
    return {"task_id": task_id, "config_id": lone if config_id is None and lone != task_id else config_id}


READERS: Mapping[Operation, Decoder] = {
    Operation.GET: lambda params: GetTask(
        task_id=_task_id(params), history_length=reading.count(params, "historyLength")
    ),
    Operation.LIST: _read_list,
    Operation.CANCEL: lambda params: CancelTask(task_id=_task_id(params), metadata=reading.metadata(params)),
    Operation.SUBSCRIBE: lambda params: SubscribeToTask(task_id=_task_id(params)),
    Operation.PUSH_SET: read_set_push,
    Operation.PUSH_GET: lambda params: GetPush(**_push_ids(params)),
    Operation.PUSH_LIST: lambda params: ListPush(task_id=_task_id(params)),
    Operation.PUSH_DELETE: lambda params: DeletePush(**_push_ids(params)),
    Operation.EXTENDED_CARD: lambda params: GetExtendedCard(),
}


def read_configuration(params: JsonObject) -> JsonObject:
    value = params.get("configuration")
    return {} if value is None else reading.mapping(value, "configuration")


def pushed_status(event: TaskEvent, task: Task) -> TaskStatus:
    """The status a webhook body speaks of: the event's own if it has one, else the task's."""
    return event.status if isinstance(event, StatusUpdate) else task.status
