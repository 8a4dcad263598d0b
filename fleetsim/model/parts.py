"""Files and data of a message or task: their size, and how many are kept. Content is never fetched or written."""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fleetsim.model.errors import ConfigError
from fleetsim.model.extensions import is_payload
from fleetsim.model.limits import PARTS_BYTES_MAX, TooMuch
from fleetsim.model.task import DataPart, FilePart, JsonObject, Part, Task, TextPart, latest_agent_messages
from fleetsim.model.text import one_line

PARTS_MAX = 256
"""The most files and data of one message or task."""

LISTED_MAX = 32
"""The most parts in an event or a row of a list; their total stands next to them."""

_SHOWN_MAX = 200

_NAME_CHARS_MAX = 1_024


class TooManyParts(TooMuch):
    """A message has more files and data than ``parts_max`` or ``parts_bytes_max`` allows."""


class ListedPart(Struct, frozen=True, kw_only=True):
    """One file or piece of data. Its content is missing if it is too large (``truncated``) or in a list. ``kind`` is
    ``file`` or ``data``. ``index`` counts files and data together, from 1. A file has ``raw`` (base64 as on the wire)
    or ``uri``, which fleetsim does not fetch on its own. ``size_bytes`` is the decoded size; None for a file with an
    address. ``artifact_id`` is empty for a part of the agent's last message."""

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
        """One neutralised line, such as ``file 1: report.pdf, application/pdf, 48,211 bytes``."""
        words = [self.name or self.artifact_name or "", self.media_type or ""]
        words = [one_line(text, 100) for text in words if text]
        if self.size_bytes is not None:
            words.append(f"{self.size_bytes:,} bytes")
        if self.uri is not None:
            words.append(f"at {one_line(self.uri, 300)}")
        if self.truncated:
            words.append("too large to be kept")
        return f"{self.kind} {self.index}: {', '.join(words)}"

    @property
    def part(self) -> FilePart | DataPart:
        """The part as received; without content if that was not kept."""
        if self.kind == "data":
            return DataPart(data=self.data, media_type=self.media_type, metadata=self.metadata)
        return FilePart(
            raw=self.raw, uri=self.uri, filename=self.name, media_type=self.media_type, metadata=self.metadata
        )


