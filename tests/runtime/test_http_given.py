"""A client that a user hands in keeps the same promises, and its errors become ours."""

from __future__ import annotations

import asyncio
import errno
import gzip
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import h11
import httpx
import httpx2
import pytest

from fleetsim.model.errors import (
    ConfigError,
    ConnectionLost,
    FleetsimError,
    LimitReached,
    TimedOut,
    Unreachable,
    WireError,
)
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.exchange import where_of
from fleetsim.runtime.http_given import GivenTransport, as_transport
from fleetsim.runtime.ports import IncomingResponse, Limits, Reply, Request, SseEvent, Transport
from fleetsim.runtime.sse import StreamLimits, read_events


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest) -> Any:
    return request.param


def line(
    library: Any,
    error: Exception | None = None,
    *,
    status: int = 200,
    pause_s: float = 0,
    pieces: tuple[bytes, ...] = (b"he", b"", b"re"),
    **headers: str,
) -> Any:
    """A transport of the library that answers after ``pause_s``, or raises; it keeps its requests."""

    class Pieces(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

    class Line(library.AsyncBaseTransport):  # type: ignore[misc]
        def __init__(self) -> None:
            self.asked: list[Any] = []

        async def handle_async_request(self, request: Any) -> Any:
            self.asked.append(request)
            await asyncio.sleep(pause_s)
            if error is not None:
                raise error
            return library.Response(status, headers=headers, stream=Pieces())

    return Line()


LIMITS = Limits(connect_s=1, first_byte_s=2, total_s=10)


def get(url: str = "http://h/p?q=1", limits: Limits = LIMITS) -> Request:
    return Request(method="POST", url=url, headers={"x-key": "k"}, body=b"body", limits=limits)


async def test_a_request_goes_out_whole_and_the_answer_comes_back_as_it_is(library: Any) -> None:
    given = line(library, status=307, location="http://else/", seen="1")
    transport = as_transport(given)
    reply = await transport.exchange(get())
    assert reply == Reply(status=307, headers={"location": "http://else/", "seen": "1"}, body=b"here")
    (asked,) = given.asked
    assert (asked.method, str(asked.url), asked.content) == ("POST", "http://h/p?q=1", b"body")
    assert (asked.headers["x-key"], asked.headers["accept-encoding"]) == ("k", "identity")
    assert asked.extensions["timeout"] == {"connect": 1, "pool": 1, "read": None, "write": None}


async def test_a_coded_body_that_a_hook_of_the_client_has_read_is_decoded_once(library: Any) -> None:
    async def read(response: Any) -> None:
        await response.aread()

    answer = line(library, pieces=(gzip.compress(b"here"),), **{"content-encoding": "gzip"})
    async with library.AsyncClient(transport=answer, event_hooks={"response": [read]}) as client:
        assert (await as_transport(client).exchange(get())).body == b"here"


async def test_no_cookie_is_kept_and_a_head_that_costs_too_much_is_refused(library: Any) -> None:
    given = line(library, **{"set-cookie": "a=b; Path=/"})
    transport = as_transport(given)
    for _ in range(2):
        await transport.exchange(get())
    assert "cookie" not in given.asked[1].headers
    with pytest.raises(WireError, match="gzip"):
        await as_transport(line(library, **{"content-encoding": "gzip"})).exchange(get())
    with pytest.raises(LimitReached, match=r"\b3\b"):
        await transport.exchange(get(limits=Limits(body_bytes_max=3)))


def tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] no")
    error.reason = reason
    return error


def after(error: Exception, *causes: Exception) -> Exception:
    """The error as httpx raises it, from what came before it."""
    for above, below in itertools.pairwise((error, *causes)):
        above.__cause__ = below
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lambda x: after(x.ConnectError("x"), OSError("all"), OSError(errno.ECONNREFUSED, "x")), Unreachable),
        (lambda x: after(x.ConnectError("x"), ExceptionGroup("x", [OSError(errno.ECONNREFUSED, "x")])), Unreachable),
        (lambda x: x.ConnectError("gone"), Unreachable),
        (lambda x: after(x.ConnectError("x"), socket.gaierror(-2, "x")), Unreachable),
        (lambda x: after(x.ConnectError("x"), tls("WRONG_VERSION_NUMBER")), Unreachable),
        (lambda x: x.ConnectTimeout("x"), Unreachable),
        (lambda x: x.PoolTimeout("x"), Unreachable),
        (lambda x: x.ProxyError("x"), Unreachable),
        (lambda x: x.UnsupportedProtocol("x"), Unreachable),
        (lambda x: x.LocalProtocolError("x"), Unreachable),
        (lambda x: x.ReadTimeout("x"), TimedOut),
        (lambda x: x.ReadError("x"), ConnectionLost),
        (lambda x: x.WriteError("x"), ConnectionLost),
        (lambda x: x.RemoteProtocolError("Server disconnected without sending a response."), ConnectionLost),
        (lambda x: x.RemoteProtocolError("illegal status line"), WireError),
        (
            lambda x: after(x.RemoteProtocolError("x"), h11.RemoteProtocolError("x", error_status_hint=431)),
            LimitReached,
        ),
    ],
)
async def test_an_error_of_the_library_is_the_error_that_our_own_transport_raises(
    library: Any, error: Callable[[Any], Exception], kind: type[FleetsimError]
) -> None:
    with pytest.raises(kind) as caught:
        await as_transport(line(library, error(library))).exchange(get())
    assert str(caught.value).startswith("h:80: ")
    assert getattr(caught.value, "sent", None) in {None, kind in {TimedOut, ConnectionLost}}


