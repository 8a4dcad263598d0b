"""One connection of our server: the messages that an application receives and may send, and the bytes held for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from fleetsim.runtime.inbound import BODY_COMPLETE
from tests.runtime.peer import HEAD, MOMENT_S, Peer, guests, site

NEXT = HEAD % b"0"
CHUNKED = b"POST /%s HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
EXPECTING = b"POST /read HTTP/%s\r\nhost: x\r\nexpect: %s\r\ncontent-length: 2\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
CHUNKS = {**START, "headers": []}
OK = {"type": "http.response.body", "body": b"ok"}


def sending(*messages: dict[str, Any]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


class Reader:
    """An application that reads one piece of its body for each release of ``go``, and returns after the last one."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.scope: dict[str, Any] = {}
        self.go = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        while not self.told or self.told[-1].get("more_body"):
            await self.go.acquire()
            self.told.append(await receive())
        await send(START)
        await send(OK)


# messages to the application


async def test_an_application_receives_a_request_in_the_form_of_asgi() -> None:
    reader = Reader()
    peer = Peer(guests(), reader, state={"a": 1})
    await peer.send(b"GET /a%20b?c=%20d HTTP/1.1\r\nHost: x\r\nX: Y\r\n\r\n")
    scope = dict(reader.scope)
    assert scope.pop("extensions")[BODY_COMPLETE]() is True
    assert scope == {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"c=%20d",
        "root_path": "",
        "headers": [(b"host", b"x"), (b"x", b"Y")],
        "server": ("127.0.0.1", 9000),
        "client": ("10.0.0.1", 5),
        "state": {"a": 1},
    }


async def test_a_body_is_marked_complete_with_its_last_byte() -> None:
    reader = Reader()
    peer = Peer(guests(), reader)
    await peer.send(CHUNKED % b"" + b"2\r\nhi\r\n")
    whole = reader.scope["extensions"][BODY_COMPLETE]
    assert whole() is False
    await peer.send(b"0\r\n\r\n")
    assert whole() is True


async def test_an_application_sees_at_once_that_a_client_broke_off_its_body() -> None:
    """Also while a peer that does not read keeps the connection open."""
    reader = Reader()
    peer = Peer(guests(), reader)
    peer.wire.flushes_s = 60
    await peer.send(CHUNKED % b"")
    reader.go.release()
    await peer.send(b"junk\r\n")
    assert peer.gone
    assert reader.told == [{"type": "http.disconnect"}]


async def test_an_application_that_waits_to_write_sees_that_its_client_left() -> None:
    peer = Peer(guests(), site)
    peer.protocol.pause_writing()
    await peer.send(NEXT)
    assert len(peer.protocol.state.tasks) == 1
    peer.wire.close()
    await asyncio.sleep(MOMENT_S)
    assert peer.protocol.state.tasks == set()
    assert peer.wire.written == b""


async def test_an_application_pauses_while_the_client_does_not_read() -> None:
    peer = Peer(guests(), site)
    peer.protocol.pause_writing()
    assert await peer.send(NEXT) == b""
    peer.protocol.resume_writing()
    assert (await peer.send(b"")).endswith(b"ok")


