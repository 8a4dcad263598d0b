"""The configured address: no credential of ours goes anywhere else (T-01)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.client import AgentClient, Credential
from fleetsim.client.http import AgentUrl
from fleetsim.model.errors import AuthRefused, BlockedAddress, ConfigError, FleetsimError
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.testbed.runtime import virtual_runtime
from fleetsim.wire.choice import origin_of
from tests.client.mounted import PATH, RPC, mounted
from tests.client.scripted import CARD, ScriptedAgent, task


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a.example", ["/.well-known/agent-card.json", "/.well-known/agent.json"]),
        ("http://a.example/", ["/.well-known/agent-card.json", "/.well-known/agent.json"]),
        (
            "http://a.example/a2a/",
            [
                "/a2a/.well-known/agent-card.json",
                "/a2a/.well-known/agent.json",
                "/.well-known/agent-card.json",
                "/.well-known/agent.json",
            ],
        ),
        (
            "http://a.example/x/a2a?k=1",
            [
                "/x/a2a/.well-known/agent-card.json",
                "/x/a2a/.well-known/agent.json",
                "/x/.well-known/agent-card.json",
                "/x/.well-known/agent.json",
                "/.well-known/agent-card.json",
                "/.well-known/agent.json",
            ],
        ),
    ],
)
def test_the_card_is_searched_below_the_path_beside_it_and_then_at_the_root(url: str, expected: list[str]) -> None:
    assert list(AgentUrl.parse(url).card_urls()) == ["http://a.example" + path for path in expected]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.example",
        "ftp://a.example",
        "http://",
        "http:///x",
        "http://u:s3cr3t@a.example",
        "http://@a.example",
        "http://a.example#x",
        "http://a.example\\@b",
        "http://a b.example",
        "http://bücher.example",
        "http://a.example:99999",
        "http://a.example:0",
        "http://[::1",
    ],
)
def test_a_malformed_address_is_a_config_error_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AgentClient(url)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://a.example:81/", "https://a.example/", "http://b.example/", "http://a.example.evil/", "x"]
)
def test_another_origin_is_refused(url: str) -> None:
    with pytest.raises(BlockedAddress):
        AgentUrl.parse("http://a.example").require(url)


@pytest.mark.parametrize("url", ["http://a.example/", "HTTP://A.Example:80/x", "http://a.example./y?z"])
def test_the_same_origin_in_another_spelling_is_accepted(url: str) -> None:
    assert origin_of(url) == AgentUrl.parse("http://a.example").origin


ADVERTISED = [
    "http://evil.example/rpc", "https://agent.example/rpc", "http://agent.example:81/rpc",
    "http://agent.example:8080/", "//evil.example/", "http://user@evil.example/rpc",
    "http://agent.example@evil.example/rpc", "http://agent.example:80@evil.example/",
    "http://evil.example#agent.example", "http://evil.example\\@agent.example/",
    "http://agent.example\\@evil.example/", "http://agent.example.evil.example/",
    "http://AGENT.EXAMPLE.evil.example", "http://agent.example%2eevil.example/",
    "http://agent.example%00.evil.example/", "http://agent.example\x00.evil.example/",
    "http://agent.example\t.evil.example/", "http://agent.example\n.evil.example/",
    "http://evil.example/agent.example", "http://evil.example?agent.example", "http://[::1]/rpc",
    "http://[::ffff:7f00:1]/", "http://127.0.0.1/rpc", "http://127.1/", "http://0/", "http://2130706433/",
    "http://169.254.169.254/latest", "http://xn--agent-example.evil.example/", "http://аgent.example/rpc",
    "http://ａgent.example/rpc", "http://agent。example.evil.example/", "ftp://agent.example/",
    "file:///etc/passwd", "javascript:alert(1)", "unix:///var/run/docker.sock", "ws://agent.example/", "", " ",
    "http://", "/rpc/../../evil", "http://agent.example/%0d%0aHost:%20evil.example", "http://agent.example:0/",
]  # fmt: skip


@pytest.mark.parametrize("place", ["url", "supportedInterfaces", "additionalInterfaces"])
@pytest.mark.parametrize("advertised", ADVERTISED)
async def test_for_any_card_the_key_stays_at_the_configured_origin(
    runtime: Runtime, network: MemoryNetwork, advertised: str, place: str
) -> None:
    card: dict[str, Any] = {**CARD, "url": advertised}
    if place == "supportedInterfaces":
        card["supportedInterfaces"] = [{"url": advertised, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"}]
    elif place == "additionalInterfaces":
        card |= {"preferredTransport": "GRPC", "additionalInterfaces": [{"url": advertised, "transport": "JSONRPC"}]}
    agent = ScriptedAgent({"*": task()}, card=card)

    async def collect(_: object) -> Response:
        return Response()

    network.mount("http://agent.example", agent.app)
    for origin in (
        "http://evil.example",
        "https://agent.example",
        "http://agent.example:81",
        "http://agent.example:8080",
    ):
        network.mount(origin, Starlette(routes=[Route("/{path:path}", collect, methods=["GET", "POST"])]))
    async with network:
        client = AgentClient("http://agent.example", runtime=runtime, credential=Credential.of("apiKey", "canary"))
        await client.discover()
        with suppress(FleetsimError):  # the advertised path may lead nowhere; only the sent requests count
            await client.send_task("hello")
    assert {request.url.split("/", 3)[2] for request in network.seen} == {"agent.example"}
    assert all(request.url.startswith("http://agent.example/") for request in network.seen)
    assert all("\n" not in request.url and "\r" not in request.url for request in network.seen)


async def test_the_path_of_the_card_is_used_when_only_a_base_is_configured(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    agent = ScriptedAgent({"*": task()})
    network.mount("http://agent.example", agent.app)
    async with network:
        await AgentClient("http://agent.example", runtime=runtime).send_task("hello")
        await AgentClient("http://agent.example/mine", runtime=runtime).send_task("hello")
    assert [seen.path for seen in agent.seen] == ["/rpc", "/mine"]


ORIGIN = "http://agent.example"


@pytest.mark.parametrize("url", [ORIGIN + PATH, f"{ORIGIN}{PATH}/", f"{ORIGIN}{PATH}?tenant=blue"])
async def test_an_agent_mounted_below_a_path_is_called_at_the_path_its_card_names(
    runtime: Runtime, network: MemoryNetwork, url: str
) -> None:
    network.mount(ORIGIN, mounted(ORIGIN, virtual_runtime(1, network, name="x")))
    async with network:
        client = AgentClient(url, runtime=runtime)
        sent = await client.send_task("hello", metadata={"skillHint": "echo"})
        choice = await client.choice()
    query = "?tenant=blue" if "?" in url else ""
    assert (sent.text, choice.url, choice.warnings) == ("hello", f"{ORIGIN}{PATH}{RPC}{query}", ())
    assert client.card_at == f"{ORIGIN}{PATH}/.well-known/agent-card.json"


def test_a_blocking_twin_keeps_the_place_of_a_mounted_agent() -> None:
    agent = ScriptedAgent({"*": task()}, card={**CARD, "url": f"{ORIGIN}/mine/rpc"})
    client = AgentClient(f"{ORIGIN}/mine", transport=httpx.ASGITransport(agent.app))
    client.discover_sync()
    client.send_task_sync("hello")
    assert [seen.path for seen in agent.seen] == ["/mine/rpc"]


def serving(card: dict[str, Any], *paths: str, closed: tuple[str, ...] = ()) -> Starlette:
    """A server with a card at these paths alone, and a refusal below the others."""

    async def answer(request: Request) -> Response:
        if request.url.path in paths:
            return JSONResponse(card)
        return Response(status_code=401 if request.url.path.startswith(closed) else 404)

    return Starlette(routes=[Route("/{path:path}", answer)])


BELOW, AT_ROOT = f"{PATH}/.well-known/agent-card.json", "/.well-known/agent-card.json"


@pytest.mark.parametrize(
    ("named", "place", "called"),
    [
        (f"{ORIGIN}{PATH}/rpc", BELOW, f"{PATH}/rpc"),
        (f"{ORIGIN}{PATH}/", BELOW, f"{PATH}/"),
        (f"http://behind.internal:9000{PATH}/v1/rpc", BELOW, f"{PATH}/v1/rpc"),
        (f"{ORIGIN}/rpc", BELOW, PATH),
        (f"{ORIGIN}{PATH}y/rpc", BELOW, PATH),
        (f"{ORIGIN}{PATH}/../../admin", BELOW, PATH),
        (f"{ORIGIN}{PATH}/%2e%2e/%2e%2e/admin", BELOW, PATH),
        (f"{ORIGIN}{PATH}/a b", BELOW, PATH),
        (f"{ORIGIN}{PATH}/rpc", AT_ROOT, PATH),
    ],
)
async def test_a_configured_path_is_the_endpoint_unless_a_card_below_it_names_one_below_it(
    runtime: Runtime, network: MemoryNetwork, named: str, place: str, called: str
) -> None:
    network.mount(ORIGIN, serving({**CARD, "url": named}, place))
    async with network:
        choice = await AgentClient(ORIGIN + PATH, runtime=runtime).choice()
    assert choice.url == ORIGIN + called
    assert bool(choice.warnings) is ((place == BELOW and called == PATH) or "internal" in named)


async def test_a_guarded_endpoint_does_not_hide_the_card_at_its_origin(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    network.mount(ORIGIN, serving(CARD, AT_ROOT, closed=("/a2a",)))
    async with network:
        client = AgentClient(f"{ORIGIN}/a2a", runtime=runtime)
        await client.discover()
        assert [seen.url.removeprefix(ORIGIN) for seen in network.seen] == ["/a2a" + AT_ROOT, AT_ROOT]
        network.mount("http://shut.example", serving(CARD, closed=("/",)))
        with pytest.raises(AuthRefused):
            await AgentClient("http://shut.example/a2a", runtime=runtime).discover()


async def test_the_first_interface_below_a_mounted_base_is_taken(runtime: Runtime, network: MemoryNetwork) -> None:
    entries = [("0.3", f"{ORIGIN}{PATH}/old"), ("1.0", f"{ORIGIN}/elsewhere"), ("1.0", f"{ORIGIN}{PATH}/new")]
    listed = [{"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version} for version, url in entries]
    network.mount(ORIGIN, serving({"name": "x", "skills": [], "supportedInterfaces": listed}, BELOW))
    async with network:
        first = await AgentClient(ORIGIN + PATH, runtime=runtime).choice()
        second = await AgentClient(ORIGIN + PATH, runtime=runtime, dialect="1.0").choice()
        pinned = await AgentClient(ORIGIN + PATH, runtime=runtime, rpc_url=f"{ORIGIN}{PATH}/old").choice()
    assert (first.dialect_name, first.url) == ("0.3", f"{ORIGIN}{PATH}/old")
    assert (second.dialect_name, second.url) == ("1.0", f"{ORIGIN}{PATH}/new")
    assert (pinned.dialect_name, pinned.url) == ("0.3", f"{ORIGIN}{PATH}/old")


async def test_pinned_addresses_are_used_exactly_with_any_card(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = ScriptedAgent({"*": task()})

    async def show(_: Request) -> Response:
        return JSONResponse(CARD)

    network.mount(ORIGIN, Starlette(routes=[Route("/cards/7", show), *agent.app.routes]))
    async with network:
        pins = {"rpc_url": f"{ORIGIN}/v7/rpc?k=1", "card_url": f"{ORIGIN}/cards/7?v=2"}
        client = AgentClient(ORIGIN, runtime=runtime, **pins)
        await client.send_task("hello")
    assert [request.url for request in network.seen] == [pins["card_url"], pins["rpc_url"]]


@pytest.mark.parametrize("key", ["rpc_url", "card_url"])
@pytest.mark.parametrize("pinned", ["http://b.example/x", "https://a.example/x", "http://a.example:81/", "/x", "x", ""])
def test_an_address_pinned_at_another_origin_is_refused(key: str, pinned: str) -> None:
    with pytest.raises(ConfigError, match=r"^(rpc|card)Url"):
        AgentClient("http://a.example/agents/x", **{key: pinned})
