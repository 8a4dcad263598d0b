"""A tape: the card of an agent, exchanges with it and its webhooks, as JSON lines; and what requests on it mean.

Secrets are masked before a line is written (decision 64). Nothing here reaches outside.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Struct

from fleetsim.model.call import Call, Operation, PushConfig, SendMessage
from fleetsim.model.errors import ConfigError, RpcError, WireError
from fleetsim.model.masking import masked, masked_shapes, masked_url
from fleetsim.model.task import TextPart
from fleetsim.model.text import one_line
from fleetsim.wire import rest
from fleetsim.wire.base import Dialect
from fleetsim.wire.cards import read_card
from fleetsim.wire.dialect import VERSION_HEADER, for_path, for_request
from fleetsim.wire.json import dump, parse_untrusted

TAPE_BYTES_MAX = 64 * 1024 * 1024
BASE64 = "base64:"
HOOKS = "http://webhook.tape/"
"""The address of a caller's webhook on a tape, before its number."""
_VARIABLE = re.compile(
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{16,}\b|\b\d{4}-\d\d-\d\d(T[\d:.]{5,15}(Z|[+-][\d:]+)?)?",
    re.IGNORECASE,
)
"""Ids and dates, which differ each time."""
_KEPT = re.compile(
    "accept|content-type|cache-control|(x-)?a2a-(extensions|version)|last-event-id|www-authenticate|location|allow"
    "|retry-after|vary|etag|if-none-match|access-control-[a-z-]+|x-accel-buffering|x-content-type-options"
)
"""The only headers on a tape: a key may be in any other one."""
TOKENS = ("authorization", "x-a2a-notification-token")
"""Headers of a webhook that hold its token; a tape has their names."""
TASK_ID, CONTEXT_ID = frozenset({"taskId", "task_id"}), frozenset({"contextId", "context_id", "sessionId"})
_MADE = TASK_ID | CONTEXT_ID | {"messageId", "message_id"}


class TapeFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line: the agent, its address and its card. ``rebuilt`` says what the agent did not send itself."""

    tape: Literal[1]
    url: str
    recorded: str
    agent: str = ""
    rebuilt: str = ""
    card: dict[str, Any] | None = None


class TapeFrame(Struct, omit_defaults=True):
    """An event of a stream, ``after`` seconds since the request."""

    after: float
    body: Any
    event: str = "message"
    id: str = ""


class TapeRow(Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A request with its reply; with a ``hook``, the agent's webhook to that address. A stream has ``frames``.

    Seconds are those since the recording began (``at``) or since the request (``after``, ``ended``). A body is JSON, or
    text, or ``base64:`` and its bytes. ``keyed``: the request had a credential. ``broke``: how the connection failed.
    """

    at: float
    hook: int = 0
    method: str = "POST"
    path: str = ""
    keyed: bool = False
    headers: dict[str, str] = {}
    body: Any = None
    status: int | None = None
    after: float = 0.0
    ended: float = 0.0
    reply_headers: dict[str, str] = {}
    reply: Any = None
    frames: list[TapeFrame] | None = None
    broke: str = ""

    @property
    def replies(self) -> list[Any]:
        return [self.reply, *(frame.body for frame in self.frames or ())]