async def test_a_response_to_a_client_that_is_leaving_is_not_written(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(guests(), site)
    peer.wire.flushes_s = 60
    await peer.send(HEAD % b"9")
    peer.wire.close()
    await asyncio.sleep(10)
    assert peer.protocol.state.tasks == set()
    assert peer.wire.written == b""
    assert caplog.records == []


async def test_an_application_that_listens_for_a_disconnect_gets_one_after_its_response() -> None:
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> None:
            heard.extend([await receive(), await receive()])

        listener = asyncio.create_task(listen())
        await asyncio.sleep(1)
        await send(START)
        await send(OK)
        await asyncio.wait([listener], timeout=1)

    peer = Peer(guests(), app)
    await peer.send(NEXT)
    await asyncio.sleep(1.1)
    assert [message["type"] for message in heard] == ["http.request", "http.disconnect"]
    assert not peer.gone


# 100 Continue


@pytest.mark.parametrize(
    ("version", "expected", "told"),
    [(b"1.1", b"100-continue", True), (b"1.0", b"100-continue", False), (b"1.1", b"more", False)],
)
async def test_only_a_client_of_http_1_1_gets_100_continue(version: bytes, expected: bytes, told: bool) -> None:
    peer = Peer(guests(), site)
    answer = await peer.send(EXPECTING % (version, expected))
    assert answer == (b"HTTP/1.1 100 Continue\r\n\r\n" if told else b"")
    assert (await peer.send(b"hi")).startswith(b"HTTP/1.1 200 ")


async def test_a_piece_of_a_body_reaches_the_application_at_once() -> None:
    reader = Reader()
    peer = Peer(guests(), reader)
    await peer.send(CHUNKED % b"")
    for number, piece in enumerate((b"one", b"two"), 1):
        reader.go.release()
        await peer.send(b"")  # it asks, and waits
        await peer.send(b"3\r\n%b\r\n" % piece)
        assert [message["body"] for message in reader.told][number - 1 :] == [piece]


@pytest.mark.parametrize("more", [0, 1])
async def test_reading_pauses_at_the_buffer_limit_until_the_application_reads(more: int) -> None:
    reader = Reader()
    peer = Peer(guests(), reader)
    size = HIGH_WATER_LIMIT + more
    await peer.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (size + 10))
    await peer.send(b"x" * (size - 1))
    assert not peer.wire.paused
    await peer.send(b"x")
    assert peer.wire.paused is bool(more)
    for _ in range(2):  # it reads the bytes that have arrived, and waits for the rest
        reader.go.release()
        await peer.send(b"")
    assert not peer.wire.paused
    assert (await peer.send(b"x" * 10)).startswith(b"HTTP/1.1 200 ")
    assert [len(message["body"]) for message in reader.told] == [size, 10]


async def test_a_pipelined_request_is_not_read_before_the_response_to_the_first() -> None:
    peer = Peer(guests(), site)
    await peer.send(HEAD % b"9" + NEXT)
    assert peer.wire.paused
    await asyncio.sleep(10)
    assert not peer.wire.paused
    assert peer.wire.written.count(b"HTTP/1.1 200 ") == 2


async def test_bytes_after_an_unread_body_end_the_connection() -> None:
    peer = Peer(guests(), site)
    assert (await peer.send(CHUNKED % b"0")).startswith(b"HTTP/1.1 200 ")
    assert await peer.send(b"0\r\n\r\n" + NEXT) == b""
    assert peer.gone
    assert not peer.wire.aborted


# messages from the application


@pytest.mark.parametrize(
    "headers", [[(b"connection", b"keep-alive")], [(b"x", b"close")]], ids=["another word", "another header"]
)
async def test_only_a_response_with_connection_close_ends_its_connection(headers: list[tuple[bytes, bytes]]) -> None:
    peer = Peer(guests(), sending({**START, "headers": [*START["headers"], *headers]}, OK))
    for _ in range(2):
        assert (await peer.send(NEXT)).endswith(b"ok")
    assert not peer.gone


async def test_every_header_of_a_response_is_sent_except_its_framing() -> None:
    headers = [(b"transfer-encoding", b"gzip"), *START["headers"], (b"x", b"1"), (b"x", b"2")]
    peer = Peer(guests(), sending({**START, "headers": headers}, OK))
    assert await peer.send(NEXT) == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: 1\r\nx: 2\r\n\r\nok"


async def test_a_response_without_a_body_may_declare_a_length() -> None:
    peer = Peer(guests(), sending({**START, "status": 304}, {"type": "http.response.body"}))
    for _ in range(2):
        answer = await peer.send(NEXT)
        assert answer.startswith(b"HTTP/1.1 304 Not Modified\r\n")
        assert answer.endswith(b"content-length: 2\r\n\r\n")
    assert not peer.gone


async def test_a_response_to_head_has_no_body_but_may_declare_its_length() -> None:
    peer = Peer(guests(), sending(CHUNKS, OK))
    for _ in range(2):
        answer = await peer.send(NEXT.replace(b"GET", b"HEAD"))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.index(b"\r\n\r\n") == len(answer) - 4
    assert not peer.gone


async def test_a_status_without_a_reason_phrase_is_sent() -> None:
    peer = Peer(guests(), sending({**START, "status": 599}, OK))
    assert (await peer.send(NEXT)).startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize("within", [b"\r", b"\n", b"\0", b"\r\n"])
