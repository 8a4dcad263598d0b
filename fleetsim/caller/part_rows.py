"""Files and data as the API, the events and the command line spell them, and read back from there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetsim.model.errors import WireError
from fleetsim.model.parts import ListedPart

LISTED_MAX = 32
"""How many parts an event or a row of a list names; beside them stands how many there are."""

_SHOWN_MAX = 200


def part_row(part: ListedPart) -> dict[str, Any]:
    """One part with its content: a file's in ``bytes`` (base64) or at ``uri``, data in ``data``."""
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


def noted(parts: Sequence[ListedPart]) -> tuple[ListedPart, ...]:
    """The first of them as events and lists tell of them: without content, names cut to what a list can show."""
    return tuple(
        ListedPart(
            index=part.index,
            kind=part.kind,
            name=_cut(part.name or part.artifact_name),
            media_type=_cut(part.media_type),
            size_bytes=part.size_bytes,
            uri=_cut(part.uri),
            truncated=part.truncated,
        )
        for part in parts[:LISTED_MAX]
    )


def part_notes(parts: Sequence[ListedPart]) -> list[dict[str, Any]]:
    """The first of them, as events and lists carry them; what is not known is left out."""
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
        for part in noted(parts)
    ]


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def read_part_row(row: Mapping[str, Any]) -> ListedPart:
    """A part from its row. Raises WireError."""
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
        raise WireError("a file or data is not listed as a hub lists it") from None
