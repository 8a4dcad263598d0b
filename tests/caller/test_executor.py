"""One call to an agent: its content, its turn, and the replies that are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.caller.agent_limiter import AgentLimiter
from fleetsim.caller.executor import Executor
from fleetsim.caller.webhooks import CallbackTokens, TokenClaims
from fleetsim.client import AgentClient
from fleetsim.events.log import EventLog
from fleetsim.fleet.settings import FleetSettings
from fleetsim.model.errors import ConfigError, FleetsimError, Unreachable, WireError
from fleetsim.model.extensions import HUBS_HEADER, HUBS_KEY
from fleetsim.model.task import Message, Task, TaskState
from fleetsim.model.work import Answer
from fleetsim.request.records import RequestRecord
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from tests.caller.fleet import HUB, Clients
from tests.request.steps import record as plain_record
from tests.request.steps import task

URL = "http://peer.example:8000"
TASK = {"kind": "task", "id": "t-1", "contextId": "ctx", "status": {"state": "working"}}
TOKENS = CallbackTokens({1: b"k" * 32}, current=1)


@dataclass
class Peer:
    """An agent that records each call and gives each method the test's reply; silent for ``slow_s``."""

    replies: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    slow_s: float = 0.0

    async def rpc(self, request: Request) -> Response:
        said = await request.json()
        self.asked.append((said["method"], said["params"]))
        self.headers = dict(request.headers)
        await asyncio.sleep(self.slow_s)
        reply = self.replies.get(said["method"], TASK)
        member = "error" if "code" in reply else "result"
        return JSONResponse({"jsonrpc": "2.0", "id": said["id"], member: reply})

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]


@dataclass
class Env:
    peer: Peer
    client: AgentClient
    limiter: AgentLimiter
    base: str | None = HUB
    hubs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.clients = Clients({"a": self.client})
        self.executor = Executor(
            self.clients,
            self.limiter,
            tokens=TOKENS,
            hub=self,
        )

    def callback_base(self, agent: str, url: str) -> str | None:
        return self.base

    def hubs_visited(self, record: RequestRecord) -> tuple[str, ...]:
        return self.hubs

    @contextmanager
    def breaker_open(self) -> Iterator[None]:
        assert self.limiter.refuses("a")
        yield
        assert not self.limiter.refuses("a"), "an agent that answers is called again"


@pytest.fixture
async def env(network: MemoryNetwork, runtime: Runtime) -> AsyncIterator[Env]:
    peer = Peer()
    network.mount(URL, Starlette(routes=[Route("/a2a", peer.rpc, methods=["POST"])]))
    limiter = AgentLimiter(runtime, EventLog(runtime.clock), FleetSettings(calls_per_agent_max=1))
    async with network, _client(runtime) as client:
        yield Env(peer, client, limiter)


@asynccontextmanager
async def _client(runtime: Runtime) -> AsyncIterator[AgentClient]:
    client = AgentClient(URL, runtime=runtime)
    try:
        yield client
    finally:
        await client.aclose()


def record(*, bound: bool = True, dialect: str = "0.3", push: bool = False, **request: Any) -> RequestRecord:
    made = replace(plain_record(push=push), rpc_url=f"{URL}/a2a", dialect=dialect)
    return replace(
        made,
        task=replace(task(TaskState.INPUT_REQUIRED), context_id="ctx") if bound else None,
        request=replace(made.request, **request),
    )


WATCHING: dict[str, Callable[[Executor], Awaitable[object]]] = {
    "tasks/get": lambda executor: executor.poll(record()),
    "tasks/cancel": lambda executor: executor.cancel(record()),
    "tasks/pushNotificationConfig/set": lambda executor: executor.register_push(record()),
    "ListTasks": lambda executor: executor.find(record(bound=False, dialect="1.0")),
}


@pytest.mark.parametrize("method", WATCHING)
async def test_calls_about_work_that_an_agent_has_pass_its_open_breaker(env: Env, method: str) -> None:
    env.peer.replies["tasks/pushNotificationConfig/set"] = {"taskId": "t-1", "pushNotificationConfig": {"url": HUB}}
    env.peer.replies["ListTasks"] = {"tasks": [], "nextPageToken": "", "pageSize": 2, "totalSize": 0}
    for _ in range(FleetSettings().breaker_failures):
        with pytest.raises(Unreachable):
            async with env.executor.slot(record()):
                raise Unreachable("refused")
    with pytest.raises(Unreachable):
        async with env.executor.slot(record()):
            raise AssertionError("work that was not sent yet waits")
    with env.breaker_open():
        await WATCHING[method](env.executor)
    assert env.peer.methods == [method]


