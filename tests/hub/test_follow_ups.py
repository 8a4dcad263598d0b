"""A further message on a task that the agent has: over the API, in every dialect, sent or refused with the reason."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetsim.client import AgentClient
from fleetsim.client.hub_client import HubClient
from fleetsim.events.wire import payload
from fleetsim.model.errors import NotAccepting
from fleetsim.testbed.faults import LoseReply, Match
from tests.hub.local_hub import HUB, SECURE_HUB, LocalHub, local_hub, ready_hub, worker

DIALECTS = ["0.1", "0.3", "1.0"]
URL = "http://quinn.example:8000/a2a"


def spoken(dialect: str) -> dict[str, Any]:
    return {"entries": {"quinn": {"wire": dialect}}}


async def ended(t: LocalHub, cid: str) -> Any:
    await t.hub.tracker.wait(cid)
    return await t.remote.task(cid)


async def waiting_elsewhere(t: LocalHub, dialect: str) -> tuple[str, str]:
    """A waiting task of another caller than the hub; returns its id and its context."""
    asked = await AgentClient(URL, runtime=t.runtime, dialect=dialect).send_task("go", metadata={"skillHint": "ask"})
    assert asked.waiting
    return asked.id, asked.context_id


def messages(t: LocalHub) -> list[dict[str, Any]]:
    """The parameters of each message to the agent, oldest first."""
    sends = {
        "message/send",
        "message/stream",
        "SendMessage",
        "SendStreamingMessage",
        "tasks/send",
        "tasks/sendSubscribe",
    }
    return [json.loads(s.request.body)["params"] for s in t.network.seen if s.rpc_method in sends]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_follow_up_on_a_task_the_hub_never_saw_is_sent(dialect: str) -> None:
    async with ready_hub(worker(), **spoken(dialect)) as t:
        task_id, _ = await waiting_elsewhere(t, dialect)
        (cid,) = await t.remote.submit({"text": "main", "targets": ["quinn"], "taskId": task_id})
        row = await ended(t, cid)
        assert (row["state"], row["text"], row["taskId"]) == ("completed", "going with main", task_id), row
        assert row["warnings"] == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_follow_up_on_a_task_that_waits_for_us_is_the_answer_to_its_question(dialect: str) -> None:
    async with ready_hub(worker(), **spoken(dialect)) as t:
        (first,) = await t.remote.submit({"text": "go", "skill": "ask", "targets": ["quinn"]})
        row = await t.remote.task(first, wait_s=60)
        body = {"text": "main", "targets": ["quinn"], "taskId": row["taskId"], "systemActor": "ava"}
        assert await t.remote.submit(body) == (first,), "the same request goes on"
        row = await ended(t, first)
        assert (row["state"], row["text"]) == ("completed", "going with main")
        assert [payload(e)["decidedBy"] for e in t.events("hitl.response.")] == ["ava"]
        assert not t.hub.tracker.questions()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_follow_up_continues_a_task_whose_request_ended(dialect: str) -> None:
    """The question expired and the task was left open: a late person knows its context."""
    async with ready_hub(worker(), **spoken(dialect), question_ttl_s=60.0, question_expiry="leave") as t:
        (first,) = await t.remote.submit({"text": "go", "skill": "ask", "targets": ["quinn"]})
        lapsed = await ended(t, first)
        assert lapsed["state"] == "expired"
        (second,) = await t.remote.submit({"text": "main", "targets": ["quinn"], "taskId": lapsed["taskId"]})
        row = await ended(t, second)
        assert (row["state"], row["text"], row["taskId"]) == ("completed", "going with main", lapsed["taskId"])
        assert row["contextId"] == lapsed["contextId"]
        sent = messages(t)[-1]
        assert lapsed["contextId"] in {sent.get("sessionId"), sent["message"].get("contextId")}


async def test_a_follow_up_on_a_working_task_is_refused_with_the_next_step() -> None:
    async with ready_hub(worker()) as t:
        (first,) = await t.remote.submit({"text": "go", "skill": "ponder", "targets": ["quinn"]})
        await asyncio.sleep(5)
        task_id = (await t.remote.task(first))["taskId"]
        reply = await t.http(
            "POST", "/api/requests", json.dumps({"text": "hurry", "targets": ["quinn"], "taskId": task_id}).encode()
        )
        told = json.loads(reply.body)
        assert (reply.status, told["code"]) == (409, "FLEETSIM_ERR_BUSY")
        assert f"fleetsim task get {first}" in told["hint"]
        assert (await ended(t, first))["text"] == "at last"


async def test_one_of_two_follow_ups_at_once_is_accepted() -> None:
    async with ready_hub(worker()) as t:
        task_id, _ = await waiting_elsewhere(t, "1.0")

        async def follow(text: str) -> Any:
            return await t.remote.submit({"text": text, "targets": ["quinn"], "taskId": task_id})

        done = await asyncio.gather(follow("main"), follow("next"), return_exceptions=True)
        taken = [d for d in done if isinstance(d, tuple)]
        refused = [d for d in done if isinstance(d, NotAccepting)]
        assert (len(taken), len(refused)) == (1, 1), done
        assert (await ended(t, taken[0][0]))["state"] == "completed"


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
async def test_a_follow_up_on_an_unknown_task_is_the_callers_error(dialect: str) -> None:
    async with ready_hub(worker(), **spoken(dialect)) as t:
        (cid,) = await t.remote.submit({"text": "main", "targets": ["quinn"], "taskId": "t-nowhere"})
        row = await ended(t, cid)
        assert (row["state"], row["blame"]) == ("undeliverable", "caller")
        assert "-32001" in row["reason"]


async def test_a_follow_up_in_another_context_than_the_tasks_is_the_callers_error() -> None:
    async with ready_hub(worker(), **spoken("1.0")) as t:
        task_id, _ = await waiting_elsewhere(t, "1.0")
        body = {"text": "main", "targets": ["quinn"], "taskId": task_id, "contextId": "c-wrong"}
        (cid,) = await t.remote.submit(body)
        row = await ended(t, cid)
        assert (row["state"], row["blame"]) == ("undeliverable", "caller")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_both_requests_of_one_task_survive_a_restart(dialect: str) -> None:
    async with ready_hub(worker(), **spoken(dialect), question_ttl_s=60.0, question_expiry="leave") as t:
        (first,) = await t.remote.submit({"text": "go", "skill": "ask", "targets": ["quinn"]})
        task_id = (await ended(t, first))["taskId"]
        (second,) = await t.remote.submit({"text": "main", "targets": ["quinn"], "taskId": task_id})
        await t.restart()
        await asyncio.sleep(1)
        row = await ended(t, second)
        assert (row["state"], row["text"], row["taskId"]) == ("completed", "going with main", task_id)
        assert (await t.remote.task(first))["state"] == "expired"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_follow_up_whose_reply_was_lost_is_found_by_its_task(dialect: str) -> None:
    async with ready_hub(worker(), **spoken(dialect), base_url=SECURE_HUB if dialect == "0.1" else HUB) as t:
        task_id, _ = await waiting_elsewhere(t, dialect)
        sends = {"0.1": "tasks/send*", "0.3": "message/*", "1.0": "Send*"}[dialect]
        t.network.fault(LoseReply(), Match(rpc_method=sends), times=1)
        (cid,) = await t.remote.submit({"text": "main", "targets": ["quinn"], "taskId": task_id})
        row = await ended(t, cid)
        assert (row["state"], row["text"]) == ("completed", "going with main"), row


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_first_turn_of_a_conversation_leaves_the_context_to_the_agent_except_in_0_1(dialect: str) -> None:
    async with ready_hub(worker(), **spoken(dialect)) as t:
        (cid,) = await t.remote.submit({"text": "hi", "skill": "echo", "targets": ["quinn"], "conversation": True})
        row = await ended(t, cid)
        sent = messages(t)[-1]
        assert sent.get("sessionId") == (row["contextId"] if dialect == "0.1" else None)
        assert sent.get("contextId") is None
        assert sent["message"].get("contextId") is None
        assert row["contextId"]
        assert row["contextId"] != cid


class Continuing:
    """A 0.3 agent that continues ended tasks, and replies to a message with the task's earlier state."""

    def __init__(self, past: str) -> None:
        self.past = past
        self.polls = 0
        self.said: list[str] = []

    def task(self, state: str, text: str) -> dict[str, Any]:
        message = {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": text}]}
        artifacts = [{"artifactId": "a", "parts": [{"kind": "text", "text": text}]}] if state == "completed" else []
        status = {"state": state, **({"message": message} if state == "input-required" else {})}
        return {"kind": "task", "id": "T", "contextId": "C", "status": status, "artifacts": artifacts}

    async def card(self, _: Request) -> Response:
        skills = [{"id": "echo", "name": "echo", "description": "", "tags": []}]
        return JSONResponse(
            {
                "name": "odd",
                "url": "http://odd.example:8000/a2a",
                "version": "1",
                "description": "",
                "protocolVersion": "0.3.0",
                "capabilities": {},
                "skills": skills,
                "defaultInputModes": [],
                "defaultOutputModes": [],
            }
        )

    async def rpc(self, request: Request) -> Response:
        asked = await request.json()
        if asked["method"] == "message/send":
            self.said.append(asked["params"]["message"].get("contextId"))
            self.polls = 0
            result = self.task(self.past, "the old answer")
        else:
            self.polls += 1
            result = self.task(*self.now())
        return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def now(self) -> tuple[str, str]:
        if len(self.said) < 2:
            return self.past, "the old answer"
        return ("working", "") if self.polls < 3 else ("completed", "the new answer")


@pytest.mark.parametrize("past", ["completed", "input-required"])
async def test_a_tasks_earlier_state_does_not_end_the_follow_up(past: str) -> None:
    """The reply shows the task as it stood before the message: only a later poll counts."""
    odd = Continuing(past)
    async with local_hub(worker(), question_ttl_s=60.0, question_expiry="leave") as t:
        routes = [
            Route("/.well-known/agent-card.json", odd.card),
            Route("/a2a", odd.rpc, methods=["POST"]),
        ]
        t.network.mount("http://odd.example:8000", Starlette(routes=routes))
        entry = replace(t.hub.config.agents[0], name="odd", url="http://odd.example:8000/a2a")
        t.hub.fleet.config = replace(t.hub.config, agents=(*t.hub.config.agents, entry))
        await t.restart()
        await asyncio.sleep(1)
        (first,) = await t.remote.submit({"text": "go", "skill": "echo", "targets": ["odd"]})
        before = await ended(t, first)
        (second,) = await t.remote.submit({"text": "again", "targets": ["odd"], "taskId": before["taskId"]})
        row = await ended(t, second)
        assert (row["state"], row["text"], row["taskId"]) == ("completed", "the new answer", "T")
        assert odd.said[1] == "C", "the context the hub knows the task by"
        assert not [e for e in t.events("hitl.request.") if e.correlation_id == second]


async def test_the_events_of_a_follow_up_come_after_the_number_of_its_acceptance() -> None:
    async with ready_hub(worker()) as t:
        task_id, _ = await waiting_elsewhere(t, "1.0")
        remote: HubClient = t.remote
        accepted = await remote.post("/requests", {"text": "main", "targets": ["quinn"], "taskId": task_id})
        (cid,) = accepted["correlationIds"]
        row = await ended(t, cid)
        (request,) = [e for e in t.events("agent.skill.request") if e.correlation_id == cid]
        assert request.seq > accepted["seq"]
        assert row["taskId"] == task_id
