"""The extended card, the extensions that a card requires, and the credentials that it requests."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.client import AgentClient, Credential
from fleetsim.model.errors import AuthRefused, MethodNotFound, RpcError
from fleetsim.model.extensions import COST, TRACE
from fleetsim.model.security import in_words, requested_schemes
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.wire.cards import read_card
from tests.client.scripted import CARD, CARD_10, ScriptedAgent, task

AGENT = "http://agent.example"
KEY = Credential.of("bearer", "k")
AUDIT = {"id": "audit", "name": "Audit"}


def old(**more: Any) -> dict[str, Any]:
    return {**CARD, "supportsAuthenticatedExtendedCard": True, **more}


def current(**more: Any) -> dict[str, Any]:
    return {**CARD_10, "capabilities": {"extendedAgentCard": True}, **more}


DIALECTS = [(old, "agent/getAuthenticatedExtendedCard"), (current, "GetExtendedAgentCard")]


def methods(agent: ScriptedAgent) -> list[str]:
    return [seen.body["method"] for seen in agent.seen]


@pytest.mark.parametrize(("card", "method"), DIALECTS)
async def test_the_extended_card_replaces_the_public_one(
    runtime: Runtime, network: MemoryNetwork, card: Any, method: str
) -> None:
    agent = ScriptedAgent({method: card(skills=[AUDIT])}, card=card())
    network.mount(AGENT, agent.app)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=KEY)
        assert [skill.skill_id for skill in (await client.discover()).skills] == ["audit"]
        agent.answers[method] = MethodNotFound()
        await client.discover(refresh=True, where_found=True)
        assert client.card is not None
        assert client.card.skill("audit") is None, "a card that is refused by now does not count any more"
        (warning,) = (await client.choice()).warnings
        assert "extended card" in warning
    assert methods(agent) == [method, method]


REST = {"url": f"{AGENT}/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}


@pytest.mark.parametrize(
    ("card", "path"),
    [
        (old(url=f"{AGENT}/rest", preferredTransport="HTTP+JSON"), "/rest/v1/card"),
        (current(supportedInterfaces=[REST]), "/rest/extendedAgentCard"),
    ],
    ids=["0.3", "1.0"],
)
async def test_the_extended_card_is_read_over_http_json(
    runtime: Runtime, network: MemoryNetwork, card: dict[str, Any], path: str
) -> None:
    async def public(_: Request) -> Response:
        return JSONResponse(card)

    async def extended(request: Request) -> Response:
        known = request.headers.get("authorization") == "Bearer k"
        return JSONResponse({**card, "skills": [AUDIT]}, status_code=200 if known else 401)

    routes = [Route("/.well-known/agent-card.json", public), Route(path, extended)]
    network.mount(AGENT, Starlette(routes=routes))
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=KEY)
        assert [skill.skill_id for skill in (await client.discover()).skills] == ["audit"]
        assert (await client.choice()).warnings == ()


@pytest.mark.parametrize(("card", "method"), DIALECTS)
@pytest.mark.parametrize(
    "refusal", [JSONResponse({}, status_code=401), MethodNotFound(), JSONResponse([1]), RpcError("no"), {"name": 7}]
)
async def test_the_public_card_stays_if_the_extended_one_cannot_be_had(
    runtime: Runtime, network: MemoryNetwork, card: Any, method: str, refusal: Any
) -> None:
    agent = ScriptedAgent({method: refusal, "*": task()}, card=card(skills=[{"id": "chat", "name": "Chat"}]))
    network.mount(AGENT, agent.app)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=KEY)
        assert [skill.skill_id for skill in (await client.discover()).skills] == ["chat"]
        assert any("extended card" in warning for warning in (await client.choice()).warnings)


@pytest.mark.parametrize(("credential", "offered"), [(None, True), (KEY, False)])
async def test_the_extended_card_is_requested_only_with_a_credential_and_if_it_is_offered(
    runtime: Runtime, network: MemoryNetwork, credential: Credential | None, offered: bool
) -> None:
    agent = ScriptedAgent(card=old() if offered else CARD)
    network.mount(AGENT, agent.app)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=credential)
        await client.discover()
        assert (await client.choice()).warnings == ()
    assert agent.seen == []


@pytest.mark.parametrize(("card", "header"), [(CARD, "x-a2a-extensions"), (CARD_10, "a2a-extensions")])
async def test_a_required_extension_is_activated_or_reported(
    runtime: Runtime, network: MemoryNetwork, card: dict[str, Any], header: str
) -> None:
    uris = [{"uri": COST, "required": True}, {"uri": TRACE}, {"uri": "https://x.example/ours", "required": True}]
    agent = ScriptedAgent(
        {"*": task()},
        card={**card, "capabilities": {"extensions": [*uris, {"uri": "urn:other\x1b", "required": True}]}},
    )
    network.mount(AGENT, agent.app)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, extensions=("https://x.example/ours",))
        await client.get("t-1")
        (warning,) = (await client.choice()).warnings
    assert agent.seen[0].headers[header].split(", ") == ["https://x.example/ours", COST]
    assert "urn:other" in warning
    assert "\x1b" not in warning


SCHEMES = {
    "key": {"type": "apiKey", "in": "query", "name": "code\x1b"},
    "basic": {"type": "http", "scheme": "Basic"},
    "oauth": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://l/t", "scopes": {"a": ""}}}},
    "person": {"type": "oauth2", "flows": {"authorizationCode": {}}},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://l/.well-known/openid-configuration"},
    "mtls": {"type": "mutualTLS"},
}


def test_a_card_requests_alternatives_of_credentials_that_go_together() -> None:
    security = [{"key": [], "mtls": []}, {"oauth": ["b"]}, {"oidc": []}, {}, {"nowhere": []}]
    both, oauth, oidc, unknown = requested_schemes(
        read_card({**CARD, "securitySchemes": SCHEMES, "security": security})
    )
    assert [(scheme.kind, scheme.place, scheme.key) for scheme in both] == [
        ("apiKey", "query", "code\x1b"),
        ("mutualTLS", "", ""),
    ]
    assert (oauth[0].token_url, oauth[0].scopes) == ("https://l/t", ("b",))
    assert oidc[0].discovery_url == "https://l/.well-known/openid-configuration"
    assert unknown[0].kind == "nowhere"
    assert "\x1b" not in in_words((both, oauth, oidc, unknown))


def test_schemes_that_no_requirement_names_are_all_offered() -> None:
    offered = requested_schemes(read_card({**CARD, "securitySchemes": SCHEMES}))
    assert [schemes[0].kind for schemes in offered] == [
        "apiKey",
        "basic",
        "oauth2",
        "oauth2",
        "openIdConnect",
        "mutualTLS",
    ]
    assert requested_schemes(read_card(CARD)) == ()


@pytest.mark.parametrize(
    "value", [None, 7, [], {"type": 7}, {"type": "apiKey", "in": 7}, {"type": "oauth2", "flows": [1]}]
)
def test_a_malformed_scheme_is_shown_and_breaks_nothing(value: Any) -> None:
    card = read_card({**CARD, "securitySchemes": {"k": value}, "security": [{"k": 7}]})
    assert in_words(requested_schemes(card))


async def test_a_401_names_the_scheme_of_the_card_and_quotes_the_challenge(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    challenge = {"www-authenticate": 'ApiKey realm="functions"' + "x" * 1_000}
    agent = ScriptedAgent(
        {"*": JSONResponse({}, status_code=401, headers=challenge)}, card={**CARD, "securitySchemes": SCHEMES}
    )
    network.mount(AGENT, agent.app)
    async with network:
        with pytest.raises(AuthRefused) as refused:
            await AgentClient(AGENT, runtime=runtime).send_task("hi")
    for text in (str(refused.value), refused.value.why):
        assert "none is configured" in text
        assert "an API key in the query" in text
        assert 'WWW-Authenticate: ApiKey realm="functions"' in text
        assert len(text) < 700
