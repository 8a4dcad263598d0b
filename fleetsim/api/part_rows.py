"""Files and data as rows of the API, the events and the command line; both directions.

``api.bodies`` reads the output of ``body_part``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from fleetsim.api.answer import HubAnswer
from fleetsim.model.parts import ListedPart, parts_for_list
from fleetsim.model.task import DataPart, FilePart, Part, TextPart


class PartFacts(HubAnswer, frozen=True, kw_only=True):
    """A file or data. ``bytes`` is base64. In lists and events it has no content, and no member without a value."""

    index: int
    kind: str
    name: str | UnsetType | None = UNSET
    mime_type: str | UnsetType | None = UNSET
    size_bytes: int | UnsetType | None = UNSET
    artifact_id: str | UnsetType | None = UNSET
    artifact_name: str | UnsetType | None = UNSET
    truncated: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    uri: str | UnsetType = UNSET
    bytes: str | UnsetType = UNSET
    data: Any = UNSET


def body_part(part: Part) -> dict[str, Any]:
    """Return a part for the body of a request or answer."""
    match part:
        case TextPart(text=text):
            return {"kind": "text", "text": text}
        case DataPart(data=data):
            row = {"kind": "data", "data": data}
        case FilePart():
            row = {"kind": "file", "bytes": part.raw, "uri": part.uri, "name": part.filename}
    return row | {"mimeType": part.media_type, "metadata": dict(part.metadata)}


def part_row(part: ListedPart) -> PartFacts:
    """Return one part with its content: ``bytes`` (base64) or ``uri`` of a file, ``data`` of data."""
    return PartFacts.of(
        part,
        mime_type=part.media_type,
        artifact_id=part.artifact_id or None,
        metadata=dict(part.metadata) or UNSET,
        uri=UNSET if part.uri is None else part.uri,
        bytes=part.raw if part.raw is not None and not part.truncated else UNSET,
        data=part.data if part.kind == "data" and not part.truncated else UNSET,
    )


def part_notes(parts: Sequence[ListedPart]) -> tuple[PartFacts, ...]:
    """Return the first parts for events and lists, without content and without unknown members."""
    return tuple(
        PartFacts(
            index=part.index,
            kind=part.kind,
            name=UNSET if part.name is None else part.name,
            mime_type=UNSET if part.media_type is None else part.media_type,
            size_bytes=UNSET if part.size_bytes is None else part.size_bytes,
            truncated=part.truncated or UNSET,
            uri=UNSET if part.uri is None else part.uri,
        )
        for part in parts_for_list(parts)
    )


def read_part_row(row: PartFacts) -> ListedPart:
    """Read a part from its row."""
    return ListedPart(
        index=row.index,
        kind=row.kind,
        name=row.name or None,
        media_type=row.mime_type or None,
        size_bytes=None if row.size_bytes is UNSET else row.size_bytes,
        artifact_id=row.artifact_id or "",
        artifact_name=row.artifact_name or None,
        uri=row.uri or None,
        raw=None if row.bytes is UNSET else row.bytes,
        data=None if row.data is UNSET else row.data,
        metadata=row.metadata or {},
        truncated=bool(row.truncated),
    )
