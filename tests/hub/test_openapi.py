"""The OpenAPI document: valid, complete, served, and true of the hub's responses to any key in any order."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import unquote, urlsplit
from zlib import crc32

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fleetsim.hub.endpoints import ENDPOINTS, Endpoint, Who, endpoints_at
from fleetsim.hub.openapi import document
from fleetsim.runtime.ports import Limits, Request
from fleetsim.testbed.loop import VirtualLoop
from tests.hub.local_hub import HUB, KEY, LocalHub, local_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.scale import scaled

CASES = int(os.environ.get("API_CASES", scaled(1_000)))
"""How many cases each of the two tests tries at least; `make api-cases CASES=1000` is a part of every submission."""

STEPS = 25
AGENT_OF = {QUINN: "quinn", AVA: "ava", KEY: None}
OURS = {"x-api-key", "authorization", "content-length"}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.slow
def test_the_document_is_valid_openapi() -> None:
    assert list(OpenAPIV31SpecValidator(copy.deepcopy(document())).iter_errors()) == []


def test_the_document_has_every_endpoint_with_its_body() -> None:
    found = {
        (method.upper(), path): told
        for path, methods in document()["paths"].items()
        for method, told in methods.items()
    }
    operations = [endpoint for endpoint in ENDPOINTS if endpoint.who is not Who.LINK]
    assert set(found) == {(endpoint.method, endpoint.path.replace(":path}", "}")) for endpoint in operations}
    for endpoint in operations:
        told = found[endpoint.method, endpoint.path.replace(":path}", "}")]
        assert ("requestBody" in told) == (endpoint.body is not None)
        assert set(told["responses"]) == {*map(str, endpoint.statuses), "default"}


@pytest.mark.parametrize("key", [KEY, QUINN, "", "wrong"])
async def test_the_document_is_served_to_holders_of_a_key(key: str) -> None:
    async with local_hub(worker(), agent_keys=ENV) as t:
        reply = await t.http("GET", "/openapi.json", key=key)
        assert reply.status == (200 if key in AGENT_OF else 401)
        assert (json.loads(reply.body) == document()) is (key in AGENT_OF)


class Witness:
    """A hub, and the owner of each thing as its responses showed."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._stack = AsyncExitStack()
        self._owners: dict[str, str | None] = {}
        self.statuses: Counter[int] = Counter()
        self.t: LocalHub = self._runner.run(self._open())

    async def _open(self) -> LocalHub:
        t = await self._stack.enter_async_context(local_hub(worker(), agent_keys=ENV))
        await asyncio.sleep(1)
        return t

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def send(self, prepared: requests.PreparedRequest, key: str) -> Response:
        body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body or b""
        own = {name: value for name, value in prepared.headers.items() if name.lower() not in OURS}
        headers = {name: text if isinstance(text, str) else text.decode("latin-1") for name, text in own.items()}
        sent = Request(
            method=str(prepared.method),
            url=str(prepared.url),
            headers={**headers, "x-api-key": key},
            body=body,
            limits=Limits(total_s=90.0, first_byte_s=90.0),
        )
        reply = self._runner.run(self.t.runtime.transport.exchange(sent))
        self.judge(sent, reply.status, reply.body, key)
        found = {name: [value] for name, value in reply.headers.items()}
        return Response(reply.status, found, reply.body, prepared, 0.01, True)

    def judge(self, sent: Request, status: int, body: bytes, key: str) -> None:
        """Compare a response with the table of permissions and with the owners."""
        self.statuses[status] += 1
        path = urlsplit(sent.url).path
        endpoint = endpoints_at(unquote(path)).get(sent.method)
        agent = AGENT_OF[key]
        assert status < 500, (sent.method, path, body)
        if endpoint is None:
            assert status in {404, 405, 421}, (status, path)
            return
        if agent is not None and endpoint.who is Who.ADMIN:
            assert status == 403, f"{endpoint.method} {endpoint.path} is open to agents"
            return
        if status >= 300:
            return
        self._hold_owner(endpoint, unquote(path), agent)
        if body.startswith(b"{"):
            self._learn(endpoint, json.loads(body).get("data"), agent)

    def _hold_owner(self, endpoint: Endpoint, path: str, agent: str | None) -> None:
        """An action on a thing with a known owner was done by that owner, or by the hub's."""
        names = re.findall(r"{(\w+)", endpoint.path)
        match = re.fullmatch(re.sub(r"{[^}]+}", "([^/]+)", endpoint.path), path, re.DOTALL) if names else None
        if match and agent is not None and match[1] in self._owners:
            assert self._owners[match[1]] == agent, f"{endpoint.method} {path} by {agent}"
        if match and endpoint.name == "delete_ceremony":
            self._owners.pop(match[1], None)

    def _learn(self, endpoint: Endpoint, data: Any, agent: str | None) -> None:
        match endpoint.name:
            case "request":
                self._owners.update(dict.fromkeys(data["correlationIds"], agent))
            case "chat" | "delegate":
                self._owners.setdefault(data["correlationId"], agent)
            case "create_ceremony":
                assert agent in {None, data["createdBy"]}
                self._owners[data["id"]] = data["createdBy"]
            case "ceremonies" if agent is not None:
                assert {row["createdBy"] for row in data} <= {agent}


