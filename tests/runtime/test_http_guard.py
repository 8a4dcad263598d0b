"""Guarded connections: a denied address is never dialled, under any name and DNS answer (T-02, T-20, T-21)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from fleetsim.model.errors import BlockedAddress, FleetsimError, Unreachable
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.http import HttpTransport
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.real import SystemResolver
from tests.runtime.addresses import ALLOWED, DENIED
from tests.runtime.rawserver import Peer, raw_server

pytestmark = pytest.mark.sockets

CERTS = Path(__file__).parent / "certs"
LIMITS = Limits(connect_s=2, first_byte_s=10, total_s=20)

SPELLINGS = [
    "127.0.0.1", "127.1", "127.0.1", "127.00.0.1", "127.000.000.001", "0127.0.0.1", "0177.0.0.1", "0177.1",
    "017700000001", "0x7f.0.0.1", "0x7f.1", "0x7F.0x0.0x0.0x1", "0x7f000001", "0X7F000001", "0x0000007f.0x1",
    "2130706433", "02130706433", "127.0.0.1.", "127.1.", "0", "0.0", "0.0.0.0", "00.0.0.0", "0x0",
    "000000000000", "127.0.0.2", "127.255.255.254", "127.8", "localhost", "LOCALHOST", "localhost.",
    "LocalHost.LocalDomain", "localhost..", "ip6-localhost", "[::1]", "[0:0:0:0:0:0:0:1]", "[::0001]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:7F00:0001]", "[::127.0.0.1]", "[::]",
    "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[fe80::1]", "[fe80::1%25lo]", "[::1%25lo]", "127。0。0。1",
    "１２７.0.0.1", "①②⑦.⓪.⓪.①", "127．0．0．1", "ｌｏｃａｌｈｏｓｔ", "127.0.0.1%00.example.com",
    "127.0.0.1%2eexample.com", "%31%32%37.0.0.1", "127.0.0.1\\@example.com", "example.com@127.0.0.1",
    "127.0.0.1\t", "127.0.0.1\x00.example.com", "4294967296",
]  # fmt: skip


class Names:
    """A resolver whose answers a test writes down: the same for every question, or one list per question."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self._answers = answers
        self.asked = 0

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        self.asked += 1
        return self._answers[min(self.asked, len(self._answers)) - 1]


