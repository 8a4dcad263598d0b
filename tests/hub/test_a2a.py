"""The hub as an A2A agent: the fleet does its tasks, and the hub reports them as the fleet does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fleetsim.agent import Agent, SkillContext
from fleetsim.agent.durable import TaskFile
from fleetsim.agent.limits import AgentLimits
from fleetsim.agent.store import Store
from fleetsim.client import AgentClient, Credential, SentTask
from fleetsim.fleet.auth import AuthEntry
from fleetsim.fleet.settings import AgentEntry, FleetConfig, FleetSettings, SkillEntry
from fleetsim.hub.api import build_app
from fleetsim.hub.hub import Hub
from fleetsim.ledger import LedgerLimits
from fleetsim.ledger.sqlite import SqliteLedger
from fleetsim.ledger.sqlite.storage import InlineStorage
from fleetsim.model.call import GetExtendedCard, GetTask, SendMessage
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import AuthRefused, Blame, InvalidParams, TaskNotCancelable, TaskNotFound, UnknownTarget
from fleetsim.model.event import ArtifactUpdate, Snapshot, StatusUpdate, TaskEvent
from fleetsim.model.extensions import hub_extension
from fleetsim.model.task import Message, Role, Task, TaskState, TextPart
from fleetsim.model.work import Answer, Cause, OutcomeKind, SkillRequest
from fleetsim.testbed.asgi import App
from fleetsim.testbed.runtime import virtual_runtime
from tests.hub.local_hub import AGENTS, HUB, KEY, KEYS, LocalHub, Stubborn, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN
from tests.ledger.ledgers import opener

DIALECTS = ("1.0", "0.3", "0.1")
NEAR = "http://near.example:8080"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

QUINN_YAML = "  - name: quinn\n    url: http://quinn.example:8000/a2a\n"
AVA_YAML = "  - name: ava\n    url: http://ava.example:8000/a2a\n    skills: [review]\n"


def fleet(*agents: str) -> str:
    return f"agents:\n{''.join(agents)}fleet:\n  base_url: {HUB}\n"


def tags_of(card: AgentCard, skill_id: str) -> tuple[str, ...]:
    skill = card.skill(skill_id)
    return skill.tags if skill is not None else ()


def client(
    t: LocalHub, dialect: str | None = None, *, key: str = KEY, at: str = HUB, headers: Mapping[str, str] | None = None
) -> AgentClient:
    credential = Credential.of("apiKey", key)
    return AgentClient(at + "/a2a", runtime=t.runtime, dialect=dialect, credential=credential, headers=headers or {})


def message(text: str, skill: str | None = "echo", *, task_id: str | None = None, **metadata: Any) -> SendMessage:
    said = Message(message_id=f"m-{text}", role=Role.USER, parts=(TextPart(text=text),), task_id=task_id)
    hint = {"skillHint": skill} if skill else {}
    return SendMessage(message=said, metadata={**hint, **metadata}, wait=False, task_id=task_id)


async def begun(agent: AgentClient, call: SendMessage) -> Task:
    task = await agent.call(call)
    assert isinstance(task, Task)
    return task


async def until(agent: AgentClient, task_id: str, *states: TaskState) -> Task:
    async with asyncio.timeout(3600):
        while True:
            task = await agent.call(GetTask(task_id=task_id))
            assert isinstance(task, Task)
            if task.state in states:
                return task
            await asyncio.sleep(1)


async def asked(t: LocalHub, agent: AgentClient, skill: str, text: str = "hi") -> SentTask:
    """Send one request and follow it to its end, as a user of the library does."""
    await asyncio.sleep(1)
    return await agent.send_task(text, metadata={"skillHint": skill})


def slow_talker() -> Agent:
    agent = worker()

    @agent.skill("recite")
    async def recite(task: SkillContext) -> str:
        await task.status("clearing my throat")
        await asyncio.sleep(5)
        for word in ("one ", "two ", "three"):
            await task.say(word)
            await asyncio.sleep(5)
        return "one two three"

    return agent


# -- the card


async def test_the_card_lists_the_skills_of_the_fleet_and_follows_its_changes() -> None:
    async with ready_hub(worker(), worker("ava"), agents_yaml=fleet(QUINN_YAML, AVA_YAML)) as t:
        card = await client(t).discover()
        assert {skill.skill_id for skill in card.skills} == {"echo", "ponder", "ask", "fail", "review"}
        assert {face.url for face in card.interfaces} == {HUB + "/a2a"}
        assert [tags_of(card, skill) for skill in ("echo", "review")] == [("routed", "quinn", "ava"), ("routed", "ava")]
        t.files.put(AGENTS, fleet(QUINN_YAML))
        await asyncio.sleep(6)
        card = await client(t).discover()
        assert {skill.skill_id for skill in card.skills} == {"echo", "ponder", "ask", "fail"}
        assert tags_of(card, "echo") == ("routed", "quinn")


@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", "/.well-known/agent.json"])
async def test_the_card_names_the_hub_to_everybody_and_its_skills_to_holders_of_a_key(path: str) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        for key, skilled in (("", False), ("wrong", False), (KEY, True), (QUINN, True)):
            reply = await t.http("GET", path, key=key)
            card = json.loads(reply.body)
            assert (reply.status, card["name"], card["url"]) == (200, "fleetsim", HUB + "/a2a")
            assert bool(card["skills"]) is skilled
            assert "worker" not in reply.body.decode() or skilled
            assert card["supportsAuthenticatedExtendedCard"] is card["capabilities"]["extendedAgentCard"] is True
            assert not [name for name in reply.headers if name.startswith("access-control-")]
            assert reply.headers["cache-control"].startswith("private")
            assert {"A2A-Version", "Authorization", "X-API-Key"} == set(reply.headers["vary"].split(", "))


@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
async def test_the_extended_card_has_the_skills_and_needs_a_key(dialect: str) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        card = await client(t, dialect, key=QUINN).call(GetExtendedCard())
        assert isinstance(card, AgentCard)
        assert {skill.skill_id for skill in card.skills} == {"echo", "ponder", "ask", "fail"}
        assert {face.url for face in card.interfaces} == {HUB + "/a2a"}
        assert hub_extension(KEYS.hub_id) in card.capabilities.extensions
        with pytest.raises(AuthRefused):
            await client(t, dialect, key="wrong").call(GetExtendedCard())


async def over_http(
    t: LocalHub, method: str, path: str, body: Any = None, *, key: str = KEY, version: str = "1.0"
) -> tuple[int, Any]:
    headers = {"content-type": "application/a2a+json", "a2a-version": version}
    reply = await t.http(method, path, b"" if body is None else json.dumps(body).encode(), headers, key=key)
    return int(reply.status), json.loads(reply.body)


@pytest.mark.parametrize("version", ["1.0", ""])
async def test_the_fleet_can_be_called_over_http_json_too(version: str) -> None:
    base = "/a2a" if version else "/a2a/v1"
    async with ready_hub(worker(), agent_keys=ENV) as t:
        said = {"messageId": "m", "role": "ROLE_USER", "parts" if version else "content": [{"text": "hi"}]}
        body = {"message": said, "metadata": {"skillHint": "echo"}}
        assert (await over_http(t, "POST", f"{base}/message:send", body, key="", version=version))[0] == 401
        status, made = await over_http(t, "POST", f"{base}/message:send", body, key=QUINN, version=version)
        path = f"{base}/tasks/{made['task']['id']}"
        assert (status, made["task"]["history"][0]["messageId"]) == (200, "m")
        await asyncio.sleep(5)
        status, task = await over_http(t, "GET", path, key=QUINN, version=version)
        assert (status, task["status"]["state"]) == (200, "TASK_STATE_COMPLETED")
        assert (await over_http(t, "GET", path, key=AVA, version=version))[0] == 404
        assert (await over_http(t, "POST", f"{path}:cancel", key=QUINN, version=version))[0] == (
            400 if version else 409
        )
        hook = f"{path}/pushNotificationConfigs/default"
        assert (await over_http(t, "DELETE", hook, key=QUINN, version=version))[0] == 200
        card = "/extendedAgentCard" if version else "/card"
        status, card = await over_http(t, "GET", base + card, key=QUINN, version=version)
        assert (status, [skill["id"] for skill in card["skills"]]) == (200, ["echo", "ponder", "ask", "fail"])


async def test_paths_outside_the_binding_are_not_served_below_the_hubs_address() -> None:
    async with local_hub(worker()) as t:
        for method, path in (("GET", "/a2a/"), ("GET", "/a2a/x"), ("DELETE", "/a2a/"), ("POST", "/a2a/tasks/x")):
            assert (await over_http(t, method, path))[0] == 404, path
        assert (await over_http(t, "POST", "/message:send"))[0] == 404


async def test_the_address_may_end_in_a_slash() -> None:
    async with ready_hub(worker()) as t:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "made-up"}}
        reply = await t.http("POST", "/a2a/", json.dumps(body).encode())
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (200, -32001)


# -- dispatch, in every dialect


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_message_goes_to_the_agent_with_the_skill(dialect: str) -> None:
    async with local_hub(worker()) as t:
        done = await asked(t, client(t, dialect), "echo")
        assert (done.state, done.text) == (TaskState.COMPLETED, "you said hi")
        (outcome,) = await t.ledger.outcomes(since=EPOCH)
        assert (outcome.agent, outcome.skill, outcome.success, outcome.cost_usd) == ("quinn", "echo", True, 0.25)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_hint_may_be_in_the_message_or_in_the_request(dialect: str) -> None:
    async with ready_hub(worker()) as t:
        agent = client(t, dialect)
        said = Message(message_id="m", role=Role.USER, parts=(TextPart(text="x"),), metadata={"skillHint": "echo"})
        task = await begun(agent, SendMessage(message=said, wait=False, task_id="t-1"))
        assert (await until(agent, task.task_id, TaskState.COMPLETED)).text == "you said x"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_agents_progress_is_streamed(dialect: str) -> None:
    async with ready_hub(slow_talker()) as t:
        heard: list[tuple[float, TaskEvent]] = []
        now = asyncio.get_running_loop().time
        async with client(t, dialect).events(message("go", "recite")) as events:
            async for event in events:
                heard.append((now(), event))
        texts = [(at, event.artifact.text) for at, event in heard if isinstance(event, ArtifactUpdate)]
        pieces = [text.strip() for _, text in texts]
        assert pieces[:3] == ["one", "two", "three"]
        assert texts[2][0] - texts[0][0] == pytest.approx(10, abs=1), "as they came"
        moves = [event.status.message for _, event in heard if isinstance(event, StatusUpdate)]
        notes = [said.text for said in moves if said is not None]
        assert "clearing my throat" in notes


async def test_an_unchanged_text_is_not_sent_again() -> None:
    agent = worker()

    @agent.skill("draft")
    async def draft(task: SkillContext) -> None:
        for word in ("one ", "two"):
            await task.say(word)
            for note in ("reading", "writing"):
                await asyncio.sleep(5)
                await task.status(note)

    async with ready_hub(agent) as t:
        async with client(t, "1.0").events(message("go", "draft")) as events:
            received = [event async for event in events]
        pieces = [event.artifact.text for event in received if isinstance(event, ArtifactUpdate)]
        assert pieces == ["one ", "two", ""], "the last one closes the artifact"
        notes = [
            event.status.message.text for event in received if isinstance(event, StatusUpdate) and event.status.message
        ]
        assert notes == ["reading", "writing"] * 2


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_agents_question_is_passed_on_and_its_answer_passed_back(dialect: str) -> None:
    async with ready_hub(worker()) as t:
        agent = client(t, dialect)
        task = await begun(agent, message("go", "ask", task_id="t-1" if dialect == "0.1" else None))
        waiting = await until(agent, task.task_id, TaskState.INPUT_REQUIRED)
        assert waiting.status.message is not None
        assert waiting.status.message.text == "which branch?"
        await agent.call(message("main", None, task_id=task.task_id))
        done = await until(agent, task.task_id, TaskState.COMPLETED)
        assert done.text == "going with main"
        (answered,) = t.events("hitl.response.")
        assert answered.decided_by == "admin"  # type: ignore[attr-defined]


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_answer_applies_to_one_question_even_if_the_next_has_the_same_text(
    restarts: bool, tmp_path: Path
) -> None:
    agent = worker()

    @agent.skill("twice")
    async def twice(task: SkillContext) -> str:
        return f"{await task.ask('sure?')} and {await task.ask('sure?')}"

    async with ready_hub(agent, a2a_state=tmp_path / "a2a.db") as t:
        caller = client(t)
        task = await begun(caller, message("go", "twice"))
        await until(caller, task.task_id, TaskState.INPUT_REQUIRED)
        await caller.call(message("yes", None, task_id=task.task_id))
        await asyncio.sleep(10)
        if restarts:
            await t.restart()
            await asyncio.sleep(10)
        assert (await caller.get(task.task_id)).state is TaskState.INPUT_REQUIRED
        await caller.call(message("indeed", None, task_id=task.task_id))
        assert (await until(caller, task.task_id, TaskState.COMPLETED)).text == "yes and indeed"


async def test_a_question_that_is_answered_in_the_inbox_is_closed_for_the_caller() -> None:
    agent = worker()

    @agent.skill("weigh")
    async def weigh(task: SkillContext) -> str:
        branch = await task.ask("which branch?")
        await asyncio.sleep(60)
        return f"going with {branch}"

    async with ready_hub(agent) as t:
        caller = client(t)
        task = await begun(caller, message("go", "weigh"))
        await until(caller, task.task_id, TaskState.INPUT_REQUIRED)
        (question,) = t.hub.tracker.questions()
        await t.hub.tracker.answer(Answer(question_id=question.question_id, text="dev"))
        await asyncio.sleep(5)
        assert (await caller.get(task.task_id)).state is TaskState.WORKING
        assert (await until(caller, task.task_id, TaskState.COMPLETED)).text == "going with dev"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_cancelled_task_cancels_the_request_behind_it(dialect: str) -> None:
    async with ready_hub(worker()) as t:
        agent = client(t, dialect)
        task = await begun(agent, message("go", "ponder", task_id="t-1" if dialect == "0.1" else None))
        await asyncio.sleep(5)
        canceled = await agent.cancel(task.task_id)
        assert canceled.state is TaskState.CANCELED
        await asyncio.sleep(5)
        (outcome,) = await t.ledger.outcomes(since=EPOCH)
        assert (outcome.kind, t.hub.tracker.tracks()) == (OutcomeKind.CANCELED, ())


async def test_a_request_cancelled_at_the_hub_ends_the_task_as_canceled() -> None:
    async with ready_hub(worker()) as t:
        agent = client(t)
        task = await begun(agent, message("go", "ponder"))
        await asyncio.sleep(5)
        await t.hub.tracker.cancel(str(task.metadata["correlationId"]))
        await until(agent, task.task_id, TaskState.CANCELED)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_failed_task_has_the_agents_reason(dialect: str) -> None:
    async with local_hub(worker()) as t:
        failed = await asked(t, client(t, dialect), "fail")
        assert (failed.state, failed.error) == (TaskState.FAILED, "the disk is full")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_unknown_skill_is_refused_with_the_dispatchers_error(dialect: str) -> None:
    async with local_hub(worker()) as t:
        refused = await asked(t, client(t, dialect), "ech")
        state = TaskState.FAILED if dialect == "0.1" else TaskState.REJECTED
        assert refused.state is state
        assert {"“ech”", "“echo”?)"} <= set((refused.error or "").split())


async def test_a_message_to_a_task_without_a_question_is_refused() -> None:
    async with ready_hub(worker()) as t:
        agent = client(t)
        task = await begun(agent, message("go", "ponder"))
        await asyncio.sleep(1)
        with pytest.raises(InvalidParams):
            await agent.call(message("more", None, task_id=task.task_id))


# owners


async def test_an_agents_key_makes_requests_in_its_name_and_sees_only_its_own_tasks() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        mine = client(t, key=AVA)
        task = await begun(mine, message("go", systemActor="root"))
        await until(mine, task.task_id, TaskState.COMPLETED)
        (outcome,) = await t.ledger.outcomes(since=EPOCH)
        assert outcome.system_actor == "ava"
        cid = task.metadata["correlationId"]
        assert [(await t.http("GET", f"/api/tasks/{cid}", key=key)).status for key in (AVA, QUINN)] == [200, 404]
        for other in (client(t, key=QUINN), client(t)):
            with pytest.raises(TaskNotFound):
                await other.call(GetTask(task_id=task.task_id))
        with pytest.raises(AuthRefused):
            await client(t, "0.3", key="x" * 40).call(message("go"))


# -- hubs behind hubs


@asynccontextmanager
async def chained(*agents: Agent, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[LocalHub, LocalHub]]:
    """A hub with one agent, which is a hub with ``agents``: returns the near one and the far one."""
    monkeypatch.setenv("FAR_KEY", QUINN)
    async with ready_hub(*agents, agent_keys=ENV) as far:
        runtime = virtual_runtime(7, far.network, name="near")
        far.network.addresses["near.example"] = ("93.184.216.35",)
        fleet = AgentEntry(name="fleet", url=HUB + "/a2a", auth=AuthEntry(scheme="apiKey", credentials_env="FAR_KEY"))
        config = FleetConfig(agents=(fleet,), settings=FleetSettings(base_url=NEAR))
        storage = InlineStorage(opener(None))
        async with SqliteLedger(storage, LedgerLimits()) as ledger:
            hub = Hub(config, runtime, ledger, keys=replace(KEYS, callback={1: b"n" * 32}), url=NEAR)
            far.network.mount(NEAR, build_app(hub))
            async with hub:
                await asyncio.sleep(1)
                yield LocalHub(far.network, runtime, far.files, ledger, hub, storage), far


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_work_goes_through_two_hubs_and_is_recorded_in_both(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chained(worker(), monkeypatch=monkeypatch) as (near, far):
        done = await client(near, dialect, at=NEAR).send_task("hi", metadata={"skillHint": "echo"})
        assert done.text == "you said hi"
        (here,), (there,) = [await t.ledger.outcomes(since=EPOCH) for t in (near, far)]
        assert (here.agent, here.cost_usd, here.success) == ("fleet", 0.25, True)
        assert (there.agent, there.cost_usd, there.system_actor) == ("quinn", 0.25, "quinn")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_question_comes_through_two_hubs_and_its_answer_goes_back(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chained(worker(), monkeypatch=monkeypatch) as (near, far):
        agent = client(near, dialect, at=NEAR)
        task = await begun(agent, message("go", "ask", task_id="t-1" if dialect == "0.1" else None))
        waiting = await until(agent, task.task_id, TaskState.INPUT_REQUIRED)
        assert waiting.status.message is not None
        assert waiting.status.message.text == "which branch?"
        await agent.call(message("main", None, task_id=task.task_id))
        assert (await until(agent, task.task_id, TaskState.COMPLETED)).text == "going with main"
        assert far.hub.tracker.tracks() == ()


@pytest.mark.slow
async def test_a_failure_and_a_cancel_go_through_two_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with chained(worker(), monkeypatch=monkeypatch) as (near, far):
        agent = client(near, at=NEAR)
        failed = await agent.send_task("x", metadata={"skillHint": "fail"})
        assert (failed.state, failed.error) == (TaskState.FAILED, "the disk is full")
        task = await begun(agent, message("go", "ponder"))
        await asyncio.sleep(5)
        await agent.cancel(task.task_id)
        await asyncio.sleep(5)
        assert [(await t.ledger.outcomes(since=EPOCH))[-1].kind for t in (near, far)] == [OutcomeKind.CANCELED] * 2


async def test_a_refused_cancel_is_quoted_through_two_hubs_and_the_task_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with chained(worker(interceptors=(Stubborn,)), monkeypatch=monkeypatch) as (near, far):
        agent = client(near, at=NEAR)
        task = await begun(agent, message("go", "ponder"))
        await asyncio.sleep(5)
        for _ in range(2):
            with pytest.raises(TaskNotCancelable, match="cancel is not supported yet"):
                await agent.cancel(task.task_id)
        await until(agent, task.task_id, TaskState.COMPLETED)
        for t in (near, far):
            (outcome,) = await t.ledger.outcomes(since=EPOCH)
            assert (outcome.kind, len(outcome.warnings)) == (OutcomeKind.COMPLETED, 1)


async def test_a_hub_sends_no_work_to_itself_even_as_an_agent_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_KEY", KEY)
    me = f"  - name: me\n    url: {HUB}/a2a\n    apiKeyEnv: HUB_KEY\n    skills: [spin]\n"
    async with ready_hub(agents_yaml=fleet(me)) as t:
        refused = await client(t).send_task("go", metadata={"skillHint": "spin"})
        assert refused.state is TaskState.REJECTED
        with pytest.raises(UnknownTarget):
            await t.remote.submit({"text": "go", "targets": ["me"]})
        assert await t.ledger.outcomes(since=EPOCH) == ()


@pytest.mark.parametrize("dialect", ["1.0", "0.3"])
async def test_work_does_not_return_to_a_hub_it_came_from_and_no_agent_is_blamed(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near and far are each other's agents, and near lists a skill for far that only near itself offers."""
    async with chained(worker(), monkeypatch=monkeypatch) as (near, far):
        monkeypatch.setenv("NEAR_KEY", KEY)
        back = AgentEntry(
            name="near",
            url=f"{NEAR}/a2a",
            auth=AuthEntry(scheme="apiKey", credentials_env="NEAR_KEY"),
            skills=(SkillEntry(name="spin"), SkillEntry(name="echo")),
            wire=dialect,
        )
        far.hub.fleet.config = replace(far.hub.config, agents=(*far.hub.config.agents, back))
        far.hub.broker.apply(far.hub.config)
        await asyncio.sleep(2)
        await near.hub.broker.refresh("fleet")
        before = len(near.network.seen)
        for n in range(5):
            (cid,) = await near.hub.submit(
                SkillRequest(correlation_id=f"c-{n}", text="hi", skill="echo", targets=("fleet",))
            )
            assert (await near.hub.tracker.wait(cid)).text == "you said hi"
        (cid,) = await near.hub.submit(SkillRequest(correlation_id="c-9", text="x", skill="spin", targets=("fleet",)))
        outcome = await near.hub.tracker.wait(cid)
        assert (outcome.kind, outcome.cause, outcome.blame) == (
            OutcomeKind.REJECTED,
            Cause.REQUEST_WRONG,
            Blame.CALLER,
        )
        sent_back = [r for r in list(near.network.seen)[before:] if r.url.startswith(NEAR) and r.method == "POST"]
        assert [r for r in sent_back if r.url.endswith("/a2a")] == []