def api() -> dict[str, Any]:
    """The document without endless responses, and without the webhooks' path, which has another kind of key."""
    found = copy.deepcopy(document())
    for path in ("/api/events", "/api/a2a/callback/{taskId}"):
        del found["paths"][path]
    return found


def likely() -> dict[str, Any]:
    """The same with bodies that the hub mostly accepts, so that later requests have things to work on."""
    found = api()
    usual: dict[str, Any] = {
        "agent": ["quinn"],
        "skill": ["echo", "ask", "ponder"],
        "targets": [["quinn"], ["all"]],
        "schedule": ["0 0 1 1 *", "@daily"],
        "timezone": ["UTC"],
        "text": ["hi"],
        "message": ["hi"],
        "id": ["a", "b", "c"],
        "waitMs": [0, 1_000],
        "createdBy": ["quinn", "ava", "system"],
    }
    for name in ("RequestBody", "ChatBody", "DelegateBody", "CreateCeremonyBody", "UpdateCeremonyBody"):
        model = found["components"]["schemas"][name]
        model.pop("anyOf", None)
        for key in list(model["properties"]):
            if key in usual:
                model["properties"][key] = {"enum": usual[key]}
            elif key not in {"name", "enabled", "description", "done"}:
                del model["properties"][key]
        if name == "CreateCeremonyBody":
            model["required"] = ["id", "name", "skill", "schedule"]
        if name == "RequestBody":
            model["required"] = ["text", "skill", "targets"]
    return found


def prepared(case: Any) -> requests.PreparedRequest:
    return requests.Request(**case.as_transport_kwargs(base_url=HUB)).prepare()


def chosen(case: Any) -> str:
    """One of the three keys, the same for the same case."""
    keys = list(AGENT_OF)
    return keys[crc32(repr((case.path_parameters, case.method, case.body)).encode()) % len(keys)]


@pytest.mark.slow
@pytest.mark.timeout(max(600, CASES))
def test_any_request_with_any_key_gets_a_documented_response() -> None:
    schema = schemathesis.openapi.from_dict(api())
    operations = [found.ok() for found in schema.get_all_operations()]
    witness = Witness()
    each = max(CASES // len(operations), 1)
    try:
        for operation in operations:

            @settings(max_examples=each, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
            @given(case=operation.as_strategy())
            def ask(case: Any) -> None:
                for key in AGENT_OF:
                    case.validate_response(witness.send(prepared(case), key), checks=CHECKS)

            ask()
    finally:
        witness.close()
    print(f"{witness.statuses.total()} cases of {len(operations)} operations: {dict(witness.statuses)}")
    assert set(witness.statuses) >= {200, 400, 403, 404}


@pytest.mark.slow
@pytest.mark.timeout(max(600, CASES))
def test_in_any_order_of_requests_no_agent_reaches_another_owners_things() -> None:
    schema = schemathesis.openapi.from_dict(likely())
    calls: Counter[tuple[str, int]] = Counter()

    class Machine(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            self.witness = Witness()

        def teardown(self) -> None:
            self.witness.close()

        def call(self, case: Any, **_: Any) -> Response:
            response = self.witness.send(prepared(case), chosen(case))
            calls[case.operation.label, response.status_code] += 1
            return response

        def validate_response(self, response: Response, case: Any, **_: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    Machine.run(
        settings=settings(
            max_examples=max(CASES // STEPS, 1),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            phases=[Phase.generate],  # a failure is reported as found: shrinking it takes minutes
        )
    )
    shown = sorted((name, status, count) for (name, status), count in calls.items())
    print(f"{calls.total()} cases: {shown}")
    assert {name for name, status in calls if status < 300} & {name for name, status in calls if status == 404}
