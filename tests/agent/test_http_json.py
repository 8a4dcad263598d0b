"""HTTP+JSON at the agent: 1.0 by section 11, 0.3 below ``/v1``, and errors as statuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from fleetsim.agent import skill
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.sse import read_events
from tests.agent.environment import HOOK, LONG, URL, Env, StartAgent, sent, sent_v1

V1 = {"a2a-version": "1.0", "content-type": "application/a2a+json"}
ENDED = {"1.0": "TASK_STATE_COMPLETED", "0.3": "TASK_STATE_COMPLETED", "plain": "completed"}


def spelled(version: str, text: str, skill: str, **message: Any) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The base path, the headers and the body of a send in one of the three forms of HTTP+JSON."""
    if version == "1.0":
        return "/a2a", V1, sent_v1(text, skill=skill, **message)
    if version == "plain":
        return "/a2a", {}, {**sent(text, skill=skill, **message)}
    body = sent_v1(text, skill=skill, **message)
    body["message"]["content"] = body["message"].pop("parts")
    return "/a2a/v1", {}, body


async def asked(
    env: Env, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None
) -> tuple[int, Any]:
    reply = await env.raw(method, path, b"" if body is None else json.dumps(body).encode(), headers)
    return int(reply.status), json.loads(reply.body)


async def frames(env: Env, path: str, headers: Mapping[str, str], body: Any = None) -> list[Any]:
    request = Request(
        method="POST",
        url=URL + path,
        headers={"content-type": "application/json", **headers},
        body=b"" if body is None else json.dumps(body).encode(),
        limits=Limits(first_byte_s=LONG.first_byte_s, total_s=None),
        streaming=True,
    )
    async with env.network.open(request) as incoming:
        assert incoming.headers["content-type"].startswith("text/event-stream")
        return [json.loads(event.data) async for event in read_events(incoming)]


def task_of(version: str, reply: Any) -> Any:
    return reply if version == "plain" else reply["task"]


@pytest.mark.parametrize("version", ENDED)
async def test_a_task_is_started_read_listed_and_canceled_in_each_form(env: Env, version: str) -> None:
    base, headers, body = spelled(version, "0.2", "slow")
    status, reply = await asked(env, "POST", f"{base}/message:send", headers, body)
    task = task_of(version, reply)
    assert (status, task["status"]["state"]) == (200, ENDED[version])
    said = {"messageId", "role", "content" if version == "0.3" else "parts", "contextId", "taskId"}
    assert [set(turn) - {"kind"} for turn in task["history"]] == [said], "SDKs refuse unknown members"
    status, again = await asked(env, "GET", f"{base}/tasks/{task['id']}?historyLength=0", headers)
    assert (status, again) == (200, {name: value for name, value in task.items() if name != "history"})
    status, page = await asked(env, "GET", f"{base}/tasks?contextId={task['contextId']}&pageSize=1", headers)
    assert (status, [task["id"] for task in page["tasks"]], page["totalSize"]) == (200, [task["id"]], 1)
    base, headers, body = spelled(version, "500", "slow")
    body["configuration"] = {"returnImmediately": True, "blocking": False}
    _, reply = await asked(env, "POST", f"{base}/message:send", headers, body)
    path = f"{base}/tasks/{task_of(version, reply)['id']}:cancel"
    status, canceled = await asked(env, "POST", path, headers)
    assert (status, canceled["status"]["state"].lower()[-8:]) == (200, "canceled" if version != "0.3" else "ancelled")
    assert (await asked(env, "POST", path, headers))[0] == (400 if version == "1.0" else 409)


@pytest.mark.parametrize("version", ENDED)
async def test_streams_have_events_without_an_envelope_in_each_form(env: Env, version: str) -> None:
    base, headers, body = spelled(version, "a b", "stream")
    events = await frames(env, f"{base}/message:stream", headers, body)
    kinds = [event["kind"] if version == "plain" else next(iter(event)) for event in events]
    assert kinds[0] == "task"
    assert kinds[-1] == ("status-update" if version == "plain" else "statusUpdate")
    assert events[-1][kinds[-1]]["status"]["state"] == ENDED[version] if version != "plain" else events[-1]["final"]
    task = task_of(version, events[0])
    if version != "1.0":  # this form cannot join a finished task
        joined = await frames(env, f"{base}/tasks/{task['id']}:subscribe", headers)
        assert task_of(version, joined[0])["id"] == task["id"]