async def test_sends_and_cancels_come_before_polls_of_other_work(env: Env) -> None:
    env.peer.replies["ListTasks"] = {"tasks": [], "nextPageToken": "", "pageSize": 2, "totalSize": 0}
    env.peer.slow_s = 1.0

    async def send() -> None:
        async with env.executor.slot(record()):
            await env.executor.send(record(bound=False))

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        await asyncio.sleep(0.5)
        for method in ("tasks/get", "ListTasks", "tasks/cancel"):
            group.create_task(WATCHING[method](env.executor))  # type: ignore[arg-type]
        group.create_task(send())
    assert env.peer.methods == ["message/send", "tasks/cancel", "message/send", "tasks/get", "ListTasks"]


@pytest.mark.parametrize("call", ["poll", "cancel", "register_push", "subscribe"])
async def test_a_call_about_a_task_without_an_id_is_not_sent(env: Env, call: str) -> None:
    with pytest.raises(WireError):
        await getattr(env.executor, call)(record(bound=False))
    assert env.peer.asked == []


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_a_message_is_not_a_reply_to_a_call_for_a_task(env: Env, method: str) -> None:
    said = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "well"}]}
    env.peer.replies[method] = said
    with pytest.raises(FleetsimError):
        await WATCHING[method](env.executor)
    env.peer.replies["message/send"] = said
    reply = await env.executor.send(record(bound=False))
    assert isinstance(reply, Message)
    assert reply.text == "well"


@pytest.mark.parametrize(
    ("hint", "named"), [(None, {"skill": "echo"}), ("other", {"skill": "other"}), ("", {})], ids=["old", "hint", "none"]
)
@pytest.mark.parametrize("parent", [None, "p-1"])
async def test_a_message_carries_its_correlation_id_and_the_skill_if_the_agent_is_given_one(
    env: Env, hint: str | None, named: dict[str, str], parent: str | None
) -> None:
    own = {"theirs": 1, "correlationId": "forged"}
    made = replace(record(bound=False, parent_id=parent, metadata=own), hint=hint)
    await env.executor.send(made)
    await env.executor.resume(
        replace(made, task=task(TaskState.INPUT_REQUIRED)),
        Answer(question_id="q-1", text="x", metadata={"mine": 2}),
    )
    (_, sent), (_, answered) = env.peer.asked
    ours: dict[str, Any] = {"correlationId": "c-1", **({"skillHint": named["skill"]} if named else {})}
    ours |= {"parentId": parent} if parent else {}
    trace = {"traceId": "c-1", **named}
    for params, more in ((sent, {}), (answered, {"mine": 2})):
        told = {key: value for key, value in params["metadata"].items() if key != "a2a.trace"}
        assert told == {"theirs": 1, **more, **ours}
        assert {k: v for k, v in params["metadata"]["a2a.trace"].items() if k != "extension"} == trace
    assert env.peer.headers["x-correlation-id"] == "c-1"
    assert env.peer.headers.get("x-parent-id") == parent


async def test_the_hubs_on_the_way_are_in_a_header_and_in_the_metadata(env: Env) -> None:
    env.hubs = ("a1", "b2")
    await env.executor.send(record(bound=False))
    assert env.peer.headers.get(HUBS_HEADER.lower()) == "a1,b2"
    assert env.peer.asked[-1][1]["metadata"][HUBS_KEY] == ["a1", "b2"]
    env.hubs = ()
    await env.executor.send(record(bound=False))
    assert HUBS_HEADER.lower() not in env.peer.headers
    assert HUBS_KEY not in env.peer.asked[-1][1]["metadata"]


async def test_an_answer_goes_to_the_question_s_task_and_context_under_a_new_message_id(env: Env) -> None:
    for context in ("ctx", ""):
        made = replace(record(), task=replace(task(TaskState.INPUT_REQUIRED), context_id=context))
        assert isinstance(await env.executor.resume(made, Answer(question_id="q-1", text="this")), Task)
        message = env.peer.asked[-1][1]["message"]
        assert (message["messageId"], message["taskId"], message.get("contextId")) == (
            "q-1-answer",
            "t-1",
            context or None,
        )
        assert [part["text"] for part in message["parts"]] == ["this"]


async def test_a_message_has_a_new_context_unless_the_agent_or_the_caller_names_one(env: Env) -> None:
    for asked, context in (
        ({}, "c-1"),
        ({"context_id": "k"}, "k"),
        ({"first_turn": True}, None),
    ):
        await env.executor.send(record(bound=False, **asked))
        assert env.peer.asked[-1][1]["message"].get("contextId") == context
        assert env.peer.asked[-1][1]["configuration"].get("blocking") is False


