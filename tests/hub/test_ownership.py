"""An agent's key reaches the things that it created; those of others are not found."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.hub.keys import API_KEY_HEADER
from fleetsim.model.errors import UnknownTarget
from fleetsim.model.work import SkillRequest
from fleetsim.runtime.ports import Limits, Request
from fleetsim.runtime.sse import read_events
from tests.hub.local_hub import HUB, KEY, LocalHub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN


async def ask(t: LocalHub, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
    reply = await t.http(
        "POST", "/api/requests", json.dumps({"text": "x", "targets": ["quinn"], **body}).encode(), key=key
    )
    return reply.status, json.loads(reply.body)


async def made(t: LocalHub, key: str, **body: Any) -> str:
    status, said = await ask(t, key, **body)
    assert status == 202, said
    (cid,) = said["data"]["correlationIds"]
    return str(cid)


async def get(t: LocalHub, key: str, path: str) -> tuple[int, dict[str, Any]]:
    reply = await t.http("GET", path, key=key)
    return reply.status, json.loads(reply.body)


async def test_the_key_decides_the_requester_and_the_body_does_not() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        cid = await made(t, AVA, skill="echo", systemActor="operator", interface="cli", dispatcherAgent="quinn")
        record = await t.ledger.request(cid)
        assert record is not None
        request = record.request
        assert (request.system_actor, request.source.user_id, request.source.interface) == ("ava", "ava", "api")
        assert request.dispatcher_agent == "ava"
        of_admin = await made(t, KEY, skill="echo", systemActor="ava")
        assert (await get(t, AVA, f"/api/tasks/{of_admin}"))[0] == 404


@pytest.mark.parametrize("state", ["open", "ended"])
@pytest.mark.parametrize("wait", ["", "?wait=1"])
async def test_a_request_is_visible_to_its_owner_and_the_hubs_owner(state: str, wait: str) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        cid = await made(t, AVA, skill="ponder" if state == "open" else "echo")
        await asyncio.sleep(3)
        path = f"/api/tasks/{cid}{wait}"
        assert [(await get(t, key, path))[0] for key in (KEY, AVA, QUINN)] == [200, 200, 404]
        _, foreign = await get(t, QUINN, path)
        _, unknown = await get(t, QUINN, f"/api/tasks/unknown{wait}")
        assert foreign == {**unknown, "error": unknown["error"].replace("unknown", cid)}


async def test_only_its_owner_cancels_a_request() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        cid = await made(t, AVA, skill="ponder")
        assert (await t.http("POST", f"/api/tasks/{cid}/cancel", b"{}", key=QUINN)).status == 404
        await asyncio.sleep(2)
        assert t.hub.tracker.track(cid) is not None
        assert (await t.http("POST", f"/api/tasks/{cid}/cancel", b"{}", key=AVA)).status == 202
        await t.hub.tracker.wait(cid)
        for key, status in ((AVA, 409), (QUINN, 404)):
            assert (await t.http("POST", f"/api/tasks/{cid}/cancel", b"{}", key=key)).status == status
        with pytest.raises(UnknownTarget, match="ended"):
            await t.remote.cancel(cid)
        assert (await t.hub.tracker.wait(cid)).kind == "canceled"


async def waiting(t: LocalHub, key: str) -> tuple[str, str, str]:
    """A request that asks a question: its id, and its task and context at the agent."""
    cid = await made(t, key, skill="ask")
    await asyncio.sleep(3)
    track = t.hub.tracker.track(cid)
    assert track is not None
    assert track.record.task is not None
    return cid, track.record.task.task_id, track.record.task.context_id


@pytest.mark.parametrize("key", [KEY, QUINN], ids=["of the owner", "of another agent"])
async def test_a_question_of_another_owners_request_cannot_be_answered(key: str) -> None:  # T-40
    async with ready_hub(worker(), agent_keys=ENV) as t:
        cid, task_id, _ = await waiting(t, key)
        assert (await ask(t, AVA, taskId=task_id))[0] == 404
        track = t.hub.tracker.track(cid)
        assert track is not None
        assert track.asking.question is not None


@pytest.mark.parametrize("state", ["open", "ended"])
async def test_a_conversation_is_continued_only_by_its_owner(state: str) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        cid = await made(t, AVA, skill="ponder" if state == "open" else "echo", conversation=True)
        await asyncio.sleep(3)
        row = (await get(t, AVA, f"/api/tasks/{cid}"))[1]["data"]
        context = row["contextId"]
        assert [(await ask(t, key, skill="echo", contextId=context))[0] for key in (QUINN, AVA, KEY)] == [404, 202, 202]
        assert (await ask(t, QUINN, skill="echo", contextId=context, targets=[]))[0] == 404
        assert (await ask(t, QUINN, skill="echo", contextId=context, targets=["all"]))[0] == 404
        assert (await ask(t, QUINN, skill="echo", taskId=row["taskId"]))[0] == 404
        assert (await ask(t, QUINN, skill="echo", correlationId=context))[0] == 400, "its id would be its context"


async def test_a_task_without_an_owner_cannot_be_continued_by_an_agent() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        assert (await ask(t, AVA, taskId="t-1"))[0] == 404
        assert (await ask(t, AVA, skill="echo", contextId="c-1"))[0] == 404
        assert (await ask(t, KEY, skill="echo", contextId="c-1"))[0] == 202


async def told(t: LocalHub, key: str, count: int, query: str = "?after=0") -> list[dict[str, Any]]:
    """The first events of a stream with this key; fewer if no more come within a minute."""
    sent = Request(
        method="GET",
        url=f"{HUB}/api/events{query}",
        headers={API_KEY_HEADER: key},
        limits=Limits(total_s=None, body_bytes_max=2**30),
        streaming=True,
    )
    found: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(60), t.runtime.transport.open(sent) as incoming:
            assert incoming.status == 200
            async for event in read_events(incoming):
                found.append(json.loads(event.data))
                assert event.id == str(found[-1]["seq"])
                if len(found) == count:
                    break
    except TimeoutError:
        pass
    return found


@pytest.mark.parametrize("when", ["live", "from memory", "from the journal"])
async def test_an_agent_gets_events_of_its_own_requests_only(when: str) -> None:
    async with ready_hub(worker(), agent_keys=ENV, ceremony=None) as t:
        listening = asyncio.ensure_future(told(t, AVA, 1_000, "")) if when == "live" else None
        await asyncio.sleep(1)
        mine, theirs, owners = await made(t, AVA, skill="echo"), await made(t, QUINN, skill="echo"), "c-admin"
        await t.hub.submit(SkillRequest(correlation_id=owners, text="x", skill="echo", targets=("quinn",)))
        await asyncio.sleep(3)
        if when == "from the journal":
            await t.restart()
        found = await (listening if listening is not None else told(t, AVA, 1_000))
        about = {event["correlationId"] for event in found if event["topic"] != "hub.stopping"}
        assert about == {mine}
        assert "agent.skill.request" in {event["topic"] for event in found}
        assert "autonomous.outcome.ava.echo" in {event["topic"] for event in found}
        assert theirs
