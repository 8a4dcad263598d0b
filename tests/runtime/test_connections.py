"""One connection of the agent's server on virtual time: every deadline to the moment, every bound to the byte."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import socket
import struct
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fleetsim.model.errors import ConfigError
from fleetsim.runtime.limits import LINGER_BYTES_MAX, LINGER_S, ServerLimits
from fleetsim.runtime.protocol import GuardedProtocol
from fleetsim.runtime.server import Server, listen, serve, serving
from tests.runtime.peer import HEAD, MOMENT_S, Peer, Wire, guests, site

# -- heads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"", b"G", HEAD[:-2]])
async def test_a_head_that_is_incomplete_at_its_deadline_ends_the_connection(start: bytes) -> None:
    peer = Peer(guests(), site)
    if start:
        await peer.send(start)
    await asyncio.sleep(4)
    await peer.send(b"x" if start == b"G" else b"")
    assert not peer.gone
    await asyncio.sleep(5)
    assert peer.lasted_s == pytest.approx(5)
    assert peer.wire.aborted


async def test_a_response_may_take_longer_than_a_head() -> None:
    peer = Peer(guests(), site)
    await peer.send(HEAD % b"20")
    await asyncio.sleep(21)
    assert peer.wire.written.endswith(b"ok")
    assert not peer.gone


async def test_the_deadline_of_the_next_head_starts_at_its_first_byte() -> None:
    peer = Peer(guests(), site)
    assert (await peer.send(HEAD % b"0")).endswith(b"ok")
    await asyncio.sleep(20)
    await peer.send(b"G")
    await asyncio.sleep(4)
    await peer.send(b"E")
    assert not peer.gone
    await asyncio.sleep(5)
    assert peer.lasted_s == pytest.approx(25, abs=0.1)


async def test_a_next_head_in_time_gets_a_response() -> None:
    peer = Peer(guests(), site)
    for _ in range(3):
        assert await peer.send((HEAD % b"0")[:9]) == b""
        await asyncio.sleep(4)
        assert (await peer.send((HEAD % b"0")[9:])).endswith(b"ok")
        await asyncio.sleep(10)
    assert not peer.gone


class OtherTransport:
    """A connection like those of uvloop: it behaves like asyncio's and inherits from none of them."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)


