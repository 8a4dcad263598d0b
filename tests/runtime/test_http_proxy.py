"""HTTP proxies: the connections that use one, the data it sees, and the address policy behind it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from fleetsim.client.hub_client import HubClient
from fleetsim.model.errors import BlockedAddress, ConfigError, FleetsimError, TimedOut, Unreachable
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.exchange import origin_of
from fleetsim.runtime.http import HttpTransport
from fleetsim.runtime.ports import Proxy, TlsFiles, WayOut
from fleetsim.runtime.proxy import check_proxy, choose_proxy, proxy_variable
from fleetsim.runtime.real import SystemResolver
from tests.runtime.authority import Authority
from tests.runtime.proxies import connect_proxy
from tests.runtime.rawserver import Peer, raw_server
from tests.runtime.ways_out import FAST, fails, post

VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    resolver = SystemResolver()
    made = HttpTransport(resolver=resolver)
    yield made
    await made.aclose()
    resolver.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def answer(peer: Peer) -> None:
    await peer.reply(b"pong")


def through(transport: HttpTransport, url: str, **more: str) -> HttpTransport:
    return transport.through(WayOut(proxy=Proxy(url=url, **more)))


@pytest.mark.sockets
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("proxy_secure", [False, True], ids=["http-proxy", "https-proxy"])
async def test_a_name_that_only_the_proxy_knows_is_reached_and_connections_are_kept(
    transport: HttpTransport, authority: Authority, secure: bool, proxy_secure: bool
) -> None:
    tls, proxy_tls = (authority.server() if yes else None for yes in (secure, proxy_secure))
    async with (
        raw_server(answer, tls=tls) as server,
        connect_proxy({"agent.test": "127.0.0.1"}, tls=proxy_tls) as proxy,
    ):
        way = WayOut(proxy=Proxy(url=proxy.url), tls=TlsFiles(ca=authority.ca))
        url = f"{server.scheme}://agent.test:{server.port}"
        for size in (10, 1_000_000):
            request = replace(post(url + "/x?secret=1"), body=b"x" * size)
            assert (await transport.through(way).exchange(request)).body == b"pong"
        (asked,) = proxy.asked
        assert asked.startswith(f"CONNECT agent.test:{server.port} HTTP/1.1\r\n")
        assert "secret" not in asked
        assert [len(peer.body) for peer in server.requests] == [10, 1_000_000]
        async with transport.through(way).open(post(url)) as incoming:
            assert [chunk async for chunk in incoming.chunks] == [b"pong"]


@pytest.mark.sockets
async def test_a_login_comes_from_its_variable_and_stays_out_of_errors(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_LOGIN", "me:s3cr3t")
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with connect_proxy({}, answer=refusal) as proxy:
        for more in ({}, {"login_env": "PROXY_LOGIN"}):
            error = await fails(through(transport, proxy.url, **more), post("http://agent.test/"))
            assert isinstance(error, Unreachable)
            assert "407" in str(error)
            assert "s3cr3t" not in f"{error} {error.hint}"
        assert ["Basic bWU6czNjcjN0" in head for head in proxy.asked] == [False, True]
    monkeypatch.setenv("PROXY_LOGIN", "")
    error = await fails(through(transport, proxy.url, login_env="PROXY_LOGIN"), post("http://agent.test/"))
    assert isinstance(error, ConfigError)
    assert "PROXY_LOGIN" in str(error)


@pytest.mark.sockets
async def test_advice_about_a_login_names_the_place_where_it_is_written(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = post("http://agent.test/")
    async with connect_proxy({}, answer=b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\n\r\n") as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert "HTTP_PROXY" in str((await fails(transport.through(WayOut(proxy=Proxy())), request)).hint)
        assert "credentialsEnv" in str((await fails(through(transport, proxy.url), request)).hint)
    monkeypatch.setenv("PROXY_LOGIN", "me:s3cr3t")
    async with connect_proxy({}, answer=b"HTTP/1.1 401 Unauthorized\r\n\r\n") as proxy:  # as tinyproxy answers
        error = await fails(through(transport, proxy.url, login_env="PROXY_LOGIN"), request)
        assert "login" in str(error)
    both = b"HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\nproxy-authenticate: NTLM x\r\n\r\n"
    async with connect_proxy({}, answer=both) as proxy:
        error = await fails(through(transport, proxy.url, login_env="PROXY_LOGIN"), request)
        assert "Negotiate or NTLM" in str(error)
        assert "credentialsEnv" not in str(error.hint)


@pytest.mark.sockets
async def test_a_certificate_that_is_the_proxys_is_not_taken_for_the_agents(
    transport: HttpTransport, authority: Authority
) -> None:
    async with raw_server(answer, tls=authority.server()) as server:
        async with connect_proxy({}, tls=authority.server()) as proxy:
            error = await fails(through(transport, proxy.url), post(server.url))
            assert "with the proxy" in str(error)
        async with connect_proxy({}) as proxy:
            error = await fails(through(transport, proxy.url), post(server.url))
            assert "TLS failed" in str(error)


@pytest.mark.sockets
async def test_the_reason_for_a_direct_connection_is_in_its_error(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, request = transport.through(WayOut(proxy=Proxy())), post("http://agent.invalid/")
    error = await fails(way, request)
    assert "HTTP_PROXY is not set" in str(error)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", ".invalid")
    error = await fails(way, request)
    assert "NO_PROXY" in str(error)


@pytest.mark.sockets
@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 403 Filtered\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    ],
    ids=["forbidden", "bad gateway", "no proxy", "nothing", "flood"],
)
async def test_a_proxy_that_opens_no_tunnel_is_blamed_and_nothing_was_sent(
    transport: HttpTransport, reply: bytes
) -> None:
    async with connect_proxy({"agent.test": "127.0.0.1"}, answer=reply) as proxy:
        error = await fails(through(transport, proxy.url), post("http://agent.test:1/"))
        assert isinstance(error, Unreachable)
        assert not error.sent
        assert "proxy" in str(error)


@pytest.mark.sockets
async def test_a_proxy_that_is_down_or_silent_is_named(transport: HttpTransport, free_port: int) -> None:
    error = await fails(through(transport, f"http://127.0.0.1:{free_port}"), post("http://agent.test/"))
    assert isinstance(error, Unreachable)
    assert f"the proxy 127.0.0.1:{free_port}" in str(error)

    async def silent(peer: Peer) -> None:
        await peer.left()

    async with raw_server(silent) as server:
        request = post("http://agent.test/", limits=replace(FAST, connect_s=0.2))
        error = await fails(through(transport, server.url), request)
        assert isinstance(error, Unreachable)
        assert f"the proxy 127.0.0.1:{server.port}" in str(error)
    error = await fails(through(transport, "http://proxy.invalid:3128"), post("http://agent.test/"))
    assert isinstance(error, Unreachable)
    assert "agent.test:80 through the proxy proxy.invalid:3128" in str(error)


@pytest.mark.sockets
async def test_silence_beyond_a_tunnel_is_the_agents(transport: HttpTransport) -> None:
    async def silent(peer: Peer) -> None:
        await peer.left()

    async with raw_server(silent) as server, connect_proxy({}) as proxy:
        error = await fails(through(transport, proxy.url), post(server.url, limits=FAST))
        assert isinstance(error, TimedOut)
        assert error.sent
        assert "proxy" not in str(error)


@pytest.mark.sockets
async def test_the_environment_names_the_proxy_only_if_the_entry_allows_it(
    transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_server(answer) as server, connect_proxy({"agent.test": "127.0.0.1"}) as proxy:
        url = f"http://agent.test:{server.port}"
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("http://", "http://me:s3%63r3t@"))
        without = await fails(transport, post(url))
        assert isinstance(without, Unreachable)
        assert "HTTP_PROXY" in str(without)
        assert "proxy: environment" in str(without.hint)
        assert "s3" not in f"{without} {without.hint}"
        way = transport.through(WayOut(proxy=Proxy()))
        assert (await way.exchange(post(url))).body == b"pong"
        assert "Proxy-Authorization: Basic bWU6czNjcjN0\r\n" in proxy.asked[0]
        assert (await way.exchange(post(server.url))).body == b"pong", "this machine is reached directly"
        monkeypatch.setenv("NO_PROXY", "other.test, .test")
        assert isinstance(await fails(way, post(url.replace("agent.", "other."))), Unreachable)
        assert len(proxy.asked) == 1
        monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1")
        monkeypatch.delenv("NO_PROXY")
        assert isinstance(await fails(way, post("http://new.test/")), ConfigError)


@pytest.mark.parametrize(
    ("url", "no_proxy", "name"),
    [
        ("https://agent.example/", "", "HTTPS_PROXY"),
        ("http://agent.example/", "", "ALL_PROXY"),
        ("https://agent.example/", "agent.example", ""),
        ("https://agent.example/", ".example", ""),
        ("https://agent.example/", "*.example", ""),
        ("https://agent.example/", "EXAMPLE:443", ""),
        ("https://agent.example/", "example:8443", "HTTPS_PROXY"),
        ("https://agent.example/", "gent.example,", "HTTPS_PROXY"),
        ("https://agent.example/", "a, *", ""),
        ("https://agent.example/", "other  agent.example", ""),
        ("https://10.1.2.3/", "10.0.0.0/8", ""),
        ("https://10.1.2.3/", "10.1.2.3", ""),
        ("https://10.1.2.3/", "10.2.0.0/16", "HTTPS_PROXY"),
        ("https://[fd00::1]/", "fd00::/8", ""),
        ("https://localhost/", "", ""),
        ("https://127.8.8.8/", "", ""),
        ("https://127.example/", "", "HTTPS_PROXY"),
        ("https://[::1]/", "", ""),
    ],
)
def test_no_proxy_names_hosts_by_name_network_and_port(
    monkeypatch: pytest.MonkeyPatch, url: str, no_proxy: str, name: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_variable(origin_of(url)) == name


@pytest.mark.parametrize(
    "url", ["proxy:3128", "socks5://p:1", "http://me:s3cr3t@p:1", "http://p:1/path", "http://", "http://p p:1"]
)
def test_an_address_that_is_no_proxys_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_proxy(url)
    assert "s3cr3t" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("url", ["http://[p", "http://[::1", "socks5://p:1", "http://p:99999", "http://p/x"])
def test_a_variable_that_holds_no_proxy_is_named(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(ConfigError, match="HTTPS_PROXY"):
        choose_proxy(Proxy(), origin_of("https://agent.example/"))


def test_a_login_that_is_no_text_is_a_mistake_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY_LOGIN", os.fsdecode(b"me:p\xe4ss"))
    with pytest.raises(ConfigError, match="PROXY_LOGIN"):
        choose_proxy(Proxy(url="http://p:1", login_env="PROXY_LOGIN"), origin_of("https://agent.example/"))


class Table:
    """A resolver with a table; other names do not resolve."""

    def __init__(self, **table: str) -> None:
        self._table = {name.replace("_", "."): address for name, address in table.items()}

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        if host not in self._table:
            raise Unreachable(f"{host}: the name does not resolve")
        return (self._table[host],)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("host", "port", "blocked"),
    [
        ("outside.test", 443, False),
        ("outside.test", 22, True),
        ("public.test", 443, False),
        ("inside.test", 443, True),
        ("10.0.0.1", 443, True),
        ("169.254.169.254", 80, True),
        ("8.8.8.8", 443, False),
    ],
)
async def test_a_policy_judges_a_host_beyond_a_proxy_as_far_as_it_is_known_here(
    host: str, port: int, blocked: bool
) -> None:
    refusal = b"HTTP/1.1 503 Not now\r\n\r\n"
    transport = HttpTransport(resolver=Table(public_test="8.8.8.8", inside_test="10.0.0.1"))
    async with connect_proxy({}, answer=refusal) as proxy:
        for guarded in (
            through(transport, proxy.url).guarded(AddressPolicy()),
            through(transport.guarded(AddressPolicy()), proxy.url),
        ):
            error: FleetsimError = await fails(guarded, post(f"http://{host}:{port}/"))
            assert isinstance(error, BlockedAddress) is blocked, error
        assert len(proxy.asked) == (0 if blocked else 2)
    await transport.aclose()


@pytest.mark.sockets
async def test_a_hub_elsewhere_is_called_through_the_proxy_of_its_client() -> None:
    async def whoami(peer: Peer) -> None:
        await peer.reply(b'{"agent": "quinn"}', headers=("Content-Type: application/json",))

    async with raw_server(whoami) as server, connect_proxy({"hub.test": "127.0.0.1"}) as proxy:
        way = WayOut(proxy=Proxy(url=proxy.url))
        async with HubClient(f"http://hub.test:{server.port}", api_key="k", way=way) as hub:
            assert await hub.get("/whoami") == {"agent": "quinn"}
        assert len(proxy.asked) == 1
