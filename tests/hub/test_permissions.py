"""Permissions: every endpoint with every kind of key, and no reachable endpoint outside the table."""

from __future__ import annotations

import asyncio
import re

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fleetsim.api.answers import AccessRole
from fleetsim.hub.api import Api
from fleetsim.hub.endpoints import ENDPOINTS, Endpoint, Who, endpoints_at
from fleetsim.hub.http import ApiGuard
from fleetsim.runtime.ports import Request as Outgoing
from tests.hub.local_hub import HUB, KEY, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.hub.test_people import OLGA, PEOPLE_ENV, PEOPLE_YAML, ROLES


def of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def example(endpoint: Endpoint) -> str:
    return re.sub(r"{[^}]+}", "c-1", endpoint.path)


async def asked(t: LocalHub, endpoint: Endpoint, key: str) -> tuple[int, str]:
    """The status and the body of the response."""
    body = b"{}" if endpoint.method == "POST" else b""
    if endpoint.name == "events" and key in {KEY, QUINN, AVA, *ROLES}:  # a special stream: it begins, and does not end
        async with asyncio.timeout(1):
            return await _begun(t, example(endpoint), key), "a stream"
    reply = await t.http(endpoint.method, example(endpoint), body, key=key)
    return reply.status, reply.body.decode()


async def _begun(t: LocalHub, path: str, key: str) -> int:
    sent = Outgoing(method="GET", url=HUB + path, headers={"x-api-key": key}, streaming=True)
    async with t.runtime.transport.open(sent) as incoming:
        return incoming.status


def test_every_route_has_its_row_and_every_row_its_route() -> None:
    names = {endpoint.name for endpoint in ENDPOINTS}
    assert len(names) == len(ENDPOINTS), "two operations of one name"
    assert len({of(endpoint) for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert all(endpoints_at(example(endpoint))[endpoint.method] is endpoint for endpoint in ENDPOINTS)
    assert all(endpoint.own for endpoint in ENDPOINTS if endpoint.who is Who.AGENT), "how far an agent's key goes"
    assert not any(endpoint.own for endpoint in ENDPOINTS if endpoint.who is not Who.AGENT)


async def test_the_application_has_exactly_the_routes_of_the_table() -> None:
    async with local_hub(worker()) as t:
        routes = {(method, route.path) for route in Api(t.hub).routes() for method in route.methods or ()}
        table = {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS if endpoint.who is not Who.TOKEN}
        assert {found for found in routes if found[0] != "HEAD"} == table


async def test_a_route_without_a_row_cannot_be_reached_with_any_key() -> None:
    async def secret(_: Request) -> Response:
        return PlainTextResponse("reached")

    async with local_hub(worker()) as t:
        routes = [Route("/api/secret", secret, methods=["GET", "POST"])]
        await t.network.unmount(HUB)
        t.network.mount(HUB, ApiGuard(routes, t.hub))
        for method in ("GET", "POST", "PUT", "HEAD", "OPTIONS"):
            reply = await t.http(method, "/api/secret", b"{}")
            assert (reply.status, b"reached" in reply.body) == (404, False)


def opens(key: str, endpoint: Endpoint) -> bool:
    """Whether a row of the table allows the holder of this key."""
    who = endpoint.who
    if who in {Who.TOKEN, Who.LINK}:
        return False
    if key in ROLES:
        return who is Who.ANYONE or ROLES[key].includes(endpoint.role)
    return {Who.ANYONE: True, Who.AGENT: key in {KEY, QUINN, AVA}, Who.ADMIN: key == KEY}[who]


def test_a_person_changes_nothing_with_a_get_and_each_change_has_a_name_in_the_audit() -> None:
    rows = [endpoint for endpoint in ENDPOINTS if endpoint.who in {Who.AGENT, Who.ADMIN}]
    people = [endpoint for endpoint in rows if endpoint.role is not AccessRole.OWNER]
    assert {endpoint.name for endpoint in set(rows) - set(people)} == {"a2a", "a2a_get", "a2a_post", "a2a_delete"}
    for endpoint in people:
        assert (endpoint.method == "GET") is (endpoint.role is AccessRole.VIEWER) is (not endpoint.act)
    decided = {endpoint.name for endpoint in people if endpoint.role is AccessRole.ANSWERER}
    assert decided == {"reply", "respond", "veto"}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=of)
async def test_each_key_opens_exactly_the_endpoints_of_its_rows(endpoint: Endpoint) -> None:
    async with ready_hub(worker(), agent_keys=ENV | PEOPLE_ENV, people=PEOPLE_YAML) as t:
        for key in ("", "wrong", QUINN + "x", OLGA + "x", QUINN, AVA, *ROLES, KEY):
            before = t.hub.events.last_seq
            status, said = await asked(t, endpoint, key)
            if opens(key, endpoint):
                assert status not in {401, 403, 405, 503}, f"{key}: {said}"
                assert "nothing at this address" not in said
            else:
                unknown = key not in {QUINN, AVA, KEY, *ROLES} or endpoint.who is Who.TOKEN
                refused = 404 if endpoint.who is Who.LINK else 401 if unknown else 403
                assert status == refused, f"{key}: {said}"
                told = [event.topic for event in t.hub.events.recent(after_seq=before)]
                assert told == (["agent.push.rejected"] if endpoint.who is Who.TOKEN else [])


@pytest.mark.parametrize("path", ["/api/requests", "/a2a", "/a2a/message:send"])
async def test_a_401_names_the_scheme_of_the_credential(path: str) -> None:
    """RFC 9110 15.5.2; A2A 1.0 section 7.4."""
    async with local_hub(worker()) as t:
        reply = await t.http("POST", path, b"{}", key="wrong")
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_a_method_without_a_row_is_refused_with_the_allowed_ones(method: str) -> None:
    async with local_hub(worker()) as t:
        reply = await t.http(method, "/api/requests", b"{}")
        assert (reply.status, reply.headers["allow"]) == (405, "POST")