async def test_a_request_that_passed_too_many_hubs_is_blamed_on_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async with chained(worker(), monkeypatch=monkeypatch) as (near, _):
        passed = {"skillHint": "echo", "fleetsim.hubs": ["h1", "h2", "h3"]}
        done = await client(near, at=NEAR).send_task("go", metadata=passed)
        assert done.state is TaskState.FAILED
        (outcome,) = await near.ledger.outcomes(since=EPOCH)
        assert (outcome.cause, outcome.blame) == (Cause.REQUEST_WRONG, Blame.CALLER)
        assert near.events("agent.push.degraded") == [], "the webhook is not to blame"
        (quinn,) = near.hub.snapshot().agents
        assert (quinn.answered_outcomes, quinn.health) == (0, "up")


@pytest.mark.parametrize(
    ("header", "told", "passes"),
    [
        ("a,b,c", [], True),
        ("a, b, c, d", [], False),
        (None, ["a", "b", "c"], True),
        (None, ["a", "b", "c", "d"], False),
        ("a", ["a", "b", "c", "d"], False),
        ("a b", [], False),
        (None, ["x" * 65], False),
        (None, [7], False),
        (None, "a", False),
    ],
)
async def test_at_most_four_hubs_pass_a_request_on(header: str | None, told: Any, passes: bool) -> None:
    async with ready_hub(worker()) as t:
        agent = client(t, headers={"X-Fleetsim-Hubs": header} if header else {})
        call = message("go", **({"fleetsim.hubs": told} if told else {}))
        if passes:
            await begun(agent, call)
            return
        with pytest.raises(InvalidParams):
            await agent.call(call)
        await asyncio.sleep(5)
        assert await t.ledger.outcomes(since=EPOCH) == ()