async def test_readers_in_different_forms_get_the_same_events_each_in_its_own(env: Env) -> None:
    base, headers, body = spelled("0.3", "2", "slow")
    body["configuration"] = {"blocking": False}
    _, reply = await asked(env, "POST", f"{base}/message:send", headers, body)
    path = f"/tasks/{reply['task']['id']}:subscribe"
    plain, proto = await asyncio.gather(frames(env, f"/a2a{path}", {}), frames(env, f"/a2a/v1{path}", {}))
    assert [event["status"]["state"] for event in plain if event["kind"] == "status-update"][-1] == "completed"
    assert [next(iter(event)) for event in proto] == [
        {"task": "task", "status-update": "statusUpdate", "artifact-update": "artifactUpdate"}[event["kind"]]
        for event in plain
    ]


@pytest.mark.parametrize("version", ENDED)
async def test_webhooks_are_registered_read_listed_and_removed_in_each_form(env: Env, version: str) -> None:
    base, headers, body = spelled(version, "5", "slow")
    body["configuration"] = {"returnImmediately": True, "blocking": False}
    _, reply = await asked(env, "POST", f"{base}/message:send", headers, body)
    task_id = task_of(version, reply)["id"]
    path = f"{base}/tasks/{task_id}/pushNotificationConfigs"
    config = {"id": "hook", "url": f"{HOOK}/x", "token": "t"}
    nested = {"configId": "hook", "config": {"pushNotificationConfig": config}}
    status, _ = await asked(env, "POST", path, headers, nested if version == "0.3" else config)
    assert status == 200
    status, made = await asked(env, "GET", f"{path}/hook", headers)
    assert (status, made.get("pushNotificationConfig", made)["url"]) == (200, f"{HOOK}/x")
    status, listed = await asked(env, "GET", path, headers)
    assert (status, len(listed if version == "plain" else listed["configs"])) == (200, 1)
    await asyncio.sleep(2)
    assert env.hook.states
    assert (await asked(env, "DELETE", f"{path}/hook", headers))[0] == 200
    status, listed = await asked(env, "GET", path, headers)
    assert (status, len(listed if version == "plain" else listed["configs"])) == (200, 0)
    told = len(env.hook.states)
    await asyncio.sleep(10)
    assert len(env.hook.states) == told


