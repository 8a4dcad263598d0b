"""TLS with files of the operator: authorities, client certificates, and errors that name the file to correct."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fleetsim.model.errors import ConfigError, FleetsimError, TransportError, Unreachable
from fleetsim.runtime.ports import Limits, Request, TlsFiles, Transport, WayOut
from fleetsim.runtime.real import running_runtime
from tests.runtime.authority import Authority
from tests.runtime.rawserver import Peer, raw_server

pytestmark = pytest.mark.sockets


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    async with running_runtime() as runtime:
        yield runtime.transport


async def post(transport: Transport, url: str, tls: TlsFiles | None = None) -> FleetsimError | int:
    request = Request(method="POST", url=url, body=b"hello", limits=Limits(total_s=20))
    try:
        return (await transport.through(WayOut(tls=tls or TlsFiles())).exchange(request)).status
    except FleetsimError as error:
        return error


async def answer(peer: Peer) -> None:
    await peer.reply()


async def test_a_private_authority_is_trusted_through_its_file(authority: Authority, transport: Transport) -> None:
    async with raw_server(answer, tls=authority.server()) as server:
        assert await post(transport, server.url, TlsFiles(ca=authority.ca)) == 200
        refused = await post(transport, server.url)
        assert isinstance(refused, Unreachable)
        assert not refused.sent
        assert "SSL_CERT_FILE" in str(refused.hint)


@pytest.mark.parametrize(
    ("server", "word"),
    [({"days": (-9, -1)}, "renew"), ({"days": (1, 9)}, "clock"), ({"names": ("10.1.1.1",)}, "name")],
    ids=["expired", "not yet valid", "other name"],
)
async def test_an_invalid_certificate_of_a_trusted_authority_gets_its_own_advice(
    authority: Authority, transport: Transport, server: dict[str, Any], word: str
) -> None:
    names = server.pop("names", ())
    async with raw_server(answer, tls=authority.server(*names, **server)) as agent:
        refused = await post(transport, agent.url, TlsFiles(ca=authority.ca))
        assert isinstance(refused, Unreachable)
        assert word in str(refused.hint)
        assert "--ca" not in str(refused.hint)


@contextmanager
def openssl_server(tls: ssl.SSLContext) -> Iterator[str]:
    """A server that sends an alert after a failed handshake, as OpenSSL, nginx and node do and asyncio does not."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                raw, _ = listener.accept()
                with raw, suppress(ssl.SSLError, OSError):
                    raw.settimeout(5)
                    with tls.wrap_socket(raw, server_side=True) as secured:
                        secured.recv(65_536)
                        secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


@VERSIONS
async def test_a_required_client_certificate_is_sent_and_its_absence_is_named(
    authority: Authority, transport: Transport, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    other = Authority(tmp_path).client()
    wrong = TlsFiles(ca=authority.ca, certificate=other.certificate, key=other.key)
    with openssl_server(authority.server(client_certificate=True, version=version)) as url:
        assert await post(transport, url, authority.client()) == 200
        for files in (TlsFiles(ca=authority.ca), wrong):
            refused = await post(transport, url, files)
            assert isinstance(refused, TransportError)
            assert "client certificate" in str(refused)
            # In TLS 1.3 the server refuses after the client's handshake, and its reset may overtake its alert.
            assert version == ssl.TLSVersion.TLSv1_3 or isinstance(refused, Unreachable)


@VERSIONS
async def test_an_error_without_an_alert_mentions_a_client_certificate(
    authority: Authority, transport: Transport, version: ssl.TLSVersion
) -> None:
    async with raw_server(answer, tls=authority.server(client_certificate=True, version=version)) as server:
        refused = await post(transport, server.url, TlsFiles(ca=authority.ca))
        assert isinstance(refused, TransportError)
        assert "client certificate" in str(refused)
        assert server.requests == []


async def test_a_certificate_rotates_without_a_restart(
    authority: Authority, transport: Transport, tmp_path: Path
) -> None:
    old, other = authority.client("rotated"), Authority(tmp_path)
    async with raw_server(answer, tls=other.server(client_certificate=True)) as server:
        trusting = TlsFiles(ca=other.ca, certificate=old.certificate, key=old.key)
        assert isinstance(await post(transport, server.url, trusting), TransportError)
        other.folder = authority.folder
        other.client("rotated")
        assert await post(transport, server.url, trusting) == 200


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"ca": "/nope.pem"}, "ca"),
        ({"ca": __file__}, "ca"),
        ({"certificate": "/nope.pem", "key": "/nope.key"}, "certificate"),
        ({"certificate": __file__, "key": __file__}, "key"),
        ({"certificate": __file__}, "certificate"),
    ],
)
async def test_a_wrong_file_is_a_configuration_error_that_names_it(
    transport: Transport, free_port: int, files: dict[str, str], named: str
) -> None:
    error = await post(transport, f"https://127.0.0.1:{free_port}", TlsFiles(**files))
    assert isinstance(error, ConfigError)
    assert named in str(error)


async def test_a_wrong_ssl_cert_file_is_blamed_instead_of_the_agent(
    authority: Authority, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nope.pem")
    async with raw_server(answer, tls=authority.server()) as server:
        error = await post(transport, server.url)
        assert isinstance(error, ConfigError)
        assert "SSL_CERT_FILE" in str(error)
        assert "/nope.pem" in str(error)


async def test_a_key_that_others_can_read_is_refused(
    authority: Authority, transport: Transport, free_port: int
) -> None:
    error = await post(transport, f"https://127.0.0.1:{free_port}", authority.client("open", mode=0o644))
    assert isinstance(error, ConfigError)
    assert "chmod 600" in str(error.hint)


async def test_a_key_with_a_passphrase_is_refused_without_a_prompt(
    authority: Authority, transport: Transport, free_port: int
) -> None:
    error = await post(transport, f"https://127.0.0.1:{free_port}", authority.client("locked", passphrase=b"word"))
    assert isinstance(error, ConfigError)
    assert "passphrase" in str(error)
