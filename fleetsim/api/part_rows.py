"""Files and data as rows of the API, the events and the command line; both directions.

``api.bodies`` reads the output of ``body_part``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.parts import ListedPart, parts_for_list
from fleetsim.model.task import DataPart, FilePart, Part, TextPart


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


def part_row(part: ListedPart) -> dict[str, Any]:
    """Return one part with its content: ``bytes`` (base64) or ``uri`` of a file, ``data`` of data."""
    row: dict[str, Any] = {
        "index": part.index,
        "kind": part.kind,
        "name": part.name,
        "mimeType": part.media_type,
        "sizeBytes": part.size_bytes,
        "artifactId": part.artifact_id or None,
        "artifactName": part.artifact_name,
        "truncated": part.truncated,
    }
    if part.metadata:
        row["metadata"] = dict(part.metadata)
    if part.uri is not None:
        row["uri"] = part.uri
    if part.truncated:
        return row
    if part.raw is not None:
        row["bytes"] = part.raw
    if part.kind == "data":
        row["data"] = part.data
    return row


def part_notes(parts: Sequence[ListedPart]) -> list[dict[str, Any]]:
    """Return the first parts for events and lists, without content and without unknown members."""
    return [
        {
            name: value
            for name, value in (
                ("index", part.index),
                ("kind", part.kind),
                ("name", part.name),
                ("mimeType", part.media_type),
                ("sizeBytes", part.size_bytes),
                ("uri", part.uri),
                ("truncated", part.truncated or None),
            )
            if value is not None
        }
        for part in parts_for_list(parts)
    ]


def read_part_row(row: Mapping[str, Any]) -> ListedPart:
    """Read a part from its row. Raises WireError."""
    try:
        return ListedPart(
            index=int(row["index"]),
            kind=str(row["kind"]),
            name=row.get("name"),
            media_type=row.get("mimeType"),
            size_bytes=row.get("sizeBytes"),
            artifact_id=row.get("artifactId") or "",
            artifact_name=row.get("artifactName"),
            uri=row.get("uri"),
            raw=row.get("bytes"),
            data=row.get("data"),
            metadata=row.get("metadata") or {},
            truncated=bool(row.get("truncated")),
        )
    except (KeyError, TypeError, ValueError):
        raise WireError("the row of a file or data is malformed") from None