@pytest.fixture
async def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every address to which a socket of this loop would connect; none of them connects."""
    addresses: list[str] = []

    async def refuse(_sock: object, address: tuple[Any, ...]) -> None:
        addresses.append(address[0])
        raise ConnectionRefusedError(111, "refused by the test")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", refuse)
    return addresses


async def post(transport: HttpTransport, url: str, body: bytes = b"secret") -> int:
    return (await transport.exchange(Request(method="POST", url=url, body=body, limits=LIMITS))).status


async def outcome(transport: HttpTransport, url: str) -> FleetsimError | int:
    try:
        return await post(transport, url)
    except FleetsimError as error:
        return error
    finally:
        await transport.aclose()


@pytest.mark.parametrize("address", DENIED)
async def test_a_name_for_a_denied_address_is_never_dialled(dialled: list[str], address: str) -> None:
    guarded = HttpTransport(resolver=Names((address,))).guarded(AddressPolicy())
    assert isinstance(await outcome(guarded, "http://name.example/"), BlockedAddress)
    assert dialled == []


@pytest.mark.parametrize("address", DENIED)
async def test_a_denied_literal_is_never_dialled_though_no_resolver_sees_it(dialled: list[str], address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    guarded = HttpTransport(resolver=Names(("8.8.8.8",))).guarded(AddressPolicy())
    assert isinstance(await outcome(guarded, f"http://{host}/"), BlockedAddress)
    assert dialled == []


@pytest.mark.parametrize("address", ALLOWED)
async def test_an_allowed_address_is_dialled(dialled: list[str], address: str) -> None:
    guarded = HttpTransport(resolver=Names((address,))).guarded(AddressPolicy())
    assert isinstance(await outcome(guarded, "http://name.example/"), Unreachable)
    assert dialled == [address]


async def test_one_bad_answer_among_good_refuses_the_name(dialled: list[str]) -> None:
    guarded = HttpTransport(resolver=Names(("8.8.8.8", "10.0.0.1", "1.1.1.1"))).guarded(AddressPolicy())
    assert isinstance(await outcome(guarded, "http://name.example/"), BlockedAddress)
    assert dialled == []


async def test_without_a_guard_the_same_address_is_dialled(dialled: list[str]) -> None:
    assert isinstance(await outcome(HttpTransport(resolver=Names(("10.0.0.1",))), "http://name.example/"), Unreachable)
    assert dialled == ["10.0.0.1"]


async def test_there_are_sixty_spellings() -> None:
    assert len(set(SPELLINGS)) == 60


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_of_a_host_reaches_a_recording_socket(host: str) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        resolver = SystemResolver()
        guarded = HttpTransport(resolver=resolver).guarded(AddressPolicy(ports=frozenset({server.port})))
        result = await outcome(guarded, f"http://{host}:{server.port}/")
        resolver.close()
        assert isinstance(result, (BlockedAddress, Unreachable))
        assert server.connections == 0


async def test_a_name_that_answers_differently_the_second_time_is_refused_at_the_connection() -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        names = Names(("8.8.8.8",), ("127.0.0.1",))
        policy = AddressPolicy(ports=frozenset({server.port}))
        policy.require("rebind.example", server.port, await names.resolve("rebind.example", server.port))
        guarded = HttpTransport(resolver=names).guarded(policy)
        assert isinstance(await outcome(guarded, f"http://rebind.example:{server.port}/"), BlockedAddress)
        assert server.connections == 0


async def test_a_peer_other_than_the_one_dialled_gets_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        loop = asyncio.get_running_loop()
        really = loop.sock_connect

        async def divert(sock: Any, address: tuple[Any, ...]) -> None:
            await really(sock, ("127.0.0.1", server.port))

        monkeypatch.setattr(loop, "sock_connect", divert)
        guarded = HttpTransport(resolver=Names(("8.8.8.8",))).guarded(AddressPolicy(ports=frozenset({server.port})))
        assert isinstance(await outcome(guarded, f"http://name.example:{server.port}/"), BlockedAddress)
        async with asyncio.timeout(60):
            await server.gone.wait()
        assert server.requests == []


async def test_a_kept_connection_is_not_shared_between_policies() -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler) as server:
        base = HttpTransport(resolver=Names(("127.0.0.1",)))
        open_to_it = base.guarded(AddressPolicy.allowing(f"127.0.0.1:{server.port}"))
        url = f"http://name.example:{server.port}/"
        assert await post(base, url) == 200
        assert await post(open_to_it, url) == 200
        with pytest.raises(BlockedAddress):
            await post(base.guarded(AddressPolicy()), url)
        assert base.guarded(AddressPolicy()) is base.guarded(AddressPolicy())
        await base.aclose()
        assert server.connections == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_from_an_allowed_address_to_a_denied_one_is_not_followed(status: int) -> None:
    async def collect(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(collect) as inside:

        async def handler(peer: Peer) -> None:
            await peer.reply(status=f"{status} Moved", headers=(f"Location: {inside.url}/",))

        async with raw_server(handler) as outside:
            policy = AddressPolicy.allowing(f"127.0.0.1:{outside.port}")
            guarded = HttpTransport(resolver=Names(("127.0.0.1",))).guarded(policy)
            assert await outcome(guarded, f"http://127.0.0.1:{outside.port}/") == status
            assert inside.connections == 0


def _server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTS / "server.pem")
    return context


async def test_a_guarded_connection_still_verifies_the_name() -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    trusting = ssl.create_default_context(cafile=str(CERTS / "ca.pem"))
    async with raw_server(handler, tls=_server_tls()) as server:
        base = HttpTransport(resolver=Names(("127.0.0.1",)), tls=trusting)
        guarded = base.guarded(AddressPolicy.allowing(f"127.0.0.1:{server.port}"))
        assert await post(guarded, f"https://good.test:{server.port}/") == 200
        assert server.requests[0].header("host") == f"good.test:{server.port}"
        # the same address under a name that is not in the certificate: no reuse, no request
        with pytest.raises(Unreachable, match="TLS") as caught:
            await post(guarded, f"https://bad.test:{server.port}/")
        assert not caught.value.sent
        assert len(server.requests) == 1
        await base.aclose()


async def test_an_untrusted_certificate_is_unreachable_and_nothing_was_sent() -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async with raw_server(handler, tls=_server_tls()) as server:
        result = await outcome(HttpTransport(resolver=Names(("127.0.0.1",))), f"https://good.test:{server.port}/")
        assert isinstance(result, Unreachable)
        assert "certificate" in str(result) or "TLS" in str(result)
        assert not result.sent
        assert server.requests == []


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_an_operator_may_name_other_authorities(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    authority = CERTS / "ca.pem"
    (tmp_path / "d228d686.0").write_bytes(authority.read_bytes())  # as `openssl x509 -hash` names it
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv(name, str(authority if name == "SSL_CERT_FILE" else tmp_path))
    async with raw_server(handler, tls=_server_tls()) as server:
        own = HttpTransport(resolver=Names(("127.0.0.1",)))
        assert await outcome(own, f"https://good.test:{server.port}/") == 200


async def test_tls_to_a_plain_port_is_unreachable_and_nothing_was_sent() -> None:
    async def handler(peer: Peer) -> None:
        await peer.reply()

    async def wait(peer: Peer) -> None:
        await peer.reader.read(100)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with raw_server(handler, on_connect=wait) as server:
        result = await outcome(HttpTransport(resolver=Names(("127.0.0.1",))), f"https://good.test:{server.port}/")
        assert isinstance(result, Unreachable)
        assert not result.sent
