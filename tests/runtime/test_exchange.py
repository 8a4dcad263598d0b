"""Rules that every transport shares: origins, limits of heads, bodies within their size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest
from starlette.requests import Request as StarletteRequest

from fleetsim.model.errors import BodyTooLarge, FleetsimError, LimitReached, TimedOut, Unreachable, WireError
from fleetsim.runtime.exchange import (
    BoundedChunks,
    Origin,
    check_head,
    deadline_of,
    is_usable,
    is_writable,
    origin_of,
    where_of,
)
from fleetsim.runtime.inbound import traceparent_of
from fleetsim.runtime.ports import Limits


@pytest.mark.parametrize(
    ("url", "origin", "written"),
    [
        ("http://H.Example", Origin("http", "h.example", 80), "http://h.example:80"),
        ("https://h/a?b=c#d", Origin("https", "h", 443), "https://h:443"),
        ("HTTP://h:0/", Origin("http", "h", 0), "http://h:0"),
        ("http://u:p@h:81/a/b", Origin("http", "h", 81), "http://h:81"),
        ("https://[FD00::1]:8443", Origin("https", "fd00::1", 8443), "https://[fd00::1]:8443"),
    ],
)
def test_an_origin_is_scheme_host_and_port_in_one_spelling(url: str, origin: Origin, written: str) -> None:
    assert origin_of(url) == origin
    assert (str(origin), where_of(url)) == (written, written.partition("://")[2])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h:x/", "not a URL: http://h:x/"),
        ("http://[::1/", "not a URL: http://[::1/"),
        ("ftp://h/", "not an http or https URL: ftp://h/"),
        ("http:///x", "not an http or https URL: http:///x"),
        ("h", "not an http or https URL: h"),
    ],
)
def test_a_url_without_an_origin_is_unreachable(url: str, why: str) -> None:
    with pytest.raises(Unreachable) as caught:
        origin_of(url)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({}, None),
        ({f"h{n:03}": "" for n in range(1_000)}, None),
        ({"ab": "x" * (32 * 1024 - 6)}, None),
        ({"ab": "x" * (32 * 1024 - 5)}, LimitReached),
        ({"a": "x" * 16_379, "b": "x" * 16_379}, None),
        ({"a": "x" * 16_379, "b": "x" * 16_380}, LimitReached),
        ({"content-length": "10"}, None),
        ({"content-length": "11"}, BodyTooLarge),
        ({"content-length": "9" * 5_000}, BodyTooLarge),
        ({"content-length": "0" * 19 + "99"}, None),
        ({"content-length": "0" * 18 + "99"}, BodyTooLarge),
        ({"content-length": "٣٣"}, None),
        ({"content-length": "-11"}, None),
        ({"content-length": "many"}, None),
    ],
)
def test_a_head_over_a_limit_is_refused(headers: dict[str, str], refusal: type[FleetsimError] | None) -> None:
    with pytest.raises(refusal) if refusal else nullcontext():
        check_head(200, headers, Limits(body_bytes_max=10), "h:1")


@pytest.mark.parametrize(("status", "known"), [(99, False), (100, True), (599, True), (600, False), (999, False)])
def test_a_status_outside_http_is_an_error_of_the_agent(status: int, known: bool) -> None:
    with nullcontext() if known else pytest.raises(WireError):
        check_head(status, {}, Limits(), "h:1")


async def arriving(*chunks: bytes | float) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if isinstance(chunk, bytes):
            yield chunk
        else:
            await asyncio.sleep(chunk)


def bounded(*chunks: bytes | float, limits: Limits) -> BoundedChunks:
    return BoundedChunks(arriving(*chunks), limits=limits, deadline=deadline_of(limits), where="h:1")


async def test_a_body_has_its_whole_deadline_plus_the_time_in_which_we_paused() -> None:
    limits = Limits(total_s=10)
    assert deadline_of(limits) == 10
    assert deadline_of(Limits(total_s=None)) is None
    chunks = bounded(b"1", 4.0, b"2", 5.5, b"3", 1.0, b"4", limits=limits)
    assert [await anext(chunks) for _ in range(3)] == [b"1", b"2", b"3"]
    with pytest.raises(TimedOut) as caught:
        await anext(chunks)
    assert str(caught.value).startswith("h:1: ")
    assert "10 s" in str(caught.value)
    assert caught.value.sent
    patient = bounded(b"1", 9.0, b"2", 9.0, b"3", limits=limits)
    assert await anext(patient) == b"1"
    patient.extend(9)
    assert [chunk async for chunk in patient] == [b"2", b"3"]
    endless = bounded(b"1", 100_000.0, b"2", limits=Limits(total_s=None))
    endless.extend(1)
    assert [chunk async for chunk in endless] == [b"1", b"2"]


async def test_a_timeout_from_outside_is_not_converted() -> None:
    async def fails() -> AsyncIterator[bytes]:
        raise TimeoutError("theirs")
        yield b""

    for deadline in (None, 1_000.0):
        with pytest.raises(TimeoutError, match="theirs"):
            await anext(BoundedChunks(fails(), limits=Limits(), deadline=deadline, where="h:1"))


PLACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("mark", ["\r", "\n", "\0", "é"])
def test_a_header_with_a_line_break_is_not_written(mark: str) -> None:
    assert is_writable({"x-plain": "as it is"})
    assert not is_writable({"x-value": f"a{mark}b"})
    assert not is_writable({f"x{mark}name": "a"})


@pytest.mark.parametrize(("told", "place"), [([PLACE], PLACE), ([PLACE, PLACE], ""), ([], ""), (["no place"], "")])
def test_a_caller_names_at_most_one_place_in_a_trace(told: list[str], place: str) -> None:
    headers = [(b"traceparent", place.encode()) for place in told]
    assert traceparent_of(StarletteRequest({"type": "http", "headers": headers})) == place


# how far a request has come

TIMES = Limits(connect_s=3.0, first_byte_s=10.0, total_s=20.0)


def test_an_address_at_its_length_limit_passes() -> None:
    start = "http://h/"
    assert is_usable(start + "x" * (65_536 - len(start)))
    assert not is_usable(start + "x" * (65_537 - len(start)))
