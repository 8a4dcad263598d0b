"""selectools' own lines: a bearer token in one word, and somebody's httpx as the way out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fleetsim.agent import Agent
from fleetsim.agent.builtin import profile_agent
from fleetsim.client import AgentClient, ClientLimits, Credential
from fleetsim.model.errors import (
    AuthRefused,
    ConfigError,
    ConnectionLost,
    FleetsimError,
    TimedOut,
    TransportError,
    Unreachable,
    WireError,
)
from fleetsim.model.task import TaskState
from tests.client.scripted import task

pytestmark = pytest.mark.sockets

CARD = {"name": "a", "url": "http://testserver/a2a", "skills": []}


def selectools() -> Agent:
    return profile_agent("selectools", bearers={"caller": "sk-1"})


def test_an_agent_is_called_in_process_over_asgi_with_a_token() -> None:
    transport = httpx.ASGITransport(app=selectools())
    client = AgentClient("http://testserver", transport=transport, auth_token="sk-1")
    assert [skill.skill_id for skill in client.discover_sync().skills] == ["summarize", "explode"]
    result = client.send_task_sync("Research quantum computing trends")
    assert (result.state, result.text) == (TaskState.COMPLETED, "Summary: Research quantum computing trends")
    with pytest.raises(AuthRefused):
        AgentClient("http://testserver", transport=transport, auth_token="sk-2").send_task_sync("x")
    assert "sk-1" not in repr(client.__dict__)


def test_a_stream_over_asgi_comes_whole() -> None:
    client = AgentClient("http://testserver", transport=httpx.ASGITransport(app=Agent("echo", skills=_echo())))
    assert "".join(e.artifact.text for e in client.stream_sync("hi") if hasattr(e, "artifact")) == "hi"


def _echo() -> Any:
    from fleetsim.agent.builtin import echo

    return (echo,)


def test_a_token_and_a_credential_together_are_refused() -> None:
    with pytest.raises(ConfigError):
        AgentClient("http://testserver", auth_token="a", credential=Credential.of("bearer", "b"))


def _answering(*answers: Any) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    asked: list[httpx.Request] = []
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    return httpx.MockTransport(handle), asked


async def test_a_given_client_keeps_its_headers_hooks_and_auth_and_is_not_closed() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=CARD)
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": json.loads(request.content)["id"], "result": task()})

    seen: list[httpx.Request] = []

    async def hook(request: httpx.Request) -> None:
        seen.append(request)

    async with httpx.AsyncClient(
        transport=httpx.MockTransport(reply),
        headers={"x-trace": "7"},
        auth=("user", "word"),
        event_hooks={"request": [hook]},
    ) as own:
        async with AgentClient("http://testserver", transport=own) as client:
            assert (await client.send_task("x", wait=False)).id == "t1"
        assert not own.is_closed
    assert [request.headers["x-trace"] for request in seen] == ["7", "7"]
    assert all(request.headers["authorization"].startswith("Basic ") for request in seen)
    assert all(request.headers["accept-encoding"] == "identity" for request in seen)
    with pytest.raises(Unreachable, match="closed"):
        await AgentClient("http://testserver", transport=own).discover()


@pytest.mark.parametrize(
    ("answer", "kind", "sent"),
    [
        (httpx.ConnectError("no"), Unreachable, False),
        (httpx.ConnectTimeout("no"), Unreachable, False),
        (httpx.ReadError("no"), ConnectionLost, True),
        (httpx.Response(302, headers={"location": "http://evil.example/"}), WireError, None),
        (httpx.Response(200, headers={"content-encoding": "x-odd"}, content=b""), WireError, None),
    ],
)
async def test_an_error_of_a_given_way_out_is_the_error_of_our_own(
    answer: Any, kind: type[FleetsimError], sent: bool | None
) -> None:
    transport, asked = _answering(answer, answer)
    with pytest.raises(kind) as caught:
        await AgentClient("http://testserver", transport=transport).discover()
    assert all(request.url.host == "testserver" for request in asked)
    if isinstance(caught.value, TransportError):
        assert caught.value.sent is sent


async def test_a_given_way_out_is_left_at_its_deadline() -> None:
    async def hang(_request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        raise AssertionError

    limits = ClientLimits(connect_s=0.05, total_s=0.1)
    with pytest.raises(TimedOut):
        await AgentClient("http://testserver", transport=httpx.MockTransport(hang), limits=limits).discover()


async def test_an_agent_is_an_asgi_application_that_starts_and_stops_with_its_lifespan() -> None:
    agent = Agent("echo", skills=_echo())
    transport = httpx.ASGITransport(app=agent)
    for _ in range(2):
        async with _lifespan(agent), AgentClient("http://testserver", transport=transport) as client:
            assert (await client.send_task("hello")).text == "hello"


class _lifespan:  # noqa: N801
    """The calls of an ASGI server to an application before and after it serves."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    async def __aenter__(self) -> None:
        self._heard: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._heard.put_nowait({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._group.create_task(self._app(scope, self._heard.get, self._said.put))
        assert (await self._said.get())["type"] == "lifespan.startup.complete"

    async def __aexit__(self, *error: Any) -> None:
        self._heard.put_nowait({"type": "lifespan.shutdown"})
        assert (await self._said.get())["type"] == "lifespan.shutdown.complete"
        await self._group.__aexit__(None, None, None)