@pytest.mark.parametrize("signed", [False, True])
async def test_a_webhook_is_sent_inline_or_registered_with_the_same_token(env: Env, signed: bool) -> None:
    env.clients.signed, env.base = signed, f"{HUB}/"
    env.peer.replies["tasks/pushNotificationConfig/set"] = {"taskId": "t-1", "pushNotificationConfig": {"url": HUB}}
    made = record(bound=False, push=True, correlation_id="c/1")
    await env.executor.send(made)
    await env.executor.send(replace(made, register_push=True))
    await env.executor.register_push(replace(made, task=replace(task(TaskState.WORKING), task_id="t 1/é")))
    inline, apart, registered = (params for _, params in env.peer.asked)
    assert "pushNotificationConfig" not in apart["configuration"]
    configs = (inline["configuration"]["pushNotificationConfig"], registered["pushNotificationConfig"])
    for config, last in zip(configs, ("c%2F1", "t%201%2F%C3%A9"), strict=True):
        assert config["url"] == f"{HUB}/api/a2a/callback/{last}"
        assert TOKENS.verify(config["token"]) == TokenClaims(epoch=1, agent="a", correlation_id="c/1", signed=signed)
        assert bool(config.get("authentication", {}).get("credentials")) is signed
    env.base = None
    await env.executor.send(made)
    assert "pushNotificationConfig" not in env.peer.asked[-1][1]["configuration"]
    with pytest.raises(ConfigError):
        await env.executor.register_push(record())
    assert len(env.peer.asked) == 4


LISTED = {"id": "t-9", "contextId": "c-1", "status": {"state": "TASK_STATE_WORKING"}}


@pytest.mark.parametrize(("listed", "found"), [(0, None), (1, "t-9"), (2, None)])
async def test_a_lost_task_is_read_if_it_is_the_only_one_of_its_context(
    env: Env, listed: int, found: str | None
) -> None:
    env.peer.replies["ListTasks"] = {"tasks": [LISTED] * listed, "nextPageToken": "", "pageSize": 2, "totalSize": 2}
    env.peer.replies["GetTask"] = LISTED | {"history": []}
    task = await env.executor.find(record(bound=False, dialect="1.0"))
    assert (task.task_id if task else None) == found
    assert env.peer.methods == ["ListTasks", *(["GetTask"] if found else [])]
    assert (env.peer.asked[0][1]["contextId"], env.peer.asked[0][1]["pageSize"]) == ("c-1", 2)


@pytest.mark.parametrize(
    ("dialect", "request_of", "searchable"),
    [
        ("1.0", {}, True),
        ("1.0", {"context_id": "shared"}, False),
        ("1.0", {"first_turn": True}, False),
        ("0.3", {}, False),
        ("0.3", {"task_id": "t-7"}, True),
        ("0.1", {}, True),
        ("0.1", {"context_id": "shared"}, True),
    ],
)
async def test_a_lost_task_is_searched_by_its_id_or_by_a_context_that_is_its_own(
    env: Env, dialect: str, request_of: dict[str, Any], searchable: bool
) -> None:
    made = record(bound=False, dialect=dialect, **request_of)
    assert env.executor.searchable(made) is searchable
    if searchable and dialect != "1.0":
        await env.executor.find(made)
        assert [params["id"] for _, params in env.peer.asked] == [request_of.get("task_id", "c-1")]


@pytest.mark.parametrize(("shown", "found"), [("c-1", "c-1"), ("t-9", None)])
async def test_a_search_that_shows_another_task_finds_none(env: Env, shown: str, found: str | None) -> None:
    env.peer.replies["tasks/get"] = {"id": shown, "sessionId": "s", "status": {"state": "working"}}
    task = await env.executor.find(record(bound=False, dialect="0.1"))
    assert (task.task_id if task else None) == found


async def test_an_unknown_task_is_read_before_a_follow_up_is_sent(env: Env) -> None:
    made = record(bound=False, task_id="t-1")
    assert await env.executor.as_asked_for(made) == made
    assert env.peer.methods == ["tasks/get"]
    env.peer.replies["tasks/get"] = {"code": -32001, "message": "no such task"}
    assert await env.executor.as_asked_for(made) == made, "it may accept the message nevertheless"
    for seen in (record(bound=False), replace(made, earlier="seen")):
        assert await env.executor.as_asked_for(seen) is seen
    assert len(env.peer.asked) == 2


@pytest.mark.parametrize("method", ["tasks/pushNotificationConfig/set", "ListTasks", "tasks/get"])
async def test_a_missing_method_refreshes_the_card_unless_many_agents_lack_it(
    env: Env, network: MemoryNetwork, method: str
) -> None:
    env.peer.replies[method] = {"code": -32601, "message": "no such method"}
    with pytest.raises(FleetsimError):
        await WATCHING[method](env.executor)
    assert [seen.url for seen in network.seen if "card" in seen.url or "agent.json" in seen.url] == (
        [] if method != "tasks/get" else [f"{URL}/.well-known/agent-card.json", f"{URL}/.well-known/agent.json"]
    )
    assert env.peer.methods == [method]
