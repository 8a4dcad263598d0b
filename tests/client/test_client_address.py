"""The configured address, and that nothing of ours goes anywhere else (T-01)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.client import AgentClient, Credential
from fleetsim.client.address import AgentUrl
from fleetsim.model.errors import BlockedAddress, ConfigError, FleetsimError
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD, ScriptedAgent, task


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a.example", ["/.well-known/agent-card.json", "/.well-known/agent.json"]),
        ("http://a.example/", ["/.well-known/agent-card.json", "/.well-known/agent.json"]),
        ("http://a.example/a2a", ["/.well-known/agent-card.json", "/.well-known/agent.json"]),
        ("http://a.example/a2a/", ["/.well-known/agent-card.json", "/.well-known/agent.json"]),
        (
            "http://a.example/x/a2a?k=1",
            [
                "/x/.well-known/agent-card.json",
                "/x/.well-known/agent.json",
                "/.well-known/agent-card.json",
                "/.well-known/agent.json",
            ],
        ),
    ],
)
def test_the_card_is_looked_for_beside_the_path_and_then_at_the_root(url: str, expected: list[str]) -> None:
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
def test_an_address_that_is_none_is_a_config_error_without_its_password(url: str) -> None:
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
def test_the_same_origin_in_another_spelling_is_taken(url: str) -> None:
    AgentUrl.parse("http://a.example").require(url)


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
async def test_whatever_a_card_advertises_the_key_stays_at_the_configured_origin(
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
        with suppress(FleetsimError):  # where the advertised path leads nowhere; what counts is what was sent
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