@dataclass(slots=True)
class Tape:
    """A tape in memory."""

    head: TapeFacts
    rows: list[TapeRow] = field(default_factory=list)

    @classmethod
    def read(cls, content: bytes, source: str) -> Tape:
        """Raises ConfigError, with the line, if ``content`` is not a tape."""
        number, rows = 1, list[TapeRow]()
        try:
            first, *rest = content.splitlines() or [b""]
            head = msgspec.json.decode(first, type=TapeFacts)
            for line in rest:
                number += 1
                rows.append(msgspec.json.decode(line, type=TapeRow))
        except (ValueError, RecursionError) as error:
            hint = "fleetsim tape record URL --out FILE writes one"
            raise ConfigError(f"{source}:{number}: not a line of a tape: {one_line(str(error))}", hint=hint) from None
        return cls(head, rows)

    def written(self, secrets: Iterable[str] = ()) -> tuple[bytes, list[str]]:
        """The lines without secrets, and a sentence for each string in them that may still be one."""
        known = sorted({text for secret in secrets for text in (secret, dump(secret)[1:-1].decode())}, key=len)
        lines, doubts = [], dict[str, str]()
        for number, row in enumerate((self.head, *sorted(self.rows, key=lambda row: row.at)), 1):
            line, random = masked_shapes(masked(msgspec.json.encode(row).decode(), reversed(known)))
            lines.append(line.encode())
            for word in random:
                doubts.setdefault(word, f"line {number}: {word[:4]}… ({len(word)} characters) may be a secret")
        return b"\n".join([*lines, b""]), [*doubts.values()]


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if _KEPT.fullmatch(name)}


def pack(data: bytes) -> Any:
    """A body as a tape holds it; None if it is empty."""
    try:
        if isinstance(value := parse_untrusted(data), dict | list):
            return value
    except WireError:
        pass
    try:
        return data.decode() or None
    except UnicodeDecodeError:
        return BASE64 + b64encode(data).decode()


def unpack(body: Any) -> bytes:
    if isinstance(body, str):
        return b64decode(body[len(BASE64) :]) if body.startswith(BASE64) else body.encode()
    return b"" if body is None else dump(body)


def params_of(body: Any) -> Any:
    """The content of a JSON-RPC envelope; without one, the body itself."""
    return body.get("params", body.get("result")) if isinstance(body, dict) and "jsonrpc" in body else body


def readdress(body: Any, origin: str) -> dict[str, Any] | None:
    """Move the interfaces of the card in a reply to this origin; returns the card, None if the reply has none.

    Interfaces that cannot be recorded go, and so do signatures, because they would not fit any more.
    """
    card = params_of(body)
    try:
        read_card(card)
    except WireError:
        return None
    assert isinstance(card, dict)
    card.pop("signatures", None)
    lists = [name for name in ("additionalInterfaces", "supportedInterfaces") if isinstance(card.get(name), list)]
    for name in lists:
        card[name] = [row for row in card[name] if isinstance(row, dict) and "GRPC" not in map(str, row.values())]
    for row in (card, *(row for name in lists for row in card[name])):
        if isinstance(row.get("url"), str):
            row["url"] = origin + urlsplit(row["url"])._replace(scheme="", netloc="").geturl()
    return card


# -- requests -----------------------------------------------------------------------------------------------------


class TapeRequest(Struct, frozen=True, kw_only=True):
    """A request. ``operation`` is None if the request cannot be read as a call of A2A; its ``text`` is then all of it.

    ``task_id`` and ``context_id`` are the caller's words, ``ids`` are all of them. Of equal requests those with the
    same ``variant`` go first.
    """

    operation: Operation | None = None
    call: Call | None = None
    spoken: Dialect | None = None
    skill: str = ""
    text: str = ""
    task_id: str = ""
    context_id: str = ""
    ids: tuple[str, ...] = ()
    push: PushConfig | None = None
    variant: tuple[Any, ...] = ()

    @property
    def kind(self) -> tuple[str, str]:
        """The operation and the dialect; a tape replies only in a dialect in which it was recorded."""
        return str(self.operation or "request"), self.spoken.name if self.spoken else ""

    def __str__(self) -> str:
        skill = [f"with skill {self.skill}"] if self.skill else []
        return " ".join([*filter(None, self.kind), *skill, f'"{self.text[:200]}"', *["to a task"] * bool(self.task_id)])


