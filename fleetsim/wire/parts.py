"""Parts, messages and artifacts: read in every dialect's shape, and written in the tagged shape of 0.x.

A part is what its members say: ``text``, ``file``, ``raw``, ``url`` or ``data``. The tags ``kind`` (0.3) and
``type`` (0.1) are not needed to read one. File content stays base64 text and is never decoded or fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.task import Artifact, DataPart, FilePart, JsonObject, Message, Part, Role, TextPart
from fleetsim.wire import fields

BOXED = "data_part_compat"
"""Metadata of a 0.x data part whose data is no object, which 0.x demands: it stands boxed in ``value``.

The convention of a2a-sdk 1.x, whose 0.3 side reads and writes it.
"""


def read_part(value: Any) -> Part:
    """One part of any dialect. Raises WireError."""
    obj = fields.mapping(value, "part")
    metadata = fields.metadata(obj)
    media_type = fields.text(obj, "mediaType", "mimeType")
    tag = obj.get("kind", obj.get("type"))
    if obj.get("text") is not None or (tag == "text" and "text" not in obj):
        return TextPart(text=fields.text(obj, "text") or "", media_type=media_type, metadata=metadata)
    if obj.get("file") is not None:
        return _read_file(fields.mapping(obj["file"], "file"), media_type, metadata)
    if obj.get("raw") is not None or obj.get("url") is not None:
        return _read_file(obj, media_type, metadata)
    if "data" in obj:
        return _read_data(obj["data"], media_type, metadata)
    raise WireError("part must have text, file, raw, url or data")


def _read_data(data: Any, media_type: str | None, metadata: JsonObject) -> DataPart:
    if metadata.get(BOXED) is True and isinstance(data, Mapping) and data.keys() == {"value"}:
        data = data["value"]
        metadata = {name: value for name, value in metadata.items() if name != BOXED}
    named = metadata.get("mimeType")
    return DataPart(data=data, media_type=media_type or (named if isinstance(named, str) else None), metadata=metadata)


def _read_file(obj: JsonObject, media_type: str | None, metadata: JsonObject) -> FilePart:
    raw = fields.text(obj, "bytes", "raw", "fileWithBytes")
    uri = fields.text(obj, "uri", "url", "fileWithUri", chars_max=None) if raw is None else None
    if raw is None and uri is None:
        raise WireError("file must have bytes or uri")
    return FilePart(
        raw=raw,
        uri=uri,
        filename=fields.text(obj, "name", "filename"),
        media_type=fields.text(obj, "mimeType", "mediaType") or media_type,
        metadata=metadata,
    )


def read_parts(obj: JsonObject) -> tuple[Part, ...]:
    """The ``parts`` member; absent means none. Raises WireError."""
    return tuple(read_part(value) for value in fields.sequence(obj.get("parts"), "parts"))


def read_message(value: Any, *, asked: bool = False) -> Message:
    """A message of any dialect. Raises WireError.

    ``asked`` is for messages somebody sends us: role and parts must be there. In answers a missing or
    strange role counts as the agent's. A missing id becomes the empty one: 0.1 has none, and older 0.3
    peers leave it out (interop.md section 2).
    """
    obj = fields.mapping(value, "message")
    role = fields.read_role(obj.get("role"))
    if asked and role is None:
        raise WireError("message.role must be user or agent")
    if asked and obj.get("parts") is None:
        raise WireError("message.parts is missing")
    return Message(
        message_id=fields.identifier(obj, "messageId") or "",
        role=role or Role.AGENT,
        parts=read_parts(obj),
        context_id=fields.identifier(obj, "contextId", "sessionId"),
        task_id=fields.identifier(obj, "taskId"),
        reference_task_ids=fields.texts(obj, "referenceTaskIds"),
        extensions=fields.texts(obj, "extensions"),
        metadata=fields.metadata(obj),
    )


def read_artifact(value: Any, position: int = 0) -> Artifact:
    """An artifact of any dialect; one without an id is named by its index or position. Raises WireError."""
    obj = fields.mapping(value, "artifact")
    index = fields.count(obj, "index")
    return Artifact(
        artifact_id=fields.identifier(obj, "artifactId") or f"artifact-{position if index is None else index}",
        parts=read_parts(obj),
        name=fields.text(obj, "name"),
        description=fields.text(obj, "description"),
        extensions=fields.texts(obj, "extensions"),
        metadata=fields.metadata(obj),
    )


def read_artifacts(obj: JsonObject) -> tuple[Artifact, ...]:
    """The ``artifacts`` list, and a lone ``artifact`` the list does not hold. Raises WireError."""
    listed = fields.sequence(obj.get("artifacts"), "artifacts")
    found = tuple(read_artifact(value, at) for at, value in enumerate(listed))
    if obj.get("artifact") is not None:
        lone = read_artifact(obj["artifact"])
        if lone.artifact_id not in {artifact.artifact_id for artifact in found}:
            found = (*found, lone)
    return found


def write_tagged_part(part: Part, tag: str) -> dict[str, Any]:
    """A part of 0.3 (``tag`` is ``kind``) or 0.1 (``type``); the media type of data goes into its metadata."""
    match part:
        case TextPart():
            return {tag: "text", "text": part.text, **fields.present(metadata=dict(part.metadata))}
        case DataPart():
            boxed = {} if isinstance(part.data, Mapping) else {BOXED: True}
            data = {"value": part.data} if boxed else part.data
            return {tag: "data", "data": data, **fields.present(metadata={**data_metadata(part), **boxed})}
        case FilePart():
            content = {"bytes": part.raw} if part.raw is not None else {"uri": part.uri or ""}
            file = {**content, **fields.present(name=part.filename, mimeType=part.media_type)}
            return {tag: "file", "file": file, **fields.present(metadata=dict(part.metadata))}


def data_metadata(part: DataPart) -> dict[str, Any]:
    """A data part's metadata with its media type in ``mimeType``, where extension payloads name themselves."""
    named = {} if part.media_type is None else {"mimeType": part.media_type}
    return {**part.metadata, **named}
