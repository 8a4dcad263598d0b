"""Readers for JSON of any peer: single members, then parts, messages, tasks, events and webhooks.

Real peers mix dialects (interop.md sections 5 to 7), so every dialect reads alike: parts by their members, events by
wrapping key, ``kind`` or shape. Everything here raises WireError and nothing else; it names the member and its expected
form, and never repeats the value, which may be secret or hostile. File content stays base64 text.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote, unquote_to_bytes

from msgspec.structs import replace

from fleetsim.model.call import PushConfig, TaskPush
from fleetsim.model.errors import WireError
from fleetsim.model.event import ArtifactUpdate, DirectReply, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.task import (
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
from fleetsim.model.text import one_line

ID_CHARS_MAX = 1024
"""Longest task, context, message, artifact or configuration id read from a peer, in characters."""

URL_CHARS_MAX = 8192
"""Longest address read from a peer, in characters."""

TRANSITIONS = "stateTransitionHistory"
"""Metadata of a task that lists its past states, each with its time, where an agent keeps them (the card's flag)."""

_STATE_ALIASES = {"cancelled": TaskState.CANCELED}
_STATES = {state.value: state for state in TaskState} | _STATE_ALIASES
_ROLES = {role.value: role for role in Role}
_PREFIX = re.compile(r"^(task-state-|role-)")
_WORD_CHARS_MAX = 64


# -- single members ----------------------------------------------------------------------------------------------


def mapping(value: Any, what: str) -> JsonObject:
    """``value`` as a JSON object."""
    # Dictionaries first: to ask the abstract class is many times as dear, and each event asks six times.
    if not isinstance(value, (dict, Mapping)):
        raise WireError(f"{what} must be an object")
    return value


def sequence(value: Any, what: str) -> Sequence[Any]:
    """``value`` as a JSON array; absent means empty."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise WireError(f"{what} must be a list")
    return value


def member(obj: JsonObject, *names: str) -> Any:
    """The first of the named members that is there and not null, else None."""
    for name in names:
        if (value := obj.get(name)) is not None:
            return value
    return None


def text(obj: JsonObject, *names: str, chars_max: int | None = None) -> str | None:
    """An optional text member, by the first name that is there."""
    for name in names:
        if (value := obj.get(name)) is not None:
            break
    else:
        return None
    if not isinstance(value, str):
        raise WireError(f"{names[0]} must be a string")
    if chars_max is not None and len(value) > chars_max:
        raise WireError(f"{names[0]} is longer than {chars_max} characters")
    return value


def identifier(obj: JsonObject, *names: str) -> str | None:
    """An optional id of 1 to 1024 characters; an empty one counts as absent."""
    for name in names:
        if (value := obj.get(name)) is not None:
            if isinstance(value, str) and len(value) <= ID_CHARS_MAX:
                return value or None
            return text(obj, *names, chars_max=ID_CHARS_MAX)  # which says what is wrong
    return None


def need_identifier(obj: JsonObject, *names: str) -> str:
    value = identifier(obj, *names)
    if value is None:
        raise WireError(f"{names[0]} is missing or empty")
    return value


def flag(obj: JsonObject, *names: str) -> bool | None:
    value = member(obj, *names)
    if value is not None and not isinstance(value, bool):
        raise WireError(f"{names[0]} must be true or false")
    return value


def count(obj: JsonObject, name: str, *, low: int = 0, high: int = 2**31 - 1) -> int | None:
    """An optional whole number within bounds; ``5.0`` counts as 5."""
    value = obj.get(name)
    if value is None:
        return None
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise WireError(f"{name} must be a whole number from {low} to {high}")
    return value


def texts(obj: JsonObject, name: str) -> tuple[str, ...]:
    """An optional list of strings; absent means empty."""
    values = obj.get(name)
    if values is None:
        return ()
    values = sequence(values, name)
    if not all(isinstance(value, str) for value in values):
        raise WireError(f"{name} must hold strings only")
    return tuple(values)


def metadata(obj: JsonObject) -> JsonObject:
    """The optional ``metadata`` object; absent means empty."""
    value = obj.get("metadata")
    return {} if value is None else mapping(value, "metadata")


def read_state(value: Any) -> TaskState:
    """A state in any spelling in use: prefixed or not, any case, dashes or underscores; unknown text is UNKNOWN.

    Raises WireError when it is not text at all.
    """
    if not isinstance(value, str):
        raise WireError("state must be a string")
    return _STATES.get(_plain(value[:_WORD_CHARS_MAX]), TaskState.UNKNOWN)


def read_role(value: Any) -> Role | None:
    """A role in any spelling, or None for anything else."""
    if not isinstance(value, str):
        return None
    return _ROLES.get(_plain(value[:_WORD_CHARS_MAX]))


@lru_cache(maxsize=256)
def _plain(value: str) -> str:
    """A state or role as most spell it; each message has some, and there are few."""
    return _PREFIX.sub("", value.strip().lower().replace("_", "-"))


def read_time(value: Any) -> datetime | None:
    """An ISO 8601 time in UTC; one without a zone counts as UTC, anything unreadable as None."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        time = datetime.fromisoformat(value)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# -- ProtoJSON's two spellings ------------------------------------------------------------------------------------
# 1.0 is read in snake_case as in camelCase, and written in camelCase: every official SDK of 1.0 reads both (protobuf's
# JSON mapping: parsers accept the field's own name beside its camelCase form).

OPAQUE = frozenset({"metadata", "data", "params", "security", "securityRequirements"})
"""Members whose inside belongs to somebody else: payloads, an extension's parameters, names of security schemes."""

NAMED = frozenset({"securitySchemes", "scopes"})
"""Members that are maps: their keys are names somebody chose, their values are objects of the protocol."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_SNAKE = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+", re.ASCII)
_NEXT = re.compile(r"_([a-z0-9])")


def camel_case(value: Any) -> Any:
    """``value`` with every member of the protocol in camelCase. Raises WireError for a member in both spellings."""
    return _camel_case(value) if _has_snake(value) else value


def _has_snake(value: Any) -> bool:
    """Whether any member's name has an underscore: most documents have none, and are left as they are."""
    names, values = list[str](), [value]
    for item in values:  # which grows meanwhile: a function called for each value costs twice as much
        kind = type(item)
        if kind is dict:
            names += item
            values += item.values()
        elif kind is list or kind is tuple:
            values += item
        elif kind not in _SCALARS:
            return True  # nothing that JSON is read as: it is not looked through twice
    return "_" in "".join(names)


def _camel_case(value: Any) -> Any:
    if isinstance(value, Mapping):
        members: dict[str, Any] = {}
        for name, item in value.items():
            if "_" in name and _SNAKE.fullmatch(name):
                name = _NEXT.sub(lambda letter: letter[1].upper(), name)
            if name in members:
                raise WireError(f"{one_line(name, 80)} is there in two spellings")
            if name in NAMED and isinstance(item, Mapping):
                item = {key: _camel_case(inner) for key, inner in item.items()}
            elif name not in OPAQUE:
                item = _camel_case(item)
            members[name] = item
        return members
    if isinstance(value, list | tuple):
        return [_camel_case(item) for item in value]
    return value


# -- parts, messages, artifacts ----------------------------------------------------------------------------------

BOXED = "data_part_compat"
"""Metadata of a 0.x data part whose data is not an object: 0.x demands one, so the data is boxed in ``value``.

The convention of a2a-sdk 1.x, whose 0.3 side reads and writes it.
"""


def read_part(value: Any) -> Part:
    obj = mapping(value, "part")
    words, tag = obj.get("text"), obj.get("kind", obj.get("type"))
    if isinstance(words, str) and len(obj) == (1 if tag is None else 2):  # a text and nothing else, as most are
        return TextPart(text=words)
    meta = metadata(obj)
    media_type = text(obj, "mediaType", "mimeType")
    if words is not None or (tag == "text" and "text" not in obj):
        return TextPart(text=text(obj, "text") or "", media_type=media_type, metadata=meta)
    if obj.get("file") is not None:
        return _read_file(mapping(obj["file"], "file"), media_type, meta)
    if obj.get("raw") is not None or obj.get("url") is not None:
        return _read_file(obj, media_type, meta)
    if "data" in obj:
        data = obj["data"]
        if meta.get(BOXED) is True and isinstance(data, Mapping) and data.keys() == {"value"}:
            data = data["value"]
            meta = {name: value for name, value in meta.items() if name != BOXED}
        named = meta.get("mimeType")
        return DataPart(data=data, media_type=media_type or (named if isinstance(named, str) else None), metadata=meta)
    raise WireError("part must have text, file, raw, url or data")


def _read_file(obj: JsonObject, media_type: str | None, metadata: JsonObject) -> FilePart:
    raw = text(obj, "bytes", "raw", "fileWithBytes")
    uri = text(obj, "uri", "url", "fileWithUri", chars_max=None) if raw is None else None
    if raw is None and uri is None:
        raise WireError("file must have bytes or uri")
    media_type = text(obj, "mimeType", "mediaType") or media_type
    if uri is not None and (inside := _DATA_URI.match(uri)):
        data = uri[inside.end() :]  # of a ``data:`` URI (RFC 2397); we keep base64
        raw = unquote(data) if inside["base64"] else b64encode(unquote_to_bytes(data)).decode()
        uri, media_type = None, media_type or inside["type"] or "text/plain"
    return FilePart(raw=raw, uri=uri, filename=text(obj, "name", "filename"), media_type=media_type, metadata=metadata)


_DATA_URI = re.compile(r"data:(?P<type>[^;,]*)[^,]*?(?P<base64>;base64)?,", re.IGNORECASE)


def read_parts(obj: JsonObject) -> tuple[Part, ...]:
    return tuple([read_part(value) for value in sequence(obj.get("parts"), "parts")])


def read_message(value: Any, *, asked: bool = False) -> Message:
    """A message of any dialect. Raises WireError.

    ``asked`` is for messages somebody sends us: role and parts must be there. In answers a missing or
    strange role counts as the agent's. A missing id becomes the empty one: 0.1 has none, and older 0.3
    peers leave it out (interop.md section 2).
    """
    obj = mapping(value, "message")
    role = read_role(obj.get("role"))
    if asked and role is None:
        raise WireError("message.role must be user or agent")
    if asked and obj.get("parts") is None:
        raise WireError("message.parts is missing")
    return Message(
        message_id=identifier(obj, "messageId") or "",
        role=role or Role.AGENT,
        parts=read_parts(obj),
        context_id=identifier(obj, "contextId", "sessionId"),
        task_id=identifier(obj, "taskId"),
        reference_task_ids=texts(obj, "referenceTaskIds"),
        extensions=texts(obj, "extensions"),
        metadata=metadata(obj),
    )


def read_artifact(value: Any, position: int = 0) -> Artifact:
    """An artifact of any dialect; one without an id is named by its index or position."""
    obj = mapping(value, "artifact")
    index = count(obj, "index")
    return Artifact(
        artifact_id=identifier(obj, "artifactId") or f"artifact-{position if index is None else index}",
        parts=read_parts(obj),
        name=text(obj, "name"),
        description=text(obj, "description"),
        extensions=texts(obj, "extensions"),
        metadata=metadata(obj),
    )


def read_artifacts(obj: JsonObject) -> tuple[Artifact, ...]:
    """The ``artifacts`` list, and a lone ``artifact`` the list does not hold."""
    listed = sequence(obj.get("artifacts"), "artifacts")
    artifacts = tuple([read_artifact(value, at) for at, value in enumerate(listed)])
    if obj.get("artifact") is not None:
        lone = read_artifact(obj["artifact"])
        if lone.artifact_id not in {artifact.artifact_id for artifact in artifacts}:
            artifacts = (*artifacts, lone)
    return artifacts


# -- tasks and events ---------------------------------------------------------------------------------------------


def read_status(value: Any) -> TaskStatus:
    """A status object, or a bare state as the simplest webhooks send it."""
    if isinstance(value, str):
        return TaskStatus(state=read_state(value))
    obj = mapping(value, "status")
    message = obj.get("message")
    return TaskStatus(
        state=read_state(obj.get("state")),
        message=None if message is None else read_message(message),
        timestamp=read_time(obj.get("timestamp")),
    )


def read_task(value: Any) -> Task:
    """A task, bare or wrapped."""
    obj = mapping(value, "task")
    if obj.get("task") is not None and "status" not in obj:
        obj = mapping(obj["task"], "task")
    task_id = need_identifier(obj, "id", "taskId")
    context_id = identifier(obj, "contextId", "sessionId") or ""
    status = read_status(obj.get("status"))
    if status.message is None and obj.get("message") is not None:  # beside the status: the seeds' ``result.message``
        status = replace(status, message=read_message(obj["message"]))
    artifacts = read_artifacts(obj)
    history = []
    for value in sequence(obj.get("history"), "history"):
        entry = mapping(value, "history entry")
        # One of the 0.1 documents keeps statuses here, of which the messages are kept.
        message = entry.get("message") if "state" in entry else entry
        if message is not None:
            history.append(read_message(message))
    return Task(
        task_id=task_id,
        context_id=context_id,
        status=status,
        artifacts=artifacts,
        history=tuple(history),
        metadata=metadata(obj),
    )


def read_snapshot(value: Any) -> Snapshot:
    return Snapshot(task=read_task(value))


def read_direct_reply(value: Any) -> DirectReply:
    return DirectReply(message=read_message(value))


def read_status_update(value: Any) -> StatusUpdate:
    """A status update of any dialect, with the artifacts a fleet webhook adds."""
    obj = mapping(value, "status update")
    return StatusUpdate(
        task_id=need_identifier(obj, "taskId", "id"),
        context_id=identifier(obj, "contextId", "sessionId") or "",
        status=read_status(obj.get("status")),
        final=flag(obj, "final") or False,
        artifacts=read_artifacts(obj),
        metadata=metadata(obj),
    )


def read_artifact_update(value: Any) -> ArtifactUpdate:
    """An artifact update of any dialect; 0.1 keeps the two flags inside the artifact."""
    obj = mapping(value, "artifact update")
    inner = mapping(obj.get("artifact"), "artifact")
    return ArtifactUpdate(
        task_id=need_identifier(obj, "taskId", "id"),
        context_id=identifier(obj, "contextId", "sessionId") or "",
        artifact=read_artifact(inner),
        append=flag(obj, "append") or flag(inner, "append") or False,
        last_chunk=flag(obj, "lastChunk") or flag(inner, "lastChunk") or False,
        metadata=metadata(obj),
    )


_Reader: TypeAlias = Callable[[Any], TaskEvent]

_WRAPPERS: tuple[tuple[str, _Reader], ...] = (
    ("task", read_snapshot),
    ("artifactUpdate", read_artifact_update),
    ("statusUpdate", read_status_update),
    ("message", read_direct_reply),
)

_KINDS: dict[str, _Reader] = {
    "task": read_snapshot,
    "status-update": read_status_update,
    "artifact-update": read_artifact_update,
    "message": read_direct_reply,
}


def read_event(value: Any) -> TaskEvent:
    return read_events(value)[0]


def read_events(value: Any) -> tuple[TaskEvent, ...]:
    """Every event of one body, results before the status that ends them. Raises WireError.

    There are several only where a peer wraps several together.
    """
    obj = mapping(value, "event")
    if not {"status", "artifact", "parts"} & obj.keys():
        wrapped = tuple(read(obj[key]) for key, read in _WRAPPERS if obj.get(key) is not None)
        if wrapped:
            return wrapped
    kind = obj.get("kind")
    if isinstance(kind, str) and kind in _KINDS:
        return (_KINDS[kind](obj),)
    if obj.get("status") is not None:
        return ((read_status_update if obj.get("taskId") is not None or "final" in obj else read_snapshot)(obj),)
    if obj.get("artifact") is not None:
        return (read_artifact_update(obj),)
    if obj.get("parts") is not None:
        return (read_direct_reply(obj),)
    raise WireError("event is not a task, status update, artifact update or message")


# -- webhook bodies -----------------------------------------------------------------------------------------------
# A task or update with ``kind`` (0.x SDKs and fleet agents, the latter with ``artifact`` or ``artifacts`` beside the
# status), the wrapped events of 1.0, and the flat form of 0.1 become the events a stream or poll would bring.

_OLDER_MARKS = frozenset({"kind", "eventType", "status", "artifact", "parts"})
"""Members that a body of 0.x has and the wrapping object of 1.0 has not; only the latter is ProtoJSON."""


def read_push_body(value: Any) -> tuple[TaskEvent, ...]:
    """The events of one webhook body, in order; at least one."""
    obj = mapping(value, "webhook body")
    if "jsonrpc" in obj and obj.get("result") is not None:
        obj = mapping(obj["result"], "webhook body")
    if not _OLDER_MARKS & obj.keys():
        obj = mapping(camel_case(obj), "webhook body")
    if obj.get("eventType") is not None and obj.get("status") is not None:
        update = read_status_update(obj)
        at = update.status.timestamp or read_time(obj.get("timestamp"))
        lone = obj["eventType"] == "artifact" and obj.get("artifacts") is None
        return (replace(update, status=replace(update.status, timestamp=at), lone=lone),)
    return read_events(obj)


# -- webhook registrations ----------------------------------------------------------------------------------------
# Both token shapes are read. Whether an address may be called is the address policy's business, not the wire's.

_CONFIG_MEMBERS = ("pushNotificationConfig", "taskPushNotificationConfig", "pushNotification")


def read_push_config(value: Any) -> PushConfig:
    """A configuration with its token as ``token`` or as ``authentication.credentials``. Raises WireError.

    Top-level ``token`` wins when both are there; credentials of a scheme other than Bearer are not a token
    (seed "Token parsing", A2A 1.0 section 4.3.2).
    """
    obj = mapping(value, "push notification config")
    url = text(obj, "url", chars_max=URL_CHARS_MAX)
    if not url:
        raise WireError("url is missing or empty")
    scheme = credentials = None
    if obj.get("authentication") is not None:
        shown = mapping(obj["authentication"], "authentication")
        schemes = texts(shown, "schemes")
        bearer = next((name for name in schemes if name.lower() == "bearer"), None)
        scheme = text(shown, "scheme") or bearer or next(iter(schemes), None) or None
        credentials = text(shown, "credentials", chars_max=URL_CHARS_MAX) or None
    return PushConfig(
        url=url,
        config_id=identifier(obj, "id"),
        token=text(obj, "token", chars_max=URL_CHARS_MAX) or (credentials if is_bearer(scheme) else None),
        scheme=scheme,
        credentials=credentials,
        events=texts(obj, "events") if obj.get("events") is not None else None,
    )


def is_bearer(scheme: str | None) -> bool:
    return scheme is None or scheme.lower() == "bearer"


def read_task_push(value: Any) -> TaskPush:
    """A configuration with its task, nested (0.x) or flat (1.0)."""
    obj = mapping(value, "task push notification config")
    nested = member(obj, *_CONFIG_MEMBERS)
    task_id = need_identifier(obj, "taskId", *(() if nested is None else ("id",)))
    return TaskPush(task_id=task_id, config=read_push_config(obj if nested is None else nested))


def nested_config(params: JsonObject) -> Any:
    """The configuration inside a 0.x registration; the parameters themselves if nothing is nested."""
    nested = member(params, *_CONFIG_MEMBERS)
    return params if nested is None else nested