def read_request(row: TapeRow, places: Collection[str], secrets: Collection[str] = ()) -> TapeRequest:
    """The request of a row. ``places`` are the paths of the interfaces over HTTP+JSON."""
    version, body = row.headers.get(VERSION_HEADER.lower()), row.body
    try:
        spoken, call = _call(row.method, row.path, version, body, places)
    except (RpcError, WireError, TypeError, AttributeError):
        known = {name: value for name, value in body.items() if name != "id"} if isinstance(body, dict) else body
        text = f"{row.method} {masked_url(row.path)[0]} {version or ''} {dump(known).decode()}"
        return TapeRequest(text=plain(text, secrets), variant=(row.keyed, row.headers.get("if-none-match")))
    task, context = getattr(call, "task_id", None) or "", getattr(call, "context_id", None) or ""
    push: PushConfig | None = getattr(call, "push", getattr(call, "config", None))
    skill, text, ids = "", str(getattr(call, "state", None) or ""), [getattr(call, "config_id", None) or ""]
    wanted = [getattr(call, name, None) for name in ("wait", "history_length")]
    if isinstance(call, SendMessage):
        message, hints = call.message, {**call.metadata, **call.message.metadata}
        skill = str(hints.get("skillHint") or hints.get("skillId") or "")
        text = "\n".join(part.text if isinstance(part, TextPart) else repr(part) for part in message.parts)
        task, context = task or message.task_id or "", message.context_id or ""
        ids = [message.message_id, str(hints.get("correlationId") or "")]
    return TapeRequest(
        operation=call.operation,
        call=call,
        spoken=spoken,
        skill=skill,
        text=plain(text, secrets),
        task_id=task,
        context_id=context,
        ids=(task, context, *ids, push.config_id or "" if push else ""),
        push=push,
        variant=(row.keyed, skill, push is not None, *wanted),
    )


def _call(method: str, path: str, version: str | None, body: Any, places: Collection[str]) -> tuple[Dialect, Call]:
    if isinstance(body, dict) and "jsonrpc" in body:
        name, params = str(body.get("method") if body["jsonrpc"] == "2.0" else None), params_of(body) or {}
        spoken = for_request(name, params, version)
        return spoken, spoken.decode_call(name, params)
    sent = urlsplit(path)
    place = next((place for place in places if sent.path.startswith(f"{place}/")), "")
    below = sent.path.removeprefix(place)
    spoken = for_path(below, version)
    return spoken, rest.read_call(spoken, rest.match(spoken, method, below), parse_qsl(sent.query), body or None)


def plain(text: str, secrets: Collection[str]) -> str:
    """Text as it is compared: without secrets, ids, dates, capitals and runs of white space."""
    return " ".join(_VARIABLE.sub("#", masked_shapes(masked(text, secrets))[0]).casefold().split())


def made_ids(value: Any, names: Collection[str] = _MADE) -> Iterator[str]:
    """The ids of tasks, conversations and messages in a reply, a frame or a webhook; or those of these names."""
    if isinstance(value, list):
        for item in value:
            yield from made_ids(item, names)
    elif isinstance(value, dict):
        task = {*names} >= TASK_ID and ("status" in value or "artifact" in value)
        for name, item in value.items():
            if isinstance(item, str) and item and (name in names or (task and name == "id")):
                yield item
            else:
                yield from made_ids(item, names)


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """``value`` with other ids. Short ids change where an id stands alone, longer ones in texts too."""
    long = sorted((name for name in names if len(name) >= 8), key=len, reverse=True)
    found = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, long)) or '(?!)'})(?![\w-])")

    def rename(item: Any, member: str = "") -> Any:
        match item:
            case dict():
                return {name: rename(inner, name) for name, inner in item.items()}
            case list():
                return [rename(inner, member) for inner in item]
            case str() if item in names and member.lower().endswith("id"):
                return names[item]
            case str():
                return found.sub(lambda match: names[match[0]], item)
        return item

    return rename(value)


def push_configs(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in the parameters of a call that have the address of a webhook."""
    if isinstance(value, dict):
        if isinstance(value.get("url"), str):
            yield value
        for name, item in value.items():
            if name not in {"message", "request", "metadata"}:
                yield from push_configs(item)
