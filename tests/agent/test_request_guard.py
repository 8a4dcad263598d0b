"""The guard before the agent: bounds before parsing, credentials as bytes, JSON-RPC errors in the right place."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.agent import AgentLimits
from fleetsim.agent.agent import Engine, build_app
from fleetsim.agent.guard import error_response
from fleetsim.agent.limits import AtCapacity
from fleetsim.agent.operations import CallerContext, Interceptor
from fleetsim.model.call import Call
from fleetsim.model.errors import InvalidParams, RpcError
from tests.agent.environment import Env, StartAgent, sent, sent_v1


async def code_of(env: Env, body: bytes, **headers: str) -> tuple[int, int]:
    reply = await env.raw("POST", "/a2a", body, headers)
    answer = json.loads(reply.body)
    assert answer["jsonrpc"] == "2.0"
    return reply.status, answer["error"]["code"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"x":NaN}}', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","id":2}', -32700),
        (b"[" * 65 + b"]" * 65, -32700),
        (b"[]", -32600),
        (b"1", -32600),
        (b'{"id":1,"method":"tasks/get"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"tasks/get"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"tasks/get"}', -32600),
        (b'{"jsonrpc":"2.0","method":"tasks/get","params":{"id":"x"}}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"no/such"}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"role":"user","parts":[]}}}', -32602),
    ],
)
async def test_bad_requests_get_the_code_of_json_rpc(env: Env, body: bytes, code: int) -> None:
    assert await code_of(env, body) == (200, code)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"method": "no/such"}, -32601),
        ({"method": "message/send", "params": {}}, -32602),
        ({"method": "message/send", "params": {"message": {"role": "user", "parts": []}}}, -32602),
        ({"method": "tasks/send", "params": {"id": "t-1", "message": {"role": "user", "parts": []}}}, -32602),
        ({"method": "tasks/get", "params": {}}, -32602),
        ({"method": "GetTask", "params": {"id": "t"}}, -32009),
        ({"method": "message/send", "params": sent("hello")}, -32600),
    ],
)
async def test_a_missing_id_is_reported_after_method_and_params(env: Env, asked: dict[str, Any], code: int) -> None:
    assert await code_of(env, json.dumps({"jsonrpc": "2.0", **asked}).encode()) == (200, code)
    assert len(env.engine.store) == 0


@pytest.mark.parametrize("request_id", [7, "seven", 1.5, None])
async def test_ids_are_returned_unchanged(env: Env, request_id: Any) -> None:
    for method in ("tasks/get", "no/such"):
        body = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"id": "x"}}).encode()
        answer = json.loads((await env.raw("POST", "/a2a", body)).body)
        assert answer["id"] == request_id
        assert type(answer["id"]) is type(request_id)


@pytest.mark.parametrize("path", ["/a2a", "/a2a/", "/"])
async def test_calls_are_answered_at_the_endpoint_and_at_the_root(env: Env, path: str) -> None:
    assert (await env.call("message/send", sent("x"), path=path))["kind"] == "task"


async def test_the_card_is_also_below_the_endpoint(env: Env) -> None:
    card = await env.raw("GET", "/.well-known/agent-card.json")
    assert (await env.raw("GET", "/a2a/.well-known/agent-card.json")).body == card.body


async def test_other_paths_and_methods_name_the_right_one(env: Env) -> None:
    assert (await env.raw("POST", "/elsewhere", b"{}")).status == 404
    reply = await env.raw("GET", "/a2a")
    assert reply.status == 405
    assert reply.headers["allow"] == "POST"
    assert b"/a2a" in reply.body


async def test_1_0_names_need_the_version_and_older_ones_do_not(env: Env) -> None:
    body = env.envelope("GetTask", {"id": "x"})
    assert (await code_of(env, body))[1] == -32009
    assert (await code_of(env, body, **{"a2a-version": "0.3"}))[1] == -32009
    assert (await code_of(env, body, **{"a2a-version": "2.0"}))[1] == -32009
    assert (await code_of(env, body, **{"a2a-version": "1.0"}))[1] == -32001
    assert (await code_of(env, env.envelope("tasks/get", {"id": "x"}), **{"a2a-version": "9.9"}))[1] == -32001


async def test_1_0_errors_carry_their_details(env: Env) -> None:
    answer = await env.ask("GetTask", {"id": "made-up"})
    assert answer["error"]["data"][0]["reason"] == "TASK_NOT_FOUND"


async def test_an_agent_of_one_dialect_refuses_the_others(start_agent: StartAgent) -> None:
    env = await start_agent(dialects=("1.0",))
    assert await env.refused("message/send", sent("x")) == -32009
    assert (await env.call("SendMessage", sent_v1("x", skill="echo")))["task"]
    env = await start_agent(dialects=("0.3",))
    assert await env.refused("SendMessage", sent_v1("x")) == -32601


async def test_a_body_over_the_limit_is_413_before_it_is_read(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(body_bytes_max=1000))
    assert await code_of(env, b"x" * 1001) == (413, -32600)
    assert (await code_of(env, b"x" * 1000))[0] == 200
    assert await code_of(env, b"x", **{"content-length": "9" * 40}) == (413, -32600)


class Drip:
    """An ASGI request with a body that arrives in pieces, as a chunked upload does."""

    def __init__(
        self,
        env: Env,
        pieces: list[bytes],
        *,
        pause_s: float = 0.0,
        headers: Any = (),
        path: str = "/a2a",
        app: Any = None,
    ) -> None:
        self.env, self.pieces, self.pause_s, self.path, self.app = env, pieces, pause_s, path, app
        self.unfinished = False
        self.headers = [(b"content-type", b"application/json"), *headers]
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(self.pause_s)
        if not self.pieces:
            await asyncio.sleep(1e6)
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.pieces.pop(0), "more_body": self.unfinished or bool(self.pieces)}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def run(self) -> int:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": self.headers,
            "server": ("agent", 9000),
            "client": ("x", 1),
        }
        await (self.app or build_app(self.env.engine))(scope, self.receive, self.send)  # type: ignore[arg-type]
        return int(self.sent[0]["status"])


async def test_endless_nesting_is_a_parse_error(env: Env) -> None:
    drip = Drip(env, [b"[" * 500_000])
    assert await drip.run() == 200
    assert json.loads(drip.sent[1]["body"])["error"]["code"] == -32700


async def test_a_chunked_body_over_the_limit_is_413_too(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(body_bytes_max=1000))
    assert await Drip(env, [b"x" * 600] * 10).run() == 413


async def test_a_body_that_takes_too_long_is_408(env: Env) -> None:
    before = asyncio.get_running_loop().time()
    assert await Drip(env, [b"x"] * 100, pause_s=1.0).run() == 408
    assert asyncio.get_running_loop().time() - before == pytest.approx(10, abs=1)


async def test_too_many_headers_are_431(env: Env) -> None:
    assert (await code_of(env, b"{}", **{"x-filler": "x" * 40_000}))[0] == 431


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
async def test_a_request_that_a_web_page_can_send_without_preflight_is_refused(env: Env, kind: str) -> None:
    assert await code_of(env, env.envelope("tasks/get", {"id": "x"}), **{"content-type": kind}) == (415, -32005)
    reply = await env.raw("POST", "/a2a", b"{}", {"content-type": kind, "a2a-version": "1.0"})
    assert json.loads(reply.body)["error"]["data"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/a2a+json"])
async def test_json_is_accepted_under_each_of_its_media_types(env: Env, kind: str) -> None:
    assert (await code_of(env, env.envelope("tasks/get", {"id": "x"}), **{"content-type": kind})) == (200, -32001)


async def test_the_key_is_checked_before_parsing(start_agent: StartAgent) -> None:
    env = await start_agent(api_key="sesame")
    for body in (b"{", env.envelope("tasks/get", {"id": "x"})):
        reply = await env.raw("POST", "/a2a", body)
        assert reply.status == 401
        assert reply.headers["www-authenticate"]
        assert json.loads(reply.body)["error"]["code"] == -32000
    assert await env.refused("tasks/get", {"id": "x"}, headers={"x-api-key": "sesame"}) == -32001


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", b"sesam\xe9")],
        [(b"x-api-key", b"\xff" * 10)],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"sesame "), (b"x-api-key", b"sesame")],
        [(b"x-api-key", b"sesame"), (b"x-api-key", b"sesame")],
        [(b"x-api-key", b"s" * 10_000)],
        [(b"authorization", b"Bearer sesame")],
        [(b"authorization", b"Basic token")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer \xe9")],
        [(b"authorization", b"Bearer token"), (b"authorization", b"Bearer token")],
        [(b"authorization", b"token")],
        [(b"x-api-key", b"wrong"), (b"authorization", b"Bearer token")],
        [(b"x-api-key", b"sesame"), (b"authorization", b"Bearer token")],
    ],
)
async def test_malformed_credentials_are_401_and_never_500(start_agent: StartAgent, headers: Any) -> None:
    env = await start_agent(api_keys={"ada": "sesame"}, bearers={"bob": "token"})
    assert await Drip(env, [b"{}"], headers=headers).run() == 401


async def test_a_key_and_a_bearer_token_are_each_accepted(start_agent: StartAgent) -> None:
    env = await start_agent(api_keys={"ada": "sesame"}, bearers={"bob": "t\u00f6ken"})
    assert await Drip(env, [b"{}"], headers=[(b"x-api-key", b"sesame")]).run() == 200
    assert await Drip(env, [b"{}"], headers=[(b"authorization", "bearer  t\u00f6ken".encode())]).run() == 200


async def test_a_task_of_another_caller_is_missing_byte_for_byte(start_agent: StartAgent) -> None:
    """T-24: every operation on a task, by two callers."""
    env = await start_agent(api_keys={"ada": "a", "bob": "b"})
    ada, bob = {"x-api-key": "a"}, {"x-api-key": "b"}
    task = await env.call("message/send", sent("500", skill="slow"), headers=ada)

    async def answer(task_id: str, method: str, make: Any) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": make(task_id)}).encode()
        reply = await env.raw("POST", "/a2a", body, {**bob, **env.versioned(method, None)})
        return reply.body.replace(task_id.encode(), b"ID")

    ways: list[tuple[str, Any]] = [
        ("message/send", lambda i: sent("x", taskId=i)),
        ("message/stream", lambda i: sent("x", taskId=i)),
        ("tasks/get", lambda i: {"id": i}),
        ("tasks/cancel", lambda i: {"id": i}),
        ("tasks/resubscribe", lambda i: {"id": i}),
        (
            "tasks/pushNotificationConfig/set",
            lambda i: {"taskId": i, "pushNotificationConfig": {"url": "http://hook:8080"}},
        ),
        ("tasks/pushNotificationConfig/get", lambda i: {"id": i}),
        ("tasks/pushNotificationConfig/list", lambda i: {"id": i}),
        ("tasks/pushNotificationConfig/delete", lambda i: {"id": i}),
        ("SendMessage", lambda i: sent_v1("x", taskId=i)),
        ("GetTask", lambda i: {"id": i}),
        ("CancelTask", lambda i: {"id": i}),
        ("SubscribeToTask", lambda i: {"id": i}),
        ("CreateTaskPushNotificationConfig", lambda i: {"taskId": i, "url": "http://hook:8080"}),
        ("ListTaskPushNotificationConfigs", lambda i: {"taskId": i}),
    ]
    for method, make in ways:
        foreign, missing = await answer(task["id"], method, make), await answer("made-up", method, make)
        assert foreign == missing, method
        assert b"-32001" in foreign, method
    assert (await env.call("ListTasks", headers=bob))["tasks"] == []
    assert (await env.call("tasks/get", {"id": task["id"]}, headers=ada))["status"]["state"] == "working"


async def test_a_full_agent_responds_429_with_retry_after(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(tasks_max=2))
    for _ in range(2):
        await env.call("message/send", sent("500", skill="slow"))
    reply = await env.raw("POST", "/a2a", env.envelope("message/send", sent("x")))
    assert reply.status == 429
    assert reply.headers["retry-after"] == "5"
    assert json.loads(reply.body)["error"]["code"] == -32000


async def test_an_app_without_lifespan_starts_with_its_first_request(env: Env) -> None:
    engine = Engine(env.engine.settings, env.runtime)
    env.engine = engine
    body = env.envelope("message/send", sent("x", skill="echo"))
    drip = Drip(env, [body])
    assert build_app(engine) is not None
    assert await drip.run() == 200
    await asyncio.sleep(1)
    assert len(engine.store) == 1
    await engine.stop()


async def test_ids_over_the_length_limit_are_refused(env: Env) -> None:
    assert await env.refused("message/send", sent("x", contextId="c" * 500)) == -32602


@pytest.mark.parametrize("path", ["/a2a", "/message:send"])
async def test_a_client_that_leaves_before_its_request_arrived_starts_nothing(env: Env, path: str) -> None:
    class Leaving(Drip):
        async def receive(self) -> dict[str, Any]:
            return await super().receive() if self.pieces else {"type": "http.disconnect"}

    drip = Leaving(env, [b'{"jsonrpc": "2.0",'], path=path)
    drip.unfinished = True
    assert await drip.run() == 400
    assert len(env.engine.store) == 0


async def test_responses_forbid_caching_and_content_sniffing(env: Env) -> None:
    for reply in (
        await env.raw("POST", "/a2a", env.envelope("tasks/get", {"id": "x"})),
        await env.raw("POST", "/a2a", b"{"),
        await env.raw("GET", "/tasks/x"),
        await env.raw("GET", "/nowhere"),
    ):
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["content-type"] == "application/json"
    streamed = await env.raw("POST", "/a2a", env.envelope("message/stream", sent("x", skill="echo")))
    refused = await env.raw("POST", "/a2a", env.envelope("message/stream", sent("x", taskId="none")))
    for reply in (streamed, refused):
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.headers["x-accel-buffering"] == "no"
        assert reply.headers["x-content-type-options"] == "nosniff"


async def test_all_bodies_share_one_bound_and_release_it_when_read(start_agent: StartAgent) -> None:
    env = await start_agent(limits=AgentLimits(bodies_bytes_max=1_000))
    app = build_app(env.engine)
    slow = Drip(env, [b"x" * 600, b"x"], pause_s=1.0, app=app)
    first = asyncio.ensure_future(slow.run())
    await asyncio.sleep(1.5)
    second = Drip(env, [b"x" * 401], app=app)
    assert await second.run() == 429
    head = dict(second.sent[0]["headers"])
    assert (head[b"retry-after"], head[b"connection"]) == (b"1", b"close")
    assert await Drip(env, [b"x" * 400], app=app).run() == 200
    assert await first == 200
    assert await Drip(env, [b"x" * 1_000], app=app).run() == 200


@pytest.mark.parametrize(
    ("lengths", "status"),
    [([b"2"], 200), ([b"2", b"2"], 400), ([b"-2"], 400), ([b"+2"], 400), ([b"x"], 400), ([b""], 400), ([b"\xb2"], 400)],
)
async def test_a_declared_length_must_be_one_number(env: Env, lengths: list[bytes], status: int) -> None:
    headers = [(b"content-length", length) for length in lengths]
    assert await Drip(env, [b"{}"], headers=headers).run() == status


@pytest.mark.parametrize(
    ("length", "status"), [("1000", 200), ("1001", 413), ("9" * 15, 413), ("0" * 11 + "1000", 200)]
)
async def test_a_declared_length_is_checked_before_the_body(start_agent: StartAgent, length: str, status: int) -> None:
    env = await start_agent(limits=AgentLimits(body_bytes_max=1_000))
    drip = Drip(env, [b"{}"], headers=[(b"content-length", length.encode())])
    assert await drip.run() == status
    assert len(drip.pieces) == (0 if status == 200 else 1)


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 431)])
async def test_headers_up_to_the_bound_are_read(start_agent: StartAgent, more: int, status: int) -> None:
    env = await start_agent(limits=AgentLimits(header_bytes_max=500))
    used = len(b"content-type") + len(b"application/json") + 4 + len(b"x-filler") + 4
    drip = Drip(env, [b"{}"], headers=[(b"x-filler", b"x" * (500 - used + more))])
    assert await drip.run() == status


async def test_an_unexpected_error_is_an_internal_error_in_every_form_of_request(start_agent: StartAgent) -> None:
    class Broken(Interceptor):
        async def before(self, call: Call, caller: CallerContext) -> Call:
            raise ZeroDivisionError("secret")

    env = await start_agent(interceptors=[Broken])
    assert await env.refused("message/send", sent("x")) == -32603
    assert await env.refused("SendMessage", sent_v1("x")) == -32603
    assert await env.refused("SendStreamingMessage", sent_v1("x")) == -32603
    (event,) = await env.frames("message/stream", sent("x"))
    assert event["error"]["code"] == -32603
    for path in ("/message:send", "/message:stream"):
        reply = await env.raw("POST", path, json.dumps(sent("secret")).encode())
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (500, -32603)
        assert b"secret" not in reply.body


@pytest.mark.parametrize(
    ("problem", "status", "retry"),
    [
        (AtCapacity("full"), 429, "5"),
        (AtCapacity("full", code=-32003), 200, None),
        (RpcError("other", code=-32000), 200, None),
        (InvalidParams("other"), 200, None),
    ],
)
def test_only_a_full_agent_sends_retry_after(problem: RpcError, status: int, retry: str | None) -> None:
    for given in (None, 401):
        answer = error_response(problem, status=given, headers={"x-more": "1"})
        assert answer.status_code == (given or status)
        assert (answer.headers.get("retry-after"), answer.headers["x-more"]) == (retry, "1")
