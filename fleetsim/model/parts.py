"""Files and data beside a text: what a message or a task holds of them, how large they are, how many are kept.

Content is measured and bounded here and never fetched or written: a file given by address stays an address.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import is_payload
from fleetsim.model.limits import PARTS_BYTES_MAX, TooMuch
from fleetsim.model.task import DataPart, FilePart, JsonObject, Part, Task, TextPart, said_since
from fleetsim.model.text import one_line

PARTS_MAX = 256
"""How many files and data of one message or task are taken."""

LISTED_MAX = 32
"""How many parts an event or a row of a list names; beside them stands how many there are."""

_SHOWN_MAX = 200

_NAME_CHARS_MAX = 1_024


class TooManyParts(TooMuch):
    """A message carries more files and data than ``parts_max`` or ``parts_bytes_max`` allows."""


class ListedPart(Struct, frozen=True, kw_only=True):
    """One file or piece of data, with its content unless that is too much (``truncated``) or only listed.

    ``kind`` is ``file`` or ``data``. ``index`` counts from 1 over both. A file has ``raw`` (base64 as on the wire)
    or ``uri``, which nobody fetches unasked; ``size_bytes`` is the decoded size, None for a file given by address.
    ``artifact_id`` is empty for a part of the agent's last message.
    """

    index: int
    kind: str
    name: str | None = None
    media_type: str | None = None
    size_bytes: int | None = None
    artifact_id: str = ""
    artifact_name: str | None = None
    uri: str | None = None
    raw: str | None = None
    data: Any = None
    metadata: JsonObject = {}
    truncated: bool = False

    def __str__(self) -> str:
        """``file 1: report.pdf, application/pdf, 48,211 bytes``, harmless on one line."""
        said = [self.name or self.artifact_name or "", self.media_type or ""]
        said = [one_line(text, 100) for text in said if text]
        if self.size_bytes is not None:
            said.append(f"{self.size_bytes:,} bytes")
        if self.uri is not None:
            said.append(f"at {one_line(self.uri, 300)}")
        if self.truncated:
            said.append("too large to be kept")
        return f"{self.kind} {self.index}: {', '.join(said)}"

    @property
    def part(self) -> FilePart | DataPart:
        """The part as it came; without content if that was not kept."""
        if self.kind == "data":
            return DataPart(data=self.data, media_type=self.media_type, metadata=self.metadata)
        return FilePart(
            raw=self.raw, uri=self.uri, filename=self.name, media_type=self.media_type, metadata=self.metadata
        )


def content_of(raw: str) -> bytes:
    """The bytes of base64 text: either alphabet, padded or not, broken into lines or not. Raises ValueError."""
    packed = "".join(raw.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the content is not base64") from None


def size_of(part: Part) -> int:
    """The decoded bytes of a file's content, the bytes of text and data as ASCII JSON; an address has none.

    Raises ConfigError for data that JSON has no form for.
    """
    match part:
        case TextPart(text=text):
            return _json_bytes(text)
        case FilePart(raw=raw):
            return 0 if raw is None else len("".join(raw.split()).rstrip("=")) * 3 // 4
        case DataPart(data=data):
            return _json_bytes(data)


def require_parts(parts: Iterable[Part], metadata: JsonObject) -> None:
    """Refuse what one message may not carry, before anything is accepted or sent.

    Raises:
        TooManyParts: more than ``PARTS_MAX`` parts, or more than ``PARTS_BYTES_MAX`` bytes of files, data and
            metadata, decoded, together.
        ConfigError: data or metadata that JSON has no form for.
    """
    parts = tuple(parts)
    if len(parts) > PARTS_MAX:
        raise TooManyParts(f"{len(parts):,} files and data; at most {PARTS_MAX} are taken (parts_max)")
    size = sum(_weight(part) for part in parts) + (_json_bytes(metadata) if metadata else 0)
    if size > PARTS_BYTES_MAX:
        raise TooManyParts(
            f"files, data and metadata have {size:,} bytes; at most {PARTS_BYTES_MAX:,} are taken (parts_bytes_max)",
            hint="send fewer or smaller ones, or files by their address",
        )


def _weight(part: Part) -> int:
    """What a part counts against ``PARTS_BYTES_MAX``: its content, and what an agent may say about it at any length."""
    about: list[Any] = [part.media_type, dict(part.metadata)] if part.media_type or part.metadata else []
    if isinstance(part, FilePart):
        about += [text for text in (part.filename, part.uri) if text]
    return size_of(part) + (_json_bytes(about) if about else 0)


def _json_bytes(value: Any) -> int:
    try:
        return len(json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError):
        raise ConfigError("the data or metadata has no JSON form") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def answer_parts(task: Task) -> tuple[tuple[ListedPart, ...], int]:
    """The files and data an agent answered with, in order, and how many there are in all.

    They are the parts of its artifacts, then those of its last message. Payloads of extensions are left out:
    cost, confidence and effects are read, not downloaded. At most ``PARTS_MAX`` are listed, and in order as many
    keep their content as fit in ``PARTS_BYTES_MAX``; the others are ``truncated``.
    """
    found = list(_answered(task))
    listed: list[ListedPart] = []
    left = PARTS_BYTES_MAX
    for artifact_id, artifact_name, part in found[:PARTS_MAX]:
        weight = _weight(part)
        one = listed_part(part, len(listed) + 1, artifact_id=artifact_id, artifact_name=artifact_name)
        if weight > left:
            listed.append(without_content(one, truncated=True))
        else:
            left -= weight
            listed.append(one)
    return tuple(listed), len(found)


def _answered(task: Task) -> Iterator[tuple[str, str | None, FilePart | DataPart]]:
    """(artifact id, artifact name, part), the parts of messages without an artifact."""
    for artifact in task.artifacts:
        for part in artifact.parts:
            if not isinstance(part, TextPart) and not is_payload(part):
                yield artifact.artifact_id, artifact.name, part
    said = task.status.message
    if said is None and not task.artifacts and task.terminal:
        said = next(said_since(task.history), None)
    for part in said.parts if said is not None else ():
        if not isinstance(part, TextPart) and not is_payload(part):
            yield "", None, part


def listed_parts(parts: Iterable[Part]) -> tuple[ListedPart, ...]:
    """The files and data of a message we send."""
    found = [part for part in parts if not isinstance(part, TextPart)]
    return tuple(listed_part(part, at) for at, part in enumerate(found, 1))


def listed_part(
    part: FilePart | DataPart, index: int, *, artifact_id: str = "", artifact_name: str | None = None
) -> ListedPart:
    """A part as it is listed, content included."""
    file = part if isinstance(part, FilePart) else None
    return ListedPart(
        index=index,
        kind="data" if file is None else "file",
        name=_short(file.filename) if file else None,
        media_type=_short(part.media_type),
        size_bytes=None if file is not None and file.raw is None else size_of(part),
        artifact_id=artifact_id,
        artifact_name=_short(artifact_name),
        uri=file.uri if file else None,
        raw=file.raw if file else None,
        data=part.data if isinstance(part, DataPart) else None,
        metadata=part.metadata,
    )


def _short(name: str | None) -> str | None:
    return name[:_NAME_CHARS_MAX] if name else None


def without_content(part: ListedPart, *, truncated: bool | None = None) -> ListedPart:
    """The same part, listed only."""
    return ListedPart(
        index=part.index,
        kind=part.kind,
        name=part.name,
        media_type=part.media_type,
        size_bytes=part.size_bytes,
        artifact_id=part.artifact_id,
        artifact_name=part.artifact_name,
        uri=None if truncated else part.uri,
        truncated=part.truncated if truncated is None else truncated,
    )


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


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
