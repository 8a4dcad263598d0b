"""Fuzz targets that read what peers send: envelopes, messages, events, cards, webhooks, event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fleetsim.client.stream import FrameReader, read_frame
from fleetsim.model.call import Operation
from fleetsim.model.errors import ConnectionLost, LimitReached, RpcError, TimedOut, WireError
from fleetsim.model.event import fold
from fleetsim.model.extensions import read_extras
from fleetsim.runtime.ports import IncomingResponse
from fleetsim.runtime.sse import read_events
from fleetsim.wire import jsonrpc
from fleetsim.wire.choice import choose
from fleetsim.wire.dialect import DIALECTS, dialect, for_request, read_card
from fleetsim.wire.json import dump, parse_untrusted
from fleetsim.wire.reading import read_push_body, read_push_config
from tests.client.test_frame_reader import asked, frame, told
from tests.fuzz.target import Target, mutated
from tests.wire.test_wire_json import strictly_read

_GOLDEN = [
    json.loads(path.read_text()) for path in sorted((Path(__file__).parents[1] / "wire" / "golden").glob("*.json"))
]


def _seeds(*names: str) -> list[bytes]:
    return [json.dumps(doc[name]).encode() for doc in _GOLDEN for name in names if name in doc]


def _requests() -> list[bytes]:
    made = [(doc["method"], doc["params"]) for doc in _GOLDEN if "method" in doc and "params" in doc]
    return [jsonrpc.request(at, method, params) for at, (method, params) in enumerate(made)]


def _answers() -> list[bytes]:
    return [json.dumps({"jsonrpc": "2.0", "id": 1, "result": d["result"]}).encode() for d in _GOLDEN if "result" in d]


def envelope(data: bytes) -> bool:
    """A request body, as the agent's front reads it."""
    try:
        request = jsonrpc.read_request(data)
    except RpcError as error:
        dump(jsonrpc.error(getattr(error, "request_id", None), error, "0.3"))
        return False
    dump(jsonrpc.result(request.id, None))
    return True


def message(data: bytes) -> bool:
    """A request down to the call it makes."""
    try:
        request = jsonrpc.read_request(data)
    except RpcError:
        return False
    taken = False
    for version in (None, "1.0", "0.3"):
        try:
            spoken = for_request(request.method, request.params, version)
            call = spoken.decode_call(request.method, request.params)
        except RpcError:
            continue
        taken = bool(repr(call))
    return taken


def reply(data: bytes) -> bool:
    """An agent's answer, read as every operation of every dialect."""
    try:
        value = jsonrpc.read_response(parse_untrusted(data), expect_id=1)
    except (WireError, RpcError):
        return False
    taken = False
    for spoken in DIALECTS.values():
        for operation in Operation:
            try:
                spoken.decode_reply(operation, value)
                taken = True
            except WireError:
                continue
    return taken


def event(data: bytes) -> bool:
    """An event of a stream, read by every dialect, folded, and written again."""
    try:
        value = parse_untrusted(data)
    except WireError:
        return False
    taken = False
    for name in DIALECTS:
        try:
            found = dialect(name).decode_event(value)
        except WireError:
            continue
        task = fold(None, found)
        read_extras(task)
        dump(dialect(name).encode_event(found))
        taken = True
    return taken


def card(data: bytes) -> bool:
    """A card, and the way it says to be called: never off the configured origin."""
    try:
        found = read_card(parse_untrusted(data))
    except WireError:
        return False
    choice = choose(found, "http://agent.example:8000")
    assert choice.url.startswith("http://agent.example:8000"), choice.url
    return True


def push(data: bytes) -> bool:
    """A webhook body, and a webhook registration."""
    try:
        value = parse_untrusted(data, bytes_max=256 * 1024)
    except WireError:
        return False
    taken = False
    try:
        assert all(len(event.task_id) <= 1_024 for event in read_push_body(value))
        taken = True
    except WireError:
        pass
    try:
        config = read_push_config(value)
        assert config.token is None or config.token not in repr(config) or len(config.token) < 4
    except WireError:
        pass
    return taken


def sse(data: bytes) -> bool:
    """An event stream in slices cut where the bytes themselves say."""
    cut = data[0] + 1 if data else 1
    pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
    try:
        return bool(_LOOP.run_until_complete(_read(pieces)))
    except (WireError, LimitReached, ConnectionLost, TimedOut):
        return False


_FRAMES = {name: frame(name) for name in DIALECTS}


def frames(data: bytes) -> bool:
    """A frame of a stream after one that was read: the same as by itself, though its JSON may not be parsed."""
    said, taken = data.decode(errors="replace"), False
    for name, first in _FRAMES.items():
        reader = FrameReader(asked(name))
        reader.read(first)
        alone = told(read_frame, said, asked(name))
        assert told(reader.read, said) == alone
        taken = taken or not isinstance(alone, tuple)
    return taken


def document(data: bytes) -> bool:
    """Any JSON: the value that the standard library reads, once what is ambiguous is refused."""
    found = told(parse_untrusted, data)
    assert repr(found) == repr(told(strictly_read, data)) or isinstance(found, tuple)
    return not isinstance(found, tuple)


_LOOP = asyncio.new_event_loop()


async def _read(pieces: list[bytes]) -> list[Any]:
    async def arrive() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    headers = {"content-type": "text/event-stream"}
    return [
        read_event async for read_event in read_events(IncomingResponse(status=200, headers=headers, chunks=arrive()))
    ]


def _streams() -> list[bytes]:
    said = [b"data: " + seed + b"\n\n" for seed in _seeds("event", "body")]
    return [
        *said,
        b"\xef\xbb\xbf: hi\r\nevent: x\rid: 7\r\ndata: a\ndata: b\n\n",
        b"data: [DONE]\n\n",
        b"".join(said[:6]),
    ]


TARGETS = (
    Target(name="envelope", promise="RpcError", draw=mutated(*_requests()), judge=envelope),
    Target(name="message", promise="RpcError", draw=mutated(*_requests()), judge=message),
    Target(name="reply", promise="WireError, RpcError", draw=mutated(*_answers()), judge=reply),
    Target(name="event", promise="WireError", draw=mutated(*_seeds("event", "body", "result")), judge=event),
    Target(name="card", promise="WireError, and no call leaves the origin", draw=mutated(*_seeds("card")), judge=card),
    Target(name="push", promise="WireError", draw=mutated(*_seeds("body", "event", "params")), judge=push),
    Target(
        name="frames",
        promise="read as by itself, whatever was read before",
        draw=mutated(*(first.encode() for first in _FRAMES.values())),
        judge=frames,
    ),
    Target(
        name="document",
        promise="read as the standard library reads it",
        draw=mutated(*_requests(), *_answers(), *_seeds("event", "body", "card")),
        judge=document,
    ),
    Target(name="sse", promise="WireError, LimitReached", draw=mutated(*_streams()), judge=sse),
)