async def test_an_agent_behind_a_hub_sees_the_hubs_on_the_way_in_header_and_metadata() -> None:
    told: list[Any] = []
    agent = worker()

    @agent.skill("tell")
    async def tell(task: SkillContext) -> str:
        told.append(task.metadata.get("fleetsim.hubs"))
        return ""

    def door(app: App) -> App:
        async def noted(scope: Any, receive: Any, send: Any) -> None:
            told.extend(
                value.decode().split(",") for name, value in scope.get("headers", ()) if name == b"x-fleetsim-hubs"
            )
            await app(scope, receive, send)

        return noted

    async with ready_hub(agent, door=door) as t:
        await client(t, "0.3").send_task("go", metadata={"skillHint": "tell", "fleetsim.hubs": ["h1", "h2"]})
        assert len(told) >= 2
        assert all(hubs == ["h1", "h2", KEYS.hub_id] for hubs in told)
        told.clear()
        (cid,) = await t.remote.submit({"text": "x", "skill": "tell"})
        await t.hub.tracker.wait(cid)
        assert told == [None], "work of the hub's own has come through none"


# a restart during a task


@pytest.mark.slow
async def test_a_task_continues_over_a_restart_under_the_same_id(tmp_path: Path) -> None:
    async with ready_hub(worker(), a2a_state=tmp_path / "a2a.db") as t:
        agent = client(t)
        task = await begun(agent, message("go", "ponder"))
        await asyncio.sleep(5)
        await t.restart()
        again = await until(agent, task.task_id, TaskState.COMPLETED)
        assert (again.text, again.metadata["correlationId"]) == ("at last", task.metadata["correlationId"])
        assert len(await t.ledger.outcomes(since=EPOCH)) == 1