async def test_a_header_with_a_line_break_is_not_sent(within: bytes) -> None:
    peer = Peer(guests(), sending({**START, "headers": [(b"x", b"1" + within + b"set-cookie: 2")]}, OK))
    assert await peer.send(NEXT) == b""
    assert peer.gone


@pytest.mark.parametrize("more", [OK, START, {"type": "http.response.trailers"}])
@pytest.mark.parametrize("start", [START, CHUNKS], ids=["by length", "in chunks"])
async def test_bytes_after_the_end_of_a_response_are_not_sent(start: dict[str, Any], more: dict[str, Any]) -> None:
    peer = Peer(guests(), sending(start, OK, more))
    answer = await peer.send(NEXT)
    assert answer.partition(b"\r\n\r\n")[2] == (b"ok" if start is START else b"2\r\nok\r\n0\r\n\r\n")
    assert peer.gone


@pytest.mark.parametrize("start", [START, CHUNKS], ids=["by length", "in chunks"])
async def test_a_response_that_begins_twice_is_cut_off(start: dict[str, Any]) -> None:
    peer = Peer(guests(), sending(start, start))
    answer = await peer.send(NEXT)
    assert answer.partition(b"\r\n\r\n")[2] == b""
    assert peer.gone


@pytest.mark.parametrize("first", [OK, {"type": "http.response.trailers"}])
async def test_a_response_that_does_not_begin_with_its_head_is_an_error(first: dict[str, Any]) -> None:
    peer = Peer(guests(), sending(first, START, OK))
    assert (await peer.send(NEXT)).startswith(b"HTTP/1.1 500 ")
    assert peer.gone


async def test_a_cancelled_application_ends_its_connection() -> None:
    peer = Peer(guests(), site)
    await peer.send(HEAD % b"9")
    (task,) = peer.protocol.state.tasks
    task.cancel()
    await asyncio.sleep(MOMENT_S)
    assert task.cancelled()
    assert peer.gone
    assert peer.wire.written == b""


async def test_a_stopping_server_closes_idle_connections_and_lets_the_others_end() -> None:
    waiting, busy = (Peer(guests(), site) for _ in range(2))
    await waiting.send(NEXT)
    await busy.send(HEAD % b"9")
    for peer in (waiting, busy):
        (connection,) = peer.protocol.state.connections
        connection.shutdown()
        await asyncio.sleep(MOMENT_S)
    assert (waiting.gone, busy.gone) == (True, False)
    await asyncio.sleep(10)
    assert busy.wire.written.endswith(b"ok")
    assert b"\r\nconnection: close\r\n" in busy.wire.written
    assert busy.lasted_s == pytest.approx(9, abs=0.1)
    assert waiting.protocol.state.connections == busy.protocol.state.connections == set()


# -- time ----------------------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_a_fixed_time_after_its_last_response() -> None:
    peer = Peer(guests(keep_alive_s=60.0), site)
    await peer.send(NEXT)
    await asyncio.sleep(40)
    await peer.send(NEXT)
    await asyncio.sleep(90)
    assert peer.lasted_s == pytest.approx(100, abs=0.1)
    assert not peer.wire.aborted


async def test_a_request_at_work_when_the_idle_time_ends_renews_it() -> None:
    peer = Peer(guests(keep_alive_s=60.0), site)
    await peer.send(NEXT)
    await asyncio.sleep(50)
    await peer.send(HEAD % b"20")
    await asyncio.sleep(100)
    assert peer.wire.written.count(b"HTTP/1.1 200 ") == 2
    assert peer.lasted_s == pytest.approx(130, abs=0.1)


async def test_the_deadline_of_a_pipelined_head_starts_with_the_response_before_it() -> None:
    peer = Peer(guests(header_deadline_s=5.0), site)
    await peer.send(HEAD % b"9" + b"G")
    await asyncio.sleep(20)
    assert peer.wire.aborted
    assert peer.lasted_s == pytest.approx(14, abs=0.1)


# -- room ----------------------------------------------------------------------------------------------


async def test_connections_accepted_in_one_turn_stay_within_the_limit() -> None:
    crowd = guests(connections_max=2)
    lines = [Peer(crowd, site) for _ in range(5)]
    assert crowd.peers.total() == 2
    assert [peer.gone for peer in lines] == [True] * 3 + [False] * 2
