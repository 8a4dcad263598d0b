"""Workstacean's paths: the requests and responses of its own clients, without its faults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleetsim.agent import Agent, SkillContext
from tests.hub.local_hub import KEY, LocalHub, local_hub, ready_hub, worker
from tests.hub.test_agent_keys import AVA, ENV, QUINN

CEREMONY = 'id: a.daily-digest\nname: Digest\nschedule: "@yearly"\nskill: echo\ntargets: [quinn]\n'


async def call(t: LocalHub, path: str, body: Any = None, *, key: str = KEY) -> tuple[int, Any]:
    sent = b"" if body is None else json.dumps(body).encode()
    reply = await t.http("GET" if body is None else "POST", path, sent, key=key)
    return reply.status, json.loads(reply.body)


async def said(t: LocalHub, path: str, body: Any = None, *, key: str = KEY) -> Any:
    """The data of a success in the envelope."""
    status, found = await call(t, path, body, key=key)
    assert (status, found.get("success")) == (200, True), found
    return found["data"]


def chat(message: str = "hi", **more: Any) -> dict[str, Any]:
    return {"agent": "quinn", "message": message, "skill": "echo", **more}


async def test_agent_health_lists_the_facts_of_each_agent_without_an_envelope() -> None:
    async with ready_hub(worker(), worker("ava")) as t:
        t.network.down("http://ava.example:8000")
        await t.hub.broker.refresh("ava")
        status, found = await call(t, "/api/agent-health")
        assert status == 200
        assert (found["agentCount"], found["reachableCount"], found["registrationCount"]) == (2, 1, 8)
        quinn, ava = found["agents"]["quinn"], found["agents"]["ava"]
        assert quinn["skills"] == ["echo", "ponder", "ask", "fail"]
        assert (quinn["executorType"], quinn["reachable"], quinn["streaming"], quinn["cardAvailable"]) == (
            "a2a",
            True,
            True,
            True,
        )
        assert (quinn["error"], ava["reachable"]) == (None, False)
        assert ava["error"]


async def test_outcomes_are_counted_and_the_newest_listed_first() -> None:
    async with ready_hub(worker()) as t:
        for skill, limit in (("echo", None), ("fail", None), ("ponder", 1_000), ("echo", None)):
            (cid,) = await t.remote.submit({"text": "x", "skill": skill, "timeoutMs": limit})
            await t.hub.tracker.wait(cid)
        _, found = await call(t, "/api/outcomes")
        assert found["summary"] == {"success": 2, "failure": 1, "timeout": 1, "total": 4}
        assert [row["skill"] for row in found["recent"]] == ["echo", "ponder", "fail", "echo"]
        assert len((await call(t, "/api/outcomes?limit=1"))[1]["recent"]) == 1
        assert (await call(t, "/api/outcomes?limit=0"))[1]["recent"] == []


async def test_fleet_health_has_workstaceans_name_too() -> None:
    async with ready_hub(worker()) as t:
        assert await said(t, "/api/agent-fleet-health") == await said(t, "/api/health")


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz"])
async def test_a_supervisor_of_the_process_needs_no_key(path: str) -> None:
    async with local_hub(worker()) as t:
        assert (await t.http("GET", path, key="")).status == 200
        await t.hub.stop_streams()
        assert (await t.http("GET", path, key="")).status == (503 if path == "/readyz" else 200)


async def test_a_conversation_continues_in_its_context() -> None:
    agent = Agent("quinn")

    @agent.skill("chat")
    async def talk(task: SkillContext) -> str:
        return f"{task.context_id} heard {task.text}"

    async with ready_hub(agent, agent_keys=ENV) as t:
        first = await said(t, "/api/a2a/chat", {"agent": "quinn", "message": "one"}, key=AVA)
        assert (first["status"], first["taskState"], first["agent"]) == ("done", "completed", "quinn")
        assert first["response"] == f"{first['contextId']} heard one"
        assert first["contextId"] != first["correlationId"], "the agent makes it"
        more = {"agent": "quinn", "message": "two", "contextId": first["contextId"], "done": True}
        last = await said(t, "/api/a2a/chat", more, key=AVA)
        assert last["response"] == f"{first['contextId']} heard two"
        assert not last.keys() & {"contextId", "taskId"}
        assert (await call(t, "/api/a2a/chat", {**more, "message": "three"}, key=QUINN))[0] == 404
        record = await t.ledger.request(last["correlationId"])
        assert record is not None
        assert record.request.system_actor == "ava"


async def test_the_usage_of_an_agent_comes_with_its_answer() -> None:
    async with ready_hub(worker()) as t:
        row = await said(t, "/api/a2a/chat", chat())
        assert (row["response"], row["costUsd"]) == ("you said hi", 0.25)
        assert (row["usage"]["input_tokens"], row["usage"]["output_tokens"]) == (10, 5)


async def test_a_failed_chat_has_its_reason_in_place_of_the_answer() -> None:
    async with ready_hub(worker()) as t:
        row = await said(t, "/api/a2a/chat", chat(skill="fail"))
        assert (row["taskState"], row["success"], row["response"]) == ("failed", False, "the disk is full")


async def test_a_question_is_returned_and_answered_by_the_next_message_on_its_task() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        began = asyncio.get_running_loop().time()
        asked = await said(t, "/api/a2a/chat", chat(skill="ask"), key=AVA)
        assert asyncio.get_running_loop().time() < began + 5, "nobody waits on when a question is there"
        assert (asked["status"], asked["taskState"], asked["response"]) == (
            "input-required",
            "input-required",
            "which branch?",
        )
        more = {"agent": "quinn", "message": "main", "taskId": asked["taskId"], "contextId": asked["contextId"]}
        assert (await call(t, "/api/a2a/chat", more, key=QUINN))[0] == 404
        row = await said(t, "/api/a2a/chat", more, key=AVA)
        assert (row["status"], row["response"], row["correlationId"]) == (
            "done",
            "going with main",
            asked["correlationId"],
        )


@pytest.mark.parametrize("how", [{"returnImmediately": True}, {"waitMs": 1_000}, {}])
async def test_a_caller_that_stops_waiting_gets_the_address_of_the_answer(how: dict[str, Any]) -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        began = asyncio.get_running_loop().time()
        row = await said(t, "/api/a2a/chat", chat(skill="ponder", **how), key=AVA)
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx({"returnImmediately": 0, "waitMs": 1}.get(next(iter(how), ""), 25), abs=0.5)
        assert (row["pending"], row["status"]) == (True, "working")
        assert [(await call(t, row["pollUrl"], key=key))[0] for key in (AVA, KEY, QUINN)] == [200, 200, 404]
        assert (await said(t, row["pollUrl"] + "?wait=1", key=AVA))["status"] == "working"
        await asyncio.sleep(600)
        done = await said(t, row["pollUrl"], key=AVA)
        assert (done["status"], done["response"]) == ("done", "at last")


async def test_a_chat_ends_when_the_hub_does() -> None:
    async with ready_hub(worker()) as t:
        waiting = asyncio.ensure_future(said(t, "/api/a2a/chat", chat(skill="ponder")))
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await t.hub.stop_streams()
        assert (await waiting)["pending"]
        assert asyncio.get_running_loop().time() < began + 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (chat(agent="quin"), 404),
        (chat(agent="all"), 400),
        (chat(skill="echos"), 404),
        (chat(" "), 400),
        (chat(done="yes"), 400),
        (chat(waitMs=60_001), 400),
        (chat(systemActor="ann"), 400),
        ({"agent": "quinn"}, 400),
        ({"message": "hi"}, 400),
    ],
)
async def test_an_invalid_chat_is_refused(body: dict[str, Any], status: int) -> None:
    async with ready_hub(worker()) as t:
        assert (await call(t, "/api/a2a/chat", body))[0] == status


async def test_delegated_work_is_requested_in_the_name_of_the_delegating_agent() -> None:
    async with ready_hub(worker(), agent_keys=ENV) as t:
        body = {"agent": "quinn", "skill": "echo", "message": "hi", "projectSlug": "p1", "dispatcherAgent": "quinn"}
        row = await said(t, "/api/a2a/delegate", body, key=AVA)
        record = await t.ledger.request(row["correlationId"])
        assert record is not None
        assert (record.request.system_actor, record.request.dispatcher_agent) == ("ava", "ava")
        assert record.request.metadata["projectSlug"] == "p1"
        assert (await said(t, row["pollUrl"] + "?wait=9", key=AVA))["response"] == "you said hi"
        assert (await call(t, "/api/a2a/delegate", {**body, "agent": "frank"}, key=AVA))[0] == 404
        assert (await call(t, "/api/a2a/delegate", {"agent": "quinn", "message": "hi"}, key=AVA))[0] == 400


@pytest.mark.parametrize(
    ("decision", "end"),
    [
        ({"decision": "approve"}, "going with approve"),
        ({"decision": "approve", "feedback": "main"}, "going with main"),
        ({"decision": "modify", "feedback": "next"}, "going with next"),
        ({"decision": "reject"}, None),
    ],
)
async def test_a_person_decides_once_about_a_waiting_request(decision: dict[str, Any], end: str | None) -> None:
    async with ready_hub(worker()) as t:
        (cid,) = await t.remote.submit({"text": "go", "skill": "ask"})
        await asyncio.sleep(3)
        (pending,) = await said(t, "/api/hitl/pending")
        assert (pending["type"], pending["summary"], pending["replyTopic"]) == (
            "hitl_request",
            "which branch?",
            f"hitl.response.{cid}",
        )
        assert (await call(t, "/api/hitl-queue"))[1] == {"pendingCount": 1, "unrenderedCount": 0}
        sent = {"type": "hitl_response", "correlationId": cid, "decidedBy": "ann", **decision}
        assert (await call(t, "/api/hitl/respond", sent))[0] == 202
        assert (await call(t, "/api/hitl/respond", sent))[0] in {404, 409}
        outcome = await t.hub.tracker.wait(cid)
        assert (outcome.kind == "canceled") if end is None else (outcome.text == end)
        assert (await call(t, "/api/hitl-queue"))[1]["pendingCount"] == 0


async def test_a_decision_to_modify_is_refused_without_the_change() -> None:
    async with local_hub(worker()) as t:
        assert (await call(t, "/api/hitl/respond", {"correlationId": "c-1", "decision": "modify"}))[0] == 400
        assert (await call(t, "/api/hitl/respond", {"correlationId": "c-1", "decision": "approve"}))[0] == 404


@pytest.mark.parametrize(
    ("topic", "interface", "channel"),
    [
        ("message.inbound.discord", "discord", None),
        ("message.inbound.discord.1469.x", "discord", "1469.x"),
        ("message.inbound.ü", "api", None),
    ],
)
async def test_a_message_from_outside_becomes_a_request(topic: str, interface: str, channel: str | None) -> None:
    async with ready_hub(worker()) as t:
        payload = {"content": "hi", "skillHint": "echo", "author": {"name": "ann"}}
        row = await said(t, "/publish", {"topic": topic, "payload": payload, "correlationId": "c-1"})
        assert row == {"correlationIds": ["c-1"]}
        assert (await t.hub.tracker.wait("c-1")).text == "you said hi"
        record = await t.ledger.request("c-1")
        assert record is not None
        assert (record.request.source.interface, record.request.source.channel_id) == (interface, channel)
        assert (await call(t, "/publish", {"topic": topic, "payload": payload, "correlationId": "c-1"}))[0] == 409


async def test_a_ceremony_is_fired_by_its_topic() -> None:
    async with ready_hub(worker(), ceremony=CEREMONY) as t:
        row = await said(t, "/publish", {"topic": "ceremony.a.daily-digest.execute"})
        (run,) = await t.ledger.runs("a.daily-digest")
        assert (run.claim.run_id, run.claim.trigger) == (row["runId"], "manual")
        assert (await call(t, "/publish", {"topic": "ceremony.other.execute"}))[0] == 404


@pytest.mark.parametrize(
    "topic",
    [
        "autonomous.outcome.user.echo",
        "agent.skill.request",
        "agent.skill.response.c-1",
        "hitl.response.c-1",
        "ceremony.a.daily-digest.completed",
        "ceremony.loaded",
        "message.inbound",
        "message.outbound.discord",
        "xmessage.inbound.discord",
        "config.reload",
        "#",
    ],
)
async def test_no_other_topic_can_be_published_from_outside(topic: str) -> None:
    async with ready_hub(worker(), ceremony=CEREMONY) as t:
        before = t.hub.events.last_seq
        payload = {"content": "hi", "skill": "echo", "success": True, "decision": "approve", "correlationId": "c-1"}
        assert (await call(t, "/publish", {"topic": topic, "payload": payload}))[0] == 403
        assert (t.hub.events.last_seq, await t.ledger.open_requests()) == (before, ())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"payload": {"content": "hi"}},
        {"topic": ""},
        {"topic": "message.inbound.x"},
        {"topic": "message.inbound.x", "payload": {"content": " "}},
        {"topic": "message.inbound.x", "payload": {"content": 7}},
    ],
)
async def test_a_message_without_topic_or_content_is_refused(body: dict[str, Any]) -> None:
    async with ready_hub(worker()) as t:
        assert (await call(t, "/publish", body))[0] == 400