async def test_a_question_keeps_its_message_id_and_its_time_over_a_restart(tmp_path: Path) -> None:
    async with ready_hub(worker(), a2a_state=tmp_path / "a2a.db") as t:
        agent = client(t)
        task = await begun(agent, message("go", "ask"))
        asked = await until(agent, task.task_id, TaskState.INPUT_REQUIRED)
        await t.restart()
        for _ in range(3):
            assert (await until(agent, task.task_id, TaskState.INPUT_REQUIRED)).status == asked.status
            await asyncio.sleep(5)


async def test_a_question_answered_elsewhere_over_a_restart_is_closed(tmp_path: Path) -> None:
    async with ready_hub(worker(), a2a_state=tmp_path / "a2a.db") as t:
        agent = client(t)
        task = await begun(agent, message("go", "ask"))
        await until(agent, task.task_id, TaskState.INPUT_REQUIRED)
        await t.restart()
        (question,) = (await t.remote.get("/inbox"))["questions"]
        await t.remote.answer(question["questionId"], "main")
        assert (await until(agent, task.task_id, TaskState.COMPLETED)).text == "going with main"


@pytest.mark.slow
async def test_streams_and_waiting_calls_end_with_the_hub_and_the_task_does_not(tmp_path: Path) -> None:
    async with ready_hub(worker(), a2a_state=tmp_path / "a2a.db") as t:
        agent, waiting = client(t), client(t, "1.0")

        async def listen() -> list[TaskEvent]:
            async with agent.events(message("go", "ponder")) as events:
                return [event async for event in events]

        async def wait() -> object:
            return await waiting.call(structs.replace(message("stay", "ponder"), wait=True), timeout_s=400)

        listening, staying = asyncio.ensure_future(listen()), asyncio.ensure_future(wait())
        await asyncio.sleep(5)
        await t.hub.stop_streams()
        async with asyncio.timeout(5):
            heard, stayed = await listening, await staying
        assert isinstance(stayed, Task)
        assert stayed.state is TaskState.WORKING
        (task_id,) = {event.task.task_id for event in heard if isinstance(event, Snapshot)}
        await t.restart()
        for task in (task_id, stayed.task_id):
            assert (await until(agent, task, TaskState.COMPLETED)).text == "at last"


