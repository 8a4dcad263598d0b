"""A client that is handed in keeps the same promises, and what goes wrong in it is told in our words."""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import ssl
from collections.abc import AsyncIterator

import h11
import httpx
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
from fleetsim.runtime.ports import Limits, Reply, Request


class Pieces(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in (b"he", b"", b"re"):
            yield piece


class Line(httpx.AsyncBaseTransport):
    """Answers after ``pause_s``, or raises; keeps what it was asked."""

    def __init__(
        self, error: Exception | None = None, *, status: int = 200, pause_s: float = 0, **headers: str
    ) -> None:
        self.error, self.status, self.pause_s, self.headers = error, status, pause_s, headers
        self.asked: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        await asyncio.sleep(self.pause_s)
        if self.error is not None:
            raise self.error
        return httpx.Response(self.status, headers=self.headers, stream=Pieces())


LIMITS = Limits(connect_s=1, first_byte_s=2, total_s=10)


def get(url: str = "http://h/p?q=1", limits: Limits = LIMITS) -> Request:
    return Request(method="POST", url=url, headers={"x-key": "k"}, body=b"body", limits=limits)


async def test_a_request_goes_out_whole_and_the_answer_comes_back_as_it_is() -> None:
    line = Line(status=307, location="http://else/", seen="1")
    transport = as_transport(line)
    reply = await transport.exchange(get())
    assert reply == Reply(status=307, headers={"location": "http://else/", "seen": "1"}, body=b"here")
    (asked,) = line.asked
    assert (asked.method, str(asked.url), asked.content) == ("POST", "http://h/p?q=1", b"body")
    assert (asked.headers["x-key"], asked.headers["accept-encoding"]) == ("k", "identity")
    assert asked.extensions["timeout"] == {"connect": 1, "pool": 1, "read": None, "write": None}


async def test_no_cookie_is_kept_and_a_head_that_costs_too_much_is_refused() -> None:
    line = Line(**{"set-cookie": "a=b; Path=/"})
    transport = as_transport(line)
    for _ in range(2):
        await transport.exchange(get())
    assert "cookie" not in line.asked[1].headers
    with pytest.raises(LimitReached, match="h:80: content encoding 'gzip'"):
        await as_transport(Line(**{"content-encoding": "gzip"})).exchange(get())
    with pytest.raises(LimitReached, match="h:80: the answer is larger than 3 bytes"):
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
    ("error", "kind", "says"),
    [
        (
            after(httpx.ConnectError("x"), OSError("all failed"), OSError(errno.ECONNREFUSED, "x")),
            Unreachable,
            "h:80: connection refused",
        ),
        (
            after(httpx.ConnectError("x"), ExceptionGroup("x", [OSError(errno.ECONNREFUSED, "x"), tls("UNSAID")])),
            Unreachable,
            "h:80: connection refused",
        ),
        (httpx.ConnectError("gone"), Unreachable, "h:80: gone"),
        (after(httpx.ConnectError("x"), socket.gaierror(-2, "x")), Unreachable, "h:80: the name does not resolve"),
        (
            after(httpx.ConnectError("x"), tls("WRONG_VERSION_NUMBER")),
            Unreachable,
            "h:80: TLS failed: wrong version number",
        ),
        (httpx.ConnectTimeout("x"), Unreachable, "h:80: no connection within 1 s"),
        (httpx.PoolTimeout("x"), Unreachable, "h:80: no connection within 1 s"),
        (httpx.ProxyError("x"), Unreachable, "h:80: x"),
        (httpx.UnsupportedProtocol("x"), Unreachable, "h:80: not a usable http(s) address"),
        (httpx.LocalProtocolError("x"), Unreachable, "the request could not be written (LocalProtocolError)"),
        (httpx.ReadTimeout("x"), TimedOut, "h:80: no answer in time"),
        (httpx.ReadError("x"), ConnectionLost, "the connection broke before the answer"),
        (httpx.WriteError("x"), ConnectionLost, "the connection broke before the answer"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), ConnectionLost, "broke"),
        (httpx.RemoteProtocolError("illegal status line"), WireError, "the answer is not HTTP"),
        (
            after(httpx.RemoteProtocolError("x"), h11.RemoteProtocolError("x", error_status_hint=431)),
            LimitReached,
            "more response headers than allowed",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_what_goes_wrong_is_told_in_the_words_of_our_own_way_out(
    error: Exception, kind: type[FleetsimError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        await as_transport(Line(error)).exchange(get())
    assert says in str(caught.value)
    assert str(caught.value).startswith("h:80: ")
    assert getattr(caught.value, "sent", None) in {None, kind in {TimedOut, ConnectionLost}}
    assert (caught.value.hint == "is it running, and reachable?") is ("within" in says)


async def test_a_url_that_is_none_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="the address: not a usable"):
        await as_transport(Line()).exchange(get("http://h:x/"))


@pytest.mark.parametrize(
    ("limits", "at", "says"),
    [
        (LIMITS, 3, "h:80: no answer within 2 s"),
        (Limits(connect_s=1, first_byte_s=2, total_s=2.5), 2.5, "h:80: no answer within 2 s"),
        (Limits(connect_s=1, first_byte_s=2, total_s=None), 3, "h:80: no answer within 2 s"),
    ],
)
async def test_silence_ends_at_the_sooner_deadline(limits: Limits, at: float, says: str) -> None:
    with pytest.raises(TimedOut) as caught:
        await as_transport(Line(pause_s=100)).exchange(get(limits=limits))
    assert (str(caught.value), caught.value.sent, asyncio.get_running_loop().time()) == (says, True, at)
    slow = await as_transport(Line(pause_s=min(2.9, at - 0.1))).exchange(get(limits=limits))
    assert slow.status == 200


async def test_a_clients_own_failure_stays_its_own_and_a_closed_one_is_told() -> None:
    client = httpx.AsyncClient(transport=Line(RuntimeError("mine")))
    with pytest.raises(RuntimeError, match="mine"):
        await as_transport(client).exchange(get())
    given = as_transport(client)
    await given.aclose()
    assert not client.is_closed, "it is its owner's"
    await client.aclose()
    with pytest.raises(Unreachable, match="the HTTP client that was handed in is closed"):
        await given.exchange(get())


async def test_a_timeout_of_the_clients_own_is_not_taken_for_ours() -> None:
    with pytest.raises(TimeoutError, match="theirs"):
        await as_transport(Line(TimeoutError("theirs"))).exchange(get())


async def test_a_client_cannot_be_held_to_an_address_policy_and_a_transport_of_ours_is_itself() -> None:
    given = as_transport(Line())
    assert isinstance(given, GivenTransport)
    assert as_transport(given) is given
    with pytest.raises(ConfigError, match="cannot be held to an address policy"):
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
