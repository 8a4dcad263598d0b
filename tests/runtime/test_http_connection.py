"""One connection of our client in memory: the bytes it buffers, and the responses it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fleetsim.model.errors import FleetsimError, LimitReached
from fleetsim.runtime.exchange import Origin
from fleetsim.runtime.http_connection import CHUNKS_MAX, ArrivingResponse, Connection
from fleetsim.runtime.ports import Limits

OK = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """The bytes written to it, whether it is read, and how often that changed."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.reading, self.pauses, self.aborted = bytearray(), True, 0, False
        self.filled: Callable[[], None] = lambda: None

    def write(self, data: Any) -> None:
        self.written += data
        self.filled()

    def pause_reading(self) -> None:
        self.reading, self.pauses = False, self.pauses + 1

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


class Asked:
    """A request that was written, and its response so far."""

    def __init__(self, *, whole: bool = False, bodiless: bool = False, body: bytes = b"") -> None:
        self.wire, self._room = Wire(), bytearray(300_000)
        origin = Origin("http", "agent.example", 80)
        self.connection = Connection(origin, "agent.example:80", memoryview(self._room), lambda _: None)
        self.connection.connection_made(self.wire)
        limits = Limits(body_bytes_max=10_000_000)
        self.response = ArrivingResponse(self.connection, limits, whole=whole, bodiless=bodiless)
        self.connection.ask(b"HEAD", body, self.response)

    def comes(self, data: bytes) -> None:
        self._room[: len(data)] = data
        self.connection.buffer_updated(len(data))

    @property
    def error(self) -> FleetsimError | None:
        return self.response.error


@pytest.mark.parametrize(("whole", "most"), [(False, 64 * 1024), (True, 256 * 1024)])
async def test_an_unread_body_is_buffered_up_to_a_limit(whole: bool, most: int) -> None:
    asked = Asked(whole=whole)
    asked.comes(OK % 1_000_000)
    asked.comes(b"x" * (most - 1))
    asked.comes(b"x")
    assert (asked.wire.reading, asked.response.ready) == (True, not whole)
    asked.comes(b"x")
    asked.comes(b"x")
    assert (asked.wire.reading, asked.wire.pauses, asked.response.ready) == (False, 1, True)
    assert len(asked.response.take()) == most + 2
    assert asked.wire.reading


async def test_a_small_body_is_buffered_at_once_and_its_connection_can_be_used_again() -> None:
    for whole in (True, False):
        asked = Asked(whole=whole)
        asked.comes(OK % 6)
        for piece in (b"one", b"two"):
            asked.comes(piece)
        assert (asked.response.complete, asked.response.take(), asked.wire.pauses) == (True, b"onetwo", 0)
        assert asked.connection.release()
        assert not asked.wire.aborted


async def test_a_connection_with_an_unread_body_is_not_used_again() -> None:
    asked = Asked()
    asked.comes(OK % (64 * 1024 + 1) + b"x" * (64 * 1024 + 1))
    assert asked.response.complete
    assert not asked.connection.release()
    assert asked.wire.aborted


@pytest.mark.parametrize(("interim", "taken"), [(64, True), (65, False)])
async def test_interim_responses_are_skipped_up_to_a_limit(interim: int, taken: bool) -> None:
    asked = Asked(whole=True)
    for _ in range(interim):
        asked.comes(b"HTTP/1.1 102 Processing\r\n\r\n")
    asked.comes(OK % 2 + b"ok") if taken else None
    assert (asked.response.complete, isinstance(asked.error, LimitReached)) == (taken, not taken)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_response_has_at_most_200_000_chunks(more: int) -> None:
    asked = Asked()
    asked.comes(CHUNKED)
    for _ in range(CHUNKS_MAX // 10_000):
        asked.comes(b"1\r\nx\r\n" * 10_000)
    asked.comes(b"1\r\nx\r\n" * more)
    assert isinstance(asked.error, LimitReached) is bool(more)


@pytest.mark.parametrize(
    ("start", "counted"),
    [(b"HTTP/1.1 200 OK\r\nx: ", 20), (CHUNKED + b"2\r\nhi\r\n0\r\nx: ", 0), (CHUNKED + b"2;", 0)],
    ids=["a head", "a trailer", "an extension"],
)
async def test_bytes_outside_the_body_are_read_up_to_a_limit(start: bytes, counted: int) -> None:
    """Those that came with the last of a head or a body are not counted."""
    asked = Asked()
    asked.comes(start)
    left, piece = 64 * 1024 - counted, b"y" * 1_000
    while left > 2 * len(piece):
        asked.comes(piece)
        left -= len(piece)
    asked.comes(b"y" * left)
    assert asked.error is None
    asked.comes(b"y")
    assert isinstance(asked.error, LimitReached)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("trailing", [False, True])
async def test_the_bytes_of_headers_and_trailers_are_limited(more: int, trailing: bool) -> None:
    """Names and values, and 4 bytes for each line."""
    asked = Asked()
    lines = b"a: b\r\n" * 100 + b"x: " + b"y" * (32 * 1024 - 100 * 6 - 5 + more) + b"\r\n\r\n"
    asked.comes((CHUNKED + b"2\r\nhi\r\n0\r\n" if trailing else b"HTTP/1.1 200 OK\r\n") + lines)
    assert isinstance(asked.error, LimitReached) is bool(more)


async def test_a_large_request_is_written_in_pieces_as_the_connection_accepts_them() -> None:
    body = b"x" * 600_000
    asked = Asked(body=body)
    asked.wire.filled = asked.connection.pause_writing
    writing = asyncio.create_task(asked.connection.upload(body))
    for most in (256 * 1024, 512 * 1024, 600_000):
        await asyncio.sleep(1)
        assert len(asked.wire.written) == len(b"HEAD") + most
        asked.connection.resume_writing()
    await writing
    assert bytes(asked.wire.written) == b"HEAD" + body
    asked.comes(OK % 2 + b"ok")
    assert asked.connection.release()


async def test_the_rest_of_a_large_request_is_not_written_after_an_early_response() -> None:
    body = b"x" * 600_000
    asked = Asked(body=body)
    asked.connection.pause_writing()
    writing = asyncio.create_task(asked.connection.upload(body))
    await asyncio.sleep(1)
    asked.comes(OK % 2 + b"ok")
    await writing
    assert bytes(asked.wire.written) == b"HEAD"
    assert not asked.connection.release()


async def test_an_unrequested_response_ends_its_connection() -> None:
    asked = Asked(whole=True)
    asked.comes(OK % 2 + b"ok")
    assert asked.connection.release()
    asked.comes(OK % 2 + b"ok")
    assert asked.wire.aborted


async def test_two_responses_to_one_request_are_an_error() -> None:
    asked = Asked()
    asked.comes(OK % 2 + b"ok" + OK % 2 + b"ok")
    assert asked.wire.aborted
    assert not asked.connection.release()


async def test_a_body_without_a_length_ends_with_its_connection_and_another_is_cut_off_by_that() -> None:
    for head, whole in ((b"HTTP/1.1 200 OK\r\n\r\n", True), (OK % 9, False), (CHUNKED + b"2\r\n", False)):
        asked = Asked()
        asked.comes(head + b"hi")
        asked.connection.connection_lost(None)
        assert asked.response.complete is whole
        assert (asked.error is None) is whole