# a kill during a task: the disk has the state of a moment before


@asynccontextmanager
async def on_disk(t: LocalHub, path: Path) -> AsyncIterator[Store]:
    """The tasks in the state file of a hub that is not running."""
    store = Store(clock=t.runtime.clock, ids=t.runtime.ids, limits=AgentLimits())
    file = TaskFile(path, store.read)
    store.restore(await file.open())
    store.keepers.append(file.note)
    try:
        yield store
    finally:
        await file.close()


async def test_an_accepted_task_without_a_dispatch_is_dispatched_after_the_restart(tmp_path: Path) -> None:
    async with local_hub(worker(), a2a_state=tmp_path / "a2a.db") as t:
        said = Message(message_id="m", role=Role.USER, parts=(TextPart(text="x"),), metadata={"skillHint": "echo"})

        async def taken() -> None:
            async with on_disk(t, tmp_path / "a2a.db") as store:
                told = {"correlationId": "c-9"}
                store.create("admin", said, skill="fleet", dialect="1.0", task_id="t-9", metadata=told)

        await t.restart(taken)
        assert (await until(client(t), "t-9", TaskState.COMPLETED)).text == "you said x"
        (outcome,) = await t.ledger.outcomes(since=EPOCH)
        assert outcome.correlation_id == "c-9"


