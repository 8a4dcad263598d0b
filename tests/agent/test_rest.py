"""The REST aliases: the same rules as JSON-RPC, with statuses and plain bodies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.sse import read_events
from tests.agent.environment import HOOK, LONG, URL, Env, StartAgent, sent


async def rest(env: Env, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    reply = await env.raw(method, path, b"" if body is None else json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


async def frames(env: Env, method: str, path: str, body: Any = None) -> list[Any]:
    request = Request(
        method=method,
        url=URL + path,
        headers={"content-type": "application/json"},
        body=b"" if body is None else json.dumps(body).encode(),
        limits=Limits(first_byte_s=LONG.first_byte_s, total_s=None),
        streaming=True,
    )
    async with env.network.open(request) as incoming:
        return [json.loads(event.data) async for event in read_events(incoming)]


async def test_send_answers_202_with_the_task(env: Env) -> None:
    status, task = await rest(env, "POST", "/message:send", sent("hi", skill="echo"))
    assert (status, task["kind"], task["status"]["state"]) == (202, "task", "completed")
    await asyncio.sleep(1)
    status, task = await rest(env, "GET", f"/tasks/{task['id']}")
    assert (status, task["status"]["state"]) == (200, "completed")
    _, bare = await rest(env, "GET", f"/tasks/{task['id']}?historyLength=0")
    assert "history" not in bare


async def test_streams_have_the_same_frames_in_the_same_order(env: Env) -> None:
    by_rpc = await env.frames("message/stream", sent("a b", skill="stream"))
    by_rest = await frames(env, "POST", "/message:stream", sent("a b", skill="stream"))
    assert [f["id"] for f in by_rest] == [None] * len(by_rest)
    assert [f["result"]["kind"] for f in by_rest] == [f["kind"] for f in by_rpc]
    task = by_rest[0]["result"]["id"]
    joined = await frames(env, "GET", f"/tasks/{task}:subscribe")
    assert [f["kind"] for f in joined] == ["task", "artifact-update", "status-update"]
    assert joined[-1]["final"] is True


async def test_cancel_answers_200_and_then_409(env: Env) -> None:
    _, task = await rest(env, "POST", "/message:send", sent("500", skill="slow"))
    status, canceled = await rest(env, "POST", f"/tasks/{task['id']}:cancel")
    assert (status, canceled["status"]["state"]) == (200, "canceled")
    status, problem = await rest(env, "POST", f"/tasks/{task['id']}:cancel")
    assert (status, problem["error"]["code"]) == (409, -32002)


async def test_a_webhook_is_registered_and_sent(env: Env) -> None:
    _, task = await rest(env, "POST", "/message:send", sent("1", skill="slow"))
    path = f"/tasks/{task['id']}/pushNotificationConfigs"
    status, made = await rest(env, "POST", path, {"url": f"{HOOK}/x", "token": "t"})
    assert (status, made["taskId"]) == (200, task["id"])
    status, problem = await rest(env, "POST", path, {"url": "http://169.254.169.254/"})
    assert (status, problem["error"]["code"]) == (400, -32602)
    await asyncio.sleep(5)
    assert env.hook.states == ["working", "completed"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/tasks/made-up", None, 404, -32001),
        ("GET", "/tasks/made-up:subscribe", None, 404, -32001),
        ("POST", "/tasks/made-up:cancel", None, 404, -32001),
        ("POST", "/message:send", {}, 400, -32602),
        ("POST", "/message:send", [], 400, -32602),
        ("POST", "/message:stream", {"message": {}}, 400, -32602),
        ("GET", "/tasks/x?historyLength=-1", None, 400, -32602),
        ("GET", "/tasks/x?historyLength=many", None, 400, -32602),
    ],
)
async def test_errors_are_statuses(env: Env, method: str, path: str, body: Any, status: int, code: int) -> None:
    got, problem = await rest(env, method, path, body)
    assert (got, problem["error"]["code"]) == (status, code)
    assert problem["error"].keys() == {"code", "message"}
    assert problem["error"]["message"]


async def test_malformed_json_is_400(env: Env) -> None:
    reply = await env.raw("POST", "/message:send", b"{")
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (400, -32700)


async def test_the_aliases_need_the_key_and_keep_callers_apart(start_agent: StartAgent) -> None:
    env = await start_agent(api_keys={"ada": "a", "bob": "b"})
    assert (await rest(env, "GET", "/tasks/x"))[0] == 401
    env.headers = {"x-api-key": "a"}
    _, task = await rest(env, "POST", "/message:send", sent("x", skill="echo"))
    env.headers = {"x-api-key": "b"}
    foreign = await env.raw("GET", f"/tasks/{task['id']}")
    missing = await env.raw("GET", "/tasks/made-up")
    assert (foreign.status, foreign.body) == (missing.status, missing.body)


@pytest.mark.parametrize(
    ("settings", "status", "code"),
    [({"dialects": ("1.0",)}, 400, 400), ({"dialects": ("0.1",)}, 404, -32601), ({"rest": False}, 404, -32601)],
    ids=["1.0 alone", "0.1 alone", "switched off"],
)
async def test_an_agent_without_the_aliases_serves_none(
    start_agent: StartAgent, settings: dict[str, Any], status: int, code: int
) -> None:
    env = await start_agent(**settings)
    got, problem = await rest(env, "POST", "/message:send", sent("hi", skill="echo"))
    assert (got, problem["error"]["code"]) == (status, code)