def content_of(raw: str) -> bytes:
    """Decode base64 of either alphabet, with or without padding and line breaks. Raises ValueError."""
    packed = "".join(raw.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return binascii.a2b_base64(packed + "=" * (-len(packed) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        raise ValueError("the content is not base64") from None


def size_of(part: Part) -> int:
    """Return the decoded bytes of a file, or the bytes of text and data as ASCII JSON. A file with an address has 0.
    Raises ConfigError for data that JSON cannot represent."""
    match part:
        case TextPart(text=text):
            return _json_bytes(text)
        case FilePart(raw=raw):
            if raw is None:
                return 0
            if any(space in raw for space in " \n\r\t"):  # quick for 8 MB, as to split it is not
                raw = "".join(raw.split())
            return (len(raw) - raw[-2:].count("=")) * 3 // 4
        case DataPart(data=data):
            return _json_bytes(data)


def require_parts(parts: Iterable[Part], metadata: JsonObject) -> None:
    """Check the parts and metadata of a message before it is accepted or sent. Raises TooManyParts for more than
    ``PARTS_MAX`` parts or ``PARTS_BYTES_MAX`` decoded bytes of all, and ConfigError for data that JSON cannot hold."""
    parts = tuple(parts)
    if len(parts) > PARTS_MAX:
        raise TooManyParts(f"{len(parts):,} files and data; at most {PARTS_MAX} are taken (parts_max)")
    size = weight_of(parts, metadata)
    if size > PARTS_BYTES_MAX:
        raise TooManyParts(
            f"files, data and metadata have {size:,} bytes; at most {PARTS_BYTES_MAX:,} are taken (parts_bytes_max)",
            hint="send fewer or smaller ones, or files by their address",
        )


def weight_of(parts: Iterable[Part], metadata: JsonObject) -> int:
    """Return the bytes of parts and metadata that count against ``PARTS_BYTES_MAX``."""
    return sum(_weight(part) for part in parts) + (_json_bytes(metadata) if metadata else 0)


def _weight(part: Part) -> int:
    """Return the bytes that count against ``PARTS_BYTES_MAX``: the content, names, media type and metadata."""
    about: list[Any] = [part.media_type, dict(part.metadata)] if part.media_type or part.metadata else []
    if isinstance(part, FilePart):
        about += [text for text in (part.filename, part.uri) if text]
    return size_of(part) + (_json_bytes(about) if about else 0)


def _json_bytes(value: Any) -> int:
    """The bytes of ``value`` as ASCII JSON. msgspec counts 98,000 numbers in a thirtieth of the time of ``json``."""
    try:
        try:
            data = ENCODER.encode(value)
        except UnicodeEncodeError:  # a lone surrogate
            return len(json.dumps(value, separators=(",", ":"), allow_nan=False, default=plain_mapping))
        if b"null" in data:
            require_finite(value)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError("the data or metadata has no JSON form") from None
    if data.isascii():
        return len(data)
    text = data.decode()
    ascii_only = len(text.encode("ascii", "ignore"))
    return ascii_only + 6 * (len(text.encode("utf-16-le")) // 2 - ascii_only)  # each other one as \\uXXXX


def plain_mapping(value: Any) -> Any:
    """The dict of any other mapping, for a writer of JSON. Raises TypeError for the rest."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


ENCODER = msgspec.json.Encoder(enc_hook=plain_mapping)
"""Writes JSON, and a NaN or an infinite number as null. Raises UnicodeEncodeError for a lone surrogate."""


def require_finite(value: Any) -> None:
    """Raises ValueError for a NaN or an infinite number in a JSON value. Texts, which may be large, are not read."""
    values = [value]
    while values:
        match values.pop():
            case float() as number if not math.isfinite(number):
                raise ValueError("not a finite number")
            case list() | tuple() as items:
                values.extend(items)
            case Mapping() as members:
                values.extend(members.values())


def answer_parts(task: Task) -> tuple[tuple[ListedPart, ...], int]:
    """Return the files and data of an agent's answer, in order, and their total. They are the parts of the artifacts,
    then those of the last message. Payloads of extensions (cost, confidence, effects) are skipped. At most
    ``PARTS_MAX`` are listed. Content is kept in order while it fits into ``PARTS_BYTES_MAX``; the other parts are
    ``truncated``."""
    answered = list(_answered(task))
    listed: list[ListedPart] = []
    left = PARTS_BYTES_MAX
    for artifact_id, artifact_name, part in answered[:PARTS_MAX]:
        weight = _weight(part)
        one = listed_part(part, len(listed) + 1, artifact_id=artifact_id, artifact_name=artifact_name)
        if weight > left:
            listed.append(without_content(one, truncated=True))
        else:
            left -= weight
            listed.append(one)
    return tuple(listed), len(answered)


def _answered(task: Task) -> Iterator[tuple[str, str | None, FilePart | DataPart]]:
    """Yield (artifact id, artifact name, part). Parts of messages have no artifact."""
    for artifact in task.artifacts:
        for part in artifact.parts:
            if not isinstance(part, TextPart) and not is_payload(part):
                yield artifact.artifact_id, artifact.name, part
    message = task.status.message
    if message is None and not task.artifacts and task.terminal:
        message = next(latest_agent_messages(task.history), None)
    for part in message.parts if message is not None else ():
        if not isinstance(part, TextPart) and not is_payload(part):
            yield "", None, part


def listed_parts(parts: Iterable[Part]) -> tuple[ListedPart, ...]:
    """Return the files and data of a message that we send."""
    others = [part for part in parts if not isinstance(part, TextPart)]
    return tuple(listed_part(part, at) for at, part in enumerate(others, 1))


def listed_part(
    part: FilePart | DataPart, index: int, *, artifact_id: str = "", artifact_name: str | None = None
) -> ListedPart:
    """Return a part with its content as a ``ListedPart``."""
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
    """Return a copy of the part without content."""
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


def parts_for_list(parts: Sequence[ListedPart]) -> tuple[ListedPart, ...]:
    """Return the first ``LISTED_MAX`` parts for events and lists: without content, with shortened names."""
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