async def test_a_cancel_that_did_not_reach_the_request_reaches_it_after_the_restart(tmp_path: Path) -> None:
    async with ready_hub(worker(), a2a_state=tmp_path / "a2a.db") as t:
        task = await begun(client(t), message("go", "ponder"))
        await asyncio.sleep(5)

        async def canceled() -> None:
            async with on_disk(t, tmp_path / "a2a.db") as store:
                store.cancel(("admin", task.task_id))

        await t.restart(canceled)
        await asyncio.sleep(5)
        (outcome,) = await t.ledger.outcomes(since=EPOCH)
        assert outcome.kind is OutcomeKind.CANCELED


async def test_an_accepted_answer_that_was_not_passed_on_is_passed_on_after_the_restart(tmp_path: Path) -> None:
    async with ready_hub(worker(), a2a_state=tmp_path / "a2a.db") as t:
        agent = client(t)
        task = await begun(agent, message("go", "ask"))
        await until(agent, task.task_id, TaskState.INPUT_REQUIRED)

        async def answered() -> None:
            async with on_disk(t, tmp_path / "a2a.db") as store:
                said = Message(message_id="a", role=Role.USER, parts=(TextPart(text="main"),), task_id=task.task_id)
                store.add_message(("admin", task.task_id), said)

        await t.restart(answered)
        assert (await until(agent, task.task_id, TaskState.COMPLETED)).text == "going with main"


@pytest.mark.parametrize("path", ["/a2a", "/a2a/message:send"])
async def test_a_body_that_is_not_json_is_refused_in_the_form_of_the_binding(path: str) -> None:
    async with local_hub(worker()) as t:
        reply = await t.http("POST", path, b"{}", {"content-type": "text/plain", "a2a-version": "1.0"})
        error = json.loads(reply.body)["error"]
        code = {"/a2a": -32005, "/a2a/message:send": 400}[path]
        field = "data" if path == "/a2a" else "details"
        assert (error["code"], error[field][0]["reason"]) == (code, "CONTENT_TYPE_NOT_SUPPORTED")
