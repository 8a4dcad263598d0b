"""The REST aliases: the same rules as JSON-RPC, in statuses and plain bodies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.sse import read_events
from tests.agent.rigs import HOOK, LONG, URL, Rig, Rigging, sent


async def rest(rig: Rig, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    reply = await rig.raw(method, path, b"" if body is None else json.dumps(body).encode())
    return reply.status, json.loads(reply.body)


async def frames(rig: Rig, method: str, path: str, body: Any = None) -> list[Any]:
    request = Request(
        method=method,
        url=URL + path,
        headers={"content-type": "application/json"},
        body=b"" if body is None else json.dumps(body).encode(),
        limits=Limits(first_byte_s=LONG.first_byte_s, total_s=None),
        streaming=True,
    )
    async with rig.network.open(request) as incoming:
        return [json.loads(event.data) async for event in read_events(incoming)]


async def test_send_answers_202_with_the_task(rig: Rig) -> None:
    status, task = await rest(rig, "POST", "/message:send", sent("hi", skill="echo"))
    assert (status, task["kind"], task["status"]["state"]) == (202, "task", "submitted")
    await asyncio.sleep(1)
    status, task = await rest(rig, "GET", f"/tasks/{task['id']}")
    assert (status, task["status"]["state"]) == (200, "completed")
    _, bare = await rest(rig, "GET", f"/tasks/{task['id']}?historyLength=0")
    assert "history" not in bare


async def test_streams_have_the_same_frames_in_the_same_order(rig: Rig) -> None:
    by_rpc = await rig.frames("message/stream", sent("a b", skill="stream"))
    by_rest = await frames(rig, "POST", "/message:stream", sent("a b", skill="stream"))
    assert [f["id"] for f in by_rest] == [None] * len(by_rest)
    assert [f["result"]["kind"] for f in by_rest] == [f["kind"] for f in by_rpc]
    task = by_rest[0]["result"]["id"]
    joined = await frames(rig, "GET", f"/tasks/{task}:subscribe")
    assert [f["kind"] for f in joined] == ["task", "artifact-update", "status-update"]
    assert joined[-1]["final"] is True


async def test_cancel_answers_200_and_then_409(rig: Rig) -> None:
    _, task = await rest(rig, "POST", "/message:send", sent("500", skill="slow"))
    status, canceled = await rest(rig, "POST", f"/tasks/{task['id']}:cancel")
    assert (status, canceled["status"]["state"]) == (200, "canceled")
    status, problem = await rest(rig, "POST", f"/tasks/{task['id']}:cancel")
    assert (status, problem["error"]["code"]) == (409, -32002)


async def test_a_webhook_is_registered_and_told(rig: Rig) -> None:
    _, task = await rest(rig, "POST", "/message:send", sent("1", skill="slow"))
    path = f"/tasks/{task['id']}/pushNotificationConfigs"
    status, made = await rest(rig, "POST", path, {"url": f"{HOOK}/x", "token": "t"})
    assert (status, made["taskId"]) == (200, task["id"])
    status, problem = await rest(rig, "POST", path, {"url": "http://169.254.169.254/"})
    assert (status, problem["error"]["code"]) == (400, -32602)
    await asyncio.sleep(5)
    assert rig.hook.states == ["working", "completed"]


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
async def test_errors_are_statuses(rig: Rig, method: str, path: str, body: Any, status: int, code: int) -> None:
    got, problem = await rest(rig, method, path, body)
    assert (got, problem["error"]["code"]) == (status, code)
    assert problem["error"].keys() == {"code", "message"}
    assert problem["error"]["message"]


async def test_malformed_json_is_400(rig: Rig) -> None:
    reply = await rig.raw("POST", "/message:send", b"{")
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (400, -32700)


async def test_the_aliases_need_the_key_and_keep_callers_apart(rigged: Rigging) -> None:
    rig = await rigged(api_keys={"ada": "a", "bob": "b"})
    assert (await rest(rig, "GET", "/tasks/x"))[0] == 401
    rig.headers = {"x-api-key": "a"}
    _, task = await rest(rig, "POST", "/message:send", sent("x", skill="echo"))
    rig.headers = {"x-api-key": "b"}
    foreign = await rig.raw("GET", f"/tasks/{task['id']}")
    missing = await rig.raw("GET", "/tasks/made-up")
    assert (foreign.status, foreign.body) == (missing.status, missing.body)


@pytest.mark.parametrize("settings", [{"dialects": ("1.0",)}, {"rest": False}], ids=["without 0.3", "switched off"])
async def test_an_agent_without_the_aliases_takes_no_message_by_them(rigged: Rigging, settings: dict[str, Any]) -> None:
    rig = await rigged(**settings)
    status, problem = await rest(rig, "POST", "/message:send", sent("hi", skill="echo"))
    assert (status, problem["error"]["code"]) == (404, -32601)
    assert "A2A calls go to POST /a2a" in problem["error"]["message"]