async def test_a_connection_of_another_event_loop_is_served_like_one_of_asyncio() -> None:
    peer = Peer(guests(), site, seen_as=OtherTransport)
    assert (await peer.send(HEAD % b"0")).endswith(b"ok")
    await peer.send(HEAD % b"drop")
    assert peer.wire.aborted


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 431)])
@pytest.mark.parametrize("how", ["bytes", "headers", "at once"])
async def test_a_head_up_to_its_bound_is_read(how: str, more: int, status: int) -> None:
    peer = Peer(guests(header_bytes_max=1_000, headers_max=20), site)
    target, host = b"/0", 4 + 1 + 4
    if how == "headers":
        head = b"".join(b"x-%02d: 1\r\n" % at for at in range(19 + more))
    else:
        room = 1_000 - len(target) - host - 4 + more
        head = b"n: " + b"x" * (room - 1) + b"\r\n"
    answer = await peer.send(b"GET /0 HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert peer.gone is (status == 431)


@pytest.mark.parametrize(("size", "status"), [(1_000, 200), (1_001, 431)])
async def test_an_incomplete_head_is_buffered_up_to_its_bound(size: int, status: int) -> None:
    """Blanks around a value are not part of it, but count until the whole value has arrived."""
    peer = Peer(guests(header_bytes_max=1_000), site)
    start = b"GET /0 HTTP/1.1\r\nhost: x\r\nx: 1"
    await peer.send(start + b" " * (size - len(start)))
    await peer.send(b"\r\n\r\n")
    assert peer.wire.written.startswith(b"HTTP/1.1 %d " % status)


async def test_a_head_after_a_body_has_the_same_bounds() -> None:
    for many, status in ((20, 200), (21, 431)):
        fields = b"".join(b"x-%d: 1\r\n" % at for at in range(many))
        peer = Peer(guests(headers_max=20), site)
        await peer.send(b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert (await peer.send(b"0\r\n" + fields + b"\r\n")).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(("fields", "status"), [(166, 200), (167, 431)])
async def test_a_head_that_arrives_with_a_body_is_read_up_to_its_bound(fields: int, status: int) -> None:
    peer = Peer(guests(headers_max=1_000, header_bytes_max=1_000), site)
    await peer.send(b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    answer = await peer.send(b"0\r\n" + b"a: 1\r\n" * fields + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("start", "status", "phrase", "why"),
    [
        (b"\x16\x03\x01\r\n\r\n", 400, b"Bad Request", b"this is no HTTP request"),
        (HEAD % (b"x" * 2_000), 431, b"Request Header Fields Too Large", b"the head is too large"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400, b"Bad Request", b"a request has one host"),
    ],
)
async def test_an_invalid_request_gets_the_reason_and_its_connection_is_closed(
    start: bytes, status: int, phrase: bytes, why: bytes
) -> None:
    peer = Peer(guests(header_bytes_max=1_000), site)
    answer = await peer.send(start)
    assert answer.startswith(b"HTTP/1.1 %d %s\r\n" % (status, phrase))
    assert b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n" in answer.lower()
    assert answer.endswith(b"\r\n\r\n" + why)
    assert peer.gone
    assert not peer.wire.aborted


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_chunked_body_is_read_only_from_a_client_of_http_1_1(version: bytes) -> None:
    peer = Peer(guests(), site)
    head = b"POST /read HTTP/%s\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" % version
    assert (await peer.send(head)).startswith(b"HTTP/1.1 200" if version == b"1.1" else b"HTTP/1.1 400")


# bodies that the application does not read

UPLOAD = b"POST /0 HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


async def test_a_late_body_after_its_response_is_awaited_for_two_seconds() -> None:
    peer = Peer(guests(), site)
    assert (await peer.send(UPLOAD % 10)).endswith(b"ok")
    await asyncio.sleep(1.5)
    await peer.send(b"x")
    assert not peer.gone
    await asyncio.sleep(1)
    assert peer.lasted_s == pytest.approx(2, abs=0.1)


async def test_a_body_that_arrives_soon_after_its_response_keeps_the_connection() -> None:
    peer = Peer(guests(), site)
    for _ in range(2):
        assert (await peer.send(UPLOAD % 10)).endswith(b"ok")
        await asyncio.sleep(1)
        await peer.send(b"x" * 10)
        await asyncio.sleep(10)
        assert (await peer.send(HEAD % b"0")).endswith(b"ok")
    assert not peer.gone


@pytest.mark.parametrize(("size", "gone"), [(LINGER_BYTES_MAX, False), (LINGER_BYTES_MAX + 1, True)])
async def test_a_body_after_its_response_is_read_up_to_a_limit(size: int, gone: bool) -> None:
    peer = Peer(guests(), site)
    for _ in range(1 if gone else 2):
        await peer.send(UPLOAD % size)
        await peer.send(b"x" * (size - 1_000))
        assert not peer.gone
        await peer.send(b"x" * 1_000)
        assert peer.gone is gone


async def test_a_request_that_reads_its_body_has_no_such_deadline() -> None:
    peer = Peer(guests(), site)
    await peer.send((UPLOAD % 10).replace(b"/0", b"/read"))
    await asyncio.sleep(30)
    assert (await peer.send(b"x" * 10)).endswith(b"ok")
    assert not peer.gone


async def test_malformed_bytes_after_a_response_close_the_connection_silently() -> None:
    peer = Peer(guests(), site)
    await peer.send(b"POST /0 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    assert await peer.send(b"junk\r\n") == b""
    assert peer.gone


# chunks

CHUNKED = b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_small_chunks_are_refused_before_the_bytes_behind_them_are_parsed() -> None:
    peer = Peer(guests(), site)
    answer = await peer.send(CHUNKED + b"2\r\n{}\r\n" * 1_100 + b"malformed")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"the chunks of the body are too small")
    fits = Peer(guests(), site)
    assert (await fits.send(CHUNKED + b"2\r\n{}\r\n" * 1_000 + b"0\r\n\r\n")).endswith(b"ok")


async def test_a_new_connection_does_not_renew_the_small_chunks_of_its_address() -> None:
    crowd = guests()

    async def send(address: str) -> bytes:
        answer = await Peer(crowd, site, (address, 1)).send(CHUNKED + b"2\r\n{}\r\n" * 900 + b"0\r\n\r\n")
        return answer[9:12]

    told = [await send("ada") for _ in range(300)]
    assert (told[:100], told[-1]) == ([b"200"] * 100, b"429")
    assert await send("bob") == b"200"
    await asyncio.sleep(5)
    assert await send("ada") == b"200"


# closing connections to make room


@pytest.mark.slow
async def test_an_application_can_drop_its_client(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(guests(), site)
    assert await peer.send(HEAD % b"drop") == b""
    assert peer.wire.aborted
    assert caplog.records == []


async def test_the_connection_that_waited_longest_is_closed_and_one_at_work_is_not() -> None:
    crowd = guests(connections_max=3)
    first, second, third = (Peer(crowd, site) for _ in range(3))
    await first.send(HEAD % b"0")  # this one waits since now, the others since they connected
    fourth = Peer(crowd, site)
    assert (first.gone, second.gone, third.gone, fourth.gone) == (False, True, False, False)
    for peer in (third, fourth):
        await peer.send(HEAD % b"9")
    fifth = Peer(crowd, site)
    assert (first.gone, fifth.gone) == (True, False)
    await fifth.send(HEAD % b"9")
    sixth = Peer(crowd, site)
    assert sixth.wire.aborted
    await asyncio.sleep(10)
    assert [peer.gone for peer in (third, fourth, fifth)] == [False] * 3
    assert crowd.peers == {"10.0.0.1": 3}
    seventh = Peer(crowd, site)
    assert (third.gone, seventh.gone) == (True, False)


async def test_a_connection_without_a_request_is_closed_before_one_that_waits_for_its_next() -> None:
    crowd = guests(connections_max=2)
    kept = Peer(crowd, site)
    await kept.send(HEAD % b"0")
    silent = Peer(crowd, site)
    another = Peer(crowd, site)
    assert (kept.gone, silent.gone, another.gone) == (False, True, False)


async def test_each_peer_has_its_own_limit_and_only_its_connections_are_closed() -> None:
    crowd = guests(connections_per_peer_max=2, connections_max=5)
    ada = [Peer(crowd, site, ("ada", 1)) for _ in range(2)]
    bob = [Peer(crowd, site, ("bob", 1)) for _ in range(2)]
    bob.append(Peer(crowd, site, ("bob", 2)))
    assert [peer.gone for peer in (*ada, *bob)] == [False, False, True, False, False]
    await asyncio.sleep(MOMENT_S)
    assert crowd.peers == {"ada": 2, "bob": 2}


@pytest.mark.parametrize("address", [None, "", "/run/agent.sock", ()])
async def test_a_peer_without_an_address_counts_as_local(address: Any) -> None:
    crowd = guests()
    peer = Peer(crowd, site, address)
    assert crowd.peers == {"local": 1}
    peer.wire.close()
    await asyncio.sleep(MOMENT_S)
    assert crowd.peers == {}
    assert not crowd.make_room()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", HEAD % b"0", UPLOAD % 10])
async def test_a_closed_connection_leaves_no_state(sent: bytes) -> None:
    peer = Peer(guests(), site)
    if sent:
        await peer.send(sent)
    kept = weakref.ref(peer.protocol)
    peer.wire.close()
    del peer
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert kept() is None


async def test_a_connection_with_refused_chunks_is_freed_without_the_collector() -> None:
    peer = Peer(guests(), site)
    gc.disable()
    try:
        assert b" 400 " in await peer.send(CHUNKED + b"2\r\n{}\r\n" * 1_100)
        kept = weakref.ref(peer.protocol)
        del peer
        await asyncio.sleep(LINGER_S + 1)
        assert kept() is None
    finally:
        gc.enable()


async def test_a_pipelined_request_is_at_work_after_the_response_before_it() -> None:
    crowd = guests(connections_max=1)
    peer = Peer(crowd, site)
    assert (await peer.send(HEAD % b"0" + HEAD % b"9")).endswith(b"ok")
    assert Peer(crowd, site).wire.aborted
    await asyncio.sleep(10)
    assert (peer.gone, peer.wire.written.count(b"200 OK")) == (False, 2)


# -- accepting -----------------------------------------------------------------------------------------


class Door:
    """The listening socket of a server: each accept fails with the next errno, 0 accepts one client; then it blocks."""

    def __init__(self, *answers: int, address: Any = ("10.0.0.1", 5)) -> None:
        self.answers, self.address = list(answers), address
        self.tried_s: list[float] = []
        self.entered: list[Wire] = []
        self.ended_s = 0.0

    async def sock_accept(self, listener: Any) -> tuple[Any, Any]:
        self.tried_s.append(asyncio.get_running_loop().time())
        if not self.answers:
            await asyncio.get_running_loop().create_future()
        if number := self.answers.pop(0):
            raise OSError(number, "no")
        return None, None

    async def connect_accepted_socket(self, make: Callable[[], GuardedProtocol], connection: Any) -> None:
        wire = Wire(self.address)
        self.entered.append(wire)
        wire.protocol = make()
        wire.protocol.connection_made(wire)

    async def open(
        self,
        monkeypatch: pytest.MonkeyPatch,
        seconds: float,
        asked: bytes = b"",
        app: Any = None,
        **limits: Any,
    ) -> list[float]:
        """Serve for ``seconds``; every client connects at once. Returns the seconds between the accepts. ``left`` gets
        the clients that are still connected, ``ended_s`` the moment at which the server ended."""
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "sock_accept", self.sock_accept, raising=False)
        monkeypatch.setattr(loop, "connect_accepted_socket", self.connect_accepted_socket, raising=False)
        server = Server(app or house, ServerLimits(**limits), on_stop=None, signals=False)
        with socket.socket() as listener:
            serving = asyncio.create_task(server.serve([listener]))
            await asyncio.sleep(MOMENT_S)
            for wire in self.entered if asked else []:
                assert wire.protocol is not None
                wire.protocol.data_received(asked)
            await asyncio.sleep(seconds - MOMENT_S)
            self.left = [wire.gone_s is None for wire in self.entered]
            server.should_exit = True
            await serving
            assert listener.fileno() == -1, "the listener is closed once the server ended"
        self.ended_s = loop.time()
        return [round(after - before, 6) for before, after in pairwise(self.tried_s)]


async def house(scope: Any, receive: Any, send: Any) -> None:
    """An application with a lifespan that serves a site."""
    if scope["type"] != "lifespan":
        await site(scope, receive, send)
        return
    for _ in ("startup", "shutdown"):
        await send({"type": (await receive())["type"] + ".complete"})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_without_a_file_descriptor_accept_is_retried_after_growing_pauses_up_to_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(*[errno.EMFILE] * 7, 0, errno.ENFILE, 0, 0)
    assert await door.open(monkeypatch, 30) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.0, 0.05, 0.0, 0.0]
    assert len(door.entered) == 3
    assert len(warnings(caplog)) == 1


async def test_a_lack_of_file_descriptors_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await Door(*[errno.EMFILE] * 500).open(monkeypatch, 150)
    assert len(warnings(caplog)) == 3


async def test_each_accept_without_a_file_descriptor_closes_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(0, 0, 0, errno.EMFILE, errno.ENOMEM)
    await door.open(monkeypatch, 1)
    assert door.left == [False, False, True]


async def test_a_connection_that_failed_before_accept_closes_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(0, errno.ECONNABORTED, 0)
    assert await door.open(monkeypatch, 1) == [0.0, 0.05, 0.0]
    assert (door.left, warnings(caplog)) == ([True, True], [])


def test_a_listener_does_not_block_and_frees_a_port_that_it_could_not_bind() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert not listener.getblocking()
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert listener.proto == socket.IPPROTO_TCP
        told = struct.unpack_from("I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32), 28)
        assert told[0] == min(2_048, int(Path("/proc/sys/net/core/somaxconn").read_text())), "how many may wait"
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ConfigError) as refused:
            listen(*listener.getsockname())
        assert len(os.listdir("/proc/self/fd")) == before, refused
    with listen("::1", 0) as listener:
        assert listener.family is socket.AF_INET6


async def sick(scope: Any, receive: Any, send: Any) -> None:
    """An application that refuses to start."""
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no"})


async def nothing() -> None:
    """A lifespan that does nothing."""


@pytest.mark.sockets
def test_serving_an_application_that_fails_to_start_raises_its_error() -> None:
    with pytest.raises(ConfigError):
        serve(sick, ServerLimits(), listen("127.0.0.1", 0), on_start=nothing, on_stop=nothing)


@pytest.mark.sockets
async def test_an_application_that_fails_to_start_is_named_and_its_port_is_freed() -> None:
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    with pytest.raises(ConfigError):
        async with serving(sick, ServerLimits(), listener, what="the hub"):
            pytest.fail("it was served nevertheless")
    listen(*address).close()


@pytest.mark.sockets
async def test_a_listener_is_closed_if_the_end_of_its_server_is_cancelled() -> None:
    listener, up = listen("127.0.0.1", 0), asyncio.Event()

    async def served() -> None:
        async with serving(house, ServerLimits(), listener):
            up.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(served())
    await up.wait()
    task.cancel()
    await asyncio.sleep(0)  # the server has a tenth of a second to see that it is to end
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert listener.fileno() == -1


# -- a server's settings -------------------------------------------------------------------------------


async def test_a_response_under_way_has_five_seconds_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer_s, ended_s, answered in ((4, 4, True), (100, 6, False)):
        began_s = asyncio.get_running_loop().time()
        door = Door(0)
        await door.open(monkeypatch, 1, HEAD % b"%d" % answer_s)
        assert door.ended_s - began_s == pytest.approx(ended_s, abs=0.5)
        assert door.entered[0].written.endswith(b"ok") is answered


async def test_an_idle_connection_is_kept_for_the_seconds_in_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seconds, kept in ((6, True), (8, False)):
        door = Door(0)
        await door.open(monkeypatch, seconds, HEAD % b"0", keep_alive_s=7.2)
        assert door.left == [kept]


async def test_a_server_sends_no_name_logs_no_request_and_ignores_forwarded_headers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await house(scope, receive, send)

    caplog.set_level(logging.DEBUG)
    door = Door(0, address=("127.0.0.1", 5))
    asked = b"GET /0 HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 8.8.8.8\r\nx-forwarded-proto: https\r\n\r\n"
    await door.open(monkeypatch, 1, asked, app)
    head = bytes(door.entered[0].written).lower()
    assert head.startswith(b"http/1.1 200")
    assert b"\r\nserver:" not in head
    assert [(scope["client"], scope["scheme"]) for scope in seen if scope["type"] == "http"] == [
        (("127.0.0.1", 5), "http")
    ]
    assert [record.name for record in caplog.records if "GET" in record.getMessage()] == []
