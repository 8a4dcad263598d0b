"""OAuth2 tokens: fetched, kept, renewed, and every failure named by its step (RFC 6749, RFC 8414)."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote_plus

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Received
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from fleetsim.client import AgentClient, Credential
from fleetsim.client.credential import TokenRequest
from fleetsim.model.errors import AuthRefused, ConfigError, FleetsimError, TimedOut, Unreachable
from fleetsim.runtime.ports import Request, Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.client.scripted import CARD, ScriptedAgent, task

AGENT = "http://agent.example"
LOGIN = "https://login.example"
METADATA = f"{LOGIN}/.well-known/openid-configuration"
SECRET = "s3cr3t"


@dataclass
class TokenServer:
    """Issues ``token-1``, ``token-2`` ...; ``reply`` or ``metadata`` replace its responses."""

    reply: Response | None = None
    metadata: Any = None
    expires_in: Any = 3600
    forms: list[dict[str, str]] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/token", self.token, methods=["POST"]),
                Route("/{path:path}", self.discovery, methods=["GET"]),
            ]
        )

    async def token(self, request: Received) -> Response:
        form = parse_qs((await request.body()).decode())
        self.forms.append({name: values[0] for name, values in form.items()})
        self.proofs.append(request.headers.get("authorization", ""))
        await asyncio.sleep(0.1)
        return self.reply or JSONResponse(
            {"access_token": f"token-{len(self.forms)}", "token_type": "Bearer", "expires_in": self.expires_in}
        )

    async def discovery(self, request: Received) -> Response:
        if isinstance(self.metadata, Response):
            return self.metadata
        return JSONResponse({"issuer": LOGIN, "token_endpoint": f"{LOGIN}/token", **(self.metadata or {})})


class Guarded(ScriptedAgent):
    """Wants one of ``valid`` as a bearer token for calls; its card is public."""

    valid: frozenset[str] = frozenset(f"token-{number}" for number in range(1, 100))

    async def answer_call(self, request: Received) -> Response:
        answer = await super().answer_call(request)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return answer if given in self.valid else Response(status_code=401)


def oauth2(**grant: Any) -> Credential:
    where = {} if grant.keys() & {"discovery_url", "token_url"} else {"token_url": f"{LOGIN}/token"}
    return Credential("oauth2", secret=SECRET, token_request=TokenRequest(client_id="me", **where, **grant))


def mounted(network: MemoryNetwork, server: TokenServer, agent: ScriptedAgent | None = None) -> ScriptedAgent:
    agent = agent or Guarded({"*": task()})
    network.mount(AGENT, agent.app)
    network.mount(LOGIN, server.app)
    return agent


def tokens(agent: ScriptedAgent) -> list[str]:
    return [seen.headers["authorization"] for seen in agent.seen]


async def test_one_token_serves_all_calls_until_it_is_about_to_expire(runtime: Runtime, network: MemoryNetwork) -> None:
    server = TokenServer()
    agent = mounted(network, server)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        await asyncio.gather(*(client.send_task("hi") for _ in range(5)))
        assert len(server.forms) == 1
        await asyncio.sleep(3_500)
        await client.send_task("hi")
        assert len(server.forms) == 1
        await asyncio.sleep(60)
        await client.send_task("hi")
    assert tokens(agent) == ["Bearer token-1"] * 6 + ["Bearer token-2"]


async def test_the_form_and_the_proof_are_those_of_rfc_6749(runtime: Runtime, network: MemoryNetwork) -> None:
    server = TokenServer()
    mounted(network, server)
    async with network:
        grant = {"scopes": ("a", "b"), "parameters": (("audience", "quinn"),)}
        for client_auth in ("basic", "post"):
            credential = oauth2(client_auth=client_auth, **grant)
            await AgentClient(AGENT, runtime=runtime, credential=credential).send_task("hi")
    asked = {"grant_type": "client_credentials", "scope": "a b", "audience": "quinn"}
    assert server.forms == [asked, {**asked, "client_id": "me", "client_secret": SECRET}]
    assert server.proofs == ["Basic bWU6czNjcjN0", ""]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refused_token_is_renewed_once(runtime: Runtime, network: MemoryNetwork, streamed: bool) -> None:
    server, agent = TokenServer(), Guarded({"*": task()})
    agent.valid = frozenset({"token-2"})
    mounted(network, server, agent)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        if streamed:
            events = [event async for event in client.stream("hi")]
            assert len(events) == 1
        else:
            assert (await client.send_task("hi")).text == "done"
        assert tokens(agent) == ["Bearer token-1", "Bearer token-2"]
        agent.valid = frozenset()
        with pytest.raises(AuthRefused) as refused:
            await client.send_task("hi")
    assert refused.value.status == 401
    assert tokens(agent)[2:] == ["Bearer token-2", "Bearer token-3"]


@pytest.mark.parametrize(
    ("supported", "in_form"),
    [(None, False), (["client_secret_post"], True), (["client_secret_post", "client_secret_basic"], False)],
)
async def test_the_metadata_names_the_endpoint_and_the_proof(
    runtime: Runtime, network: MemoryNetwork, supported: list[str] | None, in_form: bool
) -> None:
    server = TokenServer(metadata={"token_endpoint_auth_methods_supported": supported} if supported else None)
    mounted(network, server)
    async with network:
        await AgentClient(AGENT, runtime=runtime, credential=oauth2(discovery_url=METADATA)).send_task("hi")
    assert ("client_secret" in server.forms[0]) is in_form


REFUSED = JSONResponse({"error": "invalid_client", "error_description": f"{SECRET} is wrong\x1b"}, status_code=401)


@pytest.mark.parametrize(
    ("server", "grant", "kind", "step"),
    [
        (TokenServer(reply=REFUSED), {}, AuthRefused, "token request"),
        (TokenServer(reply=Response(b"busy", status_code=503)), {}, Unreachable, "token request"),
        (TokenServer(reply=RedirectResponse("http://evil.example/")), {}, ConfigError, "token request"),
        (TokenServer(reply=Response(b"[" * 60_000)), {}, ConfigError, "token request"),
        (TokenServer(reply=JSONResponse({"access_token": "a\r\nb"})), {}, ConfigError, "token request"),
        (TokenServer(reply=JSONResponse({"access_token": "a", "token_type": "DPoP"})), {}, ConfigError, "token req"),
        (TokenServer(reply=JSONResponse({"error": "invalid_grant"})), {}, AuthRefused, "invalid_grant"),
        (TokenServer(reply=Response(b" " * 70_000)), {}, Unreachable, "token request"),
        (TokenServer(), {"token_url": "https://nowhere.example/token"}, Unreachable, "token request"),
        (TokenServer(metadata=Response(status_code=404)), {"discovery_url": METADATA}, AuthRefused, "discovery"),
        (TokenServer(metadata={"issuer": "https://evil.example"}), {"discovery_url": METADATA}, ConfigError, "discov"),
        (TokenServer(metadata={"token_endpoint": "file:///x"}), {"discovery_url": METADATA}, ConfigError, "discovery"),
    ],
)
async def test_a_failure_names_its_step_and_blames_no_agent(
    runtime: Runtime,
    network: MemoryNetwork,
    server: TokenServer,
    grant: dict[str, Any],
    kind: type[FleetsimError],
    step: str,
) -> None:
    agent = mounted(network, server)
    async with network:
        with pytest.raises(FleetsimError, match=step) as failed:
            await AgentClient(AGENT, runtime=runtime, credential=oauth2(**grant)).send_task("hi")
    assert type(failed.value) is kind
    assert failed.value.blame != "agent"
    assert SECRET not in str(failed.value)
    assert "\x1b" not in str(failed.value)
    assert agent.seen == []


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (JSONResponse({"error": "invalid_client"}, status_code=401), "clientAuth: post"),
        (Response(b"<html>", status_code=404), "auth.tokenUrl"),
    ],
)
async def test_a_refusal_of_the_token_endpoint_names_the_setting_to_look_at(
    runtime: Runtime, network: MemoryNetwork, reply: Response, named: str
) -> None:
    mounted(network, TokenServer(reply=reply))
    async with network:
        with pytest.raises(AuthRefused) as refused:
            await AgentClient(AGENT, runtime=runtime, credential=oauth2()).send_task("hi")
    assert named in (refused.value.hint or "")


async def test_the_type_bearertoken_means_bearer(runtime: Runtime, network: MemoryNetwork) -> None:
    reply = JSONResponse({"access_token": "token-1", "token_type": "BearerToken"})
    agent = mounted(network, TokenServer(reply=reply))
    async with network:
        await AgentClient(AGENT, runtime=runtime, credential=oauth2()).send_task("hi")
    assert tokens(agent) == ["Bearer token-1"]


async def test_a_token_endpoints_retry_after_is_obeyed(runtime: Runtime, network: MemoryNetwork) -> None:
    server = TokenServer(reply=Response(status_code=503, headers={"Retry-After": "30"}))
    mounted(network, server)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        with pytest.raises(Unreachable) as busy:
            await client.send_task("hi", timeout_s=10)
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(20, setattr, server, "reply", None)
        await client.send_task("hi", timeout_s=60)
    assert loop.time() - began >= 29
    assert (busy.value.retry_after_s, len(server.forms)) == (30.0, 2)


class Challenging(Guarded):
    """Refuses a token that is not valid with HTTP 403 and a challenge."""

    challenge = 'Bearer error="invalid_token"'

    async def answer_call(self, request: Received) -> Response:
        answer = await super().answer_call(request)
        refused = Response(status_code=403, headers={"www-authenticate": self.challenge})
        return refused if answer.status_code == 401 else answer


@pytest.mark.parametrize("streamed", [False, True])
async def test_invalid_token_renews_the_token_whatever_the_status(
    runtime: Runtime, network: MemoryNetwork, streamed: bool
) -> None:
    agent = Challenging({"*": task()})
    agent.valid = frozenset({"token-2"})
    mounted(network, TokenServer(), agent)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        if streamed:
            assert len([event async for event in client.stream("hi")]) == 1
        else:
            await client.send_task("hi")
    assert tokens(agent) == ["Bearer token-1", "Bearer token-2"]


async def test_insufficient_scope_names_the_scope_and_renews_nothing(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = Challenging({"*": task()})
    agent.valid, agent.challenge = frozenset(), 'Bearer error="insufficient_scope", scope="tasks.write"'
    server = TokenServer()
    mounted(network, server, agent)
    async with network:
        with pytest.raises(AuthRefused) as refused:
            await AgentClient(AGENT, runtime=runtime, credential=oauth2()).send_task("hi")
    assert "tasks.write" in (refused.value.hint or "")
    assert len(server.forms) == 1


class Echo(TokenServer):
    """Repeats the form and the header of the client in its refusal."""

    async def token(self, request: Received) -> Response:
        words = f"{(await request.body()).decode()} {request.headers.get('authorization', '')}"
        return JSONResponse({"error": "invalid_client", "error_description": words}, status_code=400)


@pytest.mark.parametrize("client_auth", ["basic", "post"])
async def test_a_repeated_secret_of_the_server_is_in_no_message(
    runtime: Runtime, network: MemoryNetwork, client_auth: Any
) -> None:
    mounted(network, Echo())
    credential = Credential("oauth2", secret="p&ss w", token_request=oauth2(client_auth=client_auth).token_request)
    async with network:
        with pytest.raises(AuthRefused) as refused:
            await AgentClient(AGENT, runtime=runtime, credential=credential).send_task("hi")
    forms = ("p&ss", quote_plus("p&ss w"), b64encode(f"me:{quote_plus('p&ss w')}".encode()).decode())
    assert [form for form in forms if form in str(refused.value)] == []


async def test_a_deadline_names_the_token_that_it_passed_in(runtime: Runtime, network: MemoryNetwork) -> None:
    server = TokenServer(expires_in=1)
    agent = mounted(network, server)
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        await client.discover()
        await asyncio.sleep(5)
        with pytest.raises(TimedOut, match="token request") as late:
            await client.send_task("hi", timeout_s=0.05)
    assert (late.value.sent, agent.seen) == (False, [])


@pytest.mark.parametrize("endpoint", ["https://inside.example/token", "http://login.example/token"])
async def test_metadata_sends_the_secret_to_no_private_or_plain_address(
    runtime: Runtime, network: MemoryNetwork, endpoint: str
) -> None:
    server = TokenServer(metadata={"token_endpoint": endpoint})
    mounted(network, server)
    network.addresses["inside.example"] = ("10.0.0.1",)
    inside = TokenServer()
    network.mount("https://inside.example", inside.app)
    async with network:
        with pytest.raises(ConfigError):
            await AgentClient(AGENT, runtime=runtime, credential=oauth2(discovery_url=METADATA)).send_task("hi")
    assert inside.forms == server.forms == []


async def test_a_card_does_not_choose_the_address_for_the_secret(runtime: Runtime, network: MemoryNetwork) -> None:
    flows = {"clientCredentials": {"tokenUrl": "https://evil.example/token", "scopes": {}}}
    card = {**CARD, "securitySchemes": {"o": {"type": "oauth2", "flows": flows}}}
    server, evil = TokenServer(), TokenServer()
    mounted(network, server, Guarded({"*": task()}, card=card))
    network.mount("https://evil.example", evil.app)
    async with network:
        await AgentClient(AGENT, runtime=runtime, credential=oauth2()).send_task("hi")
    assert (len(server.forms), evil.forms) == (1, [])


async def test_calls_that_need_a_token_at_once_share_its_failure(runtime: Runtime, network: MemoryNetwork) -> None:
    server = TokenServer(reply=REFUSED)
    mounted(network, server)
    async with network:
        client = AgentClient(f"{AGENT}/a/b", runtime=runtime, credential=oauth2(), dialect="0.3")
        failed = await asyncio.gather(*(client.get("t") for _ in range(5)), return_exceptions=True)
        assert {type(error) for error in failed} == {AuthRefused}
        assert len(server.forms) == 1
        server.reply = None
        await asyncio.sleep(3)
        await client.send_task("hi")


async def test_a_failure_that_calls_share_does_not_grow(runtime: Runtime, network: MemoryNetwork) -> None:
    server = TokenServer(reply=REFUSED)
    card = {**CARD, "url": "https://elsewhere.example/a2a"}
    mounted(network, server, Guarded({"*": task()}, card=card))
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        client.adopt(await AgentClient(AGENT, runtime=runtime).discover(), f"{AGENT}/.well-known/agent-card.json")
        failed = await asyncio.gather(*(client.get("t") for _ in range(3)), return_exceptions=True)
    assert [str(error).count("elsewhere.example") for error in failed] == [1, 1, 1]


async def test_a_token_that_a_twin_renewed_is_the_clients(runtime: Runtime, network: MemoryNetwork) -> None:
    agent = mounted(network, TokenServer())
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        twin, request = client.credentials.twin(), Request(method="GET", url=AGENT)
        assert twin.forget(await twin.sign(runtime, request), 401, {})
        await twin.sign(runtime, request)
        await client.send_task("hi")
    assert tokens(agent) == ["Bearer token-2"]


class Slow(Guarded):
    """Answers after 10 s."""

    async def answer_call(self, request: Received) -> Response:
        answer = await super().answer_call(request)
        await asyncio.sleep(10)
        return answer


async def test_a_request_that_was_sent_is_not_taken_for_another_that_waits_for_a_token(
    runtime: Runtime, network: MemoryNetwork
) -> None:
    agent = mounted(network, TokenServer(expires_in=3), Slow({"*": task()}))
    async with network:
        client = AgentClient(AGENT, runtime=runtime, credential=oauth2())
        await client.discover()
        first = asyncio.create_task(client.send_task("one", timeout_s=5))
        await asyncio.sleep(4.95)
        second = asyncio.create_task(client.send_task("two", timeout_s=20))
        with pytest.raises(TimedOut) as late:
            await first
        assert (late.value.sent, len(agent.seen)) == (True, 1)
        await second
