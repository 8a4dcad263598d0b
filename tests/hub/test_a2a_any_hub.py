"""A task of the hub's own ``/a2a`` is served by every hub of a fleet on one real PostgreSQL. ``make pg``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.settings import AgentSettings
from fleetsim.client import AgentClient, Credential
from fleetsim.model.call import CancelTask, GetTask, ListTasks, PushConfig, SendMessage, TaskPage
from fleetsim.model.errors import InvalidParams, RpcError, TaskNotCancelable, TaskNotFound
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate
from fleetsim.model.task import TERMINAL, Message, Role, Task, TaskState, TextPart
from fleetsim.runtime.address import AddressPolicy
from fleetsim.runtime.limits import ServerLimits
from fleetsim.runtime.server import listen, serving
from tests.hub.test_several_hubs import SOON_S, Pair, agent_of, pair
from tests.postgres import Server

pytestmark = [pytest.mark.pg, pytest.mark.sockets]

DIALECTS = ("1.0", "0.3")


def talker(calls: list[str], hubs: tuple[str, ...]) -> Agent:
    agent = agent_of(calls, hubs).replace(streaming=True)

    @agent.skill("recite")
    async def recite(task: SkillContext) -> str:
        for word in ("one ", "two ", "three"):
            await task.say(word)
            await asyncio.sleep(2)
        return "one two three"

    return agent


def client(fleet: Pair, at: int, dialect: str, key: str | None = None) -> AgentClient:
    hub = fleet.hubs[at]
    credential = Credential.of("apiKey", key or hub.keys.api_key)
    return AgentClient(f"{hub.url}/a2a", runtime=hub.runtime, dialect=dialect, credential=credential)


def message(text: str, skill: str, *, task_id: str | None = None, context_id: str | None = None) -> SendMessage:
    said = Message(
        message_id=f"m-{text}", role=Role.USER, parts=(TextPart(text=text),), task_id=task_id, context_id=context_id
    )
    return SendMessage(message=said, metadata={"skillHint": skill}, wait=False)


async def sent(agent: AgentClient, call: SendMessage) -> Task:
    task = await agent.call(call)
    assert isinstance(task, Task)
    return task


async def until(agent: AgentClient, task_id: str, *states: TaskState) -> Task:
    async with asyncio.timeout(SOON_S):
        while True:
            task = await agent.call(GetTask(task_id=task_id))
            assert isinstance(task, Task)
            if task.state in states:
                return task
            await asyncio.sleep(0.05)


@asynccontextmanager
async def two(server: Server, name: str, dialect: str, **options: Any) -> AsyncIterator[tuple[Pair, Any, Any]]:
    async with (
        pair(server, f"{name}_{dialect[0]}", **options) as fleet,
        client(fleet, 0, dialect) as first,
        client(fleet, 1, dialect) as second,
    ):
        yield fleet, first, second


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_task_is_read_and_canceled_at_another_hub(server: Server, dialect: str) -> None:
    async with two(server, "cancels", dialect) as (fleet, first, second):
        task = await sent(first, message("long", "ponder"))
        assert (await until(second, task.task_id, TaskState.WORKING)).context_id == task.context_id
        await fleet.until(lambda: said(fleet.calls))  # a cancel before the request is accepted leaves no outcome
        canceled = await second.call(CancelTask(task_id=task.task_id))
        assert canceled.state is TaskState.CANCELED
        assert (await until(first, task.task_id, *TERMINAL)).state is TaskState.CANCELED
        with pytest.raises(TaskNotCancelable):
            await second.call(CancelTask(task_id=task.task_id))
        (outcome,) = await fleet.until(lambda: fleet.database.fetch("SELECT kind FROM outcomes"))
        assert outcome["kind"] == "canceled"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_question_is_answered_at_another_hub(server: Server, dialect: str) -> None:
    async with two(server, "answers", dialect) as (fleet, first, second):
        task = await sent(first, message("go", "ask"))
        question = await until(second, task.task_id, TaskState.INPUT_REQUIRED)
        assert question == await until(first, task.task_id, TaskState.INPUT_REQUIRED)
        with pytest.raises(RpcError):
            await sent(second, message("x", "ask", task_id="unknown"))
        await sent(second, message("main", "ask", task_id=task.task_id, context_id=task.context_id))
        ended = await until(second, task.task_id, *TERMINAL)
        assert (ended.state, ended.artifacts[0].text) == (TaskState.COMPLETED, "going with main")
        assert ended == await until(first, task.task_id, *TERMINAL)
        with pytest.raises(RpcError):
            await sent(second, message("more", "ask", task_id=task.task_id, context_id=task.context_id))
        assert fleet.calls == ["go"]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_running_task_accepts_no_message_at_any_hub(server: Server, dialect: str) -> None:
    async with two(server, "unasked", dialect) as (_, first, second):
        task = await sent(first, message("long", "ponder"))
        await until(second, task.task_id, TaskState.WORKING)
        for agent in (first, second):
            with pytest.raises(InvalidParams):
                await sent(agent, message("hello?", "ponder", task_id=task.task_id, context_id=task.context_id))


async def test_both_hubs_list_the_tasks_of_both_in_one_order_page_by_page(server: Server) -> None:
    async with two(server, "lists", "1.0") as (_, first, second):
        tasks = [await sent(agent, message(f"t{n}", "ponder")) for n in range(2) for agent in (first, second)]
        for task in tasks:
            await until(first, task.task_id, TaskState.WORKING)
        page = await first.call(ListTasks(page_size=3))
        assert isinstance(page, TaskPage)
        assert (len(page.tasks), page.total_size) == (3, 4)
        rest = await second.call(ListTasks(page_size=3, page_token=page.next_page_token))
        assert {item.task_id for item in (*page.tasks, *rest.tasks)} == {task.task_id for task in tasks}
        of_one = await second.call(ListTasks(context_id=tasks[0].context_id))
        assert [item.task_id for item in of_one.tasks] == [tasks[0].task_id]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_conversation_continues_at_another_hub(server: Server, dialect: str) -> None:
    async with two(server, "turns", dialect) as (fleet, first, second):
        task = await sent(first, message("one", "echo"))
        await until(first, task.task_id, TaskState.COMPLETED)
        more = await sent(second, message("two", "echo", context_id=task.context_id))
        await until(first, more.task_id, TaskState.COMPLETED)
        rows = await fleet.database.fetch("SELECT context_id FROM outcomes")
        assert len(rows) == 2
        assert rows[0] == rows[1]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_another_key_finds_the_task_at_no_hub(server: Server, dialect: str) -> None:
    async with two(server, "keys", dialect) as (fleet, first, _):
        for hub in fleet.hubs:
            hub.keyring.replace({"quinn": "quinn-" + "k" * 40})
        task = await sent(first, message("long", "ponder"))
        await until(first, task.task_id, TaskState.WORKING)
        for at in (0, 1):
            async with client(fleet, at, dialect, "quinn-" + "k" * 40) as quinn:
                for call in (GetTask(task_id=task.task_id), CancelTask(task_id=task.task_id)):
                    with pytest.raises(TaskNotFound):
                        await quinn.call(call)
                with pytest.raises(TaskNotFound):
                    await sent(quinn, message("hi", "ponder", task_id=task.task_id))
                with pytest.raises(TaskNotFound):
                    _ = [event async for event in quinn.resubscribe(task.task_id)]
                if dialect == "1.0":
                    assert (await quinn.call(ListTasks())).tasks == ()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stream_is_joined_at_another_hub_and_has_the_whole_text(server: Server, dialect: str) -> None:
    async with two(server, "streams", dialect, agent=talker) as (_, first, second):
        task = await sent(first, message("go", "recite"))
        await until(first, task.task_id, TaskState.WORKING)
        texts: dict[str, str] = {}
        pieces, states = 0, []
        async with asyncio.timeout(SOON_S):
            async for event in second.resubscribe(task.task_id):
                match event:
                    case Snapshot():
                        texts |= {artifact.artifact_id: artifact.text for artifact in event.task.artifacts}
                    case ArtifactUpdate():
                        before = texts.get(event.artifact.artifact_id, "") if event.append else ""
                        texts[event.artifact.artifact_id] = before + event.artifact.text
                        pieces += 1
                    case StatusUpdate():
                        states.append(event.status.state)
        assert texts == {task.task_id: "one two three"}
        assert pieces > 1, "it came in pieces"
        assert states[-1] is TaskState.COMPLETED


async def said(truth: object) -> object:
    return truth


class Receiver:
    """Receives webhooks on a real socket; refuses them with a status that allows a retry, until ``opens``."""

    def __init__(self) -> None:
        self.opens = False
        self.refused = 0
        self.taken: list[str] = []

    async def take(self, request: Request) -> Response:
        body = await request.body()
        if not self.opens:
            self.refused += 1
            return Response(status_code=503)
        self.taken.append(body.decode().lower())
        return Response()


@asynccontextmanager
async def receiving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Receiver, str]]:
    """A receiver and its URL, which the hubs may call although it is on this machine."""
    receiver, listener = Receiver(), listen("127.0.0.1", 0)
    at = f"127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setattr(AgentSettings, "webhook_policy", lambda _: AddressPolicy.allowing(at))
    app = Starlette(routes=[Route("/hook", receiver.take, methods=["POST"])])
    async with serving(app, ServerLimits(), listener):
        yield receiver, f"http://{at}/hook"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_webhooks_of_a_task_are_kept_at_any_hub(
    server: Server, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving(monkeypatch) as (receiver, url), two(server, "pushes", dialect) as (fleet, first, second):
        receiver.opens = True
        task = await sent(first, message("go", "ask"))
        await until(first, task.task_id, TaskState.INPUT_REQUIRED)
        push = await second.set_push(task.task_id, PushConfig(url=url, token="secret-" + "t" * 20))
        assert push.config.url == url
        for agent in (first, second):
            listed = await agent.list_push(task.task_id)
            assert [(push_.config.config_id, push_.config.url) for push_ in listed] == [(push.config.config_id, url)]
            assert (await agent.get_push(task.task_id, push.config.config_id)).config.token is None
        with pytest.raises(InvalidParams):
            await second.set_push(task.task_id, PushConfig(url="http://10.0.0.1/hook"))
        await sent(second, message("main", "ask", task_id=task.task_id, context_id=task.context_id))
        await until(second, task.task_id, TaskState.COMPLETED)
        await fleet.until(lambda: said(any("completed" in notice for notice in receiver.taken)))
        await second.delete_push(task.task_id, push.config.config_id)
        assert await first.list_push(task.task_id) == ()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_webhook_that_a_lost_hub_owed_is_sent_once_by_another(
    server: Server, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        receiving(monkeypatch) as (receiver, url),
        two(server, "owed", dialect, lease_s=1.0) as (fleet, first, _),
    ):
        task = await sent(first, message("hi", "echo"))
        await first.set_push(task.task_id, PushConfig(url=url))
        await until(first, task.task_id, TaskState.COMPLETED)
        await fleet.until(lambda: said(receiver.refused))
        await fleet.database.execute("UPDATE hubs SET ended_at = clock_timestamp() WHERE name = 'hub 0'")

        async def adopted() -> bool:
            return bool(
                await fleet.database.fetchval(
                    "SELECT count(*) FROM a2a_tasks JOIN hubs USING (hub) WHERE name = 'hub 1'"
                )
            )

        await fleet.until(adopted)
        receiver.opens = True
        await fleet.until(lambda: said(receiver.taken))
        await asyncio.sleep(8)  # the retries of the lost hub would come within this time
        assert len(receiver.taken) == 1
        assert "completed" in receiver.taken[0]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_task_of_a_hub_that_stops_continues_at_another(server: Server, dialect: str) -> None:
    async with two(server, "stops", dialect, poll_s=1.0) as (fleet, first, second):
        task = await sent(first, message("go", "ask"))
        question = await until(first, task.task_id, TaskState.INPUT_REQUIRED)
        await fleet.leave()
        assert await until(second, task.task_id, TaskState.INPUT_REQUIRED) == question
        await sent(second, message("main", "ask", task_id=task.task_id, context_id=task.context_id))
        ended = await until(second, task.task_id, *TERMINAL)
        assert (ended.state, ended.artifacts[0].text) == (TaskState.COMPLETED, "going with main")
        assert fleet.calls == ["go"]
        assert await fleet.outcomes() == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_hub_that_lost_its_lease_serves_the_task_that_another_adopted(server: Server, dialect: str) -> None:
    async with two(server, "lost", dialect, lease_s=1.0) as (fleet, first, second):
        task = await sent(first, message("go", "ask"))
        question = await until(first, task.task_id, TaskState.INPUT_REQUIRED)
        await fleet.database.execute("UPDATE hubs SET ended_at = clock_timestamp() WHERE name = 'hub 0'")
        async with asyncio.timeout(SOON_S):
            async for event in fleet.remote[1].events(after=0):
                if event["topic"] == "hub.lease_lost":
                    break
        assert await until(second, task.task_id, TaskState.INPUT_REQUIRED) == question
        await sent(first, message("main", "ask", task_id=task.task_id, context_id=task.context_id))
        for agent in (first, second):
            assert (await until(agent, task.task_id, *TERMINAL)).artifacts[0].text == "going with main"
        assert fleet.calls == ["go"]
        assert await fleet.outcomes() == 1