async def test_a_question_is_answered_over_http(env: Env) -> None:
    base, headers, body = spelled("1.0", "", "ask")
    _, reply = await asked(env, "POST", f"{base}/message:send", headers, body)
    task = reply["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    answer = sent_v1("Ada", taskId=task["id"], contextId=task["contextId"])
    _, reply = await asked(env, "POST", f"{base}/message:send", headers, answer)
    assert reply["task"]["artifacts"][0]["parts"][0]["text"] == "Hello Ada"


@pytest.mark.parametrize("base", ["", "/a2a"])
@pytest.mark.parametrize("by", ["header", "query"])
async def test_the_version_header_decides_and_an_unknown_one_is_refused_in_the_form_of_http(
    env: Env, base: str, by: str
) -> None:
    body = sent_v1("hi", skill="echo")
    for version, status in (("1.0", 200), ("1.7", 200), ("2.0", 400), ("0.9", 400)):
        headers = {"a2a-version": version} if by == "header" else {}
        query = f"?A2A-Version={version}" if by == "query" else ""
        got, reply = await asked(env, "POST", f"{base}/message:send{query}", headers, body)
        assert got == status
        if status == 200:
            assert reply["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        else:
            assert (reply["error"]["code"], reply["error"]["status"]) == (400, "FAILED_PRECONDITION")
            assert reply["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "name", "reason"),
    [
        ("GET", "/tasks/made-up", None, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
        ("POST", "/tasks/made-up:cancel", None, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
        ("POST", "/tasks/made-up:subscribe", None, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
        ("POST", "/message:send", {}, 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
        ("POST", "/message:stream", [], 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
        ("GET", "/tasks?pageSize=0", None, 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
        ("GET", "/tasks/x?historyLength=many", None, 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
        ("GET", "/extendedAgentCard", None, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION"),
        ("GET", "/message:send", None, 404, "NOT_FOUND", "METHOD_NOT_FOUND"),
        ("DELETE", "/tasks/x", None, 404, "NOT_FOUND", "METHOD_NOT_FOUND"),
    ],
)
async def test_errors_of_10_are_a_status_with_its_reason(
    env: Env, method: str, path: str, body: Any, status: int, name: str, reason: str
) -> None:
    got, problem = await asked(env, method, f"/a2a{path}", V1, body)
    error = problem["error"]
    assert (got, error["code"], error["status"]) == (status, status, name)
    assert [(info["reason"], info["domain"]) for info in error["details"]] == [(reason, "a2a-protocol.org")]
    assert error["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/tasks/made-up", None, 404, -32001),
        ("POST", "/message:send", {}, 422, -32602),
        ("GET", "/card", None, 404, -32007),
        ("PUT", "/tasks", None, 404, -32601),
    ],
)
@pytest.mark.parametrize("base", ["/a2a", "/a2a/v1"])
async def test_errors_of_03_have_the_statuses_of_its_sdks(
    env: Env, base: str, method: str, path: str, body: Any, status: int, code: int
) -> None:
    got, problem = await asked(env, method, base + path, {}, body)
    assert (got, problem["code"]) == (status, code)


async def test_a_body_that_is_not_json_is_refused_before_it_is_read(env: Env) -> None:
    for headers, body, status in (
        ({**V1, "content-type": "text/plain"}, b"{}", 400),
        (V1, b"{", 400),
        ({**V1, "content-length": "999999999999"}, b"{}", 413),
    ):
        reply = await env.raw("POST", "/a2a/message:send", body, headers)
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (status, status)


async def test_keys_are_checked_and_callers_are_kept_apart(start_agent: StartAgent) -> None:
    env = await start_agent(api_keys={"ada": "a", "bob": "b"})
    reply = await env.raw("GET", "/a2a/tasks", b"", V1)
    assert (reply.status, "www-authenticate" in reply.headers) == (401, True)
    assert json.loads(reply.body)["error"]["status"] == "UNAUTHENTICATED"
    _, made = await asked(env, "POST", "/a2a/message:send", {**V1, "x-api-key": "a"}, sent_v1("x", skill="echo"))
    path = f"/a2a/tasks/{made['task']['id']}"
    assert [(await asked(env, "GET", path, {**V1, "x-api-key": key}))[0] for key in "ab"] == [200, 404]


async def test_only_dialects_on_the_card_are_served(start_agent: StartAgent) -> None:
    for options, spoken in (
        ({}, {("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")}),
        ({"dialects": ("1.0",)}, {("JSONRPC", "1.0"), ("HTTP+JSON", "1.0")}),
        ({"dialects": ("0.3", "1.0"), "rest": False}, {("JSONRPC", "1.0"), ("JSONRPC", "0.3")}),
    ):
        env = await start_agent(**options)
        _, card = await asked(env, "GET", "/.well-known/agent-card.json")
        assert {(face["protocolBinding"], face["protocolVersion"]) for face in card["supportedInterfaces"]} == spoken
        assert {face["url"] for face in card["supportedInterfaces"]} == {f"{URL}/a2a"}
        for version, name in (("1.0", "1.0"), ("", "0.3")):
            got, _ = await asked(env, "GET", "/a2a/tasks", {"a2a-version": version} if version else {})
            assert (got == 200) is (("HTTP+JSON", name) in spoken)


async def test_every_holder_of_a_key_gets_the_extended_card(start_agent: StartAgent) -> None:
    @skill("secret", public=False)
    async def secret(task: Any) -> str:
        return "x"

    @skill("open")
    async def public(task: Any) -> str:
        return "x"

    env = await start_agent(skills=[public, secret], api_key="k")
    for path, headers in (("/a2a/extendedAgentCard", V1), ("/a2a/v1/card", {}), ("/card", {})):
        assert (await asked(env, "GET", path, headers))[0] == 401
        status, card = await asked(env, "GET", path, {**headers, "x-api-key": "k"})
        assert (status, [skill["id"] for skill in card["skills"]]) == (200, ["open", "secret"])
