"""Allow-lists of keys and ceremonies at every door: a name off the list gets the answer of a name that nobody has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from fleetsim.model.call import CancelTask, GetExtendedCard, GetTask, ListTasks, TaskPage
from fleetsim.model.card import AgentCard
from fleetsim.model.errors import TaskNotFound
from fleetsim.model.event import ArtifactUpdate
from fleetsim.model.task import TaskState
from tests.hub.local_hub import AGENTS, KEY, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_a2a import begun, client, message, until
from tests.hub.test_agent_keys import AVA, ENV
from tests.hub.test_first_cards import SlowCards
from tests.hub.test_ownership import ask, told
from tests.hub.test_reload import SOON_S, edit, fleet
from tests.hub.test_reload import entry as entry_of

LIST = "keys: {ava: {may: [{agent: quinn, skills: [echo, ponder]}]}}\n"
FLEET = fleet(entry_of("quinn"), entry_of("mel"))
HIDDEN = {"agent": ("mel", "sid"), "skill": ("secret", "sesame"), "skill of quinn": ("fail", "fuel")}
"""Names off the list, each with a name that nobody has."""


def mel() -> Agent:
    agent = worker("mel")

    @agent.skill("secret")
    async def secret(task: SkillContext) -> str:
        return "mel knows"

    return agent


@asynccontextmanager
async def listed(lists: str = LIST, **more: Any) -> AsyncIterator[LocalHub]:
    async with ready_hub(worker(), mel(), agents_yaml=FLEET + lists, agent_keys=ENV, **more) as t:
        yield t


async def http(t: LocalHub, path: str, body: Any = None, *, key: str = AVA) -> str:
    method = "GET" if body is None else "POST"
    reply = await t.http(method, path, json.dumps(body).encode() if body is not None else b"", key=key)
    return f"{reply.status} {reply.body.decode()}"


def post(path: str, **body: Any) -> Callable[[LocalHub, str], Awaitable[str]]:
    """A door that takes the name in the place of NAME."""
    return lambda t, name: http(t, path, json.loads(json.dumps(body).replace("NAME", name)))


def get(path: str) -> Callable[[LocalHub, str], Awaitable[str]]:
    return lambda t, name: http(t, path.replace("NAME", name))


def tool(tool: str, **arguments: str) -> Callable[[LocalHub, str], Awaitable[str]]:
    async def call(t: LocalHub, name: str) -> str:
        filled = {key: value.replace("NAME", name) for key, value in arguments.items()}
        result = await t.agents_client(AVA).call(tool, filled)
        return f"{result.is_error} {result.text} {result.data}"

    return call


def a2a(dialect: str) -> Callable[[LocalHub, str], Awaitable[str]]:
    async def send(t: LocalHub, name: str) -> str:
        agent = client(t, dialect, key=AVA)
        named = f"t-{name}" if dialect == "0.1" else None
        task = await begun(agent, message("x", name, task_id=named))
        ended = await until(agent, task.task_id, TaskState.REJECTED, TaskState.FAILED, TaskState.COMPLETED)
        assert ended.status.message is not None
        return f"{ended.state} {ended.status.message.text}"

    return send


def ceremony(**keys: Any) -> Callable[[LocalHub, str], Awaitable[str]]:
    """Create a ceremony, show it, try it, fire it, and remove it."""

    async def door(t: LocalHub, name: str) -> str:
        values = {"id": "a.b", "name": "x", "schedule": "0 0 1 1 *", **keys}
        said = [await http(t, "/api/ceremonies/create", json.loads(json.dumps(values).replace("NAME", name)))]
        said += [await http(t, "/api/ceremonies"), await http(t, "/api/ceremonies/a.b/run", {"dryRun": True})]
        said += [await http(t, "/api/ceremonies/a.b/run", {}), await http(t, "/api/ceremonies/a.b/delete", {})]
        return " ".join(said)

    return door


AGENT_DOORS = {
    "request": post("/api/requests", text="x", targets=["NAME"], skill="echo"),
    "request without a skill": post("/api/requests", text="x", targets=["NAME"]),
    "one of two targets": post("/api/requests", text="x", targets=["quinn", "NAME"], skill="echo"),
    "follow-up": post("/api/requests", text="x", targets=["NAME"], taskId="t-1"),
    "conversation": post("/api/requests", text="x", targets=["NAME"], contextId="c-1"),
    "chat": post("/api/a2a/chat", agent="NAME", message="x"),
    "delegate": post("/api/a2a/delegate", agent="NAME", skill="echo", message="x"),
    "skills": get("/api/skills?agent=NAME"),
    "search": get("/api/skills?text=NAME"),
    "tool chat": tool("chat_with_agent", agent="NAME", message="x"),
    "tool delegate": tool("delegate", agent="NAME", skill="echo", message="x"),
    "tool skills": tool("find_skills", agent="NAME"),
    "ceremony": ceremony(skill="echo", targets=["NAME"]),
}
SKILL_DOORS = {
    "request": post("/api/requests", text="x", skill="NAME"),
    "request to an agent": post("/api/requests", text="x", skill="NAME", targets=["quinn"]),
    "broadcast": post("/api/requests", text="x", skill="NAME", targets=["all"]),
    "chat": post("/api/a2a/chat", agent="quinn", skill="NAME", message="x"),
    "delegate": post("/api/a2a/delegate", agent="quinn", skill="NAME", message="x"),
    "search": get("/api/skills?text=NAME"),
    "tool chat": tool("chat_with_agent", agent="quinn", skill="NAME", message="x"),
    "tool skills": tool("find_skills", text="NAME"),
    "ceremony": ceremony(skill="NAME", targets=["quinn"]),
    "ceremony for all": ceremony(skill="NAME"),
    **{f"A2A {dialect}": a2a(dialect) for dialect in ("1.0", "0.3", "0.1")},
}
DOORS = [("agent", door) for door in AGENT_DOORS] + [(k, d) for k in ("skill", "skill of quinn") for d in SKILL_DOORS]


@pytest.mark.parametrize(("kind", "door"), DOORS, ids=lambda part: part)
async def test_a_hidden_name_gets_the_answer_of_an_unknown_one_at_every_door(kind: str, door: str) -> None:
    use = (AGENT_DOORS if kind == "agent" else SKILL_DOORS)[door]
    answers = []
    for name in HIDDEN[kind]:
        async with listed() as t:  # each in a hub of its own, with the same ids and the same chance
            began = t.runtime.clock.monotonic()
            said = await use(t, name)
            answers.append((re.sub(rf"\b{name}\b", "NAME", said), t.runtime.clock.monotonic() - began))
            others = {one for pair in HIDDEN.values() for one in pair} - {name}
            assert not [other for other in others if re.search(rf"\b{other}\b", said)], said
            if kind != "agent":
                assert "mel" not in said
    assert answers[0] == answers[1]


async def test_lists_of_agents_and_skills_leave_out_hidden_ones() -> None:
    async with listed() as t:
        paths = ("/api/agents", "/api/skills", "/api/state", "/.well-known/agent-card.json")
        shown = [await http(t, path) for path in paths]
        card = await client(t, "1.0", key=AVA).call(GetExtendedCard())
        assert isinstance(card, AgentCard)
        shown += [repr(card), repr(await t.agents_client(AVA).call("list_agents", {}))]
        for text in shown:
            assert "quinn" in text
            assert not re.search(r"\b(mel|secret|fail)\b", text), text
        assert [skill.skill_id for skill in card.skills] == ["echo", "ponder"]
        for path in paths:
            assert re.search("secret", await http(t, path, key=KEY)), path


async def test_all_and_a_skill_alone_mean_the_agents_of_the_list() -> None:
    async with listed() as t:
        for body in [{"targets": ["all"]}, *[{"targets": []}] * 5]:
            status, said = await ask(t, AVA, skill="echo", **body)
            assert status == 202
            records = [await t.ledger.request(cid) for cid in said["data"]["correlationIds"]]
            assert [record.agent for record in records if record] == ["quinn"]


async def test_a_request_without_a_skill_does_not_let_the_agent_choose_one_off_the_list() -> None:
    async with listed() as t:
        assert (await ask(t, AVA))[0] == 404
        await edit(t, FLEET + LIST.replace(", ponder", ""))
        status, said = await ask(t, AVA)
        assert status == 202, said
        record = await t.ledger.request(said["data"]["correlationIds"][0])
        assert record is not None
        assert (record.skill, record.hint) == ("echo", "echo")


async def test_no_wait_for_a_card_shows_that_an_agent_exists() -> None:
    async with local_hub(worker(), mel(), agents_yaml=FLEET + LIST, agent_keys=ENV, door=SlowCards(0, 8)) as t:
        for body in ({"targets": ["mel"]}, {"targets": ["sid"]}, {"skill": "secret", "targets": []}):
            began = t.runtime.clock.monotonic()
            assert (await ask(t, AVA, **body))[0] == 404
            assert t.runtime.clock.monotonic() - began < 1


async def test_a_list_that_becomes_shorter_hides_earlier_work_at_every_door() -> None:
    wide = "keys: {ava: {may: [{agent: quinn}, {agent: mel, skills: [secret]}]}}\n"
    async with listed(wide) as t:
        agent = client(t, "1.0", key=AVA)
        task = await begun(agent, message("x", "secret"))
        other = await begun(agent, message("y", "ponder"))
        cid = (await ask(t, AVA, skill="secret", targets=["mel"]))[1]["data"]["correlationIds"][0]
        made = {"id": "a.b", "name": "x", "schedule": "0 0 1 1 *", "skill": "secret", "targets": ["all"]}
        assert (await http(t, "/api/ceremonies/create", made)).startswith("200")
        assert (await http(t, "/api/ceremonies/a.b/run", {})).startswith("200")
        await asyncio.sleep(5)
        assert "mel knows" in await http(t, f"/api/tasks/{cid}")
        ((child,),) = [run.children for run in await t.ledger.runs("a.b")]
        assert child in await http(t, "/api/ceremonies")
        remote = (await t.ledger.outcome(cid)).task_id  # type: ignore[union-attr]
        await edit(t, FLEET + LIST)
        await asyncio.sleep(SOON_S)
        for path in ("/api/tasks/ID", "/api/a2a/task/ID", "/api/tasks/ID?wait=1"):
            assert (await http(t, path.replace("ID", cid))).replace(cid, "ID") == await http(t, path)
        for path in ("/api/tasks/ID/cancel", "/api/tasks/ID/retry"):
            assert (await http(t, path.replace("ID", cid), {})).replace(cid, "ID") == await http(t, path, {})
        for named in ({"taskId": remote}, {"contextId": cid}):
            assert (await ask(t, AVA, targets=["mel"], **named))[0] == 404
        for call in (GetTask(task_id=task.task_id), CancelTask(task_id=task.task_id)):
            with pytest.raises(TaskNotFound):
                await agent.call(call)
        with pytest.raises(TaskNotFound):
            await agent.call(message("z", "secret", task_id=task.task_id))
        page = await agent.call(ListTasks())
        assert isinstance(page, TaskPage)
        assert ([one.task_id for one in page.tasks], page.total_size) == ([other.task_id], 1)
        state = await http(t, "/api/state")
        events = json.dumps(await told(t, AVA, 1_000))
        rows = await http(t, "/api/ceremonies") + await http(t, "/api/ceremonies/a.b/runs")
        assert not re.search(rf"mel\b|{cid}|{child}|mel knows", state + events + rows)
        assert "mel knows" in await http(t, f"/api/tasks/{cid}", key=KEY)


async def test_a_list_that_becomes_shorter_ends_streams_of_hidden_work() -> None:
    agent = worker()

    @agent.skill("recite")
    async def recite(task: SkillContext) -> None:
        for word in ("one ", "two ", "three"):
            await task.say(word)
            await asyncio.sleep(60)

    wide = FLEET + "keys: {ava: {may: [{agent: quinn}]}}\n"
    async with local_hub(agent, mel(), agents_yaml=wide, agent_keys=ENV) as t:
        await asyncio.sleep(1)
        heard = []
        async with client(t, "1.0", key=AVA).events(message("go", "recite")) as events:
            async for event in events:
                heard.append(event.artifact.text if isinstance(event, ArtifactUpdate) else "")
                if "one" in heard[-1]:
                    await edit(t, FLEET + LIST)
        assert [text.strip() for text in heard if text] == ["one"]
        assert (await t.hub.tracker.wait(next(iter(t.hub.tracker.open_tracks)))).text == "one two three"


CEREMONY = """
id: board.health
name: Board
schedule: "0 0 1 1 *"
skill: echo
targets: [quinn, mel]
"""


@pytest.mark.parametrize("targets", ["[quinn, mel]", "[all]", "[mel]", "[nobody]"])
async def test_a_ceremony_fires_only_for_its_list_and_its_run_has_the_reason(targets: str) -> None:
    lists = "ceremonies: {board.health: {may: [{agent: quinn, skills: [echo]}]}}\n"
    text = CEREMONY.replace("[quinn, mel]", targets)
    async with listed(lists, ceremony=text) as t:
        (row,) = await t.remote.ceremonies()
        reply = await t.http("POST", "/api/ceremonies/board.health/run", b"{}")
        await asyncio.sleep(5)
        asked = [row["agent"] for row in (await t.remote.get("/tasks"))["recent"]]
        assert asked == (["quinn"] if "quinn" in targets or "all" in targets else [])
        if targets == "[all]":
            assert (row.warnings, reply.status) == ((), 200)
            return
        name = "nobody" if "nobody" in targets else "mel"
        reason = f"ceremony “board.health” may not use the skill “echo” of {name}"
        assert reason in row.warnings[0]
        runs = await t.remote.ceremony_runs("board.health")
        assert reason in (runs[0].error if runs else reply.body.decode())
        assert (reply.status, len(runs)) == ((200, 1) if asked else (404, 0))


async def test_a_due_ceremony_off_its_list_fails_with_the_reason() -> None:
    lists = "ceremonies: {board.health: {may: []}}\n"
    text = CEREMONY.replace('schedule: "0 0 1 1 *"', 'schedule: "* * * * *"')
    async with listed(lists, ceremony=text) as t:
        await asyncio.sleep(120)
        run = (await t.remote.ceremony_runs("board.health"))[0]
        assert run.status == "failure"
        assert "may not use" in run.error
        assert not (await t.remote.get("/tasks"))["recent"]
        assert "may not use" in json.dumps(await told(t, KEY, 1_000), ensure_ascii=False)


async def test_a_fleet_that_denies_by_default_opens_to_lists_only() -> None:
    denies = FLEET.replace("fleet: {", "fleet: {deny_by_default: true, ")
    async with listed("", ceremony=CEREMONY) as t:
        assert (await ask(t, AVA, skill="echo"))[0] == 202
        await edit(t, denies)
        await asyncio.sleep(SOON_S)
        assert json.loads((await http(t, "/api/agents")).partition(" ")[2])["data"] == []
        assert [(await ask(t, key, skill="echo"))[0] for key in (AVA, KEY)] == [404, 202]
        assert "may not use" in (await t.remote.ceremonies())[0].warnings[0]
        assert (await t.http("POST", "/api/ceremonies/board.health/run", b"{}")).status == 404
        await edit(t, denies + LIST)
        assert (await ask(t, AVA, skill="echo"))[0] == 202
        t.files.put(AGENTS, denies + "keys: {ava: {may: nonsense}}\n")
        await asyncio.sleep(SOON_S)
        assert (await ask(t, AVA, skill="echo", targets=["mel"]))[0] == 404, "the last good lists stay"


async def test_a_fallback_off_the_list_gets_no_work() -> None:
    policy = "skills: [{name: echo, fallback: [mel]}]"
    agents = fleet(entry_of("quinn", policy), entry_of("mel"))
    async with ready_hub(worker(), mel(), agents_yaml=agents + LIST, agent_keys=ENV) as t:
        t.network.down("http://quinn.example:8000")
        for key, agent in ((AVA, "quinn"), (KEY, "mel")):
            (cid,) = (await ask(t, key, skill="echo"))[1]["data"]["correlationIds"]
            assert (await t.hub.tracker.wait(cid)).agent == agent