STREAM = (
    b"\xef\xbb\xbf: hi\r\nevent: x\rid: 7\r\ndata: a\ndata: b\n\n",
    b"data: \xc3",
    b"\xa9\xe2\x80\xa8c\n\nid: 8\n\ndata: d\n\nid\ndata: e\n\ndata: \xff\n\ndata: [DONE]\n\ndata: f\n\n",
)


async def test_a_stream_is_decoded_as_our_own_reader_does_and_counted_first(library: Any) -> None:
    kind = {"content-type": "text/event-stream"}

    async def events(transport: Transport, limits: StreamLimits | None = None) -> list[SseEvent]:
        async with transport.open(get()) as incoming:
            assert incoming.decode is not None
            return [event async for event in read_events(incoming, limits=limits)]

    async def ours() -> AsyncIterator[bytes]:
        for piece in STREAM:
            yield piece

    read = await events(as_transport(line(library, pieces=STREAM, **kind)))
    plain = IncomingResponse(status=200, headers=kind, chunks=ours())
    assert read == [event async for event in read_events(plain)]
    assert [event.data for event in read] == ["a\nb", "\u00e9\u2028c", "d", "e", "\ufffd"]
    for limits in (StreamLimits(event_bytes_max=5), StreamLimits(lines_max=4), StreamLimits(stream_bytes_max=20)):
        with pytest.raises(LimitReached):
            await events(as_transport(line(library, pieces=STREAM, **kind)), limits)


@pytest.mark.parametrize(
    ("limits", "at", "says"),
    [
        (LIMITS, 3, "h:80: no answer within 2 s"),
        (Limits(connect_s=1, first_byte_s=2, total_s=2.5), 2.5, "h:80: no answer within 2 s"),
        (Limits(connect_s=1, first_byte_s=2, total_s=None), 3, "h:80: no answer within 2 s"),
    ],
)
async def test_silence_ends_at_the_sooner_deadline(library: Any, limits: Limits, at: float, says: str) -> None:
    with pytest.raises(TimedOut) as caught:
        await as_transport(line(library, pause_s=100)).exchange(get(limits=limits))
    assert (str(caught.value), caught.value.sent, asyncio.get_running_loop().time()) == (says, True, at)
    slow = await as_transport(line(library, pause_s=min(2.9, at - 0.1))).exchange(get(limits=limits))
    assert slow.status == 200


async def test_the_error_of_a_given_client_is_unchanged_and_a_closed_one_is_unreachable(library: Any) -> None:
    client = library.AsyncClient(transport=line(library, RuntimeError("mine")))
    with pytest.raises(RuntimeError, match="mine"):
        await as_transport(client).exchange(get())
    given = as_transport(client)
    await given.aclose()
    assert not client.is_closed, "it is its owner's"
    await client.aclose()
    with pytest.raises(Unreachable):
        await given.exchange(get())


async def test_a_timeout_of_the_given_client_is_not_ours(library: Any) -> None:
    with pytest.raises(TimeoutError, match="theirs"):
        await as_transport(line(library, TimeoutError("theirs"))).exchange(get())


async def test_a_client_cannot_be_held_to_an_address_policy_and_a_transport_of_ours_is_itself(library: Any) -> None:
    given = as_transport(line(library))
    assert isinstance(given, GivenTransport)
    assert as_transport(given) is given
    with pytest.raises(ConfigError):
        given.guarded(AddressPolicy())


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://h/secret?key=1", "h:80"),
        ("https://h/", "h:443"),
        ("http://h:81/", "h:81"),
        ("https://h:80/", "h:80"),
        ("http://[::1]:7/", "[::1]:7"),
        ("http://" + "x" * 200, "x" * 119 + "…"),
    ],
)
def test_errors_name_the_host_and_the_port_it_has_or_its_scheme_has(url: str, where: str) -> None:
    assert where_of(url) == where
