"""Large responses in pieces: the same bytes for any content, and a deadline for a client that does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request

from fleetsim.model.event import DirectReply, TaskEvent
from fleetsim.runtime.inbound import ABORT, PIECE_BYTES, EventStreamResponse, PacedResponse, while_connected
from fleetsim.wire.sse import KEEPALIVE
from tests.agent.environment import said


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 3 * PIECE_BYTES - 1])
async def test_a_response_of_any_size_arrives_whole_and_ends_once(size: int) -> None:
    body, sent = bytes(n % 251 for n in range(size)), list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    await PacedResponse(body)({"type": "http", "extensions": {}}, send, send)
    start, *told = sent
    assert start["type"] == "http.response.start"
    assert b"".join(message["body"] for message in told) == body
    assert [message.get("more_body", False) for message in told] == [True] * (len(told) - 1) + [False]
    assert max(len(message["body"]) for message in told) <= PIECE_BYTES


async def test_a_large_response_that_is_not_read_ends_its_connection() -> None:
    sent: list[Any] = []
    dropped: list[bool] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 3:
            await asyncio.sleep(1e6)

    async def receive() -> Any:
        raise AssertionError("nobody asks")

    scope = {"type": "http", "extensions": {ABORT: lambda: dropped.append(True)}}
    before = asyncio.get_running_loop().time()
    await PacedResponse(b"x" * 1_000_000)(scope, receive, send)
    assert asyncio.get_running_loop().time() - before == 30
    assert dropped == [True]
    assert len(sent) == 4


def written(event: TaskEvent) -> bytes:
    return b"first" if isinstance(event, DirectReply) else b""


class OneEvent:
    """A stream of one event."""

    about, ready = "one event", True

    def close(self) -> None:
        """Release nothing."""

    async def events(self) -> AsyncGenerator[TaskEvent | None, None]:
        yield DirectReply(message=said("x"))


async def never() -> Any:
    await asyncio.sleep(1e6)
    return {"type": "http.disconnect"}


async def test_a_stream_ends_with_its_last_event_while_the_client_stays() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    stream = EventStreamResponse(OneEvent(), written, keepalive=KEEPALIVE, write_s=30)
    async with asyncio.timeout(1):
        await stream({"type": "http"}, never, send)
    assert [message.get("body") for message in sent] == [None, b"first"], "all that is ready, and the end"
    assert [message.get("more_body") for message in sent] == [None, False]
    assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")


@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
async def test_a_large_event_is_sent_in_pieces(size: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    stream = EventStreamResponse[TaskEvent](OneEvent(), lambda _: b"x" * size, keepalive=KEEPALIVE, write_s=30)
    await stream({"type": "http"}, never, send)
    sizes = [len(message["body"]) for message in sent[1:]]
    assert (sum(sizes), max(sizes)) == (size, PIECE_BYTES)


@pytest.mark.parametrize("at", [0, 1])
async def test_a_stream_ends_when_its_client_leaves_or_does_not_read(at: int) -> None:
    dropped: list[bool] = []
    scope: dict[str, Any] = {"type": "http", "extensions": {ABORT: lambda: dropped.append(True)}}
    count = 0

    async def send(message: Any) -> None:
        nonlocal count
        count += 1
        if count > at:
            await asyncio.sleep(1e6)

    async def leave() -> Any:
        await asyncio.sleep(5)
        return {"type": "http.disconnect"}

    before = asyncio.get_running_loop().time()
    await EventStreamResponse(OneEvent(), written, keepalive=KEEPALIVE, write_s=30)(scope, leave, send)
    assert asyncio.get_running_loop().time() - before == 5
    assert dropped == []
    if at:
        count = 0
        await EventStreamResponse(OneEvent(), written, keepalive=KEEPALIVE, write_s=30)(scope, never, send)
        assert asyncio.get_running_loop().time() - before == 35
        assert dropped == [True]


async def test_an_application_is_cancelled_when_its_client_leaves() -> None:
    async def answer() -> str:
        await asyncio.sleep(10)
        return "done"

    def request(leaves_s: float) -> Request:
        async def receive() -> Any:
            await asyncio.sleep(leaves_s)
            return {"type": "http.disconnect" if leaves_s else "http.request"}

        return Request({"type": "http"}, receive)

    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await while_connected(request(1e6), answer) == ("done",)
    assert loop.time() - before == 10
    assert await while_connected(request(4), answer) is None
    assert loop.time() - before == 14
