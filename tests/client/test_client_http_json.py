"""The client and the reference agent over HTTP+JSON: every operation, in 1.0 and 0.3."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.client import AgentClient
from fleetsim.client.follow import OutgoingMessage
from fleetsim.client.ways import Ways
from fleetsim.model.call import PushConfig, SendMessage
from fleetsim.model.errors import (
    AuthRefused,
    HttpRefused,
    InternalError,
    InvalidParams,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
    WireError,
)
from fleetsim.model.task import DataPart, FilePart, Message, Role, TaskState
from fleetsim.runtime.ports import Runtime
from fleetsim.testbed.network import MemoryNetwork
from fleetsim.wire.choice import Choice
from fleetsim.wire.dialect import read_card
from tests.client.scripted import of_the_text

ORIGIN = "http://agent.example"
BOTH = pytest.mark.parametrize("dialect", ["1.0+http", "0.3+http"])


def worker() -> Agent:
    agent = Agent("worker", allow_webhook=("10.9.9.9:443",), bearer="key")

    @agent.skill("chat")
    async def chat(task: SkillContext) -> str:
        if task.text == "ponder":
            await asyncio.sleep(600)
        if task.text == "ask":
            return await task.ask("Which colour?")
        await task.attach(*(part for part in task.message.parts if isinstance(part, FilePart | DataPart)))
        return f"you said {task.text}"

    @agent.skill("audit", public=False)
    async def audit(task: SkillContext) -> str:
        return task.text

    return agent


@BOTH
async def test_a_message_is_sent_polled_streamed_and_answered(
    runtime: Runtime, network: MemoryNetwork, dialect: str
) -> None:
    network.mount(ORIGIN, worker().app())
    async with network:
        agent = AgentClient(f"{ORIGIN}/a2a", runtime=runtime, dialect=dialect, auth_token="key")
        assert (await agent.send_task("hi")).text == "you said hi"
        parts = (DataPart(data={"n": 1}), DataPart(data=[1]), FilePart(raw="aGVsbG8=", filename="a.txt"))
        given = await agent.send_task("look", parts=parts)
        kept = [part for artifact in given.task.artifacts for part in artifact.parts]
        assert [part.data for part in kept if isinstance(part, DataPart)] == [{"n": 1}, [1]]
        assert [part.raw for part in kept if isinstance(part, FilePart)] == ["aGVsbG8="]
        seen = [task.state async for task in agent.follow("hi")]
        assert seen[-1] is TaskState.COMPLETED
        asked = await agent.send_task("ask")
        assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Which colour?")
        done = await agent.send_task("red", task_id=asked.id, context_id=asked.context_id)
        assert (done.state, done.text) == (TaskState.COMPLETED, "red")


@BOTH
async def test_a_task_is_read_joined_and_cancelled(runtime: Runtime, network: MemoryNetwork, dialect: str) -> None:
    network.mount(ORIGIN, worker().app())
    async with network:
        agent = AgentClient(f"{ORIGIN}/a2a", runtime=runtime, dialect=dialect, auth_token="key")
        begun = await agent.send_task("ponder", wait=False)
        assert (await agent.get(begun.id, history_length=1)).task.history[0].text == "ponder"
        joined = agent.resubscribe(begun.id)
        assert await anext(joined) is not None
        assert (await agent.cancel(begun.id)).state is TaskState.CANCELED
        assert [event async for event in joined] != []
        with pytest.raises(TaskNotCancelable):
            await agent.cancel(begun.id)
        with pytest.raises(TaskNotFound, match="nope"):
            await agent.get("nope")
        if dialect == "1.0+http":
            page = await agent.list_tasks(state=TaskState.CANCELED, page_size=5)
            assert [task.task_id for task in page.tasks] == [begun.id]
        with pytest.raises(AuthRefused):
            await AgentClient(f"{ORIGIN}/a2a", runtime=runtime, dialect=dialect).get(begun.id)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("pinned", [None, "0.3+http"])
async def test_the_objects_of_json_rpc_are_tried_where_those_of_the_sdks_are_refused(
    runtime: Runtime, network: MemoryNetwork, strict: bool, pinned: str | None
) -> None:
    app, seen = of_the_text(worker().app(), strict=strict)
    network.mount(ORIGIN, app)
    async with network:
        agent = AgentClient(ORIGIN, runtime=runtime, dialect=pinned, auth_token="key")
        card = {"name": "text", "skills": [], "url": f"{ORIGIN}/a2a", "protocolVersion": "0.3.0"}
        agent.adopt(read_card({**card, "preferredTransport": "HTTP+JSON"}))
        assert (await agent.send_task("hi", parts=(DataPart(data={"n": 1}),))).text == "you said hi"
        begun = await agent.send_task("ponder", wait=False)
        assert await anext(agent.resubscribe(begun.id)) is not None
        await agent.set_push(begun.id, PushConfig(url="https://10.9.9.9/x", token="secret"))
        assert (await agent.cancel(begun.id)).state is TaskState.CANCELED
        assert [status for _, _, status in seen if status >= 400] == [422]
        streamed = AgentClient(ORIGIN, runtime=runtime, dialect=pinned, auth_token="key")
        streamed.adopt(read_card({**card, "preferredTransport": "HTTP+JSON", "capabilities": {"streaming": True}}))
        assert [task.text async for task in streamed.follow("hi")][-1] == "you said hi"


async def test_both_refusals_are_quoted_if_both_spellings_are_refused(runtime: Runtime, network: MemoryNetwork) -> None:
    app, seen = of_the_text(worker().app())
    network.mount(ORIGIN, app)
    async with network:
        agent = AgentClient(f"{ORIGIN}/a2a", runtime=runtime, dialect="0.3+http", auth_token="key")
        with pytest.raises(InvalidParams, match=r"parts.*webhook"):
            await agent.call(OutgoingMessage(text="hi", push=PushConfig(url="http://10.0.0.1/x")).call("m-1"))
        assert [status for _, _, status in seen if status == 422] == [422, 422]
        with pytest.raises(TaskNotFound, match=r"GET /v1/tasks/\{id\}"):
            await agent.get("nope")


async def test_an_agent_that_takes_the_other_objects_from_now_on_is_sent_them_after_one_refusal() -> None:
    ways, out = Ways(), Choice(dialect_name="0.3+http", url=f"{ORIGIN}/a2a")
    call, asked = SendMessage(message=Message(message_id="m-1", role=Role.USER, parts=())), []
    taken: list[str] = []

    async def make(way: Choice, _: str) -> bool:
        asked.append(way.url)
        if not way.url.endswith(taken[-1]):
            raise InvalidParams
        return True

    for ending in ("/v1", "/a2a", "/v1"):
        taken.append(ending)
        for _ in range(2):
            with suppress(InvalidParams):
                await ways.first_known(call, out, (), make)
        asked.clear()
        assert (await ways.first_known(call, out, (), make))[0]
        assert len(asked) == 1


@pytest.mark.parametrize("dialect", ["1.0", "0.3", "1.0+http", "0.3+http"])
async def test_a_task_that_the_agent_does_not_know_is_named_with_agent_and_call(
    runtime: Runtime, network: MemoryNetwork, dialect: str
) -> None:
    network.mount(ORIGIN, worker().app())
    async with network:
        agent = AgentClient(f"{ORIGIN}/a2a", runtime=runtime, dialect=dialect, auth_token="key")
        calls = (
            agent.get("nope"),
            agent.send_task("hi", task_id="nope"),
            anext(agent.stream("hi", task_id="nope")),
            anext(agent.resubscribe("nope")),
        )
        for call in calls:
            with pytest.raises(TaskNotFound, match=r"agent\.example:80: \S.* nope"):
                await call


def peer(status: int, body: Any) -> Starlette:
    """An agent of HTTP+JSON alone that answers every request so."""
    card = {
        "name": "peer",
        "skills": [],
        "supportedInterfaces": [{"url": ORIGIN, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}],
    }

    async def answer(request: Request) -> Response:
        if request.url.path.startswith("/.well-known/"):
            return JSONResponse(card)
        return JSONResponse(body, status_code=status) if body is not None else Response(status_code=status)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "DELETE"])])


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"error": "nothing here"}, HttpRefused),
        (404, {"message": "Not Found"}, HttpRefused),
        (503, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "later"}}, HttpRefused),
        (500, {"error": {"code": 500, "status": "INTERNAL", "message": "m", "details": []}}, InternalError),
        (501, {"message": "no"}, UnsupportedOperation),
        (200, {"jsonrpc": "2.0", "id": 1, "result": {}}, WireError),
        (200, {"pong": True}, WireError),
        (200, None, WireError),
        (302, None, WireError),
    ],
)
async def test_a_refusal_is_read_by_its_body_and_not_by_its_status(
    runtime: Runtime, network: MemoryNetwork, status: int, body: Any, kind: type[Exception]
) -> None:
    network.mount(ORIGIN, peer(status, body))
    async with network:
        with pytest.raises(kind):
            await AgentClient(ORIGIN, runtime=runtime).send_task("hi")


async def test_a_deletion_may_be_answered_with_nothing(runtime: Runtime, network: MemoryNetwork) -> None:
    network.mount(ORIGIN, peer(204, None))
    async with network:
        await AgentClient(ORIGIN, runtime=runtime).delete_push("t-1", "p-1")


@BOTH
async def test_webhooks_are_registered_read_and_removed(runtime: Runtime, network: MemoryNetwork, dialect: str) -> None:
    network.mount(ORIGIN, worker().app())
    async with network:
        agent = AgentClient(f"{ORIGIN}/a2a", runtime=runtime, dialect=dialect, auth_token="key")
        begun = await agent.send_task("ponder", wait=False)
        config = PushConfig(url="https://10.9.9.9/x", config_id="p-1", token="secret")
        made = await agent.set_push(begun.id, config)
        assert (made.task_id, made.config.url) == (begun.id, config.url)
        config_id = made.config.config_id
        assert config_id
        assert (await agent.get_push(begun.id, config_id)).config.config_id == config_id
        assert [push.config.config_id for push in await agent.list_push(begun.id)] == [config_id]
        await agent.delete_push(begun.id, config_id)
        assert await agent.list_push(begun.id) == ()
        assert {skill.skill_id for skill in (await agent.extended_card()).skills} == {"chat", "audit"}
